/* SPDX-License-Identifier: Apache-2.0
 * From wgmma's accumulators to C. A thread holds pairs of neighbouring columns, 8 columns apart (mma.cuh), while 16 contiguous bytes of C belong to
 * several threads. So results are exchanged between threads in shared memory (staging.cuh).
 *
 *   BY_ROWS     rows of the tile are contiguous in C: the exchange is within a warp
 *   BY_COLUMNS  columns are (NCHW results of convolutions; C' = B' A'): within a warpgroup
 *
 * Three store paths:
 *   rows.cuh    most tiles BY_ROWS: scale, bias, ReLU, clamp and leaky ReLU, unrolled
 *   direct.cuh  the other tiles in aligned vectors. Arithmetic on the accumulators in place. Scale, bias and what rows.cuh has are unrolled; smooth activations and beta C have one copy
 *               of their code in a loop over slices
 *   strips.cuh  unaligned rows, unusual result types. A loop over strips of f32 accumulators: 8 registers of each thread, that is 8 rows of
 *               each warp x 32 columns, or 64 rows x 16 columns. There a thread has four neighbours in memory, and loads bias, scale and C four at a time
 * On an H200 a warp issues one of these dependent instructions in 6 to 8 cycles, so each counts. */
#ifndef PYSIM_CUDA_WGMMA_EPILOGUE_CUH
#define PYSIM_CUDA_WGMMA_EPILOGUE_CUH
#include "core/decomposition.cuh"
#include "mainloop/wgmma/direct.cuh"
#include "mainloop/wgmma/rows.cuh"
#include "mainloop/wgmma/strips.cuh"

