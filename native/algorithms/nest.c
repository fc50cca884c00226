/* SPDX-License-Identifier: Apache-2.0
 * SConv's loop nest, input stationary (IS) and weight stationary (WS):
 *
 *   IS                                                     WS
 *   for each channel set                                   for each channel set
 *     for each set of k3 input tiles           (L3)          for each set of k3 filter tiles        (L3)
 *       for each set of k2 filter tiles        (L2)            for each set of k2 input tiles: pack (L2)
 *         for each input tile: pack            (L1)              for each filter tile               (L1)
 *           for each filter tile: MICRO-KERNEL                     for each input tile: MICRO-KERNEL
 *
 * IS packs each input tile once per channel set: where the filters need several L2 sets, the k3 packed tiles are kept. Where the
 * filters do not come packed (GEMM), their k2 (IS) or k3 (WS) tiles are packed when their set begins. */
#include <string.h>
#include <time.h>

#include "abi/status.h"
#include "algorithm.h"
#include "algorithms/nest.h"
#include "algorithms/nest/ahead.h"
#include "algorithms/nest/parts.h"
#include "algorithms/nest/results.h"
#include "operators/integers.h"

static int64_t window_tiles(const pysim_nest *n) { return pysim_ceil_div(n->windows, n->schedule.windows); }
static int64_t filter_tiles(const pysim_nest *n) { return pysim_ceil_div(n->filters, n->schedule.filters); }

double pysim_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int64_t panel_bytes(const pysim_nest *n, int64_t width_bytes) {
    int64_t bytes;
    if (__builtin_mul_overflow(n->rows * pysim_nest_depth(n, n->schedule.channels * n->taps), width_bytes, &bytes)) return -1;
    return pysim_ceil_div(bytes, ALIGN) * ALIGN;
}

/* Window panels that a thread keeps at the same time. */
static int64_t window_panels(const pysim_nest *n) {
    const pysim_schedule *s = &n->schedule;
    if (s->pack == PYSIM_PACK_NONE || n->windows_packed) return 0;
    if (s->stationary == PYSIM_WEIGHT_STATIONARY) return s->k2;
    return filter_tiles(n) > s->k2 ? s->k3 : 1;
}

static int64_t filter_panels(const pysim_nest *n) {
    if (!n->pack_filters) return 0;
    return n->schedule.stationary == PYSIM_WEIGHT_STATIONARY ? n->schedule.k3 : n->schedule.k2;
}

/* Form tiles: threads pack the panels of a channel set together, then multiply: packing all in each thread would take as long as that. */
static int shares_panels(const pysim_nest *n, int32_t threads) {
    return threads > 1 && !n->several && pysim_on_tiles(n) && n->pack_filters && n->schedule.pack == PYSIM_PACK_TILES;
}

/* Workspace bytes of one thread, or of all that share panels. */
static pysim_status panels_workspace(const pysim_nest *n, int shared, int64_t *bytes) {
    const int64_t window = panel_bytes(n, n->schedule.windows * pysim_panel_bytes(n));
    const int64_t filter = panel_bytes(n, n->schedule.filters * pysim_filter_bytes(n));
    const int64_t window_count = shared && !n->windows_packed ? window_tiles(n) : window_panels(n);
    int64_t windows, filters, total;
    if (window < 0 || filter < 0 || __builtin_mul_overflow(window, window_count, &windows) ||
        __builtin_mul_overflow(filter, shared ? filter_tiles(n) : filter_panels(n), &filters) ||
        __builtin_add_overflow(windows, filters, &total) || __builtin_add_overflow(total, ALIGN, bytes))
        return pysim_fail(PYSIM_OVERFLOW, "the workspace of this schedule exceeds int64: use fewer channels, k2 or k3");
    return PYSIM_OK;
}

