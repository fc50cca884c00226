/* SPDX-License-Identifier: Apache-2.0
 * From wgmma's accumulators to C. A thread holds pairs of neighbouring columns, 8 columns apart (mma.cuh), and C's lines of 16 bytes and more are
 * those of several threads. So results change threads in shared memory, where two pieces take turns and one barrier each is enough.
 *
 *   BY_ROWS     rows of the tile run through memory: what changes threads does so inside a warp
 *   BY_COLUMNS  columns do (results of convolutions in planes; C' = B' A'): inside a warpgroup
 *
 * Most tiles leave by a way that does its arithmetic where sums are (direct.cuh), unrolled with bias and bounds alone; functions of many instructions, and
 * what C had, stand there once, in a loop over slices. What is left, scales, rows that begin or end anywhere, and other types of results than the usual,
 * takes a loop over strips of sums in f32 (strips.cuh): 8 registers of each thread, 8 rows of each warp x 32 columns, or 64 rows x 16 columns. There a
 * thread has four neighbours in memory, and asks for bias, scale and what C had four at a time. An H200 waits 6 to 8 cycles from one instruction of a
 * warp to its next in either, so each counts. */
#ifndef PYSIM_CUDA_WGMMA_EPILOGUE_CUH
#define PYSIM_CUDA_WGMMA_EPILOGUE_CUH
#include "core/decomposition.cuh"
#include "mainloop/hopper/direct.cuh"
#include "mainloop/hopper/strips.cuh"

namespace pysim {
namespace hopper {

__device__ inline int bytes_of_result(const Problem &p) { return p.c_dtype == PYSIM_F16 || p.c_dtype == PYSIM_BF16 ? 2 : 4; }
/* Whether so many results a line, `pitch` apart, are whole vectors of `count`, a power of two: no division. */
__device__ inline bool in_vectors(const Problem &p, int64_t pitch, int length, int count) {
    return ((uintptr_t)p.c & (count * bytes_of_result(p) - 1)) == 0 && ((pitch | length) & (count - 1)) == 0;
}
/* The same in fours, and with what elements have of bias and scale. */
__device__ inline bool in_fours(const Problem &p, int64_t pitch, int length, bool by_line) {
    return in_vectors(p, pitch, length, 4) && (by_line || (((uintptr_t)p.bias & (4 * bytes_of_result(p) - 1)) | ((uintptr_t)p.scale & 15)) == 0);
}
/* Whether columns have a bias that lies in pairs. */
__device__ inline bool in_pairs(const Problem &p) { return ((uintptr_t)p.bias & (2 * bytes_of_result(p) - 1)) == 0 && (p.n & 1) == 0; }

/* The way that results take. Nothing of it depends on sums, so it is told before there are any. */
enum Way { STRIPS, DIRECT, RAGGED_ROWS, DIRECT_ALL };

/* RAGGED: rows of two-byte results that begin or end anywhere have a program of their own. */
template <class S, bool RAGGED, class Acc, class Place, class Pitch> __device__ __forceinline__ Way way_of(const Problem &p, const Target<Place, Pitch> &c, bool rows) {
    using Of = Usual<S::DTYPE, Acc>;
    const bool residual = p.beta != 0, all = residual || is_smooth(function_of(p.activation));
    if (p.scale || p.c_dtype != Of::DTYPE_OF_C) return STRIPS;
    if ((c.direct || (!rows && !residual)) && in_pairs(p) && (!p.bias || c.by_line != rows)) return all ? DIRECT_ALL : DIRECT;
    return RAGGED && rows && sizeof(typename Of::type) == 2 && !all && (!p.bias || (in_pairs(p) && !c.by_line)) ? RAGGED_ROWS : STRIPS;
}

/* Sums to C by one of the direct ways, each a program of either run: of both in one, residuals of NCHW's results took up to 1.4 times as long on an H200; */
template <class S, bool RAGGED, Runs RUNS, class Acc, class Place, class Pitch>
__device__ __forceinline__ void store_directly(As<RUNS> as, Way way, const Problem &p, const Target<Place, Pitch> &c, int row, int column, const Acc (&sum)[S::PARTS][S::SUMS]) {
    using Out = typename Usual<S::DTYPE, Acc>::type;
    const Behind<typename Arithmetic<Acc>::type> e(p);
    if (way == DIRECT_ALL) return store_direct<S, Out, true, false>(as, e, c, row, column, p.n, sum);
    if constexpr (RAGGED && RUNS == BY_ROWS && sizeof(Out) == 2)
        if (way == RAGGED_ROWS) return store_direct<S, Out, false, true>(as, e, c, row, column, p.n, sum);
    store_direct<S, Out, false, false>(as, e, c, row, column, p.n, sum);
}
/* and strip by strip. */
template <class S, Runs RUNS, class Acc, class Place, class Pitch>
__device__ __forceinline__ void store_by_strips(As<RUNS> as, const Problem &p, const Target<Place, Pitch> &c, int row, int column, const Acc (&sum)[S::PARTS][S::SUMS]) {
    store_strips<S>(as, Behind<typename Arithmetic<Acc>::type>(p), c, row, column, 2 * ceil_div(p.n - column, 32), sum);
}

/* A thread's first row of a warpgroup's part. */
__device__ inline int row_of_thread() { return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4; }

/* use(As, target) of a product's C: each run by a program of its own, as few kernels have both. */
template <class S, class Use> __device__ __forceinline__ void with_target(const Problem &p, Use use) {
    const bool turned = S::DTYPE == PYSIM_TF32 && p.turned;
    const int length = turned ? p.m : p.n;
    const auto place = [&](int along, bool &here) {
        here = along < length;
        return along;
    };
    const Target target{place, p.ldc, turned ? p.n : p.m, length, p.by_row != 0, in_fours(p, p.ldc, length, p.by_row), in_vectors(p, p.ldc, length, 16 / bytes_of_result(p))};
    if constexpr (S::DTYPE != PYSIM_TF32) use(As<BY_ROWS>(), target);
    else if (turned) use(As<BY_COLUMNS>(), target);
    else use(As<BY_ROWS>(), target);
}

/* What C has, which will be added, into L2 while the products are made: a warpgroup's part of a tile, by 128 bytes. */
template <class S, Runs RUNS, class Place, class Pitch>
__device__ inline void fetch_before(As<RUNS> as, const Problem &p, const Target<Place, Pitch> &c, int row, int column) {
    const bool rows = as.rows();
    const int lines = rows ? 64 : S::WARP_N, length = rows ? S::WARP_N : 64;
    const int bytes = bytes_of_result(p), pieces = lines * (length * bytes / 128);
#pragma unroll 1
    for (int i = threadIdx.x % 128; i < S::PARTS * pieces; i += 128) {
        const int part = i / pieces, of = i - part * pieces, across = rows ? of / 64 : of / S::WARP_N, line = (rows ? row + 64 * part : column) + of - across * lines;
        const int along = (rows ? column : row + 64 * part) + across * (128 / bytes);
        bool here;
        const int64_t at = c.place(along, here) + (int64_t)line * c.pitch;
        if (here && line < c.lines) fetch_line((const char *)p.c + at * bytes);
    }
}
}
}
#endif
