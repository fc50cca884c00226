/* SPDX-License-Identifier: Apache-2.0
 * Loops over rows of results: epilogues that the kernels' stores do not have, and operators between convolutions. Plain C that the compiler
 * vectorises, compiled once per line of loops.inc.
 *
 * A kernel's store adds a bias and applies bounds (identity, ReLU, clamp); stores of the nest also add a residual. `finish` applies any other
 * epilogue to a tile or a few rows that the kernel has just stored and that are still in L1: one implementation for all kernels. */
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

/* Results of the largest tile whose sums are rescaled. */
enum { PYSIM_TILE_RESULTS = 1024 };
/* Results of the largest tile, or rows of a depthwise layer that are made at once, whose numbers become bytes: 16 KiB of L1. */
enum { PYSIM_NUMBERS = 4096 };

/* act(y + residual) for any part of `result`. */
typedef struct pysim_finish {
    const pysim_loops *loops;      /* NULL: nothing to do */
    const char *result, *residual; /* residual has the result's layout, or is NULL */
    int32_t activation;
    double low, high;
} pysim_finish;

/* alpha sums + bias[q & 1] + factor added[q] of quarter q, within bounds; all are of as many elements as the sums. added may be NULL. */
typedef struct {
    const void *bias[2], *added[4];
    double alpha, factor;
    pysim_bounds bounds;
} pysim_join;

enum { PYSIM_PRODUCTS = 7 };

/* Rows of inputs of weights of four bits as bytes, [row][k] in an order of its own, with a scale and the sum for each block, [row][block]. */
typedef struct {
    int8_t *bytes;
    float *scales;
    int32_t *sums;
} pysim_few_bytes;

/* Scores of queries and keys of bytes: sums of (q - q_zero) (k - k_zero), exact, times `scale`. Bytes ^ flip are unsigned of q and signed of k, and zeros are
 * those of such bytes. `run`: a micro-kernel of form groups that takes `windows` keys and the rows of a tile at once; NULL: plain C. */
typedef struct {
    pysim_micro_kernel run;
    int64_t windows;
    float scale;
    int32_t q_zero, k_zero;
    uint8_t q_flip, k_flip;
} pysim_byte_scores;

struct pysim_loops {
    /* Of a tile that begins at filter f0 and window w0; `sums` rows are sums_pitch apart, those of `out` pitch. */
    void (*rescale)(const pysim_rescale *r, const int32_t *sums, int64_t sums_pitch, int64_t f0, int64_t w0, void *out, int64_t pitch,
                    int64_t filters, int64_t windows);
    /* Applies the epilogue to rows of `columns` results, pitch elements apart. */
    void (*finish)(const pysim_finish *f, void *out, int64_t pitch, int64_t rows, int64_t columns);
    /* Rows of numbers become bytes, after `f` without its residual: of f32. Factors and shifts are those of the first number. */
    void (*rounded)(const pysim_finish *f, const pysim_rounding *r, const float *numbers, int64_t pitch, int64_t rows, int64_t columns,
                    uint8_t *out, int64_t out_pitch);
    void (*shifted)(const pysim_rounding *r, float *numbers, int64_t pitch, int64_t rows,
                    int64_t columns); /* number + shift, where it lies */
    /* y[k][i] = act(scale[k % period] x[k][i] + shift[k % period] + residual[k][i]); scale and shift may be NULL. y may be x. */
    void (*map)(const pysim_map *m, const pysim_finish *f, const void *x, const void *scale, const void *shift, void *y);
    void (*pool)(const pysim_pool *p, const void *x, void *y);
    void (*pair)(const pysim_pair *p, const pysim_finish *f, const void *a, const void *b, void *y);
    void (*rows)(const pysim_rows *r, const void *x, const void *scale, const void *shift, void *y);
    void (*take)(const pysim_take *t, const void *x, const int64_t *at, const void *shares, void *y);
    /* Transpose y[i][c] = x[c][i]; rows of x are column_from elements apart, rows of y row_to. */
    void (*transpose)(const void *x, int64_t column_from, int64_t rows, int64_t columns, void *y, int64_t row_to);
    /* `rows` rows of one head, at most PYSIM_ATTENTION_ROWS; mask may be NULL. The workspace has pysim_attention_elements elements. `bytes`: of f32, what q and
     * k are if these are bytes; else NULL. */
    void (*attention)(const pysim_attention *a, int64_t rows, const void *q, const void *k, const void *v, const void *mask, void *y,
                      void *workspace, const pysim_byte_scores *bytes);
    void (*fold)(const pysim_fold *f, const void *x, void *y);
    void (*best)(const pysim_best *b, const void *x, void *y, int64_t *places);
    void (*sample)(const pysim_sample *s, const void *x, const void *grid, void *y);
    void (*recurrent)(const pysim_recurrent *r, const void *sums, const void *weights, void *y, void *workspace);
    void (*few_bits)(const pysim_few_bits *b, int64_t begin, int64_t end, const void *x, const void *weights,
                     void *y); /* of panels; of f32 */
    void (*round_blocks)(const pysim_few_bits *b, const void *x, const pysim_few_bytes *to);
    /* The same of bytes; 0 where this CPU lacks the instructions, else 1. */
    int (*few_bytes)(const pysim_few_bits *b, int64_t begin, int64_t end, const pysim_few_bytes *x, const void *weights, void *y);
    void (*byte_softmax)(const pysim_byte_softmax *s, int64_t begin, int64_t end, const uint8_t *x, uint8_t *y); /* of rows; of f32 */
    /* Of quarters x of a matrix (11, 12, 21, 22; 21 and 22 may be NULL: zeros) the PYSIM_PRODUCTS operands of algorithms/strassen, `pitch` elements apart;
     * and from the products, as far apart, those of the results; 0 if one of these is not finite before its bounds. */
    void (*sums_of_quarters)(const void *const x[4], int64_t count, void *y, int64_t pitch);
    int (*results_of_products)(const pysim_join *j, const void *products, int64_t pitch, int64_t count, void *const y[4]);
    void (*widen)(const void *x, int64_t count, void *y),
        (*narrow)(const void *x, int64_t count, void *y); /* of f32: halves; of bf16: bf16 */
};

