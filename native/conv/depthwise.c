/* SPDX-License-Identifier: Apache-2.0
 * Depthwise convolutions and those of groups of few channels, from operands as they lie: nothing is packed, the row's kernel reads the
 * image's rows where they are (kernels: native/conv/depthwise.inc). Threads share out groups, and rows where there are few groups; a
 * result is summed by one thread in an order of its own place, so the bits do not depend on their number.
 *
 * Rows and planes: kernels multiply zeros of the padding at the ends of rows, which is NaN for an infinite weight where the definition has
 * no term: groups with such weights go by the portable kernel. Blocks: filters are prepared as [block][tap][group], and a block's rows go
 * through the kernel some at a time, so that what is left of the epilogue finds them in L1. */
#include <string.h>
#include <time.h>

#include "algorithm.h"
#include "depthwise.h"

enum {
    MOST_STRIDE = INT32_MAX / 16, /* columns that a kernel's 32-bit indices reach */
    FINISHED = 16 << 10,          /* bytes of a block's results that are finished together */
};

typedef struct {
    pysim_direct of;
    const pysim_nest *nest;
    const pysim_call *call;
    int64_t unit;       /* groups that a kernel takes together */
    int64_t group_parts, row_parts, thread_bytes;
    int padded;
} direct_run;

static int by_blocks(const pysim_row *row) { return strcmp(row->info.form, "blocks") == 0; }
static int by_planes(const pysim_row *row) { return strcmp(row->info.form, "planes") == 0; }

/* What a thread keeps: the transposed planes of its groups, their weights, and their results. */
static pysim_status planes_elements(const pysim_direct *of, int64_t lanes, int64_t *elements) {
    const pysim_conv *c = of->conv;
    const int64_t in[] = {c->height, pysim_direct_columns(of), lanes}, out[] = {of->p, of->q, lanes}, w[] = {c->kernel_h, c->kernel_w, lanes};
    const int64_t *const sizes[] = {in, out, w};
    *elements = lanes; /* to begin at a whole vector */
    for (int i = 0; i < 3; i++) {
        int64_t size;
        const pysim_status status = pysim_product("the planes of a block of groups, rows x columns x lanes", 3, sizes[i], &size);
        if (status != PYSIM_OK) return status;
        if (__builtin_add_overflow(*elements, size, elements)) return pysim_fail(PYSIM_OVERFLOW, "the planes exceed int64");
    }
    int64_t bytes;
    const int64_t all[] = {*elements, 2 * pysim_dtype_bytes(c->dtype)}; /* and the line that they are rounded up to */
    return pysim_product("the planes of a block of groups, elements x bytes", 2, all, &bytes);
}

static pysim_direct shape_of(const pysim_conv *c) {
    pysim_direct of = {.conv = c, .channels = c->channels / c->groups, .filters = c->filters / c->groups};
    (void)pysim_check_conv(c, &of.p, &of.q, NULL); /* has passed */
    return of;
}

static pysim_status check_schedule(const pysim_schedule *s, const pysim_direct *of, const pysim_row *row) {
    if (row->of != PYSIM_OF_DEPTHWISE)
        return pysim_fail(PYSIM_UNSUPPORTED, "kernel %s convolves no rows in place; this algorithm runs the rows of native/conv/depthwise.inc",
                          row->info.name);
    const int64_t block = by_blocks(row) ? row->info.lane_filters : 1;
    if (pysim_max(1, of->conv->input_block) != block || pysim_max(1, of->conv->output_block) != block)
        return pysim_fail(PYSIM_UNSUPPORTED, "input_block is %d and output_block %d; kernel %s reads and writes %s of %lld channels",
                          (int)of->conv->input_block, (int)of->conv->output_block, row->info.name, block > 1 ? "blocks" : "planes",
                          (long long)block);
    if (row->info.lane_filters > 1 && (of->channels > 1 || of->filters > 1))
        return pysim_fail(PYSIM_UNSUPPORTED, "kernel %s takes groups of one channel and one filter; these have %lld and %lld", row->info.name,
                          (long long)of->channels, (long long)of->filters);
    if (s->stationary != PYSIM_INPUT_STATIONARY || s->pack != PYSIM_PACK_NONE || s->channels != of->channels || s->k2 != 1 || s->k3 != 1)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "schedule has stationary %d, pack %d, channels %lld, k2 %lld, k3 %lld; kernel %s has one "
                                              "schedule: 0, 0, %lld, 1, 1",
                          (int)s->stationary, (int)s->pack, (long long)s->channels, (long long)s->k2, (long long)s->k3, row->info.name,
                          (long long)of->channels);
    return PYSIM_OK;
}

