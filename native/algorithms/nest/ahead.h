/* SPDX-License-Identifier: Apache-2.0
 * What the tiles of a channel set share, and form tiles' lines that are fetched beside products: the unit leaves the core's other units idle. Part
 * of nest.c. */
#ifndef PYSIM_NEST_AHEAD_H
#define PYSIM_NEST_AHEAD_H
#include "algorithms/nest/data.h"

enum { ALIGN = 64 };

/* What passes leave in L2, 2 MiB on every CPU with tiles, beside results and lines that are fetched: panels that all passes read, if with those of
 * one pass they are no more. The next passes do not fetch them. */
enum { NEAR_BYTES = 7 << 18 };

typedef struct {
    char *windows, *filters;            /* packed panels */
    int64_t window_panel, filter_panel; /* bytes of one */
    int ready;                          /* the panels of the whole channel set are packed */
    pysim_waiting *waiting;             /* form tiles: the tile that is not stored yet */
    pysim_profile *profile;
} scratch;

/* Where the tiles of an operand begin: tile t at base + (t - first) * bytes. */
typedef struct {
    const char *base;
    int64_t first, bytes;
} tiles;

static const char *tile_of(const tiles *of, int64_t t) { return of->base + (t - of->first) * of->bytes; }

/* What the tiles of one channel set share. */
typedef struct {
    const pysim_nest *n;
    const scratch *x;
    int64_t c0, nc, row_k;  /* row_k: k-iterations of one kernel row */
    tiles filters, windows; /* `first` moves on where the run packs the operand */
    int64_t window_pitch;
    const char *old, *bias_filters, *bias_windows; /* of tile 0, or NULL */
    pysim_store store;                             /* of the current tile */
    int last;                                      /* the last channel set: its stores complete the result */
    int bare;                                      /* a tile is a kernel call and nothing else */
} channel_set;

/* Whether so many panels of an operand stay in L2 while sets of the other's pass by. */
static int stay_near(const tiles *of, int64_t panels, const tiles *other, int64_t passing) {
    return panels * of->bytes + passing * other->bytes <= NEAR_BYTES;
}

/* Whether these filters of a channel set are read where they lie, and not packed. */
static int in_rows(const pysim_nest *n, int64_t nc, int64_t f0, int64_t nf) {
    return n->row.in_rows && n->pack_filters && n->filter_row && !n->flip && nf % n->row.in_rows == 0 &&
           (nc % n->row.group == 0 || f0 + nf <= n->overread);
}

/* L1 of every CPU with tiles, and what of it an operand that stays there may fill. */
enum { TILES_L1_BYTES = 48 << 10, KEPT_BYTES = 32 << 10 };

/* Form tiles: whether filters that multiply several panels of windows stay in L1 only if these pass it by. Split operands are never that few. */
static int windows_pass(const channel_set *set) {
    const pysim_nest *n = set->n;
    const pysim_schedule *s = &n->schedule;
    const int64_t filters = n->rows * set->row_k * s->filters * pysim_filter_bytes(n);
    const int several = s->stationary == PYSIM_WEIGHT_STATIONARY ? s->k2 > 1 : s->k2 == 1;
    return pysim_on_tiles(n) && several && filters <= KEPT_BYTES && filters + set->windows.bytes > TILES_L1_BYTES;
}

/* Form tiles: what the next tile fetches beside its products, range `part` of `parts` of a panel or of the rows that a panel is made of. */
static void panel_ahead(channel_set *set, int at, const tiles *of, int64_t panel, int64_t width, int64_t part, int64_t parts) {
    const int64_t bytes = set->n->rows * set->row_k * width * pysim_panel_bytes(set->n);
    int64_t begin, end;
    pysim_split_range(pysim_ceil_div(bytes, ALIGN), part, parts, &begin, &end);
    set->store.ahead[at] = (pysim_lines){tile_of(of, panel) + begin * ALIGN, 0, 1, end - begin, 0};
}

