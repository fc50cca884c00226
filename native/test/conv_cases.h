/* SPDX-License-Identifier: Apache-2.0
 * Cases of check_conv.c: the axes of its covering arrays, and the convolutions and schedules at their levels. */
#include <stdio.h>
#include <string.h>

#include "check.h"

enum { FAMILY_ANY = 0, FAMILY_POINTWISE = 1, FAMILY_WINOGRAD = 2 };

/* Axes of the covering array, see cover_settings. */
/* clang-format off */
enum {
    WINDOWS, FILTERS, STATIONARY, K2, K3, LAYOUT, CHANNELS, SET, GROUPS, BATCH, BIAS, EPILOGUE, /* both families */
    PACK, POINTWISE_AXES,
    KERNEL = PACK, STRIDE, DILATION, PADDING, ANY_AXES,
    FORM = PACK, PHASES, WINOGRAD_PADDING, WINOGRAD_AXES, /* WINDOWS are tiles there */
};
/* clang-format on */
/* none, relu, clamp, from ADDS on with a residual; s8 has the first WHOLE */
enum { EPILOGUES = 6, ADDS = 3, WHOLE = 2, CLAMPS = 2, LOW = -3, HIGH = 5 };
static const int64_t channel_levels[] = {1, 2, 3, 5, 17};
/* {1, 19} has more taps than a vector has lanes; a stride of 13 needs 13 vectors a tap, one of 19 is beyond every table. */
static const int64_t kernels[][2] = {{1, 1}, {3, 3}, {2, 5}, {5, 5}, {7, 7}, {1, 3}, {1, 19}};
static const int64_t stride_levels[][2] = {{1, 1}, {2, 2}, {3, 3}, {4, 4}, {1, 2}, {3, 1}, {2, 13}, {1, 19}};
static const int64_t dilations[][2] = {{1, 1}, {2, 2}, {1, 2}, {3, 5}};

/* Winograd's F(m x m, r x r). The most that an output's terms, all positive, grow to, over its r x r products: the largest element of
 * |A^T| (|G| 1 |B^T| 1), squared, over r^2. */
static const struct {
    int64_t outputs, taps;
    double growth;
} forms[] = {{2, 3, 7.2}, {3, 2, 9.1}, {4, 3, 83.6}, {3, 4, 68.5}, {2, 5, 61.3}};
enum { FORMS = sizeof forms / sizeof *forms, STRIDES = 4, LARGEST_KERNEL = 16 };

static const int32_t any_levels[ANY_AXES] = {EDGES, EDGES, 2, PLAN_K, PLAN_K, 3, 5, PLAN_SETS, 3, 2, 2, EPILOGUES, 7, 8, 4, CHECK_PADDINGS};
static const int32_t winograd_levels[WINOGRAD_AXES] = {EDGES, EDGES,     1,     PLAN_K,  PLAN_K,        3, 5, PLAN_SETS, 3, 2,
                                                       2,     EPILOGUES, FORMS, STRIDES, CHECK_PADDINGS};
static const int32_t pointwise_levels[POINTWISE_AXES] = {EDGES, EDGES, 2, PLAN_K, PLAN_K, 3, 5, PLAN_SETS, 3, 2, 2, EPILOGUES, 2};

typedef struct {
    char id[32];
    pysim_conv c;
    pysim_schedule s;
    int bias, epilogue, groups_of_k;
    int32_t index, threads, form;         /* form: of Winograd */
    int32_t first, second, result, added; /* dtypes of input, filters, output and bias (types_of) */
    check_random random;
    int64_t p, q, slices, input, filters, output; /* elements; p: rows of all slices */
} conv_case;

/* Of a bf16 convolution into blocks only what lies in blocks is bf16. */
static void types_of(conv_case *k) {
    const pysim_conv *c = &k->c;
    k->first = k->second = c->dtype, k->result = k->added = check_result(c->dtype);
    if (c->dtype != PYSIM_BF16 || c->output_block <= 1) return;
    k->second = PYSIM_F32, k->result = PYSIM_BF16;
    if (c->input_block <= 1) k->first = PYSIM_F32;
}

/* Results are rounded from one set of channels, and without stores between taps: no more columns of padding than the stride beside blocks, no kernels of
 * one tap and stride 1 beside planes. */
