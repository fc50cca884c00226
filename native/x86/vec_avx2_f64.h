/* SPDX-License-Identifier: Apache-2.0
 * One vector type for lanes.h and pack.h: AVX2 + FMA, 4 doubles. n counts lanes from lane 0. */
#include <immintrin.h>

typedef double T;
typedef __m256d VEC;
enum { LANES = 4 };
#define SUFFIX(name) name##_f64__avx2
#define INLINE static inline __attribute__((always_inline))

INLINE VEC v_zero(void) { return _mm256_setzero_pd(); }
INLINE VEC v_set1(T x) { return _mm256_set1_pd(x); }
INLINE VEC v_load(const T *p) { return _mm256_loadu_pd(p); }
INLINE void v_store(T *p, VEC v) { _mm256_storeu_pd(p, v); }
INLINE VEC v_fma(VEC a, VEC b, VEC c) { return _mm256_fmadd_pd(a, b, c); }
INLINE VEC v_mul(VEC a, VEC b) { return _mm256_mul_pd(a, b); }
INLINE VEC v_add(VEC a, VEC b) { return _mm256_add_pd(a, b); }
/* b where either is NaN. */
INLINE VEC v_max(VEC a, VEC b) { return _mm256_max_pd(a, b); }

typedef __m256i MASK;
INLINE MASK v_lanes(int64_t lo, int64_t hi) {
    const __m256i lane = _mm256_setr_epi64x(0, 1, 2, 3);
    const int64_t low = pysim_max(0, pysim_min(lo, LANES)), high = pysim_max(0, pysim_min(hi, LANES));
    return _mm256_andnot_si256(_mm256_cmpgt_epi64(_mm256_set1_epi64x(low), lane), _mm256_cmpgt_epi64(_mm256_set1_epi64x(high), lane));
}
INLINE VEC v_load_mask(const T *p, MASK m) { return _mm256_maskload_pd(p, m); }
INLINE void v_store_mask(T *p, VEC v, MASK m) { _mm256_maskstore_pd(p, m, v); }
INLINE VEC v_shift1(VEC lo, VEC hi) {
    return _mm256_shuffle_pd(lo, _mm256_permute2f128_pd(lo, hi, 0x21), 0x5); /* lo1 | lo2, lo3 | hi0 */
}
INLINE VEC v_interleave_low(VEC a, VEC b) {
    return _mm256_permute2f128_pd(_mm256_unpacklo_pd(a, b), _mm256_unpackhi_pd(a, b), 0x20);
}
INLINE VEC v_interleave_high(VEC a, VEC b) {
    return _mm256_permute2f128_pd(_mm256_unpacklo_pd(a, b), _mm256_unpackhi_pd(a, b), 0x31);
}

typedef struct {
    __m256i index; /* of 32-bit halves: doubles have no variable cross-lane permute in AVX2 */
    MASK from[16];
} GATHER;
enum { GATHER_MAX = 16 };
INLINE GATHER v_gather_plan(int64_t stride) {
    int32_t index[2 * LANES];
    int64_t from[GATHER_MAX][LANES] = {{0}};
    GATHER g;
    for (int64_t j = 0; j < LANES; j++) {
        index[2 * j] = (int32_t)(j * stride % LANES * 2);
        index[2 * j + 1] = index[2 * j] + 1;
        if (j * stride / LANES < GATHER_MAX) from[j * stride / LANES][j] = -1;
    }
    g.index = _mm256_loadu_si256((const __m256i *)index);
    for (int64_t i = 0; i < GATHER_MAX; i++) g.from[i] = _mm256_loadu_si256((const __m256i *)from[i]);
    return g;
}
INLINE VEC v_gather_from(VEC sofar, VEC source, const GATHER *g, int64_t i) {
    const VEC moved = _mm256_castps_pd(_mm256_permutevar8x32_ps(_mm256_castpd_ps(source), g->index));
    return _mm256_blendv_pd(sofar, moved, _mm256_castsi256_pd(g->from[i]));
}
