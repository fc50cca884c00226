/* SPDX-License-Identifier: Apache-2.0
 * Micro-kernels and packing of forms `groups`, `pairs`, `bounded`, `pixels` and `unpacked` (native/kernels.inc): 4 bytes of neighbouring k fill a lane of windows, and a filter's
 * 4 bytes are broadcast. Of groups of bytes one operand is unsigned; packing makes it so by adding 128, and the caller's bias takes 128 times the
 * other's sum off again. Pairs are two bytes that packing widens to 16 bits, both signed. Compiled once per target and type; TARGET names the
 * target. */
#if !defined PRODUCTS && !defined HALVES && !defined __clang__
#pragma GCC optimize("O2") /* at -O3 GCC reorders the products of pairs and spills: 5 % longer on a Zen 3 */
#endif
#include "vectors.h"
#if defined PAIRS
#define FORM pairs
#elif defined BOUNDED
#define FORM bounded
#else
#define FORM groups
#endif
#if defined HALVES || (WIDTH == 512 && !defined PAIRS)
#include "pack.h"
#else
#include "pack_bytes.h"
#endif
#ifndef PACKING
/* Constant array bounds: GCC keeps accumulators in memory if the bounds are variable. */
enum { MAX_FILTERS = 14, MAX_VECTORS = 4 };
/* As in lanes.h, in rows of the operand along the lanes, which are as long as FP32's. */
enum { ROWS_AHEAD = 96, MIN_PREFETCHED_FILTERS = 5 };

#define ARGUMENTS                                                                                                                    \
    int64_t k, const void *filters, const void *windows, int64_t window_pitch, void *out, int64_t out_pitch, int64_t nw, int64_t nf, \
        const pysim_store *store

#if defined PAIRS && WIDTH == 512
#define MULTIPLIED(sum, x, y) _mm512_dpwssd_epi32(sum, x, y)
#elif defined PAIRS
#define MULTIPLIED(sum, x, y) s_add(sum, I(madd_epi16)(x, y))
#else
#define MULTIPLIED(sum, x, y) s_dot(sum, x, y)
#endif
#ifdef PAIRS
#define OPERAND_OF(x, is_unsigned) (x)
typedef WORDS FACTORS;
#else
#define OPERAND_OF(x, is_unsigned) ((is_unsigned) ? unsigned_of(x) : signed_of(x))
typedef OPERAND FACTORS;
#endif

#ifndef BOUNDED
/* `swapped`: filters are the unsigned operand. */
INLINE void k_loop(const int nv, const int nf, const int swapped, int64_t groups, const uint32_t *f, int64_t f_pitch, const uint32_t *w,
                   int64_t w_pitch, SUMS acc[MAX_FILTERS][MAX_VECTORS]) {
#pragma GCC unroll 2
    for (int64_t p = 0; p < groups; p++, f += f_pitch, w += w_pitch) {
        FACTORS x[MAX_VECTORS];
#pragma GCC unroll 4
        for (int v = 0; nf >= MIN_PREFETCHED_FILTERS && v < nv; v++) __builtin_prefetch(w + ROWS_AHEAD * w_pitch + v * LANES);
        __builtin_prefetch(f + ROWS_AHEAD * f_pitch);
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) x[v] = OPERAND_OF(w_load(w + v * LANES), !swapped);
#pragma GCC unroll 16
        for (int j = 0; j < nf; j++) {
            const FACTORS y = OPERAND_OF(w_set1(f[j]), swapped);
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++) acc[j][v] = swapped ? MULTIPLIED(acc[j][v], y, x[v]) : MULTIPLIED(acc[j][v], x[v], y);
        }
    }
}
#endif

#ifndef HALVES
/* The scales of row j's vectors. */
INLINE void scales_of(const pysim_rescale *r, const int nv, int j, MASK tail, FLOATS by[MAX_VECTORS]) {
#pragma GCC unroll 4
    for (int v = 0; v < nv; v++)
        if (!r->window_step) by[v] = v ? by[0] : I(set1_ps)(r->scales[j * r->filter_step]);
        else if (j == 0) by[v] = v < nv - 1 ? I(loadu_ps)(r->scales + v * LANES) : f_load_mask(r->scales + v * LANES, tail);
}

