/* SPDX-License-Identifier: Apache-2.0
 * Products of f32 as six of bf16 (core/split.cuh), which take as long as three of tf32: x and y in thirds, without x2 y3, x3 y2 and x3 y3. B comes
 * in thirds, three tiles in every stage: they were made ahead. A comes as it is: a warpgroup reads its rows of a stage into registers, in the order
 * that wgmma takes them from there, and splits them while its last products are still under way. So A may lie either way.
 *
 * Tensor cores cut bits off whatever is added: of PROMOTION of k the small products come first, the first thirds of A waiting in registers, and then
 * the large ones; and after them the accumulators are added to sums in registers and start from zeros.
 *
 * Worked number: 128x128x32, 5 stages: a stage is 16 + 24 KiB; its six products take 6 * 128 * 128 * 32 / 2048 = 1536 cycles, so 27 bytes per cycle
 * and multiprocessor from L2. Registers: 64 accumulators, 64 sums, 24 of A's thirds. */
#ifndef PYSIM_CUDA_HOPPER_THIRDS_CUH
#define PYSIM_CUDA_HOPPER_THIRDS_CUH
#include "mainloop/hopper/split.cuh"

namespace pysim {
namespace hopper {

/* What a thread keeps of a stage until the large products: the first thirds of its elements of A. */
template <class S> struct Thirds {
    enum { COLUMN_BYTES = 64, THIRD = S::B_BYTES / 3, GROUPS = S::BLOCK_K / 16 /* instructions along k */ };
    using Mma = Product<BF16X6>;
    unsigned first[GROUPS][4];

    /* As those of Halves (split.cuh). */
    template <class OfA> __device__ void add_small(float (&part)[S::SUMS], const OfA &of_a, uint32_t a, uint32_t b, int more) {
#pragma unroll
        for (int group = 0; group < GROUPS; group++) {
            unsigned second[4], third[4];
#pragma unroll
            for (int i = 0; i < 4; i++) { /* rows below, k to the right */
                float x[2];
#pragma unroll
                for (int e = 0; e < 2; e++) x[e] = __uint_as_float(of_a.load(a, 2 * group + i / 2, i % 2 + 2 * e));
                split_two(x, first[group][i], second[i], third[i]);
            }
            mma_fence();
            const unsigned(&large)[4] = first[group];
            const uint64_t k = matrix_of_rows<64>(b + group * 32), k2 = matrix_of_rows<64>(b + THIRD + group * 32), k3 = matrix_of_rows<64>(b + 2 * THIRD + group * 32);
            Mma::add(part, third, k, more || group);
            Mma::add(part, large, k3, 1);
            Mma::add(part, second, k2, 1);
            Mma::add(part, large, k2, 1);
            Mma::add(part, second, k, 1);
            mma_commit();
            mma_wait<1>(); /* those before are done with their registers */
        }
    }
    __device__ void add_large(float (&part)[S::SUMS], uint32_t b) const {
#pragma unroll
        for (int group = 0; group < GROUPS; group++) Mma::add(part, first[group], matrix_of_rows<64>(b + group * 32), 1);
    }
};

/* Sums that are not finite become those of multiply-adds in the order of k, of steps [begin, end); `row` and `column`: the thread's first of C. */
template <class S, int TA> __device__ __forceinline__ void mend_thirds(const Problem &p, float (&sum)[S::SUMS], int row, int column, int begin, int end) {
    mend(sum, [&](int which) {
        const int m = row + which / 2 % 2 * 8, n = column + which / 4 * 8 + which % 2;
        float value = 0;
        if (m >= p.m || n >= p.n) return value;
        const float *const a = (const float *)p.a + (TA ? m : m * p.lda);
        const __nv_bfloat16 *const b = (const __nv_bfloat16 *)p.b + n * p.ldb;
        for (int at = begin * S::BLOCK_K; at < min(end * S::BLOCK_K, (int)p.ldb) && value == value; at++) { /* NaN stays NaN */
            const int k = TA ? at : (at & ~7) + interleaved(at & 7);
            if (k >= p.k) continue;
            const float y = __bfloat162float(b[at]) + __bfloat162float(b[p.n * p.ldb + at]) + __bfloat162float(b[2 * p.n * p.ldb + at]);
            value = fmaf(a[TA ? k * p.lda : k], y, value);
        }
        return value;
    });
}
}
}
#endif
