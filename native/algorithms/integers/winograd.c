/* SPDX-License-Identifier: Apache-2.0
 * Winograd's F(4x4, 3x3) of bytes, exactly: a quarter of the multiplications, on a row of form pairs.
 *
 *   for each image and group, each block of k2 panels of tiles
 *     pad the rows that the block reads, transform their patches      (workspace, meant for L2)
 *     for each panel of filters, each panel of tiles
 *       for each plane: MICRO-KERNEL                                  (products in L1)
 *       transform the outputs, add the bias, rescale
 *
 * The points are 0, +-1, +-2 and infinity. B^T has whole numbers. G and A^T are multiplied by numbers that make theirs whole, too, so that every
 * result is 24^2 = 576 times the sum:
 *
 *   G    (6 0 0), (-4 -4 -4), (-4 4 -4), (1 2 4), (1 -2 4), (0 0 12)
 *   A^T  (1 1 1 1 1 0), (0 1 -1 2 -2 0), (0 1 1 4 4 0), (0 1 -1 8 -8 2)
 *
 * Rows of B^T with the least and the largest element from -8 to 2 give patches of bytes within 68 * 255 = 17,340, and rows of |G| add up to 12 at
 * most, so filters are within 144 * 128 = 18,432: both fit 16 bits, and the two products of a vpmaddwd, 2 * 17,340 * 18,432 < 2^31, fit 32. Sums
 * are those of whole numbers modulo 2^32. 9 has an inverse there, so 576 y tells 64 y, and that y if it is within 2^25.
 *
 * A sum of x w with x in [-zero, 255 - zero] is within 255 times the larger of the sums of a filter's positive and negative weights, whatever
 * the zero. Preparation finds how many channels keep that below 2^25 in every filter (any weights: 114), and stores the number behind
 * the transformed filters, [group][panel][plane][pair of channels][filters][2]. A run transforms the products of so many channels at a time and
 * adds their sums. */
#include "algorithms/integers/winograd.h"

#include <string.h>

#include "algorithms/algorithm.h"

enum { ALIGN = 64, EDGE = 6, SIDE = 4, TAPS = 9, MOST = 1 << 25, COUNT_BYTES = 64, MAX_FILTERS = 16 };

typedef struct {
    int64_t channels, filters, pairs, width; /* width: filters of a panel */
    int64_t filter_panels, quads_wide, quads, panels;
    int64_t out_h, out_w, pitch, plane_bytes, patch_bytes;
    int64_t panel_elements; /* of transformed filters */
} shape;

static shape shape_of(const pysim_job *job) {
    const pysim_conv *c = &job->problem.conv;
    shape s = {.channels = c->channels / c->groups, .filters = c->filters / c->groups, .width = job->nest.schedule.filters};
    s.out_h = c->height + c->pad_top + c->pad_bottom - 2, s.out_w = c->width + c->pad_left + c->pad_right - 2;
    s.pairs = pysim_ceil_div(s.channels, 2), s.filter_panels = pysim_ceil_div(s.filters, s.width);
    s.quads_wide = pysim_ceil_div(s.out_w, PYSIM_QUAD_PITCH), s.quads = pysim_ceil_div(s.out_h, SIDE) * s.quads_wide;
    s.panels = pysim_ceil_div(s.quads, PYSIM_QUADS);
    s.pitch = (s.quads_wide + 1) * PYSIM_QUAD_PITCH;
    s.plane_bytes = (s.pairs | 1) * PYSIM_QUAD_LANES * 4; /* an odd number of lines: planes in different sets of a cache */
    s.patch_bytes = PYSIM_QUAD_PLANES * s.plane_bytes;
    s.panel_elements = PYSIM_QUAD_PLANES * s.pairs * s.width * 2;
    return s;
}

/* Rows of tiles that a block of `panels` panels touches at most. */
static int64_t block_rows(const shape *s, int64_t panels) {
    return pysim_min(pysim_ceil_div(s->out_h, SIDE), (panels * PYSIM_QUADS + s->quads_wide - 2) / s->quads_wide + 1) * SIDE + 2;
}
static int64_t padded_bytes(const shape *s, int64_t panels) {
    return pysim_ceil_div(s->channels * block_rows(s, panels) * s->pitch, ALIGN) * ALIGN + ALIGN;
}
static int64_t products_bytes(const shape *s) { return s->width * PYSIM_QUAD_PLANES * PYSIM_QUAD_LANES * (int64_t)sizeof(int32_t); }
static int64_t sums_bytes(const shape *s) { return s->width * PYSIM_QUAD_OUTPUTS * PYSIM_QUAD_LANES * (int64_t)sizeof(int32_t); }

