/* SPDX-License-Identifier: Apache-2.0
 * Layouts of the operands of wgmma convolutions for TMA (kernel.cuh).
 *
 * Under NHWC with channels of whole 16 bytes operands are used in place (with groups: if channels are whole blocks, otherwise the last block would load
 * the next group's channels); under NCHW most pointwise convolutions are (planes). channels_last.cu copies everything else into `own`: input, then
 * filters.
 *
 * Few channels waste most of each tap's k-iteration. A copy then pads its rows so that a row of taps is one run of kernel_w C elements: a pixel is described
 * as having all these as channels, overlapping the next pixels, and the kernel has one column. With 3 channels of f16, padded to 8, 7 x 7 taps are 7
 * k-iterations of 56 (of 64) instead of 49 of 8. If the stride exceeds one, a copy may fold (space-to-depth): with stride 2, 2 x 2 pixels of 3 channels
 * become one of 12, padded to 16, and 7 x 7 taps become 4 x 4: 4 k-iterations of 64.
 *
 * A pointwise convolution of larger stride uses few of the pixels: its copy has only those, so its windows are contiguous.
 *
 * Filters in halves are split from their place, or from their copy, into `own` behind it. */
#include <climits>

#include "abi/arguments.h"
#include "conv/wgmma/wgmma.h"
#include "core/decomposition.cuh"
#include "gemm/gemm.h"

