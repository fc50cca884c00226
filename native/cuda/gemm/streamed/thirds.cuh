/* SPDX-License-Identifier: Apache-2.0
 * Products of FP32 of few rows as six bf16 products of thirds (mainloop/mma/split.cuh), with the bits that warps and warpgroups have for many rows where
 * a block takes all of k or a part: sums of 64 k, one after another from 0 in the order of k, and the residual last; of several parts, those one after
 * another, and the bias last. A block takes all parts.
 *
 * B, the weights, is read once: a warp copies 64 k of its columns to its own part of shared memory, a round ahead. The sixteen rows of an instruction
 * are columns of B, its eight columns rows of A, so an instruction multiplies twice the weights that it would the other way round. Of one row of A a warp
 * splits each number once and shares the thirds; of several each lane splits what it multiplies. Sums of 64 k, one of each warp, meet in shared memory, where
 * a thread adds those of one result in the order of k.
 *
 * Worked number: 1 x 4096 x 25088 by blocks of 8 x 16, 8 warps: 256 blocks, two an SM, 49 rounds of 32 KiB of B. */
#ifndef PYSIM_CUDA_STREAMED_THIRDS_CUH
#define PYSIM_CUDA_STREAMED_THIRDS_CUH
#include <type_traits>

#include "core/decomposition.cuh"
#include "mainloop/mma/pipeline.cuh"
#include "mainloop/mma/split.cuh"

