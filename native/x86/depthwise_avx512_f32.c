/* SPDX-License-Identifier: Apache-2.0
 * Groups of few channels in FP32 on AVX-512: 16 lanes. 32 registers: 8 rows and 7 weights, or 4 x 4 outputs and 4 weights. */
#include "kernel.h"
#include "x86/vectors/vec_avx512_f32.h"

INLINE VEC v_strided(const T *p, int64_t stride, MASK m) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_mask_i32gather_ps(v_zero(), m, _mm512_mullo_epi32(lane, _mm512_set1_epi32((int32_t)stride)), p, sizeof(T));
}

/* The first 1 or 2 elements of p in the first lanes; nothing behind them is read. */
INLINE VEC v_load_first(const T *p, const int count) {
    return count == 1 ? v_set1(*p) : _mm512_castpd_ps(_mm512_broadcastsd_pd(_mm_load_sd((const double *)(const void *)p)));
}
enum { MASKS_ARE_CHEAP = 1 };  /* a masked load is one operation more on Intel, none on Zen */
enum { SHIFTS_ARE_CHEAP = 1 }; /* and nine weights find a register each */

/* 128-bit parts that lie so far apart, in one register; and within each part the transposition of PART registers. */
enum { PART = 4 };
INLINE VEC v_parts(const T *p, int64_t apart) {
    const VEC low = _mm512_castps128_ps512(_mm_loadu_ps(p));
    const VEC two = _mm512_mask_broadcast_f32x4(low, 0x00F0, _mm_loadu_ps(p + apart));
    const VEC three = _mm512_mask_broadcast_f32x4(two, 0x0F00, _mm_loadu_ps(p + 2 * apart));
    return _mm512_mask_broadcast_f32x4(three, 0xF000, _mm_loadu_ps(p + 3 * apart));
}
INLINE void transpose_parts(const VEC a[PART], VEC r[PART]) {
    const VEC low = _mm512_unpacklo_ps(a[0], a[1]), high = _mm512_unpackhi_ps(a[0], a[1]);
    const VEC low2 = _mm512_unpacklo_ps(a[2], a[3]), high2 = _mm512_unpackhi_ps(a[2], a[3]);
    r[0] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(low), _mm512_castps_pd(low2)));
    r[1] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(low), _mm512_castps_pd(low2)));
    r[2] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(high), _mm512_castps_pd(high2)));
    r[3] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(high), _mm512_castps_pd(high2)));
}
INLINE void v_store_part(T *p, VEC v, const int part) {
    const __m128 parts[4] = {_mm512_castps512_ps128(v), _mm512_extractf32x4_ps(v, 1), _mm512_extractf32x4_ps(v, 2),
                             _mm512_extractf32x4_ps(v, 3)};
    _mm_storeu_ps(p, parts[part]);
}

#define SEVERAL 4
#include "depthwise.h"
#include "depthwise_planes.h"

DEFINE_ROWS(f32_rows_128x1__avx512, 8, 1)
DEFINE_ROWS(f32_rows_64x4__avx512, 4, SEVERAL)
DEFINE_PLANES(f32_planes_8x16__avx512)
