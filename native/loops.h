/* SPDX-License-Identifier: Apache-2.0
 * Loops over rows of results: the epilogues that kernels do not have in their stores, and operators between convolutions. They are plain C
 * that the compiler turns into vectors, once for each line of loops.inc.
 *
 * A kernel's store adds a bias and keeps bounds (identity, ReLU, clamp), those of the nest add a residual, too. Whatever else an epilogue
 * asks for is made of its results by `finish`, on a tile or a few rows that the kernel has just written and that lie in L1: one place for
 * all kernels. */
#ifndef PYSIM_LOOPS_H
#define PYSIM_LOOPS_H
#include "kernel.h"

enum {
#define PYSIM_EPILOGUE(number, name, operations, function) PYSIM_EPILOGUE_##name = number,
#include "epilogues.inc"
#undef PYSIM_EPILOGUE
    PYSIM_EPILOGUES
};

typedef struct pysim_loops pysim_loops;

/* act(y + residual) of results that lie anywhere in `result`. */
typedef struct {
    const pysim_loops *loops; /* NULL: nothing is left to do */
    const char *result, *residual; /* residual lies as the result does, or is NULL */
    int32_t activation;
    double low, high;
} pysim_finish;

struct pysim_loops {
    /* Rows of `columns` results, pitch elements apart. */
    void (*finish)(const pysim_finish *f, void *out, int64_t pitch, int64_t rows, int64_t columns);
    /* y[k][i] = act(scale[k % period] x[k][i] + shift[k % period] + residual[k][i]); scale and shift may be NULL. y may be x. */
    void (*map)(const pysim_map *m, const pysim_finish *f, const void *x, const void *scale, const void *shift, void *y);
    void (*pool)(const pysim_pool *p, const void *x, void *y);
    void (*pair)(const pysim_pair *p, const pysim_finish *f, const void *a, const void *b, void *y);
    void (*rows)(const pysim_rows *r, const void *x, const void *scale, const void *shift, void *y);
    void (*take)(const pysim_take *t, const void *x, const int64_t *at, const void *shares, void *y);
    /* y[i][c] = x[c][i] of rows that lie so many elements apart. */
    void (*turn)(const void *x, int64_t column_from, int64_t rows, int64_t columns, void *y, int64_t row_to);
};

/* Those of the best target that runs here, for results of a dtype (f32 or f64), or NULL. */
const pysim_loops *pysim_loops_for(int32_t dtype);

/* Asks for the lines of rows of `bytes` bytes, `pitch` bytes apart, that a tile will read or write when its kernel has run: the kernel hides
 * the time they take. In rows a plane apart no prefetcher of the hardware finds them. */
static inline void pysim_fetch_rows(const char *from, int64_t pitch, int64_t rows, int64_t bytes, const int writes) {
    for (int64_t r = 0; r < rows; r++, from += pitch)
        for (int64_t i = 0; i < bytes + 63; i += 64) {
            const char *line = from + pysim_min(i, bytes - 1);
            if (writes)
                __builtin_prefetch(line, 1);
            else
                __builtin_prefetch(line, 0);
        }
}

static inline void pysim_finish_rows(const pysim_finish *f, void *out, int64_t pitch, int64_t rows, int64_t columns) {
    if (f->loops) f->loops->finish(f, out, pitch, rows, columns);
}
#endif