/* The nest is not run: it stands for what a thread keeps, as the panel of one tile of so many windows. */
static pysim_status open_depthwise(const pysim_problem *p, const pysim_schedule *s, pysim_row_lookup row, pysim_job *job) {
    const pysim_direct of = shape_of(&p->conv);
    pysim_nest *n = &job->nest;
    *n = (pysim_nest){.channels = 1, .rows = 1, .taps = 1, .bytes = pysim_dtype_bytes(p->conv.dtype)};
    pysim_status status = row(s, p->conv.dtype, &n->row);
    if (status == PYSIM_OK) status = check_schedule(s, &of, &n->row);
    if (status == PYSIM_OK && by_blocks(&n->row)) {
        job->prepared_bytes = job->operands.second.bytes;
        job->operands.second.name = "packed filters";
    }
    if (status != PYSIM_OK) return status;
    n->schedule = (pysim_schedule){.stationary = PYSIM_WEIGHT_STATIONARY, .pack = PYSIM_PACK_NONE, .channels = 1, .k2 = 1, .k3 = 1};
    if (!by_planes(&n->row)) return PYSIM_OK;
    n->schedule.pack = PYSIM_PACK_TILES;
    return planes_elements(&of, n->row.info.lane_filters, &n->schedule.windows);
}

#define DEFINE_PREPARE(T, name)                                                                            \
    static void name(int64_t groups, int64_t taps, int64_t block, const T *filters, T *to) {              \
        for (int64_t g = 0; g < groups; g++)                                                              \
            for (int64_t tap = 0; tap < taps; tap++) to[(g / block * taps + tap) * block + g % block] = filters[g * taps + tap]; \
    }
DEFINE_PREPARE(float, prepare_f32)
DEFINE_PREPARE(double, prepare_f64)

static void prepare_depthwise(const pysim_job *job, const char *filters, char *prepared) {
    const pysim_conv *c = &job->problem->conv;
    const int64_t taps = c->kernel_h * c->kernel_w, block = job->nest.row.info.lane_filters;
    if (c->dtype == PYSIM_F64)
        prepare_f64(c->groups, taps, block, (const double *)(const void *)filters, (double *)(void *)prepared);
    else
        prepare_f32(c->groups, taps, block, (const float *)(const void *)filters, (float *)(void *)prepared);
}

/* The exponents' bits, which compilers compare in vectors; a comparison of numbers they do one by one. */
static int all_finite(int32_t dtype, const void *weights, int64_t count) {
    typedef uint32_t __attribute__((may_alias)) word;
    typedef uint64_t __attribute__((may_alias)) wide;
    const word *const words = weights, exponent = 0x7F800000;
    const wide *const wides = weights, exponents = 0x7FF0000000000000;
    word found = 0;
    if (dtype == PYSIM_F64)
        for (int64_t i = 0; i < count; i++) found |= (wides[i] & exponents) == exponents;
    else
        for (int64_t i = 0; i < count; i++) found |= (words[i] & exponent) == exponent;
    return !found;
}

/* Groups [g, g + groups) of one image by the row's kernel, or by the one that takes any weights. */
static void run_groups(const direct_run *r, int64_t image, int64_t g, int64_t groups, int64_t begin, int64_t end, int finite, char *workspace) {
    const pysim_direct *of = &r->of;
    const pysim_conv *c = of->conv;
    const pysim_call *x = r->call;
    const int64_t bytes = r->nest->bytes, at = image * c->groups + g;
    const char *bias = x->epilogue->bias;
    const pysim_direct_kernel plain = c->dtype == PYSIM_F64 ? f64_rows_64x1__portable : f32_rows_64x1__portable;
    (finite && c->stride_w <= MOST_STRIDE ? r->nest->row.direct : plain)(
        of, x->first + at * of->channels * c->height * c->width * bytes,
        x->second + g * of->filters * of->channels * c->kernel_h * c->kernel_w * bytes, bias ? bias + g * of->filters * bytes : NULL,
        x->result + at * of->filters * of->p * of->q * bytes, groups, begin, end, workspace);
}

