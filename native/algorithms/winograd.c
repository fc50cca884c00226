/* SPDX-License-Identifier: Apache-2.0
 * Winograd convolution F(m x m, r x r) of square kernels (winograd.h: the products and their layouts; winograd_phases.c: strides):
 *
 *   with a stride: split the rows and columns of all images by phase         (workspace, shared)
 *   for each group
 *     for each block of k2 panels of tiles: transform the input patches       (workspace, meant for L2)
 *       for each set of k3 panels of filters
 *         for each plane, each channel set, each panel of filters, each panel of tiles: MICRO-KERNEL
 *         transform the outputs, add the bias, apply the activation
 *
 * The micro-kernel's windows are filters here and its filters are tiles; k2 and k3 are those of an input stationary nest of that product. Tiles
 * of all images are numbered consecutively. A panel holds whole rows of tiles if a row fits into it, else an equal part of a row
 * (tiles_of_panel), because tiles of one row are transformed together.
 *
 * The slices of a kernel of a volume are channels, too: the patch of a tile has those of all slices that its outputs read, slice by slice. Their
 * products add up before the output transform. Slices of padding are at either end, and are left out of a panel's products. So are, in the
 * planes at infinity, the phases of a stride without their last tap, whose transformed filters are zeros there (multiplied_in).
 *
 * With channels in blocks (NCHWc), channels are the lanes of both transforms. The products broadcast elements of a patch in place, so each
 * tile's patch is stored channel by channel, and nothing is transposed. Phases can only be split from planes.
 *
 * Threads divide the blocks, smaller ones if that balances them, and the filters; each thread transforms the patches it needs. One thread sums a
 * result in a fixed order. Prepared filters are stored as one stream in reading order: [group][set][plane][channel set][panel][channel][filters];
 * behind them are the filters themselves, which only winograd_direct.c reads: for tiles with a result that is not finite. */
#include <string.h>

#include "algorithm.h"
#include "winograd.h"

enum {
    ALIGN = 64,
    MAX_PANEL_FILTERS = 64, /* largest number of filters per panel of any registry row */
    MAX_KERNEL = 16,        /* largest kernel edge */
    MAX_TAPS = 256,         /* of a channel; a panel's taps are kept on the stack */
};

#define PYSIM_WINOGRAD(target, dtype) extern __attribute__((weak)) const pysim_winograd_transforms pysim_winograd_##dtype##__##target;
#include "winograd.inc"
#undef PYSIM_WINOGRAD

static const struct {
    const char *target, *dtype;
    const pysim_winograd_transforms *of; /* NULL if the target is not built */
} table[] = {
#define PYSIM_WINOGRAD(target, dtype) {#target, #dtype, &pysim_winograd_##dtype##__##target},
#include "winograd.inc"
#undef PYSIM_WINOGRAD
};

static int has_form(int64_t outputs, int64_t taps) {
    return 0
#define PYSIM_WINOGRAD_FORM(m, r) || (outputs == m && taps == r)
#include "winograd.inc"
#undef PYSIM_WINOGRAD_FORM
        ;
}

/* Builds for one CPU leave out those of narrower vectors (meson.build): wider ones serve such rows, too, but not channel blocks. */
static const pysim_winograd_transforms *transforms_of(const pysim_kernel_info *row, int *known, int *own) {
    const pysim_winograd_transforms *wider = NULL;
    *known = *own = 0;
    for (size_t i = 0; i < sizeof table / sizeof *table && !*known; i++)
        if (strcmp(table[i].dtype, pysim_dtype_name(row->dtype)) == 0) {
            *known = strcmp(table[i].target, row->target) == 0;
            *own = *known && table[i].of;
            if (table[i].of) wider = table[i].of; /* else those of the last line before the row's own */
        }
    return *known ? wider : NULL;
}