static void make_narrow(conv_case *k) {
    pysim_conv *c = &k->c;
    if (c->dtype != PYSIM_BF16) return;
    k->s.channels = c->channels / c->groups;
    if (c->input_block <= 1 && c->kernel_h * c->kernel_w * c->stride_h * c->stride_w == 1) c->stride_w = 2;
    if (c->input_block <= 1) return;
    c->pad_left = c->pad_left < c->stride_w ? c->pad_left : c->stride_w;
    c->pad_right = c->pad_right < c->stride_w ? c->pad_right : c->stride_w;
    const int64_t needed = c->dilation_w * (c->kernel_w - 1) + 1 - c->pad_left - c->pad_right;
    if (c->width < needed) c->width = needed;
}

/* Channels in blocks, or every third time planes on the way in, under a schedule of whole blocks. */
static void make_nchwc(conv_case *k, const unsigned char *level, const pysim_kernel_info *row) {
    enum { FEW = 3 };
    pysim_conv *c = &k->c;
    const int64_t lanes = row->lane_filters, block = k->index % 3 ? lanes : 1;
    c->groups = c->groups < FEW ? c->groups : FEW;
    const int64_t channels = block * (block > 1 && channel_levels[level[CHANNELS]] > FEW ? FEW : channel_levels[level[CHANNELS]]);
    c->channels = c->groups * channels;
    c->filters = c->groups * lanes * ((check_edge(level[FILTERS], row->filters) + lanes - 1) / lanes);
    c->input_block = block > 1 ? (int32_t)block : (int32_t)(k->index & 1), c->output_block = (int32_t)lanes;
    k->s.algorithm = CHECK_direct_nchwc;
    k->s.stationary = PYSIM_INPUT_STATIONARY, k->s.pack = PYSIM_PACK_NONE, k->s.k3 = 1;
    k->s.channels = (k->s.channels + block - 1) / block * block;
    if (k->s.channels > channels) k->s.channels = channels;
    make_narrow(k);
}

static void make(conv_case *k, int family, int32_t index, const unsigned char *level, int32_t kernel, const pysim_kernel_info *row) {
    const int any = family == FAMILY_ANY;
    const int64_t *size = kernels[any ? level[KERNEL] : 0], *stride = stride_levels[any ? level[STRIDE] : 0];
    const int64_t *dilation = dilations[any ? level[DILATION] : 0];
    const int32_t padding = any ? level[PADDING] : 0;
    memset(k, 0, sizeof *k);
    snprintf(k->id, sizeof k->id, "%s/%d", any ? "conv" : "pointwise", (int)index);
    k->index = index;
    k->random = check_case_random(kernel, family, index);
    k->bias = level[BIAS];
    k->groups_of_k = check_is_groups(row) || check_is_tiles(row);
    k->epilogue = row->dtype == PYSIM_S8 ? level[EPILOGUE] % WHOLE : level[EPILOGUE];
    k->threads = 2 + (index % 5 == 0);

    pysim_conv *c = &k->c;
    int64_t channels = channel_levels[level[CHANNELS]];
    c->dtype = row->dtype;
    c->batch = 1 + level[BATCH];
    c->groups = check_is_pixels(row) ? 1 : level[GROUPS] == 2 ? channels : 1 + level[GROUPS]; /* 1, 2, depthwise */
    if (level[GROUPS] == 2) channels = 1;
    c->channels = c->groups * channels;
    c->filters = c->groups * check_edge(level[FILTERS], check_is_pixels(row) ? row->windows : row->filters);
    if (check_is_blocks(row)) { /* whole blocks of groups */
        c->filters = (c->filters + row->filters - 1) / row->filters * row->filters;
        c->input_block = c->output_block = row->lane_filters;
    }
    if ((row->lane_filters > 1 && check_is_direct(row)) || check_is_taps(row) || check_is_last(row))
        c->groups = c->channels = c->filters, channels = 1; /* one channel, one filter each */
    if (check_is_last(row) || check_is_pixels(row)) c->input_block = (int32_t)c->channels, c->output_block = (int32_t)c->filters;
    c->kernel_h = size[0], c->kernel_w = size[1];
    c->stride_h = stride[0], c->stride_w = stride[1];
    c->dilation_h = dilation[0], c->dilation_w = dilation[1];
    check_rectangle(level[LAYOUT], check_edge(level[WINDOWS], check_is_pixels(row) ? row->filters : row->windows), &k->p, &k->q);
    check_axis(padding, k->p, c->kernel_h, c->stride_h, c->dilation_h, &k->random, &c->pad_top, &c->pad_bottom, &c->height);
    check_axis(padding, k->q, c->kernel_w, c->stride_w, c->dilation_w, &k->random, &c->pad_left, &c->pad_right, &c->width);

    const int32_t pack = any || check_is_groups(row) || check_is_tiles(row) ? PYSIM_PACK_TILES : level[PACK];
    const check_plan plan = {level[STATIONARY], pack, level[SET], level[K2], level[K3]};
    k->s = check_schedule(kernel, row, &plan, channels, &k->random);
    if (check_is_direct(row))
        k->s = (pysim_schedule){
            CHECK_depthwise, kernel, PYSIM_INPUT_STATIONARY, PYSIM_PACK_NONE, row->windows, row->filters, channels, 1, 1, 0};
    if (check_is_phases(row)) { /* blocks of one row of outputs, of a few, of all */
        const int64_t rows = level[K2] == 0 ? 1 : level[K2] == 1 ? 1 + check_below(&k->random, k->p) : k->p;
        k->s = (pysim_schedule){
            CHECK_polyphase, kernel, PYSIM_INPUT_STATIONARY, PYSIM_PACK_TILES, row->windows, row->filters, channels, rows, 1, 0};
    }
    if (check_is_nchwc(row)) make_nchwc(k, level, row);
    if (check_is_grouped(row)) k->s.algorithm = CHECK_grouped, k->s.channels = check_grouped(c, row, index, k->q);
    if (check_is_pixels(row)) k->s.algorithm = CHECK_channels_last, k->s.channels = channels * size[0] * size[1];
    k->slices = 1;
    types_of(k);
}

