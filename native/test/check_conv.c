/* SPDX-License-Identifier: Apache-2.0
 * Convolutions at the edges of a kernel's block, run as every kind of schedule. Three families: any kernel; 1x1 with unit stride and
 * no padding, where both pack modes are legal; square kernels by Winograd's transforms, whatever the stride. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "operators/loops.h"
#include "check.h"
#include "conv_cases.h"
#include "cover.h"

typedef struct {
    guard_arena input, filters, bias, residual, packed, workspace, output;
} operands;
static operands at;

/* Whether Winograd's products can run on this row: transforms exist for its target and dtype, and its panels are not too wide. */
static int has_winograd(const pysim_kernel_info *row) {
    static const char *const transforms[] = {
#define PYSIM_WINOGRAD(target, dtype) #target " " #dtype,
#include "winograd.inc"
#undef PYSIM_WINOGRAD
    };
    char own[64];
    snprintf(own, sizeof own, "%s %s", row->target, check_name(row->dtype));
    for (size_t i = 0; i < sizeof transforms / sizeof *transforms; i++)
        if (strcmp(own, transforms[i]) == 0) return row->filters <= 16 && row->windows <= 64;
    return 0;
}

static const char *const epilogues[EPILOGUES] = {"", " relu", " clamp", " residual", " residual relu", " residual clamp"};

static pysim_epilogue epilogue_of(const conv_case *k) {
    pysim_epilogue e = {
        .alpha = 1, .bias = k->bias ? at.bias.buffer : NULL, .activation = k->epilogue % ADDS ? PYSIM_RELU : PYSIM_IDENTITY};
    if (k->epilogue >= ADDS) e.residual = at.residual.buffer;
    if (k->epilogue % ADDS == CLAMPS) e.activation = PYSIM_EPILOGUE_clamp, e.low = LOW, e.high = HIGH;
    return e;
}

static int begin(const conv_case *k, const pysim_kernel_info *row) {
    const pysim_conv *c = &k->c;
    char schedule[160];
    check_schedule_text(&k->s, schedule, sizeof schedule);
    return check_begin(k->id,
                       "conv:mb%lldg%lldic%lldih%lldiw%lldoc%lldoh%lldow%lldkh%lldkw%lldsh%lldsw%lldph%lldpw%llddh%llddw%lld:%s "
                       "pad_bottom=%lld pad_right=%lld blocks=%d,%d volume=%lld,%lld,%lld,%lld%s%s | %s outputs=%d %s threads=%d",
                       (long long)c->batch, (long long)c->groups, (long long)c->channels, (long long)c->height, (long long)c->width,
                       (long long)c->filters, (long long)k->p, (long long)k->q, (long long)c->kernel_h, (long long)c->kernel_w,
                       (long long)c->stride_h, (long long)c->stride_w, (long long)c->pad_top, (long long)c->pad_left,
                       (long long)c->dilation_h - 1, (long long)c->dilation_w - 1, check_name(c->dtype), (long long)c->pad_bottom,
                       (long long)c->pad_right, (int)c->input_block, (int)c->output_block, (long long)c->depth, (long long)c->kernel_d,
                       (long long)c->stride_d, (long long)c->pad_front, k->bias ? " bias" : "", epilogues[k->epilogue], row->name,
                       (int)k->s.outputs, schedule, (int)k->threads);
}

/* `i` counts results as they lie. */
static void describe(const conv_case *k, const char *what, int64_t i, const void *got, const void *want) {
    check_fail("%s: output[n=%lld][m=%lld][p=%lld][q=%lld] is %.9g, the reference has %.9g", what,
               (long long)(i / (k->c.filters * k->p * k->q)), (long long)(i / (k->p * k->q) % k->c.filters), (long long)(i / k->q % k->p),
               (long long)(i % k->q), check_get(got, k->result, i), check_get(want, k->result, i));
}

