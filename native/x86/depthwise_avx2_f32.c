/* SPDX-License-Identifier: Apache-2.0
 * Groups of few channels in FP32 on AVX2: 8 lanes. 16 registers: 8 rows and 7 weights, or 4 x 2 outputs and 2 weights. */
#include "kernel.h"
#include "x86/vectors/vec_avx2_f32.h"

INLINE VEC v_strided(const T *p, int64_t stride, MASK m) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_mask_i32gather_ps(v_zero(), p, _mm256_mullo_epi32(lane, _mm256_set1_epi32((int32_t)stride)), _mm256_castsi256_ps(m),
                                    sizeof(T));
}

#define v_shifted(low, high, n) v_shift1(low, high) /* not used */
#define v_load_first(p, count) v_set1(*(p))         /* not used */
enum { MASKS_ARE_CHEAP = 0 };                       /* a masked load is several operations */
enum { SHIFTS_ARE_CHEAP = 0 };

/* 128-bit parts that lie so far apart, in one register; and within each part the transposition of PART registers. */
enum { PART = 4 };
INLINE VEC v_parts(const T *p, int64_t apart) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm_loadu_ps(p + apart), 1);
}
INLINE void transpose_parts(const VEC a[PART], VEC r[PART]) {
    const VEC low = _mm256_unpacklo_ps(a[0], a[1]), high = _mm256_unpackhi_ps(a[0], a[1]);
    const VEC low2 = _mm256_unpacklo_ps(a[2], a[3]), high2 = _mm256_unpackhi_ps(a[2], a[3]);
    r[0] = _mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(low), _mm256_castps_pd(low2)));
    r[1] = _mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(low), _mm256_castps_pd(low2)));
    r[2] = _mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(high), _mm256_castps_pd(high2)));
    r[3] = _mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(high), _mm256_castps_pd(high2)));
}
INLINE void v_store_part(T *p, VEC v, const int part) { _mm_storeu_ps(p, part ? _mm256_extractf128_ps(v, 1) : _mm256_castps256_ps128(v)); }

#define SEVERAL 2
#ifdef BESIDE_AVX512 /* whose half vectors have tiles of one filter */
#define SEVERAL_ALONE
#endif
#include "depthwise.h"
#include "depthwise_planes.h"

#ifndef SEVERAL_ALONE
DEFINE_ROWS(f32_rows_64x1__avx2, 8, 1)
#endif
DEFINE_ROWS(f32_rows_32x2__avx2, 4, SEVERAL)
DEFINE_PLANES(f32_planes_8x8__avx2)
