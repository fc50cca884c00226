/* SPDX-License-Identifier: Apache-2.0
 * Form `tiles` of kernels.inc in FP32: six products of operands split in three bf16 (split.h), of the nine those that are not below 2^-24 of the
 * whole, in FP32 accumulators. Compiled with AMX's instructions and, as target amx_emulated, without (tile_ops.h). */
#include "tile_ops.h"
#include "kernel.h"
#define SUM float
#define ADDS float
#define UNBOUNDED_LOW -3.5e38
#define UNBOUNDED_HIGH 3.5e38
enum { STEPS = 6, STORES = 2 }; /* of a block of k; in how many results are stored */
#include "beside.h"
#include "split.h"
#include "pack.h"

enum { FILTER_TILE = TILE_ROWS * TILE_ROW_BYTES, WINDOW_PITCH = WIDE * 4, PART_BYTES = PART_WORDS * 4, BLOCK_BYTES = BLOCK_WORDS * 4 };

#define ARGUMENTS                                                                                                                    \
    int64_t k, const void *filters, const void *windows, int64_t window_pitch, void *out, int64_t out_pitch, int64_t nw, int64_t nf, \
        const pysim_store *store

/* Tiles 0 to 3 are the sums of 16 or 32 filters (4, 5) and windows (6, 7). Each step loads one part of one operand, so that a block takes 14
 * pairs of loads, and a tile is loaded as soon as its last use is issued. Small products come first. */
#define MULTIPLY_F(next)                                              \
    tile_bf16(0, 4, 6);                                               \
    if (ni > 1) tile_bf16(1, 4, 7);                                   \
    if (next) tile_load(4, next, TILE_ROW_BYTES);                     \
    if (mi > 1) {                                                     \
        tile_bf16(2, 5, 6);                                           \
        if (ni > 1) tile_bf16(3, 5, 7);                               \
        if (next) tile_load(5, (next) + FILTER_TILE, TILE_ROW_BYTES); \
    }
#define MULTIPLY_W(next)                                               \
    tile_bf16(0, 4, 6);                                                \
    if (mi > 1) tile_bf16(2, 5, 6);                                    \
    if (next) tile_load(6, next, WINDOW_PITCH);                        \
    if (ni > 1) {                                                      \
        tile_bf16(1, 4, 7);                                            \
        if (mi > 1) tile_bf16(3, 5, 7);                                \
        if (next) tile_load(7, (next) + TILE_ROW_BYTES, WINDOW_PITCH); \
    }

INLINE void multiply(const int mi, const int ni, int64_t blocks, const char *f, const char *w, float *sums, work *x) {
    TILES;
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
    for (int64_t b = 0; b < blocks; b++, f += BLOCK_BYTES, w += BLOCK_BYTES) {
        tile_load(4, f + 2 * PART_BYTES, TILE_ROW_BYTES);
        tile_load(6, w, WINDOW_PITCH);
        if (ni > 1) tile_load(7, w + TILE_ROW_BYTES, WINDOW_PITCH);
        if (mi > 1) tile_load(5, f + 2 * PART_BYTES + FILTER_TILE, TILE_ROW_BYTES);
        MULTIPLY_F(f + PART_BYTES) /* low x high; then middle */
        work_step(x, 0);
        MULTIPLY_W(w + PART_BYTES) /* middle x high */
        work_step(x, 1);
        MULTIPLY_F(f) /* middle x middle */
        work_step(x, 2);
        MULTIPLY_W(w + 2 * PART_BYTES) /* high x middle */
        work_step(x, 3);
        MULTIPLY_W(w) /* high x low */
        work_step(x, 4);
        MULTIPLY_W((const char *)0) /* high x high */
        work_step(x, 5);
    }
    tile_store(0, sums, WINDOW_PITCH);
    if (ni > 1) tile_store(1, sums + LANES, WINDOW_PITCH);
    if (mi > 1) tile_store(2, sums + TILE_ROWS * WIDE, WINDOW_PITCH);
    if (mi > 1 && ni > 1) tile_store(3, sums + TILE_ROWS * WIDE + LANES, WINDOW_PITCH);
}

/* Sums of a filter and 16 windows in FP32 multiply-adds. */
static FLOATS sums_of(int64_t blocks, const char *filters, const char *windows, int64_t filter, int64_t vector) {
    FLOATS sum = {0};
    for (int64_t b = 0; b < blocks; b++) {
        const uint32_t *f = (const uint32_t *)(const void *)(filters + b * BLOCK_BYTES + filter * TILE_ROW_BYTES);
        const uint32_t *w = (const uint32_t *)(const void *)(windows + b * BLOCK_BYTES) + vector * LANES;
        for (int odd = 0; odd < 2; odd++)
            for (int p = 0; p < PAIRS; p++) {
                const BITS *x = (const BITS *)(const void *)(w + p * WIDE);
                const FLOATS value = value_of(x[0], x[PART_BYTES / 64], x[2 * PART_BYTES / 64], odd);
                const float weight = one_value(f + p, PART_BYTES / 4, odd);
                for (int i = 0; i < LANES; i++) sum[i] = __builtin_fmaf(weight, value[i], sum[i]);
            }
    }
    return sum;
}

