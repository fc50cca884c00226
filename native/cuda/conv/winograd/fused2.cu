/* SPDX-License-Identifier: Apache-2.0
 * The fused Winograd kernels' filter transform, launches and rows. */
#include "conv_winograd.cuh"

#include "arguments.h"

namespace pysim {
namespace winograd {
namespace {

/* own[group][block of filters][step][plane][channel][slot] = G g G^T, zeros beyond the filters and channels: a block for each step. Where the
 * words of one filter's channels lie together, the block's threads read them together. */
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

/* Blocks of the filter transform. */
int64_t pieces(const Conv &c) { return (int64_t)c.groups * ceil_div(c.filters, FILTERS) * ceil_div(c.channels, STEP); }

const char *refuses(const Conv &c) {
    if (!is_3x3(c)) return PYSIM_NOT_3X3;
    return pieces(c) >= most::TILES ? "it takes fewer filters and groups" : nullptr;
}

pysim_status own_bytes(const Conv &c, int64_t *bytes) {
    *bytes = pieces(c) * FILTER_BYTES;
    return PYSIM_OK;
}

template <Form FORM> cudaError_t kernel_of(const Conv &c, void (**out)(Conv)) {
    *out = c.nhwc ? fused_kernel<FORM, true> : fused_kernel<FORM, false>;
    return cudaFuncSetAttribute(*out, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
}

template <Form FORM> pysim_status launch_row(const Conv &c, int, cudaStream_t stream) {
    void (*run)(Conv);
    cudaError_t error = kernel_of<FORM>(c, &run);
    const Grid grid(c.product, c.nhwc ? TILES : FILTERS, c.nhwc ? FILTERS : TILES, STEP);
    if (error == cudaSuccess) error = launch(c.nhwc ? filters_kernel<true> : filters_kernel<false>, dim3((unsigned)pieces(c)), dim3(FILTERS * STEP), 0, stream, c);
    if (error == cudaSuccess) error = launch(run, dim3((unsigned)grid.items(c.product)), dim3(THREADS), SHARED_BYTES, stream, c);
    return check(error, "fused Winograd");
}

template <Form FORM> cudaError_t attributes(const Conv &c, pysim_cuda_attributes *out) {
    void (*run)(Conv);
    cudaFuncAttributes of;
    cudaError_t error = kernel_of<FORM>(c, &run);
    if (error == cudaSuccess) error = cudaFuncGetAttributes(&of, run);
    if (error == cudaSuccess) error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&out->blocks_per_sm, run, THREADS, SHARED_BYTES);
    if (error != cudaSuccess) return error;
    out->threads = THREADS, out->registers = of.numRegs;
    out->shared_bytes = (int64_t)of.sharedSizeBytes + SHARED_BYTES, out->local_bytes = (int64_t)of.localSizeBytes;
    return cudaSuccess;
}

#define PYSIM_WINOGRAD_INFO(dtype, form, bf, bw, bk, wf, ww, tf, tw, stages, outputs, ...)                                            \
    {#dtype "_winograd_f" #outputs "_" #bf "x" #bw "x" #bk "_" #wf "x" #ww "_" #tf "x" #tw "_s" #stages "_" #form, "winograd", #form,  \
     PYSIM_NUMBER_##dtype, bf, bw, bk, wf, ww, tf, tw, stages, outputs, __VA_ARGS__}
#define PYSIM_WINOGRAD_FUSED(dtype, form, ...)                                                                                        \
    {PYSIM_WINOGRAD_INFO(dtype, form, __VA_ARGS__), refuses, own_bytes, launch_row<form>, attributes<form>},
#define PYSIM_WINOGRAD_reference(...) PYSIM_WINOGRAD_FUSED(__VA_ARGS__)
#define PYSIM_WINOGRAD_sts64(...) PYSIM_WINOGRAD_FUSED(__VA_ARGS__)
#define PYSIM_WINOGRAD_compact(...) PYSIM_WINOGRAD_FUSED(__VA_ARGS__)
#define PYSIM_WINOGRAD_staged(dtype, form, bf, bw, bk, wf, ww, tf, tw, stages, ...)                                                   \
    {PYSIM_WINOGRAD_INFO(dtype, form, bf, bw, bk, wf, ww, tf, tw, stages, __VA_ARGS__),                                               \
     Staged<bf, bw, bk, wf, ww, tf, tw, stages>::refuses, Staged<bf, bw, bk, wf, ww, tf, tw, stages>::own_bytes,                      \
     Staged<bf, bw, bk, wf, ww, tf, tw, stages>::launch_row, Staged<bf, bw, bk, wf, ww, tf, tw, stages>::attributes, nullptr, true},
#define PYSIM_WINOGRAD_FUSED4(dtype, form, ...)                                                                                       \
    {PYSIM_WINOGRAD_INFO(dtype, form, __VA_ARGS__), Fused4<form>::refuses, Fused4<form>::own_bytes, Fused4<form>::launch_row,          \
     Fused4<form>::attributes, nullptr, false, Fused4<form>::NEAR},
#define PYSIM_WINOGRAD_fused(...) PYSIM_WINOGRAD_FUSED4(__VA_ARGS__)
#define PYSIM_WINOGRAD_single(...) PYSIM_WINOGRAD_FUSED4(__VA_ARGS__)
#define PYSIM_CONV_ROW_direct(...)
#define PYSIM_CONV_ROW_depthwise(...)
#define PYSIM_CONV_ROW_im2col(...)
#define PYSIM_CONV_ROW_implicit(...)
#define PYSIM_CONV_ROW_wgmma(...)
#define PYSIM_CONV_ROW_im2win(...)
#define PYSIM_CONV_ROW_winograd(dtype, form, ...) PYSIM_WINOGRAD_##form(dtype, form, __VA_ARGS__)
#define PYSIM_CUDA_CONV(family, ...) PYSIM_CONV_ROW_##family(__VA_ARGS__)
const ConvRow rows[] = {
#include "convs.inc"
};
}
}

ConvRows winograd_rows() { return {winograd::rows, (int)(sizeof winograd::rows / sizeof *winograd::rows)}; }
}
