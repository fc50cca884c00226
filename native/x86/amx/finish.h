/* SPDX-License-Identifier: Apache-2.0
 * The store of a tile of 32 x 32 sums that lie in L1: alpha sum + bias + beta old, within the bounds (pysim_store), rescaled if they are INT32.
 * The includer defines
 *
 *   SUM    float or int32_t
 *   ADDS   a type of the same size in whose arithmetic sums are added: float, or uint32_t, which wraps
 *   RESCALES   sums may be rescaled */
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
/* The first `count` of a vector of sums, as pysim_rescale says; `by`: the scale of the filter, or the first of the windows'; `residual`: the first
 * byte of one, if it is added. */
#ifdef __AVX512F__
INLINE __m512 f_between(float low, __m512 x, float high) {
    return _mm512_min_ps(_mm512_set1_ps(high), _mm512_max_ps(_mm512_set1_ps(low), x));
}

INLINE __m512 with_residual(const pysim_byte_sum *s, __m512 y, const uint8_t *residual, __mmask16 first) {
    const __m128i bytes = _mm_xor_si128(_mm_maskz_loadu_epi8(first, residual), _mm_set1_epi8((char)s->flip));
    const __m512 b = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes)), q = _mm512_roundscale_ps(y, 0);
    return f_between(s->low,
                     _mm512_fmadd_ps(_mm512_set1_ps(s->first), q, _mm512_fmadd_ps(_mm512_set1_ps(s->second), b, _mm512_set1_ps(s->shift))),
                     s->high);
}

INLINE void store_vector(const pysim_rescale *r, ADDENDS sums, __m512 scale, char *out, const uint8_t *residual, __mmask16 first) {
    __m512 y = f_between(r->low, _mm512_mul_ps(_mm512_cvtepi32_ps((__m512i)sums), scale), r->high);
    if (r->result == PYSIM_F32) {
        _mm512_mask_storeu_ps(out, first, y);
        return;
    }
    if (r->sum) y = with_residual(r->sum, y, residual, first);
    const __m512i whole = _mm512_add_epi32(_mm512_cvtps_epi32(y), _mm512_set1_epi32(r->sum ? r->sum->zero : r->zero));
    _mm_mask_storeu_epi8(out, first, _mm512_cvtepi32_epi8(whole));
}

INLINE __mmask16 lanes_of(int64_t count) { return count >= LANES ? 0xFFFF : (__mmask16)((1u << count) - 1); }

INLINE void store_rescaled(const pysim_rescale *r, ADDENDS sums, const float *by, char *out, const uint8_t *residual, int64_t count) {
    const __mmask16 first = lanes_of(count);
    store_vector(r, sums, r->window_step ? _mm512_maskz_loadu_ps(first, by) : _mm512_set1_ps(*by), out, residual, first);
}

/* What bytes of a tile are made with. Where scales and biases are those of windows, those of the first and the second 16; else those of a filter. */
typedef struct {
    __m512 by[2];
    __m512i bias[2];
    __m512i least;    /* of results, in 16 bits */
    __m256i zero;     /* to add to bytes */
    __mmask32 stored; /* of a row */
} byte_store;

/* The second 16 of rows of up to 16 are not read. */
INLINE byte_store byte_store_of(const int columns, const pysim_rescale *r, int64_t nw, const SUM *bias) {
    byte_store of = {
        .least = _mm512_set1_epi16((short)_mm_cvtss_si32(_mm_max_ss(_mm_set_ss(r->sum ? INT16_MIN : r->low), _mm_set_ss(INT16_MIN)))),
        .zero = _mm256_set1_epi8((char)(r->sum ? r->sum->zero : r->zero)),
        .stored = (__mmask32)(~0u >> (WIDE - nw))};
    for (int i = 0; columns && i < 2; i++) {
        const __mmask16 some = (__mmask16)(of.stored >> i * LANES);
        of.by[i] = r->window_step ? _mm512_maskz_loadu_ps(some, r->scales + i * LANES) : _mm512_set1_ps(*r->scales);
        of.bias[i] = bias ? _mm512_maskz_loadu_epi32(some, bias + i * LANES) : _mm512_setzero_si512();
    }
    return of;
}

/* 16 results as whole numbers, without the zero point; sums are not below what the caller bounds them by. */
INLINE __m512i whole_sums(const int adds, const pysim_rescale *r, __m512i sums, __m512 by, const uint8_t *residual, __mmask16 some) {
    const __m512 y = _mm512_mul_ps(_mm512_cvtepi32_ps(sums), by);
    if (adds) return _mm512_cvtps_epi32(with_residual(r->sum, f_between(r->low, y, r->high), residual, some));
    return _mm512_cvtps_epi32(_mm512_min_ps(_mm512_set1_ps(r->high), y));
}