/* Everything derived from a job; sizes in elements, of one group. */
typedef struct {
    pysim_winograd w;
    int64_t bytes, planes, tiles, filters;
    int64_t panel_tiles, panel_filters, panel_bytes;              /* tiles in a panel; w.panel_tiles is its capacity */
    int64_t tile_panels, block_panels, filter_panels, set_panels; /* panels of all tiles, of a block; of all filters, of a set */
    int64_t set_channels;
    const pysim_winograd_transforms *transforms;
} shape;

static int64_t round_to_lines(int64_t bytes) { return pysim_ceil_div(bytes, ALIGN) * ALIGN; }

/* Tiles per panel of capacity `most`, given all tiles and the tiles of a row. */
static int64_t tiles_of_panel(int64_t tiles, int64_t row, int64_t most) {
    if (tiles <= most) return tiles;
    if (row > most) return pysim_ceil_div(row, pysim_ceil_div(row, most));
    const int64_t rows = most / row, panels = pysim_ceil_div(tiles, rows * row);
    return pysim_ceil_div(pysim_ceil_div(tiles, panels), row) * row;
}

/* Rounds up to an odd number of lines: strides of a power of two would map to the same cache sets. */
static int64_t odd_line_pitch(int64_t elements, int64_t bytes) { return (pysim_ceil_div(elements * bytes, ALIGN) | 1) * ALIGN / bytes; }

/* Planes of a convolution of stride 1: elements of a patch. */
static int64_t planes_of(const pysim_conv *c, int64_t m) {
    return (c->kernel_h > 1 ? m + c->kernel_h - 1 : 1) * (c->kernel_w > 1 ? m + c->kernel_w - 1 : 1);
}

static shape shape_of(const pysim_job *job) {
    const pysim_conv *c = &job->own;
    const pysim_nest *n = &job->nest;
    const int64_t m = n->schedule.outputs;
    int known, own;
    shape s = {
        .w =
            {
                .outputs_h = c->kernel_h > 1 ? m : 1,
                .outputs_w = c->kernel_w > 1 ? m : 1,
                .taps_h = c->kernel_h,
                .taps_w = c->kernel_w,
                .channels = n->channels,
                .height = c->height,
                .width = c->width,
                .pad_top = c->pad_top,
                .pad_left = c->pad_left,
                .depth = c->depth,
                .slices = c->kernel_d,
                .stride_d = c->stride_d,
                .dilation_d = c->dilation_d,
                .pad_front = c->pad_front,
                .out_d = pysim_out_slices(c),
                .out_h = c->height + c->pad_top + c->pad_bottom - c->kernel_h + 1,
                .out_w = c->width + c->pad_left + c->pad_right - c->kernel_w + 1,
                .image_pitch = c->channels * c->depth * c->height * c->width,
                .channel_pitch = c->depth * c->height * c->width,
                .panel_tiles = n->schedule.filters,
                .in_blocks = c->input_block > 1,
                .out_blocks = c->output_block > 1,
            },
        .bytes = n->bytes,
        .planes = planes_of(c, m),
        .filters = n->windows,
        .panel_filters = n->schedule.windows,
        .block_panels = n->schedule.k2,
        .set_panels = n->schedule.k3,
        .set_channels = n->schedule.channels,
        .transforms = transforms_of(&n->row.info, &known, &own),
    };
    s.w.narrow_in = s.w.in_blocks && c->dtype == PYSIM_BF16, s.w.narrow_out = s.w.out_blocks && c->dtype == PYSIM_BF16;
    s.w.tiles_h = pysim_ceil_div(s.w.out_h, s.w.outputs_h), s.w.tiles_w = pysim_ceil_div(s.w.out_w, s.w.outputs_w);
    s.w.filter_pitch = s.w.out_d * s.w.out_h * s.w.out_w;
    s.w.output_pitch = c->filters * s.w.filter_pitch;
    s.w.accumulator_pitch = odd_line_pitch(s.set_panels * s.panel_filters, s.bytes);
    s.w.tile_pitch = odd_line_pitch(s.planes * s.w.accumulator_pitch, s.bytes);
    s.w.patch_pitch = odd_line_pitch(s.w.channels, s.bytes);
    s.w.plane_pitch = odd_line_pitch((s.w.in_blocks ? s.w.patch_pitch : s.w.channels) * s.w.panel_tiles + PYSIM_WINOGRAD_SLACK, s.bytes);
    s.panel_bytes = s.planes * s.w.plane_pitch * s.bytes;
    s.filter_panels = pysim_ceil_div(s.filters, s.panel_filters);
    s.tiles = c->batch * s.w.out_d * s.w.tiles_h * s.w.tiles_w;
    s.panel_tiles = tiles_of_panel(s.tiles, s.w.tiles_w, s.w.panel_tiles);
    s.tile_panels = pysim_ceil_div(s.tiles, s.panel_tiles);
    return s;
}

