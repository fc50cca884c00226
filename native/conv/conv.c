/* SPDX-License-Identifier: Apache-2.0
 * Convolution as a nest: windows are output pixels in row-major order, tiles may cross output rows, padding is packed as zeros. */
#include <string.h>

#include "../status.h"
#include "nest.h"

static int64_t output_columns(const pysim_conv *c) {
    return (c->width + c->pad_left + c->pad_right - c->dilation_w * (c->kernel_w - 1) - 1) / c->stride_w + 1;
}

static int padded(const pysim_conv *c) { return c->pad_top || c->pad_left || c->pad_bottom || c->pad_right; }

static void conv_live_rows(const pysim_nest *n, int64_t t0, int64_t nw, int64_t *r0, int64_t *r1) {
    const pysim_conv *c = n->problem;
    const int64_t q = output_columns(c);
    const int64_t top = t0 / q * c->stride_h - c->pad_top, bottom = (t0 + nw - 1) / q * c->stride_h - c->pad_top;
    /* row p meets the image where 0 <= p*stride - pad + r*dilation < height; the last output row gives the least r, the first the greatest */
    *r0 = pysim_min(c->kernel_h, bottom >= 0 ? 0 : pysim_ceil_div(-bottom, c->dilation_h));
    *r1 = top >= c->height ? 0 : pysim_min(c->kernel_h, (c->height - 1 - top) / c->dilation_h + 1);
    if (*r1 < *r0) *r1 = *r0;
}

static void conv_pack_windows(const pysim_nest *n, int64_t c0, int64_t nc, int64_t t0, int64_t nw, int64_t r0, int64_t r1, void *dst) {
    const pysim_conv *c = n->problem;
    const int64_t q = output_columns(c);
    const int64_t plane = c->height * c->width, pitch = n->schedule.windows;
    const char *image = n->input + c0 * plane * n->bytes;
    for (int64_t r = r0; r < r1; r++) {
        char *out = (char *)dst + (r - r0) * nc * c->kernel_w * pitch * n->bytes;
        for (int64_t j = 0; j < nw;) {
            const int64_t p = (t0 + j) / q, column = (t0 + j) % q, count = pysim_min(nw - j, q - column);
            const int64_t y = p * c->stride_h - c->pad_top + r * c->dilation_h;
            const pysim_segment segment = {
                .row = y >= 0 && y < c->height ? image + y * c->width * n->bytes : NULL,
                .row_channel = plane,
                .width = c->width,
                .first = column * c->stride_w - c->pad_left,
                .stride = c->stride_w,
                .dilation = c->dilation_w,
                .taps = c->kernel_w,
                .channels = nc,
                .count = count,
                .dst_channel = c->kernel_w * pitch,
                .pitch = pitch,
            };
            n->row.pack.segment(&segment, out + j * n->bytes);
            j += count;
        }
    }
}

static pysim_status conv_nest(const pysim_conv *c, const pysim_schedule *s, pysim_row_lookup row, pysim_nest *n, pysim_conv_bytes *bytes) {
    int64_t p, q;
    pysim_status status = pysim_check_conv_bytes(c, &p, &q, bytes);
    if (status != PYSIM_OK) return status;
    if (!s) return pysim_fail(PYSIM_BAD_ARGUMENT, "schedule is NULL");
    *n = (pysim_nest){
        .windows = p * q,
        .filters = c->filters / c->groups,
        .channels = c->channels / c->groups,
        .rows = c->kernel_h,
        .taps = c->kernel_w,
        .bytes = pysim_dtype_bytes(c->dtype),
        .out_bytes = pysim_dtype_bytes(pysim_result_dtype(c->dtype)),
        .pack_windows = conv_pack_windows,
        .live_rows = conv_live_rows,
        .problem = c,
        .input_pitch = c->height * c->width,
        .output_pitch = p * q,
        .alpha = 1,
    };
    status = row(s, c->dtype, &n->row);
    if (status != PYSIM_OK) return status;
    const int pointwise = c->kernel_h == 1 && c->kernel_w == 1 && c->stride_h == 1 && c->stride_w == 1 && !padded(c);
    return pysim_nest_schedule(n, s, pointwise);
}

