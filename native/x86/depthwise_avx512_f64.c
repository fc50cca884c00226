/* SPDX-License-Identifier: Apache-2.0
 * Groups of few channels in FP64 on AVX-512: 8 lanes. 32 registers: 8 rows and 7 weights, or 4 x 4 outputs and 4 weights. */
#include "kernel.h"
#include "x86/vectors/vec_avx512_f64.h"

INLINE VEC v_strided(const T *p, int64_t stride, MASK m) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm512_mask_i32gather_pd(v_zero(), m, _mm256_mullo_epi32(lane, _mm256_set1_epi32((int32_t)stride)), p, sizeof(T));
}

/* The first 1 or 2 elements of p in the first lanes; nothing behind them is read. */
INLINE VEC v_load_first(const T *p, const int count) { return count == 1 ? v_set1(*p) : _mm512_broadcast_f64x2(_mm_loadu_pd(p)); }
enum { MASKS_ARE_CHEAP = 1 };  /* a masked load is one operation more on Intel, none on Zen */
enum { SHIFTS_ARE_CHEAP = 1 }; /* and nine weights find a register each */

/* 128-bit parts that lie so far apart, in one register; and within each part the transposition of PART registers. */
enum { PART = 2 };
INLINE VEC v_parts(const T *p, int64_t apart) {
    const VEC low = _mm512_castpd128_pd512(_mm_loadu_pd(p));
    const VEC two = _mm512_mask_broadcast_f64x2(low, 0x0C, _mm_loadu_pd(p + apart));
    const VEC three = _mm512_mask_broadcast_f64x2(two, 0x30, _mm_loadu_pd(p + 2 * apart));
    return _mm512_mask_broadcast_f64x2(three, 0xC0, _mm_loadu_pd(p + 3 * apart));
}
INLINE void transpose_parts(const VEC a[PART], VEC r[PART]) {
    r[0] = _mm512_unpacklo_pd(a[0], a[1]);
    r[1] = _mm512_unpackhi_pd(a[0], a[1]);
}
INLINE void v_store_part(T *p, VEC v, const int part) {
    const __m128d parts[4] = {_mm512_castpd512_pd128(v), _mm512_extractf64x2_pd(v, 1), _mm512_extractf64x2_pd(v, 2),
                              _mm512_extractf64x2_pd(v, 3)};
    _mm_storeu_pd(p, parts[part]);
}

#define SEVERAL 4
#include "depthwise.h"
#include "depthwise_planes.h"

DEFINE_ROWS(f64_rows_64x1__avx512, 8, 1)
DEFINE_ROWS(f64_rows_32x4__avx512, 4, SEVERAL)
DEFINE_PLANES(f64_planes_8x8__avx512)