pysim_status pysim_nest_workspace(const pysim_nest *n, int32_t threads, int64_t *bytes) {
    int64_t each = 0;
    const int shared = shares_panels(n, threads);
    const pysim_status status = panels_workspace(n, shared, &each);
    return status == PYSIM_OK ? pysim_threads_workspace(each, shared ? 1 : threads, bytes) : status;
}

pysim_status pysim_nest_schedule(pysim_nest *n, const pysim_schedule *s, int in_place_legal) {
    if (n->row.family != PYSIM_FAMILY_NEST)
        return pysim_fail(PYSIM_UNSUPPORTED,
                          "kernel %s computes no tile of packed panels; this algorithm's nest runs the rows of native/kernels.inc",
                          n->row.info.name);
    if (s->stationary != PYSIM_INPUT_STATIONARY && s->stationary != PYSIM_WEIGHT_STATIONARY)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "schedule.stationary is %d; expected 0 (input) or 1 (weight)", (int)s->stationary);
    if (s->pack != PYSIM_PACK_NONE && s->pack != PYSIM_PACK_TILES)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "schedule.pack is %d; expected 0 (none) or 1 (tiles)", (int)s->pack);
    if (s->pack == PYSIM_PACK_NONE && !in_place_legal)
        return pysim_fail(PYSIM_UNSUPPORTED, "schedule.pack is none, but only an unpadded 1x1 convolution of stride 1 and a GEMM "
                                             "with B not transposed can be read in place");
    if (s->pack == PYSIM_PACK_NONE && n->row.group > 1)
        return pysim_fail(PYSIM_UNSUPPORTED, "schedule.pack is none, and kernel %s reads packed groups of k", n->row.info.name);
    if (s->channels < 1 || s->channels > n->channels)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "schedule.channels is %lld; expected 1..%lld", (long long)s->channels,
                          (long long)n->channels);
    if (s->k2 < 1 || s->k3 < 1)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "schedule.k2 and k3 are %lld and %lld; expected at least 1 for both", (long long)s->k2,
                          (long long)s->k3);
    n->schedule = *s;
    n->in_place_legal = in_place_legal;
    const int64_t streamed = s->stationary == PYSIM_INPUT_STATIONARY ? filter_tiles(n) : window_tiles(n);
    const int64_t stationary = s->stationary == PYSIM_INPUT_STATIONARY ? window_tiles(n) : filter_tiles(n);
    n->schedule.k2 = pysim_min(s->k2, streamed);
    n->schedule.k3 = pysim_min(s->k3, stationary);
    n->window_begin = n->filter_begin = 0;
    n->window_end = window_tiles(n);
    n->filter_end = filter_tiles(n);
    n->tile_filters = n->even_filters ? n->filters / n->filter_end : s->filters;
    n->longer_tiles = n->even_filters ? n->filters % n->filter_end : 0;
    return PYSIM_OK;
}

int64_t pysim_nest_filter_offset(const pysim_nest *n, int64_t c0, int64_t nc, int64_t tile) {
    return n->rows * n->schedule.filters * (pysim_nest_channels_depth(n, c0) * filter_tiles(n) + pysim_nest_depth(n, nc * n->taps) * tile);
}

int64_t pysim_nest_window_offset(const pysim_nest *n, int64_t c0, int64_t nc, int64_t tile) {
    return n->schedule.windows * (pysim_nest_channels_depth(n, c0) * window_tiles(n) + pysim_nest_depth(n, nc * n->taps) * tile);
}

static void pack_windows(const pysim_nest *n, const scratch *x, int64_t c0, int64_t nc, int64_t tile, char *panel) {
    const int64_t t0 = tile * n->schedule.windows, nw = pysim_min(n->schedule.windows, n->windows - t0);
    const double start = x->profile ? pysim_now() : 0;
    int64_t r0 = 0, r1 = n->rows;
    if (n->live_rows) n->live_rows(n, t0, nw, &r0, &r1);
    n->pack_windows(n, c0, nc, t0, nw, r0, r1, panel);
    if (x->profile) {
        x->profile->pack_seconds += pysim_now() - start;
        x->profile->packed_tiles++;
    }
}