/* Every third filter is negated and has a negative bias, so that a ReLU cuts some results and keeps others. */
static void set_signs(const conv_case *k, void *filters, void *bias) {
    const int64_t size = k->filters / k->c.filters;
    for (int64_t i = 0; i < k->filters; i++)
        if (i / size % 3 == 1) check_set(filters, k->second, i, -check_get(filters, k->second, i));
    check_absolute(bias, bias, k->added, k->c.filters);
    for (int64_t m = 1; m < k->c.filters; m += 3) check_set(bias, k->added, m, -check_get(bias, k->added, m));
}

/* The reference's result, from a guarded output, into SCRATCH_WANT. */
static int expect(conv_case *k, const pysim_epilogue *e, guard_side side) {
    const size_t bytes = (size_t)k->output * check_size(k->result);
    void *output = guard_place(&at.output, bytes, side);
    memset(output, 0xFF, bytes);
    if (check_conv_reference(&k->c, e, at.input.buffer, at.filters.buffer, output) != PYSIM_OK) {
        check_fail("pysim_reference: %s", pysim_last_error());
        return 0;
    }
    if (!guard_intact(&at.output)) check_fail("pysim_reference wrote outside the output");
    memcpy(check_scratch(SCRATCH_WANT, bytes), output, bytes);
    return 1;
}

static double largest(const void *positive, int32_t dtype, int64_t count) {
    double most = 0;
    for (int64_t i = 0; i < count; i++) most = fmax(most, check_get(positive, dtype, i));
    return most;
}

/* |I| |F| + |bias| + |residual| into SCRATCH_BOUND. */
static void expect_bound(conv_case *k, const pysim_epilogue *given) {
    const size_t result_size = check_size(k->result);
    void *input = check_scratch(SCRATCH_A, (size_t)k->input * check_size(k->first));
    void *filters = check_scratch(SCRATCH_B, (size_t)k->filters * check_size(k->second));
    void *positive = check_scratch(SCRATCH_BIAS, (size_t)k->c.filters * check_size(k->added));
    check_absolute(input, at.input.buffer, k->first, k->input);
    check_absolute(filters, at.filters.buffer, k->second, k->filters);
    if (given->bias) check_absolute(positive, given->bias, k->added, k->c.filters);
    pysim_epilogue e = {.alpha = 1, .bias = given->bias ? positive : NULL};
    if (given->residual) {
        void *added = check_scratch(SCRATCH_RESIDUAL, (size_t)k->output * result_size);
        check_absolute(added, given->residual, k->result, k->output);
        e.residual = added;
    }
    void *bound = check_scratch(SCRATCH_BOUND, (size_t)k->output * result_size);
    if (check_conv_reference(&k->c, &e, input, filters, bound) != PYSIM_OK) check_fail("pysim_reference: %s", pysim_last_error());
}

static int64_t slices_of(const conv_case *k) { return k->c.depth ? k->c.kernel_d : 1; }

/* Transforms mix windows: uses the bound of the largest elements for all results. */
static void mix_bound(const conv_case *k, const pysim_epilogue *e) {
    if (k->s.algorithm != CHECK_winograd) return;
    const int64_t taps =
        forms[k->form].taps * forms[k->form].taps * k->c.stride_h * k->c.stride_w * slices_of(k); /* of all phases, zeros among them */
    const double summed = (double)(taps * k->c.channels / k->c.groups) * largest(check_scratch(SCRATCH_A, 0), k->first, k->input) *
                          largest(check_scratch(SCRATCH_B, 0), k->second, k->filters);
    const double most = summed + (e->bias ? largest(check_scratch(SCRATCH_BIAS, 0), k->added, k->c.filters) : 0) +
                        (e->residual ? largest(check_scratch(SCRATCH_RESIDUAL, 0), k->result, k->output) : 0);
    for (int64_t i = 0; i < k->output; i++) check_set(check_scratch(SCRATCH_BOUND, 0), k->result, i, most);
}

static uint64_t operands_hash(void) {
    return check_hash(at.input.buffer, at.input.bytes) ^ check_hash(at.packed.buffer, at.packed.bytes) ^
           check_hash(at.residual.buffer, at.residual.bytes);
}

