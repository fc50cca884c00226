/* SPDX-License-Identifier: Apache-2.0
 * Splits f32 into two tf32 halves, so that three tf32 products give an f32 product:
 *
 *     x y = hi(x) hi(y) + hi(x) lo(y) + lo(x) hi(y) + lo(x) lo(y), where the last term, at most 2^-20 |x y|, is dropped.
 *
 * hi is x truncated by 13 bits; lo is the rest, which the tensor cores truncate by 13 bits, too. Truncation, unlike rounding, gives lo the sign of x.
 * lo is zero, infinite or NaN exactly if x is, so each of the three products treats infinities and zeros as x y does, and an infinite result does
 * not become NaN. To keep lo from being zero otherwise, 2^-60 hi is added, which no sum shows. (2^-11 + 2^-13) lo is also added: the mean of what
 * truncation and the dropped term remove.
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

/* Splits f32 into three bf16 thirds, each the remainder of the previous ones rounded to nearest: x = first + second + third exactly, except below
 * 2^-110. |second| <= 2^-8 |x| and |third| <= 2^-17 |x|, so the six products that thirds.cuh makes of the nine omit at most 2^-24 of a product.
 * 2^-25 x is added to a non-zero third: the mean of what the truncating accumulation of 64 products removes. The thirds of infinity and NaN make
 * their products NaN.
 *
 * Worked number: x = 1 + 2^-8 + 2^-20: first = 1, second = 2^-8, third = 2^-20 + 2^-25 (1 + 2^-8 + 2^-20), rounded 2^-20 + 2^-25. */
constexpr float TRUNCATION = 0x1p-25f;

/* Rounds two numbers to bf16, packed into a register, and leaves the remainders in x. */
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
        if (rest[i] != 0) rest[i] = fmaf(x[i], TRUNCATION, rest[i]);
    third = round_two(rest);
}

/* The same of one number. Numbers that would round to infinity are truncated; the first third of infinity or NaN is x itself. */
__device__ inline void split_bf16(float x, unsigned short (&third)[3]) {
    const unsigned bits = __float_as_uint(x);
    float rest = x;
    for (int i = 0; i < 3; i++) {
        if (i == 2 && rest != 0) rest = fmaf(x, TRUNCATION, rest);
        const unsigned all = __float_as_uint(rest), nearest = all + 0x7fffu + (all >> 16 & 1),
                       rounded = (nearest & 0x7f800000u) == 0x7f800000u ? all : nearest;
        third[i] = (unsigned short)(rounded >> 16);
        rest -= __uint_as_float(rounded & 0xffff0000u);
    }
    if ((bits & 0x7f800000u) == 0x7f800000u)
        third[0] = (unsigned short)(bits >> 16 | (bits & 0x7fffffu ? 0x40u : 0u)), third[1] = third[2] = 0;
}

/* Accumulators that are not finite are recomputed, because infinity has no thirds: acc[i] = again(i), by FP32 multiply-adds. */
template <int COUNT, class Again> __device__ inline void recompute_nonfinite(float (&acc)[COUNT], Again again) {
    static_assert(COUNT <= 64, "a bit for each");
    uint64_t bits = 0;
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        if ((__float_as_uint(acc[i]) & 0x7f800000u) == 0x7f800000u) bits |= (uint64_t)1 << i;
    if (!bits) return;
#pragma unroll 1
    for (int which = 0; which < COUNT; which++) {
        if (!(bits >> which & 1)) continue;
        const float value = again(which);
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            if (i == which) acc[i] = value;
    }
}

/* The order of eight neighbouring k if A is MN-major: index of the k at a position. A lane holds two neighbouring positions; in this order the lanes of a
 * warp read different banks (mainloop/wgmma/thirds.cuh). */
__host__ __device__ inline int interleaved(int position) { return position / 2 + position % 2 * 4; }
}
#endif
