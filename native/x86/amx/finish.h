/* SPDX-License-Identifier: Apache-2.0
 * The store of a tile of 32 x 32 sums that lie in L1: alpha sum + bias + beta old, within the bounds (pysim_store), and what a call does beside
 * its products. The unit takes 16 cycles for an instruction, so the core has time to take the lines of this tile's results and to fetch the
 * next panel. The includer defines
 *
 *   SUM    float or int32_t
 *   ADDS   a type of the same size in whose arithmetic sums are added: float, or uint32_t, which wraps
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

/* Filters [f, end) of a tile. Most tiles are whole and need sums alone, or a sum with the old results. */
static void finish(const SUM *sums, SUM *out, int64_t out_pitch, int64_t nw, int64_t f, int64_t end, const pysim_store *s) {
    const ADDENDS none = {0};
    const finishing of = finishing_of(s);
    const SUM *filter_bias = s->bias_filters, *bias = s->bias_windows, *old = s->old;
    const int adds = old && s->beta >= 1 && s->beta <= 1;
    if (nw == WIDE && !of.scales && !of.bounded && !filter_bias && !bias && (adds || !old)) {
        for (; f < end; f++)
            for (int64_t i = 0; i < WIDE; i += LANES) {
                const ADDENDS x = *(const ADDENDS *)(const void *)(sums + f * WIDE + i);
                *(ADDENDS_ANYWHERE *)(void *)(out + f * out_pitch + i) = adds ? x + a_load(old + f * out_pitch + i) : x;
            }
        return;
    }
    for (; f < end; f++) {
        const ADDENDS b = filter_bias ? none + (ADDS)filter_bias[f] : none;
        for (int64_t i = 0; i < nw; i += LANES)
            finish_vector(*(const ADDENDS *)(const void *)(sums + f * WIDE + i), &of, b, bias ? bias + i : NULL,
                          old ? old + f * out_pitch + i : NULL, out + f * out_pitch + i, nw - i);
    }
}

/* What goes on beside the products, in STEPS steps of each block of k: pieces this small hardly delay a product. */
typedef struct {
    const pysim_lines *ahead, *end;
    int64_t row, left, fetches; /* of `ahead`: the next row; lines left of the last one, from `line` on; and lines to fetch in a step */
    const char *line, *out;
    int64_t out_pitch, rows, asks, row_bytes; /* rows of `out` whose lines are not asked for yet, and to ask for beside a block */
} beside;

static beside beside_of(const pysim_store *store, const SUM *out, int64_t out_pitch, int64_t nw, int64_t nf, int64_t blocks) {
    const int64_t of = pysim_max(blocks, 1);
    int64_t lines = 0;
    for (int i = 0; i < PYSIM_AHEAD; i++) lines += store->ahead[i].rows * store->ahead[i].lines;
    return (beside){.ahead = store->ahead,
                    .end = store->ahead + PYSIM_AHEAD,
                    .fetches = pysim_ceil_div(lines, STEPS * of),
                    .out = (const char *)out,
                    .out_pitch = out_pitch * (int64_t)sizeof(SUM),
                    .rows = nf,
                    .asks = pysim_ceil_div(nf, of),
                    .row_bytes = nw * (int64_t)sizeof(SUM)};
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
