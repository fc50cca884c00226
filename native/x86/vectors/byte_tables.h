/* SPDX-License-Identifier: Apache-2.0
 * v_tables: y[i] = table[x[i]] of bytes, of whole vectors of V_TABLES; it returns how many.
 *
 * A shuffle looks up 16 neighbouring entries: of bytes less their first place, those that are no place of its 16 have their upper bit set and give 0.
 * VBMI looks up 128 at once. */
#ifdef __AVX512F__
#define V_TABLES 64
__attribute__((target("avx512vbmi"))) static int64_t tables_by_halves(const uint8_t *table, int64_t count, const uint8_t *x, uint8_t *y) {
    const __m512i a = _mm512_loadu_si512(table), b = _mm512_loadu_si512(table + 64);
    const __m512i c = _mm512_loadu_si512(table + 128), d = _mm512_loadu_si512(table + 192);
    int64_t i = 0;
    for (; i + V_TABLES <= count; i += V_TABLES) {
        const __m512i at = _mm512_loadu_si512(x + i), low = _mm512_permutex2var_epi8(a, at, b);
        _mm512_storeu_si512(y + i, _mm512_mask_blend_epi8(_mm512_movepi8_mask(at), low, _mm512_permutex2var_epi8(c, at, d)));
    }
    return i;
}
INLINE int64_t v_tables(const uint8_t *table, int64_t count, const uint8_t *x, uint8_t *y) {
    if (__builtin_cpu_supports("avx512vbmi")) return tables_by_halves(table, count, x, y);
    int64_t i = 0;
    for (; i + V_TABLES <= count; i += V_TABLES) {
        __m512i at = _mm512_loadu_si512(x + i), found = _mm512_setzero_si512();
#pragma GCC unroll 16
        for (int part = 0; part < 256; part += 16, at = _mm512_sub_epi8(at, _mm512_set1_epi8(16))) {
            const __m512i some = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)(table + part)));
            found = _mm512_or_si512(found, _mm512_shuffle_epi8(some, _mm512_adds_epu8(at, _mm512_set1_epi8(0x70))));
        }
        _mm512_storeu_si512(y + i, found);
    }
    return i;
}
#else
#define V_TABLES 32
INLINE int64_t v_tables(const uint8_t *table, int64_t count, const uint8_t *x, uint8_t *y) {
    int64_t i = 0;
    for (; i + V_TABLES <= count; i += V_TABLES) {
        __m256i at = _mm256_loadu_si256((const __m256i *)(const void *)(x + i)), found = _mm256_setzero_si256();
#pragma GCC unroll 16
        for (int part = 0; part < 256; part += 16, at = _mm256_sub_epi8(at, _mm256_set1_epi8(16))) {
            const __m256i some = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)(table + part)));
            found = _mm256_or_si256(found, _mm256_shuffle_epi8(some, _mm256_adds_epu8(at, _mm256_set1_epi8(0x70))));
        }
        _mm256_storeu_si256((__m256i *)(void *)(y + i), found);
    }
    return i;
}
#endif
