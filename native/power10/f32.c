/* SPDX-License-Identifier: Apache-2.0
 * FP32 on MMA: xvf32gerpp adds the outer product of 4 filters and 4 windows; 8 of them and 3 lxvp per k-iteration. */
#include "vsx.h"

typedef float T;
typedef vector float VEC, ORDERED;
typedef float E;
enum { LANES = 4, RANK = 1, SHIFT = 0 };
#define FACTOR(x) (T)(x)
#define LOWEST (-__builtin_inff())
#define HIGHEST __builtin_inff()

typedef struct {
    __vector_pair f2[1], w2[2]; /* two groups in each; arrays, because Clang allows MMA types in a struct in no other way */
    BYTES f[2], w[4];           /* one group in each */
} STEP;

INLINE void load_step(const int gf, const int gw, const int whole, STEP *x, const E *f, const E *w, int64_t w_pitch, int64_t nw) {
    (void)w_pitch;
    if (whole && gf == 2) {
        x->f2[0] = v_load_pair(f);
        x->w2[0] = v_load_pair(w);
        x->w2[1] = v_load_pair(w + 8);
        return;
    }
#pragma GCC unroll 2
    for (int i = 0; i < gf; i++) x->f[i] = v_load(f + 4 * i);
#pragma GCC unroll 4
    for (int j = 0; j < gw - 1; j++) x->w[j] = v_load(w + 4 * j);
    x->w[gw - 1] = whole ? v_load(w + 12) : v_load_first(w + 4 * (gw - 1), 4 * (nw - 4 * (gw - 1)));
}

INLINE void multiply_step(const int gf, const int gw, const int whole, TILE *tile, const int first, STEP *x) {
#pragma GCC unroll 2
    for (int i = 0; i < gf; i++)
#pragma GCC unroll 4
        for (int j = 0; j < gw; j++) {
            __vector_quad *acc = &tile->at[first + i * gw + j];
            if (whole && gf == 2) MULTIPLY_HALVES(xvf32gerpp, *acc, x->f2[0], i, x->w2[j / 2], j % 2);
            else __builtin_mma_xvf32gerpp(acc, x->f[i], x->w[j]);
        }
}

#include "lanes.h"

DEFINE_MMA(f32_outer_16x8__mma, 4)
DEFINE_MMA(f32_chain_16x8__mma, 1)