INLINE void store_scaled(const int nv, const int nf, int64_t first, SUMS acc[MAX_FILTERS][MAX_VECTORS], void *out, int64_t out_pitch,
                         int64_t nw, MASK tail, const pysim_rescale *given) {
    pysim_rescale own = *given; /* stores of bytes may change what pointers point to */
    own.scales += first * own.filter_step;
    const pysim_rescale *r = &own;
    FLOATS by[MAX_VECTORS];
    char *to = out;
    __asm__("" : "+r"(to));
    if (r->result == PYSIM_F32) {
        const FLOATS low = I(set1_ps)(r->low), high = I(set1_ps)(r->high);
#pragma GCC unroll 16
        for (int j = 0; j < nf; j++, to += out_pitch * (int64_t)sizeof(float)) {
            float *row = (float *)(void *)to;
            scales_of(r, nv, j, tail, by);
#pragma GCC unroll 4
            for (int v = 0; v < nv - 1; v++) I(storeu_ps)(row + v * LANES, f_scaled(acc[j][v], by[v], low, high));
            f_store_mask(row + (nv - 1) * LANES, f_scaled(acc[j][nv - 1], by[nv - 1], low, high), tail);
        }
        return;
    }
#ifdef ADDS
    if (r->sum) {
        const uint8_t *residual = r->residual + first * out_pitch;
#pragma GCC unroll 16
        for (int j = 0; j < nf; j++, to += out_pitch, residual += out_pitch) {
            scales_of(r, nv, j, tail, by);
            b_store_sum(r, nv, acc[j], by, residual, (uint8_t *)to, nw);
        }
        return;
    }
#endif
    const BYTE_ROW row = byte_row(r);
    int next = 0;
#if WIDTH == 512
    enum { TOGETHER = 4 };
    if (nv == 1 && r->window_step && nw == LANES && out_pitch == LANES) { /* rows of one vector behind each other: four at once */
        scales_of(r, nv, 0, tail, by);
#pragma GCC unroll 4
        for (; next + TOGETHER <= nf; next += TOGETHER, to += TOGETHER * LANES) {
            __m512i whole[TOGETHER];
#pragma GCC unroll 4
            for (int j = 0; j < TOGETHER; j++) whole[j] = b_whole(&row, acc[next + j][0], by[0]);
            b_store_whole(&row, TOGETHER, whole, (uint8_t *)to, TOGETHER * LANES);
        }
    }
#endif
#pragma GCC unroll 16
    for (int j = 0; j < nf; j++) {
        if (nv == 1 && j < next) continue;
        scales_of(r, nv, j, tail, by);
        b_store_row(&row, nv, acc[j], by, (uint8_t *)to, nw);
        to += out_pitch;
    }
}
#endif

/* Complete sums to results, of filters from `first` of the tile on; the bias of filters only if it is not in the sums yet (`biased`). */
INLINE void finish(const int nv, const int nf, int64_t first, const int biased, SUMS acc[MAX_FILTERS][MAX_VECTORS], T *out,
                   int64_t out_pitch, int64_t nw, const pysim_store *s) {
    const MASK tail = m_first(nw - (nv - 1) * LANES);
    /* One step at a time for all accumulators, as in lanes.h. */
    if (!(s->alpha >= 1 && s->alpha <= 1)) {
        const SUMS alpha = s_set1(FACTOR(s->alpha));
#pragma GCC unroll 16
        for (int j = 0; j < nf; j++)
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++) acc[j][v] = s_fma(acc[j][v], alpha, s_zero());
    }
    if (s->bias_filters && !biased) {
        const T *bias = (const T *)s->bias_filters + first;
#pragma GCC unroll 16
        for (int j = 0; j < nf; j++) {
            const SUMS b = s_set1(bias[j]);
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++) acc[j][v] = s_add(acc[j][v], b);
        }
    }
    if (s->bias_windows) {
        const T *bias = s->bias_windows;
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) {
            const SUMS b = v < nv - 1 ? s_load(bias + v * LANES) : s_load_mask(bias + v * LANES, tail);
#pragma GCC unroll 16
            for (int j = 0; j < nf; j++) acc[j][v] = s_add(acc[j][v], b);
        }
    }
    if (s->old) {
        const T *old = (const T *)s->old + first * out_pitch;
        const SUMS beta = s_set1(FACTOR(s->beta));
        __asm__("" : "+r"(old));
#pragma GCC unroll 16
        for (int j = 0; j < nf; j++, old += out_pitch)
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++)
                acc[j][v] = s_fma(v < nv - 1 ? s_load(old + v * LANES) : s_load_mask(old + v * LANES, tail), beta, acc[j][v]);
    }
    if (!UNBOUNDED(s->bounds.low, s->bounds.high)) {
        const SUMS low = s_set1((T)s->bounds.low), high = s_set1((T)s->bounds.high);
#pragma GCC unroll 16
        for (int j = 0; j < nf; j++)
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++) acc[j][v] = s_between(low, high, acc[j][v]);
    }
#ifndef HALVES
    if (s->rescale.scales) {
        store_scaled(nv, nf, first, acc, out, out_pitch, nw, tail, &s->rescale);
        return;
    }
#endif
    __asm__("" : "+r"(out));
