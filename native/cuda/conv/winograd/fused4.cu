/* SPDX-License-Identifier: Apache-2.0
 * The fused F(4x4, 3x3) rows: their filter transform, launches and attributes. */
#include "winograd_fused4.cuh"

#include <type_traits>

#include "arguments.h"

namespace pysim {
namespace winograd {
namespace {

/* own[group][block of filters][step][plane][channel][filter] = G g G^T, zeros beyond the filters and channels: a block for each step. Weights
 * come by way of shared memory: they are read in the order in which they lie, 8 or 72 together. */
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

/* Blocks of the filter transform. */
int64_t pieces(const Conv &c) { return (int64_t)c.groups * ceil_div(c.filters, fused4::SIDE) * ceil_div(c.channels, STEP); }

template <Form FORM> struct Kernel {
    template <bool NHWC> using Filters = std::conditional_t<FORM == single, fused4::Weights<NHWC>, fused4::Transformed>;
    enum { SHARED_BYTES = fused4::shared_bytes<Filters<false>> };
    static_assert(SHARED_BYTES == fused4::shared_bytes<Filters<true>>, "of both layouts");

    static cudaError_t of(const Conv &c, void (**out)(Conv)) {
        const auto pieces = [&](int size) { return c.pad_left == 1 && c.width % size == 0 && (uintptr_t)c.in % (size * sizeof(float)) == 0; };
        *out = c.nhwc      ? fused4::fused4_kernel<true, 1, Filters<true>>
               : pieces(4) ? fused4::fused4_kernel<false, 4, Filters<false>>
               : pieces(2) ? fused4::fused4_kernel<false, 2, Filters<false>>
                           : fused4::fused4_kernel<false, 1, Filters<false>>;
        return cudaFuncSetAttribute(*out, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
    }
};
}

template <Form FORM> const char *Fused4<FORM>::refuses(const Conv &c) {
    if (!is_3x3(c)) return PYSIM_NOT_3X3;
    return pieces(c) >= most::TILES ? "it takes fewer filters and groups" : nullptr;
}

template <Form FORM> pysim_status Fused4<FORM>::own_bytes(const Conv &c, int64_t *bytes) {
    *bytes = FORM == single ? 0 : pieces(c) * fused4::Transformed::BYTES;
    return PYSIM_OK;
}

template <Form FORM> pysim_status Fused4<FORM>::launch_row(const Conv &c, int, cudaStream_t stream) {
    void (*run)(Conv);
    cudaError_t error = Kernel<FORM>::of(c, &run);
    const Grid grid(c.product, fused4::SIDE, fused4::SIDE, STEP);
    if (error == cudaSuccess && FORM == fused)
        error = launch(c.nhwc ? fused4_filters<true> : fused4_filters<false>, dim3((unsigned)pieces(c)), dim3(fused4::SIDE * STEP), 0, stream, c);
    const int cluster = FORM == single && c.product.kind == PYSIM_SPLIT_K && !c.product.partials ? c.product.splits : 1;
    if (error == cudaSuccess)
        error = launch_clusters(cluster, run, dim3((unsigned)grid.items(c.product)), dim3(fused4::THREADS), Kernel<FORM>::SHARED_BYTES, stream, c);
    return check(error, "fused Winograd");
}

template <Form FORM> cudaError_t Fused4<FORM>::attributes(const Conv &c, pysim_cuda_attributes *out) {
    void (*run)(Conv);
    cudaFuncAttributes of;
    cudaError_t error = Kernel<FORM>::of(c, &run);
    if (error == cudaSuccess) error = cudaFuncGetAttributes(&of, run);
    if (error == cudaSuccess) error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&out->blocks_per_sm, run, fused4::THREADS, Kernel<FORM>::SHARED_BYTES);
    if (error != cudaSuccess) return error;
    out->threads = fused4::THREADS, out->registers = of.numRegs;
    out->shared_bytes = (int64_t)of.sharedSizeBytes + Kernel<FORM>::SHARED_BYTES, out->local_bytes = (int64_t)of.localSizeBytes;
    return cudaSuccess;
}

template struct Fused4<fused>;
template struct Fused4<single>;
}
}