static int64_t accumulator_bytes(const shape *s) { return round_to_lines(s->block_panels * s->panel_tiles * s->w.tile_pitch * s->bytes); }

/* ---- opening ---- */

static pysim_status check_problem(const pysim_conv *c, const pysim_schedule *s) {
    const int64_t most = pysim_max(c->kernel_h, c->kernel_w), stride = pysim_max(c->stride_h, c->stride_w), taps = pysim_ceil_div(most, stride);
    const int along_w = c->kernel_h == 1 && c->stride_h == 1, along_h = c->kernel_w == 1 && c->stride_w == 1;
    const int square = c->kernel_h == c->kernel_w && c->stride_h == c->stride_w;
    if (!(square || along_h || along_w) || c->dilation_h != 1 || c->dilation_w != 1 || most > MAX_KERNEL)
        return pysim_fail(PYSIM_UNSUPPORTED,
                          "algorithm winograd computes square kernels of up to %dx%d, with one stride and dilation 1, and such of one row "
                          "or column",
                          (int)MAX_KERNEL, (int)MAX_KERNEL);
    if (c->kernel_d > MAX_TAPS / (c->kernel_h * c->kernel_w))
        return pysim_fail(PYSIM_UNSUPPORTED, "algorithm winograd computes kernels of up to %d taps", (int)MAX_TAPS);
    if (!has_form(s->outputs, taps))
        return pysim_fail(PYSIM_BAD_ARGUMENT,
                          "schedule.outputs is %lld; native/winograd.inc has no F(%lldx%lld, %lldx%lld), and a kernel of "
                          "%lldx%lld with stride %lld has %lld taps a phase",
                          (long long)s->outputs, (long long)s->outputs, (long long)s->outputs, (long long)taps, (long long)taps,
                          (long long)c->kernel_h, (long long)c->kernel_w, (long long)stride, (long long)taps);
    if (c->input_block > 1 && stride > 1)
        return pysim_fail(PYSIM_UNSUPPORTED, "input_block is %d; with a stride, %lld, algorithm winograd reads planes", (int)c->input_block,
                          (long long)stride);
    if (!square && pysim_max(c->input_block, c->output_block) > 1)
        return pysim_fail(PYSIM_UNSUPPORTED, "algorithm winograd computes kernels of one row or column in planes");
    if (s->stationary != PYSIM_INPUT_STATIONARY)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "schedule.stationary is %d; winograd is input stationary", (int)s->stationary);
    return PYSIM_OK;
}

/* The blocks must match the lanes of a win row. Patches of blocks need a kernel that takes any stride between tiles. */
static pysim_status check_blocks(const pysim_conv *c, const pysim_row *row) {
    const int32_t lanes = strcmp(row->info.form, "win") == 0 ? row->info.lane_windows : 1, in = c->input_block, out = c->output_block;
    if ((in <= 1 || in == lanes) && (out <= 1 || out == lanes)) return PYSIM_OK;
    return pysim_fail(PYSIM_UNSUPPORTED,
                      "input_block is %d and output_block %d; with kernel %s algorithm winograd reads and writes planes or "
                      "blocks of %d channels (1: planes)",
                      (int)in, (int)out, row->info.name, (int)lanes);
}

