/* SPDX-License-Identifier: Apache-2.0
 * GEMM on mma.sync: warps multiply 16 x 8 tiles of C from fragments in registers (f16, bf16: k 16; tf32: k 8; s8: k 32; f64: mma_f64.cu).
 *
 * Fragments of 16-byte rows along k come by ldmatrix whatever the type: an 8 x 8 matrix of 16-bit elements is 8 rows of 16 bytes, and
 * thread T receives bytes 4 (T mod 4) of row T / 4, which is where mma.sync wants 2 f16, 1 tf32 or 4 s8. Operands whose rows run along
 * m or n are transposed by ldmatrix.trans where elements have 16 bits; tf32 and s8 ask for rows along k (`k_major`). (PTX ISA,
 * "Warp-level matrix instructions": fragment layouts of mma.m16n8k*.)
 *
 * Worked number: f16 128x128x32 with warps of 64x32: a k step of 16 reads (64 + 32) x 16 x 2 bytes = 3 KiB a warp, 24 wavefronts of
 * shared memory, for 32,768 multiply-adds; an SM multiplies 1,024 of them a cycle here, so shared memory is busy 24 of 32 cycles. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <type_traits>

#include "gemm/rows.h"
#include "mainloop/tensor/pipeline.cuh"

namespace pysim {
namespace {

/* By the type of A and B: float stands for tf32, whose operands are rounded to nearest, as cuBLAS does, where they leave shared memory. */
template <class In> struct Mma {
    using Acc = std::conditional_t<sizeof(In) == 1, int, float>;
    static constexpr int k = 32 / (int)sizeof(In);
    __device__ static void run(Acc (&c)[4], const unsigned (&a)[4], const unsigned *b) { mma(c, a, b, In()); }
};

/* What a warp multiplies in one k step of the instruction. */
template <class In, class S, int TILES_M, int TILES_N> struct Fragments {
    unsigned a[TILES_M][4], b[TILES_N / 2][4]; /* b: two tiles of columns by one ldmatrix */

    __device__ static void round(unsigned (&r)[4]) {
        if constexpr (sizeof(In) == 4)
#pragma unroll
            for (int e = 0; e < 4; e++) r[e] = round_tf32(r[e]);
    }
    __device__ void load(char *left, char *right, int row0, int column0, int k0) {
        constexpr int half = 16 / (int)sizeof(In); /* elements of 16 bytes */
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < TILES_M; i++) {
            const int row = row0 + i * 16;
            if constexpr (S::a_k_last)
                load_matrices<false>(a[i], S::A::at(left, row + lane % 16, k0 + lane / 16 * half));
            else
                load_matrices<true>(a[i], S::A::at(left, row + lane / 8 % 2 * 8, k0 + lane % 8 + lane / 16 * 8));
            round(a[i]);
        }
#pragma unroll
        for (int j = 0; j < TILES_N / 2; j++) {
            const int column = column0 + j * 16;
            if constexpr (S::b_k_last)
                load_matrices<false>(b[j], S::B::at(right, column + lane % 8 + lane / 16 * 8, k0 + lane / 8 % 2 * half));
            else
                load_matrices<true>(b[j], S::B::at(right, column + lane / 16 * 8, k0 + lane % 16));
            round(b[j]);
        }
    }
};
template <class In, int BM, int BN, int BK, int WM, int WN, int STAGES, bool TA, bool TB>
__global__ void __launch_bounds__(Shape<In, BM, BN, BK, WM, WN, STAGES, TA, TB>::threads, Shape<In, BM, BN, BK, WM, WN, STAGES, TA, TB>::blocks) mma_kernel(const __grid_constant__ Problem p) {
    using S = Shape<In, BM, BN, BK, WM, WN, STAGES, TA, TB>;
    using M = Mma<In>;
    using Acc = typename M::Acc;
    using Sums = SharedSums<Acc, BM, BN, S::threads>;
    constexpr int tiles_m = WM / 16, tiles_n = WN / 8;
    static_assert(tiles_n % 2 == 0, "one ldmatrix brings two fragments of B");
    if constexpr (CODE_CAPABILITY < CAPABILITY) return;
    PYSIM_DYNAMIC_SHARED(shared);
    __shared__ int meeting;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int warp_row = warp / S::warps_n * WM, warp_column = warp % S::warps_n * WN;
    Work work(p, Grid(p, BM, BN, BK), blockIdx.x, gridDim.x);
    for (Tile t; work.next(t);) {
        Acc acc[tiles_m * tiles_n * 4] = {};
        Fragments<In, S, tiles_m, tiles_n> f[S::buffers];
        pipeline<S, In, BK, M::k, STAGES>(
            p, t, t.i * BM, t.j * BN, shared,
            [&](char *stage, int k0, int buffer) { f[buffer].load(stage, stage + S::A::bytes, warp_row, warp_column, k0); },
            [&](int buffer) {
#pragma unroll
                for (int i = 0; i < tiles_m * tiles_n; i++) {
                    const int row = i / tiles_n, column = i % tiles_n;
                    M::run(*(Acc(*)[4])(acc + i * 4), f[buffer].a[row], f[buffer].b[column / 2] + column % 2 * 2);
                }
            });
        if (!meet(p, work, t, acc, (int)threadIdx.x, S::threads, &meeting, [] { __syncthreads(); })) continue;
        __syncthreads(); /* the last stages are read */
#pragma unroll
        for (int i = 0; i < tiles_m * tiles_n * 2; i++) { /* rows lane/4 and lane/4 + 8 of a fragment, two columns each */
            const int row = warp_row + i / 2 / tiles_n * 16 + lane / 4 + i % 2 * 8, column = warp_column + i / 2 % tiles_n * 8 + lane % 4 * 2;
            *(Pack<Acc, 2> *)Sums::at(shared, row, column) = {acc[2 * i], acc[2 * i + 1]};
        }
        Sums::store(p, shared, t.i * BM, t.j * BN);
    }
}

