/* SPDX-License-Identifier: Apache-2.0
 * Transforms of F(4x4, 3x3) of bytes (algorithms/integers/winograd.h) in vectors: a lane of 32 bits is a tile, and holds 16 bits of each of two
 * channels. */
#include "algorithms/integers/winograd.h"

enum { EDGE = 6, SIDE = 4, VECTOR_QUADS = LANES / PYSIM_QUAD, PAIR_BYTES = PYSIM_QUAD_LANES * 4 };

INLINE WORDS h_add(WORDS a, WORDS b) { return I(add_epi16)(a, b); }
INLINE WORDS h_sub(WORDS a, WORDS b) { return I(sub_epi16)(a, b); }

/* B^T x: rows (4 0 -5 0 1 0), (0 -4 -4 1 1 0), (0 4 -4 -1 1 0), (0 -2 -1 2 1 0), (0 2 -1 -2 1 0), (0 4 0 -5 0 1). */
INLINE void patch_transform(const WORDS x[EDGE], WORDS y[EDGE]) {
    const WORDS even = h_sub(x[4], I(slli_epi16)(x[2], 2)), odd = h_sub(x[3], I(slli_epi16)(x[1], 2));
    const WORDS near = h_sub(x[4], x[2]), twice = I(slli_epi16)(h_sub(x[3], x[1]), 1);
    y[0] = h_add(I(slli_epi16)(h_sub(x[0], x[2]), 2), near);
    y[1] = h_add(even, odd);
    y[2] = h_sub(even, odd);
    y[3] = h_add(near, twice);
    y[4] = h_sub(near, twice);
    y[5] = h_sub(h_sub(x[5], x[3]), I(slli_epi16)(twice, 1));
}