#pragma GCC unroll 16
    for (int j = 0; j < nf; j++, out += out_pitch) {
#pragma GCC unroll 4
        for (int v = 0; v < nv - 1; v++) s_store(out + v * LANES, acc[j][v]);
        if (WIDTH == 256 && nw == nv * LANES) s_store(out + (nv - 1) * LANES, acc[j][nv - 1]); /* masked stores are microcoded on Zen */
        else s_store_mask(out + (nv - 1) * LANES, acc[j][nv - 1], tail);
    }
}

#define NAME3(dtype, form, w, f, target) dtype##_##form##_##w##x##f##__##target
#define NAME2(dtype, form, w, f, target) NAME3(dtype, form, w, f, target)
#define NAME(w, f) NAME2(DTYPE, FORM, w, f, TARGET)

#ifdef BOUNDED
#include "bounded.h"
#include "pixels.h"
#else
/* Every tile size is an instance with constant bounds, shared by all rows and orders of operands: results are finished in many ways, which takes GCC
 * longer than the products. `first` of a call's filters; f_pitch: filters of the row, or as pysim_store.filter_pitch. */
typedef void (*instance)(int64_t first, int64_t k, const void *filters, int64_t f_pitch, const void *windows, int64_t w_pitch, void *out,
                         int64_t out_pitch, int64_t nw, const pysim_store *s);
static const instance sizes[MAX_VECTORS + 1][MAX_FILTERS + 1];
#if defined HALVES || defined PAIRS
enum { SWAPS = 0 }; /* operands are alike */
#else
enum { SWAPS = 1 };
#endif
#if defined PRODUCTS && WIDTH == 512 && !defined PAIRS
#include "unpacked.h"
#endif

ONE_OF_MANY void body(const int nv, const int nf, int64_t first, int64_t k, const void *filters, int64_t f_pitch, const void *windows,
                      int64_t w_pitch, void *out, int64_t out_pitch, int64_t nw, const pysim_store *s) {
    SUMS acc[MAX_FILTERS][MAX_VECTORS];
#pragma GCC unroll 16
    for (int j = 0; j < nf; j++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) acc[j][v] = s_zero();
#ifdef UNPACKED
    if (s->filter_pitch) add_rows(nv, nf, k / GROUP, filters, f_pitch, windows, w_pitch, acc);
    else
#endif
        if (SWAPS && s->swapped)
        k_loop(nv, nf, 1, k / GROUP, filters, f_pitch, windows, w_pitch, acc);
    else k_loop(nv, nf, 0, k / GROUP, filters, f_pitch, windows, w_pitch, acc);
    finish(nv, nf, first, 0, acc, out, out_pitch, nw, s);
}

#define DEFINE(nv, nf)                                                                                                                 \
    static void size_##nv##x##nf(int64_t first, int64_t k, const void *filters, int64_t f_pitch, const void *windows, int64_t w_pitch, \
                                 void *out, int64_t out_pitch, int64_t nw, const pysim_store *s) {                                     \
        body(nv, nf, first, k, filters, f_pitch, windows, w_pitch, out, out_pitch, nw, s);                                             \
    }
#define LIST(nv, nf) [nv][nf] = size_##nv##x##nf,
#define TO4(M, v) M(v, 1) M(v, 2) M(v, 3) M(v, 4)
#define TO6(M, v) TO4(M, v) M(v, 5) M(v, 6)
#define TO9(M, v) TO6(M, v) M(v, 7) M(v, 8) M(v, 9)
#define TO14(M, v) TO9(M, v) M(v, 10) M(v, 11) M(v, 12) M(v, 13) M(v, 14)
#if WIDTH == 512 && defined PAIRS
#define SIZES(M) TO9(M, 1)
#define ROWS(M) M(16, 8)
#elif WIDTH == 512
#define SIZES(M) TO14(M, 1) TO14(M, 2) TO9(M, 3) TO6(M, 4)
#define ROWS(M) M(32, 14) M(48, 9) M(64, 6)
#elif defined PRODUCTS || defined PAIRS
#define SIZES(M) TO6(M, 1) TO6(M, 2)
#define ROWS(M) M(16, 6)
#else
#define SIZES(M) TO4(M, 1) TO4(M, 2)
#define ROWS(M) M(16, 4)
#endif
SIZES(DEFINE)
static const instance sizes[MAX_VECTORS + 1][MAX_FILTERS + 1] = {SIZES(LIST)};

#define ROW(w, f)               \
    void NAME(w, f)(ARGUMENTS); \
    void NAME(w, f)(ARGUMENTS) { sizes[(nw + LANES - 1) / LANES][nf](0, k, filters, f, windows, window_pitch, out, out_pitch, nw, store); }
ROWS(ROW)
#endif

#ifdef PAIRS
#include "winograd.h"
#endif
#endif