/* Runs the case into at.output, everything the run touches guarded; 0 if it has failed. */
static int run(conv_case *k, const pysim_epilogue *e, int32_t threads, guard_side side, int garbage) {
    const size_t bytes = (size_t)k->output * check_size(k->result);
    const pysim_problem p = check_conv_problem(&k->c);
    void *output = guard_place(&at.output, bytes, side);
    memset(output, 0xFF, bytes);
    const uint64_t before = operands_hash();
    if (!check_run(&p, &k->s, e, threads, at.input.buffer, at.packed.buffer, output, &at.workspace, side, k->index, garbage)) return 0;
    if (operands_hash() != before) check_fail("pysim_run changed its input, filters or residual");
    if (!guard_intact(&at.output)) check_fail("pysim_run wrote outside the output");
    return 1;
}

static int pack(const conv_case *k, guard_side side) {
    const pysim_problem p = check_conv_problem(&k->c);
    int64_t packed_bytes;
    if (pysim_prepared_bytes(&p, &k->s, &packed_bytes) != PYSIM_OK) {
        check_fail("pysim_prepared_bytes: %s", pysim_last_error());
        return 0;
    }
    const size_t filter_bytes = (size_t)k->filters * check_size(k->second);
    void *packed = guard_place(&at.packed, packed_bytes ? (size_t)packed_bytes : filter_bytes, side);
    if (packed_bytes == 0) { /* a run reads the filters as they are */
        memcpy(packed, at.filters.buffer, filter_bytes);
        return 1;
    }
    memset(packed, 0xFF, (size_t)packed_bytes);
    if (pysim_prepare(&p, &k->s, at.filters.buffer, packed, packed_bytes) != PYSIM_OK) {
        check_fail("pysim_prepare: %s", pysim_last_error());
        return 0;
    }
    if (!guard_intact(&at.packed)) check_fail("pysim_prepare wrote outside the packed filters");
    return 1;
}

/* Operands have values of the problem's type, also where they are floats. */
static void fill(conv_case *k, void *operand, int32_t dtype, int64_t count, check_fill_kind kind) {
    if (dtype == k->c.dtype) {
        check_fill(operand, dtype, count, kind, &k->random);
        return;
    }
    void *own = check_scratch(SCRATCH_B, (size_t)count * check_size(k->c.dtype));
    check_fill(own, k->c.dtype, count, kind, &k->random);
    for (int64_t i = 0; i < count; i++) check_set(operand, dtype, i, check_get(own, k->c.dtype, i));
}

static int prepare(conv_case *k, check_fill_kind kind, guard_side side) {
    types_of(k);
    fill(k, guard_place(&at.input, (size_t)k->input * check_size(k->first), side), k->first, k->input, kind);
    fill(k, guard_place(&at.filters, (size_t)k->filters * check_size(k->second), side), k->second, k->filters, kind);
    check_fill(guard_place(&at.bias, (size_t)k->c.filters * check_size(k->added), side), k->added, k->c.filters, kind, &k->random);
    check_fill(guard_place(&at.residual, (size_t)k->output * check_size(k->result), side), k->result, k->output, kind, &k->random);
    set_signs(k, at.filters.buffer, at.bias.buffer);
    return pack(k, side);
}

static void count_nonzero(const conv_case *k) {
    const void *want = check_scratch(SCRATCH_WANT, 0), *bound = check_scratch(SCRATCH_BOUND, 0);
    int64_t nonzero = 0, live = 0; /* live: the window meets the image, or there is a bias */
    for (int64_t i = 0; i < k->output; i++)
        if (check_get(bound, k->result, i) > 0) live++, nonzero += fpclassify(check_get(want, k->result, i)) != FP_ZERO;
    check_count_nonzero(nonzero, live);
    if (k->epilogue % ADDS == 0 && k->epilogue != CLAMPS && live > 64 && 10 * nonzero < 3 * live)
        check_fail("the case is too weak: %lld of %lld results differ from zero", (long long)nonzero, (long long)live);
}

