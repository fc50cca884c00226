/* SPDX-License-Identifier: Apache-2.0
 * What a call does beside its products. The unit takes 16 cycles for an instruction, so the core has time to store the tile before, to take the
 * lines of this tile's results and to fetch the next panel. The includer defines, beside what finish.h needs,
 *
 *   STEPS   in how many steps of a block of k lines are fetched
 *   STORES  in how many of them results are stored */
#include "finish.h"

/* What goes on beside the products, in STEPS steps of each block of k: pieces this small hardly delay a product. */
typedef struct {
    const pysim_lines *ahead, *end;
    int64_t row, left, fetches; /* of `ahead`: the next row; lines left of the last one, from `line` on; and lines to fetch in a step */
    const char *line, *out;
    int64_t out_pitch, rows, asks, row_bytes; /* rows of `out` whose lines are not asked for yet, and to ask for beside a block */
} beside;

/* Fields are set one by one: a struct copied by vectors waits for the stores of its fields, and these for all stores before, which may miss L1. */
INLINE void begin_beside(beside *x, const pysim_store *store, const void *out, int64_t out_pitch, int64_t nw, int64_t nf, int64_t blocks) {
    const int64_t of = pysim_max(blocks, 1);
    int64_t lines = 0;
    for (int i = 0; i < PYSIM_AHEAD; i++) lines += store->ahead[i].rows * store->ahead[i].lines;
    x->ahead = store->ahead, x->end = store->ahead + PYSIM_AHEAD;
    x->row = x->left = 0, x->line = NULL;
    x->fetches = pysim_ceil_div(lines, STEPS * of);
    x->out = out, x->out_pitch = out_pitch * result_bytes(store);
    x->rows = nf, x->asks = pysim_ceil_div(nf, of), x->row_bytes = nw * result_bytes(store);
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

/* A tile whose sums are complete waits, and is stored beside the products of the next: stores of 32 rows a power of two apart would otherwise each
 * wait for a line that the others have evicted from L1. */
typedef struct {
    beside lines;
    pysim_waiting *waiting;
    int64_t stored, each; /* filters of the tile that waits: stored, and to store in a step that stores */
} work;

INLINE void begin_work(work *x, const pysim_store *store, const void *out, int64_t out_pitch, int64_t nw, int64_t nf, int64_t blocks) {
    begin_beside(&x->lines, store, out, out_pitch, nw, nf, blocks);
    x->waiting = store->waiting, x->stored = 0;
    x->each = x->waiting ? pysim_ceil_div(x->waiting->nf, STORES * pysim_max(blocks, 1)) : 0;
}

static void store_waiting(work *x, int64_t filters) {
    pysim_waiting *w = x->waiting;
    const int64_t first = x->stored;
    if (first >= w->nf) return;
    x->stored = pysim_min(first + filters, w->nf);
    finish((const SUM *)(const void *)w->sums[!w->turn], w->out, w->out_pitch, w->nw, first, x->stored, &w->store);
}

INLINE void work_step(work *x, const int step) {
    if (step % (STEPS / STORES) == 0 && x->waiting && x->stored < x->waiting->nf) store_waiting(x, x->each);
    beside_step(&x->lines, step);
}

/* Where the sums of this call go. */
static SUM *sums_beside(const work *x, SUM *own) { return x->waiting ? (SUM *)(void *)x->waiting->sums[x->waiting->turn] : own; }

typedef uint64_t STORE_WORD __attribute__((may_alias));

/* Word by word: a vector over words that were written just now would wait until these, and with them all stores before, have reached L1. */
INLINE void keep_store(pysim_store *to, const pysim_store *from) {
    enum { COUNT = sizeof *to / sizeof(STORE_WORD) };
    _Static_assert(sizeof *to % sizeof(STORE_WORD) == 0, "whole words");
    for (int i = 0; i < COUNT; i++) {
        STORE_WORD word = ((const STORE_WORD *)(const void *)from)[i];
        __asm__("" : "+r"(word)); /* no vectors */
        ((STORE_WORD *)(void *)to)[i] = word;
    }
}

/* Stores what is left of the tile before, and this one or leaves it waiting; `added`: its sums began at the old results. */
static void end_beside(work *x, const SUM *sums, void *out, int64_t out_pitch, int64_t nw, int64_t nf, const pysim_store *store,
                       int added) {
    pysim_waiting *w = x->waiting;
    if (!w) {
        pysim_store rest = *store;
        if (added) rest.old = NULL;
        finish(sums, out, out_pitch, nw, 0, nf, &rest);
        return;
    }
    store_waiting(x, w->nf);
    keep_store(&w->store, store);
    if (added) w->store.old = NULL;
    w->out = out, w->out_pitch = out_pitch, w->nw = nw, w->nf = nf, w->turn = !w->turn;
}