static pysim_status sizes(pysim_job *job) {
    const pysim_conv *c = &job->own, *given = &job->problem.conv;
    const pysim_nest *n = &job->nest;
    const int64_t planes = planes_of(c, n->schedule.outputs), panels = pysim_ceil_div(n->windows, n->schedule.windows);
    const int64_t filters[] = {c->groups, planes, panels, n->channels, n->schedule.windows, n->bytes};
    const int64_t taps = given->kernel_d * given->kernel_h * given->kernel_w;
    const int64_t own[] = {c->groups, taps, panels, given->channels / given->groups, n->schedule.windows, n->bytes};
    int64_t plain;
    pysim_status status = pysim_product("the transformed filters' bytes", 6, filters, &job->prepared_bytes);
    if (status == PYSIM_OK) status = pysim_product("the filters' bytes", 6, own, &plain);
    if (status == PYSIM_OK && __builtin_add_overflow(job->prepared_bytes, plain, &job->prepared_bytes))
        status = pysim_fail(PYSIM_OVERFLOW, "the transformed filters and the filters exceed int64 bytes");
    if (status != PYSIM_OK) return status;
    int64_t patches, accumulators;
    /* at most */
    const int64_t panel[] = {n->schedule.k2, planes, n->channels + 2 * ALIGN, 2 * PYSIM_WINOGRAD_MAX_PANEL_TILES, n->bytes};
    const int64_t set[] = {n->schedule.k2, n->schedule.filters, planes, n->schedule.k3, n->schedule.windows, 4 * ALIGN}; /* at most */
    status = pysim_product("the transformed patches' bytes", 5, panel, &patches);
    if (status == PYSIM_OK) status = pysim_product("the accumulators' bytes", 6, set, &accumulators);
    if (status != PYSIM_OK) return status;
    if (patches > INT64_MAX / 4 || accumulators > INT64_MAX / 4) return pysim_fail(PYSIM_OVERFLOW, "the workspace exceeds int64 bytes");
    const shape s = shape_of(job);
    job->thread_bytes = s.block_panels * s.panel_bytes + accumulator_bytes(&s) + ALIGN;
    return PYSIM_OK;
}

static pysim_status open_winograd(const pysim_problem *of, const pysim_schedule *s, pysim_row_lookup row, pysim_job *job) {
    const pysim_conv *c = &of->conv;
    const int64_t high = c->kernel_h > 1 ? s->outputs : 1, wide = c->kernel_w > 1 ? s->outputs : 1; /* a tile */
    pysim_nest *n = &job->nest;
    const int32_t dtype = pysim_result_dtype(c->dtype); /* blocks of bf16 are transformed and multiplied as floats */
    int64_t p, q, tiles;
    int known, own;
    pysim_status status = check_problem(c, s);
    if (status == PYSIM_OK) status = pysim_check_conv(c, &p, &q, NULL);
    if (status != PYSIM_OK) return status;
    const int64_t count[] = {c->batch, pysim_out_slices(c), pysim_ceil_div(p, high), pysim_ceil_div(q, wide)};
    status = pysim_product("the tiles", 4, count, &tiles);
    if (status == PYSIM_OK) status = pysim_winograd_phases_bytes(c, p, q, &job->shared_bytes);
    if (status != PYSIM_OK) return status;
    job->own = pysim_winograd_stride_one(c, p, q);
    *n = (pysim_nest){.windows = c->filters / c->groups,
                      .channels = job->own.channels / c->groups * c->kernel_d,
                      .rows = 1,
                      .taps = 1,
                      .bytes = pysim_dtype_bytes(dtype),
                      .out_bytes = pysim_dtype_bytes(dtype),
                      .problem = &job->own};
    status = row(s, dtype, &n->row);
    if (status != PYSIM_OK) return status;
    status = check_blocks(c, &n->row);
    if (status != PYSIM_OK) return status;
    const pysim_winograd_transforms *transforms = transforms_of(&n->row.info, &known, &own);
    if (c->dtype == PYSIM_BF16 && !(own && transforms->takes_narrow && c->output_block > 1))
        return pysim_fail(PYSIM_UNSUPPORTED, "algorithm winograd has no transforms of blocks of bf16 for %s", n->row.info.target);
    if (n->row.info.filters > PYSIM_WINOGRAD_MAX_PANEL_TILES || n->row.info.windows > MAX_PANEL_FILTERS)
        return pysim_fail(PYSIM_UNSUPPORTED, "algorithm winograd takes kernels of up to %d windows x %d filters, and %s is wider",
                          (int)MAX_PANEL_FILTERS, (int)PYSIM_WINOGRAD_MAX_PANEL_TILES, n->row.info.name);
    if (!known)
        return pysim_fail(PYSIM_UNSUPPORTED, "algorithm winograd has no transforms for %s of %s", pysim_dtype_name(c->dtype),
                          n->row.info.target);
    if (!own && pysim_max(c->input_block, c->output_block) > 1)
        return pysim_fail(PYSIM_UNSUPPORTED, "this build leaves out %s's transforms of channel blocks; configure it with -Dtargets=all",
                          n->row.info.target);
    n->filters = pysim_ceil_div(tiles, tiles_of_panel(tiles, pysim_ceil_div(q, wide), n->row.info.filters)) * n->row.info.filters;
    status = pysim_nest_schedule(n, s, 0);
    if (status == PYSIM_OK) status = sizes(job);
    if (status != PYSIM_OK) return status;
    job->operands.second.name = "transformed filters";
    job->operands.second.bytes = job->prepared_bytes;
    return PYSIM_OK;
}