/* Of bounds. Results of bf16 to which a pass behind the kernels adds a residual are rounded before that. */
static double tolerance(const conv_case *k) {
    const int64_t channels = k->c.channels / k->c.groups;
    const double rounded = k->result == PYSIM_BF16 && k->epilogue >= ADDS && k->s.algorithm != CHECK_direct_nchwc ? 0x1p-8 : 0;
    if (k->s.algorithm == CHECK_winograd)
        return rounded + forms[k->form].growth * check_gamma(k->result, channels * slices_of(k) * k->c.stride_h * k->c.stride_w +
                                                                            6 * (forms[k->form].outputs + forms[k->form].taps) + 20);
    const int64_t depth = channels * slices_of(k) * k->c.kernel_h * k->c.kernel_w;
    if (k->s.algorithm == CHECK_strassen_1x1) return 18 * check_gamma(k->result, depth + 16); /* as in check_gemm.c */
    const int64_t cut = k->s.algorithm == CHECK_sconv ? channels : depth;                     /* what comes in sets */
    return rounded + 1.0001 * check_gamma(k->result, depth + (cut + k->s.channels - 1) / k->s.channels + 4);
}

/* Exact inputs: the reference's bits. */
static void exact(conv_case *k, const pysim_epilogue *e, guard_side side) {
    if (!expect(k, e, side)) return;
    const int inexact = k->s.algorithm == CHECK_winograd && forms[k->form].outputs + forms[k->form].taps > 5; /* not all points are +-1 */
    if (inexact) expect_bound(k, e), mix_bound(k, e);
    if (!run(k, e, k->index & 1 ? k->threads : 1, side, 0xFF)) return;
    const void *want = check_scratch(SCRATCH_WANT, 0), *bound = inexact ? check_scratch(SCRATCH_BOUND, 0) : NULL;
    const int64_t bad = check_compare(k->result, k->output, at.output.buffer, want, bound, tolerance(k));
    if (bad >= 0) describe(k, "small integers", bad, at.output.buffer, want);
}

/* Of random inputs, the reference's result and how far from it one may be. */
static int expect_random(conv_case *k, const pysim_epilogue *e, guard_side side) {
    if (!expect(k, e, side)) return 0;
    expect_bound(k, e);
    count_nonzero(k);
    mix_bound(k, e);
    return !check_failed();
}

/* What was expected, within its bound, and the same bits every time and on any number of threads. */
static void as_expected(conv_case *k, const pysim_epilogue *e, guard_side side) {
    const size_t bytes = (size_t)k->output * check_size(k->result);
    if (!run(k, e, 1, side, 0xFF)) return;
    const void *want = check_scratch(SCRATCH_WANT, 0), *bound = check_scratch(SCRATCH_BOUND, 0);
    const int64_t bad = check_compare(k->result, k->output, at.output.buffer, want, check_is_exact(k->result) ? NULL : bound, tolerance(k));
    if (bad >= 0) describe(k, "random values", bad, at.output.buffer, want);
    void *first = check_scratch(SCRATCH_FIRST, bytes);
    memcpy(first, at.output.buffer, bytes);
    if (run(k, e, 1, side, 0x7F) && memcmp(first, at.output.buffer, bytes)) check_fail("the second run gave other bits than the first");
    if (run(k, e, k->threads, side, 0) && memcmp(first, at.output.buffer, bytes))
        check_fail("%d threads gave other bits than one", (int)k->threads);
}

static void compare_poisoned(conv_case *k, const pysim_epilogue *e, guard_side side, const char *what) {
    if (!expect(k, e, side) || !run(k, e, k->index & 1 ? k->threads : 1, side, 0xFF)) return;
    const void *want = check_scratch(SCRATCH_WANT, 0), *bound = check_scratch(SCRATCH_BOUND, 0);
    const int64_t bad = check_compare(k->result, k->output, at.output.buffer, want, bound, tolerance(k));
    if (bad >= 0) describe(k, what, bad, at.output.buffer, want);
}

