/* SPDX-License-Identifier: Apache-2.0
 * One vector type for lanes.h and pack.h: AVX2 + FMA, 4 doubles. n counts lanes from lane 0. */
#include <immintrin.h>

typedef double T;
typedef __m256d VEC;
enum { LANES = 4 };
#define INSTANCE_avx2_f64 ~,
#define DOUBLE 1
#define SUFFIX(name) name##_f64__avx2
#define V(name) _mm256_##name##_pd
#include "vec_avx2.h"

INLINE MASK v_lanes(int64_t lo, int64_t hi) {
    const __m256i lane = _mm256_setr_epi64x(0, 1, 2, 3);
    const int64_t low = pysim_max(0, pysim_min(lo, LANES)), high = pysim_max(0, pysim_min(hi, LANES));
    return _mm256_andnot_si256(_mm256_cmpgt_epi64(_mm256_set1_epi64x(low), lane), _mm256_cmpgt_epi64(_mm256_set1_epi64x(high), lane));
}
/* m holds the first n lanes. A masked store is microcode on Zen (tens of cycles), so the lanes go in powers of two. */
INLINE void v_store_mask(T *p, VEC v, MASK m) {
    const int n = __builtin_popcount((unsigned)_mm256_movemask_pd(_mm256_castsi256_pd(m)));
    if (n == LANES) {
        v_store(p, v);
        return;
    }
    __m128d rest = _mm256_castpd256_pd128(v);
    if (n & 2) {
        _mm_storeu_pd(p, rest);
        rest = _mm256_extractf128_pd(v, 1);
        p += 2;
    }
    if (n & 1) _mm_store_sd(p, rest);
}
INLINE VEC v_shift1(VEC lo, VEC hi) { return _mm256_shuffle_pd(lo, _mm256_permute2f128_pd(lo, hi, 0x21), 0x5); /* lo1 | lo2, lo3 | hi0 */ }
/* Elements 0 2 4 .. and 1 3 5 .. of a:b. */
INLINE VEC v_even(VEC a, VEC b) { return _mm256_permute4x64_pd(_mm256_unpacklo_pd(a, b), 0xD8); }
INLINE VEC v_odd(VEC a, VEC b) { return _mm256_permute4x64_pd(_mm256_unpackhi_pd(a, b), 0xD8); }

INLINE GATHER v_gather_plan(int64_t stride, int64_t phase) {
    const __m256i half = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    const __m256i element =
        _mm256_add_epi32(_mm256_mullo_epi32(half, _mm256_set1_epi32((int32_t)stride)), _mm256_set1_epi32((int32_t)phase));
    const __m256i lane = _mm256_and_si256(element, _mm256_set1_epi32(LANES - 1));
    GATHER g = {.index = _mm256_add_epi32(_mm256_add_epi32(lane, lane), _mm256_setr_epi32(0, 1, 0, 1, 0, 1, 0, 1))};
    for (int32_t i = 0; i < stride; i++) g.from[i] = _mm256_cmpeq_epi32(_mm256_srli_epi32(element, 2), _mm256_set1_epi32(i));
    return g;
}
INLINE VEC v_gather_from(VEC sofar, VEC source, const GATHER *g, int64_t i) {
    const VEC moved = _mm256_castps_pd(_mm256_permutevar8x32_ps(_mm256_castpd_ps(source), g->index));
    return _mm256_blendv_pd(sofar, moved, _mm256_castsi256_pd(g->from[i]));
}