/* What is left to do to rows [begin, end) of their results, which they have just written. */
static void finish_groups(const direct_run *r, int64_t image, int64_t g, int64_t groups, int64_t begin, int64_t end) {
    const int64_t map = r->of.p * r->of.q, filter = (image * r->of.conv->groups + g) * r->of.filters;
    pysim_finish_rows(&r->call->finish, r->call->result + (filter * map + begin * r->of.q) * r->nest->bytes, map, groups * r->of.filters,
                      (end - begin) * r->of.q);
}

/* Rows [begin, end) of blocks [first, last) of one image. */
static void run_blocks(const direct_run *r, int64_t image, int64_t first, int64_t last, int64_t begin, int64_t end) {
    const pysim_direct *of = &r->of;
    const pysim_conv *c = of->conv;
    const pysim_call *x = r->call;
    const int64_t bytes = r->unit * r->nest->bytes, row = of->q * bytes, some = pysim_max(1, FINISHED / row);
    for (int64_t block = first; block < last; block++) {
        const int64_t at = image * (c->groups / r->unit) + block;
        char *out = x->result + at * of->p * row;
        for (int64_t p = begin, next; p < end; p = next) {
            next = x->finish.loops ? pysim_min(end, p + some) : end;
            r->nest->row.direct(of, x->first + at * c->height * c->width * bytes, x->second + block * c->kernel_h * c->kernel_w * bytes,
                                x->epilogue->bias ? (const char *)x->epilogue->bias + block * bytes : NULL, out, r->unit, p, next, NULL);
            pysim_finish_rows(&x->finish, out + p * row, 0, 1, (next - p) * of->q * r->unit);
        }
    }
}

/* A part of the groups and rows of one image. Whether weights are finite is asked of as many groups as a kernel takes together. */
static void run_item(int64_t item, int64_t thread, const void *context) {
    const direct_run *r = context;
    const pysim_conv *c = r->of.conv;
    const int64_t size = r->of.filters * r->of.channels * c->kernel_h * c->kernel_w, image = item / r->row_parts / r->group_parts;
    char *workspace = r->call->workspace + thread * r->thread_bytes;
    int64_t unit_begin, unit_end, begin, end;
    pysim_take_part(pysim_ceil_div(c->groups, r->unit), item / r->row_parts % r->group_parts, r->group_parts, &unit_begin, &unit_end);
    pysim_take_part(r->of.p, item % r->row_parts, r->row_parts, &begin, &end);
    const int64_t first = unit_begin * r->unit, last = pysim_min(unit_end * r->unit, c->groups);
    if (by_blocks(&r->nest->row)) {
        run_blocks(r, image, unit_begin, unit_end, begin, end);
        return;
    }
    const int finite = !r->padded || all_finite(c->dtype, r->call->second + first * size * r->nest->bytes, (last - first) * size);
    const int64_t step = finite && !by_planes(&r->nest->row) && !r->call->finish.loops ? last - first : r->unit;
    for (int64_t g = first; g < last; g += step) {
        const int64_t groups = pysim_min(step, last - g);
        const int these = finite || all_finite(c->dtype, r->call->second + g * size * r->nest->bytes, groups * size);
        run_groups(r, image, g, groups, begin, end, these, workspace);
        finish_groups(r, image, g, groups, begin, end);
    }
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void run_depthwise(pysim_job *job, const pysim_call *call) {
    const pysim_conv *c = &job->problem->conv;
    direct_run r = {.of = shape_of(c), .nest = &job->nest, .call = call, .row_parts = 1,
                    .padded = c->pad_top || c->pad_left || c->pad_bottom || c->pad_right};
    r.of.bounds = call->bounds;
    r.unit = job->nest.row.info.lane_filters;
    r.group_parts = pysim_min(call->threads, pysim_ceil_div(c->groups, r.unit));
    if (!by_planes(&job->nest.row) && c->batch * r.group_parts < call->threads) r.row_parts = pysim_min(call->threads, r.of.p);
    (void)pysim_nest_workspace(&job->nest, 1, &r.thread_bytes); /* has passed */
    const double start = call->profile ? now() : 0;
    pysim_team(c->batch * r.group_parts * r.row_parts, call->threads, run_item, &r);
    if (call->profile) {
        call->profile->kernel_seconds = now() - start;
        call->profile->kernel_calls = c->batch * r.group_parts * r.row_parts;
    }
}

const pysim_algorithm pysim_algorithm_depthwise = {open_depthwise, prepare_depthwise, run_depthwise, 1, 0, 1};