static pysim_status open_winograd(const pysim_problem *of, const pysim_schedule *s, pysim_row_lookup row, pysim_job *job) {
    const pysim_conv *c = &of->conv;
    pysim_nest *n = &job->nest;
    if (c->kernel_h != 3 || c->kernel_w != 3 || c->stride_h != 1 || c->stride_w != 1 || c->dilation_h != 1 || c->dilation_w != 1)
        return pysim_fail(PYSIM_UNSUPPORTED, "algorithm integer_winograd computes 3x3 with stride 1 and dilation 1");
    *n = pysim_conv_nest(c);
    pysim_status status = row(s, c->dtype, &n->row);
    if (status != PYSIM_OK) return status;
    if (strcmp(n->row.info.form, "pairs") != 0 || n->row.info.windows != PYSIM_QUAD_LANES || n->row.info.filters > MAX_FILTERS)
        return pysim_fail(PYSIM_UNSUPPORTED, "algorithm integer_winograd runs rows of form pairs with %d windows, and %s is none",
                          (int)PYSIM_QUAD_LANES, n->row.info.name);
    n->schedule = *s;
    const shape own = shape_of(job);
    if (s->stationary != PYSIM_INPUT_STATIONARY || s->pack != PYSIM_PACK_TILES || s->channels != own.channels || s->k2 < 1 ||
        s->k2 > own.panels || s->k3 != 1)
        return pysim_fail(
            PYSIM_BAD_ARGUMENT,
            "schedule has stationary %d, pack %d, channels %lld, k2 %lld, k3 %lld; integer_winograd has 0, 1, %lld, 1 to %lld "
            "panels of tiles, 1",
            (int)s->stationary, (int)s->pack, (long long)s->channels, (long long)s->k2, (long long)s->k3, (long long)own.channels,
            (long long)own.panels);
    const int64_t filters[] = {c->groups, own.filter_panels, PYSIM_QUAD_PLANES, own.pairs * own.width * 4};
    status = pysim_product("the transformed filters' bytes", 4, filters, &job->prepared_bytes);
    const int64_t patches[] = {s->k2, own.pairs + 1, PYSIM_QUAD_PLANES * PYSIM_QUAD_LANES * 4};
    if (status == PYSIM_OK) status = pysim_product("the patches' bytes", 3, patches, &job->thread_bytes);
    if (status == PYSIM_OK && (job->prepared_bytes > INT64_MAX / 4 || job->thread_bytes > INT64_MAX / 4))
        return pysim_fail(PYSIM_OVERFLOW, "the workspace exceeds int64 bytes");
    if (status != PYSIM_OK) return status;
    job->prepared_bytes += COUNT_BYTES;
    job->thread_bytes = s->k2 * own.patch_bytes + padded_bytes(&own, s->k2) + products_bytes(&own) + sums_bytes(&own) + ALIGN;
    job->operands.second = (pysim_operand){"transformed filters", PYSIM_S8, job->prepared_bytes};
    return PYSIM_OK;
}

/* ---- preparation ---- */

/* G x, `step` elements apart. */
static void filter_transform(const int32_t *x, int64_t step, int32_t y[EDGE]) {
    const int32_t a = x[0], b = x[step], c = x[2 * step];
    y[0] = 6 * a;
    y[1] = -4 * (a + b + c);
    y[2] = -4 * (a - b + c);
    y[3] = a + 2 * b + 4 * c;
    y[4] = a - 2 * b + 4 * c;
    y[5] = 12 * c;
}

/* One channel of one filter, to planes `plane` elements apart. */
static void transform_filter(const int8_t *taps, int64_t plane, int16_t *to) {
    int32_t x[TAPS], half[3][EDGE], column[EDGE];
    for (int i = 0; i < TAPS; i++) x[i] = taps[i];
    for (int j = 0; j < 3; j++) filter_transform(x + j, 3, half[j]);
    for (int i = 0; i < EDGE; i++) {
        const int32_t row[3] = {half[0][i], half[1][i], half[2][i]};
        filter_transform(row, 1, column);
        for (int j = 0; j < EDGE; j++) to[(i * EDGE + j) * plane] = (int16_t)column[j];
    }
}

