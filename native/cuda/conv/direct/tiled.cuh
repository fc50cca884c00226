/* SPDX-License-Identifier: Apache-2.0
 * Direct convolution of few channels where they lie last, and of few filters of one pixel in planes. Channels last: a thread computes WINDOWS windows x FILTERS filters, sums in f32. At each step it loads CHANNELS
 * channels of one tap for each of its windows, those of the next step before it multiplies, while a block's filters stay in shared memory, transposed and as
 * f32. Lanes have neighbouring windows, so a warp reads and writes whole sectors, and blocks of the same windows are neighbours.
 *
 * Tensor cores would multiply 8 filters as 16 to 64, and need k in whole instructions; here 8 channels of f16 in one load of 16 bytes meet 8 filters in 64
 * multiply-adds a window.
 *
 * Padding is multiplied as zeros. Worked number: 8 -> 8 channels of f16, 3 taps: 3 steps of 4 loads, 2 x 8 loads of weights and 256 multiply-adds. */
#ifndef PYSIM_CUDA_CONV_DIRECT_TILED_CUH
#define PYSIM_CUDA_CONV_DIRECT_TILED_CUH
#include "conv/output.cuh"
#include "conv/untiled.cuh"
#include "core/decomposition.cuh"

namespace pysim {
namespace {

enum { TILED_THREADS = limit::TILED_THREADS };

/* The corner of a window's pixels, and where it lies in the input, in elements. */
struct WindowCorner {
    int d, h, w, at;
};
__device__ inline WindowCorner corner_of(const Conv &c, int window) {
    if (window >= c.windows) return {-(1 << 30), 0, 0, 0}; /* outside everywhere */
    int position, q;
    const int image = c.per_image.of(window, position), row = c.per_row.of(position, q), o = c.volumes ? row / c.slice_rows : 0;
    const int d = o * c.stride_d - c.pad_front, h = (row - o * c.slice_rows) * c.stride_h - c.pad_top, w = q * c.stride_w - c.pad_left;
    return {d, h, w, (((image * c.depth + d) * c.height + h) * c.width + w) * c.channels};
}

/* A step's tap and first channel, in the order (t, r, s, c), and how far its elements lie from a window's corner. */
struct TapStep {
    int t = 0, r = 0, s = 0, channel = 0, offset = 0;
    template <int CHANNELS> __device__ void next(const Conv &c) {
        if ((channel += CHANNELS) == c.channels) {
            channel = 0;
            if (++s == c.kernel_w) {
                s = 0;
                if (++r == c.kernel_h) r = 0, t++;
            }
        }
        offset = ((t * c.dilation_d * c.height + r * c.dilation_h) * c.width + s * c.dilation_w) * c.channels + channel;
    }
};

/* The weights of FILTERS filters from `filter` on, as [product][filter]. */
template <class T, int FILTERS> __device__ inline void share_weights(const Conv &c, int filter, float *weights) {
#pragma unroll
    for (int f = 0; f < FILTERS; f++)
        for (int i = (int)threadIdx.x; i < c.k; i += TILED_THREADS)
            weights[i * FILTERS + f] = filter + f < c.filters ? float(((const T *)c.weights)[(filter + f) * c.k + i]) : 0.f;
}

template <class T, int CHANNELS, int WINDOWS, int FILTERS>
__global__ void __launch_bounds__(TILED_THREADS) tiled_kernel(const __grid_constant__ Conv c) {
    using Vector = Pack<T, CHANNELS>;
    using Four = Pack<float, 4>;
    PYSIM_DYNAMIC_SHARED(shared);
    float *const weights = (float *)shared;
    const int of = ceil_div(c.filters, FILTERS), block = (int)blockIdx.x / of, filter = ((int)blockIdx.x - block * of) * FILTERS;
    const int first = block * TILED_THREADS * WINDOWS + (int)threadIdx.x, k = c.k;
    share_weights<T, FILTERS>(c, filter, weights);
    WindowCorner corner[WINDOWS];
#pragma unroll
    for (int i = 0; i < WINDOWS; i++) corner[i] = corner_of(c, first + i * TILED_THREADS);
    const auto load = [&](const TapStep &step, Vector(&found)[WINDOWS]) {
#pragma unroll
        for (int i = 0; i < WINDOWS; i++) {
            found[i] = Vector{};
            if ((unsigned)(corner[i].d + step.t * c.dilation_d) < (unsigned)c.depth &&
                (unsigned)(corner[i].h + step.r * c.dilation_h) < (unsigned)c.height &&
                (unsigned)(corner[i].w + step.s * c.dilation_w) < (unsigned)c.width)
                found[i] = *(const Vector *)((const T *)c.in + corner[i].at + step.offset);
        }
    };
    float sum[WINDOWS][FILTERS] = {};
    Vector ahead[WINDOWS];
    TapStep step;
    load(step, ahead);
    __syncthreads();
#pragma unroll 1
    for (int at = 0; at < k; at += CHANNELS) {
        Vector found[WINDOWS];
#pragma unroll
        for (int i = 0; i < WINDOWS; i++) found[i] = ahead[i];
        step.next<CHANNELS>(c);
        if (at + CHANNELS < k) load(step, ahead);
#pragma unroll
        for (int e = 0; e < CHANNELS; e++) {
            Four by[FILTERS / 4];
#pragma unroll
            for (int f = 0; f < FILTERS / 4; f++) by[f] = ((const Four *)(weights + (at + e) * FILTERS))[f];
#pragma unroll
            for (int i = 0; i < WINDOWS; i++)
#pragma unroll
                for (int f = 0; f < FILTERS; f++) sum[i][f] = fmaf(float(found[i].value[e]), by[f / 4].value[f % 4], sum[i][f]);
        }
    }
    const auto as = [&](auto out) {
        using Out = decltype(out);
        Problem p = c.product;
        p.c = c.out, p.m = c.windows, p.n = c.filters;
        const Epilogue<float, Out> to(p);
#pragma unroll 1
        for (int i = 0; i < WINDOWS; i++) {
            to.store(first + i * TILED_THREADS, filter, sum[0]);
#pragma unroll
            for (int next = 1; next < WINDOWS; next++)
#pragma unroll
                for (int f = 0; f < FILTERS; f++) sum[next - 1][f] = sum[next][f];
        }
    };
    if (sizeof(T) == 2 && c.product.c_dtype != PYSIM_F32) as(T());
    else as(0.f);
}

/* Windows of one pixel each, in planes: a thread has WIDE neighbours of FILTERS filters, and loads of AHEAD channels on their way. */
template <class T, int WIDE, int FILTERS> __global__ void __launch_bounds__(TILED_THREADS) planes_kernel(const __grid_constant__ Conv c) {
    enum { AHEAD = WIDE == 1 ? 16 : 8 };
    using Vector = Pack<T, WIDE>;
    using Four = Pack<float, 4>;
    PYSIM_DYNAMIC_SHARED(shared);
    float *const weights = (float *)shared;
    const int of = ceil_div(c.filters, FILTERS), block = (int)blockIdx.x / of, filter = ((int)blockIdx.x - block * of) * FILTERS;
    const int window = (block * TILED_THREADS + (int)threadIdx.x) * WIDE;
    const int plane = c.out_h * c.out_w;
    int position;
    const int image = c.per_image.of(min(window, c.windows - WIDE), position);
    const T *from = (const T *)c.in + (int64_t)image * c.channels * plane + position;
    Vector ahead[AHEAD];
    const auto load = [&](int first) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            ahead[i] = first + i < c.channels ? *(const Vector *)(from + (int64_t)(first + i) * plane) : Vector{};
    };
    load(0);
    share_weights<T, FILTERS>(c, filter, weights);
    __syncthreads();
    float sum[FILTERS][WIDE] = {};
#pragma unroll 1
    for (int first = 0; first < c.channels; first += AHEAD) {
        Vector found[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) found[i] = ahead[i];
        if (first + AHEAD < c.channels) load(first + AHEAD);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (first + i >= c.channels) continue;
#pragma unroll
            for (int f = 0; f < FILTERS; f += 4) {
                const Four by = *(const Four *)(weights + (first + i) * FILTERS + f);
#pragma unroll
                for (int e = 0; e < 4; e++)
#pragma unroll
                    for (int v = 0; v < WIDE; v++) sum[f + e][v] = fmaf(float(found[i].value[v]), by.value[e], sum[f + e][v]);
            }
        }
    }
    const auto by = [&](const auto &to) {
#pragma unroll
        for (int f = 0; f < FILTERS; f++) to.store(filter + f, window, sum[f]);
    };
    const auto as = [&](auto out) {
        using Out = decltype(out);
        if (Epilogue<float, Out>(c.product).plain) by(FilterRows<float, Out, WIDE, true>(c, 0, 0));
        else if (is_smooth(function_of(c.product.activation))) by(FilterRows<float, Out, WIDE, false, true>(c, 0, 0));
        else by(FilterRows<float, Out, WIDE, false>(c, 0, 0));
    };
    if (sizeof(T) == 2 && c.product.c_dtype != PYSIM_F32) as(T());
    else as(0.f);
}