namespace pysim {

pysim_status aligned(const char *on, const void *input, const void *filters) {
    const struct {
        const char *name;
        const void *data;
    } operands[] = {{"input", input}, {"filters", filters}};
    for (const auto &operand : operands)
        if ((uintptr_t)operand.data % 16)
            return fail(PYSIM_UNSUPPORTED, "a convolution on %s copies by 16 bytes; its %s, at %p, must begin at a multiple of them", on,
                        operand.name, operand.data);
    return PYSIM_OK;
}

namespace hopper {

/* Planes begin at multiples of 16 bytes, as do rows of filters, and at most a third of their windows are none. Halves are made of pixels. */
bool planes(const Conv &c) {
    const int64_t plane = (int64_t)c.height * c.width, element = dtypes[c.dtype].bytes;
    return !c.nhwc && c.pointwise() && c.groups == 1 && !c.halves && plane * element % 16 == 0 && c.channels * element % 16 == 0 &&
           2 * (int64_t)windows_of_plane(c) <= 3 * plane;
}
int windows_of_plane(const Conv &c) { return (int)round_up((int64_t)c.height * c.width, 128 / dtypes[c.dtype].bytes); }

namespace {

/* A group's channels in copies. */
int padded_channels(const Conv &c) {
    const int vector = 16 / dtypes[c.dtype].bytes;
    return ceil_div(c.channels, vector) * vector;
}

/* Whether the input is copied, without the pixels that no window takes, and so that its rows of taps are channels. */
bool copied(const Conv &c) {
    if (planes(c)) return false;
    return !c.nhwc || padded_channels(c) != c.channels || (c.groups > 1 && c.channels * dtypes[c.dtype].bytes % c.step_bytes);
}
bool sparse(const Conv &c) { return copied(c) && c.one_pixel() && !c.pointwise() && !c.volumes; }
bool rows_of_taps(const Conv &c) {
    const int64_t block = c.step_bytes / dtypes[c.dtype].bytes, channels = padded_channels(c), row = c.kernel_w * channels;
    const int64_t rows = c.batch * (int64_t)c.groups * c.rows(), wide = (int64_t)c.width + c.pad_left + c.pad_right;
    const bool fewer = (row + block - 1) / block < c.kernel_w * ((channels + block - 1) / block);
    /* vectors of the copy */
    return copied(c) && c.dilation_w == 1 && fewer && rows * (wide * channels * dtypes[c.dtype].bytes / 16) <= INT_MAX;
}
}

namespace {
int64_t steps_unfolded(const Conv &c) {
    const int64_t block = c.step_bytes / dtypes[c.dtype].bytes, channels = padded_channels(c);
    if (c.row_taps) return (int64_t)c.kernel_d * c.kernel_h * ((channels + block - 1) / block);
    const int64_t of_row = rows_of_taps(c) ? (c.kernel_w * channels + block - 1) / block : c.kernel_w * ((channels + block - 1) / block);
    return c.kernel_d * c.kernel_h * of_row;
}

/* A copy whose squares of stride_h x stride_w pixels are the channels of one, so that windows are next to one another: its kernel and its rows in a
 * slice, and the places of each. Rows of taps are channels, too. */
struct Folded {
    int64_t channels, kernel_h, kernel_w, rows, wide, steps;
    explicit Folded(const Conv &c) {
        const int64_t element = dtypes[c.dtype].bytes, square = (int64_t)c.stride_h * c.stride_w * c.channels;
        channels = round_up(square, 16 / element), kernel_h = ceil_div(c.kernel_h, c.stride_h), kernel_w = ceil_div(c.kernel_w, c.stride_w);
        rows = c.slice_rows + kernel_h - 1, wide = c.out_w + kernel_w - 1;
        steps = c.kernel_d * kernel_h * ((kernel_w * channels * element + c.step_bytes - 1) / c.step_bytes);
    }
};
/* Where that takes fewer steps, and there are no taps more than the kernel has: by those, zeros, pixels would be multiplied that a window does not
 * have, of which an infinite one makes NaN. Rows that fold (folds) may. */
bool folded(const Conv &c) {
    if (!c.folds && (c.kernel_h % c.stride_h || c.kernel_w % c.stride_w)) return false;
    if (!copied(c) || c.groups > 1 || c.stride_h * c.stride_w == 1 || c.dilation_h > 1 || c.dilation_w > 1) return false;
    const Folded of(c);
    const int64_t vectors = of.channels * dtypes[c.dtype].bytes / 16;
    return of.steps < steps_unfolded(c) && (int64_t)c.batch * c.depth * of.rows <= INT_MAX / (of.wide * vectors) &&
           (int64_t)c.filters * c.kernel_d * of.kernel_h <= INT_MAX / (of.kernel_w * vectors);
}
}

int64_t steps_of(const Conv &c) { return folded(c) ? Folded(c).steps : steps_unfolded(c); }

namespace {
/* Bytes of the copies in `own`; 0: the operand stays where it is. halves: of the filters, both. */
struct Own {
    int64_t input, filters, halves;
};
Own own_of(const Conv &c) {
    if (folded(c)) {
        const Folded of(c);
        const int64_t place = of.channels * dtypes[c.dtype].bytes, filters = c.filters * c.kernel_d * of.kernel_h * of.kernel_w * place;
        return {round_up((int64_t)c.batch * c.depth * of.rows * of.wide * place, ALIGN), round_up(filters, ALIGN),
                c.halves ? round_up(2 * filters, ALIGN) : 0};
    }
    const int64_t element = dtypes[c.dtype].bytes, channels = padded_channels(c), taps = c.taps();
    const int64_t wide = c.width + (rows_of_taps(c) ? c.pad_left + c.pad_right : 0),
                  pixels = c.batch * (sparse(c) ? (int64_t)c.out_h * c.out_w : (int64_t)c.rows() * wide);
    const bool filters_stay = channels == c.channels && (c.nhwc || taps == 1);
    const int64_t filters = (int64_t)c.groups * c.filters * taps * channels * element;
    return {copied(c) ? round_up(pixels * c.groups * channels * element, ALIGN) : 0, filters_stay ? 0 : round_up(filters, ALIGN),
            c.halves ? round_up(2 * filters, ALIGN) : 0};
}

}

pysim_status own_bytes(const Conv &c, int64_t *bytes) {
    const Own own = own_of(c);
    *bytes = own.input + own.filters + own.halves;
    return PYSIM_OK;
}

/* TMA's limits (CUDA driver API, cuTensorMapEncodeIm2col; PTX ISA 8.0, "im2col mode"). */
const char *refuses(const Conv &c) {
    const struct Axis {
        int stride, before;
        int64_t span, after; /* from the first tap to the last; from the input's end to the last window's beginning */
        Axis(int kernel, int stride, int dilation, int before, int end)
            : stride(stride), before(before), span((kernel - 1) * (int64_t)dilation), after(end - span) {}
    } axes[] = {{c.kernel_d, c.stride_d, c.dilation_d, c.pad_front, c.pad_back},
                {c.kernel_h, c.stride_h, c.dilation_h, c.pad_top, c.pad_bottom},
                {c.row_taps ? 1 : c.kernel_w, c.stride_w, c.dilation_w, c.pad_left, c.pad_right}};
    const auto any = [&](auto is) { return (c.volumes && is(axes[0])) || is(axes[1]) || is(axes[2]); };
    using namespace limit;
    static_assert(TMA_STRIDE == 8 && TMA_SPAN == 256 && TMA_CORNER == 128, "what the sentences say");
    static_assert(TMA_VOLUME_SPAN == 32 && TMA_VOLUME_CORNER == 16, "what the sentences say");
    const int64_t most = c.volumes ? TMA_VOLUME_SPAN : TMA_SPAN, corner = c.volumes ? TMA_VOLUME_CORNER : TMA_CORNER;
    if (c.prologue.any() && !copied(c)) return "it takes a prologue only of an input that it copies";
    if (c.row_taps) {
        if (!c.nhwc || copied(c)) return "it takes channels last, of each group whole k-iterations or all 16 bytes";
        if (c.kernel_w != c.row_taps || c.stride_w > 1 || c.dilation_w > 1) return "it takes rows of 3 taps without stride and dilation";
        if ((double)c.groups * c.batch * c.out_h * (c.out_w + c.row_taps - 1) > limit::CONV_TENSOR)
            return "its windows, two more in a row, would be more than 1,073,741,824";
    }
    if (c.folds && !folded(c)) return "it takes a stride above 1 and few channels, which it copies";
    if (any([](const Axis &axis) { return axis.stride > TMA_STRIDE; })) return "it takes strides of up to 8";
    if (any([&](const Axis &axis) { return axis.span >= most; }))
        return c.volumes ? "it takes kernels that span up to 32 slices, rows and columns"
                         : "it takes kernels that span up to 256 rows and columns";
    if (any([&](const Axis &axis) { return axis.before > corner; }))
        return c.volumes ? "it takes padding of up to 16" : "it takes padding of up to 128";
    if (any([&](const Axis &axis) { return axis.after < -corner || axis.after >= corner; }))
        return c.volumes ? "its last window must begin at most 16 slices, rows and columns before the input's end, or 15 after"
                         : "its last window must begin at most 128 rows and columns before the input's end, or 127 after";
    if (c.halves && (int64_t)c.groups * c.filters * c.taps() > LAYOUT_CONVERSION_ROWS)
        return "it splits up to 4194240 taps of all filters into halves";
    return nullptr;
}

namespace {
/* The kernels' description of the operands, and the copies that make them. */
struct Operands {
    ChannelsLast input, filters;
};
Operands as_folded(const Conv &c, Windows &to) {
    const Folded of(c);
    const int channels = (int)of.channels, rows = (int)of.rows, wide = (int)of.wide, high = (int)of.kernel_h, across = (int)of.kernel_w;
    to.height = rows, to.width = c.out_w, to.kernel_h = high, to.kernel_w = 1, to.stride_h = to.stride_w = 1;
    to.pad_top = to.pad_left = to.pad_bottom = to.pad_right = 0;
    to.pitch = channels, to.row = wide * channels, to.channels = to.run = across * channels, to.images = c.batch;
    return {{nullptr,
             c.in,
             c.batch * c.depth,
             1,
             c.height,
             c.width,
             c.pad_left,
             wide,
             c.channels,
             channels,
             c.nhwc != 0,
             {},
             {c.stride_h, c.stride_w, rows, c.pad_top},
             c.depth},
            {nullptr,
             c.weights,
             c.filters * c.kernel_d,
             1,
             c.kernel_h,
             c.kernel_w,
             0,
             across,
             c.channels,
             channels,
             c.nhwc != 0,
             {},
             {c.stride_h, c.stride_w, high, 0},
             c.kernel_d}};
}
Operands as_pixels(const Conv &c, Windows &to, bool copy) {
    const int channels = padded_channels(c), taps = c.taps();
    int before = 0, wide = c.width;
    to.channels = channels, to.pitch = to.run = copy ? channels : c.groups * channels;
    to.images = copy ? c.groups * c.batch : c.batch;
    to.group_images = copy ? c.batch : 0, to.group_channels = copy ? 0 : channels;
    if (rows_of_taps(c)) {
        before = c.pad_left, wide += c.pad_left + c.pad_right;
        to.width = wide - c.kernel_w + 1, to.pad_left = to.pad_right = 0;
        to.channels = to.run = c.kernel_w * channels, to.kernel_w = 1;
    }
    Every every = {};
    if (c.row_taps) to.kernel_w = 1;
    int high = c.rows();
    if (sparse(c)) {
        every = {c.stride_h, c.stride_w, c.width, c.height * c.width};
        to.height = high = c.out_h, to.width = wide = c.out_w, to.stride_h = to.stride_w = 1;
    }
    to.row = wide * to.pitch;
    return {{nullptr, c.in, c.batch, c.groups, high, every.plane ? wide : c.width, before, wide, c.channels, channels, c.nhwc != 0, every},
            {nullptr, c.weights, c.groups * c.filters, 1, 1, taps, 0, taps, c.channels, channels, c.nhwc != 0}};
}
}

pysim_status prepare(const Conv &c, Windows &to, cudaStream_t stream) {
    const Own own = own_of(c);
    static_cast<Conv &>(to) = c;
    to.group_images = to.group_channels = 0;
    to.pitch = 0;
    if (planes(c)) return aligned("wgmma", c.in, c.weights);
    Operands copies = folded(c) ? as_folded(c, to) : as_pixels(c, to, own.input != 0);
    if (own.input) to.in = copies.input.to = c.own, copies.input.prologue = c.prologue;
    if (own.filters) to.weights = copies.filters.to = (char *)c.own + own.input;
    pysim_status status = aligned("wgmma", to.in, to.weights);
    if (status != PYSIM_OK) return status;
    if (own.input || own.filters)
        status = check(channels_last(copies.input, copies.filters, dtypes[c.dtype].bytes, stream), "channels of input and filters");
    if (status != PYSIM_OK || !c.halves) return status;
    const int channels = copies.filters.padded, taps = to.channels / channels * to.taps();
    void *const halves = (char *)c.own + own.input + own.filters;
    const LayoutConversion copy = {halves, channels, to.weights, channels, (int64_t)c.groups * c.filters * taps, channels, false};
    status = check(convert_layouts({}, copy, sizeof(float), PartsOf::HALVES, nullptr, 0, nullptr, stream), "halves of filters");
    to.weights = halves;
    return status;
}
}
}
