/* SPDX-License-Identifier: Apache-2.0
 * The kernels of conv/skinny.inc as a template over a vector type (x86/vec_*.h, vec_portable.h):
 *
 *   sums[f][i] = sum over p < k of few[f][p] matrix(i, p)
 *
 *   axpy  matrix[p][i]: a strip of sums stays in L1 while blocks of rows of the matrix pass by; a tile of it is in registers for the rows of one
 *         block.
 *   dot   matrix[i][p]: tiles of rows, lanes added up at the end of each block of p; a block of the few stays in L1 while rows pass by.
 *
 * A result is summed in an order that depends on the blocks of p alone, so bits do not depend on tiles.
 *
 * What bounds them is how many lines are on their way from memory at once. Rows lie a page or more apart, and the loads that a core sees ahead are
 * thinned by multiply-adds, so each tile asks for what comes a tile (dot) or a block (axpy) later, in the order of memory. */
#include "../kernel.h"

/* A tile has up to 20 sums where registers are 32 (vectors of 64 bytes), else 8. */
enum { WIDEST = 8, SUMS = LANES * sizeof(T) == 64 ? 20 : 8, MOST_FEW = LANES * sizeof(T) == 64 ? 8 : 4, MOST_DOT = 4, LINE = 64 / sizeof(T) };

/* Where one pass takes all of the few, a multiply-add of vectors of 64 bytes has an operand in memory, a vector of the matrix or one of the
 * few, though it was loaded before: with less to keep in flight a core sees more of what waits for memory. With the matrix in L1 (a second
 * pass) loads would bound it. 4 x 4096 x 4096 in 2.0 ms, not 2.7; 8 in 2.3, not 2.7 (Zen 5). */
enum { FROM_MEMORY = LANES * sizeof(T) == 64 };
#define UNKNOWN(pointer) __asm__("" : "+r"(pointer))

/* Vectors of the matrix in a tile of nf of the few: a power of two. */
INLINE int64_t wide(int64_t nf) { return nf * WIDEST <= SUMS ? WIDEST : nf * WIDEST / 2 <= SUMS ? WIDEST / 2 : WIDEST / 4; }

/* What is asked for next, and the end of its run of `width` elements; runs lie ld apart. */
typedef struct {
    const T *at, *end;
    int64_t width, ld;
} AHEAD;

INLINE void ask(const int vectors, AHEAD *a) {
#pragma GCC unroll 8
    for (int i = 0; i < vectors * LANES; i += LINE) __builtin_prefetch(a->at + i);
    a->at += vectors * LANES;
    if (a->at >= a->end) {
        a->at = a->end + (a->ld - a->width);
        a->end += a->ld;
    }
}

/* Sums of nf of the few x nv vectors of results over nk rows; under a mask where `masked`, sums in whole vectors. */
INLINE void axpy_tile(const int nf, const int nv, const int masked, const pysim_skinny *of, const T *few, const T *matrix, int64_t nk, int first,
                      MASK mask, T *sums, int64_t pitch, AHEAD *ahead) {
    VEC acc[MOST_FEW][WIDEST];
    AHEAD a = *ahead;
    const int again = FROM_MEMORY && of->few == nf;
#pragma GCC unroll 8
    for (int f = 0; f < nf; f++)
#pragma GCC unroll 8
        for (int v = 0; v < nv; v++) acc[f][v] = first ? v_zero() : v_load(sums + f * pitch + v * LANES);
    for (int64_t p = 0; p < nk; p++, matrix += of->ld, few += of->few) {
        VEC x[WIDEST];
        const T *row = matrix, *values = few;
        ask(nv, &a);
#pragma GCC unroll 8
        for (int v = 0; v < nv; v++) x[v] = masked ? v_load_mask(matrix + v * LANES, mask) : v_load(matrix + v * LANES);
        if (again && nf > nv)
#pragma GCC unroll 8
            for (int v = 0; v < nv; v++) {
                UNKNOWN(values);
#pragma GCC unroll 8
                for (int f = 0; f < nf; f++) acc[f][v] = v_fma(v_set1(values[f]), x[v], acc[f][v]);
            }
        else
#pragma GCC unroll 8
            for (int f = 0; f < nf; f++) {
                const VEC b = v_set1(few[f]);
                if (again) UNKNOWN(row);
#pragma GCC unroll 8
                for (int v = 0; v < nv; v++) acc[f][v] = v_fma(b, again && !masked ? v_load(row + v * LANES) : x[v], acc[f][v]);
            }
    }
#pragma GCC unroll 8
    for (int f = 0; f < nf; f++)
#pragma GCC unroll 8
        for (int v = 0; v < nv; v++) v_store(sums + f * pitch + v * LANES, acc[f][v]);
    *ahead = a;
}

