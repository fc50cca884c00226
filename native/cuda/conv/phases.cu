/* SPDX-License-Identifier: Apache-2.0
 * Interleaves the outputs of a convolution whose filters are the phases of a transposed one (pysim/problem/transposed.py):
 *
 *     to(n, m, u - start) = from(n, m phases + r, p),   u = p stride + r  along each axis
 *
 * NHWC: all phases of all filters of a window are contiguous, so a thread reads 16 bytes times the phases and writes 16 bytes of each, neighbours of
 * whose filters are written by neighbouring lanes. Else, and where channels are not whole vectors, a thread has an element of the result.
 *
 * Worked number: 64 filters of f16 and a stride of 2 along two axes: a thread reads 64 bytes, eight threads a window. */
#include "conv/phases.h"

#include "core/epilogue.cuh"
#include "core/launch.h"

namespace pysim {
namespace {

enum { THREADS = 256 };
template <int BYTES> using Word = std::conditional_t<BYTES == 2, unsigned short, std::conditional_t<BYTES == 4, unsigned, unsigned long long>>;

/* The place along an axis of a window's phase in the result; outside of it: cut off. */
__device__ inline bool inside(const Phases &p, int axis, int window, int phase, int &at) {
    at = window * p.strides[axis] + phase - p.starts[axis];
    return (unsigned)at < (unsigned)p.out[axis];
}

template <int BYTES, int PHASES> __global__ void __launch_bounds__(THREADS) vectors_kernel(const __grid_constant__ Phases p, int threads) {
    using T = Word<BYTES>;
    enum { WIDE = 16 / BYTES };
    using Vector = Pack<T, WIDE>;
    const int index = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (index >= threads) return;
    int vector, window[3];
    const int at = p.by_vectors.of(index, vector);
    const int image = p.by_windows[0].of(p.by_windows[1].of(p.by_windows[2].of(at, window[2]), window[1]), window[0]);
    const Vector *const from = (const Vector *)p.from + (int64_t)index * PHASES;
    Vector found[PHASES];
#pragma unroll
    for (int i = 0; i < PHASES; i++) found[i] = from[i];
#pragma unroll
    for (int r = 0; r < PHASES; r++) {
        Vector result;
#pragma unroll
        for (int j = 0; j < WIDE; j++) result.value[j] = found[(j * PHASES + r) / WIDE].value[(j * PHASES + r) % WIDE];
        int phase[3], place[3];
        phase[0] = p.by_strides[1].of(p.by_strides[2].of(r, phase[2]), phase[1]);
        bool here = true;
#pragma unroll
        for (int axis = 0; axis < 3; axis++) here = inside(p, axis, window[axis], phase[axis], place[axis]) && here;
        const int64_t pixel = (((int64_t)image * p.out[0] + place[0]) * p.out[1] + place[1]) * p.out[2] + place[2];
        if (here) ((Vector *)p.to)[pixel * p.vectors + vector] = result;
    }
}

template <int BYTES> __global__ void __launch_bounds__(THREADS) elements_kernel(const __grid_constant__ Phases p) {
    using T = Word<BYTES>;
    const int index = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (index >= p.elements) return;
    int filter = 0, place[3], at = index;
    if (p.nhwc) at = p.by_filters.of(at, filter);
#pragma unroll
    for (int axis = 2; axis >= 0; axis--) at = p.by_out[axis].of(at, place[axis]);
    if (!p.nhwc) at = p.by_filters.of(at, filter);
    int phase = 0;
    int64_t window = 0;
#pragma unroll
    for (int axis = 0; axis < 3; axis++) {
        int r;
        window = window * p.windows[axis] + p.by_strides[axis].of(place[axis] + p.starts[axis], r);
        phase = phase * p.strides[axis] + r;
    }
    const int64_t plane = (int64_t)p.windows[0] * p.windows[1] * p.windows[2], channels = (int64_t)p.filters * p.phases,
                  channel = (int64_t)filter * p.phases + phase;
    ((T *)p.to)[index] = ((const T *)p.from)[p.nhwc ? (at * plane + window) * channels + channel : (at * channels + channel) * plane + window];
}

template <int BYTES> cudaError_t start(const Phases &p, int64_t batch, cudaStream_t stream) {
    const auto by = [&](auto kernel) {
        const int64_t threads = batch * p.windows[0] * p.windows[1] * p.windows[2] * p.vectors;
        return launch(kernel, dim3((unsigned)((threads + THREADS - 1) / THREADS)), dim3(THREADS), 0, stream, p, (int)threads);
    };
    if (p.vectors && p.phases == 2) return by(vectors_kernel<BYTES, 2>);
    if (p.vectors && p.phases == 4) return by(vectors_kernel<BYTES, 4>);
    if (p.vectors && p.phases == 8) return by(vectors_kernel<BYTES, 8>);
    return launch(elements_kernel<BYTES>, dim3((unsigned)((p.elements + THREADS - 1) / THREADS)), dim3(THREADS), 0, stream, p);
}
}

cudaError_t interleave(const Phases &p, int bytes, int64_t batch, cudaStream_t stream) {
    return bytes == 2 ? start<2>(p, batch, stream) : bytes == 4 ? start<4>(p, batch, stream) : start<8>(p, batch, stream);
}
}
