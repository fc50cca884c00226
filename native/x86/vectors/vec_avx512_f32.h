/* SPDX-License-Identifier: Apache-2.0
 * One vector type for lanes.h and pack.h: AVX-512, 16 floats. n counts lanes from lane 0. */
#include <immintrin.h>

typedef float T;
typedef __m512 VEC;
enum { LANES = 16 };
#define INSTANCE_avx512_f32 ~,
#define SUFFIX(name) name##_f32__avx512
#define V(name) _mm512_##name##_ps
#define V_MASK(name) _mm512_##name##_ps_mask
#define v_shifted(low, high, n) _mm512_castsi512_ps(_mm512_alignr_epi32(_mm512_castps_si512(high), _mm512_castps_si512(low), n))
typedef __mmask16 MASK;
#include "vec_avx512.h"

/* x 2^n of whole n, rounded once. */
#define V_SCALED
INLINE VEC v_scaled(VEC x, VEC n) { return _mm512_scalef_ps(x, n); }

/* a0 b0 a1 b1 ... of the lower and of the upper halves. */
INLINE VEC v_interleave_low(VEC a, VEC b) {
    return _mm512_permutex2var_ps(a, _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23), b);
}
INLINE VEC v_interleave_high(VEC a, VEC b) {
    return _mm512_permutex2var_ps(a, _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31), b);
}
/* Elements 0 2 4 .. and 1 3 5 .. of a:b. */
INLINE VEC v_even(VEC a, VEC b) {
    return _mm512_permutex2var_ps(a, _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30), b);
}
INLINE VEC v_odd(VEC a, VEC b) {
    return _mm512_permutex2var_ps(a, _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31), b);
}

/* r[c] = column c of a block whose row l lies at src + row[l]. Four elements at a time are loaded to where they belong, and two of the four
 * stages of `transpose` remain. */
#define V_LOAD_COLUMNS
INLINE VEC v_load_fours(const T *src, const int64_t *row) {
    VEC v = _mm512_castps128_ps512(_mm_loadu_ps(src + row[0]));
    v = _mm512_mask_broadcast_f32x4(v, 0x00f0, _mm_loadu_ps(src + row[4]));
    v = _mm512_mask_broadcast_f32x4(v, 0x0f00, _mm_loadu_ps(src + row[8]));
    return _mm512_mask_broadcast_f32x4(v, 0xf000, _mm_loadu_ps(src + row[12]));
}
INLINE VEC v_pairs_low(VEC a, VEC b) { return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b))); }
INLINE VEC v_pairs_high(VEC a, VEC b) { return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b))); }
INLINE void v_load_columns(VEC r[LANES], const T *src, const int64_t row[LANES]) {
#pragma GCC unroll 4
    for (int c = 0; c < LANES; c += 4) {
        const VEC row0 = v_load_fours(src + c, row), row1 = v_load_fours(src + c, row + 1);
        const VEC row2 = v_load_fours(src + c, row + 2), row3 = v_load_fours(src + c, row + 3);
        const VEC low01 = _mm512_unpacklo_ps(row0, row1), high01 = _mm512_unpackhi_ps(row0, row1);
        const VEC low23 = _mm512_unpacklo_ps(row2, row3), high23 = _mm512_unpackhi_ps(row2, row3);
        r[c] = v_pairs_low(low01, low23), r[c + 1] = v_pairs_high(low01, low23);
        r[c + 2] = v_pairs_low(high01, high23), r[c + 3] = v_pairs_high(high01, high23);
    }
}

/* The numbers of four bits of words: templates/loops/few_bits.h. A permutation reads the lowest four bits of each lane. */
#define V_NIBBLES
typedef __m512i NIBBLES;
INLINE NIBBLES v_nibbles(const uint32_t *p) { return _mm512_loadu_si512(p); }
INLINE VEC v_nibble(NIBBLES v, const int i) {
    return _mm512_permutexvar_ps(_mm512_srli_epi32(v, 4u * (unsigned)i),
                                 _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7));
}

