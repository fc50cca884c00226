/* SPDX-License-Identifier: Apache-2.0
 * Products of FP32 of few rows as six bf16 products of thirds (mainloop/mma/split.cuh), with the bits that warps and warpgroups have for many rows where
 * a block takes all of k or a part: sums of 64 k, one after another from 0 in the order of k, and the residual last; of several parts, those one after
 * another, and the bias last. A block takes all parts.
 *
 * B, the weights, is read once, straight to registers. A block's warps take sums of 64 k in turn, each of all its results; after each round a thread adds
 * those of one result, which lie in shared memory, in the order of k. While a warp multiplies, its loads for the next round are in flight.
 *
 * Worked number: 1 x 4096 x 4096 by blocks of 8 x 32, 8 warps: 128 blocks, 8 rounds; a round reads 64 KiB of B. */
#ifndef PYSIM_CUDA_STREAMED_THIRDS_CUH
#define PYSIM_CUDA_STREAMED_THIRDS_CUH
#include "core/decomposition.cuh"
#include "mainloop/mma/pipeline.cuh"
#include "mainloop/mma/split.cuh"

namespace pysim {

/* Elements k and k + 1 of a row of `end`; those behind it are zero. ONCE: no other load reads them. */
template <bool ONCE> __device__ inline uint2 load_two(const float *row, int k, int end) {
    uint2 v = {0, 0};
    if (k >= end) return v;
#ifndef PYSIM_EMULATED
    if constexpr (ONCE) asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(row + k));
    else
#endif
        v = __ldg((const uint2 *)(row + k));
    if (k + 1 >= end) v.y = 0;
    return v;
}

/* By FP32 multiply-adds; NaN stays NaN. */
__device__ inline float multiplied(const float *left, const float *right, int end) {
    float value = 0;
    for (int k = 0; k < end && value == value; k++) value = fmaf(left[k], right[k], value);
    return value;
}