/* Elements of the packed panels of one group. */
static int64_t group_panel(const pysim_nest *n) { return pysim_nest_filter_offset(n, n->channels, 0, 0); }

static pysim_status panels_bytes(const pysim_nest *n, int64_t *bytes) {
    const pysim_conv *c = n->problem;
    const int64_t width = n->schedule.filters, padded = pysim_ceil_div(n->filters, width) * width;
    int64_t elements;
    if (__builtin_mul_overflow(padded, n->channels * n->rows * n->taps, &elements) ||
        __builtin_mul_overflow(elements, c->groups * n->bytes, bytes))
        return pysim_fail(PYSIM_OVERFLOW, "the packed filters exceed int64 bytes");
    return PYSIM_OK;
}

pysim_status pysim_conv_packed_filter_bytes(const pysim_conv *c, const pysim_schedule *s, int64_t *bytes) {
    pysim_nest n;
    pysim_status status = conv_nest(c, s, pysim_row_of, &n, NULL);
    if (status != PYSIM_OK) return status;
    if (!bytes) return pysim_fail(PYSIM_BAD_ARGUMENT, "pysim_conv_packed_filter_bytes: bytes is NULL");
    status = panels_bytes(&n, bytes);
    if (status == PYSIM_OK && __builtin_add_overflow(*bytes, PYSIM_PACKED_MARK_BYTES, bytes))
        return pysim_fail(PYSIM_OVERFLOW, "the packed filters exceed int64 bytes");
    return status;
}

pysim_status pysim_conv_pack_filters(const pysim_conv *c, const pysim_schedule *s, const void *filters, void *packed,
                                     int64_t packed_bytes) {
    int64_t needed;
    pysim_nest n;
    pysim_status status = pysim_conv_packed_filter_bytes(c, s, &needed);
    if (status != PYSIM_OK) return status;
    status = pysim_check_operand("filters", filters, c->dtype);
    if (status == PYSIM_OK) status = pysim_check_operand("packed", packed, c->dtype);
    if (status != PYSIM_OK) return status;
    if (packed_bytes < needed)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "packed has %lld bytes; this schedule needs %lld", (long long)packed_bytes, (long long)needed);
    status = conv_nest(c, s, pysim_row_for, &n, NULL);
    if (status != PYSIM_OK) return status;
    const int64_t ld = n.channels * n.rows * n.taps, width = s->filters;
    const pysim_span spans[] = {{"packed", packed, needed, 1}, {"filters", filters, c->filters * ld * n.bytes, 0}};
    status = pysim_check_apart(spans, 2);
    if (status != PYSIM_OK) return status;
    int not_finite = 0;
    for (int64_t g = 0; g < c->groups; g++)
        for (int64_t c0 = 0; c0 < n.channels; c0 += s->channels) {
            const int64_t nc = pysim_min(s->channels, n.channels - c0);
            for (int64_t tile = 0; tile < n.filter_end; tile++) {
                const int64_t f0 = tile * width, nf = pysim_min(width, n.filters - f0);
                char *to = (char *)packed + (g * group_panel(&n) + pysim_nest_filter_offset(&n, c0, nc, tile)) * n.bytes;
                const char *from = (const char *)filters + ((g * n.filters + f0) * ld + c0 * n.rows * n.taps) * n.bytes;
                /* from[f][c][r][s] to [r][c][s][f]: what is adjacent on both sides goes in one call */
                const int64_t run = n.rows == 1 ? nc : 1;
                for (int64_t r = 0; r < n.rows; r++)
                    for (int64_t ch = 0; ch < nc; ch += run)
                        n.row.pack.transposed(from + (ch * n.rows + r) * n.taps * n.bytes, ld, nf, run * n.taps, width,
                                              to + (r * nc + ch) * n.taps * width * n.bytes, padded(c) ? &not_finite : NULL);
            }
        }
    const int64_t mark = not_finite;
    memcpy((char *)packed + needed - PYSIM_PACKED_MARK_BYTES, &mark, PYSIM_PACKED_MARK_BYTES);
    return PYSIM_OK;
}

pysim_status pysim_conv_workspace_bytes(const pysim_conv *c, const pysim_schedule *s, int32_t threads, int64_t *bytes) {
    pysim_nest n;
    pysim_status status = conv_nest(c, s, pysim_row_of, &n, NULL);
    if (status != PYSIM_OK) return status;
    return pysim_threaded_workspace(&n, threads, bytes);
}