/* Whole tiles of nv vectors of results, then one at a time. */
INLINE void axpy_block(const int nf, const int nv, const pysim_skinny *of, const T *few, const T *matrix, int64_t nk, int first, int64_t count,
                       T *sums, int64_t pitch, AHEAD *ahead) {
    int64_t i = 0;
    for (; i + nv * LANES <= count; i += nv * LANES)
        axpy_tile(nf, nv, 0, of, few, matrix + i, nk, first, v_lanes(0, LANES), sums + i, pitch, ahead);
    for (; i < count; i += LANES) axpy_tile(nf, 1, 1, of, few, matrix + i, nk, first, v_lanes(0, count - i), sums + i, pitch, ahead);
}

/* The lanes of `count` vectors, 1 to LANES and a power of 2, added up, sum v in lane v LANES / count: halves are added to halves. Two shuffles
 * take those of two vectors, 30 those of 16 vectors of 16 lanes. */
INLINE VEC sums_of_lanes(int count, VEC r[LANES]) {
#pragma GCC unroll 4
    for (int half = LANES / 2; half > 0; half /= 2) {
        const int pairs = count > 1 ? count / 2 : 1, other = count > 1 ? pairs : 0;
#pragma GCC unroll 8
        for (int i = 0; i < pairs; i++) r[i] = v_add(v_interleave_low(r[i], r[i + other]), v_interleave_high(r[i], r[i + other]));
        count = pairs;
    }
    return r[0];
}

/* The products of one vector of each row with one of each of the few, whose lanes behind the end of k are zero. */
#define DOT_STEP(load, at)                                                                              \
    {                                                                                                   \
        VEC x[WIDEST];                                                                                  \
        _Pragma("GCC unroll 8") for (int r = 0; r < nr; r++) x[r] = load;                               \
        _Pragma("GCC unroll 8") for (int f = 0; f < nf; f++) {                                          \
            const VEC y = v_load(few + f * PYSIM_FEW_STEP + (at));                                      \
            _Pragma("GCC unroll 8") for (int r = 0; r < nr; r++) acc[f][r] = v_fma(x[r], y, acc[f][r]); \
        }                                                                                               \
    }

/* Sums of nf of the few x nr rows of the matrix over nk columns. */
INLINE void dot_tile(const int nf, const int nr, const pysim_skinny *of, const T *few, const T *matrix, int64_t nk, int first, T *sums,
                     int64_t pitch, AHEAD *ahead) {
    VEC acc[MOST_FEW][WIDEST];
    AHEAD a = *ahead;
#pragma GCC unroll 8
    for (int f = 0; f < nf; f++)
#pragma GCC unroll 8
        for (int r = 0; r < nr; r++) acc[f][r] = v_zero();
    int64_t p = 0;
    for (; p + PYSIM_FEW_STEP <= nk; few += of->few * PYSIM_FEW_STEP)
#pragma GCC unroll 2
        for (int at = 0; at < PYSIM_FEW_STEP; at += LANES, p += LANES) {
            ask(nr, &a);
            DOT_STEP(v_load(matrix + r * of->ld + p), at)
        }
    for (; p < nk; p += LANES) {
        const MASK mask = v_lanes(0, nk - p);
        DOT_STEP(v_load_mask(matrix + r * of->ld + p, mask), p % PYSIM_FEW_STEP)
    }
    enum { ROOM = WIDEST * MOST_DOT };
    VEC lanes[ROOM];
    T sum[ROOM];
    int used = 1; /* of a group of lanes: what sums_of_lanes takes, the sums of three of the few with zeros behind them */
    while (used < nf * nr && used < LANES) used *= 2;
#pragma GCC unroll 32
    for (int i = 0; i < ROOM; i++) lanes[i] = i < nf * nr ? acc[i / nr][i % nr] : v_zero();
#pragma GCC unroll 8
    for (int at = 0; at < nf * nr; at += LANES) v_store(sum + at, sums_of_lanes(used, lanes + at));
#pragma GCC unroll 8
    for (int f = 0; f < nf; f++)
#pragma GCC unroll 8
        for (int r = 0; r < nr; r++) {
            T *to = sums + f * pitch + r;
            *to = sum[(f * nr + r) * (LANES / used)] + (first ? 0 : *to);
        }
    *ahead = a;
}

