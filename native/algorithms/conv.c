/* SPDX-License-Identifier: Apache-2.0
 * Convolution on the loop nest: windows are output pixels in row-major order, of volumes slice by slice. A tile may cross output
 * rows and slices; padding is packed as zeros. */
#include <string.h>

#include "algorithm.h"

static int64_t outputs(int64_t size, int64_t before, int64_t after, int64_t kernel, int64_t stride, int64_t dilation) {
    return (size + before + after - dilation * (kernel - 1) - 1) / stride + 1;
}

static int64_t output_columns(const pysim_conv *c) {
    return outputs(c->width, c->pad_left, c->pad_right, c->kernel_w, c->stride_w, c->dilation_w);
}

static int64_t output_rows(const pysim_conv *c) {
    return outputs(c->height, c->pad_top, c->pad_bottom, c->kernel_h, c->stride_h, c->dilation_h);
}

int pysim_conv_padded(const pysim_conv *c) {
    return c->pad_top || c->pad_left || c->pad_bottom || c->pad_right || c->pad_front || c->pad_back;
}

/* Taps [*first, *end) of an axis of `size` that lie inside for at least one of its outputs [from, to]: tap r of output p is inside where
 * 0 <= p*stride - before + r*dilation < size. The last output has the least r, the first the greatest. */
static void live_taps(int64_t from, int64_t to, int64_t size, int64_t before, int64_t kernel, int64_t stride, int64_t dilation,
                      int64_t *first, int64_t *end) {
    const int64_t low = from * stride - before, high = to * stride - before;
    *first = pysim_min(kernel, high >= 0 ? 0 : pysim_ceil_div(-high, dilation));
    *end = low >= size ? 0 : pysim_min(kernel, (size - 1 - low) / dilation + 1);
    if (*end < *first) *end = *first;
}

/* Kernel rows are numbered over the slices of the kernel, rows of outputs over the slices of the output. Of several live slices, those rows in
 * between that only meet padding are live, too. */
static void conv_live_rows(const pysim_nest *n, int64_t t0, int64_t nw, int64_t *r0, int64_t *r1) {
    const pysim_conv *c = n->problem;
    const int64_t q = output_columns(c), top = t0 / q, bottom = (t0 + nw - 1) / q;
    if (c->kernel_d == 1 && c->depth == 1) { /* an image */
        live_taps(top, bottom, c->height, c->pad_top, c->kernel_h, c->stride_h, c->dilation_h, r0, r1);
        return;
    }
    const int64_t p = output_rows(c), front = top / p, back = bottom / p;
    int64_t d0, d1, first = 0, end = c->kernel_h;
    live_taps(front, back, c->depth, c->pad_front, c->kernel_d, c->stride_d, c->dilation_d, &d0, &d1);
    if (front == back) live_taps(top % p, bottom % p, c->height, c->pad_top, c->kernel_h, c->stride_h, c->dilation_h, &first, &end);
    *r0 = d0 * c->kernel_h + first;
    *r1 = d1 > d0 && end > first ? (d1 - 1) * c->kernel_h + end : *r0;
}

