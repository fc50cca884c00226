/* SPDX-License-Identifier: Apache-2.0
 * Groups of few channels in FP32 on AVX-512 with half vectors, 8 lanes, for rows of outputs that leave half of 16 lanes empty. Unlike AVX2 it
 * has masked loads and stores of one operation, and 32 registers: 8 rows and 7 weights. */
#include "kernel.h"
#include "x86/vectors/vec_avx512_half_f32.h"

INLINE VEC v_strided(const T *p, int64_t stride, MASK m) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_mmask_i32gather_ps(v_zero(), m, _mm256_mullo_epi32(lane, _mm256_set1_epi32((int32_t)stride)), p, sizeof(T));
}

/* The first 1 or 2 elements of p in the first lanes; nothing behind them is read. */
INLINE VEC v_load_first(const T *p, const int count) {
    return count == 1 ? v_set1(*p) : _mm256_castpd_ps(_mm256_broadcastsd_pd(_mm_load_sd((const double *)(const void *)p)));
}
enum { MASKS_ARE_CHEAP = 1 };
enum { SHIFTS_ARE_CHEAP = 1 };

#include "depthwise.h"

DEFINE_ROWS(f32_rows_64x1__avx512, 8, 1)
