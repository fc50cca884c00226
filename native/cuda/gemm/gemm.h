/* SPDX-License-Identifier: Apache-2.0
 * Contract between the entry points (abi/gemm.cu) and the families of kernels of products.
 *
 * A family defines, for each of its rows, a `GemmRow`: launch() puts the kernel on the stream, attributes() reads what the compiler made
 * of it. It is called with operands that it said (`needs`) it can take: abi/gemm.cu re-lays out any other into the workspace first.
 * A kernel computes tile (i, j) of block_m x block_n outputs over k steps [begin, end): core/decomposition.cuh says which, in which order,
 * and where partial sums go; core/epilogue.cuh writes a tile. */
#ifndef PYSIM_CUDA_GEMM_H
#define PYSIM_CUDA_GEMM_H
#include "core/problem.h"
#include "core/rows.h"

namespace pysim {

/* How an operand must lie for a row's kernels. */
struct Needs {
    int alignment; /* bytes: base address and pitch; 1: any */
    int k_major;   /* 1: A[m][k] and B[n][k] only */
    int halves;    /* 1: of B its halves, hi(B)[n][k] and below them lo(B)[n][k] (core/split.cuh) */
};

struct GemmRow {
    char name[80];
    pysim_cuda_gemm_info info;
    Needs needs;
    bool exact_capability; /* info.capability alone */
    cudaError_t (*launch)(const Problem &p, int sms, cudaStream_t stream); /* NULL: not in this build (emulated/) */
    cudaError_t (*attributes)(const Problem &p, pysim_cuda_attributes *out); /* blocks_per_sm by the occupancy calculator */
    int below = 0; /* see gemm/rows.h */
};

/* Each family's rows, in the order of its .inc. */
Rows<GemmRow> simt_f32_rows(), simt_f64_rows(), simt_f16_rows(), simt_s8_rows();
Rows<GemmRow> wmma_rows(), mma_f64_rows(), mma_rows(), mma_tf32x3_rows();
Rows<GemmRow> wgmma_f16_rows(), wgmma_bf16_rows(), wgmma_narrow_rows(), wgmma_tf32x3_rows();

/* relayout.cu: to[r][c] = from[r][c] (or from[c][r] where `transpose`), r < rows, c < columns, to's pitch padded with zeros; element
 * sizes 1, 2, 4, 8. */
cudaError_t relayout(void *to, int64_t to_pitch, const void *from, int64_t from_pitch, int64_t rows, int64_t columns, int element_bytes,
                     bool transpose, cudaStream_t stream);
/* relayout.cu: the same of f32, as the halves that core/split.cuh makes: hi in `rows` rows, lo in as many below; `interleave`: each eight columns in
 * the order that A's columns are read in; then the pitch is a multiple of 8. */
cudaError_t split(void *to, int64_t to_pitch, const void *from, int64_t from_pitch, int64_t rows, int64_t columns, bool transpose, bool interleave,
                  cudaStream_t stream);
/* reference.cu: alpha == 0 leaves the product out */
enum { REFERENCE_ROWS = 16 * 65535 }; /* that it takes at most */
cudaError_t reference(const Problem &p, int dtype, cudaStream_t stream);
}
#endif