/* Packs filter panels [begin, end) of a channel set, one after another. */
static void pack_filters(const pysim_nest *n, const scratch *x, int64_t c0, int64_t nc, int64_t begin, int64_t end, char *to) {
    const double start = x->profile ? pysim_now() : 0;
    const int64_t step = n->filter_channels ? pysim_min(n->filter_channels, nc) : nc;
    for (int64_t c = 0; c < nc; c += step)
        for (int64_t f = begin; f < end; f++) {
            int64_t f0, nf;
            pysim_nest_filters_of(n, f, &f0, &nf);
            if (in_rows(n, nc, f0, nf)) continue;
            char *panel = to + (f - begin) * x->filter_panel + c * n->schedule.filters * pysim_filter_bytes(n);
            n->pack_filters(n, c0 + c, pysim_min(step, nc - c), f0, nf, panel);
        }
    if (x->profile) x->profile->pack_seconds += pysim_now() - start;
}

static channel_set open_set(const pysim_nest *n, const scratch *x, int64_t c0, int64_t nc) {
    const pysim_schedule *s = &n->schedule;
    const int in_place = s->pack == PYSIM_PACK_NONE, last = c0 + nc == n->channels;
    const int64_t bytes = pysim_panel_bytes(n), each = pysim_filter_bytes(n);
    channel_set set = {.n = n,
                       .x = x,
                       .c0 = c0,
                       .nc = nc,
                       .row_k = pysim_nest_depth(n, nc * n->taps),
                       .last = last,
                       .window_pitch = in_place ? n->input_pitch : s->windows};
    if (n->filter_step) set.filters = (tiles){n->filter_data + c0 * n->filter_pitch * n->bytes, 0, 0};
    else if (n->pack_filters) set.filters = (tiles){x->filters, 0, x->filter_panel};
    else set.filters = (tiles){n->filter_data + pysim_nest_filter_offset(n, c0, nc, 0) * each, 0, n->rows * set.row_k * s->filters * each};
    if (in_place) set.windows = (tiles){n->input + c0 * n->input_pitch * n->bytes, 0, s->windows * n->bytes};
    else if (n->windows_packed)
        set.windows = (tiles){n->input + pysim_nest_window_offset(n, c0, nc, 0) * bytes, 0, s->windows * pysim_nest_depth(n, nc) * bytes};
    else set.windows = (tiles){x->windows, 0, x->window_panel};
    set.old = c0 > 0 ? n->output : n->beta == 0 ? NULL : n->residual ? n->residual : n->output;
    if (last) set.bias_filters = n->bias_filters, set.bias_windows = n->bias_windows;
    set.store =
        (pysim_store){.alpha = n->alpha,
                      .beta = c0 == 0 ? n->beta : 1.0,
                      .bounds = last ? n->bounds : pysim_unbounded(n->row.info.dtype),
                      .swapped = n->swapped,
                      .both_signed = n->both_signed,
                      .streams = n->streams && (uintptr_t)n->output % 64 == 0,
                      .passes = windows_pass(&set),
                      .waiting = n->finish_rows.loops || n->rounding.shifts || (n->rescale.scales && !n->row.rescales) ? NULL : x->waiting};
    set.bare = !set.old && !set.bias_filters && !set.bias_windows && !n->live_rows && (!n->prefetch_output || set.store.streams) &&
               !n->finish_rows.loops && !x->profile;
    set.bare &= !n->rescale.scales;
    return set;
}

