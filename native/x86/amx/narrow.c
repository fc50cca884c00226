/* SPDX-License-Identifier: Apache-2.0
 * Form `tiles` of kernels.inc for bf16 (with HALVES) and bytes: a tile product for each 64 bytes of k.
 *
 *   windows  [k / GROUP][window][GROUP]            as form groups has them, and packed by its routines
 *   filters  [block][filter][DEPTH of k]           a tile is 16 rows */
#include "tile_ops.h"
#include "kernel.h"
#ifdef HALVES
#define SUM float
#define ADDS float
#define UNBOUNDED_LOW -3.5e38
#define UNBOUNDED_HIGH 3.5e38
#define DTYPE bf16
typedef uint16_t E;
#define NOT_FINITE(x) (((x) & 0x7F80u) == 0x7F80u)
#else
#define SUM int32_t
#define ADDS uint32_t
#define UNBOUNDED_LOW INT32_MIN
#define UNBOUNDED_HIGH INT32_MAX
#define DTYPE s8
typedef int8_t E;
#define NOT_FINITE(x) ((void)(x), 0)
#endif
enum { STEPS = 1, STORES = 1 }; /* a block has four products */
#include "finish.h"

enum {
    GROUP = 4 / sizeof(E),
    DEPTH = TILE_ROW_BYTES / sizeof(E),
    FILTER_TILE = TILE_ROWS * TILE_ROW_BYTES,
    WINDOW_PITCH = WIDE * 4,
    BLOCK_BYTES = WIDE * TILE_ROW_BYTES
};

#ifdef HALVES
#define PRODUCT(c, a, b) tile_bf16(c, a, b);
#else
#define PRODUCT(c, a, b)  \
    if (swapped) {        \
        tile_us(c, a, b); \
    } else {              \
        tile_su(c, a, b); \
    }
#endif

/* Tiles 0 to 3 are the sums of 16 or 32 filters (4, 5) and windows (6, 7). `swapped`: filters are the unsigned operand. */
INLINE void multiply(const int mi, const int ni, const int swapped, int64_t blocks, const char *f, const char *w, SUM *sums, beside *x) {
    TILES;
    (void)swapped;
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
    for (int64_t b = 0; b < blocks; b++, f += BLOCK_BYTES, w += BLOCK_BYTES) {
        tile_load(4, f, TILE_ROW_BYTES);
        tile_load(6, w, WINDOW_PITCH);
        PRODUCT(0, 4, 6)
        if (ni > 1) {
            tile_load(7, w + TILE_ROW_BYTES, WINDOW_PITCH);
            PRODUCT(1, 4, 7)
        }
        if (mi > 1) {
            tile_load(5, f + FILTER_TILE, TILE_ROW_BYTES);
            PRODUCT(2, 5, 6)
            if (ni > 1) { PRODUCT(3, 5, 7) }
        }
        beside_step(x, 0);
    }
    tile_store(0, sums, WINDOW_PITCH);
    if (ni > 1) tile_store(1, sums + LANES, WINDOW_PITCH);
    if (mi > 1) tile_store(2, sums + TILE_ROWS * WIDE, WINDOW_PITCH);
    if (mi > 1 && ni > 1) tile_store(3, sums + TILE_ROWS * WIDE + LANES, WINDOW_PITCH);
}

INLINE void sized(const int swapped, int64_t blocks, const char *f, const char *w, int64_t nw, int64_t nf, SUM *sums, beside *x) {
    if (nf > TILE_ROWS && nw > LANES) multiply(2, 2, swapped, blocks, f, w, sums, x);
    else if (nf > TILE_ROWS) multiply(2, 1, swapped, blocks, f, w, sums, x);
    else if (nw > LANES) multiply(1, 2, swapped, blocks, f, w, sums, x);
    else multiply(1, 1, swapped, blocks, f, w, sums, x);
}

#define NAME5(a, dtype, b, target) a##dtype##b##__##target
#define NAME4(a, dtype, b, target) NAME5(a, dtype, b, target)
#define NAME(b) NAME4(, DTYPE, b, TARGET)
#define PACK3(of, panels, target, what) pack_##of##panels##__##target##_##what
#define PACK2(of, panels, target, what) PACK3(of, panels, target, what)
#define PACK(panels, what) PACK2(DTYPE, panels, TARGET, what)
#define GROUPS_OF(what) PACK2(DTYPE, , BASE, what)