/* The same of channels in blocks, where the kernel takes them: filters, and without a stride channels, too. */
static void make_winograd_blocks(conv_case *k, const unsigned char *level, const pysim_kernel_info *row) {
    pysim_conv *c = &k->c;
    const int64_t lanes = row->lane_windows;
    if (lanes == 1 || row->lane_filters > 1) return;
    c->filters = c->groups * lanes * ((c->filters / c->groups + lanes - 1) / lanes);
    c->output_block = (int32_t)lanes;
    if (c->stride_h > 1 || k->index % 2) return;
    c->channels = c->groups * lanes * (1 + level[CHANNELS] % 2);
    c->input_block = (int32_t)lanes;
    if (level[SET] == 0) k->s.channels = c->channels / c->groups;
    if (k->s.channels > c->channels / c->groups) k->s.channels = c->channels / c->groups;
}

/* A square kernel whose tiles are at the edges of the kernel's filters, its filters at those of its windows; its last phases may lack a tap. */
static void make_winograd(conv_case *k, int32_t index, const unsigned char *level, int32_t kernel, const pysim_kernel_info *row) {
    unsigned char plain[ANY_AXES] = {0};
    memcpy(plain, level, PACK);
    plain[PADDING] = level[WINOGRAD_PADDING];
    make(k, FAMILY_ANY, index, plain, kernel, row);
    snprintf(k->id, sizeof k->id, "winograd/%d", (int)index);
    pysim_conv *c = &k->c;
    const int64_t m = forms[level[FORM]].outputs, taps = forms[level[FORM]].taps, channels = c->channels / c->groups;
    const int64_t most = LARGEST_KERNEL / taps, stride = 1 + level[PHASES] < most ? 1 + level[PHASES] : most;
    const int64_t size = taps * stride - check_below(&k->random, stride);
    int64_t rows, columns;
    const int64_t high = index % 5 == 4 ? 1 : m, wide = index % 5 == 3 ? 1 : m; /* taps of rows or of columns alone */
    k->form = level[FORM];
    c->kernel_h = high > 1 ? size : 1, c->kernel_w = wide > 1 ? size : 1;
    c->stride_h = high > 1 ? stride : 1, c->stride_w = wide > 1 ? stride : 1;
    c->filters = c->groups * check_edge(level[FILTERS], row->windows);
    check_rectangle(level[LAYOUT], check_edge(level[WINDOWS], row->filters), &rows, &columns);
    k->p = rows * high - check_below(&k->random, high);
    k->q = columns * wide - check_below(&k->random, wide);
    check_axis(plain[PADDING], k->p, c->kernel_h, c->stride_h, 1, &k->random, &c->pad_top, &c->pad_bottom, &c->height);
    check_axis(plain[PADDING], k->q, c->kernel_w, c->stride_w, 1, &k->random, &c->pad_left, &c->pad_right, &c->width);
    const check_plan plan = {level[STATIONARY], PYSIM_PACK_TILES, level[SET], level[K2], level[K3]};
    k->s = check_schedule(kernel, row, &plan, channels * c->stride_h * c->stride_w, &k->random);
    k->s.algorithm = CHECK_winograd, k->s.outputs = m;
    if (index % 3 == 1 && index % 5 < 3) make_winograd_blocks(k, level, row);
    if (index % 3 != 2) return;
    k->slices = check_volume(c, &k->random);
    if (level[SET] == 0) k->s.channels *= c->kernel_d;
}
