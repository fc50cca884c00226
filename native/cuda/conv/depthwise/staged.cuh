/* SPDX-License-Identifier: Apache-2.0
 * Depthwise convolution along rows of pixels whose channels lie last, of four-byte elements: kernels of one row with many taps, stride 1.
 * A block has OUTPUTS columns of 32 channels; its pixels pass through shared memory, where a channel's columns are neighbours. A thread
 * has WIDE columns of one channel: for eight taps it reads as many more pixels and weights, 16 bytes at once. Sums take the place of the
 * pixels. Chunks of four columns are swizzled so that no access has a bank conflict.
 *
 * Taps are added in their order, padding as zeros. A pixel is multiplied only by taps of windows that contain it.
 *
 * Worked number: 31 taps read 10 chunks of pixels and 8 of weights for 496 multiply-adds. */
#ifndef PYSIM_CUDA_CONV_DEPTHWISE_STAGED_CUH
#define PYSIM_CUDA_CONV_DEPTHWISE_STAGED_CUH
#include "conv/untiled.cuh"
#include "core/decomposition.cuh"

namespace pysim {
namespace {

/* A block's outputs: S::OUTPUTS of a line from column q on, for S::BLOCK channels from `chunk` on. */
template <class T, class S> struct BlockPlace {
    int chunk, line, q, count;
    int first, span; /* the columns that lie in the image, and that an output needs */
    const T *from;   /* column 0, channel `chunk`; it need not exist */

    __device__ explicit BlockPlace(const Conv &c) {
        const int chunks = ceil_div(c.groups, S::BLOCK), place = (int)blockIdx.x / chunks, across = ceil_div(c.out_w, S::OUTPUTS);
        chunk = ((int)blockIdx.x - place * chunks) * S::BLOCK;
        line = place / across, q = (place - line * across) * S::OUTPUTS, count = min((int)S::OUTPUTS, c.out_w - q);
        const int image = line / c.out_h, h = (line - image * c.out_h) * c.stride_h - c.pad_top, x = q - c.pad_left;
        first = max(0, -x);
        span = (unsigned)h < (unsigned)c.height ? max(0, min(count + c.kernel_w - 1, c.width - x) - first) : 0;
        from = (const T *)c.in + ((int64_t)(image * c.height + h) * c.width + x) * c.groups + chunk;
    }
    __device__ bool has(int column) const { return (unsigned)(column - first) < (unsigned)span; }
    __device__ const T *pixel(const Conv &c, int column) const { return from + (int64_t)column * c.groups; }
};

struct Staged {
    enum { CHANNELS = 4, BLOCK = limit::STAGED_CHANNELS, LANES = BLOCK / CHANNELS, WARPS = THREADS / 32 };
    enum { OUTPUTS = limit::STAGED_COLUMNS, WIDE = limit::STAGED_WIDE, STEP = limit::STAGED_STEP, MOST_TAPS = limit::SEQUENCE_TAPS };
    static_assert(OUTPUTS == 16 * WIDE && LANES == 8, "a half warp has a channel's columns, a quarter one column's channels");
    enum { CHUNKS = (OUTPUTS + MOST_TAPS) / CHANNELS };
    using Vector = Pack<float, CHANNELS>;
    alignas(16) float pixels[BLOCK * CHUNKS * CHANNELS];
    float weights[BLOCK * MOST_TAPS]; /* together the 48 KiB that every device has */