static pysim_lines rows_ahead(const char *at, int64_t pitch, int64_t rows, int64_t bytes, int64_t part, int64_t parts) {
    int64_t begin, end;
    pysim_split_range(rows, part, parts, &begin, &end);
    return (pysim_lines){at + begin * pitch, pitch, end - begin, pysim_ceil_div((int64_t)((uintptr_t)at % ALIGN) + bytes, ALIGN), 0};
}

static void windows_ahead(channel_set *set, int64_t tile, int64_t part, int64_t parts) {
    const pysim_nest *n = set->n;
    const int64_t t0 = tile * n->schedule.windows, bytes = pysim_min(n->schedule.windows, n->windows - t0) * n->bytes;
    set->store.ahead[0] =
        rows_ahead(n->input + (set->c0 * n->input_pitch + t0) * n->bytes, n->input_pitch * n->bytes, set->nc, bytes, part, parts);
}

/* Of panels made beforehand part 0 of the next one beside the products with the first filters, and beside those with the others their parts of a panel
 * of the next set. `whole`: no pass before has fetched these. */
static void next_windows_ahead(channel_set *set, int64_t w, int whole, int64_t part, int64_t parts) {
    const pysim_schedule *s = &set->n->schedule;
    const int64_t next = part == 0 ? w + 1 : w + s->k2;
    if (next < set->n->window_end) panel_ahead(set, 0, &set->windows, next, s->windows, part, part == 0 && whole ? 1 : parts);
}

static void filters_ahead(channel_set *set, int at, int64_t tile, int64_t part, int64_t parts) {
    const pysim_nest *n = set->n;
    int64_t f0, nf;
    pysim_nest_filters_of(n, tile, &f0, &nf);
    const int64_t row = n->filter_row * n->bytes, first = set->c0 * n->bytes;
    set->store.ahead[at] = rows_ahead(n->filter_data + f0 * row + first, row, nf, set->nc * n->bytes, part, parts);
}

/* Form tiles: what the products of a tile fetch of the next filters: the rows of a panel, if it is packed or read from them, or the panel. */
static void next_filters_ahead(channel_set *set, int64_t next, int pack_next, int64_t part, int64_t parts) {
    const pysim_nest *n = set->n;
    int64_t f0, nf;
    pysim_nest_filters_of(n, next, &f0, &nf);
    if (in_rows(n, set->nc, f0, nf)) {
        filters_ahead(set, 1, next, part, parts);
        return;
    }
    if (pack_next && n->filter_row) filters_ahead(set, 0, next, part, parts);
    panel_ahead(set, 1, &set->filters, next, n->schedule.filters, part, parts);
    set->store.ahead[1].written = pack_next;
}

/* The same of filters that may be in another set, or are packed before its first tile: only those in place. */
static void rows_in_place_ahead(channel_set *set, int at, int64_t next, int64_t part, int64_t parts) {
    int64_t f0, nf;
    if (next >= set->n->filter_end) return;
    pysim_nest_filters_of(set->n, next, &f0, &nf);
    if (in_rows(set->n, set->nc, f0, nf)) filters_ahead(set, at, next, part, parts);
}

/* Form tiles, filters in sets of `parts`: those in place of tile `f` in the next set, or the rows that they are packed from, beside the products with all
 * windows, or if L2 does not hold two sets, with the last. */
static void next_set_ahead(channel_set *set, int64_t f, int64_t parts, int64_t window, int64_t windows) {
    const pysim_nest *n = set->n;
    const int64_t next = f + parts;
    int64_t f0, nf;
    if (next >= n->filter_end) return;
    if (!stay_near(&set->filters, 2 * parts, &set->windows, 1)) {
        if (window + 1 < windows) return;
        window = 0, windows = 1;
    }
    pysim_nest_filters_of(n, next, &f0, &nf);
    if (!n->pack_filters) panel_ahead(set, 0, &set->filters, next, n->schedule.filters, window, windows);
    else if (n->filter_row && !in_rows(n, set->nc, f0, nf)) filters_ahead(set, 0, next, window, windows);
}
#endif
