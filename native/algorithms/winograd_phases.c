/* SPDX-License-Identifier: Apache-2.0
 * Winograd's convolutions with strides, as convolutions of stride 1 on phases of the input.
 *
 * A k x k kernel of stride s equals an r x r kernel of stride 1, r = ceil(k / s), on s x s times the channels: output (y, x) reads input row
 * (y + i) s + a, which is row y + i of phase a, through tap i s + a. Taps beyond the kernel are missing in some phases. The products of all
 * phases add up before the output transform, so s x s channels are transformed as input and one as output. The phases are stored with their
 * padding. */
#include "algorithm.h"
#include "winograd.h"

enum {
    ALIGN = 64,
    PHASE_COLUMNS = 64, /* columns of a phase per packing call: as many as packing keeps in registers */
};

pysim_conv pysim_winograd_stride_one(const pysim_conv *c, int64_t p, int64_t q) {
    pysim_conv own = *c;
    if (c->stride_h == 1 && c->stride_w == 1) return own;
    own.kernel_h = pysim_ceil_div(c->kernel_h, c->stride_h), own.kernel_w = pysim_ceil_div(c->kernel_w, c->stride_w);
    own.channels *= c->stride_h * c->stride_w, own.height = p + own.kernel_h - 1, own.width = q + own.kernel_w - 1;
    own.stride_h = own.stride_w = 1;
    own.pad_top = own.pad_left = own.pad_bottom = own.pad_right = own.input_block = 0;
    return own;
}

pysim_status pysim_winograd_phases_bytes(const pysim_conv *c, int64_t p, int64_t q, int64_t *bytes) {
    const int64_t high = pysim_ceil_div(c->kernel_h, c->stride_h), wide = pysim_ceil_div(c->kernel_w, c->stride_w);
    const int64_t size[] = {c->batch, c->channels,  c->stride_h,  c->stride_w,
                            c->depth, p + high - 1, q + wide - 1, pysim_dtype_bytes(pysim_result_dtype(c->dtype))};
    *bytes = 0;
    if (c->stride_h == 1 && c->stride_w == 1) return PYSIM_OK;
    const pysim_status status = pysim_product("the phases' bytes", 8, size, bytes);
    if (status == PYSIM_OK && *bytes > INT64_MAX / 4) return pysim_fail(PYSIM_OVERFLOW, "the workspace exceeds int64 bytes");
    *bytes = (pysim_ceil_div(*bytes, ALIGN) + 1) * ALIGN; /* the workspace may not be aligned to a line */
    return status;
}

typedef struct {
    const pysim_job *job;
    const char *input;
    char *phases; /* [image][group][row phase][column phase][channel][slice][row][column] */
} phase_split;

/* Copies one row of all phases of a slice. */
static void split_row(int64_t item, int64_t thread, const void *context) {
    const phase_split *t = context;
    const pysim_conv *c = &t->job->problem.conv, *own = &t->job->own;
    const int64_t bytes = t->job->nest.bytes, stride = c->stride_w, plane = c->depth * own->height * own->width;
    const int64_t image = item / own->height / c->depth, slice = item / own->height % c->depth, row = item % own->height;
    const char *from = t->input + (image * c->channels * c->depth + slice) * c->height * c->width * bytes;
    char *to = t->phases + (image * own->channels * plane + (slice * own->height + row) * own->width) * bytes;
    (void)thread;
    const int64_t columns = pysim_ceil_div(own->width, PHASE_COLUMNS), channels = c->channels / c->groups;
    for (int64_t g = 0; g < c->groups; g++, from += channels * c->depth * c->height * c->width * bytes)
        for (int64_t i = 0; i < c->stride_h * columns; i++) {
            const int64_t a = i / columns, x = i % columns * PHASE_COLUMNS, y = row * c->stride_h + a - c->pad_top;
            const pysim_segment segment = {
                .row = y >= 0 && y < c->height ? from + y * c->width * bytes : NULL,
                .row_channel = c->depth * c->height * c->width,
                .width = c->width,
                .first = x * stride - c->pad_left,
                .stride = stride,
                .dilation = 1,
                .taps = stride,
                .channels = channels,
                .count = pysim_min(PHASE_COLUMNS, own->width - x),
                .dst_channel = plane,
                .pitch = channels * plane,
            };
            t->job->nest.row.pack.segment(&segment, to + ((g * c->stride_h + a) * stride * channels * plane + x) * bytes);
        }
}

const char *pysim_winograd_input(const pysim_job *job, const pysim_call *call) {
    if (job->shared_bytes == 0) return call->first;
    char *phases = call->workspace + (ALIGN - (uintptr_t)call->workspace % ALIGN) % ALIGN;
    const double start = call->profile ? pysim_now() : 0;
    pysim_parallel_for(job->own.batch * job->own.depth * job->own.height, call->threads, split_row,
                       &(phase_split){job, call->first, phases});
    if (call->profile) call->profile->pack_seconds += pysim_now() - start;
    return phases;
}
