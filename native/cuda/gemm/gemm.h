/* SPDX-License-Identifier: Apache-2.0
 * The contract between the entry points (abi/gemm.cu) and the GEMM families.
 *
 * A family (families.inc) defines a `GemmRow` for each of its rows: launch() enqueues the kernel, attributes() returns its registers and memory. Operands satisfy the row's
 * `needs`: abi/gemm.cu converts other layouts into the workspace first. A kernel computes tile (i, j) of block_m x block_n outputs over k-iterations
 * [begin, end). core/decomposition.cuh defines the tiles, their order and the fix-up; core/epilogue.cuh stores a tile. */
#ifndef PYSIM_CUDA_GEMM_H
#define PYSIM_CUDA_GEMM_H
#include "core/problem.h"
#include "core/rows.h"

namespace pysim {

/* Operand layouts that a row's kernels need. */
struct Needs {
    int alignment; /* base address and pitch are multiples of so many bytes; 1: any */
    int k_major;   /* 1: A[m][k] and B[n][k] only; 2: B[n][k] only */
    int thirds;    /* 1: B as thirds: the first thirds [n][k], then the second, then the third (core/split.cuh) */
    int dense;     /* 1: rows of A and B without gaps */
};

struct GemmRow {
    char name[80];
    pysim_cuda_gemm_info info;
    Needs needs;
    bool exact_capability;                                                   /* info.capability alone */
    cudaError_t (*launch)(const Problem &p, int sms, cudaStream_t stream);   /* NULL: not in this build */
    cudaError_t (*attributes)(const Problem &p, pysim_cuda_attributes *out); /* blocks_per_sm by the occupancy calculator */
    int below = 0, reduces_in_cluster = 0, replaced_on = 0;                  /* see gemm/rows.h */
    /* products that make one, and the bytes that they need beside flags: at Problem::partials, and of what B becomes; the schedule's decomposition is of the
     * row behind it */
    int residues = 0;
    int64_t (*scratch)(int m, int n, int k, bool of_b) = nullptr;
    /* NULL if the row computes the sizes and the pitch of C in `p`, else the reason: "it takes ..."; NULL itself: it computes all */
    const char *(*refuses)(const Problem &p) = nullptr;
};

/* The units of each family: the functions that define its rows. */
#define PYSIM_CUDA_CONV(...)
#define PYSIM_CUDA_GEMM(family, gpus, ...)                       \
    namespace gemm_##family {                                    \
        Unit<GemmRow> __VA_ARGS__;                               \
        inline constexpr Unit<GemmRow> *units[] = {__VA_ARGS__}; \
    }
#include "families.inc"
#undef PYSIM_CUDA_CONV
#undef PYSIM_CUDA_GEMM

/* layout_conversion.cu: to[r][c] = from[r][c] (`transpose`: from[c][r]) for r < rows, c < columns; zeros up to to_pitch. rows = 0: no copy. */
struct LayoutConversion {
    void *to;
    int64_t to_pitch;
    const void *from;
    int64_t from_pitch, rows, columns;
    bool transpose;
};
/* The form of B's copy: halves or thirds (core/split.cuh), each kind in `rows` rows, one kind after the other. INTERLEAVED: every eight columns are in
 * the order in which A's k is read; the pitch is a multiple of 8. */
enum class PartsOf { NONE, HALVES, THIRDS, THIRDS_INTERLEAVED };
/* Copies A and B (elements of 1, 2, 4 or 8 bytes) and clears `count` flags, in one launch; nothing if `only_if` points to 0. */
cudaError_t convert_layouts(const LayoutConversion &a, const LayoutConversion &b, int element_bytes, PartsOf parts, unsigned *flags,
                            int count, const unsigned *only_if, cudaStream_t stream);
/* reference.cu; alpha == 0: without the product */
enum { REFERENCE_ROWS = 16 * 65535 }; /* the most that it takes */
cudaError_t reference(const Problem &p, int dtype, cudaStream_t stream);
}
#endif
