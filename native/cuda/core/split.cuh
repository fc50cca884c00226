/* SPDX-License-Identifier: Apache-2.0
 * f32 numbers as two tf32 halves, so that three products of tf32 make one of f32:
 *
 *     x y = hi(x) hi(y) + hi(x) lo(y) + lo(x) hi(y) + lo(x) lo(y), of which the last, at most 2^-20 |x y|, is left out.
 *
 * hi is x without its last 13 bits and lo what is left, which the tensor cores read without its last 13 bits, too. Both are cut and not
 * rounded, so that lo has the sign of x, and where x is zero, infinite or NaN so is lo, and where it is not, not: infinities and zeros then
 * meet in each of the three products as they do in x y, and none makes NaN of what is infinite. For that lo is never quite zero: 2^-60 hi
 * is added, too little to show in any sum. 2^-11 + 2^-13 of lo are, too: in the mean what cutting, and leaving out, take away.
 * |x - hi - lo| <= 2^-21 |x|; numbers below 2^-112 lose more, those below 2^-136 are zeros, and infinity times one below 2^-76 may be NaN.
 *
 * Worked number: x = 1 + 2^-12: hi = 1, lo = 2^-12 + 2^-23. */
#ifndef PYSIM_CUDA_SPLIT_CUH
#define PYSIM_CUDA_SPLIT_CUH
#include <cuda_bf16.h>

#include "core/launch.h"

namespace pysim {

__device__ inline void split_tf32(unsigned x, unsigned &hi, unsigned &lo) {
    hi = x & 0xffffe000u;
    const float high = __uint_as_float(hi), rest = __uint_as_float(x) - high;
    const float low = fmaf(high, 0x1p-60f, rest * (1 + 0x1p-11f + 0x1p-13f));
    lo = (x & 0x7fffffffu) == 0x7f800000u ? x : __float_as_uint(low);
}

/* f32 numbers as three of bf16, each what the ones before leave, rounded to nearest: x = first + second + third to the last bit, but for
 * numbers below 2^-110, which lose bits. |second| <= 2^-8 |x|, |third| <= 2^-17 |x|, so of nine products of thirds the six that are made (thirds.cuh)
 * leave out at most 2^-24 of a product. To a third that is not zero 2^-25 of x is added, where sums of 64 are cut as they grow: in the mean what that
 * takes away. What is infinite or NaN has thirds that make its products NaN.
 *
 * Worked number: x = 1 + 2^-8 + 2^-20: first = 1, second = 2^-8, third = 2^-20 + 2^-25 (1 + 2^-8 + 2^-20), rounded 2^-20 + 2^-25. */
constexpr float CUT_AWAY = 0x1p-25f;

/* Two numbers to nearest, as a register holds them, and what is left of them. */
__device__ inline unsigned round_two(float (&x)[2]) {
    unsigned both = 0;
#ifdef PYSIM_EMULATED
    for (int i = 0; i < 2; i++) both |= (unsigned)__nv_bfloat16(x[i]).bits << 16 * i;
#else
    if constexpr (CODE_CAPABILITY >= 80) asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(both) : "f"(x[0]), "f"(x[1]));
#endif
    x[0] -= __uint_as_float(both << 16), x[1] -= __uint_as_float(both & 0xffff0000u);
    return both;
}
template <bool CUT = true> __device__ inline void split_two(const float (&x)[2], unsigned &first, unsigned &second, unsigned &third) {
    float rest[2] = {x[0], x[1]};
    first = round_two(rest), second = round_two(rest);
    for (int i = 0; CUT && i < 2; i++)
        if (rest[i] != 0) rest[i] = fmaf(x[i], CUT_AWAY, rest[i]);
    third = round_two(rest);
}

/* One number, and here those beyond the largest of bf16 are cut, and what is infinite or NaN is its first third. */
__device__ inline void split_bf16(float x, unsigned short (&third)[3]) {
    const unsigned bits = __float_as_uint(x);
    float rest = x;
    for (int i = 0; i < 3; i++) {
        if (i == 2 && rest != 0) rest = fmaf(x, CUT_AWAY, rest);
        const unsigned all = __float_as_uint(rest), nearest = all + 0x7fffu + (all >> 16 & 1), rounded = (nearest & 0x7f800000u) == 0x7f800000u ? all : nearest;
        third[i] = (unsigned short)(rounded >> 16);
        rest -= __uint_as_float(rounded & 0xffff0000u);
    }
    if ((bits & 0x7f800000u) == 0x7f800000u) third[0] = (unsigned short)(bits >> 16 | (bits & 0x7fffffu ? 0x40u : 0u)), third[1] = third[2] = 0;
}

/* Sums that are not finite are made once more, since a third of infinity is none: sum i becomes again(i), of FP32's own multiply-adds. */
template <int SUMS, class Again> __device__ inline void mend(float (&sum)[SUMS], Again again) {
    static_assert(SUMS <= 64, "a bit for each");
    uint64_t bits = 0;
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        if ((__float_as_uint(sum[i]) & 0x7f800000u) == 0x7f800000u) bits |= (uint64_t)1 << i;
    if (!bits) return;
#pragma unroll 1
    for (int which = 0; which < SUMS; which++) {
        if (!(bits >> which & 1)) continue;
        const float value = again(which);
#pragma unroll
        for (int i = 0; i < SUMS; i++)
            if (i == which) sum[i] = value;
    }
}

/* Which of eight neighbouring k the one at a position is, where A is read from rows of k: so that the lanes of a warp, each of which has two positions
 * beside one another, read different banks (mainloop/hopper/thirds.cuh). */
__host__ __device__ inline int interleaved(int position) { return position / 2 + position % 2 * 4; }
}
#endif
