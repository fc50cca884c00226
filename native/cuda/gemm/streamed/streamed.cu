/* SPDX-License-Identifier: Apache-2.0
 * Products of few rows, C = A B' with both K-major: B, the weights, is read once, 16 bytes a lane, straight to registers; element by element where rows do
 * not begin at multiples of 16 bytes. A block computes BM x BN results: its warps take turns along k, so every lane has a part of each result, and the parts
 * are added by shuffles and in shared memory. A comes from L1. Products and sums are in FP32, also those of half precision.
 *
 * A block takes all of k, whatever the schedule's decomposition: a long k has work enough for its warps, and many rows of B fill the SMs.
 *
 * Worked number: 1 x 4096 x 4096 of f16 by blocks of 1 x 4 is 1,024 blocks of four warps, 8 an SM; a warp reads 512 bytes of each of four rows of B at a
 * time, 4 times. Two such loads are in flight: 128 KiB an SM. */
#include "core/decomposition.cuh"
#include "core/element.h"
#include "core/epilogue.cuh"
#include "core/launch.h"
#include "gemm/rows.h"
#include "gemm/streamed/thirds.cuh"

#include "gemm/streamed/rows.inc"

namespace pysim {
namespace {

enum { WIDE = 16 }; /* bytes of a load */

/* 16 bytes that are read once: not kept in L1. */
__device__ inline uint4 load_once(const void *from) {
#ifdef PYSIM_EMULATED
    return *(const uint4 *)from;
#else
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
    return v;
#endif
}

/* As many elements of a row as 16 bytes have, NEXT elements apart, of which those before `left` exist. Neighbours (NEXT is 1) begin at 16 bytes. */
template <class In, int NEXT> struct Elements {
    enum { COUNT = WIDE / sizeof(In) };
    Pack<In, COUNT> at;
    __device__ float operator[](int i) const { return (float)at.value[i]; }
    template <bool ONCE> __device__ void load(const In *from, int left) {
        if constexpr (NEXT == 1) *(uint4 *)this = ONCE ? load_once(from) : __ldg((const uint4 *)from);
        else
#pragma unroll
            for (int i = 0; i < COUNT; i++) at.value[i] = i * NEXT < left ? from[i * NEXT] : In(0.f);
    }
    __device__ void cut(int left) {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            if (i >= left) at.value[i] = In(0.f);
    }
};

/* WHOLE: rows begin at multiples of 16 bytes. Of others neighbouring lanes load neighbouring elements, whatever their address. */
template <class In, int BM, int BN, int THREADS, bool WHOLE>
__global__ void __launch_bounds__(THREADS) streamed_kernel(const __grid_constant__ Problem p, const __grid_constant__ Grid grid) {
    using Vector = Elements<In, WHOLE ? 1 : THREADS>;
    constexpr int WARPS = THREADS / 32, RESULTS = BM * BN;
    static_assert(RESULTS <= THREADS, "a thread adds the parts of one result");
    __shared__ float parts[WARPS][RESULTS];
    wait_for_previous();
    int row, column;
    grid.place(p, (int)blockIdx.x, row, column);
    row *= BM, column *= BN;
    const In *left[BM], *right[BN]; /* rows beyond the last are read as the last */
#pragma unroll
    for (int i = 0; i < BM; i++) left[i] = (const In *)p.a + min(row + i, p.m - 1) * p.lda;
#pragma unroll
    for (int j = 0; j < BN; j++) right[j] = (const In *)p.b + min(column + j, p.n - 1) * p.ldb;
    float acc[RESULTS] = {};
#pragma unroll 2
    for (int k = (int)threadIdx.x * (WHOLE ? Vector::COUNT : 1); k < p.k; k += THREADS * Vector::COUNT) {
        Vector a[BM], b[BN];
#pragma unroll
        for (int j = 0; j < BN; j++) b[j].template load<true>(right[j] + k, p.k - k);
#pragma unroll
        for (int i = 0; i < BM; i++) a[i].template load<false>(left[i] + k, p.k - k);
        if (WHOLE && k + Vector::COUNT > p.k) {
#pragma unroll
            for (int i = 0; i < BM; i++) a[i].cut(p.k - k);
#pragma unroll
            for (int j = 0; j < BN; j++) b[j].cut(p.k - k);
        }
#pragma unroll
        for (int e = 0; e < Vector::COUNT; e++)
#pragma unroll
            for (int r = 0; r < RESULTS; r++) acc[r] = fmaf(a[r / BN][e], b[r % BN][e], acc[r]);
    }
    launch_dependents();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < RESULTS; r++) {
#pragma unroll
        for (int bits = 16; bits; bits /= 2) acc[r] += __shfl_xor_sync(~0u, acc[r], bits);
        if (lane == 0) parts[warp][r] = acc[r];
    }
    __syncthreads();
    if (threadIdx.x >= RESULTS) return;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum += parts[w][threadIdx.x];
    with_epilogue<In, float>(
        p, [&](const auto &epilogue) { epilogue.store(row + (int)threadIdx.x / BN, column + (int)threadIdx.x % BN, sum); });
}

/* PROMOTION: 0, or that of a row of thirds, whose warps have a k-iteration each. */
template <class In, int BM, int BN, int BK, int STAGES, int PROMOTION> struct Kernel {
    static constexpr int THREADS = PROMOTION ? 32 * STAGES : BK * (int)sizeof(In) / WIDE;
    static auto kernel(const Problem &p) {
        if constexpr (PROMOTION)
            return p.m == 1 ? thirds_kernel < BM, BN, THREADS / 32, BM == 8 > : thirds_kernel<BM, BN, THREADS / 32, false>;
        else {
            const bool whole = ((uintptr_t)p.a | (uintptr_t)p.b | (uintptr_t)((p.lda | p.ldb) * sizeof(In))) % WIDE == 0;
            return whole ? streamed_kernel<In, BM, BN, THREADS, true> : streamed_kernel<In, BM, BN, THREADS, false>;
        }
    }
    static constexpr int shared_bytes() {
        if constexpr (PROMOTION) return StreamedThirds<BM, BN, THREADS / 32, false>::bytes;
        else return 0;
    }
    static cudaError_t launch(const Problem &problem, int, cudaStream_t stream) {
        constexpr int shared = shared_bytes();
        if (shared) {
            const cudaError_t error = cudaFuncSetAttribute(kernel(problem), cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
            if (error != cudaSuccess) return error;
        }
        Problem p = problem;
        p.splits = PROMOTION && p.kind == PYSIM_SPLIT_K ? p.splits : 1, p.kind = PYSIM_DATA_PARALLEL;
        const Grid grid(p, BM, BN, BK);
        return launch_with({1, has_dependent_launch()}, kernel(p), grid.items(p), THREADS, shared, stream, p, grid);
    }
    static cudaError_t attributes(const Problem &p, pysim_cuda_attributes *out) {
        return attributes_of(kernel(p), THREADS, shared_bytes(), out);
    }
};
}

Rows<GemmRow> gemm_streamed::all() {
    return table_of<GemmRow>(rows::lines, [](auto line, auto add) {
        constexpr rows::GemmColumns c = rows::lines[line];
        using K = Kernel<ElementOf<c.dtype>, c.block.m, c.block.n, c.block.k, c.stages, c.promotion>;
        add(row_of(c, K::launch, K::attributes));
    });
}
}
