/* SPDX-License-Identifier: Apache-2.0
 * The store of a tile of 32 x 32 sums that lie in L1: alpha sum + bias + beta old, within the bounds (pysim_store), rescaled if they are INT32;
 * and what a call does beside its products. The unit takes 16 cycles for an instruction, so the core has time to take the lines of this tile's
 * results and to fetch the next panel. The includer defines
 *
 *   SUM    float or int32_t
 *   ADDS   a type of the same size in whose arithmetic sums are added: float, or uint32_t, which wraps
 *   RESCALES   sums may be rescaled
 *   STEPS  in how many steps of a block of k lines are fetched */
#include <stdint.h>
#include <string.h>

enum { LANES = 16, WIDE = 32 };
_Static_assert(PYSIM_WAITING_BYTES == WIDE * WIDE * sizeof(SUM), "sums of a tile");
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
INLINE ADDENDS finished_vector(ADDENDS x, const finishing *of, ADDENDS filter_bias, const SUM *bias, const SUM *old, int64_t count) {
    const int whole = count >= LANES;
    if (of->scales) x *= of->alpha;
    x += filter_bias;
    if (bias) x += whole ? a_load(bias) : a_load_first(bias, count);
    if (old) x += of->beta * (whole ? a_load(old) : a_load_first(old, count));
    if (of->bounded) {
        const SUMS y = (SUMS)x;
        x = (ADDENDS)chosen(y < of->low, of->low, chosen(y > of->high, of->high, y));
    }
    return x;
}

INLINE finishing finishing_of(const pysim_store *s) {
    const ADDENDS none = {0};
    const SUMS nothing = {0};
    return (finishing){.alpha = none + (ADDS)(SUM)s->alpha,
                       .beta = none + (ADDS)(SUM)s->beta,
                       .low = nothing + (SUM)s->bounds.low,
                       .high = nothing + (SUM)s->bounds.high,
                       .scales = !(s->alpha >= 1 && s->alpha <= 1),
                       .bounded = s->bounds.low > UNBOUNDED_LOW || s->bounds.high < UNBOUNDED_HIGH};
}

#ifdef RESCALES
/* The first `count` of a vector of sums, as pysim_rescale says; `by`: the scale of the filter, or the first of the windows'. */
INLINE void store_rescaled(const pysim_rescale *r, ADDENDS sums, const float *by, char *out, int64_t count) {
#ifdef __AVX512F__
    const __mmask16 first = count >= LANES ? 0xFFFF : (__mmask16)((1u << count) - 1);
    const __m512 scale = r->window_step ? _mm512_maskz_loadu_ps(first, by) : _mm512_set1_ps(*by);
    __m512 y = _mm512_mul_ps(_mm512_cvtepi32_ps((__m512i)sums), scale);
    y = _mm512_min_ps(_mm512_set1_ps(r->high), _mm512_max_ps(_mm512_set1_ps(r->low), y));
    if (r->result == PYSIM_F32) {
        _mm512_mask_storeu_ps(out, first, y);
        return;
    }
    const __m128i bytes = _mm512_cvtepi32_epi8(_mm512_add_epi32(_mm512_cvtps_epi32(y), _mm512_set1_epi32(r->zero)));
    if (count >= LANES) _mm_storeu_si128((__m128i *)(void *)out, bytes);
    else _mm_mask_storeu_epi8(out, first, bytes);
#else
    const float whole = 12582912.0F; /* adding and subtracting 1.5 * 2^23 rounds half to even */
    int32_t x[LANES];
    memcpy(x, &sums, sizeof x);
    for (int64_t i = 0; i < pysim_min(count, LANES); i++) {
        const float scaled = (float)x[i] * by[r->window_step * i], y = scaled < r->low ? r->low : scaled > r->high ? r->high : scaled;
        if (r->result == PYSIM_F32) memcpy(out + i * (int64_t)sizeof y, &y, sizeof y);
        else out[i] = (char)((int32_t)((y + whole) - whole) + r->zero);
    }
#endif
}
#endif

#if defined RESCALES && defined __AVX512F__
/* Rows of WIDE sums, with or without a bias, as bytes: most tiles of networks of bytes. */
static void store_rows(const SUM *sums, char *out, int64_t out_pitch, int64_t f, int64_t end, const SUM *bias, const pysim_rescale *r) {
    const __m512 low = _mm512_set1_ps(r->low), high = _mm512_set1_ps(r->high);
    const __m512i zero = _mm512_set1_epi32(r->zero);
    const float *scales = r->scales;
    const int64_t step = r->filter_step;
    for (; f < end; f++) {
        const __m512 by = _mm512_set1_ps(scales[f * step]);
        const __m512i b = _mm512_set1_epi32(bias ? bias[f] : 0);
        for (int i = 0; i < 2; i++) {
            const __m512i x = _mm512_add_epi32(_mm512_load_si512(sums + f * WIDE + i * LANES), b);
            const __m512 y = _mm512_min_ps(high, _mm512_max_ps(low, _mm512_mul_ps(_mm512_cvtepi32_ps(x), by)));
            const __m128i bytes = _mm512_cvtepi32_epi8(_mm512_add_epi32(_mm512_cvtps_epi32(y), zero));
            _mm_storeu_si128((__m128i *)(void *)(out + f * out_pitch + i * LANES), bytes);
        }
    }
}
#endif

