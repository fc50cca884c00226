/* SPDX-License-Identifier: Apache-2.0
 * Depthwise convolution along rows of pixels whose channels lie last: kernels of one row, stride 1. A thread has 16 bytes of channels and WIDE neighbouring
 * columns of outputs. It reads each pixel of WIDE + taps - 1 once, and adds it to all sums that have a tap there; the weights of the last WIDE taps stay in
 * registers, where they move on by WIDE, as the loop is unrolled so often. A block's weights are in shared memory, transposed and as f32.
 *
 * Taps are added in their order, padding as zeros. A pixel is multiplied only by taps of windows that contain it.
 *
 * Worked number: 4 taps of f16 read 7 pixels of 16 bytes for 4 outputs of 8 channels: 224 multiply-adds of 128 that count. */
#ifndef PYSIM_CUDA_CONV_DEPTHWISE_SEQUENCE_CUH
#define PYSIM_CUDA_CONV_DEPTHWISE_SEQUENCE_CUH
#include "conv/untiled.cuh"
#include "core/decomposition.cuh"

namespace pysim {
namespace {

template <class T> struct Sequence {
    enum { WIDE = 4, CHANNELS = 16 / sizeof(T), LANES = 8, BLOCK = LANES * CHANNELS, MOST_TAPS = 64, OUTPUTS = THREADS / LANES };
    using Vector = Pack<T, CHANNELS>;
};

/* The steps from `first` of a thread: WIDE pixels. WHOLE: all sums have taps there. */
template <class T, bool WHOLE> __device__ __forceinline__ void add_pixels(
    int first, int taps, const typename Sequence<T>::Vector (&found)[Sequence<T>::WIDE], const float *weights,
    float (&by)[Sequence<T>::WIDE][Sequence<T>::CHANNELS], float (&sum)[Sequence<T>::WIDE][Sequence<T>::CHANNELS]) {
    using S = Sequence<T>;
#pragma unroll
    for (int step = 0; step < S::WIDE; step++) {
        const int tap = first + step;
        if (WHOLE || tap < taps)
#pragma unroll
            for (int v = 0; v < S::CHANNELS; v += 4) {
                const auto four = *(const Pack<float, 4> *)(weights + tap * S::BLOCK + v);
#pragma unroll
                for (int e = 0; e < 4; e++) by[step][v + e] = four.value[e];
            }
#pragma unroll
        for (int i = 0; i < S::WIDE; i++) {
            if (!WHOLE && (unsigned)(tap - i) >= (unsigned)taps) continue;
#pragma unroll
            for (int v = 0; v < S::CHANNELS; v++)
                sum[i][v] = fmaf(float(found[step].value[v]), by[(step - i + S::WIDE) % S::WIDE][v], sum[i][v]);
        }
    }
}

template <class T> __global__ void __launch_bounds__(THREADS, 2) sequence_kernel(const __grid_constant__ Conv c) {
    using S = Sequence<T>;
    alignas(16) __shared__ float weights[S::MOST_TAPS * S::BLOCK];
    const int taps = c.kernel_w, chunk = (int)blockIdx.y * S::BLOCK;
    for (int i = (int)threadIdx.x; i < taps * S::BLOCK; i += THREADS) {
        const int channel = i / taps, tap = i - channel * taps;
        weights[tap * S::BLOCK + channel] = chunk + channel < c.groups ? float(((const T *)c.weights)[(chunk + channel) * taps + tap]) : 0.f;
    }
    __syncthreads();
    const int across = ceil_div(c.out_w, S::WIDE), place = (int)blockIdx.x * S::OUTPUTS + (int)threadIdx.x / S::LANES;
    const int lane = (int)threadIdx.x % S::LANES, channel = chunk + lane * S::CHANNELS, line = place / across;
    if (channel >= c.groups || line >= c.batch * c.out_h) return;
    const int q = (place - line * across) * S::WIDE, image = line / c.out_h;
    const int h = (line - image * c.out_h) * c.stride_h - c.pad_top, w = q - c.pad_left, steps = S::WIDE + taps - 1;
    const bool inside = (unsigned)h < (unsigned)c.height;
    const T *const from = (const T *)c.in + (int64_t)(image * c.height + h) * c.width * c.groups + channel;
    const float *const own = weights + lane * S::CHANNELS;
    float sum[S::WIDE][S::CHANNELS] = {}, by[S::WIDE][S::CHANNELS] = {};
    for (int first = 0; first < steps; first += S::WIDE) {
        typename S::Vector found[S::WIDE];
#pragma unroll
        for (int step = 0; step < S::WIDE; step++) {
            const int x = w + first + step;
            found[step] = typename S::Vector{};
            if (inside && (unsigned)x < (unsigned)c.width && first + step < steps)
                found[step] = *(const typename S::Vector *)(from + (int64_t)x * c.groups);
        }
        if (first >= S::WIDE && first + S::WIDE <= taps) add_pixels<T, true>(first, taps, found, own, by, sum);
        else add_pixels<T, false>(first, taps, found, own, by, sum);
    }
    const auto as = [&](auto out) {
        using Out = decltype(out);
        Problem p = c.product;
        p.c = c.out, p.m = c.windows, p.n = c.groups;
        const Epilogue<float, Out> to(p);
#pragma unroll 1
        for (int i = 0; i < S::WIDE && q + i < c.out_w; i++) {
            to.store(line * c.out_w + q + i, channel, sum[0]);
#pragma unroll
            for (int next = 1; next < S::WIDE; next++)
#pragma unroll
                for (int v = 0; v < S::CHANNELS; v++) sum[next - 1][v] = sum[next][v];
        }
    };
    if (sizeof(T) == 2 && c.product.c_dtype != PYSIM_F32) as(T());
    else as(0.f);
}

template <class T> const char *not_sequence(const Conv &c) {
    using S = Sequence<T>;
    static_assert(S::MOST_TAPS == 64, "what the sentence says");
    if (c.channels != 1 || c.filters != 1) return "it takes one channel and one filter a group";
    if (!c.nhwc || c.groups % S::CHANNELS) return "it takes channels last, in whole 16 bytes";
    const bool row = c.kernel_h == 1 && c.stride_w == 1 && c.dilation_w == 1;
    return row && c.kernel_w <= S::MOST_TAPS ? nullptr : "it takes kernels of one row of up to 64 taps with stride 1";
}
template <class T> pysim_status launch_sequence(const Conv &c, int, cudaStream_t stream) {
    using S = Sequence<T>;
    if ((uintptr_t)c.in % 16)
        return fail(PYSIM_UNSUPPORTED, "a depthwise convolution of sequences reads 16 bytes at once; its input, at %p, must begin at a multiple of them", c.in);
    const int places = c.batch * c.out_h * ceil_div(c.out_w, S::WIDE);
    const dim3 grid((unsigned)ceil_div(places, S::OUTPUTS), (unsigned)ceil_div(c.groups, S::BLOCK));
    return check(launch(sequence_kernel<T>, grid, dim3(THREADS), 0, stream, c), "a depthwise convolution of sequences");
}
template <class T> cudaError_t attributes_of_sequence(const Conv &, pysim_cuda_attributes *out) {
    return attributes_of(sequence_kernel<T>, THREADS, 0, out);
}
}
}
#endif
