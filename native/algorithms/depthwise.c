/* SPDX-License-Identifier: Apache-2.0
 * Depthwise convolutions and convolutions with few channels per group. Nothing is packed: the row's kernel reads the image's rows in place
 * (kernels: native/depthwise.inc). Threads divide the groups, and also the rows if there are few groups; of form
 * `blocks` the rows if each thread gets PART_ROWS: layers before and behind divide pixels, so it has most of what it reads in its own caches. One
 * thread sums a result in a fixed order, so the bits do not depend on the number of threads.
 *
 * Form `rows` also takes volumes: the slices of the kernel are summed as channels are, those in the padding left out, one slice of outputs after
 * another of each group.
 *
 * Forms `rows` and `planes` multiply the padding at the ends of rows as zeros. That gives NaN for an infinite weight, where the definition has no
 * term, so groups with such weights run on the portable kernel. Form `blocks` has filters prepared as [block][tap][group]; its kernel is called
 * for some rows at a time so that the rest of the epilogue finds the results in L1. */
#include <string.h>
#include <time.h>

#include "grouped/direct_rows.h"
#include "portable/depthwise_portable.h"

enum {
    MAX_STRIDE = INT32_MAX / 16, /* the kernels' gathers use 32-bit indices */
    EPILOGUE_BYTES = 16 << 10,   /* bytes of results between two calls of the epilogue */
    PART_ROWS = 4, /* of outputs: at the sides of a part its neighbours read the same rows (pysim/algorithms/cpu/depthwise.py) */
};

typedef struct {
    pysim_direct of;
    const pysim_nest *nest;
    const pysim_call *call;
    int64_t unit; /* groups per kernel call */
    int64_t rows; /* of outputs, of all slices */
    int64_t group_parts, row_parts, thread_bytes;
    int64_t result_bytes; /* form taps: of an element of the result */
    int padded;
} direct_run;

static int by_blocks(const pysim_row *row) { return strcmp(row->info.form, "blocks") == 0; }
static int by_taps(const pysim_row *row) { return strcmp(row->info.form, "taps") == 0; }
static int by_last(const pysim_row *row) { return strcmp(row->info.form, "last") == 0; }
static int by_planes(const pysim_row *row) { return strcmp(row->info.form, "planes") == 0; }

/* A thread's workspace: transposed planes of its groups, their weights, and their results. */
static pysim_status planes_elements(const pysim_direct *of, int64_t lanes, int64_t *elements) {
    const pysim_conv *c = of->conv;
    const int64_t in[] = {c->height, pysim_direct_columns(of), lanes}, out[] = {of->p, of->q, lanes},
                  w[] = {c->kernel_h, c->kernel_w, lanes};
    const int64_t *const sizes[] = {in, out, w};
    *elements = lanes; /* room to align to a vector */
    for (int i = 0; i < 3; i++) {
        int64_t size;
        const pysim_status status = pysim_product("the planes of a block of groups, rows x columns x lanes", 3, sizes[i], &size);
        if (status != PYSIM_OK) return status;
        if (__builtin_add_overflow(*elements, size, elements)) return pysim_fail(PYSIM_OVERFLOW, "the planes exceed int64");
    }
    int64_t bytes;
    const int64_t all[] = {*elements, 2 * pysim_dtype_bytes(c->dtype)}; /* twice: bounds the rounding up to whole lines */
    return pysim_product("the planes of a block of groups, elements x bytes", 2, all, &bytes);
}

/* A thread's workspace: the padded rows of two groups, up to 2 bytes an element, and what whole vectors read and write behind them. */
static pysim_status taps_elements(const pysim_direct *of, int64_t *elements) {
    const int64_t sizes[] = {pysim_direct_rows(of), pysim_direct_columns(of)};
    const pysim_status status = pysim_product("the padded rows of a group, rows x columns", 2, sizes, elements);
    if (status == PYSIM_OK && *elements > INT64_MAX / 8) return pysim_fail(PYSIM_OVERFLOW, "the padded rows of a group exceed int64 bytes");
    *elements = 2 * (2 * *elements + PYSIM_BEHIND_ROWS);
    return status;
}