/* Rows of sums as bytes, 32 at a time: most tiles of networks of bytes. `columns`, `adds`, `whole`: constants. */
INLINE void store_bytes(const int columns, const int adds, const int whole, const SUM *sums, char *out, int64_t out_pitch, int64_t nw,
                        int64_t f, int64_t end, const SUM *bias, const pysim_rescale *given) {
    const __m512i order = _mm512_castsi256_si512(
        _mm256_set_epi64x(0x3E3C3A382E2C2A28, 0x1E1C1A180E0C0A08, 0x3634323026242220, 0x1614121006040200)); /* packs go by 128 bits */
    const pysim_byte_sum sum = adds ? *given->sum : (pysim_byte_sum){0};
    pysim_rescale r = *given; /* stores of bytes may change what pointers point to */
    r.sum = adds ? &sum : NULL;
    byte_store of = byte_store_of(columns, &r, nw, bias);
    for (; f < end; f++) {
        const int64_t at = f * out_pitch;
        __m512i x[2] = {0};
        for (int i = 0; !columns && i < 2; i++)
            of.by[i] = _mm512_set1_ps(r.scales[f * r.filter_step]), of.bias[i] = _mm512_set1_epi32(bias ? bias[f] : 0);
        for (int i = 0; i < 2; i++) {
            const __mmask16 some = whole ? 0xFFFF : (__mmask16)(of.stored >> i * LANES);
            const __m512i own = _mm512_add_epi32(_mm512_load_si512(sums + f * WIDE + i * LANES), of.bias[i]);
            if (whole || some) x[i] = whole_sums(adds, &r, own, of.by[i], adds ? r.residual + at + i * LANES : NULL, some);
        }
        const __m512i both = _mm512_max_epi16(_mm512_packs_epi32(x[0], x[1]), of.least);
        const __m256i bytes = _mm256_add_epi8(_mm512_castsi512_si256(_mm512_permutexvar_epi8(order, both)), of.zero);
        if (whole) _mm256_storeu_si256((__m256i *)(void *)(out + at), bytes);
        else _mm256_mask_storeu_epi8(out + at, of.stored, bytes);
    }
}

INLINE void store_all_bytes(const int columns, const SUM *sums, char *out, int64_t out_pitch, int64_t nw, int64_t f, int64_t end,
                            const SUM *bias, const pysim_rescale *r) {
    if (r->sum && nw == WIDE) store_bytes(columns, 1, 1, sums, out, out_pitch, nw, f, end, bias, r);
    else if (r->sum) store_bytes(columns, 1, 0, sums, out, out_pitch, nw, f, end, bias, r);
    else if (nw == WIDE) store_bytes(columns, 0, 1, sums, out, out_pitch, nw, f, end, bias, r);
    else store_bytes(columns, 0, 0, sums, out, out_pitch, nw, f, end, bias, r);
}

static void store_byte_rows(const SUM *sums, char *out, int64_t out_pitch, int64_t nw, int64_t f, int64_t end, const SUM *bias,
                            const pysim_rescale *r) {
    store_all_bytes(0, sums, out, out_pitch, nw, f, end, bias, r);
}

/* The same where scales and biases are those of windows. */
static void store_byte_columns(const SUM *sums, char *out, int64_t out_pitch, int64_t nw, int64_t f, int64_t end, const SUM *bias,
                               const pysim_rescale *r) {
    store_all_bytes(1, sums, out, out_pitch, nw, f, end, bias, r);
}
#else
INLINE float f_between(float low, float x, float high) { return x < low ? low : x > high ? high : x; }

INLINE void store_rescaled(const pysim_rescale *r, ADDENDS sums, const float *by, char *out, const uint8_t *residual, int64_t count) {
    const float whole = 12582912.0F; /* adding and subtracting 1.5 * 2^23 rounds half to even */
    const pysim_byte_sum *s = r->sum;
    int32_t x[LANES];
    memcpy(x, &sums, sizeof x);
    for (int64_t i = 0; i < pysim_min(count, LANES); i++) {
        float y = f_between(r->low, (float)x[i] * by[r->window_step * i], r->high);
        if (r->result == PYSIM_F32) {
            memcpy(out + i * (int64_t)sizeof y, &y, sizeof y);
            continue;
        }
        y = (y + whole) - whole;
        if (s) {
            const float b = (float)(uint8_t)(residual[i] ^ (uint8_t)s->flip);
            y = f_between(s->low, __builtin_fmaf(s->first, y, __builtin_fmaf(s->second, b, s->shift)), s->high);
        }
        out[i] = (char)((int32_t)((y + whole) - whole) + (s ? s->zero : r->zero));
    }
}
#endif
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
    const int plain = each == 1 && !of.scales && !of.bounded && !old;
    if (plain && !bias && !s->rescale.window_step) {
        store_byte_rows(sums, out, out_pitch, nw, f, end, filter_bias, &s->rescale);
        return;
    }
    if (plain && !filter_bias && !s->rescale.filter_step) {
        store_byte_columns(sums, out, out_pitch, nw, f, end, bias, &s->rescale);
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
                const float *by = s->rescale.scales + f * s->rescale.filter_step + i * s->rescale.window_step;
                store_rescaled(&s->rescale, x, by, to, s->rescale.sum ? s->rescale.residual + f * out_pitch + i : NULL, nw - i);
                continue;
            }
#endif
            if (nw - i >= LANES) *(ADDENDS_ANYWHERE *)(void *)to = x;
            else a_store_first(to, x, nw - i);
        }
    }
}