/* What precedes the kernel's call of a tile that is not bare: its live kernel rows [*r0, *r1), its store, prefetches of what it reads. */
static void begin_tile(channel_set *set, int64_t t0, int64_t f0, int64_t nw, int64_t nf, int64_t *r0, int64_t *r1) {
    const pysim_nest *n = set->n;
    const int64_t at = (f0 * n->output_pitch + t0) * n->out_bytes, pitch = n->output_pitch * n->out_bytes;
    const char *out = n->output + at;
    pysim_store *store = &set->store;
    if (n->live_rows) n->live_rows(n, t0, nw, r0, r1);
    if (set->old) store->old = set->old + at;
    if (set->bias_filters) store->bias_filters = set->bias_filters + f0 * n->sum_bytes;
    if (set->bias_windows) store->bias_windows = set->bias_windows + t0 * n->sum_bytes;
    /* Do not prefetch output lines that are only written and lie in a near cache: that makes 1x1 layers up to 7 % slower (Zen 5). */
    if ((store->old || (n->prefetch_output && !store->streams)) && !pysim_on_tiles(n))
        pysim_fetch_rows(out, pitch, nf, nw * n->out_bytes, 1);
    if (store->old && store->old != out) pysim_fetch_rows(store->old, pitch, nf, nw * n->out_bytes, 0);
    if (n->rescale.scales && n->row.rescales) {
        store->rescale = n->rescale;
        store->rescale.scales += f0 * n->rescale.filter_step + t0 * n->rescale.window_step;
        if (n->rescale.sum) store->rescale.residual += at, pysim_fetch_rows((const char *)store->rescale.residual, pitch, nf, nw, 0);
    }
    if (set->x->profile) set->x->profile->kernel_calls++;
}

/* A tile of bytes that the kernel has just stored. */
static void add_residual(const channel_set *set, char *out, int64_t nw, int64_t nf) {
    const pysim_nest *n = set->n;
    const pysim_quantity stored = {1, n->rescale.zero, n->rescale.result == PYSIM_S8};
    const uint8_t *residual = n->rescale.residual + (out - n->output);
    const pysim_integers *loops = pysim_integers_here();
    for (int64_t f = 0; f < nf; f++, out += n->output_pitch, residual += n->output_pitch)
        loops->add(n->rescale.sum, pysim_byte_of(&stored), nw, (const uint8_t *)out, residual, (uint8_t *)out);
}

/* A tile whose numbers become bytes. */
static void rounded_tile(const channel_set *set, int64_t k, const char *filters, const char *windows, char *out, int64_t f0, int64_t nf,
                         int64_t t0, int64_t nw) {
    const pysim_nest *n = set->n;
    const int64_t pitch = n->schedule.windows;
    float numbers[PYSIM_NUMBERS] __attribute__((aligned(64)));
    const pysim_rounding rounding = pysim_rounding_at(&n->rounding, f0, t0);
    if (n->row.rescales) n->row.run(k, filters, windows, set->window_pitch, numbers, pitch, nw, nf, &set->store);
    else {
        int32_t sums[PYSIM_TILE_RESULTS];
        n->row.run(k, filters, windows, set->window_pitch, sums, pitch, nw, nf, &set->store);
        pysim_loops_for(PYSIM_F32)->rescale(&n->rescale, sums, pitch, f0, t0, numbers, pitch, nf, nw);
    }
    n->finish_rows.loops->rounded(&n->finish_rows, &rounding, numbers, pitch, nf, nw, (uint8_t *)out, n->output_pitch);
}