namespace pysim {

/* Elements k and k + 1 of a row of `end`; those behind it are zero. */
__device__ inline uint2 load_two(const float *row, int k, int end) {
    uint2 v = {0, 0};
    if (k < end) v = __ldg((const uint2 *)(row + k));
    if (k + 1 >= end) v.y = 0;
    return v;
}

/* By FP32 multiply-adds; NaN stays NaN. */
__device__ inline float multiplied(const float *left, const float *right, int end) {
    float value = 0;
    for (int k = 0; k < end && value == value; k++) value = fmaf(left[k], right[k], value);
    return value;
}

/* LONE: A has one row. */
template <int BM, int BN, int WARPS, bool LONE> struct StreamedThirds {
    enum {
        K = 64,
        GROUPS = K / 16, /* of an instruction's k */
        HALVES = 2 * GROUPS,
        ROWS = LONE ? 1 : BM,
        TILES = BM / 8,  /* of an instruction's rows of A */
        PAIRS = BN / 16, /* of its columns of B */
        THREADS = 32 * WARPS,
        RESULTS = ROWS * BN,
        OWN = (RESULTS + THREADS - 1) / THREADS,
        MEET = LONE ? 4 : 1, /* rounds after which sums are added */
    };
    static_assert((BM == 8 || BM == 16) && BN % 16 == 0, "whole instructions");
    static_assert(!LONE || BM == 8, "one row is one tile");
    static constexpr int storing = BM * BN / 4; /* threads, of four results each */
    static_assert(storing <= THREADS && BM * BN % 4 == 0, "a thread stores four results");
    using Sums = SharedSums<float, BM, BN, storing>;
    static constexpr int slot = BN * K * (int)sizeof(float), bytes = 2 * WARPS * slot; /* of a warp's round; of all */

    /* Copies of B. Sixteen lanes copy a row's 64 k; chunks of 16 bytes are exchanged so that eight rows of a fragment are read from different banks. */
    struct Weights {
        const char *from, *to;
        int64_t step; /* bytes between two rows of a lane */
        int row, left, chunk;
        __device__ Weights(const Problem &p, int column, char *base) {
            const int lane = threadIdx.x % 32;
            row = lane / 16, left = p.n - column, chunk = lane % 16;
            from = (const char *)p.b + ((int64_t)(column + row) * p.ldb + chunk * 4) * (int64_t)sizeof(float);
            to = base, step = 2 * p.ldb * (int64_t)sizeof(float);
        }
        __device__ static int place(int row, int chunk) { return row * K * (int)sizeof(float) + (chunk ^ row % 4 * 2) * 16; }
        __device__ void copy(int round_slot, int k, int end) const {
            const int there = max(0, min(16, (end - k - chunk * 4) * (int)sizeof(float)));
            const char *next = from + (int64_t)k * (int64_t)sizeof(float);
#pragma unroll
            for (int i = 0; i < BN / 2; i++, next += step)
                copy_async<16>((char *)to + round_slot * slot + place(row + 2 * i, chunk), next, row + 2 * i < left ? there : 0);
            commit_async();
        }
        /* Two neighbouring k of a column: of eight from 8 `half` on those of this lane. */
        __device__ void read(int round_slot, int column, int half, float (&x)[2]) const {
            const int t = threadIdx.x % 4;
            const Pack<float, 2> two = *(const Pack<float, 2> *)(to + round_slot * slot + place(column, 2 * half + t / 2) + t % 2 * 8);
            x[0] = two.value[0], x[1] = two.value[1];
        }
    };

    static __device__ void split(uint2 words, unsigned &first, unsigned &second, unsigned &third) {
        const float x[2] = {__uint_as_float(words.x), __uint_as_float(words.y)};
        split_two(x, first, second, third);
    }

    /* Rows of A: what a lane multiplies of the round that `k` begins. */
    struct Several {
        const float *rows[TILES];
        uint2 words[HALVES][TILES];
        int end;
        __device__ Several(const Problem &p, int row, unsigned *) {
            end = p.k - (int)threadIdx.x % 4 * 2;
#pragma unroll
            for (int i = 0; i < TILES; i++) /* rows beyond the last are read as the last */
                rows[i] = (const float *)p.a + min(row + i * 8 + (int)threadIdx.x % 32 / 4, p.m - 1) * p.lda + threadIdx.x % 4 * 2;
        }
        __device__ void load(int k) {
#pragma unroll
            for (int half = 0; half < HALVES; half++) load(half, k);
        }
        __device__ void load(int half, int k) {
#pragma unroll
            for (int i = 0; i < TILES; i++) words[half][i] = load_two(rows[i], k + half * 8, end);
        }
        __device__ void begin(int) {}
        __device__ void thirds(int half, int next, unsigned (&first)[TILES][2], unsigned (&second)[TILES][2], unsigned (&third)[TILES][2]) {
#pragma unroll
            for (int i = 0; i < TILES; i++) split(words[half][i], first[i][half % 2], second[i][half % 2], third[i][half % 2]);
            load(half, next);
        }
    };

    /* The only row of A: lane 4 j + t splits the two k that are lanes' t in the j-th eight. The instruction's other rows repeat it. */
    struct One {
        const float *row;
        unsigned *shared;
        uint2 words;
        int end;
        __device__ One(const Problem &p, int, unsigned *thirds)
            : row((const float *)p.a + threadIdx.x % 32 * 2), shared(thirds), end(p.k - (int)threadIdx.x % 32 * 2) {}
        __device__ void load(int k) { words = load_two(row, k, end); }
        __device__ void begin(int next) {
            const int lane = threadIdx.x % 32, at = lane % 4 * HALVES + lane / 4;
            split(words, shared[at], shared[32 + at], shared[64 + at]);
            load(next);
            __syncwarp();
        }
        __device__ void thirds(int half, int, unsigned (&first)[TILES][2], unsigned (&second)[TILES][2], unsigned (&third)[TILES][2]) {
            const int at = threadIdx.x % 4 * HALVES + half;
            first[0][half % 2] = shared[at], second[0][half % 2] = shared[32 + at], third[0][half % 2] = shared[64 + at];
        }
    };

    /* `sums` of columns and rows of 64 k, as warpgroups add them (mainloop/mma/split.cuh): all small products, then the large ones. */
    template <class Left> static __device__ void multiply(float (&sums)[PAIRS][TILES][4], const Weights &b, int round_slot, Left &a,
                                                          int next) {
        unsigned left[GROUPS][TILES][2], right[GROUPS][PAIRS][4]; /* the first thirds */
#pragma unroll
        for (int group = 0; group < GROUPS; group++) {
            unsigned two_a[TILES][2], three_a[TILES][2], two_b[PAIRS][4], three_b[PAIRS][4];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                a.thirds(2 * group + half, next, left[group], two_a, three_a);
#pragma unroll
                for (int i = 0; i < 2 * PAIRS; i++) {
                    const int pair = i / 2, word = 2 * half + i % 2;
                    float x[2];
                    b.read(round_slot, i * 8 + (int)threadIdx.x % 32 / 4, 2 * group + half, x);
                    split_two(x, right[group][pair][word], two_b[pair][word], three_b[pair][word]);
                }
            }
            const auto add = [&](const unsigned (&of_b)[PAIRS][4], const unsigned (&of_a)[TILES][2]) {
#pragma unroll
                for (int i = 0; i < PAIRS * TILES; i++) mma(sums[i / TILES][i % TILES], of_b[i / TILES], of_a[i % TILES], __nv_bfloat16());
            };
            add(right[group], three_a), add(three_b, left[group]), add(two_b, two_a), add(two_b, left[group]), add(right[group], two_a);
        }
#pragma unroll
        for (int i = 0; i < GROUPS * PAIRS * TILES; i++) {
            const int group = i / (PAIRS * TILES), at = i % (PAIRS * TILES);
            mma(sums[at / TILES][at % TILES], right[group][at / TILES], left[group][at % TILES], __nv_bfloat16());
        }
    }