/* The most channels, an even number or all, of which no filter's sums leave the bound. */
static int64_t safe_channels(const int8_t *filters, int64_t count, int64_t channels) {
    for (int64_t parts = 1;; parts++) {
        const int64_t set = pysim_ceil_div(pysim_ceil_div(channels, parts), 2) * 2;
        int fits = 1;
        for (int64_t f = 0; f < count && fits; f++)
            for (int64_t c0 = 0; c0 < channels && fits; c0 += set) {
                const int8_t *w = filters + (f * channels + c0) * TAPS;
                int64_t above = 0, below = 0;
                for (int64_t i = 0; i < pysim_min(set, channels - c0) * TAPS; i++) *(w[i] > 0 ? &above : &below) += w[i];
                fits = 255 * pysim_max(above, -below) < MOST;
            }
        if (fits || set <= 2) return pysim_min(set, channels);
    }
}

static void prepare_winograd(const pysim_job *job, const char *filters, char *prepared) {
    const shape s = shape_of(job);
    const pysim_conv *c = &job->problem.conv;
    const int8_t *taps = (const int8_t *)filters;
    int16_t *to = (int16_t *)(void *)prepared;
    const int64_t safe = safe_channels(taps, c->filters, s.channels);
    memset(prepared, 0, (size_t)job->prepared_bytes);
    for (int64_t g = 0; g < c->groups; g++)
        for (int64_t f = 0; f < s.filters; f++)
            for (int64_t ch = 0; ch < s.channels; ch++) {
                const int64_t panel = (g * s.filter_panels + f / s.width) * s.panel_elements;
                transform_filter(taps + ((g * s.filters + f) * s.channels + ch) * TAPS, s.pairs * s.width * 2,
                                 to + panel + ch / 2 * s.width * 2 + f % s.width * 2 + ch % 2);
            }
    memcpy(prepared + job->prepared_bytes - COUNT_BYTES, &safe, sizeof safe);
}

/* ---- the run ---- */

typedef struct {
    const pysim_job *job;
    const pysim_call *call;
    const shape *s;
    const pysim_quad_transforms *transforms;
    pysim_rescale rescale;
    pysim_rounding rounding;
    int64_t out_bytes, blocks, parts, safe;
    int32_t flip, zero; /* bytes ^ flip are unsigned, and this stands for 0 */
} run;

/* A row of the input, bytes flipped, between `left` and the rest of the pitch in zeros. */
static void pad_row(const run *r, const uint8_t *from, int64_t width, int64_t left, uint8_t *to) {
    const int64_t kept = pysim_max(0, pysim_min(width, r->s->pitch - left));
    const uint64_t flips = 0x0101010101010101u * (uint64_t)(uint8_t)r->flip;
    uint8_t *at = to + left;
    int64_t i = 0;
    memset(to, r->zero, (size_t)left);
    for (; i + 8 <= kept; i += 8) {
        uint64_t eight;
        memcpy(&eight, from + i, sizeof eight);
        eight ^= flips;
        memcpy(at + i, &eight, sizeof eight);
    }
    for (; i < kept; i++) at[i] = from[i] ^ (uint8_t)r->flip;
    memset(at + kept, r->zero, (size_t)(r->s->pitch - left - kept));
}

/* Rows of tiles [first, last] of all channels of an image's group, padded: to[channel][row][pitch]. */
static void pad_rows(const run *r, const uint8_t *image, int64_t first, int64_t last, uint8_t *to) {
    const pysim_conv *c = &r->job->problem.conv;
    const int64_t rows = (last - first + 1) * SIDE + 2, left = pysim_min(r->s->pitch, c->pad_left);
    for (int64_t ch = 0; ch < r->s->channels; ch++, image += c->height * c->width)
        for (int64_t i = 0, y = first * SIDE - c->pad_top; i < rows; i++, y++, to += r->s->pitch)
            if (y < 0 || y >= c->height) memset(to, r->zero, (size_t)r->s->pitch);
            else pad_row(r, image + y * c->width, c->width, left, to);
}

/* Results that are no bytes: sums within bounds, or FP32. */
static void store_wide(const run *r, const pysim_rescale *rescale, const int32_t *sums, int32_t bias, const pysim_quad_results *to) {
    const pysim_bounds *bounds = &r->call->bounds;
    for (int64_t q = 0; q < to->quads; q++)
        for (int64_t i = 0; i < to->rows[q]; i++)
            for (int64_t j = 0; j < to->columns[q]; j++) {
                const int32_t sum = sums[(i * SIDE + j % SIDE) * PYSIM_QUAD_LANES + q * PYSIM_QUAD + j / SIDE];
                const int32_t biased = (int32_t)((uint32_t)sum + (uint32_t)bias);
                const int32_t whole = (int32_t)pysim_max((int64_t)bounds->low, pysim_min((int64_t)bounds->high, biased));
                const float scaled = rescale->scales ? (float)whole * *rescale->scales : 0;
                uint8_t *out = to->out[q] + i * to->pitch + j * r->out_bytes;
                if (!rescale->scales) *(int32_t *)(void *)out = whole;
                else *(float *)(void *)out = scaled < rescale->low ? rescale->low : scaled > rescale->high ? rescale->high : scaled;
            }
}