/* O_T (+)= F_T x I_T for one pair of tiles. What lies between two loops over k must issue while the first is in the queues. */
static inline void tile(channel_set *set, int64_t wt, int64_t ft) {
    const pysim_nest *n = set->n;
    const pysim_schedule *s = &n->schedule;
    const int64_t t0 = wt * s->windows, nw = pysim_min(s->windows, n->windows - t0);
    int64_t f0, nf;
    pysim_nest_filters_of(n, ft, &f0, &nf);
    char *out = n->output + (f0 * n->output_pitch + t0) * n->out_bytes;
    const char *filters = n->filter_step ? set->filters.base + f0 * n->filter_step * n->bytes : tile_of(&set->filters, ft);
    const char *windows = tile_of(&set->windows, wt);
    int64_t r0 = 0, r1 = n->rows;
    if (!set->bare) begin_tile(set, t0, f0, nw, nf, &r0, &r1);
    if (in_rows(n, set->nc, f0, nf)) {
        set->store.filter_pitch = n->filter_row * n->bytes;
        filters = n->filter_data + (f0 * n->filter_row + set->c0) * n->bytes;
    } else set->store.filter_pitch = n->row_panel;
    const int64_t skipped = r0 * set->row_k * s->filters * pysim_filter_bytes(n);
    if (n->rounding.factors) {
        rounded_tile(set, (r1 - r0) * set->row_k, filters + skipped, windows, out, f0, nf, t0, nw);
        return;
    }
    if (n->rescale.scales && !n->row.rescales) {
        int32_t sums[PYSIM_TILE_RESULTS];
        n->row.run((r1 - r0) * set->row_k, filters + skipped, windows, set->window_pitch, sums, s->windows, nw, nf, &set->store);
        pysim_loops_for(PYSIM_F32)->rescale(&n->rescale, sums, s->windows, f0, t0, out, n->output_pitch, nf, nw);
    } else if (n->filter_step)
        n->row.strided((r1 - r0) * set->row_k, filters, n->filter_pitch, n->filter_step, windows, set->window_pitch, out, n->output_pitch,
                       nw, nf, &set->store);
    else n->row.run((r1 - r0) * set->row_k, filters + skipped, windows, set->window_pitch, out, n->output_pitch, nw, nf, &set->store);
    if (n->rounding.shifts) {
        const pysim_rounding rounding = pysim_rounding_at(&n->rounding, f0, t0);
        pysim_loops_for(PYSIM_F32)->shifted(&rounding, (float *)(void *)out, n->output_pitch, nf, nw);
    }
    if (n->rescale.sum && !n->row.adds) add_residual(set, out, nw, nf);
    if (set->last && n->finish_rows.loops) pysim_finish_rows(&n->finish_rows, out, n->output_pitch, nf, nw);
}

/* Prefetches range `part` of `parts` of the rows of a window tile into L2, in place or as they are packed, while the tile before is multiplied.
 * Prefetches inside the micro-kernel's loop would start only a few k-iterations before the first use. */
static void fetch_windows(const pysim_nest *n, int64_t c0, int64_t nc, int64_t tile, int64_t part, int64_t parts) {
    const int64_t t0 = tile * n->schedule.windows, nw = pysim_min(n->schedule.windows, n->windows - t0), bytes = nw * n->bytes;
    int64_t row, end;
    pysim_split_range(nc, part, parts, &row, &end);
    if (n->schedule.pack != PYSIM_PACK_NONE) {
        n->fetch_windows(n, c0 + row, end - row, t0, nw);
        return;
    }
    for (; row < end; row++)
        for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(n->input + ((c0 + row) * n->input_pitch + t0) * n->bytes + i, 0, 2);
}

/* Whether the next windows are fetched from where they lie; form tiles packs such rows, and its unit would wait meanwhile. */
static int fetches_windows(const pysim_nest *n, int packs) {
    if (!n->prefetch_input) return 0;
    if (n->schedule.pack == PYSIM_PACK_NONE) return 1;
    return packs && (pysim_on_tiles(n) ? n->in_place_legal : n->fetch_windows != NULL);
}