static void conv_pack_windows(const pysim_nest *n, int64_t c0, int64_t nc, int64_t t0, int64_t nw, int64_t r0, int64_t r1, void *dst) {
    const pysim_conv *c = n->problem;
    const int64_t q = output_columns(c), slice = output_rows(c);
    const int64_t pitch = n->schedule.windows;
    const char *image = n->input + c0 * n->input_pitch * n->bytes;
    for (int64_t r = r0; r < r1; r++) {
        char *out = (char *)dst + (r - r0) * nc * c->kernel_w * pitch * n->bytes;
        for (int64_t j = 0; j < nw;) {
            const int64_t row = (t0 + j) / q, column = (t0 + j) % q, count = pysim_min(nw - j, q - column);
            const int64_t z = row / slice * c->stride_d - c->pad_front + r / c->kernel_h * c->dilation_d;
            const int64_t y = row % slice * c->stride_h - c->pad_top + r % c->kernel_h * c->dilation_h;
            const int inside = z >= 0 && z < c->depth && y >= 0 && y < c->height;
            const pysim_segment segment = {
                .row = inside ? image + (z * c->height + y) * c->width * n->bytes : NULL,
                .row_channel = n->input_pitch,
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

/* Elements of one group's packed filters. */
static int64_t group_panel(const pysim_nest *n) { return pysim_nest_filter_offset(n, n->channels, 0, 0); }

static pysim_status panels_bytes(const pysim_nest *n, int64_t groups, int64_t *bytes, int64_t *with_mark) {
    const int64_t width = n->schedule.filters, whole = pysim_ceil_div(n->filters, width) * width;
    int64_t elements;
    if (__builtin_mul_overflow(whole, n->channels * n->rows * n->taps, &elements) ||
        __builtin_mul_overflow(elements, groups * n->bytes, bytes) || __builtin_add_overflow(*bytes, PYSIM_PACKED_MARK_BYTES, with_mark))
        return pysim_fail(PYSIM_OVERFLOW, "the packed filters exceed int64 bytes");
    return PYSIM_OK;
}

pysim_nest pysim_conv_nest(const pysim_conv *c) {
    const int64_t windows = pysim_out_slices(c) * output_rows(c) * output_columns(c);
    return (pysim_nest){
        .windows = windows,
        .filters = c->filters / c->groups,
        .channels = c->channels / c->groups,
        .rows = c->kernel_d * c->kernel_h,
        .taps = c->kernel_w,
        .bytes = pysim_dtype_bytes(c->dtype),
        .out_bytes = pysim_dtype_bytes(pysim_result_dtype(c->dtype)),
        .pack_windows = conv_pack_windows,
        .live_rows = conv_live_rows,
        .finish = pysim_conv_padded(c) ? pysim_recompute_padded : NULL,
        .problem = c,
        .input_pitch = c->depth * c->height * c->width,
        .output_pitch = windows,
        .alpha = 1,
    };
}

pysim_status pysim_conv_panels(pysim_job *job) {
    const pysim_nest *n = &job->nest;
    const pysim_conv *c = n->problem;
    job->operands.second.name = "packed filters";
    return panels_bytes(n, c->groups, &job->operands.second.bytes, &job->prepared_bytes);
}

pysim_status pysim_conv_open(const pysim_conv *c, const pysim_schedule *s, pysim_row_lookup row, pysim_job *job) {
    pysim_nest *n = &job->nest;
    *n = pysim_conv_nest(c);
    const int one_tap = c->kernel_d == 1 && c->kernel_h == 1 && c->kernel_w == 1;
    const int pointwise = one_tap && c->stride_d == 1 && c->stride_h == 1 && c->stride_w == 1 && !pysim_conv_padded(c);
    pysim_status status = row(s, c->dtype, &n->row);
    if (status == PYSIM_OK) status = pysim_nest_schedule(n, s, pointwise);
    return status == PYSIM_OK ? pysim_conv_panels(job) : status;
}

static pysim_status open_conv(const pysim_problem *p, const pysim_schedule *s, pysim_row_lookup row, pysim_job *job) {
    return pysim_conv_open(&p->conv, s, row, job);
}

void pysim_conv_prepare(const pysim_job *job, const char *filters, char *packed) {
    const pysim_nest *n = &job->nest;
    const pysim_conv *c = n->problem;
    const int64_t ld = n->channels * n->rows * n->taps, width = n->schedule.filters, set = n->schedule.channels;
    int not_finite = 0;
    for (int64_t g = 0; g < c->groups; g++)
        for (int64_t c0 = 0; c0 < n->channels; c0 += set) {
            const int64_t nc = pysim_min(set, n->channels - c0);
            for (int64_t tile = 0; tile < n->filter_end; tile++) {
                const int64_t f0 = tile * width, nf = pysim_min(width, n->filters - f0);
                char *to = packed + (g * group_panel(n) + pysim_nest_filter_offset(n, c0, nc, tile)) * n->bytes;
                const char *from = filters + ((g * n->filters + f0) * ld + c0 * n->rows * n->taps) * n->bytes;
                /* from[f][c][r][s] to [r][c][s][f]; one call covers all elements that are contiguous on both sides */
                const int64_t run = n->rows == 1 ? nc : 1;
                for (int64_t r = 0; r < n->rows; r++)
                    for (int64_t ch = 0; ch < nc; ch += run)
                        n->row.pack.transposed(from + (ch * n->rows + r) * n->taps * n->bytes, ld, nf, run * n->taps, width,
                                               to + (r * nc + ch) * n->taps * width * n->bytes, pysim_conv_padded(c) ? &not_finite : NULL);
            }
        }
    const int64_t mark = not_finite;
    memcpy(packed + job->prepared_bytes - PYSIM_PACKED_MARK_BYTES, &mark, PYSIM_PACKED_MARK_BYTES);
}

void pysim_conv_image(pysim_nest *n, int64_t image, const void *context) {
    const pysim_conv *c = n->problem;
    const pysim_call *x = context;
    const char *bias = x->epilogue->bias;
    const int64_t g = image % c->groups;
    n->input = x->first + image * n->channels * n->input_pitch * n->bytes;
    n->filter_data = x->second + g * group_panel(n) * n->bytes;
    n->output = x->result + image * n->filters * n->output_pitch * n->out_bytes;
    n->bias_filters = bias ? bias + g * n->filters * n->out_bytes : NULL;
    n->residual = x->residual ? x->residual + (n->output - x->result) : NULL;
}

int pysim_conv_marked(const pysim_job *job, const char *packed) {
    int64_t mark;
    memcpy(&mark, packed + job->prepared_bytes - PYSIM_PACKED_MARK_BYTES, PYSIM_PACKED_MARK_BYTES);
    return mark != 0;
}

void pysim_conv_run(const pysim_job *job, const pysim_call *call) {
    pysim_nest n = job->nest;
    const pysim_conv *c = n.problem;
    n.beta = call->residual != NULL;
    n.bounds = call->bounds;
    n.finish_rows = call->finish;
    if (n.finish && !pysim_conv_marked(job, call->second)) n.finish = NULL;
    pysim_nest_run(&n, c->batch * c->groups, pysim_conv_image, call, call->threads, call->workspace, call->profile);
}

const pysim_algorithm pysim_algorithm_sconv = {open_conv, pysim_conv_prepare, pysim_conv_run, 1, 1, 0, 1};
