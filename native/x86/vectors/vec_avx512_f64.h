/* SPDX-License-Identifier: Apache-2.0
 * One vector type for lanes.h and pack.h: AVX-512, 8 doubles. n counts lanes from lane 0. */
#include <immintrin.h>

typedef double T;
typedef __m512d VEC;
enum { LANES = 8 };
#define INSTANCE_avx512_f64 ~,
#define DOUBLE 1
#define SUFFIX(name) name##_f64__avx512
#define V(name) _mm512_##name##_pd
#define V_MASK(name) _mm512_##name##_pd_mask
#define v_shifted(low, high, n) _mm512_castsi512_pd(_mm512_alignr_epi64(_mm512_castpd_si512(high), _mm512_castpd_si512(low), n))
typedef __mmask8 MASK;
#include "vec_avx512.h"

INLINE VEC v_interleave_low(VEC a, VEC b) { return _mm512_permutex2var_pd(a, _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11), b); }
INLINE VEC v_interleave_high(VEC a, VEC b) { return _mm512_permutex2var_pd(a, _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15), b); }
/* Elements 0 2 4 .. and 1 3 5 .. of a:b. */
INLINE VEC v_even(VEC a, VEC b) { return _mm512_permutex2var_pd(a, _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14), b); }
INLINE VEC v_odd(VEC a, VEC b) { return _mm512_permutex2var_pd(a, _mm512_setr_epi64(1, 3, 5, 7, 9, 11, 13, 15), b); }

enum { GATHER_MAX = 16 };
typedef struct {
    __m512i index;
    MASK from[GATHER_MAX];
} GATHER;
INLINE GATHER v_gather_plan(int64_t stride, int64_t phase) {
    const __m512i lane = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
    const __m512i element = _mm512_add_epi64(_mm512_mullo_epi64(lane, _mm512_set1_epi64(stride)), _mm512_set1_epi64(phase));
    GATHER g = {.index = _mm512_and_epi64(element, _mm512_set1_epi64(LANES - 1))};
    for (int64_t i = 0; i < stride; i++) g.from[i] = _mm512_cmpeq_epi64_mask(_mm512_srli_epi64(element, 3), _mm512_set1_epi64(i));
    return g;
}
INLINE VEC v_gather_from(VEC sofar, VEC source, const GATHER *g, int64_t i) {
    return _mm512_mask_permutexvar_pd(sofar, g->from[i], g->index, source);
}