template <int BM, int BN, int WARPS> struct StreamedThirds {
    enum { K = 64, HALVES = K / 8, THREADS = 32 * WARPS, RESULTS = BM * BN, OWN = (RESULTS + THREADS - 1) / THREADS };
    static_assert(BM == 8 || BM == 16, "an instruction has 16 rows; of 8, the others are zero");
    using Sums = SharedSums<float, BM, BN, RESULTS / 4>; /* the threads that store */
    static_assert(RESULTS / 4 <= THREADS && RESULTS % 4 == 0, "a thread stores four results");

    /* A lane's part of an operand, COUNT rows of eight: of each eight k of 64 two, of the round that `k` begins. */
    template <int COUNT, bool ONCE> struct Words {
        const float *rows[COUNT];
        uint2 words[HALVES][COUNT];
        __device__ Words(const void *matrix, int64_t pitch, int first, int end) {
#pragma unroll
            for (int i = 0; i < COUNT; i++) /* rows beyond the last are read as the last */
                rows[i] = (const float *)matrix + min(first + i * 8 + (int)threadIdx.x % 32 / 4, end - 1) * pitch + threadIdx.x % 4 * 2;
        }
        __device__ void load(int half, int k, int end) {
#pragma unroll
            for (int i = 0; i < COUNT; i++) words[half][i] = load_two<ONCE>(rows[i], k + half * 8, end - (int)threadIdx.x % 4 * 2);
        }
    };

    static __device__ void run(const Problem &p, const Grid &grid) {
        alignas(16) __shared__ float parts[2][WARPS][RESULTS];
        alignas(16) __shared__ char sums[Sums::bytes];
        int row, column;
        grid.place(p, (int)blockIdx.x, row, column);
        row *= BM, column *= BN;
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        Words<BM / 8, false> a(p.a, p.lda, row, p.m);
        Words<BN / 8, true> b(p.b, p.ldb, column, p.n);
#pragma unroll
        for (int half = 0; half < HALVES; half++) a.load(half, warp * K, p.k), b.load(half, warp * K, p.k);
        const int sums_of_k = ceil_div(p.k, K);
        float total[OWN] = {}, before[OWN] = {}; /* of this part of k, and of those before */
        int turn = 0, part = 1, end = (int)share(sums_of_k, part, p.splits);
        for (int round = 0; round < p.k; round += WARPS * K, turn ^= 1) {
            const int next = round + (WARPS + warp) * K;
            float acc[BN / 8 * 4] = {};
            mma_sync::multiply_as_warpgroups<1, BN / 16, K / 16>(
                acc,
                [&](int, int half, unsigned (&words)[4]) {
                    words[0] = a.words[half][0].x, words[2] = a.words[half][0].y;
                    words[1] = BM > 8 ? a.words[half][BM / 8 - 1].x : 0, words[3] = BM > 8 ? a.words[half][BM / 8 - 1].y : 0;
                    a.load(half, next, p.k);
                },
                [&](int pair, int half, unsigned (&words)[4]) {
#pragma unroll
                    for (int i = 0; i < 2; i++)
                        words[2 * i] = b.words[half][2 * pair + i].x, words[2 * i + 1] = b.words[half][2 * pair + i].y;
                    if (pair == BN / 16 - 1) b.load(half, next, p.k);
                });
            /* Pairs of neighbours: tile of columns i / (BM / 8), rows in eights i % (BM / 8). */
#pragma unroll
            for (int i = 0; i < BN / 8 * (BM / 8); i++) {
                const int tile = i / (BM / 8), down = i % (BM / 8);
                *(float2 *)&parts[turn][warp][(lane / 4 + down * 8) * BN + tile * 8 + lane % 4 * 2] = {acc[tile * 4 + down * 2],
                                                                                                       acc[tile * 4 + down * 2 + 1]};
            }
            __syncthreads(); /* a round's parts are added while the next one's are made elsewhere */
            const int first = round / K, made = min((int)WARPS, sums_of_k - first);
            for (int w = 0; w < made;) {
                if (first + w == end) {
                    end = (int)share(sums_of_k, ++part, p.splits);
#pragma unroll
                    for (int i = 0; i < OWN; i++) before[i] += total[i], total[i] = 0;
                }
                const int stop = min(made, end - first);
                for (; w < stop; w++)
#pragma unroll
                    for (int i = 0; i < OWN; i++)
                        if (i * THREADS + threadIdx.x < RESULTS) total[i] += parts[turn][w][i * THREADS + threadIdx.x];
            }
        }
        launch_dependents();
#pragma unroll
        for (int i = 0; i < OWN; i++)
            if (const int at = i * THREADS + threadIdx.x; at < RESULTS) {
                const int m = row + at / BN, n = column + at % BN;
                total[i] += before[i];
                const bool finite = (__float_as_uint(total[i]) & 0x7f800000u) != 0x7f800000u;
                if (!finite && m < p.m && n < p.n)
                    total[i] = multiplied((const float *)p.a + m * p.lda, (const float *)p.b + n * p.ldb, p.k);
                *Sums::at(sums, at / BN, at % BN) = total[i];
            }
        __syncthreads();
        if (threadIdx.x >= RESULTS / 4) return;
        if (p.splits > 1) Sums::template store<float>(p, sums, row, column);
        else Sums::template store<float, true>(p, sums, row, column);
    }
};

/* 16 warps an SM have 128 registers each, 8 warps of more results 255. */
template <int BM, int BN, int WARPS> __global__ void __launch_bounds__(32 * WARPS, BM *BN <= 128 ? 16 / WARPS : 1)
    thirds_kernel(const __grid_constant__ Problem p, const __grid_constant__ Grid grid) {
    if constexpr (has_kernel(90, 0, 0)) {
        wait_for_previous();
        StreamedThirds<BM, BN, WARPS>::run(p, grid);
    }
}
}
#endif
