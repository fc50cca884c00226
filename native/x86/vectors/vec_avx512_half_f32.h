/* SPDX-License-Identifier: Apache-2.0
 * One vector type for depthwise.h: AVX-512 instructions on half vectors, 8 floats. n counts lanes from lane 0. */
#include <immintrin.h>

typedef float T;
typedef __m256 VEC;
enum { LANES = 8 };
#define SUFFIX(name) name##_half_f32__avx512
#define V(name) _mm256_##name##_ps
#define V_MASK(name) _mm256_##name##_ps_mask
#define v_shifted(low, high, n) _mm256_castsi256_ps(_mm256_alignr_epi32(_mm256_castps_si256(high), _mm256_castps_si256(low), n))
typedef __mmask8 MASK;
#include "vec_avx512.h"

/* Elements 0 2 4 .. and 1 3 5 .. of a:b. */
INLINE VEC v_even(VEC a, VEC b) { return _mm256_permutex2var_ps(a, _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14), b); }
INLINE VEC v_odd(VEC a, VEC b) { return _mm256_permutex2var_ps(a, _mm256_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15), b); }
