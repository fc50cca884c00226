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
    int k_major;   /* 1: A[m][k] and B[n][k] only; 2: B[n][k] only */
    int thirds;    /* 1: of B its thirds, all first ones [n][k], below them the second and the third (core/split.cuh) */
};

struct GemmRow {
    char name[80];
    pysim_cuda_gemm_info info;
    Needs needs;
    bool exact_capability; /* info.capability alone */
    cudaError_t (*launch)(const Problem &p, int sms, cudaStream_t stream); /* NULL: not in this build (emulated/) */
    cudaError_t (*attributes)(const Problem &p, pysim_cuda_attributes *out); /* blocks_per_sm by the occupancy calculator */
    int below = 0, reduces_in_cluster = 0, replaced_on = 0; /* see gemm/rows.h */
};

/* Each family's rows, in the order of its .inc. */
Rows<GemmRow> simt_f32_rows(), simt_f64_rows(), simt_f16_rows(), simt_s8_rows();
Rows<GemmRow> wmma_rows(), mma_f64_rows(), mma_rows(), mma_tf32x3_rows();
Rows<GemmRow> wgmma_f16_rows(), wgmma_bf16_rows(), wgmma_narrow_rows(), wgmma_tf32x3_rows();

/* relayout.cu: to[r][c] = from[r][c] (or from[c][r] where `transpose`), r < rows, c < columns, to's pitch padded with zeros; no rows: nothing. */
struct Relayout {
    void *to;
    int64_t to_pitch;
    const void *from;
    int64_t from_pitch, rows, columns;
    bool transpose;
};
/* As what B is copied: its halves or thirds (core/split.cuh) in as many rows each, one kind below the other; interleaved: each eight columns in the order
 * that A's columns are read in, and the pitch is a multiple of 8. */
enum class PartsOf { NONE, HALVES, THIRDS, THIRDS_INTERLEAVED };
/* Copies of A and B, of elements of 1, 2, 4 or 8 bytes, and `count` flags that are cleared, in one launch. */
cudaError_t relayout(const Relayout &a, const Relayout &b, int element_bytes, PartsOf parts, unsigned *flags, int count, cudaStream_t stream);
/* reference.cu: alpha == 0 leaves the product out */
enum { REFERENCE_ROWS = 16 * 65535 }; /* that it takes at most */
cudaError_t reference(const Problem &p, int dtype, cudaStream_t stream);
}
#endif