/* Rows of queries that share packed keys, keys of a block, rows of a tile, and the elements of the longest vector. */
enum { PYSIM_ATTENTION_ROWS = 384, PYSIM_ATTENTION_KEYS = 256, PYSIM_ATTENTION_GROUP = 6, PYSIM_ATTENTION_LANES = 16 };

/* Packed keys and values, scores of a tile, scaled queries, sums, and each row's maximum and total. */
static inline int64_t pysim_attention_elements(int64_t size, int64_t width) {
    const int64_t padded = (width + PYSIM_ATTENTION_LANES - 1) / PYSIM_ATTENTION_LANES * PYSIM_ATTENTION_LANES;
    return (PYSIM_ATTENTION_KEYS + PYSIM_ATTENTION_ROWS) * (size + padded) + PYSIM_ATTENTION_GROUP * PYSIM_ATTENTION_KEYS +
           2 * PYSIM_ATTENTION_ROWS;
}

/* Panels that tiles of weights of four bits have at most: threads divide whole ones, so that no result depends on their number. */
enum { PYSIM_FEW_BITS_PANELS = 2 };

/* Of a block of weights of four bits. */
static inline int64_t pysim_few_bits_block_bytes(const pysim_few_bits *b) {
    return PYSIM_PANEL * (int64_t)((b->has_zeros ? 2 : 1) * sizeof(float) + (size_t)(b->block / PYSIM_NIBBLES) * sizeof(uint32_t));
}

/* The loops of the best target that runs on this CPU, for results of a dtype (f32, f64 or, if the CPU has it, bf16); NULL for other dtypes. Those of bf16 have
 * finish, map, pool, pair, attention, widen and narrow: values are bf16, scales and shifts floats, and so are all operands of attention. */
const pysim_loops *pysim_loops_for(int32_t dtype);

/* Prefetches rows of `bytes` bytes, `pitch` bytes apart, that a tile reads or writes after its kernel, so that the kernel hides their
 * latency. No hardware prefetcher follows rows that are a plane apart. */
static inline void pysim_fetch_rows(const char *from, int64_t pitch, int64_t rows, int64_t bytes, const int writes) {
    for (int64_t r = 0; r < rows; r++, from += pitch)
        for (int64_t i = 0; i < bytes + 63; i += 64) {
            const char *line = from + pysim_min(i, bytes - 1);
            if (writes) __builtin_prefetch(line, 1);
            else __builtin_prefetch(line, 0);
        }
}

static inline void pysim_finish_rows(const pysim_finish *f, void *out, int64_t pitch, int64_t rows, int64_t columns) {
    if (f->loops) f->loops->finish(f, out, pitch, rows, columns);
}
#endif