/* A thread's workspace: a first sum, two scales and a shift of each channel, a block of zero points, and the columns of some outputs. */
static pysim_status last_elements(const pysim_direct *of, int64_t *elements) {
    const pysim_conv *c = of->conv;
    if (c->kernel_h > PYSIM_LAST_TAPS || c->kernel_w > PYSIM_LAST_TAPS || pysim_last_taps(c) > PYSIM_LAST_TAPS)
        return pysim_fail(PYSIM_UNSUPPORTED, "the kernel has %lld x %lld taps; form last takes up to %d, rows rounded up to 4",
                          (long long)c->kernel_h, (long long)c->kernel_w, PYSIM_LAST_TAPS);
    const int64_t columns[] = {pysim_last_columns(c, pysim_min(PYSIM_LAST_OUTPUTS, of->q)), pysim_ceil_div(c->kernel_h, 4),
                               4 * PYSIM_LAST_CHANNELS};
    const pysim_status status = pysim_product("the columns of some outputs, columns x quads of rows x bytes", 3, columns, elements);
    const int64_t begin = (pysim_ceil_div(c->groups, PYSIM_LAST_CHANNELS) * 16 + 4) * PYSIM_LAST_CHANNELS;
    if (status == PYSIM_OK && __builtin_add_overflow(*elements, begin, elements))
        return pysim_fail(PYSIM_OVERFLOW, "the columns exceed int64");
    return status;
}

/* Form last: words of 4 kernel rows of a column, [block][row of outputs][column][quad][lane] for each row that reads the same rows of input, then
 * each lane's sum. The last block begins where it has all its channels. */
static void prepare_last(const pysim_conv *c, int64_t together, const int8_t *filters, char *prepared) {
    const int64_t quads = pysim_ceil_div(c->kernel_h, 4), shared = pysim_last_shared(c), set = c->kernel_w * quads, words = shared * set;
    for (int64_t block = 0; block < c->groups; block += together, prepared += (words + 1) * together * 4) {
        const int64_t first = c->groups >= together ? pysim_min(block, c->groups - together) : block;
        int32_t *sums = (int32_t *)(void *)(prepared + words * together * 4);
        memset(prepared, 0, (size_t)((words + 1) * together * 4));
        for (int64_t i = 0; i < pysim_min(together, c->groups - first); i++) {
            const int8_t *filter = filters + (first + i) * c->kernel_h * c->kernel_w;
            const int64_t lane = pysim_last_place(i, together);
            for (int64_t r = 0; r < c->kernel_h; r++)
                for (int64_t s = 0; s < c->kernel_w; s++, filter++) {
                    for (int64_t i = 0, row = r; i < shared; i++, row += c->stride_h)
                        prepared[((i * set + s * quads + row / 4) * together + lane) * 4 + row % 4] = *filter;
                    sums[lane] += *filter;
                }
        }
    }
}

static pysim_status last_prepared(const pysim_conv *c, int64_t together, int64_t *bytes) {
    const int64_t sizes[] = {pysim_ceil_div(c->groups, together) * together,
                             pysim_last_shared(c) * c->kernel_w * pysim_ceil_div(c->kernel_h, 4) + 1, 4};
    return pysim_product("the weights in the order of lanes, channels x words x bytes", 3, sizes, bytes);
}

static void prepare_depthwise(const pysim_job *job, const char *filters, char *prepared) {
    const pysim_kernel_info *row = &job->nest.row.info;
    if (strcmp(row->form, "last") == 0) prepare_last(&job->problem.conv, row->lane_filters, (const int8_t *)filters, prepared);
    else pysim_prepare_blocks(job, filters, prepared);
}

static pysim_direct shape_of(const pysim_conv *c) {
    pysim_direct of = {.conv = c, .channels = c->channels / c->groups, .filters = c->filters / c->groups, .slices = c->kernel_d};
    (void)pysim_check_conv(c, &of.p, &of.q, NULL); /* has passed */
    of.in_slice = c->dilation_d * c->height * c->width, of.in_channel = c->depth * c->height * c->width;
    of.w_channel = c->kernel_d * c->kernel_h * c->kernel_w, of.out_filter = pysim_out_slices(c) * of.p * of.q;
    return of;
}

static int is_volume(const pysim_conv *c) { return c->depth > 1 || c->kernel_d > 1 || c->pad_front || c->pad_back; }