const char *not_tiled(const Conv &c) {
    static_assert(limit::TILED_PRODUCTS == 1024 && limit::TILED_CHANNELS == 32, "what the sentences say");
    if (c.groups > 1 || (c.nhwc ? c.channels > limit::TILED_CHANNELS : !c.pointwise()))
        return "it takes one group: up to 32 channels that lie last, or windows of one pixel without stride";
    return c.k <= limit::TILED_PRODUCTS ? nullptr : "it takes up to 1,024 products an output";
}

/* A kernel and its windows and filters of a thread (pysim/algorithms/gpu/direct.py chooses the same): four windows where there are TILED_BLOCKS of them
 * for each multiprocessor; of up to four filters four. */
struct ThreadTile {
    void (*kernel)(Conv);
    int windows, filters;
    unsigned along(const Conv &c) const { return (unsigned)ceil_div(c.windows, TILED_THREADS * windows); }
    unsigned across(const Conv &c) const { return (unsigned)ceil_div(c.filters, filters); }
};
/* kernel(windows, filters) as constants; `single`: one window */
template <class Kernel> ThreadTile tile_by(const Conv &c, int sms, bool single, Kernel kernel) {
    const auto of = [&](auto filters) {
        constexpr int F = decltype(filters)::value;
        const ThreadTile four = {kernel(std::integral_constant<int, 4>(), filters), 4, F};
        if (!single && (int64_t)four.along(c) * four.across(c) >= limit::TILED_BLOCKS * sms) return four;
        return ThreadTile{kernel(std::integral_constant<int, 1>(), filters), 1, F};
    };
    return c.filters <= 4 ? of(std::integral_constant<int, 4>()) : of(std::integral_constant<int, 8>());
}
template <class T, int CHANNELS> ThreadTile pixels_by(const Conv &c, int sms) {
    return tile_by(c, sms, false, [](auto windows, auto filters) {
        return tiled_kernel<T, CHANNELS, decltype(windows)::value, decltype(filters)::value>;
    });
}
template <class T> ThreadTile tile_of(const Conv &c, int sms) {
    enum { WHOLE = 16 / sizeof(T) };
    const auto loads = [&](int channels) { return c.channels % channels == 0 && (uintptr_t)c.in % (channels * sizeof(T)) == 0; };
    if (!c.nhwc) {
        const int out_bytes = 4 * dtypes[c.product.c_dtype].bytes;
        const bool fours = c.out_h * c.out_w % 4 == 0 && (uintptr_t)c.in % (4 * sizeof(T)) == 0 && (uintptr_t)c.out % out_bytes == 0;
        return tile_by(c, sms, !fours,
                       [](auto windows, auto filters) { return planes_kernel<T, decltype(windows)::value, decltype(filters)::value>; });
    }
    if (loads(WHOLE)) return pixels_by<T, WHOLE>(c, sms);
    if (loads(WHOLE / 2)) return pixels_by<T, WHOLE / 2>(c, sms);
    return pixels_by<T, 1>(c, sms);
}

template <class T> pysim_status launch_tiled(const Conv &c, int sms, cudaStream_t stream) {
    const ThreadTile tile = tile_of<T>(c, sms);
    const int bytes = c.k * tile.filters * (int)sizeof(float);
    return check(launch(tile.kernel, dim3(tile.along(c) * tile.across(c)), dim3(TILED_THREADS), bytes, stream, c), "a direct convolution");
}
template <class T> cudaError_t attributes_of_tiled(const Conv &c, pysim_cuda_attributes *out) {
    const ThreadTile tile = tile_of<T>(c, 1);
    return attributes_of(tile.kernel, TILED_THREADS, c.k * tile.filters * (int)sizeof(float), out);
}
}
}
#endif
