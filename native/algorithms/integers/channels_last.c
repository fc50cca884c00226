/* SPDX-License-Identifier: Apache-2.0
 * Convolutions of bytes with channels last ([batch][height][width][channel], input_block all channels and output_block all filters) as products on the
 * nest: pixels of the output are its filters, rows of k = [kernel row][kernel column][channel], and the convolution's filters its windows, in panels made
 * beforehand. Results of a pixel lie beside each other, so do their scales.
 *
 * Forms pixels, unpacked and tiles read pixels of a 1x1 layer where they lie. Windows of other layers, and what lies beyond the image's last whole group, are gathered
 * as rows of whole groups; forms groups and pairs pack such rows as a product packs those of A. */
#include <string.h>

#include "algorithms/algorithm.h"
#include "operators/integers.h"

enum { CHUNK = 512, MOST_ROWS = 64 }; /* elements of k, and rows, that are gathered before they are packed */

static int64_t k_of(const pysim_conv *c) { return c->kernel_h * c->kernel_w * c->channels; }

/* Whether windows are pixels of the image, in its order. */
static int in_place(const pysim_conv *c) { return c->kernel_h * c->kernel_w * c->stride_h * c->stride_w == 1 && !pysim_conv_padded(c); }

static void pack_pixels(const pysim_nest *n, int64_t c0, int64_t nc, int64_t f0, int64_t nf, void *dst) {
    const pysim_conv *c = n->problem;
    const int64_t width = n->schedule.filters, step = pysim_min(CHUNK, nc);
    const pysim_byte_windows windows = {c, n->input_pitch, (const uint8_t *)n->filter_data, n->fill};
    const pysim_integers *loops = pysim_integers_here();
    uint8_t rows[MOST_ROWS * CHUNK];
    (void)c0; /* all channels are one set */
    if (n->row_panel) loops->gather(&windows, f0, nf, 0, nc, n->row_panel, dst);
    for (int64_t k = 0; k < nc && !n->row_panel; k += step) {
        const int64_t some = pysim_min(step, nc - k);
        char *to = (char *)dst + k * width * pysim_panel_bytes(n);
        if (in_place(c)) n->row.pack_filters.transposed(n->filter_data + f0 * nc + k, nc, nf, some, width, to, NULL);
        else {
            loops->gather(&windows, f0, nf, k, k + some, CHUNK, rows);
            n->row.pack_filters.transposed(rows, CHUNK, nf, some, width, to, NULL);
        }
    }
    if (n->flip) pysim_flip_filters(n, nc, dst);
}

static pysim_status check(const pysim_conv *c, const pysim_schedule *s, const pysim_row *row) {
    const int blocks = pysim_max(1, c->input_block) == c->channels && pysim_max(1, c->output_block) == c->filters;
    if (c->dtype != PYSIM_S8 || c->groups > 1 || !blocks)
        return pysim_fail(PYSIM_UNSUPPORTED,
                          "algorithm channels_last computes s8 of one group whose blocks are all %lld channels and %lld filters",
                          (long long)c->channels, (long long)c->filters);
    if (row->bound && !row->in_rows)
        return pysim_fail(PYSIM_UNSUPPORTED, "kernel %s bounds weights in panels of filters; here these are pixels", row->info.name);
    if (s->pack != PYSIM_PACK_TILES || s->channels != k_of(c))
        return pysim_fail(PYSIM_BAD_ARGUMENT,
                          "schedule.pack is %d and channels %lld; expected 1 (tiles), and all %lld elements of k in one set", (int)s->pack,
                          (long long)s->channels, (long long)k_of(c));
    return PYSIM_OK;
}