static pysim_status check_schedule(const pysim_schedule *s, const pysim_direct *of, const pysim_row *row) {
    if (row->family != PYSIM_FAMILY_DEPTHWISE || strcmp(row->info.form, "grouped") == 0)
        return pysim_fail(PYSIM_UNSUPPORTED,
                          "kernel %s convolves no rows in place; this algorithm runs the rows of native/depthwise.inc but for form grouped",
                          row->info.name);
    const int64_t block = by_blocks(row) ? row->info.lane_filters : by_last(row) ? of->conv->groups : 1;
    if (pysim_max(1, of->conv->input_block) != block || pysim_max(1, of->conv->output_block) != block)
        return pysim_fail(PYSIM_UNSUPPORTED, "input_block is %d and output_block %d; kernel %s reads and writes %s of %lld channels",
                          (int)of->conv->input_block, (int)of->conv->output_block, row->info.name, block > 1 ? "blocks" : "planes",
                          (long long)block);
    if ((row->info.lane_filters > 1 || by_taps(row) || by_last(row)) && (of->channels > 1 || of->filters > 1))
        return pysim_fail(PYSIM_UNSUPPORTED, "kernel %s takes groups of one channel and one filter; groups have %lld and %lld",
                          row->info.name, (long long)of->channels, (long long)of->filters);
    if (is_volume(of->conv) && strcmp(row->info.form, "rows") != 0)
        return pysim_fail(PYSIM_UNSUPPORTED, "depth is %lld and kernel_d %lld; kernel %s computes images", (long long)of->conv->depth,
                          (long long)of->conv->kernel_d, row->info.name);
    return pysim_check_only_schedule(s, of->channels, row);
}

/* No nest runs. Its only use here is the workspace size: one panel of `schedule.windows` elements per thread. */
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
    if (status == PYSIM_OK && by_last(&n->row) && n->row.info.lane_filters > 1) {
        status = last_prepared(&p->conv, n->row.info.lane_filters, &job->prepared_bytes);
        job->operands.second.name = "packed filters";
    }
    if (status != PYSIM_OK) return status;
    n->schedule = (pysim_schedule){.stationary = PYSIM_WEIGHT_STATIONARY, .pack = PYSIM_PACK_NONE, .channels = 1, .k2 = 1, .k3 = 1};
    if (by_taps(&n->row) || by_last(&n->row)) {
        n->schedule.pack = PYSIM_PACK_TILES;
        return by_taps(&n->row) ? taps_elements(&of, &n->schedule.windows) : last_elements(&of, &n->schedule.windows);
    }
    if (!by_planes(&n->row)) return PYSIM_OK;
    n->schedule.pack = PYSIM_PACK_TILES;
    return planes_elements(&of, n->row.info.lane_filters, &n->schedule.windows);
}

/* Tests the exponents' bits: GCC vectorises that, but not isfinite(). */
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

/* Runs rows [begin, end) of a slice of outputs of groups [g, g + groups) of one image on the row's kernel, or on the portable one if weights are
 * not finite, and applies the rest of the epilogue. */
static void run_slice(const direct_run *r, int64_t image, int64_t g, int64_t groups, int64_t slice, int64_t begin, int64_t end, int finite,
                      char *workspace) {
    pysim_direct of = r->of;
    const pysim_conv *c = of.conv;
    const pysim_call *x = r->call;
    const int64_t bytes = r->nest->bytes, at = image * c->groups + g, taps = c->kernel_h * c->kernel_w;
    const char *bias = x->epilogue->bias;
    const pysim_direct_kernel plain = c->dtype == PYSIM_F64 ? f64_rows_64x1__portable : f32_rows_64x1__portable;
    int64_t z = slice * c->stride_d - c->pad_front, first = 0;
    while (of.slices > 0 && z < 0) z += c->dilation_d, first++, of.slices--;
    while (of.slices > 0 && z + (of.slices - 1) * c->dilation_d >= c->depth) of.slices--;
    if (of.slices == 0) z = first = 0;
    char *out = x->result + (at * of.filters * of.out_filter + slice * of.p * of.q) * bytes;
    (finite && c->stride_w <= MAX_STRIDE ? r->nest->row.direct
                                         : plain)(&of, x->first + (at * of.channels * of.in_channel + z * c->height * c->width) * bytes,
                                                  x->second + (g * of.filters * of.channels * of.w_channel + first * taps) * bytes,
                                                  bias ? bias + g * of.filters * bytes : NULL, out, groups, begin, end, workspace);
    pysim_finish_rows(&x->finish, out + begin * of.q * bytes, of.out_filter, groups * of.filters, (end - begin) * of.q);
}

