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
#include <cuda_runtime.h>

namespace pysim {

__device__ inline void split_tf32(unsigned x, unsigned &hi, unsigned &lo) {
    hi = x & 0xffffe000u;
    const float high = __uint_as_float(hi), rest = __uint_as_float(x) - high;
    const float low = fmaf(high, 0x1p-60f, rest * (1 + 0x1p-11f + 0x1p-13f));
    lo = (x & 0x7fffffffu) == 0x7f800000u ? x : __float_as_uint(low);
}

/* Positions of k in an instruction of 8: where A is read from rows of k, position p holds the one that its rows have there; where from columns,
 * this one, so that the lanes of a warp read different banks (mainloop/hopper/split.cuh). */
__host__ __device__ inline int interleaved(int position) { return position < 4 ? 2 * position : 2 * position - 7; }
}
#endif