/* Results that are bytes of activated numbers: rows of a quad after another. */
static void store_rounded(const run *r, const pysim_rescale *rescale, const int32_t *sums, int32_t bias, const pysim_quad_results *to,
                          int64_t filter) {
    float numbers[PYSIM_QUADS][SIDE * PYSIM_QUAD_PITCH];
    run wide = *r;
    pysim_quad_results own = *to;
    const pysim_finish *f = &r->call->finish;
    const pysim_rounding rounding = pysim_rounding_at(&r->rounding, filter, 0);
    wide.out_bytes = sizeof(float), own.pitch = PYSIM_QUAD_PITCH * (int64_t)sizeof(float);
    for (int64_t q = 0; q < to->quads; q++) own.out[q] = (uint8_t *)numbers[q];
    store_wide(&wide, rescale, sums, bias, &own);
    for (int64_t q = 0; q < to->quads; q++)
        for (int64_t i = 0; i < to->rows[q]; i++)
            f->loops->rounded(f, &rounding, numbers[q] + i * PYSIM_QUAD_PITCH, 0, 1, to->columns[q], to->out[q] + i * to->pitch, 0);
}

/* Where the quads of a panel lie, for filter 0. */
static void find_results(const run *r, char *out, int64_t panel, pysim_quad_results *to) {
    const shape *s = r->s;
    to->pitch = s->out_w * r->out_bytes, to->quads = pysim_min(PYSIM_QUADS, s->quads - panel * PYSIM_QUADS);
    for (int64_t q = 0; q < to->quads; q++) {
        const int64_t quad = panel * PYSIM_QUADS + q, y = quad / s->quads_wide * SIDE, x = quad % s->quads_wide * PYSIM_QUAD_PITCH;
        to->out[q] = (uint8_t *)out + (y * s->out_w + x) * r->out_bytes;
        to->rows[q] = pysim_min(SIDE, s->out_h - y), to->columns[q] = pysim_min(PYSIM_QUAD_PITCH, s->out_w - x);
    }
}

/* Products of a panel of filters with a panel of tiles, and their results. */
static void multiply(const run *r, const char *filters, const char *patches, int32_t *products, int32_t *sums, int64_t quads, int64_t nf) {
    const shape *s = r->s;
    const pysim_nest *n = &r->job->nest;
    const int64_t plane = PYSIM_QUAD_PLANES * PYSIM_QUAD_LANES, of_filters = s->pairs * s->width * 4;
    const int64_t vector = r->transforms->vector_quads, lanes = pysim_ceil_div(quads, vector) * vector * PYSIM_QUAD; /* whole vectors */
    const pysim_store store = {.alpha = 1, .beta = 1, .bounds = pysim_unbounded(PYSIM_S8)};
    for (int64_t c = 0; c < s->channels; c += r->safe) {
        const int64_t pairs = pysim_ceil_div(pysim_min(r->safe, s->channels - c), 2), before = c / 2;
        for (int64_t i = 0; i < PYSIM_QUAD_PLANES; i++)
            n->row.run(2 * pairs, filters + i * of_filters + before * s->width * 4,
                       patches + i * s->plane_bytes + before * PYSIM_QUAD_LANES * 4, PYSIM_QUAD_LANES, products + i * PYSIM_QUAD_LANES,
                       plane, lanes, nf, &store);
        for (int64_t f = 0; f < nf; f++)
            r->transforms->inverse(products + f * plane, quads, c > 0, sums + f * PYSIM_QUAD_OUTPUTS * PYSIM_QUAD_LANES);
    }
}