/* Bytes of a result. */
INLINE int64_t result_bytes(const pysim_store *s) { return s->rescale.scales && s->rescale.result != PYSIM_F32 ? 1 : (int64_t)sizeof(SUM); }

/* Filters [f, end) of a tile. Most tiles are whole and need sums alone, or a sum with the old results. */
static void finish(const SUM *sums, char *out, int64_t out_pitch, int64_t nw, int64_t f, int64_t end, const pysim_store *s) {
    const ADDENDS none = {0};
    const finishing of = finishing_of(s);
    const SUM *filter_bias = s->bias_filters, *bias = s->bias_windows, *old = s->old;
    const int adds = old && s->beta >= 1 && s->beta <= 1, scaled = s->rescale.scales != NULL;
    const int64_t each = result_bytes(s);
    if (nw == WIDE && !of.scales && !of.bounded && !filter_bias && !bias && (adds || !old) && !scaled) {
        for (; f < end; f++)
            for (int64_t i = 0; i < WIDE; i += LANES) {
                const ADDENDS x = *(const ADDENDS *)(const void *)(sums + f * WIDE + i);
                *(ADDENDS_ANYWHERE *)(void *)(out + (f * out_pitch + i) * each) = adds ? x + a_load(old + f * out_pitch + i) : x;
            }
        return;
    }
#if defined RESCALES && defined __AVX512F__
    if (nw == WIDE && each == 1 && !of.scales && !of.bounded && !bias && !old && !s->rescale.window_step) {
        store_rows(sums, out, out_pitch, f, end, filter_bias, &s->rescale);
        return;
    }
#endif
    for (; f < end; f++) {
        const ADDENDS b = filter_bias ? none + (ADDS)filter_bias[f] : none;
        for (int64_t i = 0; i < nw; i += LANES) {
            const ADDENDS x = finished_vector(*(const ADDENDS *)(const void *)(sums + f * WIDE + i), &of, b, bias ? bias + i : NULL,
                                              old ? old + f * out_pitch + i : NULL, nw - i);
            char *to = out + (f * out_pitch + i) * each;
#ifdef RESCALES
            if (scaled) {
                store_rescaled(&s->rescale, x, s->rescale.scales + f * s->rescale.filter_step + i * s->rescale.window_step, to, nw - i);
                continue;
            }
#endif
            if (nw - i >= LANES) *(ADDENDS_ANYWHERE *)(void *)to = x;
            else a_store_first(to, x, nw - i);
        }
    }
}

/* What goes on beside the products, in STEPS steps of each block of k: pieces this small hardly delay a product. */
typedef struct {
    const pysim_lines *ahead, *end;
    int64_t row, left, fetches; /* of `ahead`: the next row; lines left of the last one, from `line` on; and lines to fetch in a step */
    const char *line, *out;
    int64_t out_pitch, rows, asks, row_bytes; /* rows of `out` whose lines are not asked for yet, and to ask for beside a block */
} beside;

static beside beside_of(const pysim_store *store, const void *out, int64_t out_pitch, int64_t nw, int64_t nf, int64_t blocks) {
    const int64_t of = pysim_max(blocks, 1);
    int64_t lines = 0;
    for (int i = 0; i < PYSIM_AHEAD; i++) lines += store->ahead[i].rows * store->ahead[i].lines;
    return (beside){.ahead = store->ahead,
                    .end = store->ahead + PYSIM_AHEAD,
                    .fetches = pysim_ceil_div(lines, STEPS * of),
                    .out = out,
                    .out_pitch = out_pitch * result_bytes(store),
                    .rows = nf,
                    .asks = pysim_ceil_div(nf, of),
                    .row_bytes = nw * result_bytes(store)};
}

/* Goes to the next row of lines; 0 if there is none. */
static int next_row(beside *x) {
    while (x->ahead < x->end && x->row == x->ahead->rows) x->ahead++, x->row = 0;
    if (x->ahead == x->end) return 0;
    x->line = x->ahead->at + x->row++ * x->ahead->pitch;
    x->left = x->ahead->lines;
    return 1;
}

INLINE void fetch(beside *x) {
    for (int64_t more = x->fetches; more > 0;) {
        if (!x->left && !next_row(x)) {
            x->fetches = 0;
            return;
        }
        const int64_t now = pysim_min(more, x->left);
        const char *line = x->line, *end = line + 64 * now;
        x->line = end, x->left -= now, more -= now;
        if (x->ahead->written)
            for (; line < end; line += 64) __builtin_prefetch(line, 1);
        else
            for (; line < end; line += 64) __builtin_prefetch(line, 0, 2);
    }
}

INLINE void beside_step(beside *x, const int step) {
    fetch(x);
    if (step != STEPS / 3) return;
    for (int64_t i = pysim_min(x->asks, x->rows); i > 0; i--, x->rows--, x->out += x->out_pitch) {
        __builtin_prefetch(x->out, 1);
        __builtin_prefetch(x->out + x->row_bytes / 2, 1);
        __builtin_prefetch(x->out + x->row_bytes - 1, 1);
    }
}
