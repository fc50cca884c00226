/* SPDX-License-Identifier: Apache-2.0
 * Fragments of mma.sync, for products (mma.cu) and convolutions (conv_mma.cu): from tiles in shared memory (tensor.cuh) into registers, and
 * multiplied. What lies where is told in mma.cu. */
#ifndef PYSIM_CUDA_MMA_CUH
#define PYSIM_CUDA_MMA_CUH
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "tensor.cuh"

namespace pysim {

/* By the type of A and B: float stands for tf32, whose operands are rounded to nearest, as cuBLAS does, where they leave shared memory. */
template <class In> struct Mma {
    using Acc = std::conditional_t<sizeof(In) == 1, int, float>;
    static constexpr int k = 32 / (int)sizeof(In);
    __device__ static void run(Acc (&c)[4], const unsigned (&a)[4], const unsigned *b) { mma(c, a, b, In()); }
};

/* What a warp multiplies in one k step of the instruction. */
template <class In, class S, int TILES_M, int TILES_N> struct Fragments {
    static_assert(TILES_N % 2 == 0, "one ldmatrix brings two fragments of B");
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
    __device__ void multiply(typename Mma<In>::Acc *sums) const {
#pragma unroll
        for (int i = 0; i < TILES_M * TILES_N; i++) {
            const int row = i / TILES_N, column = i % TILES_N;
            Mma<In>::run(*(typename Mma<In>::Acc(*)[4])(sums + i * 4), a[row], b[column / 2] + column % 2 * 2);
        }
    }
};
}
#endif
