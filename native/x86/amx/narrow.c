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
typedef uint16_t E, UNSIGNED;
#define NOT_FINITE(x) (((x) & 0x7F80u) == 0x7F80u)
#else
#define SUM int32_t
#define ADDS uint32_t
#define UNBOUNDED_LOW INT32_MIN
#define UNBOUNDED_HIGH INT32_MAX
#define DTYPE s8
typedef int8_t E;
typedef uint8_t UNSIGNED;
#define NOT_FINITE(x) ((void)(x), 0)
#define RESCALES
#endif
typedef UNSIGNED ROW __attribute__((vector_size(32 * sizeof(E)))), ROW_ANYWHERE __attribute__((vector_size(32 * sizeof(E)), aligned(1)));
enum { STEPS = 1, STORES = 1 }; /* a block has four products */
#include "beside.h"

enum {
    GROUP = 4 / sizeof(E),
    DEPTH = TILE_ROW_BYTES / sizeof(E),
    FILTER_TILE = TILE_ROWS * TILE_ROW_BYTES,
    WINDOW_PITCH = WIDE * 4,
    BLOCK_BYTES = WIDE * TILE_ROW_BYTES,
    TOGETHER = 4 /* 3.5 ns a line that comes from L3, one by one 4.3 (Emerald Rapids) */
};
typedef uint32_t LINE __attribute__((vector_size(64), aligned(1), may_alias));
typedef uint32_t GROUPS __attribute__((vector_size(32 * sizeof(E)), aligned(4), may_alias));
#ifndef HALVES
typedef uint16_t PAIRS __attribute__((vector_size(32)));
#endif

enum { WINDOWS_UNSIGNED, FILTERS_UNSIGNED, BOTH_SIGNED }; /* bytes */
#ifdef HALVES
#define PRODUCT(c, a, b) tile_bf16(c, a, b);
#else
#define PRODUCT(c, a, b)                    \
    if (signs == BOTH_SIGNED) {             \
        tile_ss(c, a, b);                   \
    } else if (signs == FILTERS_UNSIGNED) { \
        tile_us(c, a, b);                   \
    } else {                                \
        tile_su(c, a, b);                   \
    }
#endif

#define load_windows(t, from)                         \
    do {                                              \
        if (passes) tile_pass(t, from, WINDOW_PITCH); \
        else tile_load(t, from, WINDOW_PITCH);        \
    } while (0)

/* Tiles 0 to 3 are the sums of 16 or 32 filters (4, 5) and windows (6, 7); they begin at zero, or at `sums` with `adds`. A tile is loaded for the next
 * block as soon as its last product is issued. Filters are a panel, or rows `f_pitch` bytes apart;
 * `passes`: as in a store. */
INLINE void multiply(const int mi, const int ni, const int signs, const int passes, int64_t blocks, const char *f, const int64_t f_pitch,
                     const char *w, int adds, SUM *sums, const int64_t pitch, work *x) {
    const int64_t second = f_pitch ? TILE_ROWS * f_pitch : FILTER_TILE, step = f_pitch ? TILE_ROW_BYTES : BLOCK_BYTES;
    const int64_t row = f_pitch ? f_pitch : TILE_ROW_BYTES, bytes = pitch * (int64_t)sizeof(SUM);
    TILES;
    (void)signs;
    if (adds) {
        tile_load(0, sums, bytes);
        if (ni > 1) tile_load(1, sums + LANES, bytes);
        if (mi > 1) tile_load(2, sums + TILE_ROWS * pitch, bytes);
        if (mi > 1 && ni > 1) tile_load(3, sums + TILE_ROWS * pitch + LANES, bytes);
    } else {
        tile_zero(0);
        tile_zero(1);
        tile_zero(2);
        tile_zero(3);
    }
    if (blocks) {
        tile_load(4, f, row);
        load_windows(6, w);
        if (ni > 1) load_windows(7, w + TILE_ROW_BYTES);
        if (mi > 1) tile_load(5, f + second, row);
    }
    while (blocks-- > 0) {
        f += step, w += BLOCK_BYTES;
        PRODUCT(0, 4, 6)
        if (ni > 1) { PRODUCT(1, 4, 7) }
        if (blocks) tile_load(4, f, row);
        if (mi > 1) { PRODUCT(2, 5, 6) }
        if (blocks) load_windows(6, w);
        if (mi > 1 && ni > 1) { PRODUCT(3, 5, 7) }
        if (blocks && ni > 1) load_windows(7, w + TILE_ROW_BYTES);
        if (blocks && mi > 1) tile_load(5, f + second, row);
        work_step(x, 0);
    }
    tile_store(0, sums, bytes);
    if (ni > 1) tile_store(1, sums + LANES, bytes);
    if (mi > 1) tile_store(2, sums + TILE_ROWS * pitch, bytes);
    if (mi > 1 && ni > 1) tile_store(3, sums + TILE_ROWS * pitch + LANES, bytes);
}

