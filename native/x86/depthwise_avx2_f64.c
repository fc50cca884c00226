/* SPDX-License-Identifier: Apache-2.0
 * Groups of few channels in FP64 on AVX2: 4 lanes. 16 registers: 8 rows and 7 weights, or 4 x 2 outputs and 2 weights. */
#include "kernel.h"
#include "x86/vectors/vec_avx2_f64.h"

INLINE VEC v_strided(const T *p, int64_t stride, MASK m) {
    const __m128i lane = _mm_setr_epi32(0, 1, 2, 3);
    return _mm256_mask_i32gather_pd(v_zero(), p, _mm_mullo_epi32(lane, _mm_set1_epi32((int32_t)stride)), _mm256_castsi256_pd(m), sizeof(T));
}

#define v_shifted(low, high, n) v_shift1(low, high) /* not used */
#define v_load_first(p, count) v_set1(*(p))         /* not used */
enum { MASKS_ARE_CHEAP = 0 };                       /* a masked load is several operations */
enum { SHIFTS_ARE_CHEAP = 0 };

/* 128-bit parts that lie so far apart, in one register; and within each part the transposition of PART registers. */
enum { PART = 2 };
INLINE VEC v_parts(const T *p, int64_t apart) {
    return _mm256_insertf128_pd(_mm256_castpd128_pd256(_mm_loadu_pd(p)), _mm_loadu_pd(p + apart), 1);
}
INLINE void transpose_parts(const VEC a[PART], VEC r[PART]) {
    r[0] = _mm256_unpacklo_pd(a[0], a[1]);
    r[1] = _mm256_unpackhi_pd(a[0], a[1]);
}
INLINE void v_store_part(T *p, VEC v, const int part) { _mm_storeu_pd(p, part ? _mm256_extractf128_pd(v, 1) : _mm256_castpd256_pd128(v)); }

#define SEVERAL 2
#include "depthwise.h"
#include "depthwise_planes.h"

DEFINE_ROWS(f64_rows_32x1__avx2, 8, 1)
DEFINE_ROWS(f64_rows_16x2__avx2, 4, SEVERAL)
DEFINE_PLANES(f64_planes_8x4__avx2)
