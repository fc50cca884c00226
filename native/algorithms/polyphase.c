/* SPDX-License-Identifier: Apache-2.0
 * Convolutions of few channels, of any stride, that split the input into the phases of the stride once:
 *
 *   for each image and group, each block of k2 output rows
 *     copy the input rows that the block reads, split by phase, padding included      (workspace, meant for L1 or L2)
 *     for each panel of filters, each output row: KERNEL
 *
 * Output columns q, q + 1, .. read input columns q stride + s, (q + 1) stride + s, .., which are contiguous in phase s mod stride. So each element
 * is copied once, not once per tap. Each tap (r, c, s) of a panel has an offset into the copied rows, for any stride and dilation.
 *
 * Filter panels are those of sconv with all channels in one set. Padding is copied as zeros, which the kernels multiply; padding.c corrects the
 * results if weights are not finite. Threads divide the blocks; one thread sums a result in a fixed order. */
#include <string.h>

#include "algorithm.h"

enum {
    ALIGN = 64,
    PHASE_COLUMNS = 64, /* columns of a phase per packing call: as many as packing keeps in registers */
};

/* The copied rows of a block: [channel][row][phase][pitch]. */
typedef struct {
    int64_t rows, phases, pitch, channels;
    int64_t bytes; /* total, in whole lines */
} phase_buffer;

static int64_t outputs_along(int64_t size, int64_t before, int64_t after, int64_t kernel, int64_t stride, int64_t dilation) {
    return (size + before + after - dilation * (kernel - 1) - 1) / stride + 1;
}
static int64_t out_rows(const pysim_conv *c) {
    return outputs_along(c->height, c->pad_top, c->pad_bottom, c->kernel_h, c->stride_h, c->dilation_h);
}
static int64_t out_columns(const pysim_conv *c) {
    return outputs_along(c->width, c->pad_left, c->pad_right, c->kernel_w, c->stride_w, c->dilation_w);
}

static pysim_status phase_buffer_of(const pysim_conv *c, int64_t rows, phase_buffer *of) {
    const int64_t bytes = pysim_dtype_bytes(c->dtype), lane = ALIGN / bytes, reach = c->dilation_w * (c->kernel_w - 1);
    const int64_t columns = pysim_ceil_div(out_columns(c), lane) * lane + reach / c->stride_w;
    *of = (phase_buffer){.rows = (rows - 1) * c->stride_h + c->dilation_h * (c->kernel_h - 1) + 1,
                         .phases = pysim_min(c->stride_w, reach + 1),
                         .pitch = pysim_ceil_div(columns, lane) * lane,
                         .channels = c->channels / c->groups};
    const int64_t sizes[] = {of->channels, of->rows, of->phases, of->pitch, bytes};
    const pysim_status status =
        pysim_product("the phase_buffer rows' bytes, channels x rows x phases x columns x element", 5, sizes, &of->bytes);
    if (status == PYSIM_OK && of->bytes > INT64_MAX / 4) return pysim_fail(PYSIM_OVERFLOW, "the phase_buffer rows exceed int64 bytes");
    return status;
}

static pysim_status check_schedule(const pysim_schedule *s, const pysim_nest *n) {
    if (n->row.family != PYSIM_FAMILY_POLYPHASE)
        return pysim_fail(PYSIM_UNSUPPORTED, "kernel %s reads no phase_buffer rows; this algorithm runs the rows of native/polyphase.inc",
                          n->row.info.name);
    if (s->stationary != PYSIM_INPUT_STATIONARY || s->pack != PYSIM_PACK_TILES || s->channels != n->channels || s->k2 < 1 || s->k3 != 1)
        return pysim_fail(PYSIM_BAD_ARGUMENT,
                          "schedule has stationary %d, pack %d, channels %lld, k2 %lld, k3 %lld; kernel %s has 0, 1, %lld, "
                          "rows of outputs from 1 on, 1",
                          (int)s->stationary, (int)s->pack, (long long)s->channels, (long long)s->k2, (long long)s->k3, n->row.info.name,
                          (long long)n->channels);
    return PYSIM_OK;
}

static pysim_status open_polyphase(const pysim_problem *p, const pysim_schedule *s, pysim_row_lookup row, pysim_job *job) {
    const pysim_conv *c = &p->conv;
    pysim_nest *n = &job->nest;
    phase_buffer of;
    *n = pysim_conv_nest(c);
    pysim_status status = row(s, c->dtype, &n->row);
    if (status == PYSIM_OK) status = check_schedule(s, n);
    if (status != PYSIM_OK) return status;
    n->schedule = *s;
    n->schedule.k2 = pysim_min(s->k2, out_rows(c));
    n->window_end = pysim_ceil_div(n->windows, s->windows);
    n->filter_end = pysim_ceil_div(n->filters, s->filters);
    status = phase_buffer_of(c, n->schedule.k2, &of);
    if (status == PYSIM_OK) status = pysim_conv_panels(job);
    job->thread_bytes = of.bytes + n->channels * n->rows * n->taps * (int64_t)sizeof(int64_t) + ALIGN;
    return status;
}