static void mend(int64_t blocks, const char *filters, const char *windows, int64_t nf, int64_t vectors, float *sums) {
    for (int64_t f = 0; f < nf; f++)
        for (int64_t v = 0; v < vectors; v++) {
            FLOATS *at = (FLOATS *)(void *)(sums + f * WIDE + v * LANES);
            const WORDS bad = (WORDS)((BITS)*at & EXPONENT) >= (int32_t)EXPONENT;
            if (any_from(-bad, 1, LANES)) *at = (FLOATS)(((WORDS)*at & ~bad) | ((WORDS)sums_of(blocks, filters, windows, f, v) & bad));
        }
}

/* Whether a sum among nf x nw is infinite or NaN. */
static int any_not_finite(const float *sums, int64_t nw, int64_t nf) {
    WORDS first = {0}, second = {0};
    for (int64_t f = 0; f < nf; f++, sums += WIDE) {
        first = w_larger(first, (WORDS)(*(const BITS *)(const void *)sums & EXPONENT));
        if (nw > LANES) second = w_larger(second, (WORDS)(*(const BITS *)(const void *)(sums + LANES) & EXPONENT));
    }
    return any_from(first, (int32_t)EXPONENT, pysim_min(nw, LANES)) || (nw > LANES && any_from(second, (int32_t)EXPONENT, nw - LANES));
}

static void f32_tile(ARGUMENTS) {
    float own[WIDE * WIDE] __attribute__((aligned(64)));
    const int64_t blocks = k / BLOCK;
    work x;
    begin_work(&x, store, out, out_pitch, nw, nf, blocks);
    float *sums = sums_beside(&x, own);
    (void)window_pitch;
    if (nf > TILE_ROWS && nw > LANES) multiply(2, 2, blocks, filters, windows, sums, &x);
    else if (nf > TILE_ROWS) multiply(2, 1, blocks, filters, windows, sums, &x);
    else if (nw > LANES) multiply(1, 2, blocks, filters, windows, sums, &x);
    else multiply(1, 1, blocks, filters, windows, sums, &x);
    if (any_not_finite(sums, nw, nf)) mend(blocks, filters, windows, nf, (nw + LANES - 1) / LANES, sums);
    end_beside(&x, sums, out, out_pitch, nw, nf, store, 0);
}

#define NAME3(name, target) name##__##target
#define NAME2(name, target) NAME3(name, target)
#define NAME(name) NAME2(name, TARGET)

void NAME(f32_tiles_32x32)(ARGUMENTS);
void NAME(f32_tiles_32x32)(ARGUMENTS) { f32_tile(k, filters, windows, window_pitch, out, out_pitch, nw, nf, store); }

float NAME(weight_f32)(const void *block, int64_t filter, int64_t k);
float NAME(weight_f32)(const void *block, int64_t filter, int64_t k) {
    return one_value((const uint32_t *)block + filter * PAIRS + k % PAIRS, PART_WORDS, k >= PAIRS);
}

#ifndef EMULATED
/* Updates of 16 x 16 results by one of k, of whole tiles of 32 x 32 with panels in L1: what the unit's rate counts. Of numbers from 1 to 2 of either
 * sign: products of zeros take less power, which limits the unit. */
int64_t NAME(issue_f32)(int64_t instructions);
int64_t NAME(issue_f32)(int64_t instructions) {
    enum { BLOCKS = 2, UPDATES = 4 * BLOCKS * BLOCK };
    uint16_t panel[BLOCKS * BLOCK_BYTES / 2] __attribute__((aligned(64)));
    float sums[WIDE * WIDE] __attribute__((aligned(64)));
    const int64_t calls = instructions / UPDATES + 1;
    work nothing = {0};
    uint32_t bits = 1;
    for (int64_t i = 0; i < BLOCKS * BLOCK_BYTES / 2; i++) {
        bits = bits * 1664525 + 1013904223;
        panel[i] = (uint16_t)(0x3f80 | (bits >> 16 & 0x807f));
    }
    tiles_configure();
    for (int64_t i = 0; i < calls; i++) multiply(2, 2, BLOCKS, (const char *)panel, (const char *)panel, sums, &nothing);
    tiles_release();
    return calls * UPDATES;
}

void NAME(enter_tiles)(void);
void NAME(enter_tiles)(void) { tiles_configure(); }
void NAME(leave_tiles)(void);
void NAME(leave_tiles)(void) { tiles_release(); }
#endif
