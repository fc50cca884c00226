/* SPDX-License-Identifier: Apache-2.0
 * INT8 on MMA: xvi8ger4pp adds the outer products of 4 filters and 4 windows for four values of k, modulo 2^32; 8 of them, 6 loads,
 * 10 permutes, 4 exclusive ors and 2 sums per k-iteration. An operand register interleaves the elements of rows k .. k + 3: bytes of
 * two rows are merged, then the byte pairs of two such results.
 *
 * The instruction takes signed filters and unsigned windows. w xor 0x80, read as unsigned, is w + 128, so it computes
 * sum f (w + 128). vmsummbm adds up each filter's elements; 128 times that sum is subtracted at the end. */
#include "vsx.h"

typedef uint32_t T; /* of s32: unsigned, because additions wrap */
typedef vector unsigned int VEC;
typedef vector signed int ORDERED;
typedef int8_t E;
enum { LANES = 4, RANK = 4, SHIFT = 128 };
#define FACTOR(x) (T)(int32_t)(x)
#define LOWEST INT32_MIN
#define HIGHEST INT32_MAX

typedef MERGED_OPERANDS STEP;

INLINE void load_step(const int gf, const int gw, const int whole, STEP *x, const E *f, const E *w, int64_t w_pitch, int64_t nw) {
    (void)gf, (void)gw;
    const BYTES flip = vec_splats((unsigned char)0x80);
    const BYTES four = {0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27}; /* rows k .. k + 3 of filters 0 .. 3 */
    const BYTES f01 = v_load(f), f23 = v_load(f + 16);
    x->f[0] = vec_perm(f01, f23, four);
    x->f[1] = vec_perm(f01, f23, four + 4);
    BYTES row[RANK];
#pragma GCC unroll 4
    for (int r = 0; r < RANK; r++, w += w_pitch) row[r] = (whole ? v_load(w) : v_load_first(w, nw)) ^ flip;
    BYTES high01 = vec_mergeh(row[0], row[1]), high23 = vec_mergeh(row[2], row[3]);
    BYTES low01 = vec_mergel(row[0], row[1]), low23 = vec_mergel(row[2], row[3]);
    /* Clang would turn both levels into one permutation, built from a permute per byte or two. */
    __asm__("" : "+v"(high01), "+v"(high23), "+v"(low01), "+v"(low23));
    merge_pairs(x->w, high01, high23);
    merge_pairs(x->w + 2, low01, low23);
}

INLINE void multiply_step(const int gf, const int gw, const int whole, TILE *tile, const int first, STEP *x) {
    (void)whole;
    const BYTES ones = vec_splats((unsigned char)1);
#pragma GCC unroll 2
    for (int i = 0; i < gf; i++) {
        tile->sums[i] = (VEC)vec_msum((vector signed char)x->f[i], ones, (vector signed int)tile->sums[i]);
#pragma GCC unroll 4
        for (int j = 0; j < gw; j++) __builtin_mma_xvi8ger4pp(&tile->at[first + i * gw + j], x->f[i], x->w[j]);
    }
    KEEP_STEPS_APART;
}

#include "lanes.h"

DEFINE_MMA(s8_outer_16x8__mma, 4)
