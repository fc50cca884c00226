/* SPDX-License-Identifier: Apache-2.0
 * Compares every row of conv/ with the reference on the device: both layouts, tiles' edges, kernels, strides, dilations, padding, groups, volumes, epilogues
 * and decompositions. The output starts as NaN, with a pattern at both ends that must survive. Input, filters, bias and workspace each begin or end
 * where their allocation does. Results of small integers must be equal bit for bit, those of random numbers within a bound. Rows that support
 * prologues have one in every other problem. In every other problem some operands are infinite or NaN, as far as the row supports that
 * (`needs_finite`); the results must be so exactly where the reference's are.
 *
 *   check_conv [--kernel SUBSTRING] [--cases N] [--seed N] [--most N]     --cases: accepted problems per row and layout (default 60); --most: at most
 *   N million multiply-adds a problem, for the emulation (emulated/), where the reference takes most of the time. Exit status 1 if a case failed or a
 *   row accepted nothing, 77 if there is no device. */
#include <string>

#include "check.h"

namespace {

struct Case {
    pysim_cuda_conv c;
    pysim_cuda_schedule s;
    pysim_cuda_epilogue e;
    int offset_in, offset_weights, offset_out; /* misalignment of the base, in elements */
    bool exact, bias, scale, poisoned;
    bool has_prologue; /* the prologue's properties follow */
    int by_image, relu, scales, shifts;
};

Buffer buffer_in, buffer_weights, buffer_out, buffer_want, buffer_sums, buffer_scale, buffer_bias, buffer_factors, buffer_work,
    buffer_abs_in, buffer_abs_weights;
Buffer buffer_scales, buffer_shifts, buffer_abs_scales, buffer_abs_shifts;
long long cases, failures, refusals, prologue_cases;

/* A deterministic random sequence. */
struct Draw {
    unsigned state;
    int below(int n) { return (int)(mix(state += 0x9e3779b9u) % (unsigned)n); }
    template <int N> int of(const int (&choices)[N]) { return choices[below(N)]; }
};

/* Of an image, whose depth is 0, 1. */
long long slices(const pysim_conv &s) { return s.depth ? s.depth : 1; }
long long out_slices(const pysim_conv &s) {
    return s.depth ? outputs(s.depth, s.pad_front, s.pad_back, s.kernel_d, s.stride_d, s.dilation_d) : 1;
}
long long taps(const pysim_conv &s) { return (s.depth ? s.kernel_d : 1) * s.kernel_h * s.kernel_w; }

/* Allowed error relative to the sum of magnitudes. Winograd's transforms add inputs of a whole patch: F(2x2) up to 8 times that sum, F(4x4) 73 times
 * (lab/ablations/winograd_simulated.py). */
double bound_of(const Case &x, const pysim_cuda_conv_info &row) {
    const pysim_cuda_conv &c = x.c;
    const double terms = (double)(c.shape.channels / c.shape.groups * taps(c.shape)) + 8;
    const double growth = row.outputs == 1 ? 1 : row.outputs == 2 ? 10 : 80;
    switch (c.shape.dtype) {
    case PYSIM_F64: return growth * 2 * terms * 0x1p-53;
    case PYSIM_TF32: return growth * (0x1p-9 + terms * 0x1p-24);
    case PYSIM_TF32X3: return growth * (0x1p-19 + terms * 0x1p-23);
    default: return growth * terms * 0x1p-24;
    }
}

void report(const Case &c, const pysim_cuda_conv_info &row, const char *what) {
    if (++failures > 40) return;
    const pysim_conv &s = c.c.shape;
    printf(
        "FAIL %s %s mb%lldg%lldic%lldih%lldiw%lldoc%lldkh%lldkw%lldsh%lldsw%lld dilation %lldx%lld pads %lld %lld %lld %lld slices %lld %lld %lld %lld %lld %lld %s->%s offsets %d %d %d "
        "alpha %g beta %g bias %d scale %d prologue %d%d%d%d%d f %d kind %d splits %d along_n %d group %d gemm %d %s: %s\n",
        row.name, c.c.layout ? "nhwc" : "nchw", (long long)s.batch, (long long)s.groups, (long long)s.channels, (long long)s.height,
        (long long)s.width, (long long)s.filters, (long long)s.kernel_h, (long long)s.kernel_w, (long long)s.stride_h,
        (long long)s.stride_w, (long long)s.dilation_h, (long long)s.dilation_w, (long long)s.pad_top, (long long)s.pad_left,
        (long long)s.pad_bottom, (long long)s.pad_right, (long long)s.depth, (long long)s.kernel_d, (long long)s.stride_d,
        (long long)s.dilation_d, (long long)s.pad_front, (long long)s.pad_back, name_of[s.dtype], name_of[c.c.out_dtype], c.offset_in,
        c.offset_weights, c.offset_out, c.e.alpha, c.e.beta, (int)c.bias, (int)c.scale, (int)c.has_prologue, c.scales, c.by_image, c.shifts,
        c.relu, c.e.activation, c.s.decomposition, c.s.splits, c.s.along_n, c.s.group, c.s.gemm,
        c.poisoned ? "poisoned"
        : c.exact  ? "exact"
                   : "random",
        what);
}

void run(Case c, const pysim_cuda_conv_info &row, unsigned seed, int64_t bytes) {
    enum { HEAD = 1024 };
    const pysim_conv &s = c.c.shape;
    const int element = bytes_of[s.dtype], result = bytes_of[c.c.out_dtype];
    const int p = outputs(s.height, s.pad_top, s.pad_bottom, s.kernel_h, s.stride_h, s.dilation_h);
    const int q = outputs(s.width, s.pad_left, s.pad_right, s.kernel_w, s.stride_w, s.dilation_w);
    const long long count_in = s.batch * s.channels * slices(s) * s.height * s.width,
                    count_out = s.batch * s.filters * out_slices(s) * p * q;
    const long long count_weights = s.filters * (s.channels / s.groups) * taps(s);
    char *in = buffer_in.place((size_t)count_in * element, c.offset_in * element, seed & 1);
    char *weights = buffer_weights.place((size_t)count_weights * element, c.offset_weights * element, seed & 2);
    const size_t head = HEAD + (size_t)c.offset_out * result, total = head + (size_t)count_out * result + HEAD;
    char *block = (char *)buffer_out.at(total), *out = block + head;
    char *want = (char *)buffer_want.at(total) + head;
    each(count_in, fill, in, s.dtype, 1, count_in, count_in, seed, 2 * c.exact);
    each(count_weights, fill, weights, s.dtype, 1, count_weights, count_weights, seed + 77, 2 * c.exact);
    const bool padded = s.pad_front || s.pad_back || s.pad_top || s.pad_left || s.pad_bottom || s.pad_right;
    if (c.poisoned && row.needs_finite != PYSIM_FINITE_OPERANDS) {
        each(1, poison, in, s.dtype, (long long)(mix(seed + 21) % count_in), 1, 1, INFINITY);
        each(1, poison, in, s.dtype, (long long)(mix(seed + 22) % count_in), 1, 1, NAN);
    }
    if (c.poisoned && (row.needs_finite == PYSIM_FINITE_NOTHING || (row.needs_finite == PYSIM_FINITE_FILTERS && !padded)))
        each(1, poison, weights, s.dtype, (long long)(mix(seed + 23) % count_weights), 1, 1, -INFINITY);
    need(cudaMemset(block, 0xff, total), "memset");
    if (c.e.beta != 0) each(count_out, fill, out, c.c.out_dtype, 1, count_out, count_out, seed + 5, 2 * c.exact);
    need(cudaMemcpy(want - head, block, total, cudaMemcpyDeviceToDevice), "copy");
    if (c.bias) c.e.bias = filled(buffer_bias, s.filters, c.c.out_dtype, seed + 9, 2 * c.exact);
    if (c.scale) c.e.scale = filled(buffer_factors, s.filters, scale_of(c.c.out_dtype), seed + 11, 2 * c.exact);
    const long long scales = (c.by_image ? s.batch : 1) * s.channels;
    pysim_cuda_prologue prologue = {nullptr, nullptr, c.by_image, c.relu};
    if (c.scales) prologue.scale = (const float *)filled(buffer_scales, scales, PYSIM_F32, seed + 13, 2 * c.exact);
    if (c.shifts) prologue.shift = (const float *)filled(buffer_shifts, s.channels, PYSIM_F32, seed + 15, 2 * c.exact);
    if (c.has_prologue) c.e.prologue = &prologue;
    cases++;
    void *work = buffer_work.place((size_t)bytes, 0, true);
    need(cudaMemset(work, 0xff, (size_t)bytes), "memset");
    const pysim_cuda_problem problem = pysim::problem_of(c.c);
    const pysim_status ran = pysim_cuda_run(&problem, &c.s, &c.e, in, weights, out, bytes ? work : nullptr, bytes, nullptr);
    /* a row may refuse misaligned operands or prologues */
    if (ran == PYSIM_UNSUPPORTED && (c.offset_in || c.offset_weights || c.has_prologue)) {
        refusals++;
        return;
    }
    if (ran != PYSIM_OK) return report(c, row, pysim_cuda_last_error());
    prologue_cases += c.has_prologue;
    if (pysim_cuda_reference(&problem, &c.e, in, weights, want, nullptr) != PYSIM_OK) return report(c, row, pysim_cuda_last_error());
    double *scale = nullptr;
    if (!c.exact) { /* conv(|input|, |filters|), in f32 */
        char *abs_in = (char *)buffer_abs_in.at((size_t)count_in * element),
             *abs_weights = (char *)buffer_abs_weights.at((size_t)count_weights * element);
        each(count_in, magnitude, abs_in, in, s.dtype, count_in);
        each(count_weights, magnitude, abs_weights, weights, s.dtype, count_weights);
        pysim_cuda_problem all = problem;
        all.conv.out_dtype = s.dtype == PYSIM_F64 ? PYSIM_F64 : PYSIM_F32;
        pysim_cuda_prologue largest = {nullptr, nullptr, c.by_image, 0}; /* prologue for the magnitudes */
        if (c.scales)
            largest.scale = buffer_abs_scales.at((size_t)scales * 4),
            each(scales, magnitude, (void *)largest.scale, prologue.scale, PYSIM_F32, scales);
        if (c.shifts)
            largest.shift = buffer_abs_shifts.at((size_t)s.channels * 4),
            each(s.channels, magnitude, (void *)largest.shift, prologue.shift, PYSIM_F32, s.channels);
        const pysim_cuda_epilogue plain = {1, 0, nullptr, 0, 0, 0, nullptr, 0, c.has_prologue ? &largest : nullptr};
        char *sums = (char *)buffer_sums.at((size_t)count_out * 8);
        if (pysim_cuda_reference(&all, &plain, abs_in, abs_weights, sums, nullptr) != PYSIM_OK)
            return report(c, row, pysim_cuda_last_error());
        scale = (double *)buffer_scale.at((size_t)count_out * 8);
        each(count_out, widen, scale, sums, all.conv.out_dtype, count_out);
    }
    const Verdict v = verdict_of(block, total, head, out, want, scale, c.c.out_dtype, 1, count_out, count_out,
                                 bound_of(c, row) * (1 + fabs(c.e.alpha)), row.name);
    char text[160];
    if (v.wrong) {
        snprintf(text, sizeof text, "%llu of %lld are wrong, the first is element %lld", v.wrong, count_out, v.first);
        report(c, row, text);
    } else if (v.gaps) {
        snprintf(text, sizeof text, "%llu bytes outside the output were written", v.gaps);
        report(c, row, text);
    }
}

/* Changes it to one of the kinds for which a family has kernels of its own. */
void specialize(pysim_conv &s, Draw &draw, const pysim_cuda_conv_info &row) {
    if (!strcmp(row.family, "depthwise") && draw.below(3) == 0) { /* enough outputs for several per thread, in whole vectors or not */
        s.batch = 1 + draw.below(4), s.groups = s.channels = 30 + draw.below(120), s.filters = s.groups * (1 + draw.below(2));
        if (!strcmp(row.form, "grouped"))
            s.groups = 5 + draw.below(20), s.channels = s.groups * (1 + draw.below(5)), s.filters = s.groups * (2 + draw.below(6));
        s.kernel_h = s.kernel_w = 3 + 2 * draw.below(3), s.stride_h = s.stride_w = 1 + draw.below(2), s.dilation_h = s.dilation_w = 1;
        if (draw.below(3) == 0) s.dilation_h = s.dilation_w = 1 + draw.below(5), s.stride_h = s.stride_w = 1 + draw.below(4) / 2;
        s.pad_top = s.pad_left = s.pad_bottom = s.pad_right = s.kernel_h / 2 * s.dilation_h;
        s.height = 20 + draw.below(20), s.width = 8 * (2 + draw.below(5)) + (draw.below(2) ? 0 : draw.below(8));
    }
    if (!strcmp(row.form, "sequence") ||
        !strcmp(row.form, "toeplitz")) { /* channels of one or several blocks, in whole vectors or not; as many taps as it takes */
        const int vector = 16 / bytes_of[s.dtype];
        s.groups = s.channels = s.filters = 1 + draw.below(20) * vector + (draw.below(8) ? vector - 1 : 0);
        s.kernel_h = s.stride_w = s.dilation_w = 1, s.kernel_w = 1 + draw.below(draw.below(2) ? 8 : 64);
        s.pad_left = draw.below((int)s.kernel_w), s.pad_right = draw.below(3), s.pad_top = s.pad_bottom = draw.below(4) == 0;
        s.height = 1 + draw.below(3), s.width = (draw.below(2) ? s.kernel_w : 1) + draw.below(draw.below(4) ? 150 : 1100);
        if (s.width + s.pad_left + s.pad_right < s.kernel_w) s.width = s.kernel_w;
    }
    if (!strcmp(row.family, "grouped")) { /* groups, filters and images of one or several blocks, channels in whole units or not */
        const int of_group_channels[] = {1, 2, 3, 4, 6, 8, 12, 16, 20, 32, 33, 64},
                  of_group_filters[] = {2, 4, 5, 8, 9, 16, 24, 32, 33, 70};
        s.groups = draw.below(3) ? 1 + draw.below(12) : 1;
        s.channels = s.groups * draw.of(of_group_channels), s.filters = s.groups * draw.of(of_group_filters);
        if (draw.below(3) == 0) s.groups = 4 + draw.below(20), s.channels = s.filters = s.groups * 4 * (1 << draw.below(3));
        const bool few = !strcmp(row.form, "single") && draw.below(2); /* several taps of a row in a unit, filling it or not */
        if (few) s.groups = 1, s.channels = 1 + draw.below(4), s.filters = draw.of(of_group_filters), s.kernel_w = 1 + draw.below(7);
        if (few || draw.below(3) == 0)
            s.height = s.kernel_h * s.dilation_h + draw.below(40), s.width = s.kernel_w * s.dilation_w + draw.below(150);
    }
    if (strstr(row.name,
               "_taps")) { /* rows of outputs shorter and longer than a tile; channels of one or several k-iterations, whole or not */
        const int vector = 16 / bytes_of[s.dtype];
        s.kernel_w = 3, s.stride_w = s.dilation_w = 1, s.width = 3 + draw.below(draw.below(2) ? 20 : 300);
        if (draw.below(4))
            s.groups = 1, s.channels = vector * (1 + draw.below(18)),
            s.filters = vector * (1 + draw.below(20)) + (draw.below(4) ? 0 : draw.below(8));
    }
    if (!strcmp(row.family, "pointwise")) { /* tiles and groups of filters, filled or not; up to several blocks of k */
        const int vector = 16 / bytes_of[s.dtype], vectors[] = {1, 2, 3, 4, 5, 8, 9, 12, 16};
        s.groups = 1, s.kernel_h = s.kernel_w = s.stride_h = s.stride_w = 1, s.pad_top = s.pad_left = s.pad_bottom = s.pad_right = 0;
        s.channels = draw.of(vectors) * vector, s.filters = draw.of(vectors) * vector, s.height = 1 + draw.below(40),
        s.width = 1 + draw.below(40);
    }
}

/* A problem near the edges of the row's tiles; sometimes one of the kinds for which there are special kernels. */
pysim_conv shape_of(Draw &draw, const pysim_cuda_conv_info &row) {
    const int bf = row.block_filters ? row.block_filters : 8, bw = row.block_windows ? row.block_windows : 32,
              bk = row.block_k ? row.block_k : 8;
    const int kernels[] = {1, 1, 2, 3, 3, 3, 4, 5, 7}, strides[] = {1, 1, 1, 2, 3}, dilations[] = {1, 1, 1, 2, 3},
              groups[] = {1, 1, 1, 2, 3};
    const int pads[] = {0, 0, 1, 1, 2, 3}, batches[] = {1, 1, 2, 3, 5};
    pysim_conv s = {};
    s.dtype = row.dtype;
    s.batch = draw.of(batches), s.groups = draw.of(groups);
    s.kernel_h = draw.of(kernels), s.kernel_w = draw.below(3) ? s.kernel_h : draw.of(kernels);
    s.stride_h = draw.of(strides), s.stride_w = draw.below(3) ? s.stride_h : draw.of(strides);
    s.dilation_h = draw.of(dilations), s.dilation_w = draw.below(3) ? s.dilation_h : draw.of(dilations);
    s.pad_top = draw.of(pads), s.pad_left = draw.of(pads), s.pad_bottom = draw.of(pads), s.pad_right = draw.of(pads);
    const int kind = draw.below(6);
    if (kind <= 1) s.kernel_h = s.kernel_w = 3;
    if (kind == 2) s.kernel_h = s.kernel_w = 1;
    if (kind <= 2) s.stride_h = s.stride_w = s.dilation_h = s.dilation_w = 1;
    if (kind == 2 && draw.below(2)) s.pad_top = s.pad_left = s.pad_bottom = s.pad_right = 0;
    if (kind == 3) s.groups = 1 + draw.below(9);
    const int taps = (int)(row.outputs > 1 ? 1 : s.kernel_h * s.kernel_w), steps[] = {1, 1, 2, 3, row.stages + 1};
    const int filters[] = {1, 3, bf - 1, bf, bf + 1, 2 * bf + 1};
    int channels = (draw.of(steps) * bk + draw.below(3) - 1 + taps - 1) / taps;
    const bool by_vectors = !strcmp(row.family, "wgmma") || !strcmp(row.family, "mma");
    if (by_vectors && kind != 3) { /* channels in whole vectors and whole blocks, in whole vectors only, or any */
        const int vector = 16 / bytes_of[s.dtype], rounding = draw.below(3);
        if (rounding == 0) channels = bk * (1 + draw.below(3));
        if (rounding == 1) channels = (channels + vector - 1) / vector * vector;
    }
    s.channels = s.groups * (channels < 1 ? 1 : kind == 3 ? 1 : channels);
    if (!strcmp(row.form, "folded")) { /* few channels, strided windows */
        s.groups = 1, s.channels = 1 + draw.below(6), s.dilation_h = s.dilation_w = 1;
        s.kernel_h = 2 + draw.below(6), s.kernel_w = 2 + draw.below(6), s.stride_h = 2 + draw.below(3), s.stride_w = 1 + draw.below(4);
    }
    const int of_group = draw.of(filters);
    s.filters = s.groups * (of_group < 1 ? 1 : kind == 3 ? 1 + draw.below(2) : of_group);
    /* that many windows in an image, roughly square or in one row */
    const int windows[] = {1, bw / 4, bw - 1, bw, bw + 1, 2 * bw + 3};
    int want = draw.of(windows) * row.outputs * row.outputs / (draw.below(2) ? (int)s.batch : 1), high = 1;
    if (want < 1) want = 1;
    if (draw.below(4))
        while (high * high < want) high++;
    const int wide = (want + high - 1) / high;
    const auto size = [](int64_t outputs, int64_t kernel, int64_t stride, int64_t dilation, int64_t before, int64_t after, int more) {
        const int64_t n = (outputs - 1) * stride + dilation * (kernel - 1) + 1 - before - after + more;
        return n < 1 ? (int64_t)1 : n;
    };
    s.height = size(high, s.kernel_h, s.stride_h, s.dilation_h, s.pad_top, s.pad_bottom, draw.below((int)s.stride_h));
    s.width = size(wide, s.kernel_w, s.stride_w, s.dilation_w, s.pad_left, s.pad_right, draw.below((int)s.stride_w));
    if (by_vectors && kind == 2 && s.groups == 1 && draw.below(2)) s.width = (s.width + 7) / 8 * 8; /* planes are multiples of 16 bytes */
    if (row.takes_volumes && draw.below(3) == 0) {
        const int deep[] = {1, 2, 3, 3, 5}, slice_pads[] = {0, 0, 1, 1, 2};
        s.kernel_d = draw.of(deep), s.stride_d = draw.of(strides), s.dilation_d = draw.of(dilations);
        s.pad_front = draw.of(slice_pads), s.pad_back = draw.of(slice_pads);
        s.depth = size(1 + draw.below(4), s.kernel_d, s.stride_d, s.dilation_d, s.pad_front, s.pad_back, draw.below((int)s.stride_d));
    }
    specialize(s, draw, row);
    return s;
}

double multiply_adds(const pysim_conv &s) {
    const double windows = (double)outputs(s.height, s.pad_top, s.pad_bottom, s.kernel_h, s.stride_h, s.dilation_h) *
                           outputs(s.width, s.pad_left, s.pad_right, s.kernel_w, s.stride_w, s.dilation_w);
    return windows * (double)(out_slices(s) * s.batch * s.filters * (s.channels / s.groups) * taps(s));
}

void check_row(int index, int wanted, unsigned seed, double most) {
    pysim_cuda_conv_info row;
    pysim_cuda_conv_at(index, &row);
    const long long prologues_before = prologue_cases;
    for (int layout = 0; layout < 2; layout++) {
        int accepted = 0;
        const auto lacks_prologue = [&] { return row.takes_prologue && prologue_cases == prologues_before; };
        for (int i = 0; (accepted < wanted || lacks_prologue()) && i < 40 * wanted; i++) {
            Draw draw = {mix(seed + (unsigned)index * 7919u + (unsigned)layout * 104729u) + (unsigned)i * 1013u};
            Case c = {};
            c.c = {shape_of(draw, row), layout, PYSIM_F32};
            pysim_conv &s = c.c.shape;
            if (row.takes_prologue && draw.below(2)) {
                c.has_prologue = true, c.scales = draw.below(4) > 0, c.by_image = c.scales && draw.below(2), c.shifts = draw.below(2),
                c.relu = draw.below(2) || !(c.scales || c.shifts);
                if (!strcmp(row.family, "implicit")) /* which supports prologues only for these */
                    s.kernel_h = s.kernel_w = s.stride_h = s.stride_w = s.dilation_h = s.dilation_w = 1,
                    s.pad_top = s.pad_left = s.pad_bottom = s.pad_right = 0;
            }
            if (multiply_adds(s) > most) continue;
            if (s.dtype == PYSIM_F64) c.c.out_dtype = PYSIM_F64;
            if ((s.dtype == PYSIM_F16 || s.dtype == PYSIM_BF16) && draw.below(2)) c.c.out_dtype = s.dtype;
            c.exact = draw.below(2) && row.outputs < 4;
            c.offset_in = draw.below(4) == 0 ? draw.below(3) : 0, c.offset_weights = draw.below(4) == 0 ? draw.below(3) : 0;
            c.offset_out = draw.below(4) == 0;
            c.s = {index, PYSIM_DATA_PARALLEL, 1, draw.below(2), 1 + draw.below(3), -1};
            if (row.makes_product) {
                pysim_cuda_gemm_info gemm;
                do {
                    c.s.gemm = draw.below(pysim_cuda_gemm_count());
                    pysim_cuda_gemm_at(c.s.gemm, &gemm);
                } while (pysim_cuda_available(PYSIM_GEMM, c.s.gemm) != PYSIM_OK || !may_make(gemm, s.dtype));
            }
            if (row.block_k) {
                c.s.decomposition = draw.below(3);
                if (c.s.decomposition) c.s.splits = 2 + draw.below(4);
                else if (!strcmp(row.form, "staged")) c.s.splits = 1 + draw.below(3); /* chunks */
            }
            c.e = {1, 0, nullptr, 0, -1, 1, nullptr, 0, nullptr};
            c.poisoned = accepted & 1;
            if (draw.below(2))
                c.e.alpha = draw.below(8) ? -2 : 0, c.e.beta = draw.below(2), c.bias = draw.below(2), c.scale = draw.below(2),
                c.e.activation = activation_of((unsigned)draw.below(1 << 16), c.exact);
            int64_t bytes = 0;
            const pysim_cuda_problem problem = pysim::problem_of(c.c);
            pysim_status status = pysim_cuda_workspace_bytes(&problem, &c.s, nullptr, nullptr, &bytes);
            if (status != PYSIM_OK && c.s.splits > 1) { /* k, or the windows, may be too short to be split */
                c.s.decomposition = PYSIM_DATA_PARALLEL, c.s.splits = 1;
                status = pysim_cuda_workspace_bytes(&problem, &c.s, nullptr, nullptr, &bytes);
            }
            if (status == PYSIM_UNSUPPORTED) {
                refusals++;
                continue;
            }
            if (status == PYSIM_OK) run(c, row, draw.state, bytes);
            else report(c, row, pysim_cuda_last_error());
            accepted++;
        }
        if (!accepted) printf("     %s takes no %s\n", row.name, layout ? "nhwc" : "nchw");
    }
}
}