static pysim_status open_channels_last(const pysim_problem *p, const pysim_schedule *s, pysim_row_lookup row, pysim_job *job) {
    const pysim_conv *c = &p->conv;
    pysim_nest *n = &job->nest;
    int64_t rows = 0, columns = 0;
    pysim_status status = pysim_check_conv(c, &rows, &columns, NULL);
    if (status != PYSIM_OK) return status;
    *n = (pysim_nest){
        .windows = c->filters,
        .filters = rows * columns,
        .channels = k_of(c),
        .rows = 1,
        .taps = 1,
        .bytes = 1,
        .out_bytes = pysim_dtype_bytes(PYSIM_S32),
        .sum_bytes = pysim_dtype_bytes(PYSIM_S32),
        .swapped = 1,
        .pack_filters = pack_pixels,
        .problem = c,
        .input_pitch = columns,
        .output_pitch = c->filters,
        .alpha = 1,
        .windows_packed = 1,
        .several = c->batch > 1,
    };
    status = row(s, c->dtype, &n->row);
    if (status == PYSIM_OK) status = check(c, s, &n->row);
    if (status != PYSIM_OK) return status;
    const int64_t depth = pysim_ceil_div(n->channels, n->row.group) * n->row.group;
    n->even_filters = !n->row.in_rows;
    if (n->row.in_rows) n->row_panel = depth;
    if (in_place(c)) n->filter_row = c->channels, n->overread = pysim_max(0, n->filters - pysim_ceil_div(depth - c->channels, c->channels));
    status = pysim_nest_schedule(n, s, 1);
    const int64_t size[] = {n->window_end, s->windows, depth, pysim_panel_bytes(n)};
    if (status == PYSIM_OK) status = pysim_product("the panels' bytes, tiles x filters x k x element", 4, size, &job->prepared_bytes);
    if (status != PYSIM_OK) return status;
    const int64_t room = pysim_room_bytes(c->filters);
    if (job->prepared_bytes > INT64_MAX - 2 * room) return pysim_fail(PYSIM_OVERFLOW, "the packed filters exceed int64 bytes");
    job->shared_bytes = room;
    job->sums_at = pysim_ceil_div(job->prepared_bytes, PYSIM_SUMS_ALIGN) * PYSIM_SUMS_ALIGN;
    job->prepared_bytes = job->sums_at + c->filters * n->sum_bytes;
    job->operands.second = (pysim_operand){"packed filters", PYSIM_S8, job->prepared_bytes};
    return PYSIM_OK;
}

/* Panels of filters [filter][channel][kernel row][kernel column], and the sum of each. */
static void prepare_channels_last(const pysim_job *job, const char *filters, char *packed) {
    const pysim_nest *n = &job->nest;
    const pysim_conv *c = n->problem;
    const int64_t taps = c->kernel_h * c->kernel_w, k_all = n->channels, width = n->schedule.windows;
    const int64_t each = n->row.bound ? 1 : pysim_panel_bytes(n); /* lists lie behind whole panels */
    int32_t *sums = (int32_t *)(void *)(packed + job->sums_at);
    memset(sums, 0, (size_t)c->filters * sizeof *sums);
    for (int64_t tile = 0; tile < n->window_end; tile++) {
        const int64_t t0 = tile * width, nw = pysim_min(width, c->filters - t0);
        char *panel = packed + pysim_nest_window_offset(n, 0, k_all, tile) * pysim_panel_bytes(n);
        for (int64_t k0 = 0; k0 < k_all; k0 += CHUNK) {
            const int64_t some = pysim_min(CHUNK, k_all - k0);
            int8_t rows[MOST_ROWS * CHUNK];
            for (int64_t i = 0; i < nw; i++)
                for (int64_t k = k0; k < k0 + some; k++) {
                    const int8_t w = (int8_t)filters[((t0 + i) * c->channels + k % c->channels) * taps + k / c->channels];
                    rows[i * CHUNK + k - k0] = w, sums[t0 + i] += w;
                }
            n->row.pack.transposed(rows, CHUNK, nw, some, width, panel + k0 * width * each, NULL);
        }
        if (n->row.bound) n->row.bound(pysim_nest_depth(n, k_all), panel);
    }
}

static void open_image(pysim_nest *n, int64_t image, const void *context) {
    const pysim_conv *c = n->problem;
    const pysim_call *x = context;
    n->filter_data = x->first + image * c->height * c->width * c->channels;
    n->output = x->result + image * n->filters * n->output_pitch * n->out_bytes;
    if (n->rescale.sum) n->rescale.residual = (const uint8_t *)x->epilogue->residual + (n->output - x->result);
    n->residual = x->residual ? x->residual + (n->output - x->result) : NULL;
}

static void run_channels_last(const pysim_job *job, const pysim_call *call) {
    pysim_nest n = job->nest;
    const pysim_conv *c = n.problem;
    pysim_call own = *call;
    pysim_epilogue e = *call->epilogue;
    const int32_t zero = pysim_nest_signs(&n, &e);
    n.fill = e.first_zero;
    if (zero)
        e = pysim_without_zero(&e, zero, (const int32_t *)(const void *)(call->second + job->sums_at), c->filters,
                               pysim_room(call->workspace));
    own.epilogue = &e, own.workspace += job->shared_bytes;
    pysim_nest_rescale(&n, call->epilogue, 1);
    n.input = call->second;
    n.bias_windows = e.bias;
    n.beta = call->residual != NULL;
    n.bounds = call->bounds;
    n.finish_rows = call->finish;
    pysim_nest_run(&n, c->batch, open_image, &own, call->threads, own.workspace, call->profile);
}

const pysim_algorithm pysim_algorithm_channels_last = {.open = open_channels_last,
                                                       .prepare = prepare_channels_last,
                                                       .run = run_channels_last,
                                                       .finishes = 1,
                                                       .adds = 1,
                                                       .blocks = 1,
                                                       .quantised = 1};