/* ---- preparation ---- */

/* Panels in the set that contains `panel`. */
static int64_t panels_of_set(const shape *s, int64_t panel) {
    return pysim_min(s->set_panels, s->filter_panels - panel / s->set_panels * s->set_panels);
}

/* Elements between two planes of a set of panels. */
static int64_t set_pitch(const shape *s, int64_t panel) { return panels_of_set(s, panel) * s->w.channels * s->panel_filters; }

/* Offset in elements of (panel, plane, channel) in a group's prepared filters; `channel` begins a channel set. */
static int64_t filter_offset(const shape *s, int64_t panel, int64_t plane, int64_t channel) {
    const int64_t in_set = panel % s->set_panels, channels = pysim_min(s->set_channels, s->w.channels - channel);
    const int64_t before = (panel - in_set) * s->planes * s->w.channels + channel * panels_of_set(s, panel) + in_set * channels;
    return before * s->panel_filters + plane * set_pitch(s, panel);
}

/* Elements of one group's transformed filters, and of its filters behind those of all groups. */
static int64_t group_transformed(const shape *s) { return s->planes * s->filter_panels * s->w.channels * s->panel_filters; }
static int64_t panel_plain(const pysim_job *job, const shape *s) {
    const pysim_conv *c = &job->problem.conv;
    return c->channels / c->groups * c->kernel_d * c->kernel_h * c->kernel_w * s->panel_filters;
}
static int64_t plain_offset(const pysim_job *job, const shape *s, int64_t group, int64_t panel) {
    return job->problem.conv.groups * group_transformed(s) + (group * s->filter_panels + panel) * panel_plain(job, s);
}

/* Transforms one panel of filters of one group, slice by slice. The row's own packing routine first makes [tap][filter] of some channels, which are kept in
 * `plain`; each phase of a channel takes every stride-th tap. */
