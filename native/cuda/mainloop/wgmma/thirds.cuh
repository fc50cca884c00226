/* SPDX-License-Identifier: Apache-2.0
 * f32 products as six bf16 products (core/split.cuh), which take as long as three of tf32: x and y are split into thirds, and x2 y3, x3 y2, x3 y3 are
 * dropped. B is split before the launch: a stage holds three tiles of B. A is split here: a warpgroup loads its rows of a stage into registers, in
 * the order in which wgmma takes A from registers, and splits them while the previous products run. So A may have either layout.
 *
 * Tensor cores truncate when they accumulate. Therefore, within PROMOTION of k, the small products come first (the first thirds of A wait in
 * registers), then the large ones; then the accumulators are added to f32 registers and restart from zero.
 *
 * Worked number: 128x128x32, 5 stages: a stage is 16 + 24 KiB; its six products take 6 * 128 * 128 * 32 / 2048 = 1536 cycles, so 27 bytes per cycle
 * and multiprocessor from L2. Registers: 64 accumulators, 64 sums, 24 thirds of A. */
#ifndef PYSIM_CUDA_WGMMA_THIRDS_CUH
#define PYSIM_CUDA_WGMMA_THIRDS_CUH
#include "mainloop/wgmma/split.cuh"

namespace pysim::hopper {

/* What a thread keeps of a stage until the large products: the first thirds of A. */
template <class S> struct Thirds {
    enum { COLUMN_BYTES = 64, THIRD = S::B_BYTES / 3, GROUPS = S::BLOCK_K / 16 /* instructions along k */ };
    using Mma = Product<BF16X6>;
    unsigned first[GROUPS][4];

    /* The same interface as Halves (split.cuh). */
    template <class OfA> __device__ void add_small(float (&part)[S::ACCUMULATORS], const OfA &of_a, uint32_t a, uint32_t b, int more) {
#pragma unroll
        for (int group = 0; group < GROUPS; group++) {
            unsigned second[4], third[4];
#pragma unroll
            for (int i = 0; i < 4; i++) { /* i % 2: row, i / 2: k */
                float x[2];
#pragma unroll
                for (int e = 0; e < 2; e++) x[e] = __uint_as_float(of_a.load(a, 2 * group + i / 2, i % 2 + 2 * e));
                split_two(x, first[group][i], second[i], third[i]);
            }
            mma_fence();
            const unsigned (&large)[4] = first[group];
            const uint64_t k = matrix_of_rows<64>(b + group * 32), k2 = matrix_of_rows<64>(b + THIRD + group * 32),
                           k3 = matrix_of_rows<64>(b + 2 * THIRD + group * 32);
            Mma::add(part, third, k, more || group);
            Mma::add(part, large, k3, 1);
            Mma::add(part, second, k2, 1);
            Mma::add(part, large, k2, 1);
            Mma::add(part, second, k, 1);
            mma_commit();
            mma_wait<1>(); /* the previous group has read its registers */
        }
    }
    __device__ void add_large(float (&part)[S::ACCUMULATORS], uint32_t b) const {
#pragma unroll
        for (int group = 0; group < GROUPS; group++) Mma::add(part, first[group], matrix_of_rows<64>(b + group * 32), 1);
    }
};

/* Recomputes accumulators that are not finite by FP32 multiply-adds in the order of k, over k-iterations [begin, end). `row`, `column`: the thread's
 * first in C. */
template <class S, int TA> __device__ __forceinline__ void recompute_nonfinite_thirds(const Problem &p, float (&acc)[S::ACCUMULATORS],
                                                                                      int row, int column, int begin, int end) {
    recompute_nonfinite(acc, [&](int which) {
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
#endif