void GROUPS_OF(segment)(const pysim_segment *s, void *dst);
void GROUPS_OF(transposed)(const void *src, int64_t ld, int64_t rows, int64_t k, int64_t pitch, void *dst, int *not_finite);

void NAME(_tiles_32x32)(int64_t k, const void *filters, const void *windows, int64_t window_pitch, void *out, int64_t out_pitch, int64_t nw,
                        int64_t nf, const pysim_store *store);
void NAME(_tiles_32x32)(int64_t k, const void *filters, const void *windows, int64_t window_pitch, void *out, int64_t out_pitch, int64_t nw,
                        int64_t nf, const pysim_store *store) {
    SUM own[WIDE * WIDE] __attribute__((aligned(64)));
    const int64_t blocks = k / DEPTH;
    beside x = beside_of(store, out, out_pitch, nw, nf, blocks);
    SUM *sums = sums_beside(&x, own);
    (void)window_pitch;
#ifndef HALVES
    if (store->swapped) sized(1, blocks, filters, windows, nw, nf, sums, &x);
    else
#endif
        sized(0, blocks, filters, windows, nw, nf, sums, &x);
    end_beside(&x, sums, out, out_pitch, nw, nf, store);
}

/* Zeros behind k groups of `count` windows, up to a whole block. */
static void fill_block(uint32_t *to, int64_t k, int64_t count) {
    for (int64_t p = (k + GROUP - 1) / GROUP; p % TILE_ROWS; p++) memset(to + p * WIDE, 0, (size_t)count * sizeof *to);
}

void PACK(, segment)(const pysim_segment *s, void *dst);
void PACK(, segment)(const pysim_segment *s, void *dst) {
    GROUPS_OF(segment)(s, dst);
    fill_block(dst, s->channels * s->taps, s->count);
}

void PACK(, transposed)(const void *src, int64_t ld, int64_t rows, int64_t k, int64_t pitch, void *dst, int *not_finite);
void PACK(, transposed)(const void *src, int64_t ld, int64_t rows, int64_t k, int64_t pitch, void *dst, int *not_finite) {
    GROUPS_OF(transposed)(src, ld, rows, k, pitch, dst, not_finite);
    fill_block(dst, k, pitch);
}

void PACK(_filters, segment)(const pysim_segment *s, void *dst);
void PACK(_filters, segment)(const pysim_segment *s, void *dst) {
    uint32_t words[TILE_ROWS][WIDE], *to = dst;
    for (int64_t c = 0; c < s->channels; c += DEPTH, to += BLOCK_BYTES / 4) {
        pysim_segment part = *s;
        part.channels = pysim_min(DEPTH, s->channels - c);
        part.row = (const E *)s->row + c * s->row_channel;
        PACK(, segment)(&part, words);
        for (int f = 0; f < WIDE; f++)
            for (int p = 0; p < TILE_ROWS; p++) to[f * TILE_ROWS + p] = words[p][f];
    }
}

void PACK(_filters, transposed)(const void *src, int64_t ld, int64_t rows, int64_t k, int64_t pitch, void *dst, int *not_finite);
void PACK(_filters, transposed)(const void *src, int64_t ld, int64_t rows, int64_t k, int64_t pitch, void *dst, int *not_finite) {
    char *to = dst;
    int found = 0;
    (void)pitch;
    for (int64_t p = 0; p < k; p += DEPTH, to += BLOCK_BYTES) {
        const size_t bytes = (size_t)pysim_min(DEPTH, k - p) * sizeof(E);
        const E *from = (const E *)src + p;
        for (int64_t f = 0; f < rows; f++) {
            memcpy(to + f * TILE_ROW_BYTES, from + f * ld, bytes);
            memset(to + f * TILE_ROW_BYTES + bytes, 0, TILE_ROW_BYTES - bytes);
            for (size_t i = 0; not_finite && i < bytes / sizeof(E); i++) found |= NOT_FINITE(from[f * ld + (int64_t)i]);
        }
        memset(to + rows * TILE_ROW_BYTES, 0, (size_t)(WIDE - rows) * TILE_ROW_BYTES);
    }
    if (found) *not_finite = 1;
}
