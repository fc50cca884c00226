/* SPDX-License-Identifier: Apache-2.0
 * GEMM on nvcuda::wmma, 16 x 16 x 16: f16 operands, f32 or (variant `half`) f16 accumulators; the CUTLASS blog's first tensor-core version. wmma
 * does not say which thread holds which element, so fragments are loaded from and stored to shared memory, and a warp loads all of them for
 * every 16 of k: (WM + WN) x 16 x 2 bytes for WM x WN x 16 multiply-adds.
 *
 * Worked number: warps of 32 x 64 read 3 KiB for 32,768 multiply-adds; an SM multiplies 1,024 of them a cycle with mma.sync, so four
 * warps read 96 of the 128 bytes a cycle that shared memory gives. Warps of 64 x 64 read 64, but need 128 accumulators a thread. */
#include <cuda_fp16.h>
#include <mma.h>

#include <algorithm>
#include <type_traits>

#include "gemm/rows.h"
#include "mainloop/mma/pipeline.cuh"

#include "gemm/wmma/rows.inc"

namespace pysim {
namespace {

using namespace nvcuda;

constexpr int WMMA_CAPABILITY = 75; /* below 8.0 the asynchronous copies of core/ptx.cuh are synchronous */

template <class Acc, int BM, int BN, int BK, int WM, int WN, int STAGES, bool TA, bool TB, int BELOW, int REPLACED_ON>
__global__ void __launch_bounds__(Shape<__half, BM, BN, BK, WM, WN, STAGES, TA, TB>::threads,
                                  Shape<__half, BM, BN, BK, WM, WN, STAGES, TA, TB>::blocks)
    wmma_kernel(const __grid_constant__ Problem p) {
    using S = Shape<__half, BM, BN, BK, WM, WN, STAGES, TA, TB>;
    using Sums = SharedSums<Acc, BM, BN, S::threads>;
    using Left = wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, std::conditional_t<TA, wmma::col_major, wmma::row_major>>;
    using Right = wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, std::conditional_t<TB, wmma::col_major, wmma::row_major>>;
    using Sum = wmma::fragment<wmma::accumulator, 16, 16, 16, Acc>;
    constexpr int tiles_m = WM / 16, tiles_n = WN / 16, size = Sum::num_elements;
    if constexpr (!has_kernel(WMMA_CAPABILITY, BELOW, REPLACED_ON)) return;
    wait_for_previous();
    PYSIM_DYNAMIC_SHARED(shared);
    __shared__ int arrived;
    const int warp = threadIdx.x / 32, warp_row = warp / S::warps_n * WM, warp_column = warp % S::warps_n * WN;
    Work work(p, Grid(p, BM, BN, BK), blockIdx.x, gridDim.x);
    for (Tile t; work.next(t);) {
        Sum sum[tiles_m][tiles_n];
#pragma unroll
        for (int i = 0; i < tiles_m * tiles_n; i++) wmma::fill_fragment(sum[i / tiles_n][i % tiles_n], Acc(0.f));
        Left left[S::buffers][tiles_m];
        Right right[S::buffers][tiles_n];
        const Matrices<S> operands{p};
        pipeline<S, 16>(
            operands.left(t), operands.right(t), t, shared,
            [&](char *stage, int k0, int buffer) {
#pragma unroll
                for (int i = 0; i < tiles_m; i++)
                    wmma::load_matrix_sync(left[buffer][i], S::A::at(stage, warp_row + i * 16, k0), S::A::pitch / 2);
#pragma unroll
                for (int j = 0; j < tiles_n; j++)
                    wmma::load_matrix_sync(right[buffer][j], S::B::at(stage + S::A::bytes, warp_column + j * 16, k0), S::B::pitch / 2);
            },
            [&](int, int buffer) {
#pragma unroll
                for (int i = 0; i < tiles_m * tiles_n; i++)
                    wmma::mma_sync(sum[i / tiles_n][i % tiles_n], left[buffer][i / tiles_n], right[buffer][i % tiles_n],
                                   sum[i / tiles_n][i % tiles_n]);
            });
        if (t.parts > 1) { /* element e of a fragment is the same output in every block, though unknown which */
            Acc acc[tiles_m * tiles_n * size];
#pragma unroll
            for (int e = 0; e < tiles_m * tiles_n * size; e++) acc[e] = sum[e / size / tiles_n][e / size % tiles_n].x[e % size];
            if (!reduce_parts(p, work, t, acc, (int)threadIdx.x, S::threads, &arrived, [] { __syncthreads(); })) continue;
#pragma unroll
            for (int e = 0; e < tiles_m * tiles_n * size; e++) sum[e / size / tiles_n][e / size % tiles_n].x[e % size] = acc[e];
        }
        __syncthreads(); /* every warp has read the last stages */
#pragma unroll
        for (int i = 0; i < tiles_m; i++)
#pragma unroll
            for (int j = 0; j < tiles_n; j++)
                wmma::store_matrix_sync(Sums::at(shared, warp_row + i * 16, warp_column + j * 16), sum[i][j], Sums::pitch,
                                        wmma::mem_row_major);
        __syncthreads();
        Sums::template store<__half>(p, shared, t.i * BM, t.j * BN);
    }
}

template <class Acc, int BM, int BN, int BK, int WM, int WN, int STAGES, int BELOW, int REPLACED_ON> struct Kernel {
    static constexpr int threads = 32 * (BM / WM) * (BN / WN);
    /* f(kernel, its shared bytes) for the layout of `p` */
    template <class F> static cudaError_t choose(const Problem &p, F f) {
#define LAYOUT(ta, tb)                                                          \
    f(wmma_kernel<Acc, BM, BN, BK, WM, WN, STAGES, ta, tb, BELOW, REPLACED_ON>, \
      std::max(Shape<__half, BM, BN, BK, WM, WN, STAGES, ta, tb>::shared, SharedSums<Acc, BM, BN, threads>::bytes))
        if (p.trans_a) return p.trans_b ? LAYOUT(true, true) : LAYOUT(true, false);
        return p.trans_b ? LAYOUT(false, true) : LAYOUT(false, false);
#undef LAYOUT
    }
    static cudaError_t launch(const Problem &p, int, cudaStream_t stream) {
        const int blocks = Grid(p, BM, BN, BK).items(p);
        return choose(p, [&](auto kernel, int shared) { return start(kernel, p, blocks, threads, shared, stream); });
    }
    static cudaError_t attributes(const Problem &p, pysim_cuda_attributes *out) {
        return choose(p, [&](auto kernel, int shared) { return attributes_of(kernel, threads, shared, out); });
    }
};

}

Rows<GemmRow> gemm_wmma::all() {
    return table_of<GemmRow>(rows::lines, [](auto line, auto add) {
        constexpr rows::GemmColumns c = rows::lines[line];
        using K = Kernel<std::conditional_t<c.accumulates_f16 != 0, __half, float>, c.block.m, c.block.n, c.block.k, c.warp.m, c.warp.n,
                         c.stages, c.below, c.replaced_on>;
        static_assert(c.capability == WMMA_CAPABILITY, "what its kernels need");
        if constexpr (c.ablation && !ABLATIONS) add(row_of(c, nullptr, nullptr));
        else add(row_of(c, K::launch, K::attributes));
    });
}
}
