/* SPDX-License-Identifier: Apache-2.0
 * Convolution without tiles: `direct`, a thread an output, and `depthwise`, one channel a group, a thread ROWS outputs of 1, 2 or 4 columns.
 *
 * Lanes go along what is contiguous in the output: columns under NCHW, filters under NHWC. A depthwise thread reads (ROWS - 1) stride_h + kernel_h
 * rows of (columns - 1) stride_w + kernel_w elements, each once: 36 for 16 outputs of a 3 x 3 kernel of stride 1, where a thread an output reads
 * 144. Kernels of 3 x 3 and 5 x 5 with strides of 1 and 2 keep a row in registers; others read for each output, and have one column. */
#include "conv.h"
#include "epilogue.cuh"
#include "launch.h"
#include "status.h"

namespace pysim {
namespace {

enum { THREADS = 256, ROWS = 4 };

/* Places in the output, in the order in which they lie: `high` x `wide` in an image. There are fewer than 2^31, as there are of outputs. */
struct Places {
    int count;
    Divisor wide, high, filters;
    Places(const Conv &c, int rows, int columns)
        : wide((unsigned)((c.out_w + columns - 1) / columns)), high((unsigned)((c.out_h + rows - 1) / rows)), filters((unsigned)(c.groups * c.filters)) {
        count = c.batch * (int)(wide.divisor * high.divisor * filters.divisor);
    }
};
struct Place { int n, f, p, q; };
__device__ inline Place place_of(const Conv &c, const Places &places, int index) {
    Place at;
    if (c.nhwc) index = places.filters.of(index, at.f);
    index = places.wide.of(index, at.q), index = places.high.of(index, at.p);
    if (!c.nhwc) index = places.filters.of(index, at.f);
    at.n = index;
    return at;
}

/* Elements between neighbours of a tensor of `channels` x height x width, which has fewer than 2^31. */
struct Strides {
    int image, channel, row, column;
    __device__ Strides(bool nhwc, int channels, int height, int width)
        : image(channels * height * width), channel(nhwc ? 1 : height * width), row(nhwc ? channels * width : width), column(nhwc ? channels : 1) {}
};

__device__ inline void put(const Conv &c, const Epilogue<float, float> &epilogue, float *to, float sum, int f) {
    *to = epilogue.finish(sum, epilogue.beta != 0 ? *to : 0.f, f);
}

__global__ void __launch_bounds__(THREADS) direct_kernel(const __grid_constant__ Conv c, const __grid_constant__ Places places) {
    const int index = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (index >= places.count) return;
    const Place at = place_of(c, places, index);
    const Strides in(c.nhwc, c.groups * c.channels, c.height, c.width), taps(c.nhwc, c.channels, c.kernel_h, c.kernel_w);
    const int h0 = at.p * c.stride_h - c.pad_top, w0 = at.q * c.stride_w - c.pad_left;
    const float *image = (const float *)c.in + at.n * in.image + at.f / c.filters * c.channels * in.channel;
    const float *weights = (const float *)c.weights + at.f * taps.image;
    float sum = 0;
    for (int r = 0; r < c.kernel_h; r++) {
        const int h = h0 + r * c.dilation_h;
        if ((unsigned)h >= (unsigned)c.height) continue;
        for (int s = 0; s < c.kernel_w; s++) {
            const int w = w0 + s * c.dilation_w;
            if ((unsigned)w >= (unsigned)c.width) continue;
            const float *from = image + h * in.row + w * in.column, *by = weights + r * taps.row + s * taps.column;
            for (int channel = 0; channel < c.channels; channel++) sum += from[channel * in.channel] * by[channel * taps.channel];
        }
    }
    put(c, Epilogue<float, float>(c.product), (float *)c.out + index, sum, at.f);
}

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

/* A kernel, and the outputs of a thread. */
struct Chosen {
    void (*kernel)(Conv, Places);
    int rows, columns;
};

Chosen direct_of(const Conv &, int) { return {direct_kernel, 1, 1}; }

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

template <Chosen (*OF)(const Conv &, int)> pysim_status launch_row(const Conv &c, int sms, cudaStream_t stream) {
    const Chosen by = OF(c, sms);
    const Places places(c, by.rows, by.columns);
    return check(launch(by.kernel, dim3((unsigned)((places.count + THREADS - 1) / THREADS)), dim3(THREADS), 0, stream, c, places), "a convolution without tiles");
}

template <Chosen (*OF)(const Conv &, int)> cudaError_t attributes(const Conv &c, pysim_cuda_attributes *out) {
    cudaFuncAttributes of;
    const auto kernel = OF(c, 1).kernel;
    cudaError_t error = cudaFuncGetAttributes(&of, kernel);
    if (error == cudaSuccess) error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&out->blocks_per_sm, kernel, THREADS, 0);
    if (error != cudaSuccess) return error;
    out->threads = THREADS, out->registers = of.numRegs;
    out->shared_bytes = (int64_t)of.sharedSizeBytes, out->local_bytes = (int64_t)of.localSizeBytes;
    return cudaSuccess;
}

const char *not_depthwise(const Conv &c) { return c.channels == 1 ? nullptr : "it takes one channel a group"; }

#define PYSIM_CONV_ROW_im2col(...)
#define PYSIM_CONV_ROW_implicit(...)
#define PYSIM_CONV_ROW_wgmma(...)
#define PYSIM_CONV_ROW_im2win(...)
#define PYSIM_CONV_ROW_winograd(...)
#define PYSIM_CUDA_CONV(family, ...) PYSIM_CONV_ROW_##family(__VA_ARGS__)

#define PYSIM_CONV_ROW_direct(...)                                                                                                    \
    {PYSIM_CONV_WHOLE(direct, __VA_ARGS__), nullptr, nullptr, launch_row<direct_of>, attributes<direct_of>},
#define PYSIM_CONV_ROW_depthwise(...)
const ConvRow direct[] = {
#include "convs.inc"
};

#undef PYSIM_CONV_ROW_direct
#undef PYSIM_CONV_ROW_depthwise
#define PYSIM_CONV_ROW_direct(...)
#define PYSIM_CONV_ROW_depthwise(...)                                                                                                 \
    {PYSIM_CONV_WHOLE(depthwise, __VA_ARGS__), not_depthwise, nullptr, launch_row<depthwise_of>, attributes<depthwise_of>},
const ConvRow depthwise[] = {
#include "convs.inc"
};
}

ConvRows direct_rows() { return {direct, (int)(sizeof direct / sizeof *direct)}; }
ConvRows depthwise_rows() { return {depthwise, (int)(sizeof depthwise / sizeof *depthwise)}; }
}
