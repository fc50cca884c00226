/* SPDX-License-Identifier: Apache-2.0
 * Convolutions of several groups in the blocked layout (NCHWc). The kernel (form grouped of native/depthwise.inc) computes a block of filters,
 * which belong to one group or to two: groups need not be whole blocks of channels. Nothing is packed but the filters, as
 * [block][channel of the group][tap][filter]. Threads divide the blocks, and also the rows if there are few blocks; one thread sums a result
 * in a fixed order, so the bits do not depend on the number of threads. */
#include <string.h>

#include "direct_rows.h"
#include "kernel_of_blocks.h"

enum { EPILOGUE_BYTES = 16 << 10 }; /* of results between two calls of the epilogue */

typedef struct {
    pysim_direct of;
    const pysim_nest *nest;
    const pysim_call *call;
    int64_t lanes, blocks; /* filters of a block; blocks of an image */
    int64_t block_parts, row_parts;
} grouped_run;

static int is_grouped(const pysim_row *row) { return row->family == PYSIM_FAMILY_DEPTHWISE && strcmp(row->info.form, "grouped") == 0; }

static pysim_direct shape_of(const pysim_conv *c) {
    pysim_direct of = {.conv = c, .channels = c->channels / c->groups, .filters = c->filters / c->groups, .slices = 1};
    (void)pysim_check_conv(c, &of.p, &of.q, NULL); /* has passed */
    return of;
}

/* Why the kernel cannot compute the convolution, or NULL. */
static const char *unfit(const pysim_direct *of, int64_t lanes) {
    const pysim_conv *c = of->conv;
    if (c->groups < 2) return "it has one group";
    if (c->channels % lanes || c->filters % lanes) return "its channels or filters are not whole blocks";
    if (of->filters < lanes && 2 * of->filters != lanes) return "a block has filters of more than two groups";
    if (c->kernel_w != PYSIM_GROUPED_TAPS || c->dilation_w != 1 || c->stride_w > 2)
        return "its kernel rows do not have three neighbouring taps and a stride of 1 or 2";
    if (c->pad_left > 1 || (of->q - 1) * c->stride_w + PYSIM_GROUPED_TAPS - c->pad_left > c->width + 1)
        return "a row has more than a column of padding at an end";
    return NULL;
}

static pysim_status check_schedule(const pysim_schedule *s, const pysim_direct *of, const pysim_row *row) {
    const int64_t lanes = row->info.lane_filters;
    if (!is_grouped(row))
        return pysim_fail(PYSIM_UNSUPPORTED,
                          "kernel %s computes no blocks of filters of several groups; this algorithm runs the rows of form "
                          "grouped of native/depthwise.inc",
                          row->info.name);
    if (of->conv->input_block != lanes || of->conv->output_block != lanes)
        return pysim_fail(PYSIM_UNSUPPORTED, "input_block is %d and output_block %d; kernel %s reads and writes blocks of %lld channels",
                          (int)of->conv->input_block, (int)of->conv->output_block, row->info.name, (long long)lanes);
    const char *why = unfit(of, lanes);
    if (why) return pysim_fail(PYSIM_UNSUPPORTED, "kernel %s cannot compute this convolution: %s", row->info.name, why);
    return pysim_check_only_schedule(s, of->channels, row);
}

static pysim_status open_grouped(const pysim_problem *p, const pysim_schedule *s, pysim_row_lookup row, pysim_job *job) {
    const pysim_direct of = shape_of(&p->conv);
    job->nest = (pysim_nest){.problem = &job->problem.conv, .schedule = *s, .bytes = pysim_dtype_bytes(p->conv.dtype)};
    job->thread_bytes = 64; /* nothing is kept, but a run must have a workspace */
    pysim_status status = row(s, p->conv.dtype, &job->nest.row);
    if (status == PYSIM_OK) status = check_schedule(s, &of, &job->nest.row);
    if (status != PYSIM_OK) return status;
    job->prepared_bytes = job->operands.second.bytes;
    job->operands.second.name = "packed filters";
    return PYSIM_OK;
}

/* Some blocks of filters and rows of one image. */
static void run_item(int64_t item, int64_t thread, const void *context) {
    const grouped_run *r = context;
    const pysim_conv *c = r->of.conv;
    const pysim_call *x = r->call;
    const int64_t image = item / r->row_parts / r->block_parts, bytes = r->nest->bytes, row = r->of.q * r->lanes * bytes;
    const int64_t step = pysim_max(1, EPILOGUE_BYTES / (PYSIM_GROUPED_ROWS * row)) * PYSIM_GROUPED_ROWS;
    const int64_t of_block = r->of.channels * c->kernel_h * c->kernel_w * r->lanes * bytes;
    int64_t first, last, begin, end;
    (void)thread;
    pysim_split_range(r->blocks, item / r->row_parts % r->block_parts, r->block_parts, &first, &last);
    pysim_split_range(r->of.p, item % r->row_parts, r->row_parts, &begin, &end);
    for (int64_t block = first; block < last; block++) {
        char *out = x->result + (image * r->blocks + block) * r->of.p * row;
        const char *bias = x->epilogue->bias;
        if (bias) bias += block * r->lanes * bytes;
        for (int64_t p = begin, next; p < end; p = next) {
            next = x->finish.loops ? pysim_min(end, p + step) : end;
            r->nest->row.direct(&r->of, x->first + image * c->channels * c->height * c->width * bytes, x->second + block * of_block, bias,
                                out, block, p, next, NULL);
            pysim_finish_rows(&x->finish, out + p * row, 0, 1, (next - p) * r->of.q * r->lanes);
        }
    }
}

static void run_grouped(const pysim_job *job, const pysim_call *call) {
    const pysim_conv *c = &job->problem.conv;
    grouped_run r = {.of = shape_of(c), .nest = &job->nest, .call = call, .lanes = job->nest.row.info.lane_filters, .row_parts = 1};
    r.of.bounds = call->bounds;
    r.blocks = c->filters / r.lanes;
    r.block_parts = pysim_min(call->threads, r.blocks);
    if (c->batch * r.block_parts < call->threads) r.row_parts = pysim_min(call->threads, r.of.p);
    const double start = call->profile ? pysim_now() : 0;
    pysim_parallel_for(c->batch * r.block_parts * r.row_parts, call->threads, run_item, &r);
    if (!call->profile) return;
    call->profile->kernel_seconds = pysim_now() - start;
    call->profile->kernel_calls = c->batch * r.blocks * r.row_parts;
}

const pysim_algorithm pysim_algorithm_grouped = {
    .open = open_grouped, .prepare = pysim_prepare_blocks, .run = run_grouped, .finishes = 1, .blocks = 2};
