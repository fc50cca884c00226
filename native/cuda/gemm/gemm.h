/* SPDX-License-Identifier: Apache-2.0
 * Contract between the entry points (gemm.cu) and the kernel families. C = f(alpha op(A) op(B) + beta C + bias), row-major.
 *
 * A family defines, for each of its rows, a `Row`: launch() puts the kernel on the stream, attributes() reads what the compiler made
 * of it. It is called with operands that it said (`needs`) it can take: gemm.cu re-lays out any other into the workspace first.
 * A kernel computes tile (i, j) of block_m x block_n outputs over k steps [begin, end): decomposition.cuh says which, in which order,
 * and where partial sums go; epilogue.cuh writes a tile. */
#ifndef PYSIM_CUDA_GEMM_H
#define PYSIM_CUDA_GEMM_H
#include <cuda_runtime.h>

#include "../pysim.h"

namespace pysim {

/* A kernel's arguments: passed by value. Sizes fit int (gemm.cu refuses larger ones); pitches in elements. */
struct Problem {
    const void *a, *b;
    void *c;
    int64_t lda, ldb, ldc;
    int m, n, k;
    int trans_a, trans_b; /* 0: A[m][k], B[k][n]; 1: A[k][m], B[n][k] as they lie in memory */
    int c_dtype;
    /* epilogue */
    double alpha, beta, low, high;
    const void *bias;
    int activation;
    /* decomposition */
    int kind, splits, along_n, group;
    void *partials;   /* split-K and stream-K: accumulators of unfinished tiles, laid out by decomposition.cuh */
    unsigned *flags;  /* zeroed before the launch */
};

/* How an operand must lie for a row's kernels. */
struct Needs {
    int alignment;   /* bytes: base address and pitch; 1: any */
    int k_major_a;   /* 1: A[m][k] only */
    int k_major_b;   /* 1: B[n][k] only */
};

struct Row {
    pysim_cuda_gemm_info info;
    Needs needs;
    cudaError_t (*launch)(const Problem &p, int sms, cudaStream_t stream);
    cudaError_t (*attributes)(const Problem &p, pysim_cuda_attributes *out); /* blocks_per_sm by the occupancy calculator */
};

/* Each family's rows, in the order of gemms.inc. Weak: a build may leave a family out, which then has none. */
struct Rows { const Row *rows; int count; };
__attribute__((weak)) Rows simt_rows();
__attribute__((weak)) Rows wmma_rows();
__attribute__((weak)) Rows mma_rows();
__attribute__((weak)) Rows wgmma_rows();

/* relayout.cu: to[r][c] = from[r][c] (or from[c][r] where `transpose`), r < rows, c < columns, to's pitch padded with zeros; element
 * sizes 1, 2, 4, 8. */
cudaError_t relayout(void *to, int64_t to_pitch, const void *from, int64_t from_pitch, int64_t rows, int64_t columns, int element_bytes,
                     bool transpose, cudaStream_t stream);
/* reference.cu */
cudaError_t reference(const Problem &p, int dtype, cudaStream_t stream);
}
#endif
