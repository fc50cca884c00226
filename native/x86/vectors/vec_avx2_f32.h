/* SPDX-License-Identifier: Apache-2.0
 * One vector type for lanes.h and pack.h: AVX2 + FMA, 8 floats. n counts lanes from lane 0. */
#include <immintrin.h>

typedef float T;
typedef __m256 VEC;
enum { LANES = 8 };
#define INSTANCE_avx2_f32 ~,
#define SUFFIX(name) name##_f32__avx2
#define V(name) _mm256_##name##_ps
#include "vec_avx2.h"

INLINE MASK v_lanes(int64_t lo, int64_t hi) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const int32_t low = (int32_t)pysim_max(0, pysim_min(lo, LANES)), high = (int32_t)pysim_max(0, pysim_min(hi, LANES));
    return _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(low), lane), _mm256_cmpgt_epi32(_mm256_set1_epi32(high), lane));
}
/* m holds the first n lanes. A masked store is microcode on Zen (tens of cycles), so the lanes go in powers of two. */
INLINE void v_store_mask(T *p, VEC v, MASK m) {
    const int n = __builtin_popcount((unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(m)));
    if (n == LANES) {
        v_store(p, v);
        return;
    }
    __m128 rest = _mm256_castps256_ps128(v);
    if (n & 4) {
        _mm_storeu_ps(p, rest);
        rest = _mm256_extractf128_ps(v, 1);
        p += 4;
    }
    if (n & 2) {
        _mm_storel_pi((__m64 *)p, rest);
        rest = _mm_movehl_ps(rest, rest);
        p += 2;
    }
    if (n & 1) _mm_store_ss(p, rest);
}
#ifdef __F16C__ /* an exported kernel is compiled without it */
#define V_HALVES
INLINE VEC v_widen(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
INLINE void v_narrow(uint16_t *p, VEC v) { _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)); }
#endif
INLINE VEC v_shift1(VEC lo, VEC hi) {
    const __m256i middle = _mm256_castps_si256(_mm256_permute2f128_ps(lo, hi, 0x21)); /* lo's upper half, hi's lower half */
    return _mm256_castsi256_ps(_mm256_alignr_epi8(middle, _mm256_castps_si256(lo), 4));
}
/* Elements 0 2 4 .. and 1 3 5 .. of a:b. */
INLINE VEC v_even(VEC a, VEC b) { return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88)), 0xD8)); }
INLINE VEC v_odd(VEC a, VEC b) { return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(_mm256_shuffle_ps(a, b, 0xDD)), 0xD8)); }

INLINE GATHER v_gather_plan(int64_t stride, int64_t phase) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i element =
        _mm256_add_epi32(_mm256_mullo_epi32(lane, _mm256_set1_epi32((int32_t)stride)), _mm256_set1_epi32((int32_t)phase));
    GATHER g = {.index = _mm256_and_si256(element, _mm256_set1_epi32(LANES - 1))};
    for (int32_t i = 0; i < stride; i++) g.from[i] = _mm256_cmpeq_epi32(_mm256_srli_epi32(element, 3), _mm256_set1_epi32(i));
    return g;
}
INLINE VEC v_gather_from(VEC sofar, VEC source, const GATHER *g, int64_t i) {
    return _mm256_blendv_ps(sofar, _mm256_permutevar8x32_ps(source, g->index), _mm256_castsi256_ps(g->from[i]));
}

/* Contract: byte_sums.h. */
#define V_BYTE_SUMS 32
#include "byte_sums.h"
#include "byte_tables.h"
INLINE int v_byte_sums(const BYTE_SUMS *s, const uint8_t *a, const uint8_t *b, uint8_t *y) {
    const __m256i zero = _mm256_set1_epi16((int16_t)s->zero), quarter = _mm256_set1_epi32(4);
    const __m256i x = _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)(const void *)a), _mm256_set1_epi8((char)s->a_flip));
    const __m256i z = _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)(const void *)b), _mm256_set1_epi8((char)s->b_flip));
    const VEC f = v_set1(s->f), g = v_set1(s->g), shift = v_set1(s->shift), sign = v_set1(-0.0f);
    __m256i whole[4], spread = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, -1, -1, -1, 1, -1, -1, -1, 2, -1, -1, -1, 3, -1, -1, -1));
    VEC furthest = v_zero();
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++, spread = _mm256_add_epi8(spread, quarter)) {
        const VEC left = _mm256_cvtepi32_ps(_mm256_shuffle_epi8(x, spread)), right = _mm256_cvtepi32_ps(_mm256_shuffle_epi8(z, spread));
        const VEC t = v_fma(left, f, v_fma(right, g, shift));
        const VEC off = _mm256_sub_ps(t, _mm256_round_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
        whole[i] = _mm256_cvtps_epi32(t);
        furthest = _mm256_max_ps(furthest, _mm256_andnot_ps(sign, off));
    }
    const __m256i low = _mm256_adds_epi16(_mm256_packs_epi32(whole[0], whole[1]), zero);
    const __m256i high = _mm256_adds_epi16(_mm256_packs_epi32(whole[2], whole[3]), zero);
    __m256i bytes = _mm256_max_epu8(_mm256_packus_epi16(low, high), _mm256_set1_epi8((char)s->low));
    bytes = _mm256_min_epu8(bytes, _mm256_set1_epi8((char)s->high));
    _mm256_storeu_si256((__m256i *)(void *)y, _mm256_xor_si256(bytes, _mm256_set1_epi8((char)s->y_flip)));
    return _mm256_movemask_ps(_mm256_cmp_ps(furthest, v_set1(s->far), _CMP_GT_OQ)) != 0;
}
