/* SPDX-License-Identifier: Apache-2.0
 * The store of a tile of 32 x 32 sums that lie in L1: alpha sum + bias + beta old, within the bounds (pysim_store). The includer defines
 *
 *   SUM    float or int32_t
 *   ADDS   a type of the same size in whose arithmetic sums are added: float, or uint32_t, which wraps */
#include <stdint.h>
#include <string.h>

enum { LANES = 16, WIDE = 32 };
typedef SUM SUMS __attribute__((vector_size(64)));
typedef ADDS ADDENDS __attribute__((vector_size(64)));
typedef int32_t WORDS __attribute__((vector_size(64)));
typedef ADDENDS ADDENDS_ANYWHERE __attribute__((aligned(4)));

INLINE ADDENDS a_load(const void *p) { return *(const ADDENDS_ANYWHERE *)p; }
INLINE ADDENDS a_load_first(const void *p, int64_t n) {
#ifdef __AVX512F__
    return (ADDENDS)_mm512_maskz_loadu_epi32((__mmask16)((1u << n) - 1), p);
#else
    ADDENDS x = {0};
    memcpy(&x, p, (size_t)n * sizeof(SUM));
    return x;
#endif
}
INLINE void a_store_first(void *p, ADDENDS x, int64_t n) {
#ifdef __AVX512F__
    _mm512_mask_storeu_epi32(p, (__mmask16)((1u << n) - 1), (__m512i)x);
#else
    memcpy(p, &x, (size_t)n * sizeof(SUM));
#endif
}

typedef struct {
    ADDENDS alpha, beta;
    SUMS low, high;
    int scales, bounded;
} finishing;

INLINE SUMS chosen(WORDS mask, SUMS x, SUMS y) { return (SUMS)(((WORDS)x & mask) | ((WORDS)y & ~mask)); }

/* `bias` of windows and `old` may be NULL. */
INLINE void finish_vector(ADDENDS x, const finishing *of, ADDENDS filter_bias, const SUM *bias, const SUM *old, SUM *out, int64_t count) {
    const int whole = count >= LANES;
    if (of->scales) x *= of->alpha;
    x += filter_bias;
    if (bias) x += whole ? a_load(bias) : a_load_first(bias, count);
    if (old) x += of->beta * (whole ? a_load(old) : a_load_first(old, count));
    if (of->bounded) {
        const SUMS y = (SUMS)x;
        x = (ADDENDS)chosen(y < of->low, of->low, chosen(y > of->high, of->high, y));
    }
    if (whole) *(ADDENDS_ANYWHERE *)(void *)out = x;
    else a_store_first(out, x, count);
}

static void finish(const SUM *sums, SUM *out, int64_t out_pitch, int64_t nw, int64_t nf, const pysim_store *s) {
    const ADDENDS none = {0};
    const SUMS nothing = {0};
    const finishing of = {.alpha = none + (ADDS)(SUM)s->alpha,
                          .beta = none + (ADDS)(SUM)s->beta,
                          .low = nothing + (SUM)s->bounds.low,
                          .high = nothing + (SUM)s->bounds.high,
                          .scales = !(s->alpha >= 1 && s->alpha <= 1),
                          .bounded = s->bounds.low > UNBOUNDED_LOW || s->bounds.high < UNBOUNDED_HIGH};
    const SUM *filter_bias = s->bias_filters, *bias = s->bias_windows, *old = s->old;
    for (int64_t f = 0; f < nf; f++) {
        const ADDENDS b = filter_bias ? none + (ADDS)filter_bias[f] : none;
        for (int64_t i = 0; i < nw; i += LANES)
            finish_vector(*(const ADDENDS *)(const void *)(sums + f * WIDE + i), &of, b, bias ? bias + i : NULL,
                          old ? old + f * out_pitch + i : NULL, out + f * out_pitch + i, nw - i);
    }
}
