/* SPDX-License-Identifier: Apache-2.0
 * BF16 on MMA: xvbf16ger2pp adds the outer products of 4 filters and 4 windows for two values of k; 8 of them, 6 loads and 6 merges
 * per k-iteration. An operand register pairs row k with row k + 1, element by element:
 *
 *   row k      w0 w1 w2 ... w7      merged, high     w0 w0' w1 w1' w2 w2' w3 w3'
 *   row k + 1  w0' w1' ... w7'      merged, low      w4 w4' w5 w5' w6 w6' w7 w7'
 *
 * Rounding: w f + w' f' is exact and rounded once to f32's significand, its sum with the accumulator once more (Power ISA 3.1B,
 * xvbf16ger2pp), so a sum of k products stays within gamma_{ceil(k/2)+1} of sum |w f|, u = 2^-24. */
#include "vsx.h"

typedef float T;
typedef vector float VEC, ORDERED;
typedef uint16_t E;
enum { LANES = 4, RANK = 2, SHIFT = 0 };
#define FACTOR(x) (T)(x)
#define LOWEST (-__builtin_inff())
#define HIGHEST __builtin_inff()

typedef MERGED_OPERANDS STEP;

INLINE void load_step(const int gf, const int gw, const int whole, STEP *x, const E *f, const E *w, int64_t w_pitch, int64_t nw) {
    (void)gf;
    BYTES row[RANK][3]; /* filters, windows 0 .. 7, windows 8 .. 15 */
#pragma GCC unroll 2
    for (int r = 0; r < RANK; r++, f += 8, w += w_pitch) {
        const BYTES zero = {0};
        row[r][0] = v_load(f);
        row[r][1] = gw > 2 ? v_load(w) : v_load_first(w, 2 * nw);
        row[r][2] = gw <= 2 ? zero : whole ? v_load(w + 8) : v_load_first(w + 8, 2 * (nw - 8));
    }
    merge_pairs(x->f, row[0][0], row[1][0]);
    merge_pairs(x->w, row[0][1], row[1][1]);
    merge_pairs(x->w + 2, row[0][2], row[1][2]);
}

INLINE void multiply_step(const int gf, const int gw, const int whole, TILE *tile, const int first, STEP *x) {
    (void)whole;
#pragma GCC unroll 2
    for (int i = 0; i < gf; i++)
#pragma GCC unroll 4
        for (int j = 0; j < gw; j++) __builtin_mma_xvbf16ger2pp(&tile->at[first + i * gw + j], x->f[i], x->w[j]);
    KEEP_STEPS_APART;
}

#include "lanes.h"

DEFINE_MMA(bf16_outer_16x8__mma, 4)
