/* SPDX-License-Identifier: Apache-2.0
 * The kernels of skinny.inc:
 *
 *   partial[f][i] = sum over p < k of vectors[f][p] matrix(i, p)
 *
 *   axpy  matrix[p][i]: a strip of partial sums stays in L1 while blocks of matrix rows stream past; accumulators hold one tile of it for the rows
 *         of a block.
 *   dot   matrix[i][p]: tiles of matrix rows; lanes are added up at the end of each block of p. A block of the vectors stays in L1 while the rows
 *         stream past.
 *
 * The order of a sum depends on the blocks of p alone, so the bits do not depend on tiles.
 *
 * The limit is the number of lines in flight from memory. Matrix rows are a page or more apart, and multiply-adds between the loads leave few loads
 * in the core's reorder window. So each tile prefetches:
 *
 *   prefetch_level 1  into L1, the data that comes one tile (dot) or one block (axpy) later, in memory order
 *   prefetch_level 2  into L2, LINES_AHEAD lines ahead in its own rows, then in those of the next tile or block. L1 has few miss buffers, and a
 *                     line from memory would keep one for hundreds of cycles. Tiles of many vectors, whose multiply-adds fill the reorder
 *                     window, also prefetch from L2 into L1, a few lines ahead. */
#include "instance.h"

/* A tile has up to 20 accumulators of 32 registers (vectors of 64 bytes), else 8. */
enum {
    MAX_ACCUMULATORS = LANES * sizeof(T) == 64 ? 20 : 8,
    MAX_NV = 8,                               /* matrix registers (axpy), matrix rows (dot) of a tile */
    MAX_NF = LANES * sizeof(T) == 64 ? 8 : 4, /* vectors of a tile, axpy */
    MAX_NF_DOT = 4,
    LINE = 64 / sizeof(T),
    LINES_AHEAD = 64,       /* to L2 */
    DOT_LINES_AHEAD_L1 = 8, /* to L1; axpy: two tiles */
    MIN_NF_L1 = 3,          /* tiles of at least so many vectors prefetch into L1, too */
};

/* If one pass covers all vectors in tiles narrower than MAX_NV, 64-byte multiply-adds read one operand from memory again, a vector of
 * the matrix or of the vectors, although it was loaded before: fewer registers and instructions let the core see more of the loads that
 * wait for memory. If a second pass reads the matrix from L1, loads would be the limit. 4 x 4096 x 4096 nn in 2.0 ms instead of 2.7, 8
 * in 2.3 instead of 2.7, 4 nt in 2.1 instead of 2.4 (Zen 5). */
INLINE int reload_operands(int64_t vectors, int nf, int n) { return LANES * sizeof(T) == 64 && vectors == nf && n < MAX_NV; }
#define OPAQUE(pointer) __asm__("" : "+r"(pointer))

/* Matrix registers (SIMD vectors) in a tile of nf vectors: a power of two. */
INLINE int64_t tile_registers(int64_t nf) {
    return nf * MAX_NV <= MAX_ACCUMULATORS ? MAX_NV : nf * MAX_NV / 2 <= MAX_ACCUMULATORS ? MAX_NV / 2 : MAX_NV / 4;
}

/* The next prefetch address and the end of its run of `width` elements; runs are ld elements apart. */
typedef struct {
    const T *at, *end;
    int64_t width, ld;
} PREFETCHER;

INLINE void prefetch_next(const int vectors, PREFETCHER *a) {
#pragma GCC unroll 8
    for (int i = 0; i < vectors * LANES; i += LINE) __builtin_prefetch(a->at + i);
    a->at += vectors * LANES;
    if (a->at >= a->end) {
        a->at = a->end + (a->ld - a->width);
        a->end += a->ld;
    }
}

/* Prefetches of one row of a tile, `elements` wide, into L2 and L1. */
INLINE void prefetch_row(const int nf, const int elements, const T *to_l2, const T *to_l1) {
#pragma GCC unroll 8
    for (int i = 0; i < elements; i += LINE) __builtin_prefetch(to_l2 + i, 0, 2);
#pragma GCC unroll 8
    for (int i = 0; nf >= MIN_NF_L1 && i < elements; i += LINE) __builtin_prefetch(to_l1 + i);
}