/* An infinite weight and a NaN reach exactly the outputs that they reach in the reference, so none by way of the padding, and through a
 * ReLU too; and so does what is not finite in the input. */
static void poisoned(conv_case *k, const pysim_epilogue *e, guard_side side) {
    check_set(at.filters.buffer, k->second, check_below(&k->random, k->filters), k->index & 2 ? INFINITY : -INFINITY);
    if (k->index % 3 == 0) check_set(at.filters.buffer, k->second, check_below(&k->random, k->filters), NAN);
    if (!pack(k, side)) return;
    compare_poisoned(k, e, side, "weights that are not finite");
    check_set(at.input.buffer, k->first, check_below(&k->random, k->input), k->index & 4 ? NAN : INFINITY);
    if (!check_failed()) compare_poisoned(k, e, side, "weights and an input that are not finite");
}

/* The same inputs and tiles, of which the same is expected, by every other algorithm that runs on the nest's rows. */
static void others(conv_case *k, const pysim_epilogue *e, guard_side side) {
    if (k->s.algorithm != CHECK_sconv || k->c.depth) return;
    for (int32_t i = CHECK_sconv + 1; i < CHECK_ALGORITHMS && !check_failed(); i++) {
        const int own_rows = i == CHECK_winograd || i == CHECK_depthwise || i == CHECK_polyphase || i == CHECK_direct_nchwc ||
                             i == CHECK_blocked || i == CHECK_integer_winograd || i == CHECK_channels_last || i == CHECK_grouped ||
                             i == CHECK_strassen_1x1;
        if (check_computes[i] != PYSIM_CONV || own_rows || (k->groups_of_k && i == CHECK_im2col)) continue;
        k->s.algorithm = i;
        if (pack(k, side)) as_expected(k, e, side);
        k->s.algorithm = CHECK_sconv;
    }
}

/* A case again by another algorithm, in other blocks. */
static void again(conv_case *k, int32_t algorithm, int64_t in, int64_t out, int64_t channels, guard_side side) {
    const conv_case own = *k;
    k->c.input_block = (int32_t)in, k->c.output_block = (int32_t)out, k->s.algorithm = algorithm, k->s.channels = channels;
    if (algorithm == CHECK_channels_last) k->s.pack = PYSIM_PACK_TILES;
    if (algorithm == CHECK_strassen_1x1) k->s.outputs = 1 + k->index % ((k->c.height * k->c.width + 1) / 2);
    if (prepare(k, FILL_RANDOM, side)) {
        const pysim_epilogue e = epilogue_of(k);
        if (expect_random(k, &e, side)) as_expected(k, &e, side);
        if (!check_failed() && !check_is_exact(k->result)) poisoned(k, &e, side);
    }
    k->c = own.c, k->s = own.s;
    types_of(k);
}

/* A case of floats in blocks with bf16 in blocks. */
static void narrow(conv_case *k, guard_side side) {
    k->c.dtype = PYSIM_BF16;
    again(k, k->s.algorithm, k->c.input_block, k->c.output_block, k->s.channels, side);
    k->c.dtype = PYSIM_F32;
    types_of(k);
}

/* Channel blocks on planes by the algorithm `blocked`; 1x1 by seven products of halves; bytes with channels last; a 3x3 case of a row of form pairs by Winograd. */
static void otherwise(conv_case *k, const pysim_kernel_info *row, guard_side side) {
    const pysim_conv *c = &k->c;
    const pysim_schedule own = k->s;
    const int steps = c->stride_h * c->stride_w * c->dilation_h * c->dilation_w == 1, bytes = own.algorithm == CHECK_sconv && !c->depth;
    if (own.algorithm == CHECK_winograd && c->output_block > 1 && strcmp(row->target, "avx512") == 0 && c->dtype == PYSIM_F32)
        narrow(k, side);
    if (own.algorithm == CHECK_direct_nchwc && c->input_block > 1 && c->dtype != PYSIM_BF16)
        again(k, CHECK_blocked, k->index & 1, k->index & 1, own.channels, side);
    if (own.algorithm == CHECK_direct_nchwc && check_has_halves(c))
        again(k, CHECK_strassen_1x1, c->input_block, c->output_block, c->channels / 2, side);
    if (bytes && c->dtype == PYSIM_S8 && c->groups == 1 && strcmp(row->form, "bounded") != 0)
        again(k, CHECK_channels_last, c->channels, c->filters, c->channels * c->kernel_h * c->kernel_w, side);
    if (!bytes || strcmp(row->form, "pairs") != 0 || c->kernel_h != 3 || c->kernel_w != 3 || !steps || check_failed()) return;
    k->s.stationary = PYSIM_INPUT_STATIONARY, k->s.k2 = k->s.k3 = 1;
    again(k, CHECK_integer_winograd, 0, 0, c->channels / c->groups, side);
    k->s = own;
}

