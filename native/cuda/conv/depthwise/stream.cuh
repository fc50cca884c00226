/* SPDX-License-Identifier: Apache-2.0
 * Depthwise convolution along rows of pixels whose channels lie last, of f16: kernels of one row with few taps, stride 1. A
 * thread has LENGTH neighbouring columns of CHANNELS channels. It reads each pixel once, AHEAD columns before it is needed, and adds it to
 * the TAPS sums that have a tap there; weights and sums stay in registers. Nothing waits for shared memory or for other threads.
 *
 * Taps are added in their order, padding as zeros. A pixel is multiplied only by taps of windows that contain it.
 *
 * Worked number: 7 taps of 32 columns read 38 pixels: 1,064 multiply-adds, of which 896 count. */
#ifndef PYSIM_CUDA_CONV_DEPTHWISE_STREAM_CUH
#define PYSIM_CUDA_CONV_DEPTHWISE_STREAM_CUH
#include <cstring>

#include "conv/untiled.cuh"
#include "core/decomposition.cuh"
#include "core/ptx.cuh"

namespace pysim {
namespace {

struct Stream {
    enum { CHANNELS = limit::STREAM_CHANNELS, LANES = limit::STREAM_LANES, LENGTH = limit::STREAM_COLUMNS, BLOCK = LANES * CHANNELS };
    enum { OUTPUTS = THREADS / LANES /* runs of a block */ };
};

/* The outputs of a thread: `count` of a line from column q on, for the channels from `channel` on. */
template <class T> struct StreamPlace {
    using Vector = Pack<T, Stream::CHANNELS>;
    int channel, line, q, count;
    int first, span; /* the columns that lie in the image, and that an output needs */
    const T *from;   /* column 0; it need not exist */

    __device__ explicit StreamPlace(const Conv &c) {
        using S = Stream;
        const int chunks = ceil_div(c.groups, S::BLOCK), block = (int)blockIdx.x / chunks, across = ceil_div(c.out_w, S::LENGTH),
                  place = block * S::OUTPUTS + (int)threadIdx.x / S::LANES;
        channel = ((int)blockIdx.x - block * chunks) * S::BLOCK + (int)threadIdx.x % S::LANES * S::CHANNELS;
        line = place / across, q = (place - line * across) * S::LENGTH, count = min((int)S::LENGTH, c.out_w - q);
        const int image = line / c.out_h, h = (line - image * c.out_h) * c.stride_h - c.pad_top, x = q - c.pad_left;
        first = max(0, -x);
        span = (unsigned)h < (unsigned)c.height ? max(0, min(count + c.kernel_w - 1, c.width - x) - first) : 0;
        from = (const T *)c.in + ((int64_t)(image * c.height + h) * c.width + x) * c.groups + channel;
    }
    __device__ bool exists(const Conv &c) const { return channel < c.groups && line < c.batch * c.out_h; }
    __device__ Vector pixel(const Conv &c, int column) const {
        enum { BYTES = sizeof(Vector) };
        const auto words = Access<BYTES>::load(from + (int64_t)column * c.groups, (unsigned)(column - first) < (unsigned)span);
        Vector found;
        memcpy(&found, &words, BYTES);
        return found;
    }
};

/* The sums of a thread's columns, each to store(column, sums). LATE: TAPS of them are stored one after another, so that the code of an
 * epilogue exists once. */
template <bool LATE, class T, int TAPS, class Store>
__device__ __forceinline__ void sum_stream(const Conv &c, const StreamPlace<T> &at, Store store) {
    enum { CHANNELS = Stream::CHANNELS, AHEAD = LATE || 2 * TAPS > limit::STREAM_AHEAD ? TAPS : 2 * TAPS };
    typename StreamPlace<T>::Vector next[AHEAD];
    float weights[TAPS][CHANNELS], sum[TAPS][CHANNELS], late[LATE ? TAPS : 1][CHANNELS];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) next[i] = at.pixel(c, i);
#pragma unroll
    for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
        for (int v = 0; v < CHANNELS; v++) weights[tap][v] = float(((const T *)c.weights)[(int64_t)(at.channel + v) * TAPS + tap]);
#pragma unroll 1
    for (int column = 0; column < at.count + TAPS - 1; column += AHEAD) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            float x[CHANNELS];
#pragma unroll
            for (int v = 0; v < CHANNELS; v++) x[v] = float(next[i].value[v]);
            next[i] = at.pixel(c, column + AHEAD + i);
#pragma unroll
            for (int tap = TAPS - 1; tap >= 0; tap--)
#pragma unroll
                for (int v = 0; v < CHANNELS; v++) {
                    float &of = sum[(i - tap + TAPS) % TAPS][v];
                    of = fmaf(x[v], weights[tap][v], tap ? of : 0.f);
                }
            const int output = column + i - (TAPS - 1); /* whose last tap that was */
            float (&whole)[CHANNELS] = sum[(i + 1) % TAPS];
            if constexpr (LATE)
#pragma unroll
                for (int v = 0; v < CHANNELS; v++) late[i][v] = whole[v];
            else if ((unsigned)output < (unsigned)at.count) store(output, whole);
        }
        if constexpr (LATE)
#pragma unroll 1
            for (int i = 0; i < TAPS; i++) {
                const int output = column + i - (TAPS - 1);
                if ((unsigned)output < (unsigned)at.count) store(output, late[0]);
#pragma unroll
                for (int later = 1; later < TAPS; later++)
#pragma unroll
                    for (int v = 0; v < CHANNELS; v++) late[later - 1][v] = late[later][v];
            }
    }
}

template <class T, class Out, int TAPS>
__global__ void __launch_bounds__(THREADS, TAPS > limit::STREAM_TAPS ? 2 : 3) stream_kernel(const __grid_constant__ Conv c) {
    const StreamPlace<T> at(c);
    if (!at.exists(c)) return;
    Problem p = c.product;
    p.c = c.out, p.m = c.windows, p.n = c.groups;
    const Epilogue<float, Out> to(p);
    const int row = at.line * c.out_w + at.q;
    const auto plainly = [&](int output, const auto &sum) { to.template store_as<true>(row + output, at.channel, sum); };
    const auto finished = [&](int output, const auto &sum) { to.template store_as<false>(row + output, at.channel, sum); };
    if (to.plain) sum_stream<false, T, TAPS>(c, at, plainly);
    else sum_stream<true, T, TAPS>(c, at, finished);
}

/* The kernel of a problem of STREAM_TAPS to SEQUENCE_SHORT taps. */
template <class T, int TAPS = limit::STREAM_TAPS> auto stream_of(const Conv &c) -> void (*)(Conv) {
    if constexpr (TAPS < limit::SEQUENCE_SHORT)
        if (c.kernel_w > TAPS) return stream_of<T, TAPS + 1>(c);
    return c.product.c_dtype == PYSIM_F32 ? stream_kernel<T, float, TAPS> : stream_kernel<T, T, TAPS>;
}
inline dim3 stream_grid(const Conv &c) {
    using S = Stream;
    return dim3((unsigned)ceil_div(c.batch * c.out_h * ceil_div(c.out_w, S::LENGTH), S::OUTPUTS) * (unsigned)ceil_div(c.groups, S::BLOCK));
}
}
}
#endif
