/* SPDX-License-Identifier: Apache-2.0
 * Convolution of few channels a group: a thread ROWS rows of 1, 2 or 4 columns of outputs, of one filter (depthwise) or of FILTERS (grouped).
 *
 * A thread reads (ROWS - 1) stride_h + kernel_h rows of (columns - 1) stride_w + kernel_w elements, each once: 36 for 16 outputs of a 3 x 3
 * kernel of stride 1, where a thread an output reads 144; of several filters, as often for all of them together. Kernels of 3 x 3, 5 x 5 and 7 x 7
 * with strides of 1 and 2 keep a row and the weights in registers (kept_kernel). Of others as many columns as outputs need pass through registers while
 * the taps of a row are gone through (passing_kernel); where columns are dilated or further apart, one output's. */
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

enum { ROWS = 4, FILTERS = 4 };

/* Where a thread's outputs lie, of the filters `first` to `end` of all; and what it reads for them. */
template <int OF> struct Outputs {
    Place at;
    int group, first, end;
    Strides out;
    __device__ Outputs(const Conv &c, const Places &places, int index)
        : at(place_of(c, places, index)), out(c.nhwc, c.groups * c.filters, c.out_h, c.out_w) {
        int in_group;
        group = places.group.of(at.f, in_group);
        first = group * c.filters + in_group * OF, end = min(first + OF, (group + 1) * c.filters);
    }
    /* sum[f][i][q]; PIECE columns are stored at once. */
    template <int WIDE, int PIECE> __device__ void store(const Conv &c, const float (&sum)[OF][ROWS][WIDE]) const {
        const Epilogue<float, float> epilogue(c.product);
        float *const image = (float *)c.out + at.n * out.image + first * out.channel + at.q * WIDE * out.column;
#pragma unroll
        for (int f = 0; f < OF; f++) {
            if (OF > 1 && first + f >= end) break;
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                if (at.p * ROWS + i >= c.out_h) break;
                float *const row = image + f * out.channel + (at.p * ROWS + i) * out.row;
#pragma unroll
                for (int q = 0; q < WIDE; q += PIECE) {
                    if (PIECE == 1 && at.q * WIDE + q >= c.out_w) break;
                    if (epilogue.plain) { /* has code of its own, which is short */
                        Pack<float, PIECE> piece;
#pragma unroll
                        for (int j = 0; j < PIECE; j++) piece.value[j] = sum[f][i][q + j];
                        *(Pack<float, PIECE> *)(row + q * out.column) = piece;
                    } else
#pragma unroll
                        for (int j = 0; j < PIECE; j++) put(epilogue, row + (q + j) * out.column, sum[f][i][q + j], first + f);
                }
            }
        }
    }
};

/* KERNEL x KERNEL and STRIDE in registers, WIDE columns, of which PIECE are loaded and stored at once: more than one lie in the input or the output
 * all or none, at a multiple of their size. OF filters, of any channels a group where it is more than one, else of one. */
