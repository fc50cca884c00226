/* SPDX-License-Identifier: Apache-2.0
 * What the warp-level tensor-core kernels (mma.cu, wmma.cu) share: tiles of A and B as they lie in memory come into shared memory by
 * 16-byte cp.async, `STAGES` k steps deep, with rows padded by 16 bytes.
 *
 * Banks: eight rows of a fragment lie `pitch` bytes apart. A pitch that is an odd multiple of 16 bytes puts them into eight different
 * 16-byte chunks of the 128 bytes of banks, so ldmatrix and wmma's loads need their minimum of wavefronts; rows of f64 fragments want
 * a pitch of 32 modulo 128 bytes instead (two rows of 8 bytes x 4 side by side). */
#ifndef PYSIM_CUDA_TENSOR_CUH
#define PYSIM_CUDA_TENSOR_CUH
#include "decomposition.cuh"
#include "epilogue.cuh"

namespace pysim {

__device__ inline unsigned shared_address(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }

/* 16 bytes, of which `bytes` come from memory and the rest are zero. */
__device__ inline void copy_async(void *to, const void *from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes) : "memory");
}
__device__ inline void commit_async() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> __device__ inline void wait_async() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }

/* The least pitch in bytes that holds `bytes` (a multiple of 16) and is 16 (f64: 32) modulo `32` (f64: 128). */
constexpr int padded(int bytes, int element) {
    const int period = element == 8 ? 128 : 32, rest = element == 8 ? 32 : 16;
    int pitch = bytes;
    while (pitch % period != rest) pitch += 16;
    return pitch;
}

/* One operand's tile of `OUTER` rows of C (columns for B) x K: rows of k where K_LAST, else rows of the outer index. */
template <class In, int OUTER, int K, bool K_LAST> struct SharedTile {
    static constexpr int rows = K_LAST ? OUTER : K, columns = K_LAST ? K : OUTER, element = sizeof(In);
    static constexpr int pitch = padded(columns * element, element), bytes = rows * pitch, chunks = columns * element / 16;
    static_assert(columns * element % 16 == 0, "a row is whole 16-byte chunks");

    /* Element (outer, k) of the tile at `base`. */
    __device__ static In *at(char *base, int outer, int k) {
        return (In *)(base + (K_LAST ? outer * pitch + k * element : k * pitch + outer * element));
    }
    /* Starts the copy of the tile at (outer0, k0) of the matrix; what lies outside it is zero. */
    template <int THREADS> __device__ static void load(char *base, const In *matrix, int64_t ld, int outer0, int k0, int outer_end, int k_end) {
        const int row0 = K_LAST ? outer0 : k0, column0 = K_LAST ? k0 : outer0;
        const int row_end = K_LAST ? outer_end : k_end, column_end = K_LAST ? k_end : outer_end;
#pragma unroll
        for (int i = 0; i < (rows * chunks + THREADS - 1) / THREADS; i++) {
            const int index = (int)threadIdx.x + i * THREADS;
            if (rows * chunks % THREADS && index >= rows * chunks) break;
            const int row = index / chunks, chunk = index % chunks, column = column0 + chunk * (16 / element);
            const int left = row0 + row < row_end ? min(16, max(0, (column_end - column) * element)) : 0;
            copy_async(base + row * pitch + chunk * 16, left ? matrix + (row0 + row) * ld + column : matrix, left);
        }
    }
};

/* A kernel's shapes; derived numbers in one place. */
template <class In, int BM, int BN, int BK, int WM, int WN, int STAGES, bool TA, bool TB> struct Shape {
    using A = SharedTile<In, BM, BK, !TA>;
    using B = SharedTile<In, BN, BK, TB>;
    static constexpr bool a_k_last = !TA, b_k_last = TB;
    static constexpr int warps_m = BM / WM, warps_n = BN / WN, threads = 32 * warps_m * warps_n, stage = A::bytes + B::bytes;
    static constexpr int shared = STAGES * stage;
    static_assert(BM % WM == 0 && BN % WN == 0, "warps tile the block");
};

/* Runs `body(stage)` for the k steps of a tile, with the copies of STAGES - 1 later steps under way. */
template <class S, class In, int BK, int STAGES, class Body> __device__ void pipeline(const Problem &p, const Tile &t, int row0, int column0, char *shared, Body body) {
    const In *a = (const In *)p.a, *b = (const In *)p.b;
    const auto load = [&](int step) {
        if (step < t.end) {
            char *base = shared + (step - t.begin) % STAGES * S::stage;
            S::A::template load<S::threads>(base, a, p.lda, row0, step * BK, p.m, p.k);
            S::B::template load<S::threads>(base + S::A::bytes, b, p.ldb, column0, step * BK, p.n, p.k);
        }
        commit_async(); /* an empty group keeps the count */
    };
    __syncthreads(); /* the tile before is read */
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) load(t.begin + s);
    for (int step = t.begin; step < t.end; step++) {
        wait_async<STAGES - 2>();
        __syncthreads();
        load(step + STAGES - 1);
        body(shared + (step - t.begin) % STAGES * S::stage);
    }
    wait_async<0>();
}

/* The block's tile of sums on its way out: fragments go to shared memory, whole rows leave it, so that stores are coalesced and the
 * epilogue's code stands once in a loop that is not unrolled. The pitch puts the 4 rows (f64: 2) of a half-warp's pairs on different banks. */
template <class Acc, int BM, int BN, int THREADS> struct SharedSums {
    static constexpr int pitch = BN + 8, bytes = BM * pitch * (int)sizeof(Acc), vector = 16 / sizeof(Acc) < 4 ? 16 / sizeof(Acc) : 4;
    __device__ static Acc *at(char *base, int row, int column) { return (Acc *)base + row * pitch + column; }
    __device__ static void store(const Problem &p, char *base, int row0, int column0) {
        __syncthreads();
        with_epilogue<Acc>(p, [&](const auto &epilogue) {
#pragma unroll 1
            for (int i = (int)threadIdx.x; i < BM * BN / vector; i += THREADS) {
                const int row = i / (BN / vector), column = i % (BN / vector) * vector;
                Acc sums[vector];
                *(Pack<Acc, vector> *)sums = *(const Pack<Acc, vector> *)at(base, row, column);
                epilogue.store(row0 + row, column0 + column, sums);
            }
        });
    }
};

/* Host side: launches `kernel` with its dynamic shared memory. */
template <class Kernel> cudaError_t start(Kernel kernel, const Problem &p, int blocks, int threads, int shared, cudaStream_t stream) {
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    if (error != cudaSuccess) return error;
    kernel<<<blocks, threads, shared, stream>>>(p);
    return cudaGetLastError();
}
template <class Kernel> cudaError_t attributes_of(Kernel kernel, int threads, int shared, pysim_cuda_attributes *out) {
    cudaFuncAttributes found;
    cudaError_t error = cudaFuncGetAttributes(&found, kernel);
    if (error == cudaSuccess) error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    int blocks = 0;
    if (error == cudaSuccess) error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, shared);
    if (error == cudaSuccess)
        *out = {threads, found.numRegs, blocks, (int64_t)found.sharedSizeBytes + shared, (int64_t)found.localSizeBytes};
    return error;
}
}
#endif
