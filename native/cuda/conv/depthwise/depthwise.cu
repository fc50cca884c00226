/* SPDX-License-Identifier: Apache-2.0
 * Convolution of one channel a group: a thread ROWS outputs of 1, 2 or 4 columns.
 *
 * A thread reads (ROWS - 1) stride_h + kernel_h rows of (columns - 1) stride_w + kernel_w elements, each once: 36 for 16 outputs of a 3 x 3
 * kernel of stride 1, where a thread an output reads 144. Kernels of 3 x 3 and 5 x 5 with strides of 1 and 2 keep a row in registers; others
 * read for each output, and have one column. */
#include "conv/untiled.cuh"

namespace pysim {
namespace rows {
namespace {
using Columns = ConvColumns;
#include "conv/depthwise/rows.inc"
};
}
}

namespace {

enum { ROWS = 4 };

/* KERNEL x KERNEL and STRIDE in registers, WIDE columns, of which PIECE are loaded and stored at once: more than one lie in the input or the output
 * all or none, at a multiple of their size. */
template <int KERNEL, int STRIDE, int WIDE, int PIECE>
__global__ void __launch_bounds__(THREADS) depthwise_kernel(const __grid_constant__ Conv c, const __grid_constant__ Places places) {
    enum { LINE = (WIDE - 1) * STRIDE + KERNEL, FIRST = KERNEL / 2, LAST = FIRST + (LINE - FIRST) / PIECE * PIECE }; /* of a row's pieces */
    const int index = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (index >= places.count) return;
    const Place at = place_of(c, places, index);
    const Strides in(c.nhwc, c.groups, c.height, c.width), out(c.nhwc, c.groups * c.filters, c.out_h, c.out_w);
    const int h0 = at.p * ROWS * STRIDE - c.pad_top, w0 = at.q * WIDE * STRIDE - c.pad_left, column = in.column;
    const float *const image = (const float *)c.in + at.n * in.image + at.f / c.filters * in.channel + w0 * column;
    const float *const weights = (const float *)c.weights + at.f * (KERNEL * KERNEL);
    float by[KERNEL][KERNEL], sum[ROWS][WIDE] = {};
#pragma unroll
    for (int i = 0; i < KERNEL * KERNEL; i++) by[i / KERNEL][i % KERNEL] = weights[i];
    unsigned inside = 0; /* bit s: column s */
#pragma unroll
    for (int s = 0; s < LINE; s++) inside |= (unsigned)((unsigned)(w0 + s) < (unsigned)c.width) << s;
#pragma unroll
    for (int h = 0; h < (ROWS - 1) * STRIDE + KERNEL; h++) {
        const unsigned there = (unsigned)(h0 + h) < (unsigned)c.height ? inside : 0;
        const float *const from = image + (h0 + h) * in.row;
        float line[LINE];
#pragma unroll
        for (int s = 0; s < LINE; s++)
            if (PIECE == 1 || s < FIRST || s >= LAST) line[s] = there >> s & 1 ? from[s * column] : 0.f;
            else if ((s - FIRST) % PIECE == 0) {
                const Pack<float, PIECE> piece = there >> s & 1 ? *(const Pack<float, PIECE> *)(from + s) : Pack<float, PIECE>{};
#pragma unroll
                for (int i = 0; i < PIECE; i++) line[s + i] = piece.value[i];
            }
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            if (h - i * STRIDE >= 0 && h - i * STRIDE < KERNEL)
#pragma unroll
                for (int q = 0; q < WIDE; q++)
#pragma unroll
                    for (int s = 0; s < KERNEL; s++) sum[i][q] += line[q * STRIDE + s] * by[h - i * STRIDE][s];
    }
    const Epilogue<float, float> epilogue(c.product);
    float *const to = (float *)c.out + at.n * out.image + at.f * out.channel + at.q * WIDE * out.column;
    const auto row = [&](int i) { return to + (at.p * ROWS + i) * out.row; };
    if (epilogue.plain) { /* has code of its own, which is short */
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            if (at.p * ROWS + i >= c.out_h) continue;
#pragma unroll
            for (int q = 0; q < WIDE; q += PIECE) {
                Pack<float, PIECE> piece;
#pragma unroll
                for (int j = 0; j < PIECE; j++) piece.value[j] = sum[i][q + j];
                if (PIECE > 1 || at.q * WIDE + q < c.out_w) *(Pack<float, PIECE> *)(row(i) + q * out.column) = piece;
            }
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int q = 0; q < WIDE; q++)
            if (at.p * ROWS + i < c.out_h && at.q * WIDE + q < c.out_w) put(c, epilogue, row(i) + q * out.column, sum[i][q], at.f);
}

/* Any kernel, stride and dilation; one column. */
__global__ void __launch_bounds__(THREADS) depthwise_any(const __grid_constant__ Conv c, const __grid_constant__ Places places) {
    const int index = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (index >= places.count) return;
    const Place at = place_of(c, places, index);
    const Strides in(c.nhwc, c.groups, c.height, c.width), out(c.nhwc, c.groups * c.filters, c.out_h, c.out_w);
    const float *const image = (const float *)c.in + at.n * in.image + at.f / c.filters * in.channel;
    const float *const weights = (const float *)c.weights + at.f * c.kernel_h * c.kernel_w;
    const int h0 = at.p * ROWS * c.stride_h - c.pad_top, w0 = at.q * c.stride_w - c.pad_left;
    float sum[ROWS] = {};
    for (int r = 0; r < c.kernel_h; r++)
        for (int s = 0; s < c.kernel_w; s++) {
            const float by = weights[r * c.kernel_w + s];
            const int w = w0 + s * c.dilation_w;
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                const int h = h0 + i * c.stride_h + r * c.dilation_h;
                sum[i] += ((unsigned)h < (unsigned)c.height && (unsigned)w < (unsigned)c.width ? image[h * in.row + w * in.column] : 0.f) * by;
            }
        }
    const Epilogue<float, float> epilogue(c.product);
    float *const to = (float *)c.out + at.n * out.image + at.f * out.channel + at.q * out.column;
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        if (at.p * ROWS + i < c.out_h) put(c, epilogue, to + (at.p * ROWS + i) * out.row, sum[i], at.f);
}

