/* SPDX-License-Identifier: Apache-2.0
 * A matrix product as the kernels see it: C = f(alpha scale op(A) op(B) + beta C + bias), row-major. */
#ifndef PYSIM_CUDA_PROBLEM_H
#define PYSIM_CUDA_PROBLEM_H
#include <cuda_runtime.h>

#include "pysim_cuda.h"

namespace pysim {

/* A kernel's arguments: passed by value. Sizes fit int (abi/gemm.cu refuses larger ones); pitches in elements. */
struct Problem {
    const void *a, *b;
    void *c;
    int64_t lda, ldb, ldc;
    int m, n, k;
    int trans_a, trans_b; /* 0: A[m][k], B[k][n]; 1: A[k][m], B[n][k] as they lie in memory */
    int c_dtype;
    /* epilogue */
    double alpha, beta, low, high;
    const void *bias, *scale; /* one value per column, or per row (`by_row`); scale has the type that the epilogue computes in */
    int activation;
    /* decomposition */
    int kind, splits, along_n, group;
    short follows;    /* 1: the previous launch allows this kernel to start before it ends (programmatic dependent launch, core/launch.h) */
    short by_row;     /* 1: bias and scale have one value per row of C */
    short transposed; /* 1: the kernel computes C' = B' A'; its element (i, j) is stored at c[j ldc + i] */
    short placed;     /* 1: each block has one tile: row blockIdx.x, column blockIdx.y, split-K part blockIdx.z (core/decomposition.cuh) */
    void *partials;   /* split-K and stream-K: accumulators of unfinished tiles, laid out by core/decomposition.cuh */
    const unsigned *only_if; /* abi/gemm.cu, looks_at_condition: if it points to 0, the launch does nothing */
    unsigned *flags;         /* zeroed before the launch; if it `follows`, by the previous launch */
    void *prepared; /* NULL, or of a row of residues: what B became; without C, the launch makes that and nothing else */
};
}
#endif
