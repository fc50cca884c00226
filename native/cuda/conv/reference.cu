/* SPDX-License-Identifier: Apache-2.0
 * The reference on the device: one thread per output, products and sums in f64 (s8: in s64), one rounding at the end. It shares only the functions of
 * epilogues.inc with the kernels. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <type_traits>

#include "conv/conv.h"
#include "core/launch.h"
#include "core/reference.cuh"

namespace pysim {
namespace {

/* An element of the input. */
template <class In> __device__ auto read(const Conv &c, int64_t at, int64_t image, int64_t channel) {
    const auto x = value_of(((const In *)c.in)[at]);
    if constexpr (std::is_same_v<In, float>) {
        const Prologue &by = c.prologue;
        if (by.any()) {
            const double scale = by.scale ? by.scale[(by.by_image ? image * c.groups * c.channels : 0) + channel] : 1,
                         shift = by.shift ? by.shift[channel] : 0;
            const float y = (float)(x * scale + shift);
            return by.relu && y < 0 ? 0. : (double)y;
        }
    }
    return x;
}

template <class In, class Out> __global__ void conv_reference_kernel(Conv c) {
    using Sum = decltype(value_of(In()));
    const int all_filters = c.groups * c.filters, all_channels = c.groups * c.channels;
    const int64_t count = (int64_t)c.batch * all_filters * c.out_h * c.out_w, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < count; i += step) {
        const int q = (int)(i % c.out_w), row = (int)(i / c.out_w % c.out_h), o = row / c.slice_rows, p = row % c.slice_rows,
                  f = (int)(i / c.out_w / c.out_h % all_filters);
        const int64_t n = i / c.out_w / c.out_h / all_filters;
        Sum sum = 0;
        const int64_t first = (int64_t)(f / c.filters) * c.channels, plane = (int64_t)c.depth * c.height * c.width;
        for (int tap = 0; c.product.alpha != 0 && tap < c.taps(); tap++) {
            const int s = tap % c.kernel_w, r = tap / c.kernel_w % c.kernel_h, t = tap / c.kernel_w / c.kernel_h;
            const int d = o * c.stride_d + t * c.dilation_d - c.pad_front, h = p * c.stride_h + r * c.dilation_h - c.pad_top,
                      w = q * c.stride_w + s * c.dilation_w - c.pad_left;
            if (d < 0 || d >= c.depth || h < 0 || h >= c.height || w < 0 || w >= c.width) continue;
            const int64_t pixel = ((int64_t)d * c.height + h) * c.width + w;
            const int64_t in = c.nhwc ? (n * plane + pixel) * all_channels + first : (n * all_channels + first) * plane + pixel,
                          weight = c.nhwc ? ((int64_t)f * c.taps() + tap) * c.channels : (int64_t)f * c.channels * c.taps() + tap;
            const int64_t in_step = c.nhwc ? 1 : plane, weight_step = c.nhwc ? 1 : c.taps();
            for (int channel = 0; channel < c.channels; channel++)
                sum += read<In>(c, in + channel * in_step, n, first + channel) *
                       value_of(((const In *)c.weights)[weight + channel * weight_step]);
        }
        Out *to = (Out *)c.out + (c.nhwc ? ((n * c.out_h + row) * c.out_w + q) * all_filters + f : i);
        put(to, finished(c.product, (double)sum, to, f));
    }
}

template <class In, class Out> cudaError_t start(const Conv &c, cudaStream_t stream) {
    const int64_t blocks = ((int64_t)c.batch * c.groups * c.filters * c.out_h * c.out_w + 255) / 256;
    return launch(conv_reference_kernel<In, Out>, dim3((unsigned)std::min<int64_t>(blocks, 2048)), dim3(256), 0, stream, c);
}
template <class In> cudaError_t start_float(const Conv &c, cudaStream_t stream) {
    switch (c.product.c_dtype) {
    case PYSIM_F16: return start<In, __half>(c, stream);
    case PYSIM_BF16: return start<In, __nv_bfloat16>(c, stream);
    default: return start<In, float>(c, stream);
    }
}
}

cudaError_t conv_reference(const Conv &c, cudaStream_t stream) {
    switch (c.dtype) {
    case PYSIM_F64: return start<double, double>(c, stream);
    case PYSIM_F16: return start_float<__half>(c, stream);
    case PYSIM_BF16: return start_float<__nv_bfloat16>(c, stream);
    case PYSIM_S8: return start<signed char, int>(c, stream);
    case PYSIM_F8: return start_float<__nv_fp8_e4m3>(c, stream);
    default: return start<float, float>(c, stream);
    }
}
}
