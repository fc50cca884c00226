/* SPDX-License-Identifier: Apache-2.0
 * How the operands of the convolutions on wgmma come to lie as TMA takes them (kernel.cuh).
 *
 * Under NHWC with whole 16 bytes of channels they lie so already (in groups: with whole blocks of channels, or the last block would bring
 * the next group's), under NCHW those of most pointwise convolutions (planes). What does not, channels_last.cu copies into `own`: input, then filters.
 *
 * Channels that fill no block waste most of each tap's step. A copy then has its rows padded, so that a row of taps is one run of
 * kernel_w C elements: pixels are described as having all these as channels, each reaching into the next ones, and the kernel has one
 * column. Filters that are taken in halves are split from where they lie, or from their copy, into `own` behind it. 3 channels of f16, padded to 8, with 7 x 7 taps are 7 steps of 56 (of 64) instead of 49 of 8. */
#include <climits>

#include "abi/arguments.h"
#include "conv/wgmma/wgmma.h"
#include "core/decomposition.cuh"
#include "gemm/gemm.h"

namespace pysim {
namespace hopper {

/* Planes begin at multiples of 16 bytes, as do rows of filters, and at most a third of their windows are none. Halves are made of pixels. */
bool planes(const Conv &c) {
    const int64_t plane = (int64_t)c.height * c.width, element = dtypes[c.dtype].bytes;
    const bool pointwise = c.kernel_h * c.kernel_w == 1 && c.stride_h == 1 && c.stride_w == 1 && !(c.pad_top | c.pad_left | c.pad_bottom | c.pad_right);
    return !c.nhwc && pointwise && c.groups == 1 && !c.halves && plane * element % 16 == 0 && c.channels * element % 16 == 0 && 2 * (int64_t)windows_of_plane(c) <= 3 * plane;
}
int windows_of_plane(const Conv &c) { return (int)round_up((int64_t)c.height * c.width, 128 / dtypes[c.dtype].bytes); }

namespace {

/* A group's channels in copies. */
int padded_channels(const Conv &c) {
    const int vector = 16 / dtypes[c.dtype].bytes;
    return ceil_div(c.channels, vector) * vector;
}

/* Whether the input is copied, and whether so that its rows of taps are channels. */
bool copied(const Conv &c) {
    if (planes(c)) return false;
    return !c.nhwc || padded_channels(c) != c.channels || (c.groups > 1 && c.channels * dtypes[c.dtype].bytes % 128);
}
bool rows_of_taps(const Conv &c) {
    const int64_t block = 128 / dtypes[c.dtype].bytes, channels = padded_channels(c), row = c.kernel_w * channels;
    const int64_t rows = c.batch * (int64_t)c.groups * c.height, wide = (int64_t)c.width + c.pad_left + c.pad_right;
    const bool fewer = (row + block - 1) / block < c.kernel_w * ((channels + block - 1) / block);
    return copied(c) && c.dilation_w == 1 && fewer && rows * (wide * channels / (block / 8)) <= INT_MAX; /* vectors of the copy */
}
}

int64_t steps_of(const Conv &c) {
    const int64_t block = 128 / dtypes[c.dtype].bytes, channels = padded_channels(c);
    const int64_t of_row = rows_of_taps(c) ? (c.kernel_w * channels + block - 1) / block : c.kernel_w * ((channels + block - 1) / block);
    return c.kernel_h * of_row;
}

namespace {
/* Bytes of the copies in `own`; 0: the operand stays where it is. halves: of the filters, both. */
struct Own { int64_t input, filters, halves; };
Own own_of(const Conv &c) {
    const int64_t element = dtypes[c.dtype].bytes, channels = padded_channels(c), taps = c.kernel_h * c.kernel_w;
    const int64_t wide = c.width + (rows_of_taps(c) ? c.pad_left + c.pad_right : 0), pixels = c.batch * (int64_t)c.height * wide;
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
    const int64_t high = (c.kernel_h - 1) * (int64_t)c.dilation_h, wide = (c.kernel_w - 1) * (int64_t)c.dilation_w;
    static_assert(most::TMA_STRIDE == 8 && most::TMA_SPAN == 256 && most::TMA_CORNER == 128, "what the sentences say");
    if (c.stride_h > most::TMA_STRIDE || c.stride_w > most::TMA_STRIDE) return "it takes strides of up to 8";
    if (high >= most::TMA_SPAN || wide >= most::TMA_SPAN) return "it takes kernels that span up to 256 rows and columns";
    if (c.pad_top > most::TMA_CORNER || c.pad_left > most::TMA_CORNER) return "it takes padding of up to 128";
    for (const int64_t after : {c.pad_bottom - high, c.pad_right - wide})
        if (after < -most::TMA_CORNER || after >= most::TMA_CORNER) return "its last window begins up to 128 rows and columns before the input's end, or 127 after";
    if (c.halves && (int64_t)c.groups * c.filters * c.kernel_h * c.kernel_w > most::RELAYOUT_ROWS) return "it splits up to 4194240 taps of all filters";
    return nullptr;
}

pysim_status prepare(const Conv &c, Windows &to, cudaStream_t stream) {
    const Own own = own_of(c);
    const int channels = padded_channels(c), taps = c.kernel_h * c.kernel_w, element = dtypes[c.dtype].bytes;
    int before = 0, wide = c.width;
    static_cast<Conv &>(to) = c;
    to.channels = channels, to.pitch = to.depth = own.input ? channels : c.groups * channels;
    to.images = own.input ? c.groups * c.batch : c.batch;
    to.group_images = own.input ? c.batch : 0, to.group_channels = own.input ? 0 : channels;
    if (rows_of_taps(c)) {
        before = c.pad_left, wide += c.pad_left + c.pad_right;
        to.width = wide - c.kernel_w + 1, to.pad_left = to.pad_right = 0;
        to.channels = to.depth = c.kernel_w * channels, to.kernel_w = 1;
    }
    to.row = wide * to.pitch;
    void *const input = own.input ? c.own : nullptr, *const filters = own.filters ? (char *)c.own + own.input : nullptr;
    if (input) to.in = input;
    if (filters) to.weights = filters;
    pysim_status status = PYSIM_OK;
    const struct { const char *name; const void *data; } operands[] = {{"input", to.in}, {"filters", to.weights}};
    for (const auto &operand : operands)
        if ((uintptr_t)operand.data % 16 && status == PYSIM_OK)
            status = fail(PYSIM_UNSUPPORTED, "a convolution on wgmma copies by 16 bytes; its %s, at %p, must begin at a multiple of them",
                          operand.name, operand.data);
    if (status != PYSIM_OK) return status;
    const bool last = c.nhwc;
    if (input || filters) status = check(channels_last({input, c.in, c.batch, c.groups, c.height, c.width, before, wide, c.channels, channels, last},
                               {filters, c.weights, c.groups * c.filters, 1, 1, taps, 0, taps, c.channels, channels, last}, element, stream),
                 "channels of input and filters");
    if (status != PYSIM_OK || !c.halves) return status;
    void *const halves = (char *)c.own + own.input + own.filters;
    status = check(split(halves, channels, to.weights, channels, (int64_t)c.groups * c.filters * taps, channels, false, false, stream), "halves of filters");
    to.weights = halves;
    return status;
}
}
}