/* Elements from place `at` of a run to the place LINES_AHEAD lines ahead. A run has `width` elements, and the next one starts `next` elements
 * behind its start. */
INLINE int64_t elements_ahead(int64_t at, int64_t width, int64_t next) {
    const int64_t ahead = pysim_min(LINES_AHEAD * LINE, width);
    return at + ahead < width ? ahead : ahead - width + next;
}

/* Adds nk rows to nf vectors x nv registers of results; loads are masked if `masked`, stores are whole registers. */
INLINE void axpy_tile(const int nf, const int nv, const int masked, const pysim_skinny *of, const T *vectors, const T *matrix, int64_t nk,
                      int first, MASK mask, T *partial, int64_t pitch, PREFETCHER *ahead, int64_t ahead_l2) {
    VEC acc[MAX_NF][MAX_NV];
    PREFETCHER a = *ahead;
    const int into_l2 = of->prefetch_level > 1, reload = reload_operands(of->n_vectors, nf, nv);
#pragma GCC unroll 8
    for (int f = 0; f < nf; f++)
#pragma GCC unroll 8
        for (int v = 0; v < nv; v++) acc[f][v] = first ? v_zero() : v_load(partial + f * pitch + v * LANES);
    for (int64_t p = 0; p < nk; p++, matrix += of->ld, vectors += of->n_vectors) {
        VEC x[MAX_NV];
        const T *row = matrix, *values = vectors;
        if (into_l2) prefetch_row(nf, nv * LANES, matrix + ahead_l2, matrix + 2 * nv * LANES);
        else prefetch_next(nv, &a);
#pragma GCC unroll 8
        for (int v = 0; v < nv; v++) x[v] = masked ? v_load_mask(matrix + v * LANES, mask) : v_load(matrix + v * LANES);
        if (reload && nf > nv)
#pragma GCC unroll 8
            for (int v = 0; v < nv; v++) {
                OPAQUE(values);
#pragma GCC unroll 8
                for (int f = 0; f < nf; f++) acc[f][v] = v_fma(v_set1(values[f]), x[v], acc[f][v]);
            }
        else
#pragma GCC unroll 8
            for (int f = 0; f < nf; f++) {
                const VEC b = v_set1(vectors[f]);
                if (reload) OPAQUE(row);
#pragma GCC unroll 8
                for (int v = 0; v < nv; v++) acc[f][v] = v_fma(b, reload && !masked ? v_load(row + v * LANES) : x[v], acc[f][v]);
            }
    }
#pragma GCC unroll 8
    for (int f = 0; f < nf; f++)
#pragma GCC unroll 8
        for (int v = 0; v < nv; v++) v_store(partial + f * pitch + v * LANES, acc[f][v]);
    *ahead = a;
}

/* Results [at, at + count) of a run of `width`: whole tiles of nv registers, then the rest one register at a time. */
INLINE void axpy_block(const int nf, const int nv, const pysim_skinny *of, const T *vectors, const T *matrix, int64_t nk, int first,
                       int64_t at, int64_t count, int64_t width, T *partial, int64_t pitch, PREFETCHER *ahead) {
    int64_t i = 0;
    for (; i + nv * LANES <= count; i += nv * LANES)
        axpy_tile(nf, nv, 0, of, vectors, matrix + i, nk, first, v_lanes(0, LANES), partial + i, pitch, ahead,
                  elements_ahead(at + i, width, nk * of->ld));
    for (; i < count; i += LANES)
        axpy_tile(nf, 1, 1, of, vectors, matrix + i, nk, first, v_lanes(0, count - i), partial + i, pitch, ahead,
                  elements_ahead(at + i, width, nk * of->ld));
}

/* Adds up the lanes of `count` registers (a power of two, 1 to LANES); sum v ends in lane v LANES / count. Each stage adds halves to
 * halves: two shuffles for two registers, 30 for 16 registers of 16 lanes. */
