/* SPDX-License-Identifier: Apache-2.0
 * The store of a tile of 32 x 32 sums that lie in L1: alpha sum + bias + beta old, within the bounds (pysim_store), and what a call does beside
 * its products. The unit takes 16 cycles for an instruction, so the core has time to store the tile before, to take the lines of
 * this one's results and to fetch the next panel. Stores of 32 rows a power of two apart would otherwise each wait for a line that the
 * others have evicted from L1. The includer defines
 *
 *   SUM    float or int32_t
 *   ADDS   a type of the same size in whose arithmetic sums are added: float, or uint32_t, which wraps */
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

/* Filters [f, end) of a tile. */
static void finish(const SUM *sums, SUM *out, int64_t out_pitch, int64_t nw, int64_t f, int64_t end, const pysim_store *s) {
    const ADDENDS none = {0};
    const finishing of = finishing_of(s);
    const SUM *filter_bias = s->bias_filters, *bias = s->bias_windows, *old = s->old;
    for (; f < end; f++) {
        const ADDENDS b = filter_bias ? none + (ADDS)filter_bias[f] : none;
        for (int64_t i = 0; i < nw; i += LANES)
            finish_vector(*(const ADDENDS *)(const void *)(sums + f * WIDE + i), &of, b, bias ? bias + i : NULL,
                          old ? old + f * out_pitch + i : NULL, out + f * out_pitch + i, nw - i);
    }
}

typedef struct {
    pysim_waiting *waiting;
    int64_t stored, each; /* filters of the tile that waits: stored, and to store beside each block of k */
    const char *ahead, *ahead_end, *out;
    int64_t ahead_bytes, out_pitch, rows, row_bytes; /* ahead_bytes: beside each block; rows of `out` whose lines are not asked for yet */
} beside;

static beside beside_of(const pysim_store *store, const SUM *out, int64_t out_pitch, int64_t nw, int64_t nf, int64_t blocks) {
    pysim_waiting *w = store->waiting;
    const int64_t of = pysim_max(blocks, 1);
    return (beside){.waiting = w,
                    .each = w ? pysim_ceil_div(w->nf, of) : 0,
                    .ahead = store->ahead,
                    .ahead_end = store->ahead + store->ahead_lines * 64,
                    .ahead_bytes = pysim_ceil_div(store->ahead_lines, of) * 64,
                    .out = (const char *)out,
                    .out_pitch = out_pitch * (int64_t)sizeof(SUM),
                    .rows = nf,
                    .row_bytes = nw * (int64_t)sizeof(SUM)};
}

static void store_waiting(beside *x, int64_t filters) {
    pysim_waiting *w = x->waiting;
    const int64_t first = x->stored;
    x->stored = pysim_min(first + filters, w->nf);
    finish((const SUM *)(const void *)w->sums[!w->turn], (SUM *)(void *)w->out, w->out_pitch, w->nw, first, x->stored, &w->store);
}

static void beside_block(beside *x) {
    enum { ROWS = 4 };
    if (x->waiting && x->stored < x->waiting->nf) store_waiting(x, x->each);
    for (const char *end = x->ahead + pysim_min(x->ahead_bytes, x->ahead_end - x->ahead); x->ahead < end; x->ahead += 64)
        __builtin_prefetch(x->ahead, 0, 2);
    for (int64_t i = pysim_min(ROWS, x->rows); i > 0; i--, x->rows--, x->out += x->out_pitch) {
        __builtin_prefetch(x->out, 1);
        __builtin_prefetch(x->out + x->row_bytes / 2, 1);
        __builtin_prefetch(x->out + x->row_bytes - 1, 1);
    }
}

/* Where the sums of this call go. */
static SUM *sums_beside(const beside *x, SUM *own) { return x->waiting ? (SUM *)(void *)x->waiting->sums[x->waiting->turn] : own; }

/* Stores what is left of the tile before, and this one or leaves it waiting. */
static void end_beside(beside *x, const SUM *sums, SUM *out, int64_t out_pitch, int64_t nw, int64_t nf, const pysim_store *store) {
    pysim_waiting *w = x->waiting;
    if (!w) {
        finish(sums, out, out_pitch, nw, 0, nf, store);
        return;
    }
    store_waiting(x, w->nf);
    w->store = *store, w->out = (char *)out, w->out_pitch = out_pitch, w->nw = nw, w->nf = nf, w->turn = !w->turn;
}
