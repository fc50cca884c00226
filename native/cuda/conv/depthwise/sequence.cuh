/* SPDX-License-Identifier: Apache-2.0
 * Depthwise convolution along rows of pixels whose channels lie last: kernels of one row, stride 1. A thread has 16 bytes of channels and WIDE neighbouring
 * columns of outputs. It reads each pixel of WIDE + taps - 1 once, and adds it to all sums that have a tap there; the weights of the last WIDE taps stay in
 * registers, where they move on by WIDE, as the loop is unrolled so often. A block's weights are in shared memory, transposed and as f32. Four-byte elements
 * with so many taps: staged.cuh.
 *
 * Up to SHORT taps are known at compile time: a thread has all its pixels and weights on their way at once, and no block waits for shared memory. Blocks
 * of neighbouring channels run side by side, so what they read and write together are whole pages of memory. f16 with STREAM_TAPS or more of them: stream.cuh.
 *
 * Taps are added in their order, padding as zeros. A pixel is multiplied only by taps of windows that contain it.
 *
 * Worked number: 4 taps of f16 read 7 pixels of 16 bytes for 4 outputs of 8 channels: 224 multiply-adds of 128 that count. */
#ifndef PYSIM_CUDA_CONV_DEPTHWISE_SEQUENCE_CUH
#define PYSIM_CUDA_CONV_DEPTHWISE_SEQUENCE_CUH
#include "conv/depthwise/staged.cuh"
#include "conv/depthwise/stream.cuh"

