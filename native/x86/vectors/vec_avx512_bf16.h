/* SPDX-License-Identifier: Apache-2.0
 * One vector type: AVX-512 BF16. Memory has bf16, T, of which loads make 16 floats and stores round to nearest, ties to even; a NaN stays one, subnormal
 * numbers become zeros. Biases, scales and the weights of depthwise layers are floats, NUMBER. */
#include <string.h>

#define T NUMBER
#define v_load v_load_numbers
#define v_store v_store_numbers
#define v_load_mask v_load_numbers_mask
#define v_store_mask v_store_numbers_mask
#define v_widen v_widen_half
#define v_narrow v_narrow_half
#include "vec_avx512_f32.h"
#undef T
#undef v_load
#undef v_store
#undef v_load_mask
#undef v_store_mask
#undef v_widen
#undef v_narrow
#undef INSTANCE_avx512_f32
#undef SUFFIX

typedef uint16_t T;
#define STORED_NARROW /* T is narrower than a lane */
#define INSTANCE_avx512bf16_bf16 ~,
#define SUFFIX(name) name##_bf16__avx512bf16

INLINE __m256i v_bits_of(VEC v) { return (__m256i)_mm512_cvtneps_pbh(v); }
INLINE VEC v_load(const T *p) { return v_widen_bf16(p); }
INLINE void v_store(T *p, VEC v) { _mm256_storeu_si256((__m256i *)(void *)p, v_bits_of(v)); }
INLINE VEC v_load_mask(const T *p, MASK m) { return v_of_bf16(_mm256_maskz_loadu_epi16(m, p)); }
INLINE void v_store_mask(T *p, VEC v, MASK m) { _mm256_mask_storeu_epi16(p, m, v_bits_of(v)); }
INLINE VEC v_widen(const uint16_t *p) { return v_load(p); }
INLINE void v_narrow(uint16_t *p, VEC v) { v_store(p, v); }

INLINE VEC v_broadcast(const T *p) { return _mm512_castsi512_ps(_mm512_set1_epi32(*p << 16)); }

/* Two neighbouring elements in each lane; two elements of each filter, [filter][2]; sums of their products. */
enum { DEPTH = 2 };
INLINE VEC v_element(const T *p) {
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return _mm512_castsi512_ps(_mm512_set1_epi32(pair));
}
/* Element i of both in lane i. */
INLINE void v_store_pairs(T *p, VEC first, VEC second) {
    const __m512i high = _mm512_slli_epi32(_mm512_cvtepu16_epi32(v_bits_of(second)), 16);
    _mm512_storeu_si512(p, _mm512_or_si512(high, _mm512_cvtepu16_epi32(v_bits_of(first))));
}
INLINE VEC v_filters(const T *p) { return _mm512_castsi512_ps(_mm512_loadu_si512(p)); }
INLINE VEC v_products(VEC filters, VEC elements, VEC sums) {
    return _mm512_dpbf16_ps(sums, (__m512bh)_mm512_castps_si512(filters), (__m512bh)_mm512_castps_si512(elements));
}
