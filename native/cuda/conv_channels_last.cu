/* SPDX-License-Identifier: Apache-2.0
 * Copies a tensor so that each place's channels lie together, padded with zeros to whole 16 bytes, groups apart:
 *
 *     to[group][image][row][before + x][padded] = from[image][group channels + channel][row][x]   or, where channels are last already,
 *                                                 from[image][row][x][group channels + channel]
 *
 * with zeros before and after a row, if it is to be padded. A place is a pixel, or a filter's tap. Images pass through shared memory in squares of places x channels: both sides are touched along
 * what is contiguous, a thread has all its loads on their way at once, and writes 16 bytes. Where channels are last, places or channels few
 * (taps, the first layer), or rows padded, a thread gathers its 16 bytes by itself: what neighbours leave of a sector, L1 keeps. */
#include <algorithm>

#include "conv_wgmma.h"
#include "decomposition.cuh"
#include "epilogue.cuh"
#include "launch.h"

namespace pysim {
namespace {

enum { THREADS = 256, EDGE = 64 };

template <class T> __global__ void __launch_bounds__(THREADS) square_kernel(T *to, const T *from, const __grid_constant__ ChannelsLast of, int across, int down) {
    constexpr int VECTOR = 16 / sizeof(T), VECTORS = EDGE / VECTOR, ROWS = THREADS / EDGE;
    __shared__ T square[EDGE][EDGE + (sizeof(T) < 4 ? 4 / sizeof(T) : 1)]; /* an odd number of words: columns on different banks */
    const int place0 = (int)(blockIdx.x % across) * EDGE, rest = (int)(blockIdx.x / across), channel0 = rest % down * EDGE, z = rest / down;
    const int group = z / of.images, image = z - group * of.images, places = of.rows * of.width;
    from += ((int64_t)image * of.groups + group) * of.channels * places;
    to += (int64_t)z * places * of.padded;
    const int x = threadIdx.x % EDGE, y = threadIdx.x / EDGE;
    T value[EDGE / ROWS];
#pragma unroll
    for (int i = 0; i < EDGE / ROWS; i++) {
        const int channel = channel0 + y + i * ROWS;
        value[i] = place0 + x < places && channel < of.channels ? from[(int64_t)channel * places + place0 + x] : T(0);
    }
#pragma unroll
    for (int i = 0; i < EDGE / ROWS; i++) square[y + i * ROWS][x] = value[i];
    __syncthreads();
    const int first = threadIdx.x % VECTORS * VECTOR;
    for (int i = threadIdx.x / VECTORS; i < EDGE; i += THREADS / VECTORS) {
        if (place0 + i >= places || channel0 + first >= of.padded) continue;
        Pack<T, VECTOR> vector;
#pragma unroll
        for (int j = 0; j < VECTOR; j++) vector.value[j] = square[first + j][i];
        *(Pack<T, VECTOR> *)(to + (int64_t)(place0 + i) * of.padded + channel0 + first) = vector;
    }
}

template <class T> __global__ void __launch_bounds__(THREADS) gather_kernel(T *to, const T *from, const __grid_constant__ ChannelsLast of, unsigned count) {
    constexpr int VECTOR = 16 / sizeof(T);
    const unsigned index = blockIdx.x * (unsigned)THREADS + threadIdx.x, vectors = (unsigned)(of.padded / VECTOR);
    if (index >= count) return;
    const unsigned at = index / vectors, line = at / (unsigned)of.wide, z = line / (unsigned)of.rows, row = line - z * (unsigned)of.rows;
    const unsigned group = z / (unsigned)of.images, image = z - group * (unsigned)of.images;
    const int first = (int)(index - at * vectors) * VECTOR, x = (int)(at - line * (unsigned)of.wide) - of.before;
    const bool inside = (unsigned)x < (unsigned)of.width;
    const int64_t channels = (int64_t)of.groups * of.channels, channel0 = (int64_t)group * of.channels + first, places = (int64_t)of.rows * of.width;
    const int64_t place = (int64_t)row * of.width + x, step = of.last ? 1 : places;
    from += image * channels * places + (of.last ? place * channels + channel0 : channel0 * places + place);
    Pack<T, VECTOR> vector;
#pragma unroll
    for (int j = 0; j < VECTOR; j++) vector.value[j] = inside && first + j < of.channels ? from[j * step] : T(0);
    *(Pack<T, VECTOR> *)(to + (int64_t)index * VECTOR) = vector;
}

template <class T> cudaError_t start(void *to, const void *from, const ChannelsLast &of, cudaStream_t stream) {
    const int64_t images = (int64_t)of.images * of.groups;
    if (of.last || of.wide != of.width || of.rows * of.width < EDGE / 2 || of.padded < EDGE / 2) {
        const int64_t count = images * of.rows * of.wide * of.padded * (int64_t)sizeof(T) / 16;
        return launch(gather_kernel<T>, dim3((unsigned)((count + THREADS - 1) / THREADS)), dim3(THREADS), 0, stream, (T *)to, (const T *)from, of, (unsigned)count);
    }
    const int across = ceil_div(of.rows * of.width, EDGE), down = ceil_div(of.padded, EDGE);
    return launch(square_kernel<T>, dim3((unsigned)(images * across * down)), dim3(THREADS), 0, stream, (T *)to, (const T *)from, of, across, down);
}
}

cudaError_t channels_last(void *to, const void *from, const ChannelsLast &of, cudaStream_t stream) {
    return of.element_bytes == 2 ? start<unsigned short>(to, from, of, stream) : start<unsigned>(to, from, of, stream);
}
}