/* Output rows [begin, end) of all slices. */
static void run_groups(const direct_run *r, int64_t image, int64_t g, int64_t groups, int64_t begin, int64_t end, int finite,
                       char *workspace) {
    for (int64_t row = begin, next; row < end; row = next) {
        const int64_t slice = row / r->of.p, top = slice * r->of.p;
        next = pysim_min(end, top + r->of.p);
        run_slice(r, image, g, groups, slice, row - top, next - top, finite, workspace);
    }
}

/* Output rows [begin, end) of blocks [first, last) of one image. */
static void run_blocks(const direct_run *r, int64_t image, int64_t first, int64_t last, int64_t begin, int64_t end) {
    const pysim_direct *of = &r->of;
    const pysim_conv *c = of->conv;
    const pysim_call *x = r->call;
    const int64_t bytes = r->unit * r->nest->bytes, row = of->q * bytes, rows = pysim_max(1, EPILOGUE_BYTES / row);
    const int64_t wide = r->unit * pysim_dtype_bytes(pysim_result_dtype(c->dtype)); /* of filters and the bias */
    for (int64_t block = first; block < last; block++) {
        const int64_t at = image * (c->groups / r->unit) + block;
        char *out = x->result + at * of->p * row;
        for (int64_t p = begin, next; p < end; p = next) {
            next = x->finish.loops ? pysim_min(end, p + rows) : end;
            r->nest->row.direct(of, x->first + at * c->height * c->width * bytes, x->second + block * c->kernel_h * c->kernel_w * wide,
                                x->epilogue->bias ? (const char *)x->epilogue->bias + block * wide : NULL, out, r->unit, p, next, NULL);
            pysim_finish_rows(&x->finish, out + p * row, 0, 1, (next - p) * of->q * r->unit);
        }
    }
}

/* Form taps, whose numbers become bytes: rows of one group after another. */
static void round_planes(const direct_run *r, pysim_direct *of, const char *image, const char *filters, const int32_t *bias, char *out,
                         int64_t groups, int64_t begin, int64_t end, char *workspace) {
    const pysim_conv *c = of->conv;
    const pysim_finish *f = &r->call->finish;
    const int64_t rows = PYSIM_NUMBERS / of->q;
    float numbers[PYSIM_NUMBERS] __attribute__((aligned(64)));
    for (int64_t g = 0; g < groups; g++, image += c->height * c->width, filters += c->kernel_h * c->kernel_w, out += of->p * of->q) {
        for (int64_t p = begin, next; p < end; p = next) {
            next = pysim_min(end, p + rows);
            char *const first = (char *)((uintptr_t)numbers - (uintptr_t)(p * of->q) * sizeof(float)); /* where row 0 would lie */
            r->nest->row.direct(of, image, filters, bias ? bias + g : NULL, first, 1, p, next, workspace);
            f->loops->rounded(f, &of->rounding, numbers, 0, 1, (next - p) * of->q, (uint8_t *)out + p * of->q, 0);
        }
        of->rescale.scales += of->rescale.filter_step, of->rounding = pysim_rounding_at(&of->rounding, 1, 0);
    }
}

/* Output rows [begin, end) of groups [first, last) of bytes of one image. */
static void run_taps(const direct_run *r, int64_t image, int64_t first, int64_t last, int64_t begin, int64_t end, char *workspace) {
    const pysim_conv *c = r->of.conv;
    const pysim_call *x = r->call;
    const int64_t at = image * c->groups + first;
    const int32_t *bias = x->epilogue->bias;
    pysim_direct of = r->of;
    if (of.rescale.scales) of.rescale.scales += first * of.rescale.filter_step;
    of.rounding = pysim_rounding_at(&of.rounding, first, 0);
    if (of.rounding.factors && by_taps(&r->nest->row)) {
        round_planes(r, &of, x->first + at * c->height * c->width, x->second + first * c->kernel_h * c->kernel_w,
                     bias ? bias + first : NULL, x->result + at * of.p * of.q, last - first, begin, end, workspace);
        return;
    }
    r->nest->row.direct(&of, x->first + at * c->height * c->width, x->second + first * c->kernel_h * c->kernel_w,
                        bias ? bias + first : NULL, x->result + at * of.p * of.q * r->result_bytes, last - first, begin, end, workspace);
}

