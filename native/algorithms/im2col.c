/* SPDX-License-Identifier: Apache-2.0
 * im2col followed by a product. For each image, columns[C R S][P Q] of all groups are written to the workspace and convolved 1x1. The row's own
 * packing routine writes the columns, one row of them per channel and tap. Padding is multiplied as zeros, so weights must be finite. */
#include "algorithm.h"

enum { ALIGN = 64 };

typedef struct {
    const pysim_conv *problem;
    const pysim_nest *nest;
    const char *image;
    char *columns;
} transform;

/* Writes the columns of one channel. */
static void write_channel(int64_t channel, int64_t thread, const void *context) {
    const transform *t = context;
    const pysim_conv *c = t->problem, *product = t->nest->problem;
    const int64_t windows = product->height * product->width, bytes = t->nest->bytes;
    const char *plane = t->image + channel * c->height * c->width * bytes;
    (void)thread;
    for (int64_t r = 0; r < c->kernel_h; r++)
        for (int64_t p = 0; p < product->height; p++) {
            const int64_t y = p * c->stride_h - c->pad_top + r * c->dilation_h;
            const pysim_segment segment = {
                .row = y >= 0 && y < c->height ? plane + y * c->width * bytes : NULL,
                .row_channel = 0,
                .width = c->width,
                .first = -c->pad_left,
                .stride = c->stride_w,
                .dilation = c->dilation_w,
                .taps = c->kernel_w,
                .channels = 1,
                .count = product->width,
                .dst_channel = 0,
                .pitch = windows,
            };
            const int64_t row = (channel * c->kernel_h + r) * c->kernel_w;
            t->nest->row.pack.segment(&segment, t->columns + (row * windows + p * product->width) * bytes);
        }
}

static pysim_status open_im2col(const pysim_problem *of, const pysim_schedule *s, pysim_row_lookup row, pysim_job *job) {
    const pysim_conv *c = &of->conv;
    int64_t p = 0, q = 0, bytes;
    pysim_status status = pysim_check_conv(c, &p, &q, NULL);
    if (status != PYSIM_OK) return status;
    const int64_t size[] = {c->channels, c->kernel_h, c->kernel_w, p, q, pysim_dtype_bytes(c->dtype)};
    status = pysim_product("the columns' bytes, channels x kernel_h x kernel_w x P x Q x element", 6, size, &bytes);
    if (status != PYSIM_OK) return status;
    if (bytes > INT64_MAX - 2 * ALIGN) return pysim_fail(PYSIM_OVERFLOW, "the columns exceed int64 bytes");
    job->own = (pysim_conv){.batch = 1,
                            .depth = 1,
                            .kernel_d = 1,
                            .stride_d = 1,
                            .dilation_d = 1,
                            .groups = c->groups,
                            .channels = c->channels * c->kernel_h * c->kernel_w,
                            .height = p,
                            .width = q,
                            .filters = c->filters,
                            .kernel_h = 1,
                            .kernel_w = 1,
                            .stride_h = 1,
                            .stride_w = 1,
                            .dilation_h = 1,
                            .dilation_w = 1,
                            .dtype = c->dtype};
    job->shared_bytes = (pysim_ceil_div(bytes, ALIGN) + 1) * ALIGN; /* the workspace may not be aligned to a line */
    status = pysim_conv_open(&job->own, s, row, job);
    job->nest.reads_columns = 1;
    if (status == PYSIM_OK && job->nest.row.group > 1)
        return pysim_fail(PYSIM_UNSUPPORTED, "kernel %s reads groups of k, and im2col's columns are rows of k", job->nest.row.info.name);
    return status;
}

static void run_im2col(const pysim_job *job, const pysim_call *call) {
    const pysim_conv *c = &job->problem.conv;
    const pysim_nest *n = &job->nest;
    char *columns = call->workspace + (ALIGN - (uintptr_t)call->workspace % ALIGN) % ALIGN;
    pysim_call product = *call;
    product.first = columns;
    product.workspace += job->shared_bytes;
    for (int64_t image = 0; image < c->batch; image++) {
        const transform t = {c, n, call->first + image * c->channels * c->height * c->width * n->bytes, columns};
        pysim_parallel_for(c->channels, call->threads, write_channel, &t);
        product.result = call->result + image * c->filters * n->windows * n->out_bytes;
        product.residual = call->residual ? call->residual + (product.result - call->result) : NULL;
        pysim_conv_run(job, &product);
    }
}

const pysim_algorithm pysim_algorithm_im2col = {open_im2col, pysim_conv_prepare, run_im2col, 1, 1, 0, 0, 0};
