/* SPDX-License-Identifier: Apache-2.0
 * Transforms of F(4x4, 3x3) of bytes (algorithms/integers/winograd.h) in 256 bits: a lane of 32 bits is a tile, and holds 16 bits of each of two
 * channels. */
#include "algorithms/integers/winograd.h"

enum { EDGE = 6, SIDE = 4, VECTOR_QUADS = 2, PAIR_BYTES = PYSIM_QUAD_LANES * 4 };

INLINE __m256i h_add(__m256i a, __m256i b) { return _mm256_add_epi16(a, b); }
INLINE __m256i h_sub(__m256i a, __m256i b) { return _mm256_sub_epi16(a, b); }

/* B^T x: rows (4 0 -5 0 1 0), (0 -4 -4 1 1 0), (0 4 -4 -1 1 0), (0 -2 -1 2 1 0), (0 2 -1 -2 1 0), (0 4 0 -5 0 1). */
INLINE void patch_transform(const __m256i x[EDGE], __m256i y[EDGE]) {
    const __m256i even = h_sub(x[4], _mm256_slli_epi16(x[2], 2)), odd = h_sub(x[3], _mm256_slli_epi16(x[1], 2));
    const __m256i near = h_sub(x[4], x[2]), twice = _mm256_slli_epi16(h_sub(x[3], x[1]), 1);
    y[0] = h_add(_mm256_slli_epi16(h_sub(x[0], x[2]), 2), near);
    y[1] = h_add(even, odd);
    y[2] = h_sub(even, odd);
    y[3] = h_add(near, twice);
    y[4] = h_sub(near, twice);
    y[5] = h_sub(h_sub(x[5], x[3]), _mm256_slli_epi16(twice, 1));
}

INLINE __m256i two_quads(const uint8_t *a, const uint8_t *b) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)a)),
                                   _mm_loadu_si128((const __m128i *)(const void *)b), 1);
}

/* Columns 0-3 of a tile's row in two channels, each column's two bytes widened to a lane. */
INLINE void columns_of(__m256i a, __m256i b, __m256i x[SIDE]) {
    const __m256i bytes = _mm256_set1_epi16(0x00FF), low = _mm256_blend_epi16(a, _mm256_slli_epi32(b, 16), 0xAA);
    const __m256i high = _mm256_blend_epi16(_mm256_srli_epi32(a, 16), b, 0xAA);
    x[0] = _mm256_and_si256(low, bytes), x[1] = _mm256_srli_epi16(low, 8);
    x[2] = _mm256_and_si256(high, bytes), x[3] = _mm256_srli_epi16(high, 8);
}

/* Two channels at a and b of two quads. `less`: what a plane's element (1, 1) has too much, as the zero point was not taken off. */
INLINE void patch_pair(const uint8_t *const a[2], const uint8_t *const b[2], int64_t pitch, __m256i less, int64_t plane_bytes, char *to) {
    __m256i rows[EDGE][EDGE];
#pragma GCC unroll 1
    for (int i = 0; i < EDGE; i++) {
        const int64_t at = i * pitch;
        __m256i x[EDGE], more[SIDE];
        columns_of(two_quads(a[0] + at, a[1] + at), two_quads(b[0] + at, b[1] + at), x);
        columns_of(two_quads(a[0] + at + SIDE, a[1] + at + SIDE), two_quads(b[0] + at + SIDE, b[1] + at + SIDE), more);
        x[4] = more[0], x[5] = more[1];
        patch_transform(x, rows[i]);
    }
#pragma GCC unroll 1
    for (int j = 0; j < EDGE; j++) {
        __m256i x[EDGE], y[EDGE];
#pragma GCC unroll 6
        for (int i = 0; i < EDGE; i++) x[i] = rows[i][j];
        patch_transform(x, y);
        if (j == 1) y[1] = h_sub(y[1], less);
#pragma GCC unroll 6
        for (int i = 0; i < EDGE; i++) _mm256_storeu_si256((__m256i *)(void *)(to + (i * EDGE + j) * plane_bytes), y[i]);
    }
}

/* Rows of B^T add up to (0, -6, 0, 0, 0, 0), so a patch of nothing but z transforms to 36 z in element (1, 1). */
static void quad_patches(const pysim_quads *of, int64_t plane_bytes, void *to) {
    const __m256i less = _mm256_set1_epi16((int16_t)(36 * of->zero));
    uint8_t none[(EDGE - 1) * PYSIM_QUAD_COLUMNS + 2 * PYSIM_QUAD_COLUMNS]; /* of a channel behind the last */
    memset(none, of->zero, sizeof none);
    char *at = to;
    for (int64_t c = 0; c < of->channels; c += 2, at += PAIR_BYTES)
        for (int64_t q = 0; q < of->quads; q += VECTOR_QUADS) {
            const uint8_t *const a[2] = {of->rows[q] + c * of->channel, of->rows[pysim_min(q + 1, of->quads - 1)] + c * of->channel};
            const uint8_t *const b[2] = {a[0] + of->channel, a[1] + of->channel}, *const other[2] = {none, none};
            char *lanes = at + q * PYSIM_QUAD * 4;
            if (c + 1 < of->channels) patch_pair(a, b, of->pitch, less, plane_bytes, lanes);
            else { /* the other channel's transform is 0 but for what is taken off */
                uint8_t own[2][(EDGE - 1) * PYSIM_QUAD_COLUMNS + 2 * PYSIM_QUAD_COLUMNS];
                for (int i = 0; i < EDGE; i++)
                    for (int half = 0; half < 2; half++)
                        memcpy(own[half] + i * PYSIM_QUAD_COLUMNS, a[half] + i * of->pitch, PYSIM_QUAD_COLUMNS);
                const uint8_t *const copies[2] = {own[0], own[1]};
                patch_pair(copies, other, PYSIM_QUAD_COLUMNS, less, plane_bytes, lanes);
            }
        }
}

