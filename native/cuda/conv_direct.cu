/* SPDX-License-Identifier: Apache-2.0
 * Convolution without tiles: `direct`, a thread an output, and `depthwise`, one channel a group, a thread a strip of outputs below one another.
 *
 * Lanes go along what is contiguous in the output: columns under NCHW, filters under NHWC. A depthwise strip of ROWS outputs reads
 * (ROWS - 1) stride_h + kernel_h input rows of kernel_w elements, each once: 18 loads for 4 outputs of a 3 x 3 kernel of stride 1, where a
 * thread an output makes 36. Kernels of 3 x 3 and 5 x 5 with strides of 1 and 2 keep these in registers; others read for each output. */
#include "conv.h"
#include "epilogue.cuh"
#include "launch.h"
#include "status.h"

namespace pysim {
namespace {

enum { THREADS = 256, ROWS = 4 };

/* A place in the output, from a number that counts places in the order in which they lie; `high`: rows of places in an image. */
struct Place { int n, f, p, q; };
__device__ inline Place place_of(const Conv &c, int64_t index, int high) {
    const int filters = c.groups * c.filters;
    Place at;
    if (c.nhwc) at.f = (int)(index % filters), index /= filters;
    at.q = (int)(index % c.out_w), index /= c.out_w;
    at.p = (int)(index % high), index /= high;
    if (!c.nhwc) at.f = (int)(index % filters), index /= filters;
    at.n = (int)index;
    return at;
}

/* Elements between neighbours of a tensor of `channels` x height x width. */
struct Strides {
    int64_t image, channel, row, column;
    __device__ Strides(bool nhwc, int64_t channels, int64_t height, int64_t width)
        : image(channels * height * width), channel(nhwc ? 1 : height * width), row(nhwc ? channels * width : width), column(nhwc ? channels : 1) {}
};

__device__ inline void put(const Conv &c, const Epilogue<float, float> &epilogue, float *to, float sum, int f) {
    *to = epilogue.finish(sum, epilogue.beta != 0 ? *to : 0.f, f);
}

__global__ void __launch_bounds__(THREADS) direct_kernel(const __grid_constant__ Conv c) {
    const int64_t index = blockIdx.x * (int64_t)THREADS + threadIdx.x;
    if (index >= (int64_t)c.batch * c.groups * c.filters * c.out_h * c.out_w) return;
    const Place at = place_of(c, index, c.out_h);
    const Strides in(c.nhwc, c.groups * c.channels, c.height, c.width), taps(c.nhwc, c.channels, c.kernel_h, c.kernel_w);
    const int h0 = at.p * c.stride_h - c.pad_top, w0 = at.q * c.stride_w - c.pad_left;
    const float *image = (const float *)c.in + at.n * in.image + (int64_t)(at.f / c.filters * c.channels) * in.channel;
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

/* KERNEL x KERNEL and STRIDE in registers; 0 x 0: any. */
template <int KERNEL, int STRIDE> __global__ void __launch_bounds__(THREADS) depthwise_kernel(const __grid_constant__ Conv c) {
    const int64_t index = blockIdx.x * (int64_t)THREADS + threadIdx.x;
    const int filters = c.groups * c.filters, strips = (c.out_h + ROWS - 1) / ROWS;
    if (index >= (int64_t)c.batch * filters * strips * c.out_w) return;
    const Place at = place_of(c, index, strips);
    const Strides in(c.nhwc, c.groups, c.height, c.width), out(c.nhwc, filters, c.out_h, c.out_w);
    const float *image = (const float *)c.in + at.n * in.image + at.f / c.filters * in.channel;
    const float *weights = (const float *)c.weights + at.f * c.kernel_h * c.kernel_w;
    const int h0 = at.p * ROWS * c.stride_h - c.pad_top, w0 = at.q * c.stride_w - c.pad_left;
    const auto read = [&](int h, int w) {
        return (unsigned)h < (unsigned)c.height && (unsigned)w < (unsigned)c.width ? image[h * in.row + w * in.column] : 0.f;
    };
    float sum[ROWS] = {};
    if constexpr (KERNEL > 0) {
        float by[KERNEL][KERNEL];
#pragma unroll
        for (int r = 0; r < KERNEL; r++)
#pragma unroll
            for (int s = 0; s < KERNEL; s++) by[r][s] = weights[r * KERNEL + s];
#pragma unroll
        for (int h = 0; h < (ROWS - 1) * STRIDE + KERNEL; h++) {
            float row[KERNEL];
#pragma unroll
            for (int s = 0; s < KERNEL; s++) row[s] = read(h0 + h, w0 + s);
#pragma unroll
            for (int i = 0; i < ROWS; i++)
                if (h - i * STRIDE >= 0 && h - i * STRIDE < KERNEL)
#pragma unroll
                    for (int s = 0; s < KERNEL; s++) sum[i] += row[s] * by[h - i * STRIDE][s];
        }
    } else {
        for (int r = 0; r < c.kernel_h; r++)
            for (int s = 0; s < c.kernel_w; s++) {
                const float by = weights[r * c.kernel_w + s];
#pragma unroll
                for (int i = 0; i < ROWS; i++) sum[i] += read(h0 + i * c.stride_h + r * c.dilation_h, w0 + s * c.dilation_w) * by;
            }
    }
    const Epilogue<float, float> epilogue(c.product);
    float *to = (float *)c.out + at.n * out.image + at.f * out.channel + at.q * out.column;
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        if (at.p * ROWS + i < c.out_h) put(c, epilogue, to + (at.p * ROWS + i) * out.row, sum[i], at.f);
}

using Kernel = void (*)(Conv);

Kernel direct_of(const Conv &) { return direct_kernel; }

Kernel depthwise_of(const Conv &c) {
    const bool square = c.kernel_h == c.kernel_w && c.stride_h == c.stride_w && c.dilation_h == 1 && c.dilation_w == 1;
    if (square && c.kernel_h == 3 && c.stride_h == 1) return depthwise_kernel<3, 1>;
    if (square && c.kernel_h == 3 && c.stride_h == 2) return depthwise_kernel<3, 2>;
    if (square && c.kernel_h == 5 && c.stride_h == 1) return depthwise_kernel<5, 1>;
    if (square && c.kernel_h == 5 && c.stride_h == 2) return depthwise_kernel<5, 2>;
    return depthwise_kernel<0, 0>;
}

template <Kernel (*OF)(const Conv &), int HIGH> pysim_status launch_row(const Conv &c, int, cudaStream_t stream) {
    const int64_t threads = (int64_t)c.batch * c.groups * c.filters * ((c.out_h + HIGH - 1) / HIGH) * c.out_w;
    return check(launch(OF(c), dim3((unsigned)((threads + THREADS - 1) / THREADS)), dim3(THREADS), 0, stream, c), "a convolution without tiles");
}

template <Kernel (*OF)(const Conv &)> cudaError_t attributes(const Conv &c, pysim_cuda_attributes *out) {
    cudaFuncAttributes of;
    const Kernel kernel = OF(c);
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
    {PYSIM_CONV_WHOLE(direct, __VA_ARGS__), nullptr, nullptr, launch_row<direct_of, 1>, attributes<direct_of>},
#define PYSIM_CONV_ROW_depthwise(...)
const ConvRow direct[] = {
#include "convs.inc"
};

#undef PYSIM_CONV_ROW_direct
#undef PYSIM_CONV_ROW_depthwise
#define PYSIM_CONV_ROW_direct(...)
#define PYSIM_CONV_ROW_depthwise(...)                                                                                                 \
    {PYSIM_CONV_WHOLE(depthwise, __VA_ARGS__), not_depthwise, nullptr, launch_row<depthwise_of, ROWS>, attributes<depthwise_of>},
const ConvRow depthwise[] = {
#include "convs.inc"
};
}

ConvRows direct_rows() { return {direct, (int)(sizeof direct / sizeof *direct)}; }
ConvRows depthwise_rows() { return {depthwise, (int)(sizeof depthwise / sizeof *depthwise)}; }
}