static void prepare_panel(const pysim_job *job, const shape *s, const char *filters, int64_t panel, char *to, char *plain) {
    _Alignas(ALIGN) char packed[MAX_TAPS * MAX_PANEL_FILTERS * sizeof(double)];
    const pysim_conv *c = &job->problem.conv;
    const int64_t row = c->kernel_w, stride = c->stride_w, channels = c->channels / c->groups, width = s->panel_filters;
    const int64_t taps = c->kernel_d * c->kernel_h * row, at_once = MAX_TAPS / taps, plane = set_pitch(s, panel);
    const int64_t phases = c->stride_h * stride;
    const int64_t count = pysim_min(width, s->filters - panel * width);
    for (int64_t first = 0; first < channels; first += at_once) {
        const int64_t some = pysim_min(at_once, channels - first);
        job->nest.row.pack.transposed(filters + first * taps * s->bytes, channels * taps, count, some * taps, width, packed, NULL);
        memcpy(plain + first * taps * width * s->bytes, packed, (size_t)(some * taps * width * s->bytes));
        for (int64_t i = 0; i < some * c->kernel_d * phases; i++) {
            const int64_t slice = i / phases % c->kernel_d, of = i / phases / c->kernel_d, a = i / stride % c->stride_h, b = i % stride;
            const int64_t channel = (slice * phases + i % phases) * channels + first + of, in_set = channel % s->set_channels;
            const int64_t at = filter_offset(s, panel, 0, channel - in_set) + in_set * width;
            const pysim_winograd_taps found = {
                .first = packed + (of * taps + (slice * c->kernel_h + a) * row + b) * width * s->bytes,
                .rows = pysim_ceil_div(c->kernel_h - a, c->stride_h),
                .columns = pysim_ceil_div(row - b, stride),
                .row_pitch = c->stride_h * row * width,
                .column_pitch = stride * width,
            };
            s->transforms->filters(&s->w, &found, width, to + at * s->bytes, plane);
        }
    }
}

static void prepare_winograd(const pysim_job *job, const char *filters, char *prepared) {
    const shape s = shape_of(job);
    const pysim_conv *c = &job->problem.conv;
    const int64_t filter = c->channels / c->groups * c->kernel_d * c->kernel_h * c->kernel_w;
    for (int64_t g = 0; g < c->groups; g++)
        for (int64_t f = 0; f < s.filter_panels; f++) {
            const char *from = filters + (g * s.filters + f * s.panel_filters) * filter * s.bytes;
            prepare_panel(job, &s, from, f, prepared + g * group_transformed(&s) * s.bytes,
                          prepared + plain_offset(job, &s, g, f) * s.bytes);
        }
}

/* ---- the run ---- */

typedef struct {
    const pysim_job *job;
    const pysim_call *call;
    const shape *s;
    const char *input;     /* the call's input, or its phases */
    char *workspace;       /* all threads' workspaces */
    int64_t blocks, parts; /* blocks of tiles; parts of the filters of each block */
} run;

/* Some panels, with tiles [first, first + count). */
typedef struct {
    int64_t first, count, panels;
} block;

static block block_of(const run *r, int64_t i) {
    const int64_t begin = i * r->s->tile_panels / r->blocks, end = (i + 1) * r->s->tile_panels / r->blocks;
    const int64_t first = begin * r->s->panel_tiles;
    return (block){first, pysim_min(end * r->s->panel_tiles, r->s->tiles) - first, end - begin};
}

static int64_t tiles_in(const shape *s, const block *b, int64_t panel) {
    return pysim_min(s->panel_tiles, b->count - panel * s->panel_tiles);
}

/* Channels [*first, *end) of the slices that a panel reads inside the image. */
static void live_channels(const shape *s, const block *b, int64_t panel, int64_t *first, int64_t *end) {
    const int64_t each = s->w.channels / s->w.slices;
    pysim_winograd_slices(&s->w, b->first + panel * s->panel_tiles, tiles_in(s, b, panel), first, end);
    *first *= each, *end *= each;
}

/* Of a plane the first `length` of every `period` channels are multiplied. */
typedef struct {
    int64_t period, length;
} channel_runs;