static void input_stationary(const pysim_nest *n, const scratch *x, int64_t c0, int64_t nc) {
    const pysim_schedule *s = &n->schedule;
    const int in_place = s->pack == PYSIM_PACK_NONE, packs = !in_place && !n->windows_packed && !x->ready;
    const int fetch = fetches_windows(n, packs), on_tiles = pysim_on_tiles(n);
    const int keep = n->filter_end - n->filter_begin > s->k2;
    channel_set set = open_set(n, x, c0, nc);
    for (int64_t w3 = n->window_begin; w3 < n->window_end; w3 += s->k3) {
        const int64_t w_end = pysim_min(w3 + s->k3, n->window_end);
        for (int64_t f2 = n->filter_begin; f2 < n->filter_end; f2 += s->k2) {
            const int64_t f_end = pysim_min(f2 + s->k2, n->filter_end), parts = f_end - f2;
            const int first = packs && f2 == n->filter_begin,
                      near = f2 > n->filter_begin && stay_near(&set.windows, w_end - w3, &set.filters, parts);
            if (n->pack_filters && !x->ready) pack_filters(n, x, c0, nc, f2, f_end, x->filters), set.filters.first = f2;
            for (int64_t w = w3; w < w_end; w++) {
                const int more = w + 1 < w_end, pack_next = more && first;
                if (packs) {
                    set.windows.first = keep ? w3 : w;
                    if (f2 == n->filter_begin) pack_windows(n, x, c0, nc, w, x->windows + (w - set.windows.first) * x->window_panel);
                }
                for (int64_t f = f2; f < f_end; f++) {
                    if (fetch && (pack_next || (more && in_place)) && !on_tiles) fetch_windows(n, c0, nc, w + 1, f - f2, parts);
                    if (on_tiles) {
                        memset(set.store.ahead, 0, sizeof set.store.ahead);
                        if (pack_next && fetch) windows_ahead(&set, w + 1, f - f2, parts);
                        if (more && (keep || !packs) && !near) panel_ahead(&set, 1, &set.windows, w + 1, s->windows, f - f2, parts);
                        set.store.ahead[1].written = pack_next;
                        if (f + 1 == f_end && !pack_next) rows_in_place_ahead(&set, 0, f_end, w - w3, w_end - w3);
                        else if (w == w3) rows_in_place_ahead(&set, 0, f + 1, 0, 1);
                        if (!pack_next && !x->ready) next_set_ahead(&set, f, parts, first ? 0 : w - w3, first ? 1 : w_end - w3);
                    }
                    tile(&set, w, f);
                }
            }
        }
    }
}

static void weight_stationary(const pysim_nest *n, const scratch *x, int64_t c0, int64_t nc) {
    const pysim_schedule *s = &n->schedule;
    const int in_place = s->pack == PYSIM_PACK_NONE, packs = !in_place && !n->windows_packed && !x->ready;
    const int packs_filters = n->pack_filters && !x->ready, fetch = fetches_windows(n, packs), on_tiles = pysim_on_tiles(n);
    const int one_by_one =
        packs_filters && on_tiles && !n->filter_channels; /* each when the first tile needs it, fetched beside those before */
    channel_set set = open_set(n, x, c0, nc);
    for (int64_t f3 = n->filter_begin; f3 < n->filter_end; f3 += s->k3) {
        const int64_t f_end = pysim_min(f3 + s->k3, n->filter_end);
        if (packs_filters) set.filters.first = f3;
        if (packs_filters && !one_by_one) pack_filters(n, x, c0, nc, f3, f_end, x->filters);
        for (int64_t w2 = n->window_begin; w2 < n->window_end; w2 += s->k2) {
            const int64_t w_end = pysim_min(w2 + s->k2, n->window_end), parts = w_end - w2;
            const int first = w2 == n->window_begin, pack_next = one_by_one && first,
                      near = !first && stay_near(&set.filters, f_end - f3, &set.windows, parts);
            if (packs) set.windows.first = w2;
            for (int64_t w = w2; packs && w < w_end; w++) pack_windows(n, x, c0, nc, w, x->windows + (w - w2) * x->window_panel);
            for (int64_t f = f3; f < f_end; f++) {
                if (pack_next) pack_filters(n, x, c0, nc, f, f + 1, x->filters + (f - f3) * x->filter_panel);
                for (int64_t w = w2; w < w_end; w++) {
                    const int more = f + 1 < f_end, next = fetch && w + s->k2 < n->window_end;
                    if (next && !on_tiles) fetch_windows(n, c0, nc, w + s->k2, f - f3, f_end - f3);
                    if (on_tiles) {
                        memset(set.store.ahead, 0, sizeof set.store.ahead);
                        if (next && !(pack_next && more)) windows_ahead(&set, w + s->k2, f - f3, f_end - f3);
                        if (more && !near) next_filters_ahead(&set, f + 1, pack_next, w - w2, parts);
                        else if (!more) rows_in_place_ahead(&set, 1, f + 1, w - w2, parts);
                        if (n->windows_packed) next_windows_ahead(&set, w, first && w + 1 < w_end, f - f3, f_end - f3);
                    }
                    tile(&set, w, f);
                }
            }
        }
    }
}