INLINE VEC add_lanes(int count, VEC r[LANES]) {
#pragma GCC unroll 4
    for (int half = LANES / 2; half > 0; half /= 2) {
        const int pairs = count > 1 ? count / 2 : 1, other = count > 1 ? pairs : 0;
#pragma GCC unroll 8
        for (int i = 0; i < pairs; i++) r[i] = v_add(v_interleave_low(r[i], r[i + other]), v_interleave_high(r[i], r[i + other]));
        count = pairs;
    }
    return r[0];
}

/* Multiplies one register of each matrix row by one register of each vector; vectors are zero beyond the end of k. */
#define DOT_STEP(load, at, reload)                                                                                      \
    {                                                                                                                   \
        VEC x[MAX_NV];                                                                                                  \
        _Pragma("GCC unroll 8") for (int r = 0; r < nr; r++) x[r] = load;                                               \
        _Pragma("GCC unroll 8") for (int f = 0; f < nf; f++) {                                                          \
            const VEC y = v_load(vectors + f * PYSIM_VECTOR_STEP + (at));                                               \
            if (reload) OPAQUE(matrix);                                                                                 \
            _Pragma("GCC unroll 8") for (int r = 0; r < nr; r++) acc[f][r] = v_fma(reload ? load : x[r], y, acc[f][r]); \
        }                                                                                                               \
    }

/* Adds nk columns to the partial sums of nf vectors x nr rows of the matrix. */
INLINE void dot_tile(const int nf, const int nr, const pysim_skinny *of, const T *vectors, const T *matrix, int64_t nk, int first,
                     T *partial, int64_t pitch, PREFETCHER *ahead) {
    VEC acc[MAX_NF][MAX_NV];
    PREFETCHER a = *ahead;
    const int into_l2 = of->prefetch_level > 1, reload = reload_operands(of->n_vectors, nf, nr);
#pragma GCC unroll 8
    for (int f = 0; f < nf; f++)
#pragma GCC unroll 8
        for (int r = 0; r < nr; r++) acc[f][r] = v_zero();
    int64_t p = 0;
    for (; p + PYSIM_VECTOR_STEP <= nk; vectors += of->n_vectors * PYSIM_VECTOR_STEP) {
        const T *to_l2 = matrix + p + elements_ahead(p, nk, nr * of->ld), *to_l1 = matrix + p + DOT_LINES_AHEAD_L1 * LINE;
#pragma GCC unroll 8
        for (int r = 0; into_l2 && r < nr; r++) prefetch_row(nf, PYSIM_VECTOR_STEP, to_l2 + r * of->ld, to_l1 + r * of->ld);
#pragma GCC unroll 2
        for (int at = 0; at < PYSIM_VECTOR_STEP; at += LANES, p += LANES) {
            if (!into_l2) prefetch_next(nr, &a);
            DOT_STEP(v_load(matrix + r * of->ld + p), at, reload)
        }
    }
    for (; p < nk; p += LANES) {
        const MASK mask = v_lanes(0, nk - p);
        DOT_STEP(v_load_mask(matrix + r * of->ld + p, mask), p % PYSIM_VECTOR_STEP, 0)
    }
    enum { MAX_TILE = MAX_NV * MAX_NF_DOT };
    VEC lanes[MAX_TILE];
    T sum[MAX_TILE];
    int group = 1; /* registers per call of add_lanes; three vectors are padded by zeros */
    while (group < nf * nr && group < LANES) group *= 2;
#pragma GCC unroll 32
    for (int i = 0; i < MAX_TILE; i++) lanes[i] = i < nf * nr ? acc[i / nr][i % nr] : v_zero();
#pragma GCC unroll 8
    for (int at = 0; at < nf * nr; at += LANES) v_store(sum + at, add_lanes(group, lanes + at));
#pragma GCC unroll 8
    for (int f = 0; f < nf; f++)
#pragma GCC unroll 8
        for (int r = 0; r < nr; r++) {
            T *to = partial + f * pitch + r;
            *to = sum[(f * nr + r) * (LANES / group)] + (first ? 0 : *to);
        }
    *ahead = a;
}