/* A phase of an axis lacks its last tap if it is the `full`-th or a later one. That tap alone reaches the planes at infinity. */
static channel_runs multiplied_in(const run *r, int64_t plane) {
    const pysim_conv *c = &r->job->problem.conv;
    const pysim_winograd *w = &r->s->w;
    const int64_t edge = w->outputs_w + w->taps_w - 1, phase = c->channels / c->groups, row_phase = c->stride_w * phase;
    const int64_t full_h = c->kernel_h - (w->taps_h - 1) * c->stride_h, full_w = c->kernel_w - (w->taps_w - 1) * c->stride_w;
    const int less_h = full_h < c->stride_h && plane / edge == w->outputs_h + w->taps_h - 2;
    const int less_w = full_w < c->stride_w && plane % edge == edge - 1;
    if (less_w) return (channel_runs){less_h && full_h == 1 ? c->stride_h * row_phase : row_phase, full_w * phase};
    return less_h ? (channel_runs){c->stride_h * row_phase, full_h * row_phase} : (channel_runs){w->channels, w->channels};
}

/* Products of channels [c, stop) of a set with one panel of filters, `own` from channel c on, and one of tiles. */
static void multiply_panel(const run *r, const block *b, int64_t t, channel_runs runs, int64_t c, int64_t stop, int64_t live, int64_t width,
                           const char *own, const char *patches, char *to) {
    const shape *s = r->s;
    const pysim_row *row = &r->job->nest.row;
    const int64_t panel = s->panel_filters, tile = s->w.in_blocks ? 1 : s->w.panel_tiles, pitch = s->w.tile_pitch, tiles = tiles_in(s, b, t);
    for (int64_t at = c, channels; at < stop; at += channels) {
        const int64_t in_period = at % runs.period;
        channels = pysim_min(runs.length - in_period, stop - at);
        if (channels <= 0) {
            channels = runs.period - in_period;
            continue;
        }
        const pysim_store store = {.alpha = 1, .beta = 1, .old = at > live ? to : NULL, .bounds = pysim_unbounded(row->info.dtype)};
        const char *filters = own + (at - c) * panel * s->bytes, *from = patches + at * tile * s->bytes;
        if (s->w.in_blocks) row->strided(channels, from, 1, s->w.patch_pitch, filters, panel, to, pitch, width, tiles, &store);
        else row->run(channels, from, filters, panel, to, pitch, width, tiles, &store);
    }
}

/* Products of one plane for filter panels [begin, end). */
static void multiply_plane(const run *r, const block *b, const char *filters, const char *patches, char *accumulators, int64_t plane,
                           int64_t begin, int64_t end) {
    const shape *s = r->s;
    const int64_t most = r->job->nest.schedule.channels;
    const channel_runs runs = multiplied_in(r, plane);
    for (int64_t set = 0; set < s->w.channels; set += most)
        for (int64_t f = begin; f < end; f++) {
            const int64_t width = pysim_min(s->panel_filters, s->filters - f * s->panel_filters);
            for (int64_t t = 0; t < b->panels; t++) {
                int64_t live, last;
                live_channels(s, b, t, &live, &last);
                const int64_t c = pysim_max(set, live), stop = pysim_min(set + most, last);
                const int64_t at = t * s->panel_tiles * s->w.tile_pitch + plane * s->w.accumulator_pitch + (f - begin) * s->panel_filters;
                const char *own = filters + (filter_offset(s, f, plane, set) + (c - set) * s->panel_filters) * s->bytes;
                const char *from = patches + t * s->panel_bytes + plane * s->w.plane_pitch * s->bytes;
                multiply_panel(r, b, t, runs, c, stop, live, width, own, from, accumulators + at * s->bytes);
            }
        }
}

