/* SPDX-License-Identifier: Apache-2.0
 * The fused F(2x2, 3x3) rows: their filter transform, launches and attributes. */
#include "conv/winograd/fused2.cuh"

#include "conv/rows.h"

#include "conv/winograd/rows.inc"

namespace pysim {
namespace winograd {
namespace {

/* own[group][block of filters][step][plane][channel][slot] = G g G^T, with zeros past the last filter and channel. One thread block per `step`, a
 * k-iteration of the convolution kernel. */
template <bool NHWC> __global__ __launch_bounds__(FILTERS * STEP) void filters_kernel(const __grid_constant__ Conv c) {
    const int steps = ceil_div(c.channels, STEP), blocks = ceil_div(c.filters, FILTERS);
    const int step = blockIdx.x % steps, block = blockIdx.x / steps % blocks, group = blockIdx.x / steps / blocks;
    const int slot = threadIdx.x % FILTERS, in_step = threadIdx.x / FILTERS;
    const int filter = block * FILTERS + filter_of(slot), channel = step * STEP + in_step;
    float g[9], half[12], u[16];
    if (filter < c.filters && channel < c.channels) {
        const int64_t f = (int64_t)group * c.filters + filter;
        const float *from = (const float *)c.weights + (NHWC ? f * 9 * c.channels + channel : (f * c.channels + channel) * 9);
#pragma unroll
        for (int i = 0; i < 9; i++) g[i] = from[i * (NHWC ? c.channels : 1)];
    } else {
#pragma unroll
        for (int i = 0; i < 9; i++) g[i] = 0;
    }
#pragma unroll
    for (int s = 0; s < 3; s++) filter_line<3>(half + s, g + s, 3);
#pragma unroll
    for (int r = 0; r < 4; r++) filter_line<1>(u + 4 * r, half + 3 * r, 1);
    float *to = (float *)c.own + (int64_t)blockIdx.x * FILTER_FLOATS + threadIdx.x;
#pragma unroll
    for (int plane = 0; plane < PLANES; plane++) to[plane * STEP * FILTERS] = u[plane];
}

/* Number of thread blocks of the filter transform. */
int64_t pieces(const Conv &c) { return (int64_t)c.groups * ceil_div(c.filters, FILTERS) * ceil_div(c.channels, STEP); }

template <Form FORM> struct Fused2 {
    static const char *refuses(const Conv &c) {
        if (!is_3x3(c)) return PYSIM_NOT_3X3;
        return pieces(c) >= limit::TILES ? "it takes fewer filters and groups" : nullptr;
    }
    static pysim_status own_bytes(const Conv &c, int64_t *bytes) {
        *bytes = pieces(c) * FILTER_BYTES;
        return PYSIM_OK;
    }
    static cudaError_t kernel_of(const Conv &c, void (**out)(Conv)) {
        *out = c.nhwc ? fused_kernel<FORM, true> : fused_kernel<FORM, false>;
        return cudaFuncSetAttribute(*out, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
    }
    static pysim_status launch_row(const Conv &c, int, cudaStream_t stream) {
        void (*run)(Conv);
        cudaError_t error = kernel_of(c, &run);
        const Grid grid(c.product, c.nhwc ? TILES : FILTERS, c.nhwc ? FILTERS : TILES, STEP);
        if (error == cudaSuccess) error = launch(c.nhwc ? filters_kernel<true> : filters_kernel<false>, dim3((unsigned)pieces(c)), dim3(FILTERS * STEP), 0, stream, c);
        if (error == cudaSuccess) error = launch(run, dim3((unsigned)grid.items(c.product)), dim3(THREADS), SHARED_BYTES, stream, c);
        return check(error, "fused Winograd");
    }
    static cudaError_t attributes(const Conv &c, pysim_cuda_attributes *out) {
        void (*run)(Conv);
        const cudaError_t error = kernel_of(c, &run);
        return error == cudaSuccess ? attributes_of(run, THREADS, SHARED_BYTES, out) : error;
    }
};
}
}

Rows<ConvRow> conv_winograd::fused2() {
    return table_of<ConvRow>(rows::lines, [](auto line, auto add) {
        constexpr rows::ConvColumns c = rows::lines[line];
        constexpr winograd::Form form = c.variant == "compact" ? winograd::compact : c.variant == "sts64" ? winograd::sts64 : winograd::reference;
        static_assert(c.outputs != 2 || c.capability >= winograd::CAPABILITY, "asynchronous copies");
        if constexpr (c.outputs == 2) add(row_of(c, rows::functions_of<winograd::Fused2<form>>()));
    });
}
}
