/* SPDX-License-Identifier: Apache-2.0
 * The fused F(4x4, 3x3) rows: their filter transform, launches and attributes. */
#include "conv/winograd/fused4.cuh"

#include <type_traits>

#include "conv/rows.h"

#include "conv/winograd/rows.inc"

namespace pysim {
namespace winograd {
namespace {

/* own[group][block of filters][step][plane][channel][filter] = G g G^T, with zeros past the last filter and channel. One thread block per `step`, a
 * k-iteration of the convolution kernel. Weights are staged in shared memory, so that global loads read runs of 72 (NCHW) or 8 (NHWC) words. */
template <bool NHWC> __global__ __launch_bounds__(fused4::SIDE * STEP) void fused4_filters(const __grid_constant__ Conv c) {
    enum { SIDE = fused4::SIDE, WEIGHTS = STEP * 9, PITCH = WEIGHTS + 1 };
    __shared__ float weights[SIDE * PITCH];
    const int steps = ceil_div(c.channels, STEP), blocks = ceil_div(c.filters, SIDE);
    const int step = blockIdx.x % steps, block = blockIdx.x / steps % blocks, group = blockIdx.x / steps / blocks;
#pragma unroll
    for (int i = 0; i < WEIGHTS / STEP; i++) {
        const int word = i * SIDE * STEP + (int)threadIdx.x, in_block = word / WEIGHTS, at = word - in_block * WEIGHTS, filter = block * SIDE + in_block;
        const int tap = NHWC ? at / STEP : at % 9, in_step = NHWC ? at % STEP : at / 9, channel = step * STEP + in_step;
        const int64_t f = (int64_t)group * c.filters + filter;
        const float *from = (const float *)c.weights + (NHWC ? (f * 9 + tap) * c.channels + channel : (f * c.channels + channel) * 9 + tap);
        weights[in_block * PITCH + in_step * 9 + tap] = filter < c.filters && channel < c.channels ? *from : 0.f;
    }
    __syncthreads();
    const float *const g = weights + threadIdx.x % SIDE * PITCH + threadIdx.x / SIDE * 9;
    float half[3][6];
#pragma unroll
    for (int s = 0; s < 3; s++) filter_line_4(half[s], g[s], g[3 + s], g[6 + s]);
    float *to = (float *)c.own + (int64_t)blockIdx.x * (fused4::Transformed::BYTES / 4) + threadIdx.x;
#pragma unroll
    for (int r = 0; r < 6; r++) {
        float u[6];
        filter_line_4(u, half[0][r], half[1][r], half[2][r]);
#pragma unroll
        for (int s = 0; s < 6; s++) to[(6 * r + s) * (STEP * SIDE)] = u[s];
    }
}

/* Number of thread blocks of the filter transform. */
int64_t pieces(const Conv &c) { return (int64_t)c.groups * ceil_div(c.filters, fused4::SIDE) * ceil_div(c.channels, STEP); }

/* DRAINED: accumulators are drained (fused4_pipeline.cuh). SINGLE: one kernel, which transforms the filters too; split-K is reduced in a cluster of
 * two blocks. Two blocks fit the two SMs of a TPC; clusters of three and more leave SMs idle. */
template <bool SINGLE, bool DRAINED> struct Row {
    using Before = std::conditional_t<DRAINED, fused4::Drained, fused4::Transformed>;
    template <bool NHWC> using Filters = std::conditional_t<SINGLE, fused4::Weights<NHWC>, Before>;
    enum { SHARED_BYTES = fused4::shared_bytes<Filters<false>> };
    static_assert(SHARED_BYTES == fused4::shared_bytes<Filters<true>>, "of both layouts");

    static const char *refuses(const Conv &c) {
        if (!is_3x3(c)) return PYSIM_NOT_3X3;
        return pieces(c) >= limit::TILES ? "it takes fewer filters and groups" : nullptr;
    }
    static pysim_status own_bytes(const Conv &c, int64_t *bytes) {
        *bytes = SINGLE ? 0 : pieces(c) * fused4::Transformed::BYTES;
        return PYSIM_OK;
    }
    static cudaError_t kernel_of(const Conv &c, void (**out)(Conv)) {
        const auto lies = [&](int size) { return c.pad_left == 1 && c.width % size == 0 && (uintptr_t)c.in % (size * sizeof(float)) == 0; };
        *out = c.nhwc    ? fused4::fused4_kernel<true, 1, Filters<true>>
               : lies(4) ? fused4::fused4_kernel<false, 4, Filters<false>>
               : lies(2) ? fused4::fused4_kernel<false, 2, Filters<false>>
                         : fused4::fused4_kernel<false, 1, Filters<false>>;
        return cudaFuncSetAttribute(*out, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
    }
    static pysim_status launch_row(const Conv &c, int, cudaStream_t stream) {
        void (*run)(Conv);
        cudaError_t error = kernel_of(c, &run);
        const Grid grid(c.product, fused4::SIDE, fused4::SIDE, STEP);
        if (error == cudaSuccess && !SINGLE)
            error = launch(c.nhwc ? fused4_filters<true> : fused4_filters<false>, dim3((unsigned)pieces(c)), dim3(fused4::SIDE * STEP), 0, stream, c);
        const int cluster = SINGLE && c.product.kind == PYSIM_SPLIT_K && !c.product.partials ? c.product.splits : 1;
        if (error == cudaSuccess)
            error = launch_with({cluster}, run, dim3((unsigned)grid.items(c.product)), dim3(fused4::THREADS), SHARED_BYTES, stream, c);
        return check(error, "fused Winograd");
    }
    static cudaError_t attributes(const Conv &c, pysim_cuda_attributes *out) {
        void (*run)(Conv);
        const cudaError_t error = kernel_of(c, &run);
        return error == cudaSuccess ? attributes_of(run, fused4::THREADS, SHARED_BYTES, out) : error;
    }
};
}
}

Rows<ConvRow> conv_winograd::fused4() {
    return table_of<ConvRow>(rows::lines, [](auto line, auto add) {
        constexpr rows::ConvColumns c = rows::lines[line];
        if constexpr (c.outputs == 4 && c.fused) {
            using Row = winograd::Row<(c.reduces_in_cluster > 0), c.variant == "drained">;
            static_assert(c.capability == Row::template Filters<false>::CAPABILITY, "what its kernels need");
            add(row_of(c, rows::functions_of<Row>()));
        }
    });
}
}
