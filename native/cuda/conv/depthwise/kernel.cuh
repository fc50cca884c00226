/* SPDX-License-Identifier: Apache-2.0
 * Convolution of few channels a group. A thread computes some rows of 1, 2 or 4 columns of outputs, of one filter (depthwise) or of FILTERS (grouped).
 * Accumulators are f32 for every operand type T.
 *
 * A thread reads (ROWS - 1) stride_h + kernel_h rows of (columns - 1) stride_w + kernel_w elements, each once: 36 for 16 outputs of a 3 x 3 kernel of
 * stride 1, where one thread per output reads 144; several filters share these loads. Kernels of 3 x 3, 5 x 5 and 7 x 7 with strides 1 and 2 keep a row
 * and the weights in registers (kept_kernel). In dilated convolutions a thread's outputs are a dilation apart, so that they share rows of the
 * input (apart_kernel); outputs that share few rows have a thread each. For other kernels the columns that a thread needs move through registers
 * while it iterates over the taps of a row (passing_kernel). */
#ifndef PYSIM_CUDA_CONV_DEPTHWISE_CUH
#define PYSIM_CUDA_CONV_DEPTHWISE_CUH
#include <cstring>
#include <type_traits>

#include "conv/untiled.cuh"

namespace pysim {
namespace {

enum { ROWS = limit::DEPTHWISE_ROWS, FILTERS = limit::DEPTHWISE_FILTERS };
enum { MOST_LANES = limit::PAIRED_LANES }; /* pairs of channels of a block of paired_kernel */

/* body(epilogue) for the type of the outputs: f32, or T. */
template <class T, class Body> __device__ inline void with_output(const Problem &p, Body body) {
    if constexpr (!std::is_same_v<T, float>)
        if (p.c_dtype != PYSIM_F32) return body(Epilogue<float, T>(p));
    body(Epilogue<float, float>(p));
}

/* The epilogue of a thread: rows of N outputs each, up to the first i for which there(i) is false. put(i, results) stores row i, old(i, e) is an
 * output's previous value, and line_of(e) the index of its bias and scale. The loop over rows is rolled, so that the epilogue's code exists once;
 * since registers cannot be indexed, the accumulators shift down by one row per iteration. */
template <class Out, int HIGH, int N, class There, class Old, class LineOf, class Put>
__device__ inline void store_rows(const Epilogue<float, Out> &epilogue, float (&sum)[HIGH][N], There there, Old old, LineOf line_of,
                                  Put put) {
    Out results[N];
    if (epilogue.plain) {
#pragma unroll
        for (int i = 0; i < HIGH; i++) {
            if (!there(i)) break;
#pragma unroll
            for (int e = 0; e < N; e++) results[e] = Out(sum[i][e]);
            put(i, results);
        }
        return;
    }
#pragma unroll 1
    for (int i = 0; i < HIGH && there(i); i++) {
        if (epilogue.beta != 0)
#pragma unroll
            for (int e = 0; e < N; e++) results[e] = old(i, e);
        epilogue.finish(sum[0], results, line_of);
        put(i, results);
#pragma unroll
        for (int next = 1; next < HIGH; next++)
#pragma unroll
            for (int e = 0; e < N; e++) sum[next - 1][e] = sum[next][e];
    }
}

/* How a thread's rows of outputs lie: one after another; `apart` from each other; one after another in a slice of a volume. */
enum Lie { TOGETHER, APART, IN_SLICE };

/* A thread's outputs: HIGH rows of the filters `first` to `end`. */
template <class T, int OF, int HIGH = ROWS, Lie LIE = TOGETHER> struct Outputs {
    Place at;
    int group, first, end;
    Strides out;
    int apart, top;   /* APART: distance of rows, and the first row; IN_SLICE: the first row in its slice */
    int slice, above; /* IN_SLICE: its number, and the rows of outputs before it */
    __device__ Outputs(const Conv &c, const Places &places, int index)
        : at(place_of(c, places, index)), out(c.nhwc, c.groups * c.filters, c.out_h, c.out_w) {
        int in_group;
        group = places.group.of(at.f, in_group);
        first = group * c.filters + in_group * OF, end = min(first + OF, (group + 1) * c.filters);
        if constexpr (LIE == APART) {
            apart = (int)places.apart.divisor;
            const int before = places.apart.of(at.p, top);
            top += before * HIGH * apart;
        }
        if constexpr (LIE == IN_SLICE) slice = places.apart.of(at.p, top), top *= HIGH, above = slice * c.slice_rows;
    }
    __device__ int row_of(int i) const { return LIE == IN_SLICE ? above + top + i : LIE == APART ? top + i * apart : at.p * HIGH + i; }
    __device__ int row_end(const Conv &c) const { return LIE == IN_SLICE ? above + c.slice_rows : c.out_h; }
    /* Stores sum[f][i][q], PIECE columns at a time. */
    template <int WIDE, int PIECE> __device__ void store(const Conv &c, float (&sum)[OF][HIGH][WIDE]) const {
        launch_dependents();
        with_output<T>(c.product, [&](const auto &epilogue) {
            using Out = std::decay_t<decltype(*epilogue.c)>;
            Out *const image = (Out *)c.out + at.n * out.image + first * out.channel + at.q * WIDE * out.column;
            const auto inside = [&](int q) { return PIECE > 1 || at.q * WIDE + q < c.out_w; };
#pragma unroll
            for (int f = 0; f < OF; f++) {
                if (OF > 1 && first + f >= end) break;
                Out *const channel = image + f * out.channel;
                store_rows(
                    epilogue, sum[f], [&](int i) { return row_of(i) < row_end(c); },
                    [&](int i, int q) { return inside(q) ? channel[row_of(i) * out.row + q * out.column] : Out(0.f); },
                    [&](int) { return first + f; },
                    [&](int i, const Out(&results)[WIDE]) {
#pragma unroll
                        for (int q = 0; q < WIDE; q += PIECE) {
                            if (!inside(q)) break;
                            Pack<Out, PIECE> piece;
#pragma unroll
                            for (int j = 0; j < PIECE; j++) piece.value[j] = results[q + j];
                            *(Pack<Out, PIECE> *)(channel + row_of(i) * out.row + q * out.column) = piece;
                        }
                    });
            }
        });
    }
};

/* KERNEL x KERNEL taps with stride STRIDE; the weights and one row of the input are in registers. A thread has WIDE columns, loaded and stored PIECE
 * at a time. A piece of several columns is aligned, and lies entirely inside or entirely outside the tensor. OF: filters of a thread; if 1, a group
 * has one channel. */
template <class T, int KERNEL, int STRIDE, int WIDE, int PIECE, int OF>
__global__ void __launch_bounds__(THREADS) kept_kernel(const __grid_constant__ Conv c, const __grid_constant__ Places places) {
    enum { LINE = (WIDE - 1) * STRIDE + KERNEL, FIRST = KERNEL / 2, LAST = FIRST + (LINE - FIRST) / PIECE * PIECE }; /* pieces' columns */
    wait_for_previous();
    const int index = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (index >= places.count) return;
    const Outputs<T, OF> of(c, places, index);
    const Strides in(c.nhwc, c.groups * c.channels, c.height, c.width), taps(c.nhwc, c.channels, KERNEL, KERNEL);
    const int h0 = of.at.p * ROWS * STRIDE - c.pad_top, w0 = of.at.q * WIDE * STRIDE - c.pad_left, column = in.column;
    const T *image = (const T *)c.in + of.at.n * in.image + of.group * c.channels * in.channel + w0 * column;
    const T *weights = (const T *)c.weights + of.first * taps.image;
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
                by[f][i / KERNEL][i % KERNEL] = OF == 1                 ? float(weights[i])
                                                : of.first + f < of.end ? float(weights[f * taps.image + i * taps.column])
                                                                        : 0.f;
#pragma unroll
        for (int h = 0; h < (ROWS - 1) * STRIDE + KERNEL; h++) {
            const unsigned there = (unsigned)(h0 + h) < (unsigned)c.height ? inside : 0;
            const T *const from = image + (h0 + h) * in.row;
            float line[LINE];
#pragma unroll
            for (int s = 0; s < LINE; s++)
                if (PIECE == 1 || s < FIRST || s >= LAST) line[s] = there >> s & 1 ? float(from[s * column]) : 0.f;
                else if ((s - FIRST) % PIECE == 0) {
                    const Pack<T, PIECE> piece = there >> s & 1 ? *(const Pack<T, PIECE> *)(from + s) : Pack<T, PIECE>{};
#pragma unroll
                    for (int i = 0; i < PIECE; i++) line[s + i] = float(piece.value[i]);
                }
#pragma unroll
            for (int f = 0; f < OF; f++)
#pragma unroll
                for (int i = 0; i < ROWS; i++)
                    if (h - i * STRIDE >= 0 && h - i * STRIDE < KERNEL)
#pragma unroll
                        for (int q = 0; q < WIDE; q++)
#pragma unroll
                            for (int s = 0; s < KERNEL; s++)
                                sum[f][i][q] = fmaf(line[q * STRIDE + s], by[f][h - i * STRIDE][s], sum[f][i][q]);
        }
    }
    of.template store<WIDE, PIECE>(c, sum);
}

/* A row of a thread's pixels, two channels of each; zeros outside of the image. `at`: its first pixel. */
template <class T, int LINE>
__device__ __forceinline__ void read_pairs(const Conv &c, const T *at, int h, unsigned inside, Pack<T, 2> (&line)[LINE]) {
    const unsigned there = (unsigned)h < (unsigned)c.height ? inside : 0;
    const T *from = at + (int64_t)h * c.width * c.groups;
#pragma unroll
    for (int s = 0; s < LINE; s++, from += c.groups) {
        typename Word<2 * sizeof(T)>::type word = {};
        if (there >> s & 1) word = *(const typename Word<2 * sizeof(T)>::type *)from;
        memcpy(&line[s], &word, sizeof word);
    }
}

/* Stores sum[i][2 q + f], row `top` + i of column q of a thread and of two channels, up to the row `end`. */
template <class T, int WIDE>
__device__ void store_pairs(const Conv &c, const Place &at, int channel, float (&sum)[ROWS][2 * WIDE], int top, int end) {
    launch_dependents();
    with_output<T>(c.product, [&](const auto &epilogue) {
        using Out = std::decay_t<decltype(*epilogue.c)>;
        Out *const to = (Out *)c.out + ((int64_t)at.n * c.out_h * c.out_w + at.q * WIDE) * c.groups + channel;
        const auto place = [&](int i, int q) { return to + ((top + i) * c.out_w + q) * c.groups; };
        const auto inside = [&](int q) { return at.q * WIDE + q < c.out_w; };
        store_rows(
            epilogue, sum, [&](int i) { return top + i < end; },
            [&](int i, int e) { return inside(e / 2) ? place(i, e / 2)[e % 2] : Out(0.f); }, [&](int e) { return channel + e % 2; },
            [&](int i, const Out(&results)[2 * WIDE]) {
#pragma unroll
                for (int q = 0; q < WIDE; q++) {
                    if (!inside(q)) break;
                    *(Pack<Out, 2> *)place(i, q) = {{results[2 * q], results[2 * q + 1]}};
                }
            });
    });
}

/* kept_kernel for one filter a group, NHWC and 16-bit types: a thread has two neighbouring channels and loads and stores both as one word. A block has
 * places.lanes pairs of channels, whose weights it keeps in shared memory as f32, in THREADS / places.lanes places; `places.filters` counts blocks
 * along channels, which run side by side. A row's loads are in flight while the row before is multiplied, those of one column all together. Rows
 * outside the image are skipped.
 *
 * From registers weights take 98 loads of 2 bytes in 32 lines each, and a conversion for each use: 16 x 14x14 x 384, 7x7 of f16, took 16 us (H200). */
template <class T, int KERNEL, int STRIDE, int WIDE>
__global__ void __launch_bounds__(THREADS, (int)limit::PAIRED_BLOCKS - (WIDE == 1))
    paired_kernel(const __grid_constant__ Conv c, const __grid_constant__ Places places) {
    enum { LINE = (WIDE - 1) * STRIDE + KERNEL, TAPS = KERNEL * KERNEL, HIGH = (ROWS - 1) * STRIDE + KERNEL };
    /* rows whose loads are in flight, as many as 80 registers hold; rows that are held */
    enum { AHEAD = WIDE == 1 ? HIGH : (KERNEL == 3 ? 4 - STRIDE : 1), HELD = AHEAD < HIGH ? AHEAD + 1 : HIGH };
    enum { PITCH = 2 * MOST_LANES + 2 /* stores of neighbouring taps lie in different banks */ };
    alignas(8) __shared__ float weights[TAPS * PITCH];
    wait_for_previous();
    int chunk, index = places.filters.of((int)blockIdx.x, chunk);
    const int first = 2 * chunk * places.lanes, slot = (int)threadIdx.x & (places.lanes - 1), channel = first + 2 * slot;
    Place at;
    index = index * (THREADS / places.lanes) + (int)threadIdx.x / places.lanes;
    index = places.wide.of(index, at.q), at.n = places.high.of(index, at.p);
    const bool exists = channel < c.groups && at.n < c.batch;
    const int h0 = at.p * ROWS * STRIDE - c.pad_top, w0 = at.q * WIDE * STRIDE - c.pad_left;
    const T *const image = (const T *)c.in + ((int64_t)at.n * c.height * c.width + w0) * c.groups + channel;
    unsigned inside = 0; /* bit s: column s */
#pragma unroll
    for (int s = 0; s < LINE; s++) inside |= (unsigned)(exists && (unsigned)(w0 + s) < (unsigned)c.width) << s;
    Pack<T, 2> lines[HELD][LINE];
#pragma unroll
    for (int h = 0; h < AHEAD; h++) read_pairs(c, image, h0 + h, inside, lines[h]);
    for (int i = (int)threadIdx.x; i < 2 * places.lanes * TAPS; i += THREADS) {
        const int of = i / TAPS, tap = i % TAPS;
        weights[tap * PITCH + of] = first + of < c.groups ? float(((const T *)c.weights)[first * TAPS + i]) : 0.f;
    }
    __syncthreads();
    if (!exists) return;
    float sum[ROWS][2 * WIDE] = {};
#pragma unroll
    for (int h = 0; h < HIGH; h++) {
        const auto &line = lines[h % HELD];
        if (h + AHEAD < HIGH) read_pairs(c, image, h0 + h + AHEAD, inside, lines[(h + AHEAD) % HELD]);
        if ((unsigned)(h0 + h) < (unsigned)c.height)
#pragma unroll
            for (int i = 0; i < ROWS; i++)
                if (h - i * STRIDE >= 0 && h - i * STRIDE < KERNEL)
#pragma unroll
                    for (int s = 0; s < KERNEL; s++) {
                        const auto by = *(const Pack<float, 2> *)(weights + ((h - i * STRIDE) * KERNEL + s) * PITCH + 2 * slot);
#pragma unroll
                        for (int q = 0; q < WIDE; q++)
#pragma unroll
                            for (int f = 0; f < 2; f++)
                                sum[i][2 * q + f] = fmaf(float(line[q * STRIDE + s].value[f]), by.value[f], sum[i][2 * q + f]);
                    }
    }
    store_pairs<T, WIDE>(c, at, channel, sum, at.p * ROWS, c.out_h);
}

/* KERNEL x KERNEL taps, dilated. A thread has one column and HIGH rows of outputs, spaced so that each needs only one row of the input more than the
 * previous one. With HIGH = 1 any stride. */
template <class T, int KERNEL, int HIGH>
__global__ void __launch_bounds__(THREADS) apart_kernel(const __grid_constant__ Conv c, const __grid_constant__ Places places) {
    wait_for_previous();
    const int index = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (index >= places.count) return;
    const Outputs<T, 1, HIGH, APART> of(c, places, index);
    const Strides in(c.nhwc, c.groups, c.height, c.width);
    const int h0 = of.row_of(0) * c.stride_h - c.pad_top, w0 = of.at.q * c.stride_w - c.pad_left;
    const T *const image = (const T *)c.in + of.at.n * in.image + of.group * in.channel + w0 * in.column, *const weights =
                                                                                                              (const T *)c.weights +
                                                                                                              of.first * KERNEL * KERNEL;
    float by[KERNEL][KERNEL], sum[1][HIGH][1] = {};
    unsigned inside = 0; /* bit s: tap s of a row */
#pragma unroll
    for (int s = 0; s < KERNEL; s++) inside |= (unsigned)((unsigned)(w0 + s * c.dilation_w) < (unsigned)c.width) << s;
#pragma unroll
    for (int i = 0; i < KERNEL * KERNEL; i++) by[i / KERNEL][i % KERNEL] = float(weights[i]);
#pragma unroll
    for (int h = 0; h < HIGH - 1 + KERNEL; h++) {
        const int row = h0 + h * c.dilation_h;
        const unsigned there = (unsigned)row < (unsigned)c.height ? inside : 0;
        const T *const from = image + row * in.row;
        float line[KERNEL];
#pragma unroll
        for (int s = 0; s < KERNEL; s++) line[s] = there >> s & 1 ? float(from[s * c.dilation_w * in.column]) : 0.f;
#pragma unroll
        for (int i = 0; i < HIGH; i++)
            if (h >= i && h - i < KERNEL)
#pragma unroll
                for (int s = 0; s < KERNEL; s++) sum[0][i][0] = fmaf(line[s], by[h - i][s], sum[0][i][0]);
    }
    of.template store<1, 1>(c, sum);
}

/* Any kernel, vertical stride and dilation. WIDE > 1: horizontal stride STRIDE, no horizontal dilation. */
template <class T, int STRIDE, int WIDE, int OF>
__global__ void __launch_bounds__(THREADS) passing_kernel(const __grid_constant__ Conv c, const __grid_constant__ Places places) {
    enum { LINE = (WIDE - 1) * STRIDE + 1 };
    wait_for_previous();
    const int index = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (index >= places.count) return;
    const Outputs<T, OF> of(c, places, index);
    const Strides in(c.nhwc, c.groups * c.channels, c.height, c.width), taps(c.nhwc, c.channels, c.kernel_h, c.kernel_w);
    const int h0 = of.at.p * ROWS * c.stride_h - c.pad_top, w0 = of.at.q * WIDE * c.stride_w - c.pad_left,
              apart = WIDE == 1 ? c.dilation_w : 1;
    const T *image = (const T *)c.in + of.at.n * in.image + of.group * c.channels * in.channel;
    const T *weights = (const T *)c.weights + of.first * taps.image;
    float sum[OF][ROWS][WIDE] = {};
    const int last = of.end - of.first - 1, channels = OF > 1 ? c.channels : 1,
              high = (ROWS - 1) * c.stride_h + (c.kernel_h - 1) * c.dilation_h + 1;
    for (int channel = 0; channel < channels; channel++, image += in.channel, weights += taps.channel)
        for (int h = 0; h < high; h++) {
            if ((unsigned)(h0 + h) >= (unsigned)c.height) continue; /* padding adds nothing */
            int tap[ROWS];                                          /* offset of the weights by which output i multiplies this row, or -1 */
            bool any = false;
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                const int below = h - i * c.stride_h, r = below / c.dilation_h;
                const bool reads = below >= 0 && r < c.kernel_h && r * c.dilation_h == below;
                tap[i] = reads ? r * taps.row : -1, any |= reads;
            }
            if (!any) continue;
            const T *const from = image + (h0 + h) * in.row;
            const auto at = [&](int w) { return (unsigned)w < (unsigned)c.width ? float(from[w * in.column]) : 0.f; };
            float line[LINE];
#pragma unroll
            for (int s = 1; s < LINE; s++) line[s] = at(w0 + s - 1);
            for (int s = 0; s < c.kernel_w; s++) {
#pragma unroll
                for (int i = 1; i < LINE; i++) line[i - 1] = line[i];
                line[LINE - 1] = at(w0 + s * apart + LINE - 1);
                float by[OF][ROWS]; /* loaded unconditionally, so that all loads are in flight together */
#pragma unroll
                for (int f = 0; f < OF; f++)
#pragma unroll
                    for (int i = 0; i < ROWS; i++) by[f][i] = float(weights[min(f, last) * taps.image + max(tap[i], 0) + s * taps.column]);
#pragma unroll
                for (int f = 0; f < OF; f++)
#pragma unroll
                    for (int i = 0; i < ROWS; i++)
                        if (tap[i] >= 0)
#pragma unroll
                            for (int q = 0; q < WIDE; q++) sum[f][i][q] = fmaf(line[q * STRIDE], by[f][i], sum[f][i][q]);
            }
        }
    of.template store<WIDE, 1>(c, sum);
}
}
}
#endif
