/* SPDX-License-Identifier: Apache-2.0
 * SConv's AVX-512 micro-kernel (arXiv 2303.04739, section 5; the shapes are the two readings of its lost numbers).
 *
 *   windows w0..w3 repeated in each 128-bit lane:   w0 w1 w2 w3 | w0 w1 w2 w3 | w0 w1 w2 w3 | w0 w1 w2 w3
 *   filters f0..f3 spread, equal ones adjacent:     f0 f0 f0 f0 | f1 f1 f1 f1 | f2 f2 f2 f2 | f3 f3 f3 f3
 *
 * One multiply-add of the two is a 4x4 outer product, and lane i of the accumulator is four consecutive windows of filter i.
 * 16x4 and 4x16 have four accumulators: exactly the latency of one FMA unit, half rate on two. */
#include <immintrin.h>

#include "kernel.h"

#define INLINE static inline __attribute__((always_inline))

INLINE __mmask8 first_lanes(int64_t n) { return n <= 0 ? 0 : n >= 4 ? 0xf : (__mmask8)((1u << n) - 1u); }

INLINE void outer_body(const int groups_w, const int groups_f, int64_t k, const float *f, const float *w, int64_t w_pitch, float *out,
                       int64_t out_pitch, int64_t nw, int64_t nf, const pysim_store *s) {
    const __m512i spread = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    __m512 acc[4][4];
    __mmask8 in[4];
#pragma GCC unroll 4
    for (int i = 0; i < groups_w; i++) {
        in[i] = first_lanes(nw - 4 * i);
#pragma GCC unroll 4
        for (int j = 0; j < groups_f; j++) acc[i][j] = _mm512_setzero_ps();
    }
    for (int64_t p = 0; p < k; p++) {
        __m512 y[4];
#pragma GCC unroll 4
        for (int j = 0; j < groups_f; j++) y[j] = _mm512_permutexvar_ps(spread, _mm512_castps128_ps512(_mm_loadu_ps(f + 4 * j)));
#pragma GCC unroll 4
        for (int i = 0; i < groups_w; i++) {
            const __m512 x = _mm512_broadcast_f32x4(_mm_maskz_loadu_ps(in[i], w + 4 * i));
#pragma GCC unroll 4
            for (int j = 0; j < groups_f; j++) acc[i][j] = _mm512_fmadd_ps(y[j], x, acc[i][j]);
        }
        f += 4 * groups_f;
        w += w_pitch;
    }
    const float *bias_f = s->bias_filters, *bias_w = s->bias_windows, *old = s->old;
    const __m128 low = _mm_set1_ps((float)s->bounds.low), high = _mm_set1_ps((float)s->bounds.high);
    float lanes[4][4][16];
#pragma GCC unroll 4
    for (int i = 0; i < groups_w; i++)
#pragma GCC unroll 4
        for (int j = 0; j < groups_f; j++) _mm512_storeu_ps(lanes[i][j], acc[i][j]);
    for (int64_t row = 0; row < nf; row++)
        for (int i = 0; i < groups_w; i++) {
            float *to = out + row * out_pitch + 4 * i;
            const __m128 bw = bias_w ? _mm_maskz_loadu_ps(in[i], bias_w + 4 * i) : _mm_setzero_ps();
            const __m128 bias = _mm_add_ps(bw, _mm_set1_ps(bias_f ? bias_f[row] : 0.0f));
            __m128 value = _mm_fmadd_ps(_mm_loadu_ps(&lanes[i][row / 4][row % 4 * 4]), _mm_set1_ps((float)s->alpha), bias);
            if (old) value = _mm_fmadd_ps(_mm_maskz_loadu_ps(in[i], old + row * out_pitch + 4 * i), _mm_set1_ps((float)s->beta), value);
            _mm_mask_storeu_ps(to, in[i], _mm_min_ps(high, _mm_max_ps(low, value))); /* returns the second operand if either is NaN */
        }
}

#define DEFINE_OUTER(windows_, filters_)                                                                                                   \
    void f32_outer_##windows_##x##filters_##__avx512(int64_t k, const void *filters, const void *windows, int64_t window_pitch, void *out, \
                                                     int64_t out_pitch, int64_t nw, int64_t nf, const pysim_store *store) {                \
        outer_body(windows_ / 4, filters_ / 4, k, filters, windows, window_pitch, out, out_pitch, nw, nf, store);                          \
    }
DEFINE_OUTER(16, 4)
DEFINE_OUTER(4, 16)
