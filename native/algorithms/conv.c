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

static int is_pointwise(const pysim_conv *c) {
    return c->kernel_d == 1 && c->kernel_h == 1 && c->kernel_w == 1 && c->stride_d == 1 && c->stride_h == 1 && c->stride_w == 1 &&
           !pysim_conv_padded(c);
}

/* Kernels of one row whose next lines hardware does not foresee, as channels lie planes apart and a tile reads a line or two of each.
 * Wider kernels with strides read runs of lines; of several kernel rows most lines were read for the outputs above. */
static int fetches_windows(const pysim_conv *c) {
    const int one_row = c->kernel_d == 1 && c->kernel_h == 1 && !(c->pad_top || c->pad_bottom || c->pad_front || c->pad_back);
    if (c->kernel_w == 1) return one_row && (c->stride_h > 1 || c->stride_w > 1) && !(c->pad_left || c->pad_right);
    return one_row && c->stride_w == 1;
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
    if (c->kernel_d == 1 && c->depth == 1 && !c->pad_front && !c->pad_back) { /* an image */
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
    /* Windows of one element lie as the image does: its rows are packed as one. */
    const int whole = is_pointwise(c);
    const int64_t q = whole ? n->windows : output_columns(c), slice = output_rows(c), width = whole ? n->windows : c->width;
    const int64_t pitch = n->schedule.windows;
    const char *image = n->input + c0 * n->input_pitch * n->bytes;
    for (int64_t r = r0; r < r1; r++) {
        char *out = (char *)dst + (r - r0) * pysim_nest_depth(n, nc * c->kernel_w) * pitch * pysim_panel_bytes(n);
        for (int64_t j = 0; j < nw;) {
            const int64_t row = (t0 + j) / q, column = (t0 + j) % q, count = pysim_min(nw - j, q - column);
            const int64_t z = row / slice * c->stride_d - c->pad_front + r / c->kernel_h * c->dilation_d;
            const int64_t y = row % slice * c->stride_h - c->pad_top + r % c->kernel_h * c->dilation_h;
            const int inside = z >= 0 && z < c->depth && y >= 0 && y < c->height;
            const pysim_segment segment = {
                .row = inside ? image + (z * c->height + y) * c->width * n->bytes : NULL,
                .row_channel = n->input_pitch,
                .width = width,
                .first = column * c->stride_w - c->pad_left,
                .stride = c->stride_w,
                .dilation = c->dilation_w,
                .taps = c->kernel_w,
                .channels = nc,
                .count = count,
                .dst_channel = c->kernel_w * pitch,
                .pitch = pitch,
                .fill = n->fill,
                .flip = n->flip,
            };
            n->row.pack.segment(&segment, out + j * pysim_window_bytes(n));
            if (n->row.group == 1 && (n->fill || n->flip)) pysim_fill_segment(&segment, out + j * n->bytes);
            j += count;
        }
    }
}

/* Prefetches the columns that no window before has read. Times with over without on a Zen 3 (lab/notebook/cpu-kernels.md): 0.77 for
 * 1x1x1 with strides of 2, 0.71 to 0.80 for sequences of 3,000 columns and more, 1.07 for 3x3 with a stride of 2, which is left out. */
static void conv_fetch_windows(const pysim_nest *n, int64_t c0, int64_t nc, int64_t t0, int64_t nw) {
    const pysim_conv *c = n->problem;
    const int is_sequence = c->depth == 1 && c->height == 1; /* divisions would take a hundredth of a tile's time */
    const int64_t q = is_sequence ? n->windows : output_columns(c), slice = is_sequence ? 1 : output_rows(c);
    const int64_t wide = (c->kernel_w - 1) * c->dilation_w + 1, seen = pysim_max(wide - c->stride_w, 0);
    for (int64_t t = t0, count; t < t0 + nw; t += count) {
        const int64_t row = is_sequence ? 0 : t / q, column = t - row * q;
        count = pysim_min(t0 + nw - t, q - column);
        const int64_t left = pysim_max(column * c->stride_w - c->pad_left + seen, 0);
        const int64_t right = pysim_min((column + count - 1) * c->stride_w - c->pad_left + wide, c->width);
        const int64_t y = row ? row / slice * c->stride_d * c->height + row % slice * c->stride_h : 0;
        const char *line = n->input + (c0 * n->input_pitch + y * c->width) * n->bytes;
        for (int64_t channel = 0; channel < nc; channel++, line += n->input_pitch * n->bytes)
            for (int64_t at = right - 1; at >= left; at -= 64 / n->bytes) __builtin_prefetch(line + at * n->bytes, 0, 2);
    }
}

/* Elements of one group's packed filters. */
static int64_t group_panel(const pysim_nest *n) { return pysim_nest_filter_offset(n, n->channels, 0, 0); }

/* Panels, the sums of s8 filters, and the mark. */
static pysim_status panels_bytes(const pysim_nest *n, int64_t groups, int64_t *bytes, int64_t *sums_at, int64_t *with_mark) {
    const int64_t width = n->schedule.filters, whole = pysim_ceil_div(n->filters, width) * width;
    const int64_t sums = n->row.info.dtype == PYSIM_S8 ? n->filters * groups * n->sum_bytes : 0;
    int64_t elements;
    if (__builtin_mul_overflow(whole, pysim_nest_channels_depth(n, n->channels) * n->rows, &elements) ||
        __builtin_mul_overflow(elements, groups * pysim_filter_bytes(n), bytes) || *bytes > INT64_MAX - sums - 2 * PYSIM_SUMS_ALIGN)
        return pysim_fail(PYSIM_OVERFLOW, "the packed filters exceed int64 bytes");
    if (sums) *sums_at = pysim_ceil_div(*bytes, PYSIM_SUMS_ALIGN) * PYSIM_SUMS_ALIGN, *bytes = *sums_at + sums;
    if (__builtin_add_overflow(*bytes, PYSIM_PACKED_MARK_BYTES, with_mark))
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
        .sum_bytes = pysim_dtype_bytes(pysim_result_dtype(c->dtype)),
        .pack_windows = conv_pack_windows,
        .fetch_windows = fetches_windows(c) ? conv_fetch_windows : NULL,
        .live_rows = c->pad_top || c->pad_bottom || c->pad_front || c->pad_back ? conv_live_rows : NULL,
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
    return panels_bytes(n, c->groups, &job->operands.second.bytes, &job->sums_at, &job->prepared_bytes);
}

pysim_status pysim_conv_open(const pysim_conv *c, const pysim_schedule *s, pysim_row_lookup row, pysim_job *job) {
    pysim_nest *n = &job->nest;
    *n = pysim_conv_nest(c);
    pysim_status status = row(s, c->dtype, &n->row);
    if (n->row.bound) n->live_rows = NULL; /* lists are of whole panels */
    if (status == PYSIM_OK) status = pysim_nest_schedule(n, s, is_pointwise(c));
    return status == PYSIM_OK ? pysim_conv_panels(job) : status;
}

static pysim_status open_conv(const pysim_problem *p, const pysim_schedule *s, pysim_row_lookup row, pysim_job *job) {
    const pysim_conv *c = &p->conv;
    if (c->dtype == PYSIM_S8) job->shared_bytes = pysim_room_bytes(c->filters);
    return pysim_conv_open(c, s, row, job);
}

/* Panels of filters with several kernel rows: k-iterations of a row are not contiguous in the weights, and groups of form groups may
 * begin in one channel and end in the next. */
static void gather_filters(const pysim_nest *n, const char *from, int64_t ld, int64_t nf, int64_t nc, char *to, int *not_finite) {
    const int64_t row_k = nc * n->taps, width = n->schedule.filters;
    for (int64_t r = 0; r < n->rows; r++)
        for (int64_t k = 0; k < row_k; k += n->row.group, to += n->row.group * width * pysim_panel_bytes(n)) {
            char few[8 * PYSIM_TILE_RESULTS]; /* a group of each filter */
            const int64_t depth = pysim_min(n->row.group, row_k - k);
            for (int64_t f = 0; f < nf; f++)
                for (int64_t g = 0; g < depth; g++)
                    memcpy(few + (f * depth + g) * n->bytes,
                           from + (f * ld + ((k + g) / n->taps * n->rows + r) * n->taps + (k + g) % n->taps) * n->bytes, (size_t)n->bytes);
            n->row.pack_filters.transposed(few, depth, nf, depth, width, to, not_finite);
        }
}

static void sum_filters(const int8_t *filters, int64_t count, int64_t size, int32_t *sums) {
    for (int64_t f = 0; f < count; f++, filters += size) {
        int32_t sum = 0;
        for (int64_t i = 0; i < size; i++) sum += filters[i];
        sums[f] = sum;
    }
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
                char *to = packed + (g * group_panel(n) + pysim_nest_filter_offset(n, c0, nc, tile)) * pysim_filter_bytes(n);
                const char *from = filters + ((g * n->filters + f0) * ld + c0 * n->rows * n->taps) * n->bytes;
                if (n->row.group > 1 && n->rows > 1) {
                    gather_filters(n, from, ld, nf, nc, to, pysim_conv_padded(c) ? &not_finite : NULL);
                    if (n->row.bound) n->row.bound(n->rows * pysim_nest_depth(n, nc * n->taps), to);
                    continue;
                }
                /* from[f][c][r][s] to [r][c][s][f]; one call covers all elements that are contiguous on both sides */
                const int64_t run = n->rows == 1 ? nc : 1;
                for (int64_t r = 0; r < n->rows; r++)
                    for (int64_t ch = 0; ch < nc; ch += run)
                        n->row.pack_filters.transposed(from + (ch * n->rows + r) * n->taps * n->bytes, ld, nf, run * n->taps, width,
                                                       to + (r * nc + ch) * n->taps * width * n->bytes,
                                                       pysim_conv_padded(c) ? &not_finite : NULL);
                if (n->row.bound) n->row.bound(pysim_nest_depth(n, nc * n->taps), to);
            }
        }
    if (job->sums_at) sum_filters((const int8_t *)filters, c->filters, ld, (int32_t *)(void *)(packed + job->sums_at));
    const int64_t mark = not_finite;
    memcpy(packed + job->prepared_bytes - PYSIM_PACKED_MARK_BYTES, &mark, PYSIM_PACKED_MARK_BYTES);
}

