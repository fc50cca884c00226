/* SPDX-License-Identifier: Apache-2.0
 * Vectors of groups: a lane is 4 bytes of neighbouring k (4 integers or 2 halves), and its result is one FP32 or INT32. The includer defines
 *
 *   WIDTH     256 or 512
 *   HALVES    elements are bf16 and results FP32; else bytes and INT32
 *   PRODUCTS  the CPU multiplies groups in one instruction (VNNI, AVX-VNNI, AVX512-BF16)
 *   PACKING   packing of groups alone, for rows of form tiles
 *   BOUNDED   form bounded (bounded.h)
 *   PAIRS     form pairs; of 512 bits this form alone
 *
 * Without PRODUCTS a group is split into elements of even and of odd k, widened to FP32 or 16 bits (vpmaddwd). vpmaddubsw may
 * saturate: 255 * 127 + 255 * 127 leaves int16. Panels of bytes are widened while they are packed (PAIRS). */
#include <immintrin.h>
#include <string.h>

#if !defined PRODUCTS && !defined HALVES && !defined PACKING && !defined BOUNDED && !defined PAIRS
#define PAIRS 1
#endif

#include "kernel.h"

#define INLINE static inline __attribute__((always_inline))

#if WIDTH == 512
#define I(name) _mm512_##name
enum { LANES = 16 };
typedef __m512i WORDS;
typedef __mmask16 MASK;
INLINE WORDS w_load(const uint32_t *p) { return _mm512_loadu_si512(p); }
INLINE void w_store(void *p, WORDS x) { _mm512_storeu_si512(p, x); }
INLINE MASK m_first(int64_t n) { return (MASK)(n >= LANES ? 0xFFFF : (1 << n) - 1); }
INLINE WORDS w_and(WORDS a, WORDS b) { return _mm512_and_si512(a, b); }
#else
#define I(name) _mm256_##name
enum { LANES = 8 };
typedef __m256i WORDS, MASK;
INLINE WORDS w_load(const uint32_t *p) { return _mm256_loadu_si256((const __m256i *)(const void *)p); }
INLINE void w_store(void *p, WORDS x) { _mm256_storeu_si256((__m256i *)p, x); }
INLINE MASK m_first(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int32_t)pysim_min(n, LANES)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
INLINE WORDS w_and(WORDS a, WORDS b) { return _mm256_and_si256(a, b); }
#endif
INLINE WORDS w_set1(uint32_t x) { return I(set1_epi32)((int32_t)x); }

/* ---- operands ---- */

#ifdef PRODUCTS
typedef WORDS OPERAND;
INLINE OPERAND unsigned_of(WORDS x) { return x; }
INLINE OPERAND signed_of(WORDS x) { return x; }
#else
typedef struct {
    WORDS even, odd;
} OPERAND;
#ifdef HALVES
INLINE OPERAND signed_of(WORDS x) { return (OPERAND){I(slli_epi32)(x, 16), w_and(x, w_set1(0xFFFF0000u))}; }
#define unsigned_of signed_of
#else
INLINE OPERAND unsigned_of(WORDS x) { return (OPERAND){w_and(x, w_set1(0x00FF00FFu)), I(srli_epi16)(x, 8)}; }
INLINE OPERAND signed_of(WORDS x) { return (OPERAND){I(srai_epi16)(I(slli_epi16)(x, 8), 8), I(srai_epi16)(x, 8)}; }
#endif
#endif

/* ---- sums ---- */