static void run_block(int64_t item, int64_t thread, const void *context) {
    const run *r = context;
    const shape *s = r->s;
    const int64_t group = item / (r->blocks * r->parts), part = item % r->parts;
    const block b = block_of(r, item / r->parts % r->blocks);
    char *patches = r->workspace + thread * r->job->thread_bytes;
    patches += (ALIGN - (uintptr_t)patches % ALIGN) % ALIGN;
    char *accumulators = patches + s->block_panels * s->panel_bytes;
    const char *filters = r->call->second + group * group_transformed(s) * s->bytes;
    const pysim_conv *given = &r->job->problem.conv;
    pysim_winograd w = s->w;
    const int64_t narrow = pysim_dtype_bytes(given->dtype); /* of an element in blocks; planes have `bytes` */
    w.input = r->input + group * (w.channels / w.slices) * w.channel_pitch * (w.in_blocks ? narrow : s->bytes);
    w.output = r->call->result + group * s->filters * w.filter_pitch * (w.out_blocks ? narrow : s->bytes);
    w.bias = r->call->epilogue->bias ? (const char *)r->call->epilogue->bias + group * s->filters * s->bytes : NULL;
    w.bounds = r->call->bounds;
    w.finish = r->call->finish;
    w.exact = (pysim_winograd_exact){
        given,
        r->call->first + group * (given->channels / given->groups) * given->depth * given->height * given->width *
                             (given->input_block > 1 ? narrow : s->bytes),
        r->call->second + plain_offset(r->job, s, group, 0) * s->bytes,
        s->panel_filters,
    };
    const int profiled = r->call->profile != NULL;
    pysim_profile own = {.packed_tiles = b.panels};
    const double start = profiled ? pysim_now() : 0;
    for (int64_t t = 0; t < b.panels; t++)
        s->transforms->patches(&w, b.first + t * s->panel_tiles, tiles_in(s, &b, t), patches + t * s->panel_bytes);
    const double packed = profiled ? pysim_now() : 0;
    const int64_t last = (part + 1) * s->filter_panels / r->parts;
    for (int64_t f = part * s->filter_panels / r->parts, end; f < last; f = end) {
        end = pysim_min((f / s->set_panels + 1) * s->set_panels, last);
        const int64_t first = f * s->panel_filters;
        for (int64_t plane = 0; plane < s->planes; plane++) multiply_plane(r, &b, filters, patches, accumulators, plane, f, end);
        s->transforms->outputs(&w, b.first, b.count, first, pysim_min(end * s->panel_filters, s->filters) - first, accumulators);
        own.kernel_calls += (end - f) * b.panels * s->planes * pysim_ceil_div(w.channels, r->job->nest.schedule.channels);
    }
    if (!profiled) return;
    own.pack_seconds = packed - start;
    own.kernel_seconds = pysim_now() - packed;
    pysim_add_profile(r->call->profile, &own);
}

/* Chooses the number of blocks (at least as many as k2 gives) and of parts of each block's filters that minimise the largest thread's
 * work, in panels of tiles times panels of filters. Each part transforms the patches again, which costs about half as much as one panel
 * of filters. */
static void divide(const shape *s, int64_t groups, int64_t threads, run *r) {
    const int64_t fewest = pysim_ceil_div(s->tile_panels, s->block_panels);
    int64_t least = INT64_MAX;
    for (int64_t parts = 1; parts <= pysim_min(threads, s->filter_panels); parts++)
        for (int64_t blocks = fewest; blocks <= pysim_min(s->tile_panels, pysim_max(fewest, threads)); blocks++) {
            const int64_t items = pysim_ceil_div(groups * blocks * parts, threads);
            const int64_t work = items * pysim_ceil_div(s->tile_panels, blocks) * (2 * pysim_ceil_div(s->filter_panels, parts) + 1);
            if (work < least) least = work, r->blocks = blocks, r->parts = parts;
        }
}

static void run_winograd(const pysim_job *job, const pysim_call *call) {
    const shape s = shape_of(job);
    const int64_t groups = job->problem.conv.groups;
    run r = {
        job, call, &s, pysim_winograd_input(job, call), call->workspace + job->shared_bytes, pysim_ceil_div(s.tile_panels, s.block_panels),
        1};
    if (call->threads > 1) divide(&s, groups, call->threads, &r);
    pysim_parallel_for(groups * r.blocks * r.parts, call->threads, run_block, &r);
}

const pysim_algorithm pysim_algorithm_winograd = {
    .open = open_winograd, .prepare = prepare_winograd, .run = run_winograd, .finishes = 1, .blocks = 1, .volumes = 1};
