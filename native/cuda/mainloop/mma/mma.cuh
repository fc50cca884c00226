/* SPDX-License-Identifier: Apache-2.0
 * GEMM on mma.sync: warps multiply 16 x 8 tiles of C from fragments in registers (f16, bf16: k 16; tf32: k 8; s8: k 32; f64: mma_f64.cuh).
 *
 * Fragments of 16-byte rows along k come by ldmatrix whatever the type: an 8 x 8 matrix of 16-bit elements is 8 rows of 16 bytes, and
 * thread T receives bytes 4 (T mod 4) of row T / 4, which is where mma.sync wants 2 f16, 1 tf32 or 4 s8. Operands whose rows run along
 * m or n are transposed by ldmatrix.trans where elements have 16 bits; those of 32 bits are loaded one by one, and s8 asks for rows along k
 * (`k_major`). (PTX ISA, "Warp-level matrix instructions": fragment layouts of mma.m16n8k*.)
 *
 * Products of f32 as six of bf16: mainloop/mma/split.cuh.
 *
 * Worked number: f16 128x128x32 with warps of 64x32: a k step of 16 reads (64 + 32) x 16 x 2 bytes = 3 KiB a warp, 24 wavefronts of
 * shared memory, for 32,768 multiply-adds; an SM multiplies 1,024 of them a cycle here, so shared memory is busy 24 of 32 cycles. */
#ifndef PYSIM_CUDA_MMA_CUH
#define PYSIM_CUDA_MMA_CUH
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <new>
#include <type_traits>

#include "mainloop/mma/pipeline.cuh"
#include "mainloop/mma/split.cuh"

namespace pysim::mma_sync {

/* A row. PROMOTION: 0, or (tf32x3) the k after which the six products of thirds are added to the accumulators, that of an instruction or 64. `float` means
 * tf32: operands are rounded to nearest, as in cuBLAS, when they are loaded from shared memory. */
template <class In_, int BM_, int BN_, int BK_, int WM_, int WN_, int STAGES_, int PROMOTION_, int REPLACED_ON = 0,
          int LOWEST = CAPABILITY> struct Row {
    using In = In_;
    using Acc = std::conditional_t<sizeof(In) == 1, int, float>;
    enum { BM = BM_, BN = BN_, BK = BK_, WM = WM_, WN = WN_, STAGES = STAGES_, PROMOTION = PROMOTION_ };
    enum {
        K = PROMOTION ? PROMOTION : 32 / (int)sizeof(In),
        TILES_M = WM / 16,
        TILES_N = WN / 8,
        ACCUMULATORS = TILES_M * TILES_N * 4,
        THREADS = 32 * (BM / WM) * (BN / WN)
    };
    static constexpr bool BUILT = has_kernel(LOWEST, 0, REPLACED_ON);
    static constexpr bool K_MAJOR = sizeof(In) == 1;
    template <bool TA, bool TB> using Shape = pysim::Shape<In, BM, BN, BK, WM, WN, STAGES, TA, TB, PROMOTION>;
    static_assert(TILES_N % 2 == 0, "one ldmatrix brings two fragments of B");
    static_assert(PROMOTION % 16 == 0, "thirds are multiplied by instructions of sixteen k");
    static_assert(BK % K == 0, "a step has whole instructions");
};

/* A warp's fragments for one instruction's k. */
template <class R, class S> struct Fragments {
    using In = typename R::In;
    unsigned a[R::TILES_M][4], b[R::TILES_N / 2][4]; /* b: two tiles of columns by one ldmatrix */

    __device__ static void round(unsigned (&r)[4]) {
        if constexpr (sizeof(In) == 4 && !R::PROMOTION)
#pragma unroll
            for (int e = 0; e < 4; e++) r[e] = round_tf32(r[e]);
    }
    /* 16 rows of A from `row`, or 16 columns of B from `row`: word e lies `down` (0 or 1) times 8 rows and `right` times four words of k further */
    template <class Tile, bool K_LAST, bool IS_A> __device__ static void load(unsigned (&r)[4], char *tile, int row, int k0) {
        constexpr int half = 16 / (int)sizeof(In); /* elements of 16 bytes */
        const int lane = threadIdx.x % 32;
        if constexpr (K_LAST)
            load_matrices<false>(
                r, Tile::at(tile, row + lane % 8 + (IS_A ? lane / 8 % 2 : lane / 16) * 8, k0 + (IS_A ? lane / 16 : lane / 8 % 2) * half));
        else if constexpr (sizeof(In) == 2)
            load_matrices<true>(
                r, Tile::at(tile, row + (IS_A ? lane / 8 % 2 : lane / 16) * 8, k0 + lane % 8 + (IS_A ? lane / 16 : lane / 8 % 2) * 8));
        else
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int down = IS_A ? e % 2 : e / 2, right = IS_A ? e / 2 : e % 2;
                r[e] = *(const unsigned *)Tile::at(tile, row + lane / 4 + down * 8, k0 + lane % 4 + right * 4);
            }
        round(r);
    }
    __device__ void load(char *left, char *right, int row0, int column0, int k0) {
#pragma unroll
        for (int i = 0; i < R::TILES_M; i++) load<typename S::A, S::a_k_last, true>(a[i], left, row0 + i * 16, k0);
#pragma unroll
        for (int j = 0; j < R::TILES_N / 2; j++) load<typename S::B, S::b_k_last, false>(b[j], right, column0 + j * 16, k0);
    }
};