static void check_case(conv_case *k, const pysim_kernel_info *row) {
    const guard_side side = k->index & 1 ? GUARD_LEFT : GUARD_RIGHT;
    k->input = k->c.batch * k->c.channels * (k->c.depth ? k->c.depth : 1) * k->c.height * k->c.width;
    k->filters = k->c.filters * (k->c.channels / k->c.groups) * slices_of(k) * k->c.kernel_h * k->c.kernel_w;
    k->output = k->c.batch * k->c.filters * k->p * k->q;
    if (!prepare(k, FILL_EXACT, side)) return;
    pysim_epilogue e = epilogue_of(k);
    exact(k, &e, side);
    if (check_failed() || !prepare(k, FILL_RANDOM, side == GUARD_LEFT ? GUARD_RIGHT : GUARD_LEFT)) return;
    e = epilogue_of(k);
    if (expect_random(k, &e, side == GUARD_LEFT ? GUARD_RIGHT : GUARD_LEFT))
        as_expected(k, &e, side == GUARD_LEFT ? GUARD_RIGHT : GUARD_LEFT);
    others(k, &e, side == GUARD_LEFT ? GUARD_RIGHT : GUARD_LEFT);
    if (!check_failed() && !check_is_exact(k->result)) poisoned(k, &e, side == GUARD_LEFT ? GUARD_RIGHT : GUARD_LEFT);
    if (!check_failed()) otherwise(k, row, side);
}

static void family(int family_of, int32_t round, int32_t kernel, const pysim_kernel_info *row) {
    static cover_array rows;
    static const int32_t axes[] = {ANY_AXES, POINTWISE_AXES, WINOGRAD_AXES};
    static const int32_t *const levels[] = {any_levels, pointwise_levels, winograd_levels};
    cover_settings(axes[family_of], levels[family_of], family_of, round, &rows);
    for (int32_t i = 0; i < rows.count; i++) {
        conv_case k;
        if (family_of == FAMILY_WINOGRAD) make_winograd(&k, round * COVER_ROWS + i, rows.row[i], kernel, row);
        else make(&k, family_of, round * COVER_ROWS + i, rows.row[i], kernel, row);
        const int volumes = k.s.algorithm == CHECK_sconv || (k.s.algorithm == CHECK_depthwise && strcmp(row->form, "rows") == 0);
        if (family_of == FAMILY_ANY && i % 4 == 3 && volumes) k.slices = check_volume(&k.c, &k.random);
        const pysim_status status = pysim_conv_output(&k.c, &k.p, &k.q);
        k.p *= k.slices;
        if (!begin(&k, row)) continue;
        if (status == PYSIM_OK) check_case(&k, row);
        else check_fail("pysim_conv_output: %s", pysim_last_error());
        check_end();
    }
}

void check_conv(int32_t round, int32_t kernel, const pysim_kernel_info *row) {
    family(FAMILY_ANY, round, kernel, row);
    if (!check_is_grouped(row)) family(FAMILY_POINTWISE, round, kernel, row);
    const int own = check_is_direct(row) || check_is_phases(row) || check_is_nchwc(row);
    if (!own && has_winograd(row)) family(FAMILY_WINOGRAD, round, kernel, row);
}