/* A^T x: rows (1 1 1 1 1 0), (0 1 -1 2 -2 0), (0 1 1 4 4 0), (0 1 -1 8 -8 2). */
INLINE void output_transform(const __m256i x[EDGE], __m256i y[SIDE]) {
    const __m256i e1 = s_add(x[1], x[2]), o1 = _mm256_sub_epi32(x[1], x[2]), e2 = s_add(x[3], x[4]), o2 = _mm256_sub_epi32(x[3], x[4]);
    y[0] = s_add(x[0], s_add(e1, e2));
    y[1] = s_add(o1, _mm256_slli_epi32(o2, 1));
    y[2] = s_add(e1, _mm256_slli_epi32(e2, 2));
    y[3] = s_add(o1, s_add(_mm256_slli_epi32(o2, 3), _mm256_slli_epi32(x[5], 1)));
}

/* 576 y modulo 2^32 to y: times the inverse of 9, and shifted by 6. */
static void quad_inverse(const int32_t *products, int64_t quads, int adds, int32_t *sums) {
    const __m256i ninth = _mm256_set1_epi32(954437177);
    for (int64_t lane = 0; lane < quads * PYSIM_QUAD; lane += LANES) {
        __m256i half[SIDE][EDGE];
#pragma GCC unroll 1
        for (int j = 0; j < EDGE; j++) {
            __m256i x[EDGE], y[SIDE];
#pragma GCC unroll 6
            for (int i = 0; i < EDGE; i++) x[i] = s_load(products + (i * EDGE + j) * PYSIM_QUAD_LANES + lane);
            output_transform(x, y);
#pragma GCC unroll 4
            for (int i = 0; i < SIDE; i++) half[i][j] = y[i];
        }
#pragma GCC unroll 1
        for (int i = 0; i < SIDE; i++) {
            __m256i y[SIDE];
            output_transform(half[i], y);
#pragma GCC unroll 4
            for (int j = 0; j < SIDE; j++) {
                int32_t *to = sums + (i * SIDE + j) * PYSIM_QUAD_LANES + lane;
                const __m256i whole = _mm256_srai_epi32(_mm256_mullo_epi32(y[j], ninth), 6);
                s_store(to, adds ? s_add(s_load(to), whole) : whole);
            }
        }
    }
}

static void quad_store(const pysim_rescale *r, const int32_t *sums, int32_t bias, const pysim_bounds *bounds, const pysim_quad_results *to) {
    const BYTE_ROW row = byte_row(r);
    const __m256i added = s_set1(bias), least = _mm256_broadcastsi128_si256(row.least), flip = _mm256_broadcastsi128_si256(row.flip);
    const __m256i order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m256i low_sum = s_set1((int32_t)bounds->low), high_sum = s_set1((int32_t)bounds->high);
    const __m256 by = _mm256_set1_ps(*r->scales);
    for (int64_t q = 0; q < to->quads; q += VECTOR_QUADS)
        for (int64_t i = 0; i < SIDE; i++) {
            const int32_t *from = sums + i * SIDE * PYSIM_QUAD_LANES + q * PYSIM_QUAD;
            __m256i x[SIDE];
#pragma GCC unroll 4
            for (int j = 0; j < SIDE; j++)
                x[j] = b_whole(&row, s_between(low_sum, high_sum, s_add(s_load(from + j * PYSIM_QUAD_LANES), added)), by);
            const __m256i low = _mm256_adds_epi16(_mm256_packs_epi32(x[0], x[1]), row.zero);
            const __m256i high = _mm256_adds_epi16(_mm256_packs_epi32(x[2], x[3]), row.zero);
            const __m256i bytes =
                _mm256_xor_si256(_mm256_shuffle_epi8(_mm256_max_epu8(_mm256_packus_epi16(low, high), least), order), flip);
            const __m128i of[VECTOR_QUADS] = {_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1)};
#pragma GCC unroll 2
            for (int h = 0; h < VECTOR_QUADS; h++) {
                if (q + h >= to->quads || i >= to->rows[q + h]) continue;
                uint8_t *out = to->out[q + h] + i * to->pitch;
                if (to->columns[q + h] == PYSIM_QUAD_PITCH) _mm_storeu_si128((__m128i *)(void *)out, of[h]);
                else b_store_some(out, of[h], to->columns[q + h]);
            }
        }
}

#define QUADS2(target) pysim_quads_s8__##target
#define QUADS(target) QUADS2(target)
const pysim_quad_transforms QUADS(TARGET) = {quad_patches, quad_inverse, quad_store};