/* acc += the products of fragments. */
template <class R, class S> __device__ inline void multiply(typename R::Acc (&acc)[R::ACCUMULATORS], const Fragments<R, S> &f) {
#pragma unroll
    for (int i = 0; i < R::TILES_M * R::TILES_N; i++) {
        const int row = i / R::TILES_N, column = i % R::TILES_N;
        mma(*(typename R::Acc(*)[4])(acc + i * 4), f.a[row], f.b[column / 2] + column % 2 * 2, typename R::In());
    }
}

/* Computes the tiles of one block. A Source provides
 *   left(t), right(t)             the copiers of block row t.i of A and block column t.j of B (Copies)
 *   again(t, row, column)         tf32x3: one output over the tile's k-iterations by FP32 multiply-adds
 *   store<Sums>(t, shared)        the epilogue of a tile of accumulators in shared memory */
template <class R, class S, class Source> __device__ inline void multiply_tiles(const Problem &p, const Source &source) {
    using Acc = typename R::Acc;
    using Sums = SharedSums<Acc, R::BM, R::BN, R::THREADS>;
    PYSIM_DYNAMIC_SHARED(shared);
    /* The block's state is in shared memory, because the loop needs the registers. */
    __shared__ struct {
        Tile tile;
        alignas(PlacedWork) char work[sizeof(PlacedWork)];
        bool valid;
        int last;
    } now;
    PlacedWork &work = *(PlacedWork *)now.work;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int warp_row = warp / S::warps_n * R::WM, warp_column = warp % S::warps_n * R::WN;
    if (threadIdx.x == 0) new (now.work) PlacedWork(p, Grid(p, R::BM, R::BN, R::BK), blockIdx.x, gridDim.x);
    while (true) {
        if (threadIdx.x == 0) now.valid = work.next(now.tile);
        __syncthreads();
        if (!now.valid) return;
        const Tile &t = now.tile;
        Acc acc[R::ACCUMULATORS] = {};
        using Part = Fragments<R, S>;
        if constexpr (R::PROMOTION == 0) {
            Part f[S::buffers];
            pipeline<S, R::K>(
                source.left(t), source.right(t), t, shared,
                [&](char *stage, int k0, int buffer) { f[buffer].load(stage, stage + S::A::bytes, warp_row, warp_column, k0); },
                [&](int, int buffer) { multiply(acc, f[buffer]); });
        } else {
            char *at;
            pipeline<S, R::K>(
                source.left(t), source.right(t), t, shared, [&](char *stage, int, int) { at = stage; },
                [&](int k0, int) {
                    const auto load_a = [&](int tile, int half, unsigned (&words)[4]) {
                        Part::template load<typename S::A, S::a_k_last, true>(words, at, warp_row + tile * 16, k0 + half * 8);
                    };
                    const auto load_b = [&](int pair, int half, unsigned (&words)[4]) {
                        Part::template load<typename S::B, S::b_k_last, false>(words, at + S::A::bytes, warp_column + pair * 16,
                                                                               k0 + half * 8);
                    };
                    if constexpr (R::PROMOTION == 16) multiply_thirds<R::TILES_M, R::TILES_N / 2>(acc, load_a, load_b);
                    else multiply_as_warpgroups<R::TILES_M, R::TILES_N / 2, R::PROMOTION / 16>(acc, load_a, load_b);
                });
            recompute_nonfinite(acc, [&](int which) {
                return source.again(t, t.i * R::BM + warp_row + which / 4 / R::TILES_N * 16 + lane / 4 + which / 2 % 2 * 8,
                                    t.j * R::BN + warp_column + which / 4 % R::TILES_N * 8 + lane % 4 * 2 + which % 2);
            });
        }
        if (!reduce_parts(p, work, t, acc, (int)threadIdx.x, R::THREADS, &now.last, [] { __syncthreads(); })) continue;
        __syncthreads(); /* every warp has read the last stages */
#pragma unroll
        for (int i = 0; i < R::ACCUMULATORS / 2; i++) { /* rows lane/4 and lane/4 + 8 of a fragment, two columns each */
            const int row = warp_row + i / 2 / R::TILES_N * 16 + lane / 4 + i % 2 * 8,
                      column = warp_column + i / 2 % R::TILES_N * 8 + lane % 4 * 2;
            *(Pack<Acc, 2> *)Sums::at(shared, row, column) = {acc[2 * i], acc[2 * i + 1]};
        }
        __syncthreads();
        source.template store<Sums>(t, shared);
        if (p.kind != PYSIM_STREAM_K) return; /* the block has one tile */
        __syncthreads();                      /* the tile is stored */
    }
}