void pysim_conv_image(pysim_nest *n, int64_t image, const void *context) {
    const pysim_conv *c = n->problem;
    const pysim_call *x = context;
    const char *bias = x->epilogue->bias;
    const int64_t g = image % c->groups;
    n->input = x->first + image * n->channels * n->input_pitch * n->bytes;
    n->filter_data = x->second + g * group_panel(n) * pysim_filter_bytes(n);
    n->output = x->result + image * n->filters * n->output_pitch * n->out_bytes;
    n->bias_filters = bias ? bias + g * n->filters * n->sum_bytes : NULL;
    n->rescale.scales = x->epilogue->scales + g * n->filters * n->rescale.filter_step;
    n->rounding.factors = x->epilogue->result_scales, n->rounding.shifts = x->epilogue->shifts;
    n->rounding = pysim_rounding_at(&n->rounding, g * n->filters, 0);
    if (n->rescale.sum) n->rescale.residual = (const uint8_t *)x->epilogue->residual + (n->output - x->result);
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
    pysim_call own = *call;
    pysim_epilogue e;
    int32_t zero = 0;
    if (c->dtype == PYSIM_S8) zero = pysim_nest_signs(&n, call->epilogue), n.fill = call->epilogue->first_zero;
    if (zero) {
        e = pysim_without_zero(call->epilogue, zero, (const int32_t *)(const void *)(call->second + job->sums_at), c->filters,
                               pysim_room(call->workspace));
        own.epilogue = &e, own.workspace += job->shared_bytes;
        n.live_rows = NULL; /* their elements are not zero */
    }
    pysim_nest_rescale(&n, call->epilogue, 0);
    n.beta = call->residual != NULL;
    n.bounds = call->bounds;
    n.finish_rows = call->finish;
    if (n.finish && !pysim_conv_marked(job, call->second)) n.finish = NULL;
    pysim_nest_run(&n, c->batch * c->groups, pysim_conv_image, &own, call->threads, own.workspace, call->profile);
}

const pysim_algorithm pysim_algorithm_sconv = {
    .open = open_conv, .prepare = pysim_conv_prepare, .run = pysim_conv_run, .finishes = 1, .adds = 1, .quantised = 1, .volumes = 1};
