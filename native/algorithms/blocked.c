/* SPDX-License-Identifier: Apache-2.0
 * Direct convolution of planes (NCHW) through the blocked layout: each image is converted to channel blocks, convolved by direct_nchwc, and its
 * results are converted back. Each element is moved once; packing moves it once per tap. The channels and filters of a group must be whole blocks. */
#include "algorithm.h"

enum { ALIGN = 64 };

extern const pysim_algorithm pysim_algorithm_direct_nchwc;

static int64_t round_to_lines(int64_t bytes) { return pysim_ceil_div(bytes, ALIGN) * ALIGN; }

/* Bytes of an image and of its results, rounded up to whole lines. */
static pysim_status image_bytes(const pysim_conv *c, int64_t *input, int64_t *output) {
    int64_t p = 0, q = 0;
    pysim_status status = pysim_check_conv(c, &p, &q, NULL);
    const int64_t in[] = {c->channels, c->height, c->width, pysim_dtype_bytes(c->dtype)},
                  out[] = {c->filters, p, q, pysim_dtype_bytes(c->dtype)};
    if (status == PYSIM_OK) status = pysim_product("the blocks' bytes, channels x height x width x element", 4, in, input);
    if (status == PYSIM_OK) status = pysim_product("the blocks of results' bytes, filters x P x Q x element", 4, out, output);
    if (status != PYSIM_OK) return status;
    if (*input > INT64_MAX / 4 || *output > INT64_MAX / 4) return pysim_fail(PYSIM_OVERFLOW, "the blocks of an image exceed int64 bytes");
    *input = round_to_lines(*input), *output = round_to_lines(*output);
    return PYSIM_OK;
}

static pysim_status open_blocked(const pysim_problem *p, const pysim_schedule *s, pysim_row_lookup row, pysim_job *job) {
    pysim_problem of = *p;
    pysim_row kernel;
    int64_t input, output;
    pysim_status status = row(s, p->conv.dtype, &kernel);
    if (status == PYSIM_OK && p->conv.dtype == PYSIM_BF16)
        status = pysim_fail(PYSIM_UNSUPPORTED, "dtype is bf16, whose results in planes are f32; algorithm blocked makes those of blocks");
    if (status != PYSIM_OK) return status;
    const int64_t lanes = kernel.info.lane_filters, channels = p->conv.channels / p->conv.groups,
                  filters = p->conv.filters / p->conv.groups;
    if (kernel.family == PYSIM_FAMILY_NCHWC && (channels % lanes || filters % lanes))
        return pysim_fail(PYSIM_UNSUPPORTED, "a group has %lld channels and %lld filters; kernel %s takes whole blocks of %lld of both",
                          (long long)channels, (long long)filters, kernel.info.name, (long long)lanes);
    of.conv.batch = 1;
    of.conv.input_block = of.conv.output_block = (int32_t)lanes;
    status = image_bytes(&p->conv, &input, &output);
    if (status == PYSIM_OK) status = pysim_algorithm_direct_nchwc.open(&of, s, row, job);
    job->shared_bytes = input + output + ALIGN; /* the workspace may not be aligned to a line */
    return status;
}

static void prepare_blocked(const pysim_job *job, const char *filters, char *prepared) {
    pysim_algorithm_direct_nchwc.prepare(job, filters, prepared);
}

/* Layout conversion of planes of `size` elements to channel blocks, or back. */
typedef struct {
    const char *from;
    char *to;
    int64_t block, size, bytes; /* bytes per element */
    int to_planes;
    pysim_pack_transposed transposed;
    const pysim_finish *finish; /* epilogue of results in planes */
} reordering;

static void reorder_block(int64_t item, int64_t thread, const void *context) {
    const reordering *r = context;
    const int64_t at = item * r->block * r->size * r->bytes, ld = r->to_planes ? r->block : r->size, rows = r->block + r->size - ld;
    (void)thread;
    r->transposed(r->from + at, ld, rows, ld, rows, r->to + at, NULL);
    if (r->to_planes) pysim_finish_rows(r->finish, r->to + at, r->size, r->block, r->size);
}

static void run_blocked(const pysim_job *job, const pysim_call *call) {
    const pysim_conv *c = &job->problem.conv;
    int64_t input = 0, output = 0, p = 0, q = 0;
    (void)image_bytes(c, &input, &output); /* checked before */
    (void)pysim_check_conv(c, &p, &q, NULL);
    const int64_t bytes = pysim_dtype_bytes(c->dtype), block = job->own.input_block;
    char *blocks = call->workspace + (ALIGN - (uintptr_t)call->workspace % ALIGN) % ALIGN, *results = blocks + input;
    pysim_call own = *call;
    own.first = blocks, own.result = results, own.finish.loops = NULL;
    reordering in = {call->first, blocks, block, c->height * c->width, bytes, 0, pysim_transposer_for(c->dtype), NULL};
    reordering out = {results, call->result, block, p * q, bytes, 1, in.transposed, &call->finish};
    for (int64_t image = 0; image < c->batch; image++) {
        const double start = call->profile ? pysim_now() : 0;
        pysim_parallel_for(c->channels / block, call->threads, reorder_block, &in);
        const double moved = call->profile ? pysim_now() : 0;
        pysim_algorithm_direct_nchwc.run(job, &own);
        const double summed = call->profile ? pysim_now() : 0;
        pysim_parallel_for(c->filters / block, call->threads, reorder_block, &out);
        in.from += c->channels * in.size * bytes, out.to += c->filters * out.size * bytes;
        if (call->profile) call->profile->pack_seconds += moved - start + (pysim_now() - summed);
    }
}

const pysim_algorithm pysim_algorithm_blocked = {open_blocked, prepare_blocked, run_blocked, 1, 0, 0, 0, 0};