/* Copies input rows y0, y0 + 1, .., of->rows of them. */
static void split_rows(const pysim_nest *n, const phase_buffer *of, int64_t y0, char *to) {
    const pysim_conv *c = n->problem;
    const int64_t first = pysim_max(0, pysim_min(of->rows, -y0)), end = pysim_max(first, pysim_min(of->rows, c->height - y0));
    const int64_t row = of->phases * of->pitch * n->bytes;
    for (int64_t ch = 0; ch < of->channels; ch++, to += of->rows * row) {
        memset(to, 0, (size_t)(first * row));
        memset(to + end * row, 0, (size_t)((of->rows - end) * row));
        for (int64_t x = 0; x < of->pitch && first < end; x += PHASE_COLUMNS) {
            const pysim_segment segment = {
                .row = n->input + (ch * n->input_pitch + (y0 + first) * c->width) * n->bytes,
                .row_channel = c->width,
                .width = c->width,
                .first = x * c->stride_w - c->pad_left,
                .stride = c->stride_w,
                .dilation = 1,
                .taps = of->phases,
                .channels = end - first,
                .count = pysim_min(PHASE_COLUMNS, of->pitch - x),
                .dst_channel = of->phases * of->pitch,
                .pitch = of->pitch,
            };
            n->row.pack.segment(&segment, to + first * row + x * n->bytes);
        }
    }
}

/* Offset of each tap of a panel, relative to the window's position in the first copied row. */
static void tap_offsets(const pysim_nest *n, const phase_buffer *of, int64_t *offsets) {
    const pysim_conv *c = n->problem;
    for (int64_t r = 0; r < n->rows; r++)
        for (int64_t ch = 0; ch < of->channels; ch++)
            for (int64_t s = 0; s < n->taps; s++) {
                const int64_t x = s * c->dilation_w, row = ch * of->rows + r * c->dilation_h;
                *offsets++ = (row * of->phases + x % c->stride_w) * of->pitch + x / c->stride_w;
            }
}

typedef struct {
    const pysim_job *job;
    const pysim_call *call;
    int64_t blocks; /* blocks of output rows */
} polyphase_run;

static void run_block(int64_t item, int64_t thread, const void *context) {
    const polyphase_run *r = context;
    const pysim_conv *c = &r->job->problem.conv;
    pysim_nest n = r->job->nest;
    phase_buffer of;
    int64_t begin, end;
    pysim_split_range(out_rows(c), item % r->blocks, r->blocks, &begin, &end);
    pysim_conv_image(&n, item / r->blocks, r->call);
    (void)phase_buffer_of(c, end - begin, &of); /* checked before, for more rows */
    char *rows = r->call->workspace + thread * r->job->thread_bytes;
    rows += (ALIGN - (uintptr_t)rows % ALIGN) % ALIGN;
    int64_t *offsets = (int64_t *)(void *)(rows + of.bytes);
    const double start = r->call->profile ? pysim_now() : 0;
    split_rows(&n, &of, begin * c->stride_h - c->pad_top, rows);
    tap_offsets(&n, &of, offsets);
    const double packed = r->call->profile ? pysim_now() : 0;

    const int64_t q = out_columns(c), width = n.schedule.filters, step = c->stride_h * of.phases * of.pitch * n.bytes;
    pysim_phases kernel = {.k = n.channels * n.rows * n.taps, .out_pitch = n.output_pitch, .offsets = offsets, .bounds = r->call->bounds};
    for (int64_t f = 0; f < n.filters; f += width) {
        char *out = n.output + (f * n.output_pitch + begin * q) * n.out_bytes;
        kernel.count = pysim_min(width, n.filters - f);
        kernel.filters = n.filter_data + f * kernel.k * n.bytes;
        kernel.bias = n.bias_filters ? (const char *)n.bias_filters + f * n.out_bytes : NULL;
        for (int64_t p = begin; p < end; p++) n.row.phases(&kernel, rows + (p - begin) * step, out + (p - begin) * q * n.out_bytes, q);
        pysim_finish_rows(&r->call->finish, out, n.output_pitch, kernel.count, (end - begin) * q);
    }
    if (!r->call->profile) return;
    const pysim_profile own = {.pack_seconds = packed - start,
                               .kernel_seconds = pysim_now() - packed,
                               .packed_tiles = 1,
                               .kernel_calls = n.filter_end * (end - begin)};
    pysim_add_profile(r->call->profile, &own);
}

static void run_polyphase(const pysim_job *job, const pysim_call *call) {
    const pysim_conv *c = &job->problem.conv;
    const int64_t images = c->batch * c->groups, rows = out_rows(c), fewest = pysim_ceil_div(rows, job->nest.schedule.k2);
    const int64_t parts = pysim_split_count(images * fewest, call->threads);
    const polyphase_run r = {job, call, pysim_min(rows, fewest * parts)};
    pysim_parallel_for(images * r.blocks, call->threads, run_block, &r);
    if (!job->nest.finish || !pysim_conv_marked(job, call->second)) return;
    pysim_nest n = job->nest;
    n.bounds = call->bounds;
    n.finish_rows = call->finish;
    for (int64_t image = 0; image < images; image++) {
        pysim_conv_image(&n, image, call);
        n.finish(&n);
    }
}

const pysim_algorithm pysim_algorithm_polyphase = {open_polyphase, pysim_conv_prepare, run_polyphase, 1, 0, 0, 0, 0};