typedef struct {
    const char *input, *packed;
    char *output;
    const char *bias;
} conv_operands;

static void conv_image(pysim_nest *n, int64_t image, const void *context) {
    const pysim_conv *c = n->problem;
    const conv_operands *x = context;
    const int64_t g = image % c->groups;
    n->input = x->input + image * n->channels * n->input_pitch * n->bytes;
    n->filter_data = x->packed + g * group_panel(n) * n->bytes;
    n->output = x->output + image * n->filters * n->output_pitch * n->out_bytes;
    n->bias_filters = x->bias ? x->bias + g * n->filters * n->out_bytes : NULL;
}

/* Whether pysim_conv_pack_filters, for a padded problem, met a weight that is not finite. */
static int marked(const char *packed, int64_t panels) {
    int64_t mark;
    memcpy(&mark, packed + panels, PYSIM_PACKED_MARK_BYTES);
    return mark != 0;
}

static pysim_status conv_on(pysim_nest *n, const pysim_conv_bytes *bytes, const pysim_epilogue *e, int32_t threads,
                            const conv_operands *x, void *workspace, int64_t workspace_bytes, pysim_profile *profile) {
    const pysim_conv *c = n->problem;
    int64_t panels = 0;
    pysim_status status = panels_bytes(n, &panels);
    if (status == PYSIM_OK) status = pysim_check_conv_epilogue(e, c->dtype);
    if (status == PYSIM_OK) status = pysim_check_operand("input", x->input, c->dtype);
    if (status == PYSIM_OK) status = pysim_check_operand("packed filters", x->packed, c->dtype);
    if (status == PYSIM_OK) status = pysim_check_operand("output", x->output, pysim_result_dtype(c->dtype));
    if (status != PYSIM_OK) return status;
    const pysim_span spans[] = {
        {"output", x->output, bytes->output, 1},
        {"workspace", workspace, workspace_bytes, 1},
        {"input", x->input, bytes->input, 0},
        {"packed filters", x->packed, panels + (n->finish ? PYSIM_PACKED_MARK_BYTES : 0), 0}, /* what is read of them */
        {"bias", e->bias, c->filters * n->out_bytes, 0},
    };
    status = pysim_check_apart(spans, 5);
    if (status != PYSIM_OK) return status;
    n->relu = e->activation == PYSIM_RELU;
    if (n->finish && !marked(x->packed, panels)) n->finish = NULL;
    return pysim_nest_run(n, c->batch * c->groups, conv_image, x, threads, workspace, workspace_bytes, profile);
}

pysim_status pysim_conv_run(const pysim_conv *c, const pysim_schedule *s, const pysim_epilogue *e, int32_t threads,
                            const void *input, const void *packed_filters, void *output, void *workspace,
                            int64_t workspace_bytes, pysim_profile *profile) {
    pysim_nest n;
    pysim_conv_bytes bytes;
    pysim_status status = conv_nest(c, s, pysim_row_for, &n, &bytes);
    if (status != PYSIM_OK) return status;
    const conv_operands operands = {input, packed_filters, output, e ? e->bias : NULL};
    if (padded(c)) n.finish = pysim_sum_again;
    return conv_on(&n, &bytes, e, threads, &operands, workspace, workspace_bytes, profile);
}

pysim_status pysim_conv_walk(const pysim_conv *c, const pysim_schedule *s, pysim_stand_in stand_in, const void *input,
                             const void *packed_filters, void *output, void *workspace) {
    pysim_nest n;
    pysim_conv_bytes bytes;
    int64_t workspace_bytes;
    pysim_status status = conv_nest(c, s, pysim_row_of, &n, &bytes);
    if (status == PYSIM_OK) status = pysim_threaded_workspace(&n, 1, &workspace_bytes);
    if (status != PYSIM_OK) return status;
    stand_in(&n);
    const conv_operands operands = {input, packed_filters, output, NULL};
    const pysim_epilogue e = {.alpha = 1};
    return conv_on(&n, &bytes, &e, 1, &operands, workspace, workspace_bytes, NULL);
}