static void run_block(int64_t item, int64_t thread, const void *context) {
    const run *r = context;
    const shape *s = r->s;
    const pysim_conv *c = &r->job->problem.conv;
    const int64_t image = item / (r->blocks * r->parts), block = item / r->parts % r->blocks, part = item % r->parts,
                  group = image % c->groups;
    const int64_t begin = block * s->panels / r->blocks, end = (block + 1) * s->panels / r->blocks;
    const int64_t map = s->out_h * s->out_w * r->out_bytes, first_row = begin * PYSIM_QUADS / s->quads_wide;
    const int64_t last_row = (pysim_min(end * PYSIM_QUADS, s->quads) - 1) / s->quads_wide, rows = (last_row - first_row + 1) * SIDE + 2;
    char *patches = r->call->workspace + thread * r->job->thread_bytes;
    patches += (ALIGN - (uintptr_t)patches % ALIGN) % ALIGN;
    int32_t *products = (int32_t *)(void *)(patches + r->job->nest.schedule.k2 * s->patch_bytes);
    int32_t *sums = products + products_bytes(s) / (int64_t)sizeof *products;
    uint8_t *padded = (uint8_t *)(sums + sums_bytes(s) / (int64_t)sizeof *sums);
    const int32_t *bias = r->call->epilogue->bias;
    const double start = r->call->profile ? pysim_now() : 0;
    pad_rows(r, (const uint8_t *)r->call->first + image * s->channels * c->height * c->width, first_row, last_row, padded);
    for (int64_t p = begin; p < end; p++) {
        pysim_quads of = {.pitch = s->pitch, .channel = rows * s->pitch, .channels = s->channels, .zero = r->zero};
        of.quads = pysim_min(PYSIM_QUADS, s->quads - p * PYSIM_QUADS);
        for (int64_t q = 0; q < of.quads; q++) {
            const int64_t quad = p * PYSIM_QUADS + q;
            of.rows[q] = padded + (quad / s->quads_wide - first_row) * SIDE * s->pitch + quad % s->quads_wide * PYSIM_QUAD_PITCH;
        }
        r->transforms->patches(&of, s->plane_bytes, patches + (p - begin) * s->patch_bytes);
    }
    const double packed = r->call->profile ? pysim_now() : 0;
    for (int64_t f = part * s->filter_panels / r->parts; f < (part + 1) * s->filter_panels / r->parts; f++)
        for (int64_t p = begin; p < end; p++) {
            const int64_t nf = pysim_min(s->width, s->filters - f * s->width), own = group * s->filters + f * s->width;
            const char *filters = r->call->second + (group * s->filter_panels + f) * s->panel_elements * 2;
            pysim_quad_results to;
            find_results(r, r->call->result + (image * s->filters + f * s->width) * map, p, &to);
            multiply(r, filters, patches + (p - begin) * s->patch_bytes, products, sums, to.quads, nf);
            for (int64_t i = 0; i < nf; i++) {
                pysim_rescale rescale = r->rescale;
                const int32_t *own_sums = sums + i * PYSIM_QUAD_OUTPUTS * PYSIM_QUAD_LANES;
                if (rescale.scales) rescale.scales += (own + i) * rescale.filter_step;
                if (r->rounding.factors) store_rounded(r, &rescale, own_sums, bias ? bias[own + i] : 0, &to, own + i);
                else if (r->out_bytes == 1) r->transforms->store(&rescale, own_sums, bias ? bias[own + i] : 0, &r->call->bounds, &to);
                else store_wide(r, &rescale, own_sums, bias ? bias[own + i] : 0, &to);
                for (int64_t q = 0; q < to.quads; q++) to.out[q] += map;
            }
        }
    if (!r->call->profile) return;
    const pysim_profile own = {.pack_seconds = packed - start,
                               .kernel_seconds = pysim_now() - packed,
                               .packed_tiles = end - begin,
                               .kernel_calls = (end - begin) * PYSIM_QUAD_PLANES * s->filter_panels / r->parts};
    pysim_add_profile(r->call->profile, &own);
}

static void run_winograd(const pysim_job *job, const pysim_call *call) {
    const shape s = shape_of(job);
    const pysim_conv *c = &job->problem.conv;
    pysim_nest n = job->nest;
    run r = {.job = job, .call = call, .s = &s, .transforms = n.row.quads, .parts = 1};
    n.out_bytes = pysim_dtype_bytes(pysim_result_dtype(PYSIM_S8));
    pysim_nest_rescale(&n, call->epilogue, 0);
    r.rescale = n.rescale, r.rounding = n.rounding, r.out_bytes = n.out_bytes;
    r.flip = call->epilogue->first_unsigned ? 0 : 0x80;
    r.zero = call->epilogue->first_zero + r.flip;
    memcpy(&r.safe, call->second + job->prepared_bytes - COUNT_BYTES, sizeof r.safe);
    const int64_t images = c->batch * c->groups, fewest = pysim_ceil_div(s.panels, job->nest.schedule.k2);
    r.blocks = pysim_min(s.panels, fewest * pysim_split_count(images * fewest, call->threads));
    if (images * r.blocks < call->threads) r.parts = pysim_min(s.filter_panels, pysim_ceil_div(call->threads, images * r.blocks));
    pysim_parallel_for(images * r.blocks * r.parts, call->threads, run_block, &r);
}

const pysim_algorithm pysim_algorithm_integer_winograd = {
    .open = open_winograd, .prepare = prepare_winograd, .run = run_winograd, .quantised = 1};