INLINE void dot_block(const int nf, const int nr, const pysim_skinny *of, const T *few, const T *matrix, int64_t nk, int first, int64_t count,
                      T *sums, int64_t pitch, AHEAD *ahead) {
    int64_t i = 0;
    for (; i + nr <= count; i += nr) dot_tile(nf, nr, of, few, matrix + i * of->ld, nk, first, sums + i, pitch, ahead);
    for (; i < count; i++) dot_tile(nf, 1, of, few, matrix + i * of->ld, nk, first, sums + i, pitch, ahead);
}

/* All passes over a block of results ask for the same lines: the first one for all that are not asked for yet. */
#define PASS(nf)                                                                                                                   \
    case nf:                                                                                                                       \
        if (!dot && nf <= MOST_FEW)                                                                                                \
            axpy_block(nf, (int)wide(nf), of, few + f, matrix, nk, p == 0, count, sums + f * pitch, pitch, &next);                 \
        DOT_PASS(nf, WIDEST)                                                                                                       \
        DOT_PASS(nf, WIDEST / 2)                                                                                                   \
        DOT_PASS(nf, WIDEST / 4)                                                                                                   \
        break;
#define DOT_PASS(nf, rows)                                                                                                         \
    if (dot && nf <= MOST_DOT && rows <= wide(nf) && rows >= wide(MOST_DOT) && rows == block)                                      \
        dot_block(nf, rows, of, few + f * PYSIM_FEW_STEP, matrix, nk, p == 0, count, sums + f * pitch, pitch, &next);

/* The few go in passes: axpy, of as equal numbers as can be; dot, of as many as a tile takes, and the rest. */
INLINE void skinny(const int dot, const pysim_skinny *of, int64_t begin, int64_t results, T *to, int64_t pitch) {
    const int64_t passes = pysim_ceil_div(of->few, MOST_FEW), most = dot ? MOST_DOT : pysim_ceil_div(of->few, passes);
    /* dot: no more rows than a pass takes at once, so that these and a block of the few stay in L1; axpy: what the next pass finds there */
    const int64_t block = dot ? wide(pysim_min(of->few, most)) : passes > 1 ? WIDEST * LANES : results;
    const int64_t result_step = dot ? of->ld : 1, p_step = dot ? 1 : of->ld;
    const T *rows = (const T *)of->matrix + begin * result_step;
    for (int64_t p = 0; p < of->k; p += of->block) {
        const int64_t nk = pysim_min(of->block, of->k - p), run = dot ? nk : results;
        const T *few = (const T *)of->vectors + p * of->few, *from = rows + p * p_step + (dot ? block : nk) * of->ld;
        AHEAD ahead = {from, from + run, run, of->ld}, next = ahead;
        for (int64_t i = 0; i < results; i += block, ahead = next) {
            const int64_t count = pysim_min(block, results - i);
            const T *matrix = rows + i * result_step + p * p_step;
            T *sums = to + i;
            for (int64_t f = 0, nf; f < of->few; f += nf) {
                next = ahead;
                nf = pysim_min(most, of->few - f);
                switch (nf) { PASS(1) PASS(2) PASS(3) PASS(4) PASS(5) PASS(6) PASS(7) PASS(8) }
            }
        }
    }
}

#define DEFINE_SKINNY(name, dot)                                                                          \
    void name(const pysim_skinny *of, int64_t begin, int64_t results, void *sums, int64_t pitch) {        \
        skinny(dot, of, begin, results, sums, pitch);                                                     \
    }