/* The results of part of a tile, for sums to begin at. */
static void load_part(const SUM *out, int64_t out_pitch, int64_t nw, int64_t nf, SUM *sums) {
    for (int64_t f = 0; f < nf; f++) memcpy(sums + f * WIDE, out + f * out_pitch, (size_t)nw * sizeof *sums);
}

/* A tile of one of the four sizes. With `adds` its sums begin at the results, so the bits do not depend on how k is divided; `direct`: they are
 * the results. */
INLINE void sized(const int signs, int64_t k, const char *f, const char *w, SUM *out, int64_t out_pitch, int64_t nw, int64_t nf,
                  const pysim_store *store) {
    SUM own[WIDE * WIDE] __attribute__((aligned(64)));
    const int64_t blocks = k / DEPTH, f_pitch = store->filter_pitch;
    const finishing of = finishing_of(store);
    const int adds = store->old == out && !of.scales && store->beta >= 1 && store->beta <= 1;
    const int direct = nw % LANES == 0 && nf % TILE_ROWS == 0 && !of.scales && !of.bounded && !store->bias_filters &&
                       !store->bias_windows && !store->rescale.scales && (adds || !store->old);
    work x;
    begin_work(&x, store, out, out_pitch, nw, nf, blocks);
    SUM *sums = direct ? out : sums_beside(&x, own);
    const int64_t pitch = direct ? out_pitch : WIDE;
    if (adds && !direct) load_part(out, out_pitch, nw, nf, own);
    if (nf > TILE_ROWS && nw > LANES) multiply(2, 2, signs, store->passes, blocks, f, f_pitch, w, adds, sums, pitch, &x);
    else if (nf > TILE_ROWS) multiply(2, 1, signs, store->passes, blocks, f, f_pitch, w, adds, sums, pitch, &x);
    else if (nw > LANES) multiply(1, 2, signs, store->passes, blocks, f, f_pitch, w, adds, sums, pitch, &x);
    else multiply(1, 1, signs, store->passes, blocks, f, f_pitch, w, adds, sums, pitch, &x);
    if (!direct) end_beside(&x, sums, out, out_pitch, nw, nf, store, adds);
}

#define INTERLEAVED8(x, half)                                                                                                    \
    x, x + half, x + 1, x + 1 + half, x + 2, x + 2 + half, x + 3, x + 3 + half, x + 4, x + 4 + half, x + 5, x + 5 + half, x + 6, \
        x + 6 + half, x + 7, x + 7 + half
#define INTERLEAVED(x, half) INTERLEAVED8(x, half), INTERLEAVED8(x + 8, half)

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
    (void)window_pitch;
#ifndef HALVES
    if (store->both_signed) sized(BOTH_SIGNED, k, filters, windows, out, out_pitch, nw, nf, store);
    else if (store->swapped) sized(FILTERS_UNSIGNED, k, filters, windows, out, out_pitch, nw, nf, store);
    else
#endif
        sized(WINDOWS_UNSIGNED, k, filters, windows, out, out_pitch, nw, nf, store);
}

/* Zeros behind k groups of `count` windows, up to a whole block. */
static void fill_block(uint32_t *to, int64_t k, int64_t count) {
    for (int64_t p = (k + GROUP - 1) / GROUP; p % TILE_ROWS; p++) memset(to + p * WIDE, 0, (size_t)count * sizeof *to);
}