template <int KERNEL, int STRIDE, int WIDE, int PIECE, int OF>
__global__ void __launch_bounds__(THREADS) kept_kernel(const __grid_constant__ Conv c, const __grid_constant__ Places places) {
    enum { LINE = (WIDE - 1) * STRIDE + KERNEL, FIRST = KERNEL / 2, LAST = FIRST + (LINE - FIRST) / PIECE * PIECE }; /* of a row's pieces */
    const int index = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (index >= places.count) return;
    const Outputs<OF> of(c, places, index);
    const Strides in(c.nhwc, c.groups * c.channels, c.height, c.width), taps(c.nhwc, c.channels, KERNEL, KERNEL);
    const int h0 = of.at.p * ROWS * STRIDE - c.pad_top, w0 = of.at.q * WIDE * STRIDE - c.pad_left, column = in.column;
    const float *image = (const float *)c.in + of.at.n * in.image + of.group * c.channels * in.channel + w0 * column;
    const float *weights = (const float *)c.weights + of.first * taps.image;
    float by[OF][KERNEL][KERNEL], sum[OF][ROWS][WIDE] = {};
    unsigned inside = 0; /* bit s: column s */
#pragma unroll
    for (int s = 0; s < LINE; s++) inside |= (unsigned)((unsigned)(w0 + s) < (unsigned)c.width) << s;
    const int channels = OF > 1 ? c.channels : 1;
    for (int channel = 0; channel < channels; channel++, image += in.channel, weights += taps.channel) {
#pragma unroll
        for (int f = 0; f < OF; f++)
#pragma unroll
            for (int i = 0; i < KERNEL * KERNEL; i++)
                by[f][i / KERNEL][i % KERNEL] = OF == 1 ? weights[i] : of.first + f < of.end ? weights[f * taps.image + i * taps.column] : 0.f;
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
            for (int f = 0; f < OF; f++)
#pragma unroll
                for (int i = 0; i < ROWS; i++)
                    if (h - i * STRIDE >= 0 && h - i * STRIDE < KERNEL)
#pragma unroll
                        for (int q = 0; q < WIDE; q++)
#pragma unroll
                            for (int s = 0; s < KERNEL; s++) sum[f][i][q] += line[q * STRIDE + s] * by[f][h - i * STRIDE][s];
        }
    }
    of.template store<WIDE, PIECE>(c, sum);
}

/* Any kernel, vertical stride and dilation. More than one column: of STRIDE, not dilated. */
template <int STRIDE, int WIDE, int OF>
__global__ void __launch_bounds__(THREADS) passing_kernel(const __grid_constant__ Conv c, const __grid_constant__ Places places) {
    enum { LINE = (WIDE - 1) * STRIDE + 1 };
    const int index = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (index >= places.count) return;
    const Outputs<OF> of(c, places, index);
    const Strides in(c.nhwc, c.groups * c.channels, c.height, c.width), taps(c.nhwc, c.channels, c.kernel_h, c.kernel_w);
    const int h0 = of.at.p * ROWS * c.stride_h - c.pad_top, w0 = of.at.q * WIDE * c.stride_w - c.pad_left, apart = WIDE == 1 ? c.dilation_w : 1;
    const float *image = (const float *)c.in + of.at.n * in.image + of.group * c.channels * in.channel;
    const float *weights = (const float *)c.weights + of.first * taps.image;
    float sum[OF][ROWS][WIDE] = {};
    const int last = of.end - of.first - 1, channels = OF > 1 ? c.channels : 1, high = (ROWS - 1) * c.stride_h + (c.kernel_h - 1) * c.dilation_h + 1;
    for (int channel = 0; channel < channels; channel++, image += in.channel, weights += taps.channel)
        for (int h = 0; h < high; h++) {
            if ((unsigned)(h0 + h) >= (unsigned)c.height) continue; /* adds nothing */
            int tap[ROWS]; /* where the row's weights lie that output i multiplies it by, or -1 */
            bool any = false;
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                const int below = h - i * c.stride_h, r = below / c.dilation_h;
                const bool meets = below >= 0 && r < c.kernel_h && r * c.dilation_h == below;
                tap[i] = meets ? r * taps.row : -1, any |= meets;
            }
            if (!any) continue;
            const float *const from = image + (h0 + h) * in.row;
            const auto at = [&](int w) { return (unsigned)w < (unsigned)c.width ? from[w * in.column] : 0.f; };
            float line[LINE];
#pragma unroll
            for (int s = 1; s < LINE; s++) line[s] = at(w0 + s - 1);
            for (int s = 0; s < c.kernel_w; s++) {
#pragma unroll
                for (int i = 1; i < LINE; i++) line[i - 1] = line[i];
                line[LINE - 1] = at(w0 + s * apart + LINE - 1);
                float by[OF][ROWS]; /* all are on their way together, those that nothing is multiplied by, too */
#pragma unroll
                for (int f = 0; f < OF; f++)
#pragma unroll
                    for (int i = 0; i < ROWS; i++) by[f][i] = weights[min(f, last) * taps.image + max(tap[i], 0) + s * taps.column];
#pragma unroll
                for (int f = 0; f < OF; f++)
#pragma unroll
                    for (int i = 0; i < ROWS; i++)
                        if (tap[i] >= 0)
#pragma unroll
                            for (int q = 0; q < WIDE; q++) sum[f][i][q] += line[q * STRIDE] * by[f][i];
            }
        }
    of.template store<WIDE, 1>(c, sum);
}