int main(int argc, char **argv) {
    setbuf(stdout, nullptr);
    std::string only;
    int wanted = 60;
    unsigned seed = 1;
    double most = INFINITY;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--cases") && i + 1 < argc && atoi(argv[i + 1]) > 0) wanted = atoi(argv[++i]);
        else if (!strcmp(argv[i], "--seed") && i + 1 < argc) seed = (unsigned)atoi(argv[++i]);
        else if (!strcmp(argv[i], "--most") && i + 1 < argc && atof(argv[i + 1]) > 0) most = 1e6 * atof(argv[++i]);
        else if (!strcmp(argv[i], "--kernel") && i + 1 < argc) only = argv[++i];
        else return printf("usage: check_conv [--kernel SUBSTRING] [--cases N] [--seed N] [--most N]\n"), 2;
    }
    if (!found_device()) return 77;
    int rows = 0;
    for (int i = 0; i < pysim_cuda_conv_count(); i++) {
        pysim_cuda_conv_info row;
        pysim_cuda_conv_at(i, &row);
        if (!only.empty() && !strstr(row.name, only.c_str())) continue;
        if (pysim_cuda_available(PYSIM_CONV, i) != PYSIM_OK) {
            printf("skip %s\n", pysim_cuda_last_error());
            continue;
        }
        const long long before = failures, ran = cases, prologues_before = prologue_cases;
        check_row(i, wanted, seed, most);
        if (cases == ran) printf("%s accepted no problem\n", row.name), failures++;
        if (row.takes_prologue && prologue_cases == prologues_before) printf("%s took no prologue\n", row.name), failures++;
        rows++;
        printf("%s %s\n", failures == before ? "ok  " : "FAIL", row.name);
    }
    printf("%lld cases on %d kernels, %lld refused, %lld failures\n", cases, rows, refusals, failures);
    return failures || !rows ? 1 : 0;
}