/* Some groups and rows of one image. Weights are tested for finiteness per kernel call's groups. */
static void run_item(int64_t item, int64_t thread, const void *context) {
    const direct_run *r = context;
    const pysim_conv *c = r->of.conv;
    const int64_t size = r->of.filters * r->of.channels * r->of.w_channel, image = item / r->row_parts / r->group_parts;
    char *workspace = r->call->workspace + thread * r->thread_bytes;
    int64_t unit_begin, unit_end, begin, end;
    pysim_split_range(pysim_ceil_div(c->groups, r->unit), item / r->row_parts % r->group_parts, r->group_parts, &unit_begin, &unit_end);
    pysim_split_range(r->rows, item % r->row_parts, r->row_parts, &begin, &end);
    const int64_t first = unit_begin * r->unit, last = pysim_min(unit_end * r->unit, c->groups);
    if (by_blocks(&r->nest->row)) {
        run_blocks(r, image, unit_begin, unit_end, begin, end);
        return;
    }
    if (by_taps(&r->nest->row) || by_last(&r->nest->row)) {
        run_taps(r, image, first, last, begin, end, workspace);
        return;
    }
    const int finite = !r->padded || all_finite(c->dtype, r->call->second + first * size * r->nest->bytes, (last - first) * size);
    const int at_once = finite && !by_planes(&r->nest->row) && !r->call->finish.loops && r->rows == r->of.p;
    const int64_t step = at_once ? last - first : r->unit;
    for (int64_t g = first; g < last; g += step) {
        const int64_t groups = pysim_min(step, last - g);
        const int group_finite = finite || all_finite(c->dtype, r->call->second + g * size * r->nest->bytes, groups * size);
        run_groups(r, image, g, groups, begin, end, group_finite, workspace);
    }
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* What the epilogue says of the bytes. */
static void quantise(direct_run *r, const pysim_epilogue *e) {
    pysim_nest n = *r->nest;
    n.out_bytes = pysim_dtype_bytes(PYSIM_S32);
    pysim_nest_rescale(&n, e, 0);
    r->result_bytes = n.out_bytes, r->of.rescale = n.rescale, r->of.rounding = n.rounding;
    if (n.rounding.factors) r->of.finish = &r->call->finish;
    r->of.zero = e->first_zero + (e->first_unsigned ? 0 : 128), r->of.flip = e->first_unsigned ? 0 : 128;
}

static void run_depthwise(const pysim_job *job, const pysim_call *call) {
    const pysim_conv *c = &job->problem.conv;
    direct_run r = {.of = shape_of(c),
                    .nest = &job->nest,
                    .call = call,
                    .row_parts = 1,
                    .padded = c->pad_top || c->pad_left || c->pad_bottom || c->pad_right};
    r.of.bounds = call->bounds;
    if (by_taps(&job->nest.row) || by_last(&job->nest.row)) quantise(&r, call->epilogue);
    r.unit = by_last(&job->nest.row) ? c->groups : job->nest.row.info.lane_filters, r.rows = pysim_out_slices(c) * r.of.p;
    r.group_parts = pysim_min(call->threads, pysim_ceil_div(c->groups, r.unit));
    if (by_blocks(&job->nest.row) && r.rows >= PART_ROWS * call->threads) r.group_parts = 1;
    if (!by_planes(&job->nest.row) && c->batch * r.group_parts < call->threads) r.row_parts = pysim_min(call->threads, r.rows);
    (void)pysim_nest_workspace(&job->nest, 1, &r.thread_bytes); /* has passed */
    const double start = call->profile ? now() : 0;
    pysim_parallel_for(c->batch * r.group_parts * r.row_parts, call->threads, run_item, &r);
    if (call->profile) {
        call->profile->kernel_seconds = now() - start;
        call->profile->kernel_calls = c->batch * r.group_parts * r.row_parts;
    }
}

const pysim_algorithm pysim_algorithm_depthwise = {
    .open = open_depthwise, .prepare = prepare_depthwise, .run = run_depthwise, .finishes = 1, .blocks = 1, .quantised = 1, .volumes = 1};