#ifdef HALVES
typedef float T;
#if WIDTH == 512
typedef __m512 SUMS;
#define AS_SUMS(x) _mm512_castsi512_ps(x)
#define AS_HALVES(x) ((__m512bh)(x))
INLINE SUMS s_load_mask(const T *p, MASK m) { return _mm512_maskz_loadu_ps(m, p); }
INLINE void s_store_mask(T *p, SUMS v, MASK m) { _mm512_mask_storeu_ps(p, m, v); }
#else
typedef __m256 SUMS;
#define AS_SUMS(x) _mm256_castsi256_ps(x)
INLINE SUMS s_load_mask(const T *p, MASK m) { return _mm256_maskload_ps(p, m); }
INLINE void s_store_mask(T *p, SUMS v, MASK m) { _mm256_maskstore_ps(p, m, v); }
#endif
INLINE SUMS s_zero(void) { return I(setzero_ps)(); }
INLINE SUMS s_set1(T x) { return I(set1_ps)(x); }
INLINE SUMS s_load(const T *p) { return I(loadu_ps)(p); }
INLINE void s_store(T *p, SUMS v) { I(storeu_ps)(p, v); }
INLINE SUMS s_add(SUMS a, SUMS b) { return I(add_ps)(a, b); }
INLINE SUMS s_fma(SUMS a, SUMS b, SUMS c) { return I(fmadd_ps)(a, b, c); }
/* These instructions return their second operand if either is NaN. */
INLINE SUMS s_between(SUMS low, SUMS high, SUMS x) { return I(min_ps)(high, I(max_ps)(low, x)); }
#ifdef PRODUCTS
INLINE SUMS s_dot(SUMS sum, OPERAND x, OPERAND y) { return _mm512_dpbf16_ps(sum, AS_HALVES(x), AS_HALVES(y)); }
#else
INLINE SUMS s_dot(SUMS sum, OPERAND x, OPERAND y) {
    return s_fma(AS_SUMS(x.odd), AS_SUMS(y.odd), s_fma(AS_SUMS(x.even), AS_SUMS(y.even), sum));
}
#endif
#define FACTOR(x) (T)(x)
#define UNBOUNDED(low, high) ((low) < -3.5e38 && (high) > 3.5e38)
#else
typedef int32_t T;
typedef WORDS SUMS;
#if WIDTH == 512
INLINE SUMS s_zero(void) { return _mm512_setzero_si512(); }
INLINE SUMS s_load_mask(const T *p, MASK m) { return _mm512_maskz_loadu_epi32(m, p); }
INLINE void s_store_mask(T *p, SUMS v, MASK m) { _mm512_mask_storeu_epi32(p, m, v); }
INLINE SUMS s_load(const T *p) { return _mm512_loadu_si512(p); }
INLINE void s_store(T *p, SUMS v) { _mm512_storeu_si512(p, v); }
#else
INLINE SUMS s_zero(void) { return _mm256_setzero_si256(); }
INLINE SUMS s_load_mask(const T *p, MASK m) { return _mm256_maskload_epi32(p, m); }
INLINE void s_store_mask(T *p, SUMS v, MASK m) { _mm256_maskstore_epi32(p, m, v); }
INLINE SUMS s_load(const T *p) { return _mm256_loadu_si256((const __m256i *)(const void *)p); }
INLINE void s_store(T *p, SUMS v) { _mm256_storeu_si256((__m256i *)(void *)p, v); }
#endif
INLINE SUMS s_set1(T x) { return I(set1_epi32)(x); }
INLINE SUMS s_add(SUMS a, SUMS b) { return I(add_epi32)(a, b); }
INLINE SUMS s_fma(SUMS a, SUMS b, SUMS c) { return s_add(I(mullo_epi32)(a, b), c); }
INLINE SUMS s_between(SUMS low, SUMS high, SUMS x) { return I(min_epi32)(high, I(max_epi32)(low, x)); }
/* Sums times scales, within bounds, as FP32; and rounded half to even plus `zero`, the first `count` lanes as bytes. */
#if WIDTH == 512
typedef __m512 FLOATS;
INLINE FLOATS f_load_mask(const float *p, MASK m) { return _mm512_maskz_loadu_ps(m, p); }
INLINE void f_store_mask(float *p, FLOATS v, MASK m) { _mm512_mask_storeu_ps(p, m, v); }
INLINE void b_store(uint8_t *p, FLOATS v, SUMS zero, MASK m, const int whole, int64_t count) {
    (void)count;
    const __m128i bytes = _mm512_cvtepi32_epi8(s_add(_mm512_cvtps_epi32(v), zero));
    if (whole) _mm_storeu_si128((__m128i *)(void *)p, bytes);
    else _mm_mask_storeu_epi8(p, m, bytes);
}
/* A row of up to 4 vectors of sums as bytes. Saturating to 16 and 8 bits bounds them below; `high` bounds floats, which conversion would wrap. */
typedef struct {
    FLOATS high;
    __m512i zero, least, flip, order; /* zero: of the unsigned byte, 16 bits; least: of that byte; flip: 0x80 for signed results */
} BYTE_ROW;
INLINE BYTE_ROW byte_row(const pysim_rescale *r) {
    const int32_t flip = r->result == PYSIM_S8 ? 0x80 : 0, zero = r->zero + flip;
    return (BYTE_ROW){_mm512_set1_ps(r->high), _mm512_set1_epi16((int16_t)zero), _mm512_set1_epi8((char)((int32_t)r->low + zero)),
                      _mm512_set1_epi8((char)flip), _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)};
}
INLINE __m512i b_whole(const BYTE_ROW *of, SUMS a, FLOATS by) {
    return _mm512_cvtps_epi32(_mm512_min_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(a), by), of->high));
}
INLINE __m512i b_packed(const BYTE_ROW *of, __m512i first, __m512i second) {
    return _mm512_adds_epi16(_mm512_packs_epi32(first, second), of->zero);
}
INLINE __m512i b_halves(const BYTE_ROW *of, SUMS a, FLOATS by_a, SUMS b, FLOATS by_b) {
    return b_packed(of, b_whole(of, a, by_a), b_whole(of, b, by_b));
}
/* Whole numbers without the zero point as bytes. */
INLINE void b_store_whole(const BYTE_ROW *of, const int nv, const __m512i *whole, uint8_t *p, int64_t count) {
    const __m512i low = b_packed(of, whole[0], whole[nv > 1]);
    const __m512i high = nv > 2 ? b_packed(of, whole[nv > 2 ? 2 : 0], whole[nv - 1]) : low;
    __m512i bytes = _mm512_max_epu8(_mm512_packus_epi16(low, high), of->least);
    bytes = _mm512_permutexvar_epi32(of->order, _mm512_xor_si512(bytes, of->flip));
    if (count == nv * LANES - 8) { /* no masked store: a load of the next row's residual would wait for it */
        if (nv > 1) _mm_storeu_si128((__m128i *)(void *)p, _mm512_castsi512_si128(bytes));
        if (nv > 2) _mm_storeu_si128((__m128i *)(void *)(p + LANES), _mm512_extracti32x4_epi32(bytes, 1));
        if (nv > 3) _mm_storeu_si128((__m128i *)(void *)(p + 2 * LANES), _mm512_extracti32x4_epi32(bytes, 2));
        const __m128i last = nv == 1   ? _mm512_castsi512_si128(bytes)
                             : nv == 2 ? _mm512_extracti32x4_epi32(bytes, 1)
                             : nv == 3 ? _mm512_extracti32x4_epi32(bytes, 2)
                                       : _mm512_extracti32x4_epi32(bytes, 3);
        _mm_storel_epi64((__m128i *)(void *)(p + (nv - 1) * LANES), last);
    } else if (count < nv * LANES) _mm512_mask_storeu_epi8(p, ~0ull >> (64 - count), bytes);
    else if (nv == 4) _mm512_storeu_si512(p, bytes);
    else {
        if (nv > 1) _mm256_storeu_si256((__m256i *)(void *)p, _mm512_castsi512_si256(bytes));
        if (nv == 1) _mm_storeu_si128((__m128i *)(void *)p, _mm512_castsi512_si128(bytes));
        if (nv == 3) _mm_storeu_si128((__m128i *)(void *)(p + 32), _mm512_extracti32x4_epi32(bytes, 2));
    }
}
INLINE void b_store_row(const BYTE_ROW *of, const int nv, const SUMS *sums, const FLOATS *by, uint8_t *p, int64_t count) {
    __m512i whole[4];
#pragma GCC unroll 4
    for (int v = 0; v < nv; v++) whole[v] = b_whole(of, sums[v], by[v]);
    b_store_whole(of, nv, whole, p, count);
}
/* The same with a residual added: pysim_byte_sum. */
INLINE void b_store_sum(const pysim_rescale *r, const int nv, const SUMS *sums, const FLOATS *by, const uint8_t *residual, uint8_t *p,
                        int64_t count) {
    const pysim_byte_sum *s = r->sum;
    const pysim_rescale to = {.result = s->result, .zero = s->zero, .low = s->low, .high = s->high};
    const BYTE_ROW row = byte_row(&to);
    const FLOATS least = _mm512_set1_ps(r->low), most = _mm512_set1_ps(r->high), shift = _mm512_set1_ps(s->shift);
    __m512i whole[4];
#pragma GCC unroll 4
    for (int v = 0; v < nv; v++) {
        const MASK some = v < nv - 1 ? m_first(LANES) : m_first(count - v * LANES);
        const __m128i bytes = _mm_xor_si128(_mm_maskz_loadu_epi8(some, residual + v * LANES), _mm_set1_epi8((char)s->flip));
        const FLOATS y = _mm512_min_ps(_mm512_max_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sums[v]), by[v]), least), most);
        const FLOATS b = _mm512_fmadd_ps(_mm512_set1_ps(s->second), _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes)), shift);
        const FLOATS t = _mm512_fmadd_ps(_mm512_set1_ps(s->first), _mm512_roundscale_ps(y, 0), b);
        whole[v] = _mm512_cvtps_epi32(_mm512_min_ps(t, row.high));
    }
    b_store_whole(&row, nv, whole, p, count);
}
#else
typedef __m256 FLOATS;
INLINE FLOATS f_load_mask(const float *p, MASK m) { return _mm256_maskload_ps(p, m); }
INLINE void f_store_mask(float *p, FLOATS v, MASK m) { _mm256_maskstore_ps(p, m, v); }
INLINE void b_store(uint8_t *p, FLOATS v, SUMS zero, MASK m, const int whole, int64_t count) {
    (void)m;
    const __m128i order = _mm_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m256i x = s_add(_mm256_cvtps_epi32(v), zero);
    const __m128i low = _mm_shuffle_epi8(_mm256_castsi256_si128(x), order), high = _mm_shuffle_epi8(_mm256_extracti128_si256(x, 1), order);
    const uint64_t eight = (uint64_t)_mm_cvtsi128_si64(_mm_unpacklo_epi32(low, high));
    if (whole) memcpy(p, &eight, sizeof eight);
    else memcpy(p, &eight, (size_t)count);
}
#endif
INLINE FLOATS f_scaled(SUMS x, FLOATS scale, FLOATS low, FLOATS high) {
    return I(min_ps)(high, I(max_ps)(low, I(mul_ps)(I(cvtepi32_ps)(x), scale)));
}
#if WIDTH == 256
/* A row of up to 2 vectors of sums as bytes, bounded as in 512 bits. */
typedef struct {
    FLOATS high;
    __m256i zero, order;
    __m128i least, flip;
} BYTE_ROW;
INLINE BYTE_ROW byte_row(const pysim_rescale *r) {
    const int32_t flip = r->result == PYSIM_S8 ? 0x80 : 0, zero = r->zero + flip;
    return (BYTE_ROW){_mm256_set1_ps(r->high), _mm256_set1_epi16((int16_t)zero), _mm256_setr_epi32(0, 4, 1, 5, 0, 4, 1, 5),
                      _mm_set1_epi8((char)((int32_t)r->low + zero)), _mm_set1_epi8((char)flip)};
}
INLINE __m256i b_whole(const BYTE_ROW *of, SUMS a, FLOATS by) {
    return _mm256_cvtps_epi32(_mm256_min_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(a), by), of->high));
}
/* The first `count` of 16 bytes. */
INLINE void b_store_some(uint8_t *p, __m128i bytes, int64_t count) {
    if (count >= 8) {
        _mm_storel_epi64((__m128i *)(void *)p, bytes);
        bytes = _mm_unpackhi_epi64(bytes, bytes), p += 8, count -= 8;
    }
    uint64_t rest = (uint64_t)_mm_cvtsi128_si64(bytes);
    for (int64_t some = 4; some; some /= 2) {
        if (!(count & some)) continue;
        memcpy(p, &rest, (size_t)some);
        rest >>= 8 * some, p += some;
    }
}
INLINE __m256i b_halves(const BYTE_ROW *of, SUMS a, FLOATS by_a, SUMS b, FLOATS by_b) {
    return _mm256_adds_epi16(_mm256_packs_epi32(b_whole(of, a, by_a), b_whole(of, b, by_b)), of->zero);
}
INLINE __m128i b_row(const BYTE_ROW *of, const int nv, const SUMS *sums, const FLOATS *by) {
    const __m256i halves = b_halves(of, sums[0], by[0], sums[nv > 1], by[nv > 1]);
    const __m256i ordered = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(halves, halves), of->order);
    return _mm_xor_si128(_mm_max_epu8(_mm256_castsi256_si128(ordered), of->least), of->flip);
}
INLINE void b_store_row(const BYTE_ROW *of, const int nv, const SUMS *sums, const FLOATS *by, uint8_t *p, int64_t count) {
    const __m128i bytes = b_row(of, nv, sums, by);
    if (nv == 2 && count == 2 * LANES) _mm_storeu_si128((__m128i *)(void *)p, bytes);
    else if (nv == 1 && count == LANES) _mm_storel_epi64((__m128i *)(void *)p, bytes);
    else b_store_some(p, bytes, count);
}
#endif
/* x is unsigned, y signed. */
#if defined PRODUCTS && WIDTH == 512
#ifndef PAIRS
#define ADDS /* stores add residuals of bytes */
#endif
INLINE SUMS s_dot(SUMS sum, OPERAND x, OPERAND y) { return _mm512_dpbusd_epi32(sum, x, y); }
#elif defined PRODUCTS
INLINE SUMS s_dot(SUMS sum, OPERAND x, OPERAND y) { return _mm256_dpbusd_avx_epi32(sum, x, y); }
#else
INLINE SUMS s_dot(SUMS sum, OPERAND x, OPERAND y) { return s_add(sum, s_add(I(madd_epi16)(x.even, y.even), I(madd_epi16)(x.odd, y.odd))); }
#endif
#define FACTOR(x) (T)(x)
#define UNBOUNDED(low, high) ((low) <= INT32_MIN && (high) >= INT32_MAX)
#endif