static scratch scratch_of(const pysim_nest *n, char *workspace, int64_t windows, pysim_profile *profile) {
    scratch x = {.window_panel = panel_bytes(n, n->schedule.windows * pysim_panel_bytes(n)),
                 .filter_panel = panel_bytes(n, n->schedule.filters * pysim_filter_bytes(n)),
                 .profile = profile};
    x.windows = workspace + (ALIGN - (uintptr_t)workspace % ALIGN) % ALIGN;
    x.filters = x.windows + windows * x.window_panel;
    return x;
}

/* This thread's tiles of the channel sets from c0 up to `end`. */
static void run_sets(const pysim_nest *n, const scratch *of, int64_t c0, int64_t end) {
    scratch x = *of;
    pysim_waiting waiting;
    const double start = x.profile ? pysim_now() : 0, packed = x.profile ? x.profile->pack_seconds : 0;
    waiting.nf = waiting.turn = 0;
    if (pysim_on_tiles(n) && (n->row.panel_bytes || n->rescale.scales)) x.waiting = &waiting;
    if (n->row.enter) n->row.enter();
    for (; c0 < end; c0 += n->schedule.channels) {
        const int64_t nc = pysim_min(n->schedule.channels, n->channels - c0);
        if (n->schedule.stationary == PYSIM_INPUT_STATIONARY) input_stationary(n, &x, c0, nc);
        else weight_stationary(n, &x, c0, nc);
    }
    if (x.waiting) n->row.run(0, NULL, NULL, 0, NULL, 0, 0, 0, &(pysim_store){.waiting = x.waiting});
    if (n->row.leave) n->row.leave();
    if (n->streams) __atomic_thread_fence(__ATOMIC_SEQ_CST); /* other threads see stores past the caches only behind a locked instruction */
    if (x.profile) x.profile->kernel_seconds += pysim_now() - start - (x.profile->pack_seconds - packed);
}

static void run_tiles(const pysim_nest *n, char *workspace, pysim_profile *profile) {
    const scratch x = scratch_of(n, workspace, window_panels(n), profile);
    run_sets(n, &x, 0, n->channels);
    if (n->finish) n->finish(n);
}

/* Smaller inputs stay in any L2, so prefetches of their lines only cost instructions (times: lab/notebook/cpu-kernels.md). */
enum { SMALL_INPUT_BYTES = 256 << 10 };

static int wants_input_prefetch(const pysim_nest *n) { return n->channels * n->input_pitch * n->bytes > SMALL_INPUT_BYTES; }

/* All tiles of a run; an item is an image or a part of an image. */
typedef struct {
    const pysim_nest *shared;
    pysim_nest_image prepare;
    const void *context;
    int64_t window_parts, filter_parts; /* of each image */
    char *workspace;
    int64_t workspace_each;
    pysim_profile *profile;
    int64_t c0, nc; /* the channel set, if threads share its panels */
} nest_run;