/* A thread's columns: as many as lie in pieces under NCHW, where lanes would else store words apart; and one where there were too few threads to give
 * each multiprocessor a block. */
template <int OF> struct By {
    const Conv &c;
    int sms;
    bool enough(int columns) const { return Places(c, ROWS, columns, OF).count / THREADS >= sms; }
    template <int KERNEL, int STRIDE> Chosen kept() const {
        const auto pieces = [&](int size) {
            const int bytes = size * (int)sizeof(float);
            return c.pad_left == KERNEL / 2 && c.width % size == 0 && c.out_w % size == 0 && (uintptr_t)c.in % bytes == 0 && (uintptr_t)c.out % bytes == 0;
        };
        if (c.nhwc && enough(4)) return {kept_kernel<KERNEL, STRIDE, 4, 1, OF>, ROWS, 4, OF};
        if (!c.nhwc && pieces(4) && enough(4)) return {kept_kernel<KERNEL, STRIDE, 4, 4, OF>, ROWS, 4, OF};
        if (!c.nhwc && pieces(2) && enough(2)) return {kept_kernel<KERNEL, STRIDE, 2, 2, OF>, ROWS, 2, OF};
        return {kept_kernel<KERNEL, STRIDE, 1, 1, OF>, ROWS, 1, OF};
    }
    Chosen passing() const {
        if (c.dilation_w == 1 && enough(4) && c.stride_w == 1) return {passing_kernel<1, 4, OF>, ROWS, 4, OF};
        if (c.dilation_w == 1 && enough(4) && c.stride_w == 2) return {passing_kernel<2, 4, OF>, ROWS, 4, OF};
        return {passing_kernel<1, 1, OF>, ROWS, 1, OF};
    }
};

/* The edge of the kernel where that is kept in registers, else 0. */
int kept_edge(const Conv &c) {
    const bool square = c.kernel_h == c.kernel_w && c.stride_h == c.stride_w && c.stride_h <= 2 && c.dilation_h == 1 && c.dilation_w == 1;
    return square && (c.kernel_h == 3 || c.kernel_h == 5 || c.kernel_h == 7) ? c.kernel_h : 0;
}

Chosen depthwise_of(const Conv &c, int sms) {
    const By<1> by = {c, sms};
    const int edge = kept_edge(c);
    if (edge == 3) return c.stride_h == 1 ? by.kept<3, 1>() : by.kept<3, 2>();
    if (edge == 5) return c.stride_h == 1 ? by.kept<5, 1>() : by.kept<5, 2>();
    if (edge == 7) return c.stride_h == 1 ? by.kept<7, 1>() : by.kept<7, 2>();
    return by.passing();
}

/* Of larger kernels four filters' weights are too many for registers. */
Chosen grouped_of(const Conv &c, int sms) {
    const By<FILTERS> by = {c, sms};
    if (kept_edge(c) == 3) return c.stride_h == 1 ? by.kept<3, 1>() : by.kept<3, 2>();
    return by.passing();
}

const char *not_depthwise(const Conv &c) { return c.channels == 1 ? nullptr : "it takes one channel a group"; }
const char *not_grouped(const Conv &c) {
    static_assert(most::GROUPED_CHANNELS == 16, "what the sentence says");
    return c.filters > 1 && c.channels <= most::GROUPED_CHANNELS ? nullptr : "it takes up to 16 channels and several filters a group";
}

}

Rows<ConvRow> depthwise_rows() {
    return table_of<ConvRow>(rows::lines, [](auto line, auto add) {
        if constexpr (rows::lines[line].variant == "grouped") add(row_of(rows::lines[line], {not_grouped, nullptr, launch_row<grouped_of>, attributes<grouped_of>}));
        else add(row_of(rows::lines[line], {not_depthwise, nullptr, launch_row<depthwise_of>, attributes<depthwise_of>}));
    });
}
}