INLINE void dot_block(const int nf, const int nr, const pysim_skinny *of, const T *vectors, const T *matrix, int64_t nk, int first,
                      int64_t count, T *partial, int64_t pitch, PREFETCHER *ahead) {
    int64_t i = 0;
    for (; i + nr <= count; i += nr) dot_tile(nf, nr, of, vectors, matrix + i * of->ld, nk, first, partial + i, pitch, ahead);
    for (; i < count; i++) dot_tile(nf, 1, of, vectors, matrix + i * of->ld, nk, first, partial + i, pitch, ahead);
}

/* All passes over a block of results prefetch the same lines: each pass starts at the same address, and the next block goes on behind
 * it. */
#define PASS(nf)                                                                                                                        \
    case nf:                                                                                                                            \
        if (!dot && nf <= MAX_NF)                                                                                                       \
            axpy_block(nf, (int)tile_registers(nf), of, vectors + f, matrix, nk, p == 0, i, count, results, partial + f * pitch, pitch, \
                       &next);                                                                                                          \
        DOT_PASS(nf, MAX_NV)                                                                                                            \
        DOT_PASS(nf, MAX_NV / 2)                                                                                                        \
        DOT_PASS(nf, MAX_NV / 4)                                                                                                        \
        break;
#define DOT_PASS(nf, rows)                                                                                            \
    if (dot && nf <= MAX_NF_DOT && rows <= tile_registers(nf) && rows >= tile_registers(MAX_NF_DOT) && rows == block) \
        dot_block(nf, rows, of, vectors + f * PYSIM_VECTOR_STEP, matrix, nk, p == 0, count, partial + f * pitch, pitch, &next);

/* The vectors are processed in passes: axpy in equal ones, dot in as many as a tile holds and a rest. */
INLINE void skinny(const int dot, const pysim_skinny *of, int64_t begin, int64_t results, T *to, int64_t pitch) {
    const int64_t passes = pysim_ceil_div(of->n_vectors, MAX_NF), max_nf = dot ? MAX_NF_DOT : pysim_ceil_div(of->n_vectors, passes);
    /* dot: as many rows as a pass holds, so that they and a block of the vectors stay in L1; axpy: as much as the next pass finds in L1 */
    const int64_t block = dot ? tile_registers(pysim_min(of->n_vectors, max_nf)) : passes > 1 ? MAX_NV * LANES : results;
    const int64_t result_step = dot ? of->ld : 1, p_step = dot ? 1 : of->ld;
    const T *rows = (const T *)of->matrix + begin * result_step;
    for (int64_t p = 0; p < of->k; p += of->block) {
        const int64_t nk = pysim_min(of->block, of->k - p), run = dot ? nk : results;
        const T *vectors = (const T *)of->vectors + p * of->n_vectors, *from = rows + p * p_step + (dot ? block : nk) * of->ld;
        PREFETCHER ahead = {from, from + run, run, of->ld}, next = ahead;
        for (int64_t i = 0; i < results; i += block, ahead = next) {
            const int64_t count = pysim_min(block, results - i);
            const T *matrix = rows + i * result_step + p * p_step;
            T *partial = to + i;
            for (int64_t f = 0, nf; f < of->n_vectors; f += nf) {
                next = ahead;
                nf = pysim_min(max_nf, of->n_vectors - f);
                switch (nf) { PASS(1) PASS(2) PASS(3) PASS(4) PASS(5) PASS(6) PASS(7) PASS(8) }
            }
        }
    }
}

#define DEFINE_SKINNY(name, dot)                                                                      \
    void name(const pysim_skinny *of, int64_t begin, int64_t results, void *partial, int64_t pitch) { \
        skinny(dot, of, begin, results, partial, pitch);                                              \
    }

/* The rows of skinny.inc for these vectors */
#define IS_axpy 0
#define IS_dot 1
#define DEFINED(target, dtype, form, windows, filters, lanes) DEFINE_SKINNY(dtype##_##form##_##windows##x##filters##__##target, IS_##form)
#define PYSIM_SKINNY_ROW(target, dtype, form, windows, filters, lane_windows, lane_filters) \
    MINE(target, dtype, DEFINED)(target, dtype, form, windows, filters, lane_filters)
#include "skinny.inc"