/* 32 elements of GROUP rows as groups. */
INLINE void store_groups(const ROW row[GROUP], uint32_t *to) {
    GROUPS *at = (GROUPS *)(void *)to;
#ifdef HALVES
    at[0] = (GROUPS)__builtin_shuffle(row[0], row[1], (ROW){INTERLEAVED(0, 32)});
    at[1] = (GROUPS)__builtin_shuffle(row[0], row[1], (ROW){INTERLEAVED(16, 32)});
#else
    for (int i = 0; i < 2; i++) {
        const ROW first = i ? (ROW){INTERLEAVED(16, 32)} : (ROW){INTERLEAVED(0, 32)};
        const PAIRS even = (PAIRS)__builtin_shuffle(row[0], row[1], first), odd = (PAIRS)__builtin_shuffle(row[2], row[3], first);
        at[2 * i] = (GROUPS)__builtin_shuffle(even, odd, (PAIRS){INTERLEAVED8(0, 16)});
        at[2 * i + 1] = (GROUPS)__builtin_shuffle(even, odd, (PAIRS){INTERLEAVED8(8, 16)});
    }
#endif
}

#ifdef __AVX512VBMI__
#include "pack_bytes.h"
#else
static int pack_bytes(const pysim_segment *s, uint32_t *to) { return (void)s, (void)to, 0; }
#endif

/* 32 neighbouring windows of whole groups of rows of k, all inside: each line once. */
static void pack_whole(const E *row, int64_t step, int64_t groups, int flip, uint32_t *to) {
    const ROW flips = (ROW){0} + (UNSIGNED)flip;
    for (; groups > 0; groups--, row += GROUP * step, to += WIDE) {
        ROW rows[GROUP];
        for (int g = 0; g < GROUP; g++) rows[g] = *(const ROW_ANYWHERE *)(const void *)(row + g * step) ^ flips;
        store_groups(rows, to);
    }
}

void PACK(, segment)(const pysim_segment *s, void *dst);
void PACK(, segment)(const pysim_segment *s, void *dst) {
    pysim_segment rest = *s;
    uint32_t *to = dst;
    if (pack_bytes(s, dst)) rest.channels = 0;
    else if (s->row && s->taps == 1 && s->stride == 1 && s->count == WIDE && s->pitch == WIDE && s->first >= 0 &&
             s->first + WIDE <= s->width) {
        const int64_t groups = s->channels / GROUP;
        pack_whole((const E *)s->row + s->first, s->row_channel, groups, s->flip, to);
        rest.channels -= groups * GROUP, rest.row = (const E *)s->row + groups * GROUP * s->row_channel, to += groups * WIDE;
    }
    if (rest.channels) GROUPS_OF(segment)(&rest, to);
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

/* Blocks of rows of k; TOGETHER neighbouring lines of a row come together. */
static void copy_blocks(const E *src, int64_t ld, int64_t rows, int64_t blocks, char *to) {
    for (int64_t b = 0; b < blocks; b += TOGETHER)
        for (int64_t f = 0; f < rows; f++)
            for (int64_t i = b; i < pysim_min(b + TOGETHER, blocks); i++)
                *(LINE *)(void *)(to + i * BLOCK_BYTES + f * TILE_ROW_BYTES) = *(const LINE *)(const void *)(src + f * ld + i * DEPTH);
    for (int64_t b = 0; rows < WIDE && b < blocks; b++)
        memset(to + b * BLOCK_BYTES + rows * TILE_ROW_BYTES, 0, (size_t)(WIDE - rows) * TILE_ROW_BYTES);
}

void PACK(_filters, transposed)(const void *src, int64_t ld, int64_t rows, int64_t k, int64_t pitch, void *dst, int *not_finite);
void PACK(_filters, transposed)(const void *src, int64_t ld, int64_t rows, int64_t k, int64_t pitch, void *dst, int *not_finite) {
    const int64_t blocks = k / DEPTH, rest = k % DEPTH;
    E last[WIDE][DEPTH];
    int found = 0;
    (void)pitch;
    copy_blocks(src, ld, rows, blocks, dst);
    if (rest) {
        memset(last, 0, sizeof last);
        for (int64_t f = 0; f < rows; f++) memcpy(last[f], (const E *)src + f * ld + blocks * DEPTH, (size_t)rest * sizeof(E));
        copy_blocks(last[0], DEPTH, WIDE, 1, (char *)dst + blocks * BLOCK_BYTES);
    }
    if (!not_finite) return;
    for (int64_t f = 0; f < rows; f++)
        for (int64_t i = 0; i < k; i++) found |= NOT_FINITE(((const E *)src)[f * ld + i]);
    if (found) *not_finite = 1;
}