/* 16 bytes of each quad of a vector. */
INLINE WORDS quads_at(const uint8_t *const quads[VECTOR_QUADS], int64_t at) {
    __m128i x[VECTOR_QUADS];
#pragma GCC unroll 4
    for (int i = 0; i < VECTOR_QUADS; i++) x[i] = _mm_loadu_si128((const __m128i *)(const void *)(quads[i] + at));
    const __m256i first = _mm256_inserti128_si256(_mm256_castsi128_si256(x[0]), x[1], 1);
#if WIDTH == 512
    const __m256i second = _mm256_inserti128_si256(_mm256_castsi128_si256(x[2]), x[3], 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
#else
    return first;
#endif
}

/* Elements of 16 bits: the even ones of a, the odd ones of b. */
INLINE WORDS alternate(WORDS a, WORDS b) {
#if WIDTH == 512
    return _mm512_mask_blend_epi16(0xAAAAAAAA, a, b);
#else
    return _mm256_blend_epi16(a, b, 0xAA);
#endif
}

#if WIDTH == 512
#define IN_QUADS(x) _mm512_broadcast_i32x4(x)
#define QUAD_OF(x, i) _mm512_extracti32x4_epi32(x, i)
INLINE void store_bytes(uint8_t *p, __m128i bytes, int64_t count) { _mm_mask_storeu_epi8(p, (__mmask16)((1 << count) - 1), bytes); }
INLINE WORDS bounded_bytes(const BYTE_ROW *row, WORDS x) { return _mm512_max_epu8(x, row->least); }
INLINE WORDS flipped(const BYTE_ROW *row, WORDS x) { return _mm512_xor_si512(x, row->flip); }
#else
#define IN_QUADS(x) _mm256_broadcastsi128_si256(x)
#define QUAD_OF(x, i) _mm256_extracti128_si256(x, i)
#define store_bytes b_store_some
INLINE WORDS bounded_bytes(const BYTE_ROW *row, WORDS x) { return _mm256_max_epu8(x, IN_QUADS(row->least)); }
INLINE WORDS flipped(const BYTE_ROW *row, WORDS x) { return _mm256_xor_si256(x, IN_QUADS(row->flip)); }
#endif

/* Columns 0-3 of a tile's row in two channels, each column's two bytes widened to a lane. */
INLINE void columns_of(WORDS a, WORDS b, WORDS x[SIDE]) {
    const WORDS bytes = I(set1_epi16)(0x00FF), low = alternate(a, I(slli_epi32)(b, 16));
    const WORDS high = alternate(I(srli_epi32)(a, 16), b);
    x[0] = w_and(low, bytes), x[1] = I(srli_epi16)(low, 8);
    x[2] = w_and(high, bytes), x[3] = I(srli_epi16)(high, 8);
}

/* Two channels at a and b of a vector's quads. `less`: what a plane's element (1, 1) has too much, as the zero point was not taken off. */
INLINE void patch_pair(const uint8_t *const a[VECTOR_QUADS], const uint8_t *const b[VECTOR_QUADS], int64_t pitch, WORDS less,
                       int64_t plane_bytes, char *to) {
    WORDS rows[EDGE][EDGE];
#pragma GCC unroll 1
    for (int i = 0; i < EDGE; i++) {
        const int64_t at = i * pitch;
        WORDS x[EDGE], more[SIDE];
        columns_of(quads_at(a, at), quads_at(b, at), x);
        columns_of(quads_at(a, at + SIDE), quads_at(b, at + SIDE), more);
        x[4] = more[0], x[5] = more[1];
        patch_transform(x, rows[i]);
    }
#pragma GCC unroll 1
    for (int j = 0; j < EDGE; j++) {
        WORDS x[EDGE], y[EDGE];
#pragma GCC unroll 6
        for (int i = 0; i < EDGE; i++) x[i] = rows[i][j];
        patch_transform(x, y);
        if (j == 1) y[1] = h_sub(y[1], less);
#pragma GCC unroll 6
        for (int i = 0; i < EDGE; i++) w_store(to + (i * EDGE + j) * plane_bytes, y[i]);
    }
}

/* Rows of B^T add up to (0, -6, 0, 0, 0, 0), so a patch of nothing but z transforms to 36 z in element (1, 1). */
static void quad_patches(const pysim_quads *of, int64_t plane_bytes, void *to) {
    const WORDS less = I(set1_epi16)((int16_t)(36 * of->zero));
    uint8_t none[(EDGE - 1) * PYSIM_QUAD_COLUMNS + 2 * PYSIM_QUAD_COLUMNS]; /* of a channel behind the last */
    memset(none, of->zero, sizeof none);
    char *at = to;
    for (int64_t c = 0; c < of->channels; c += 2, at += PAIR_BYTES)
        for (int64_t q = 0; q < of->quads; q += VECTOR_QUADS) {
            const uint8_t *a[VECTOR_QUADS], *b[VECTOR_QUADS], *copies[VECTOR_QUADS];
            char *lanes = at + q * PYSIM_QUAD * 4;
            for (int64_t i = 0; i < VECTOR_QUADS; i++) {
                a[i] = of->rows[pysim_min(q + i, of->quads - 1)] + c * of->channel;
                b[i] = c + 1 < of->channels ? a[i] + of->channel : none;
            }
            if (c + 1 < of->channels) {
                patch_pair(a, b, of->pitch, less, plane_bytes, lanes);
                continue;
            }
            /* the other channel's transform is 0 but for what is taken off */
            uint8_t own[VECTOR_QUADS][(EDGE - 1) * PYSIM_QUAD_COLUMNS + 2 * PYSIM_QUAD_COLUMNS];
            for (int64_t quad = 0; quad < VECTOR_QUADS; quad++) {
                copies[quad] = own[quad];
                for (int i = 0; i < EDGE; i++) memcpy(own[quad] + i * PYSIM_QUAD_COLUMNS, a[quad] + i * of->pitch, PYSIM_QUAD_COLUMNS);
            }
            patch_pair(copies, b, PYSIM_QUAD_COLUMNS, less, plane_bytes, lanes);
        }
}

/* A^T x: rows (1 1 1 1 1 0), (0 1 -1 2 -2 0), (0 1 1 4 4 0), (0 1 -1 8 -8 2). */
INLINE void output_transform(const WORDS x[EDGE], WORDS y[SIDE]) {
    const WORDS e1 = s_add(x[1], x[2]), o1 = I(sub_epi32)(x[1], x[2]), e2 = s_add(x[3], x[4]), o2 = I(sub_epi32)(x[3], x[4]);
    y[0] = s_add(x[0], s_add(e1, e2));
    y[1] = s_add(o1, I(slli_epi32)(o2, 1));
    y[2] = s_add(e1, I(slli_epi32)(e2, 2));
    y[3] = s_add(o1, s_add(I(slli_epi32)(o2, 3), I(slli_epi32)(x[5], 1)));
}

/* 576 y modulo 2^32 to y: times the inverse of 9, and shifted by 6. */
static void quad_inverse(const int32_t *products, int64_t quads, int adds, int32_t *sums) {
    const WORDS ninth = s_set1(954437177);
    for (int64_t lane = 0; lane < quads * PYSIM_QUAD; lane += LANES) {
        WORDS half[SIDE][EDGE];
#pragma GCC unroll 1
        for (int j = 0; j < EDGE; j++) {
            WORDS x[EDGE], y[SIDE];
#pragma GCC unroll 6
            for (int i = 0; i < EDGE; i++) x[i] = s_load(products + (i * EDGE + j) * PYSIM_QUAD_LANES + lane);
            output_transform(x, y);
#pragma GCC unroll 4
            for (int i = 0; i < SIDE; i++) half[i][j] = y[i];
        }
#pragma GCC unroll 1
        for (int i = 0; i < SIDE; i++) {
            WORDS y[SIDE];
            output_transform(half[i], y);
#pragma GCC unroll 4
            for (int j = 0; j < SIDE; j++) {
                int32_t *to = sums + (i * SIDE + j) * PYSIM_QUAD_LANES + lane;
                const WORDS whole = I(srai_epi32)(I(mullo_epi32)(y[j], ninth), 6);
                s_store(to, adds ? s_add(s_load(to), whole) : whole);
            }
        }
    }
}

static void quad_store(const pysim_rescale *r, const int32_t *sums, int32_t bias, const pysim_bounds *bounds,
                       const pysim_quad_results *to) {
    const BYTE_ROW row = byte_row(r);
    const WORDS added = s_set1(bias), order = IN_QUADS(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const WORDS low_sum = s_set1((int32_t)bounds->low), high_sum = s_set1((int32_t)bounds->high);
    const FLOATS by = I(set1_ps)(*r->scales);
    for (int64_t q = 0; q < to->quads; q += VECTOR_QUADS)
        for (int64_t i = 0; i < SIDE; i++) {
            const int32_t *from = sums + i * SIDE * PYSIM_QUAD_LANES + q * PYSIM_QUAD;
            WORDS x[SIDE];
#pragma GCC unroll 4
            for (int j = 0; j < SIDE; j++) x[j] = s_between(low_sum, high_sum, s_add(s_load(from + j * PYSIM_QUAD_LANES), added));
            const WORDS packed = I(packus_epi16)(b_halves(&row, x[0], by, x[1], by), b_halves(&row, x[2], by, x[3], by));
            const WORDS bytes = flipped(&row, I(shuffle_epi8)(bounded_bytes(&row, packed), order));
            __m128i of[VECTOR_QUADS] = {QUAD_OF(bytes, 0), QUAD_OF(bytes, 1)};
#if WIDTH == 512
            of[2] = QUAD_OF(bytes, 2), of[3] = QUAD_OF(bytes, 3);
#endif
#pragma GCC unroll 4
            for (int h = 0; h < VECTOR_QUADS; h++) {
                if (q + h >= to->quads || i >= to->rows[q + h]) continue;
                uint8_t *out = to->out[q + h] + i * to->pitch;
                if (to->columns[q + h] == PYSIM_QUAD_PITCH) _mm_storeu_si128((__m128i *)(void *)out, of[h]);
                else store_bytes(out, of[h], to->columns[q + h]);
            }
        }
}

#define QUADS2(target) pysim_quads_s8__##target
#define QUADS(target) QUADS2(target)
const pysim_quad_transforms QUADS(TARGET) = {quad_patches, quad_inverse, quad_store, VECTOR_QUADS};