/* The operands of a product. AS_WARPGROUPS: it has the bits of wgmma's, whose parts of k are reduced with the residual first. */
template <class S, bool AS_WARPGROUPS> struct Product : Matrices<S> {
    using Matrices<S>::p;
    __device__ float again(const Tile &t, int row, int column) const {
        float value = 0;
        if (row >= p.m || column >= p.n) return value;
        const float *const a = (const float *)p.a + (S::a_k_last ? row * p.lda : row), *const b = (const float *)p.b +
                                                                                                  (S::b_k_last ? column * p.ldb : column);
        for (int k = t.begin * S::block_k; k < min(t.end * S::block_k, p.k) && value == value; k++) /* NaN stays NaN */
            value = fmaf(a[S::a_k_last ? k : k * p.lda], b[S::b_k_last ? k : k * p.ldb], value);
        return value;
    }
    template <class Sums> __device__ void store(const Tile &t, char *shared) const {
        launch_dependents(); /* not before: several blocks share an SM, and the next launch's would crowd on those that are free first */
        const int row = t.i * S::block_m, column = t.j * S::block_n;
        if constexpr (AS_WARPGROUPS)
            if (p.kind == PYSIM_DATA_PARALLEL) return Sums::template store<typename S::Element, true>(p, shared, row, column);
        Sums::template store<typename S::Element>(p, shared, row, column);
    }
};

template <class R, bool TA, bool TB>
__global__ void __launch_bounds__(R::THREADS,
                                  R::PROMOTION > 16 ? 2 : R::template Shape<TA, TB>::blocks) /* thirds of more k stay in registers */
    mma_kernel(const __grid_constant__ Problem p) {
    using S = typename R::template Shape<TA, TB>;
    if constexpr (R::BUILT) {
        wait_for_previous();
        multiply_tiles<R, S>(p, Product<S, (R::PROMOTION > 16)>{{p}});
    }
}

/* Calls f(kernel, its shared bytes) for the layout of `p`; K-major-only types have one. */
template <class R, class F> cudaError_t choose(const Problem &p, F f) {
    using Sums = SharedSums<typename R::Acc, R::BM, R::BN, R::THREADS>;
#define LAYOUT(ta, tb) f(mma_kernel<R, ta, tb>, std::max(R::template Shape<ta, tb>::shared, Sums::bytes))
    if constexpr (R::K_MAJOR) return LAYOUT(false, true);
    else if (p.trans_a) return p.trans_b ? LAYOUT(true, true) : LAYOUT(true, false);
    else return p.trans_b ? LAYOUT(false, true) : LAYOUT(false, false);
#undef LAYOUT
}

template <class R> cudaError_t launch(const Problem &problem, int sms, cudaStream_t stream) {
    Problem p = problem;
    const Grid grid(p, R::BM, R::BN, R::BK);
    dim3 blocks = place_blocks(p, grid, sms, false);
    if (!p.placed) blocks = dim3((unsigned)grid.items(p));
    return choose<R>(p, [&](auto kernel, int shared) {
        const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
        return error == cudaSuccess ? launch_with({1, has_dependent_launch()}, kernel, blocks, R::THREADS, shared, stream, p) : error;
    });
}
template <class R> cudaError_t attributes(const Problem &p, pysim_cuda_attributes *out) {
    return choose<R>(p, [&](auto kernel, int shared) { return attributes_of(kernel, R::THREADS, shared, out); });
}
}
#endif