namespace pysim {
namespace {

template <class T> struct Sequence {
    enum { WIDE = limit::SEQUENCE_COLUMNS * (int)sizeof(T), CHANNELS = 16 / (int)sizeof(T), LANES = limit::SEQUENCE_LANES };
    enum { MOST_TAPS = limit::SEQUENCE_TAPS, SHORT = limit::SEQUENCE_SHORT, OUTPUTS = THREADS / LANES, BLOCK = LANES * CHANNELS };
    using Vector = Pack<T, CHANNELS>;
};

/* The steps from `first` of a thread: WIDE pixels. WHOLE: all sums have taps there. */
template <class T, bool WHOLE> __device__ __forceinline__ void add_pixels(int first, int taps,
                                                                          const typename Sequence<T>::Vector (&found)[Sequence<T>::WIDE],
                                                                          const float *weights,
                                                                          float (&by)[Sequence<T>::WIDE][Sequence<T>::CHANNELS],
                                                                          float (&sum)[Sequence<T>::WIDE][Sequence<T>::CHANNELS]) {
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

/* A thread's outputs: WIDE of a line from column q on, for the channels from `channel` on. */
template <class T> struct SequencePlace {
    using S = Sequence<T>;
    int chunk, channel, line, q;
    bool exists, inside; /* there are such outputs; their row of pixels lies in the image */
    const T *from;       /* pixel 0 of that row */

    __device__ explicit SequencePlace(const Conv &c) {
        const int chunks = ceil_div(c.groups, S::BLOCK), block = (int)blockIdx.x / chunks, across = ceil_div(c.out_w, S::WIDE),
                  place = block * S::OUTPUTS + (int)threadIdx.x / S::LANES;
        chunk = ((int)blockIdx.x - block * chunks) * S::BLOCK, channel = chunk + (int)threadIdx.x % S::LANES * S::CHANNELS;
        line = place / across, q = (place - line * across) * S::WIDE;
        const int image = line / c.out_h, h = (line - image * c.out_h) * c.stride_h - c.pad_top;
        exists = channel < c.groups && line < c.batch * c.out_h, inside = exists && (unsigned)h < (unsigned)c.height;
        from = (const T *)c.in + (int64_t)(image * c.height + h) * c.width * c.groups + channel;
    }
    __device__ typename S::Vector pixel(const Conv &c, int x, bool wanted) const {
        return inside && wanted && (unsigned)x < (unsigned)c.width ? *(const typename S::Vector *)(from + (int64_t)x * c.groups)
                                                                   : typename S::Vector{};
    }
    /* Calls with(Epilogue, the first output's number, how many there are). */
    template <class With> __device__ void store(const Conv &c, With with) const {
        const auto as = [&](auto out) {
            Problem p = c.product;
            p.c = c.out, p.m = c.windows, p.n = c.groups;
            with(Epilogue<float, decltype(out)>(p), line * c.out_w + q, min((int)S::WIDE, c.out_w - q));
        };
        if (sizeof(T) == 2 && c.product.c_dtype != PYSIM_F32) as(T());
        else as(0.f);
    }
};

template <class T> __global__ void __launch_bounds__(THREADS, 2) sequence_kernel(const __grid_constant__ Conv c) {
    using S = Sequence<T>;
    alignas(16) __shared__ float weights[S::MOST_TAPS * S::BLOCK];
    const SequencePlace<T> at(c);
    const int taps = c.kernel_w;
    for (int i = (int)threadIdx.x; i < taps * S::BLOCK; i += THREADS) {
        const int channel = i / taps, tap = i - channel * taps;
        weights[tap * S::BLOCK + channel] =
            at.chunk + channel < c.groups ? float(((const T *)c.weights)[(at.chunk + channel) * taps + tap]) : 0.f;
    }
    __syncthreads();
    if (!at.exists) return;
    const int w = at.q - c.pad_left, steps = S::WIDE + taps - 1;
    const float *const own = weights + at.channel - at.chunk;
    float sum[S::WIDE][S::CHANNELS] = {}, by[S::WIDE][S::CHANNELS] = {};
    for (int first = 0; first < steps; first += S::WIDE) {
        typename S::Vector found[S::WIDE];
#pragma unroll
        for (int step = 0; step < S::WIDE; step++) found[step] = at.pixel(c, w + first + step, first + step < steps);
        if (first >= S::WIDE && first + S::WIDE <= taps) add_pixels<T, true>(first, taps, found, own, by, sum);
        else add_pixels<T, false>(first, taps, found, own, by, sum);
    }
    at.store(c, [&](const auto &to, int output, int count) {
#pragma unroll 1
        for (int i = 0; i < count; i++) {
            to.store(output + i, at.channel, sum[0]);
#pragma unroll
            for (int next = 1; next < S::WIDE; next++)
#pragma unroll
                for (int v = 0; v < S::CHANNELS; v++) sum[next - 1][v] = sum[next][v];
        }
    });
}

/* Three blocks on an SM where their registers suffice: f16, 3 taps, 109 us instead of 124, where a copy takes 98; bf16, 4 taps, 306 instead of 131, as 500
 * bytes of a thread were spilled (8 x 8,192 x 1,536, H200). */
template <class T, int TAPS> struct ShortBlocks {
    enum { COUNT = sizeof(T) == 2 && TAPS <= 3 ? 3 : 2 };
};
template <class T, int TAPS> __global__ void __launch_bounds__(THREADS, ShortBlocks<T, TAPS>::COUNT)
    short_sequence_kernel(const __grid_constant__ Conv c) {
    using S = Sequence<T>;
    const SequencePlace<T> at(c);
    if (!at.exists) return;
    typename S::Vector found[S::WIDE + TAPS - 1], weights[TAPS]; /* weights lie as [channel][tap] */
#pragma unroll
    for (int i = 0; i < S::WIDE + TAPS - 1; i++) found[i] = at.pixel(c, at.q - c.pad_left + i, true);
#pragma unroll
    for (int i = 0; i < TAPS; i++) weights[i] = ((const typename S::Vector *)((const T *)c.weights + (int64_t)at.channel * TAPS))[i];
    /* The sums of output i. */
    const auto add = [&](int i, float (&sum)[S::CHANNELS]) {
#pragma unroll
        for (int v = 0; v < S::CHANNELS; v++) {
            sum[v] = 0;
#pragma unroll
            for (int tap = 0; tap < TAPS; tap++) {
                const int place = v * TAPS + tap;
                sum[v] = fmaf(float(found[i + tap].value[v]), float(weights[place / S::CHANNELS].value[place % S::CHANNELS]), sum[v]);
            }
        }
    };
    at.store(c, [&](const auto &to, int output, int count) {
        float sum[S::CHANNELS];
        if (to.plain) {
#pragma unroll
            for (int i = 0; i < S::WIDE; i++) {
                add(i, sum);
                if (i < count) to.template store_as<true>(output + i, at.channel, sum);
            }
            return;
        }
#pragma unroll 1
        for (int i = 0; i < count; i++) {
            add(0, sum);
            to.template store_as<false>(output + i, at.channel, sum);
#pragma unroll
            for (int next = 1; next < S::WIDE + TAPS - 1; next++) found[next - 1] = found[next];
        }
    });
}

/* Of bf16, 4 taps took 150 us by stream.cuh and 131 by short_sequence_kernel; 7 taps took 147, of f16 by toeplitz 145 (as above). */
template <class T> constexpr bool STREAMS = std::is_same_v<T, __half>;
template <class T> bool is_streamed(const Conv &c) {
    return STREAMS<T> && c.kernel_w >= limit::STREAM_TAPS && c.kernel_w <= Sequence<T>::SHORT;
}
/* The kernel of a problem; short ones also read weights 16 bytes at once. */
template <class T, int TAPS = 1> auto sequence_of(const Conv &c) -> void (*)(Conv) {
    if constexpr (TAPS == limit::STREAM_TAPS && STREAMS<T>) return is_streamed<T>(c) ? stream_of<T>(c) : sequence_kernel<T>;
    else if constexpr (TAPS > Sequence<T>::SHORT && sizeof(T) == 4) return staged_kernel<T>;
    else if constexpr (TAPS > Sequence<T>::SHORT) return sequence_kernel<T>;
    else return c.kernel_w == TAPS && (uintptr_t)c.weights % 16 == 0 ? short_sequence_kernel<T, TAPS> : sequence_of<T, TAPS + 1>(c);
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
        return fail(PYSIM_UNSUPPORTED,
                    "a depthwise convolution of sequences reads 16 bytes at once; its input, at %p, must begin at a multiple of them",
                    c.in);
    const int lines = c.batch * c.out_h;
    const auto kernel = sequence_of<T>(c);
    if (is_streamed<T>(c))
        return check(launch(kernel, stream_grid(c), dim3(THREADS), 0, stream, c), "a depthwise convolution of sequences");
    const bool staged = sizeof(T) == 4 && (c.kernel_w > S::SHORT || (uintptr_t)c.weights % 16);
    const int blocks = staged ? lines * ceil_div(c.out_w, Staged::OUTPUTS) : ceil_div(lines * ceil_div(c.out_w, S::WIDE), S::OUTPUTS);
    const dim3 grid((unsigned)blocks * (unsigned)ceil_div(c.groups, staged ? (int)Staged::BLOCK : (int)S::BLOCK));
    return check(launch(kernel, grid, dim3(THREADS), 0, stream, c), "a depthwise convolution of sequences");
}
template <class T> cudaError_t attributes_of_sequence(const Conv &c, pysim_cuda_attributes *out) {
    return attributes_of(sequence_of<T>(c), THREADS, 0, out);
}
}
}
#endif