namespace pysim::hopper {

__host__ __device__ inline int bytes_of_result(const Problem &p) { return p.c_dtype == PYSIM_F16 || p.c_dtype == PYSIM_BF16 ? 2 : 4; }
/* Whether lines of `length` results, `pitch` apart, consist of aligned vectors of `count`, a power of two. */
__host__ __device__ inline bool in_vectors(const Problem &p, int64_t pitch, int length, int count) {
    return ((uintptr_t)p.c & (count * bytes_of_result(p) - 1)) == 0 && ((pitch | length) & (count - 1)) == 0;
}
/* The same for vectors of four, including bias and scale if they have one value per element. */
__host__ __device__ inline bool in_fours(const Problem &p, int64_t pitch, int length, bool by_line) {
    return in_vectors(p, pitch, length, 4) &&
           (by_line || (((uintptr_t)p.bias & (4 * bytes_of_result(p) - 1)) | ((uintptr_t)p.scale & 15)) == 0);
}
/* Whether bias and scale can be loaded in pairs of columns. */
__host__ __device__ inline bool in_pairs(const Problem &p) {
    return (((uintptr_t)p.bias & (2 * bytes_of_result(p) - 1)) | ((uintptr_t)p.scale & 7)) == 0 && (p.n & 1) == 0;
}

enum StorePath { STRIPS, DIRECT, RAGGED_ROWS, DIRECT_ALL };

/* What store paths depend on, the same for all tiles. The host computes it: on the device it delayed the first products by up to 800 cycles (H100, f16). */
struct StoreTerms {
    StorePath path;
    bool by_line, vectors, direct; /* of a Target */
    int columns = 0;               /* of a block's tile, if Shape::NARROWS */
};
/* C has lines of `length` elements, `pitch` apart, which are ROWS of the product or not. RAGGED: the kernel has RAGGED_ROWS, the path for unaligned rows of
 * two-byte results. */
template <class S, bool RAGGED> __host__ __device__ inline StoreTerms store_terms_of(const Problem &p, bool rows, bool by_line,
                                                                                     int64_t pitch, int length) {
    using Of = DefaultResult<S::DTYPE, typename S::Acc>;
    const bool residual = p.beta != 0, all = residual || is_smooth(function_of(p.activation));
    StoreTerms terms = {STRIPS, by_line, in_fours(p, pitch, length, by_line), in_vectors(p, pitch, length, 16 / bytes_of_result(p))};
    if (p.c_dtype != Of::DTYPE_OF_C) return terms;
    const bool plain = !p.bias && !p.scale;
    if ((terms.direct || (!rows && !residual)) && (plain || (in_pairs(p) && by_line != rows))) terms.path = all ? DIRECT_ALL : DIRECT;
    else if (RAGGED && rows && sizeof(typename Of::type) == 2 && !all && (plain || (in_pairs(p) && !by_line))) terms.path = RAGGED_ROWS;
    return terms;
}

/* The end of the columns that a tile has; of C where tiles do not narrow. */
template <class S, ResultOrder ORDER, class Place, class Pitch>
__device__ inline int last_column(Order<ORDER>, const Problem &p, const Target<Place, Pitch> &c) {
    return !S::NARROWS ? p.n : ORDER == BY_ROWS ? c.length : c.lines;
}

/* Stores by a direct path. Each order of results has its own instance: with one for both, residuals of NCHW results took up to 1.4 times as long (H200). */
template <class S, bool RAGGED, ResultOrder ORDER, class Acc, class Place, class Pitch>
__device__ __forceinline__ void store_directly(Order<ORDER> order, StorePath path, const Problem &p, const Target<Place, Pitch> &c, int row,
                                               int column, const Acc (&acc)[S::PARTS][S::ACCUMULATORS]) {
    using Out = typename DefaultResult<S::DTYPE, Acc>::type;
    const EpilogueTerms<typename Arithmetic<Acc>::type> e(p);
    const int columns = last_column<S>(order, p, c);
    if (path == DIRECT_ALL) return store_direct<S, Out, true, false>(order, e, c, row, column, columns, acc);
    if constexpr (RAGGED && ORDER == BY_ROWS && sizeof(Out) == 2)
        if (path == RAGGED_ROWS) return store_direct<S, Out, false, true>(order, e, c, row, column, columns, acc);
    if constexpr (ORDER == BY_ROWS) store_rows<S, Out>(e, c, row, column, columns, acc);
    else store_direct<S, Out, false, false>(order, e, c, row, column, columns, acc);
}
/* Stores by strips. */
template <class S, ResultOrder ORDER, class Acc, class Place, class Pitch>
__device__ __forceinline__ void store_by_strips(Order<ORDER> order, const Problem &p, const Target<Place, Pitch> &c, int row, int column,
                                                const Acc (&acc)[S::PARTS][S::ACCUMULATORS]) {
    store_strips<S>(order, EpilogueTerms<typename Arithmetic<Acc>::type>(p), c, row, column,
                    2 * ceil_div(last_column<S>(order, p, c) - column, 32), acc);
}

/* A thread's first row in its warpgroup's part of the tile. */
__device__ inline int row_of_thread() { return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4; }

/* Calls use(Order, target) for the rows of a product's C up to `end` and its columns up to `last`; each order has its own instance, as few kernels have both. */
template <class S, class Use>
__device__ __forceinline__ void with_target(const Problem &p, const StoreTerms &terms, int end, int last, Use use) {
    const bool transposed = S::DTYPE == PYSIM_TF32 && p.transposed;
    const int length = transposed ? end : last;
    const auto place = [&](int along, bool &here) {
        here = along < length;
        return along;
    };
    const Target target{place, p.ldc, transposed ? last : end, length, terms.by_line, terms.vectors, terms.direct};
    if constexpr (S::DTYPE != PYSIM_TF32) use(Order<BY_ROWS>(), target);
    else if (transposed) use(Order<BY_COLUMNS>(), target);
    else use(Order<BY_ROWS>(), target);
}

/* Prefetches a warpgroup's part of C into L2, 128 bytes at a time, for beta C; the products overlap it. */
template <class S, ResultOrder ORDER, class Place, class Pitch>
__device__ inline void fetch_before(Order<ORDER> order, const Problem &p, const Target<Place, Pitch> &c, int row, int column) {
    const bool rows = order.by_rows();
    const int lines = rows ? 64 : S::WARP_N, length = rows ? S::WARP_N : 64;
    const int bytes = bytes_of_result(p), pieces = lines * (length * bytes / 128);
#pragma unroll 1
    for (int i = threadIdx.x % 128; i < S::PARTS * pieces; i += 128) {
        const int part = i / pieces, of = i - part * pieces, across = rows ? of / 64 : of / S::WARP_N,
                  line = (rows ? row + 64 * part : column) + of - across * lines;
        const int along = (rows ? column : row + 64 * part) + across * (128 / bytes);
        bool here;
        const int64_t at = c.place(along, here) + c.offset(line);
        if (here && c.has(line)) fetch_line((const char *)p.c + at * bytes);
    }
}
}
#endif