    /* A warp's sums of 64 k: of a column all rows. */
    static __device__ void put(float *made, const float (&sums)[PAIRS][TILES][4]) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < PAIRS * TILES * 2; i++) {
            const int pair = i / (TILES * 2), tile = i / 2 % TILES, down = i % 2, of = pair * 16 + down * 8 + lane / 4;
            const float *const two = &sums[pair][tile][down * 2];
            if (!LONE) *(Pack<float, 2> *)&made[of * ROWS + tile * 8 + lane % 4 * 2] = {two[0], two[1]};
            else if (lane % 4 == 0) made[of] = two[0];
        }
    }

    static __device__ void run(const Problem &p, const Grid &grid) {
        PYSIM_DYNAMIC_SHARED(copies);
        alignas(16) __shared__ float parts[2][MEET][WARPS][RESULTS];
        alignas(16) __shared__ char sums[Sums::bytes];
        alignas(16) __shared__ unsigned thirds[LONE ? WARPS : 1][3 * 32];
        int row, column;
        grid.place(p, (int)blockIdx.x, row, column);
        row *= BM, column *= BN;
        const int warp = threadIdx.x / 32, sums_of_k = ceil_div(p.k, K), rounds = ceil_div(sums_of_k, (int)WARPS);
        const Weights b(p, column, copies + warp * 2 * slot);
        std::conditional_t<LONE, One, Several> a(p, row, thirds[LONE ? warp : 0]);
        a.load(warp * K);
        b.copy(0, warp * K, p.k);
        float total[OWN] = {}, before[OWN] = {}; /* of this part of k, and of those before */
        int part = 1, end = (int)share(sums_of_k, part, p.splits), added = 0;
        for (int round = 0; round < rounds; round++) {
            const int next = ((round + 1) * WARPS + warp) * K;
            wait_async<0>();
            __syncwarp(); /* and all lanes have read what the next copies replace */
            b.copy((round + 1) % 2, next, p.k);
            a.begin(next);
            float of_k[PAIRS][TILES][4] = {};
            multiply(of_k, b, round % 2, a, next);
            put(parts[round / MEET % 2][round % MEET][warp], of_k);
            if ((round + 1) % MEET && round + 1 < rounds) continue;
            __syncthreads(); /* these sums are added while the next ones are made elsewhere */
            const float *const met = &parts[round / MEET % 2][0][0][0];
            const int first = added, last = min(sums_of_k, (round + 1) * WARPS);
            while (added < last) {
                if (added == end) {
                    end = (int)share(sums_of_k, ++part, p.splits);
#pragma unroll
                    for (int i = 0; i < OWN; i++) before[i] += total[i], total[i] = 0;
                }
                const int stop = min(last, end);
#pragma unroll 4
                for (; added < stop; added++)
#pragma unroll
                    for (int i = 0; i < OWN; i++)
                        if (i * THREADS + threadIdx.x < RESULTS) total[i] += met[(added - first) * RESULTS + i * THREADS + threadIdx.x];
            }
        }
        launch_dependents();
#pragma unroll
        for (int i = 0; i < OWN; i++)
            if (const int at = i * THREADS + threadIdx.x; at < RESULTS) {
                const int m = row + at % ROWS, n = column + at / ROWS;
                total[i] += before[i];
                const bool finite = (__float_as_uint(total[i]) & 0x7f800000u) != 0x7f800000u;
                if (!finite && m < p.m && n < p.n)
                    total[i] = multiplied((const float *)p.a + m * p.lda, (const float *)p.b + n * p.ldb, p.k);
                *Sums::at(sums, at % ROWS, at / ROWS) = total[i];
            }
        __syncthreads();
        if (threadIdx.x >= storing) return;
        if (p.splits > 1) Sums::template store<float>(p, sums, row, column);
        else Sums::template store<float, true>(p, sums, row, column);
    }
};

/* 16 warps an SM have 128 registers each, 8 warps of more results 255. */
template <int BM, int BN, int WARPS, bool LONE> __global__ void __launch_bounds__(32 * WARPS, BM *BN <= 128 ? 16 / WARPS : 1)
    thirds_kernel(const __grid_constant__ Problem p, const __grid_constant__ Grid grid) {
    if constexpr (has_kernel(90, 0, 0)) {
        wait_for_previous();
        StreamedThirds<BM, BN, WARPS, LONE>::run(p, grid);
    }
}
}
#endif