/* Strided reads: lane j of the result is element j*stride + phase of the row. The row is read as whole vectors, and vector i
 * gives the lanes of from[i], permuted by index. */
enum { GATHER_MAX = 16 };
typedef struct {
    __m512i index;
    MASK from[GATHER_MAX];
} GATHER;
INLINE GATHER v_gather_plan(int64_t stride, int64_t phase) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i element =
        _mm512_add_epi32(_mm512_mullo_epi32(lane, _mm512_set1_epi32((int32_t)stride)), _mm512_set1_epi32((int32_t)phase));
    GATHER g = {.index = _mm512_and_epi32(element, _mm512_set1_epi32(LANES - 1))};
    for (int32_t i = 0; i < stride; i++) g.from[i] = _mm512_cmpeq_epi32_mask(_mm512_srli_epi32(element, 4), _mm512_set1_epi32(i));
    return g;
}
INLINE VEC v_gather_from(VEC sofar, VEC source, const GATHER *g, int64_t i) {
    return _mm512_mask_permutexvar_ps(sofar, g->from[i], g->index, source);
}

/* Halves; a NaN becomes a quiet one. */
#define V_HALVES
INLINE VEC v_widen(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
INLINE void v_narrow(uint16_t *p, VEC v) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* bf16, rounded to nearest and ties to even; a NaN becomes a quiet one. */
#define V_BF16
INLINE VEC v_of_bf16(__m256i bits) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16)); }
INLINE VEC v_widen_bf16(const uint16_t *p) { return v_of_bf16(_mm256_loadu_si256((const __m256i *)p)); }
INLINE void v_narrow_bf16(uint16_t *p, VEC v) {
    const __m512i bits = _mm512_castps_si512(v), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    rounded = _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), bits, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}

/* Contract: byte_sums.h. */
#define V_BYTE_SUMS 64
#include "byte_sums.h"
#include "byte_tables.h"
INLINE int v_byte_sums(const BYTE_SUMS *s, const uint8_t *a, const uint8_t *b, uint8_t *y) {
    const __m512i zero = _mm512_set1_epi16((int16_t)s->zero), quarter = _mm512_set1_epi32(4);
    const __m512i x = _mm512_xor_si512(_mm512_loadu_si512(a), _mm512_set1_epi8((char)s->a_flip));
    const __m512i z = _mm512_xor_si512(_mm512_loadu_si512(b), _mm512_set1_epi8((char)s->b_flip));
    const VEC f = v_set1(s->f), g = v_set1(s->g), shift = v_set1(s->shift);
    __m512i whole[4], spread = _mm512_broadcast_i32x4(_mm_setr_epi8(0, -1, -1, -1, 1, -1, -1, -1, 2, -1, -1, -1, 3, -1, -1, -1));
    VEC furthest = v_zero();
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++, spread = _mm512_add_epi8(spread, quarter)) {
        const VEC left = _mm512_cvtepi32_ps(_mm512_shuffle_epi8(x, spread)), right = _mm512_cvtepi32_ps(_mm512_shuffle_epi8(z, spread));
        const VEC t = v_fma(left, f, v_fma(right, g, shift));
        whole[i] = _mm512_cvtps_epi32(t);
        furthest =
            _mm512_range_ps(furthest, _mm512_reduce_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), 0xB); /* larger magnitude */
    }
    const __m512i low = _mm512_adds_epi16(_mm512_packs_epi32(whole[0], whole[1]), zero);
    const __m512i high = _mm512_adds_epi16(_mm512_packs_epi32(whole[2], whole[3]), zero);
    __m512i bytes = _mm512_max_epu8(_mm512_packus_epi16(low, high), _mm512_set1_epi8((char)s->low));
    bytes = _mm512_min_epu8(bytes, _mm512_set1_epi8((char)s->high));
    _mm512_storeu_si512(y, _mm512_xor_si512(bytes, _mm512_set1_epi8((char)s->y_flip)));
    return _mm512_cmp_ps_mask(furthest, v_set1(s->far), _CMP_GT_OQ) != 0;
}