static void run_item(int64_t item, int64_t thread, const void *context) {
    const nest_run *r = context;
    pysim_nest n = *r->shared;
    r->prepare(&n, item / r->window_parts / r->filter_parts, r->context);
    pysim_split_range(n.filter_end, item / r->window_parts % r->filter_parts, r->filter_parts, &n.filter_begin, &n.filter_end);
    pysim_split_range(n.window_end, item % r->window_parts, r->window_parts, &n.window_begin, &n.window_end);
    pysim_profile own = {0};
    run_tiles(&n, r->workspace + thread * r->workspace_each, r->profile ? &own : NULL);
    pysim_add_profile(r->profile, &own);
}

/* Panels of all windows lie before those of all filters. */
static scratch shared_scratch(const nest_run *r, pysim_profile *own) {
    return scratch_of(r->shared, r->workspace, r->shared->windows_packed ? 0 : window_tiles(r->shared), r->profile ? own : NULL);
}

static void pack_shared(int64_t item, int64_t thread, const void *context) {
    const nest_run *r = context;
    const int64_t filters = filter_tiles(r->shared);
    pysim_profile own = {0};
    scratch x = shared_scratch(r, &own);
    (void)thread;
    if (item < filters) pack_filters(r->shared, &x, r->c0, r->nc, item, item + 1, x.filters + item * x.filter_panel);
    else pack_windows(r->shared, &x, r->c0, r->nc, item - filters, x.windows + (item - filters) * x.window_panel);
    pysim_add_profile(r->profile, &own);
}

static void multiply_shared(int64_t item, int64_t thread, const void *context) {
    const nest_run *r = context;
    pysim_nest n = *r->shared;
    pysim_profile own = {0};
    scratch x = shared_scratch(r, &own);
    (void)thread;
    x.ready = 1;
    pysim_split_range(n.filter_end, item / r->window_parts, r->filter_parts, &n.filter_begin, &n.filter_end);
    pysim_split_range(n.window_end, item % r->window_parts, r->window_parts, &n.window_begin, &n.window_end);
    run_sets(&n, &x, r->c0, r->c0 + r->nc);
    pysim_add_profile(r->profile, &own);
}

static void run_shared(nest_run *r, int32_t threads) {
    const pysim_nest *n = r->shared;
    for (; r->c0 < n->channels; r->c0 += n->schedule.channels) {
        r->nc = pysim_min(n->schedule.channels, n->channels - r->c0);
        pysim_parallel_for(filter_tiles(n) + (n->windows_packed ? 0 : window_tiles(n)), threads, pack_shared, r);
        pysim_parallel_for(r->window_parts * r->filter_parts, threads, multiply_shared, r);
    }
}

void pysim_nest_run(pysim_nest *n, int64_t images, pysim_nest_image prepare, const void *context, int32_t threads, char *workspace,
                    pysim_profile *profile) {
    int64_t each = 0;
    n->prefetch_input = wants_input_prefetch(n);
    n->streams = pysim_wants_streams(n, images);
    n->prefetch_output = pysim_wants_output_prefetch(n, images);
    if (images == 1 && threads == 1) {
        prepare(n, 0, context);
        run_tiles(n, workspace, profile);
        return;
    }
    const int shared = images == 1 && shares_panels(n, threads);
    (void)panels_workspace(n, shared, &each); /* The size was checked before. */
    nest_run r = {n, prepare, context, 1, 1, workspace, each, profile, 0, 0};
    const int64_t parts = shared ? shared_parts(window_tiles(n) * filter_tiles(n), threads) : pysim_split_count(images, threads);
    divide(window_tiles(n), filter_tiles(n), parts, shared, &r.window_parts, &r.filter_parts);
    if (shared) {
        prepare(n, 0, context);
        run_shared(&r, threads);
        return;
    }
    pysim_parallel_for(images * r.window_parts * r.filter_parts, threads, run_item, &r);
}