    __device__ Vector &columns(int channel, int chunk) {
        return ((Vector *)pixels)[channel * CHUNKS + (chunk ^ (chunk >> 3 & 3) ^ channel / CHANNELS)];
    }
    /* Four taps; neighbouring channels lie in different banks. */
    __device__ Vector &taps(int channel, int four) { return ((Vector *)weights)[channel * (MOST_TAPS / CHANNELS) + (four ^ channel % 2)]; }
};

/* All loads of a thread are on their way at once. */
template <class T> __device__ void stage(const Conv &c, const BlockPlace<T, Staged> &at, Staged &to) {
    using S = Staged;
    enum { WEIGHTS = S::BLOCK * S::MOST_TAPS / THREADS, CHUNKS = S::CHUNKS / S::WARPS };
    float weights[WEIGHTS];
    S::Vector found[CHUNKS];
    const int tap = (int)threadIdx.x % S::MOST_TAPS, own = (int)threadIdx.x / S::MOST_TAPS, lane = (int)threadIdx.x % 32,
              warp = (int)threadIdx.x / 32, channel = lane % S::LANES * S::CHANNELS, place = lane / S::LANES;
    const int channels = tap < c.kernel_w ? c.groups - at.chunk : 0; /* whose weight of that tap exists */
    const T *const of = (const T *)c.weights + (int64_t)at.chunk * c.kernel_w + tap;
#pragma unroll
    for (int i = 0; i < WEIGHTS; i++) {
        const int next = own + i * (THREADS / S::MOST_TAPS);
        weights[i] = next < channels ? of[next * c.kernel_w] : T(0);
    }
    const bool exists = at.chunk + channel < c.groups;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        const int column = (warp + i * S::WARPS) * S::CHANNELS + place;
        found[i] = exists & at.has(column) ? *(const S::Vector *)(at.pixel(c, column) + channel) : S::Vector{};
    }
#pragma unroll
    for (int i = 0; i < WEIGHTS; i++) to.taps(own + i * (THREADS / S::MOST_TAPS), tap / 4).value[tap % 4] = weights[i];
#pragma unroll
    for (int i = 0; i < CHUNKS; i++)
#pragma unroll
        for (int v = 0; v < S::CHANNELS; v++) to.columns(channel + v, warp + i * S::WARPS).value[place] = found[i].value[v];
}

/* The sums of a thread's columns, in the place of its pixels. */
__device__ inline void sum_taps(const Conv &c, Staged &in, int channel, int window) {
    using S = Staged;
    float x[S::WIDE + S::STEP], sum[S::WIDE] = {};
    const auto read = [&](int chunk, float *to) {
        const S::Vector found = in.columns(channel, chunk);
#pragma unroll
        for (int v = 0; v < S::CHANNELS; v++) to[v] = found.value[v];
    };
    const int first = window * (S::WIDE / 4);
#pragma unroll
    for (int i = 0; i < S::WIDE; i += 4) read(first + i / 4, x + i);
#pragma unroll 1
    for (int tap = 0; tap < c.kernel_w; tap += S::STEP) {
#pragma unroll
        for (int i = 0; i < S::STEP; i += 4) read(first + (S::WIDE + tap + i) / 4, x + S::WIDE + i);
        const S::Vector weights[2] = {in.taps(channel, tap / 4), in.taps(channel, tap / 4 + 1)};
#pragma unroll
        for (int k = 0; k < S::STEP; k++)
            if (tap + k < c.kernel_w)
#pragma unroll
                for (int i = 0; i < S::WIDE; i++) sum[i] = fmaf(x[i + k], weights[k / 4].value[k % 4], sum[i]);
#pragma unroll
        for (int i = 0; i < S::WIDE; i++) x[i] = x[i + S::STEP];
    }
    __syncwarp(); /* all lanes have read the channel's pixels */
#pragma unroll
    for (int i = 0; i < S::WIDE; i++) in.columns(channel, first + i / 4).value[i % 4] = sum[i];
}

/* T: float. */
template <class T> __global__ void __launch_bounds__(THREADS, 3) staged_kernel(const __grid_constant__ Conv c) {
    using S = Staged;
    __shared__ S staged;
    const BlockPlace<T, S> at(c);
    stage(c, at, staged);
    __syncthreads();
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, channel = lane % S::LANES * S::CHANNELS, place = lane / S::LANES;
#pragma unroll 1
    for (int i = 0; i < S::CHANNELS; i += 2) sum_taps(c, staged, warp * S::CHANNELS + i + lane / 16, lane % 16);
    __syncthreads();
    if (at.chunk + channel >= c.groups) return;
    Problem p = c.product;
    p.c = c.out, p.m = c.windows, p.n = c.groups;
    const Epilogue<float, T> to(p);
#pragma unroll 2
    for (int chunk = warp; chunk < S::OUTPUTS / S::CHANNELS; chunk += S::WARPS) {
        const int column = chunk * S::CHANNELS + place;
        float sum[S::CHANNELS];
#pragma unroll
        for (int v = 0; v < S::CHANNELS; v++) sum[v] = staged.columns(channel + v, chunk).value[place];
        if (column < at.count) to.store(at.line * c.out_w + at.q + column, at.chunk + channel, sum);
    }
}
}
}
#endif
