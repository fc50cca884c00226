/* SPDX-License-Identifier: Apache-2.0
 * FP64 on MMA: xvf64gerpp adds the outer product of 4 filters (a pair of registers) and 2 windows. 8 filters x 8 windows use all eight
 * accumulators with 4 lxvp per k-iteration; 4 x 16 and 16 x 4 would need 5. */
#include "vsx.h"

typedef double T;
typedef vector double VEC, ORDERED;
typedef double E;
enum { LANES = 2, RANK = 1, SHIFT = 0 };
#define FACTOR(x) (T)(x)
#define LOWEST (-__builtin_inf())
#define HIGHEST __builtin_inf()

typedef struct {
    __vector_pair f[2], w2[2]; /* a group of 4 filters, two groups of 2 windows in each */
    BYTES w[4];                /* one group of windows in each */
} STEP;

INLINE void load_step(const int gf, const int gw, const int whole, STEP *x, const E *f, const E *w, int64_t w_pitch, int64_t nw) {
    (void)w_pitch;
#pragma GCC unroll 2
    for (int i = 0; i < gf; i++) x->f[i] = v_load_pair(f + 4 * i);
    if (whole) {
        x->w2[0] = v_load_pair(w);
        x->w2[1] = v_load_pair(w + 4);
        return;
    }
#pragma GCC unroll 4
    for (int j = 0; j < gw - 1; j++) x->w[j] = v_load(w + 2 * j);
    x->w[gw - 1] = v_load_first(w + 2 * (gw - 1), 8 * (nw - 2 * (gw - 1)));
}

INLINE void multiply_step(const int gf, const int gw, const int whole, TILE *tile, const int first, STEP *x) {
#pragma GCC unroll 2
    for (int i = 0; i < gf; i++)
#pragma GCC unroll 4
        for (int j = 0; j < gw; j++) {
            __vector_quad *acc = &tile->at[first + i * gw + j];
            if (whole) MULTIPLY_PAIR_HALF(xvf64gerpp, *acc, x->f[i], x->w2[j / 2], j % 2);
            else __builtin_mma_xvf64gerpp(acc, x->f[i], x->w[j]);
        }
}

#include "lanes.h"

DEFINE_MMA(f64_outer_8x8__mma, 4)
DEFINE_MMA(f64_chain_8x8__mma, 1)