/* f(kernel, its shared bytes) for the layout of `p`; types that need rows along k have one. */
template <class In, int BM, int BN, int BK, int WM, int WN, int STAGES, class F> cudaError_t choose(const Problem &p, F f) {
    using Sums = SharedSums<typename Mma<In>::Acc, BM, BN, 32 * (BM / WM) * (BN / WN)>;
#define LAYOUT(ta, tb) \
    f(mma_kernel<In, BM, BN, BK, WM, WN, STAGES, ta, tb>, std::max(Shape<In, BM, BN, BK, WM, WN, STAGES, ta, tb>::shared, Sums::bytes))
    if constexpr (sizeof(In) == 1 || sizeof(In) == 4) return LAYOUT(false, true);
    else if (p.trans_a) return p.trans_b ? LAYOUT(true, true) : LAYOUT(true, false);
    else return p.trans_b ? LAYOUT(false, true) : LAYOUT(false, false);
#undef LAYOUT
}

template <class In, int BM, int BN, int BK, int WM, int WN, int STAGES> struct Kernel {
    static constexpr bool K_MAJOR = sizeof(In) == 1 || sizeof(In) == 4;
    static constexpr int threads = 32 * (BM / WM) * (BN / WN);
    static cudaError_t launch(const Problem &p, int, cudaStream_t stream) {
        const int blocks = Grid(p, BM, BN, BK).items(p);
        return choose<In, BM, BN, BK, WM, WN, STAGES>(p, [&](auto kernel, int shared) { return start(kernel, p, blocks, threads, shared, stream); });
    }
    static cudaError_t attributes(const Problem &p, pysim_cuda_attributes *out) {
        return choose<In, BM, BN, BK, WM, WN, STAGES>(p, [&](auto kernel, int shared) { return attributes_of(kernel, threads, shared, out); });
    }
};

template <int DTYPE> struct In;
template <> struct In<PYSIM_F16> { using T = __half; };
template <> struct In<PYSIM_BF16> { using T = __nv_bfloat16; };
template <> struct In<PYSIM_TF32> { using T = float; };
template <> struct In<PYSIM_S8> { using T = signed char; };
}

namespace rows {
namespace {
using Columns = GemmColumns;
#include "gemm/mma.inc"
};
}
}

Rows<GemmRow> mma_rows() {
    return table_of<GemmRow>(rows::lines, [](auto line, auto add) {
        constexpr rows::GemmColumns c = rows::lines[line];
        if constexpr (c.dtype != PYSIM_F64) {
            using K = Kernel<typename In<c.dtype>::T, c.block.m, c.block.n, c.block.k, c.warp.m, c.warp.n, c.stages>;
            static_assert(c.capability >= CAPABILITY && c.k_major == K::K_MAJOR, "types that ldmatrix cannot transpose");
            add(row_of(c, K::launch, K::attributes));
        }
    });
}
}