/* A thread's columns: as many as lie in pieces under NCHW, where lanes would else store words apart; and one where there were too few threads to give
 * each multiprocessor a block. */
template <int KERNEL, int STRIDE> Chosen depthwise_by(const Conv &c, int sms) {
    const auto enough = [&](int columns) { return Places(c, ROWS, columns).count / THREADS >= sms; };
    const auto pieces = [&](int size) {
        const int bytes = size * (int)sizeof(float);
        return c.pad_left == KERNEL / 2 && c.width % size == 0 && c.out_w % size == 0 && (uintptr_t)c.in % bytes == 0 && (uintptr_t)c.out % bytes == 0;
    };
    if (c.nhwc && enough(4)) return {depthwise_kernel<KERNEL, STRIDE, 4, 1>, ROWS, 4};
    if (!c.nhwc && pieces(4) && enough(4)) return {depthwise_kernel<KERNEL, STRIDE, 4, 4>, ROWS, 4};
    if (!c.nhwc && pieces(2) && enough(2)) return {depthwise_kernel<KERNEL, STRIDE, 2, 2>, ROWS, 2};
    return {depthwise_kernel<KERNEL, STRIDE, 1, 1>, ROWS, 1};
}

Chosen depthwise_of(const Conv &c, int sms) {
    const bool square = c.kernel_h == c.kernel_w && c.stride_h == c.stride_w && c.dilation_h == 1 && c.dilation_w == 1;
    if (square && c.kernel_h == 3 && c.stride_h == 1) return depthwise_by<3, 1>(c, sms);
    if (square && c.kernel_h == 3 && c.stride_h == 2) return depthwise_by<3, 2>(c, sms);
    if (square && c.kernel_h == 5 && c.stride_h == 1) return depthwise_by<5, 1>(c, sms);
    if (square && c.kernel_h == 5 && c.stride_h == 2) return depthwise_by<5, 2>(c, sms);
    return {depthwise_any, ROWS, 1};
}

const char *not_depthwise(const Conv &c) { return c.channels == 1 ? nullptr : "it takes one channel a group"; }

}

Rows<ConvRow> depthwise_rows() {
    return table_of<ConvRow>(rows::lines, [](auto line, auto add) {
        add(row_of(rows::lines[line], {not_depthwise, nullptr, launch_row<depthwise_of>, attributes<depthwise_of>}));
    });
}
}
