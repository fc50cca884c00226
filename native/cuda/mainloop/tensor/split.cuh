/* SPDX-License-Identifier: Apache-2.0
 * Products of f32 as three of tf32 halves (core/split.cuh) on mma.sync: a warp splits its fragments when they are multiplied, so both operands may
 * lie either way and nothing is made ahead. Tensor cores cut bits off whatever is added: of an instruction's k the small products come first, and
 * every PROMOTION of k the accumulators are added to sums in registers and start from zeros.
 *
 * Here hi is x rounded to nearest, so that lo has either sign: |lo| <= 2^-11 |x|, |x - hi - lo| <= 2^-23 |x|, and lo(x) lo(y), which is left out, is at
 * most 2^-22 |x y|. What is infinite or NaN, or is rounded to infinity, has a lo that is NaN: such sums are not finite, and those that are not are made
 * once more, of halves that are cut and keep what x is.
 *
 * Worked number: warps of 64x32 read, of eight k, 768 elements, 24 a thread, and make 72 instructions of halves, 48 of mma.sync, and 64 additions. */
#ifndef PYSIM_CUDA_TENSOR_SPLIT_CUH
#define PYSIM_CUDA_TENSOR_SPLIT_CUH
#include "core/ptx.cuh"
#include "core/split.cuh"

namespace pysim {
namespace mma_sync {

__device__ inline void split_rounded(unsigned x, unsigned &hi, unsigned &lo) {
    hi = (x + 0x1000u) & 0xffffe000u; /* to nearest, ties away from zero */
    lo = __float_as_uint(__uint_as_float(x) - __uint_as_float(hi));
}

/* `part`, from zero where `first`, += the products of the fragments of TILES tiles of rows and PAIRS of two of columns, and is added to `sum` where
 * `last`. CUT: of halves that are cut, and to the sums of the bits of `only`. */
template <bool CUT, int SUMS, int TILES, int PAIRS>
__device__ inline void multiply_split(float (&sum)[SUMS], float (&part)[SUMS], const unsigned (&a)[TILES][4], const unsigned (&b)[PAIRS][4], bool first,
                                      bool last, uint64_t only) {
    constexpr int ROW = SUMS / TILES; /* sums of a tile of rows: four of each tile of columns */
    static_assert(ROW == 8 * PAIRS && SUMS <= 64, "a bit for each");
    const auto split = [](const unsigned (&x)[4], unsigned (&hi)[4], unsigned (&lo)[4]) {
#pragma unroll
        for (int e = 0; e < 4; e++) CUT ? split_tf32(x[e], hi[e], lo[e]) : split_rounded(x[e], hi[e], lo[e]);
    };
    unsigned high[PAIRS][4], low[PAIRS][4];
#pragma unroll
    for (int j = 0; j < PAIRS; j++) split(b[j], high[j], low[j]);
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        unsigned hi[4], lo[4];
        split(a[i], hi, lo);
        float(&own)[2 * PAIRS][4] = *(float(*)[2 * PAIRS][4])(part + i * ROW);
        if (first)
#pragma unroll
            for (int e = 0; e < ROW; e++) own[e / 4][e % 4] = 0;
#pragma unroll
        for (int j = 0; j < 2 * PAIRS; j++) mma(own[j], lo, high[j / 2] + j % 2 * 2, float());
#pragma unroll
        for (int j = 0; j < 2 * PAIRS; j++) mma(own[j], hi, low[j / 2] + j % 2 * 2, float());
#pragma unroll
        for (int j = 0; j < 2 * PAIRS; j++) mma(own[j], hi, high[j / 2] + j % 2 * 2, float());
        if (last)
#pragma unroll
            for (int e = i * ROW; e < (i + 1) * ROW; e++)
                if (!CUT || only >> e & 1) sum[e] += part[e];
    }
}

/* Where there are sums that are not finite, on any thread of the block: zeros in their place, and a bit for each. */
template <int SUMS> __device__ inline bool clear_infinite(float (&sum)[SUMS], uint64_t &bits, int *shared) {
    bits = 0;
#pragma unroll
    for (int e = 0; e < SUMS; e++)
        if ((__float_as_uint(sum[e]) & 0x7f800000u) == 0x7f800000u) bits |= (uint64_t)1 << e, sum[e] = 0;
    if (threadIdx.x == 0) *shared = 0;
    __syncthreads();
    if (bits) *shared = 1;
    __syncthreads();
    return *shared;
}
}
}
#endif
