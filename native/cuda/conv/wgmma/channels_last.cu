/* SPDX-License-Identifier: Apache-2.0
 * Copies a tensor to channels last, channels padded with zeros to whole 16 bytes, groups apart:
 *
 *     to[group][image][row][before + x][padded] = from[image][group channels + channel][row][x]   or, if channels are last already,
 *                                                 from[image][row][x][group channels + channel]
 *
 * Optionally: zeros before and after each row; without the pixels that no window uses (Every); space-to-depth, where a place has the channels of a
 * square of pixels (Fold). A place is a pixel, or a filter's tap. Images pass through shared memory in squares of places x channels: reads and writes
 * are coalesced, a thread has all its loads in flight at once and writes 16 bytes. If channels are last, places or channels few (taps, the first
 * layer), or rows padded, a thread gathers its 16 bytes directly: L1 keeps the rest of a sector for its neighbours. A prologue (pysim_cuda.h) is
 * applied on the way. */
#include <algorithm>

#include "conv/wgmma/wgmma.h"
#include "core/decomposition.cuh"
#include "core/epilogue.cuh"
#include "core/launch.h"

namespace pysim {
namespace {

enum { THREADS = 256, EDGE = 64 };
/* Elements of a word; and of a row of a square, an odd number of words: columns on different banks. */
template <class T> constexpr int PAIR = 4 / sizeof(T);
template <class T> constexpr int PITCH = EDGE + PAIR<T>;

/* Where pixel x of row `row` lies in its plane, and the pixels of a plane. */
__device__ inline int pixel_of(const ChannelsLast &of, int row, int x) {
    return of.every.plane ? row * of.every.high * of.every.width + x * of.every.wide : row * of.width + x;
}
__device__ inline int plane_of(const ChannelsLast &of) { return of.every.plane ? of.every.plane : of.rows * of.width; }

/* What the prologue makes of an element of a channel, counted from the first group's. */
template <class T> __device__ inline T prologue_of(const ChannelsLast &of, T word, int image, int channel) {
    if constexpr (sizeof(T) == 4)
        if (of.prologue.any())
            return __float_as_uint(with_prologue(of.prologue, __uint_as_float(word), image * of.groups * of.channels, channel));
    return word;
}

/* The kernel of a copy and its blocks; squares: places copied at once through shared memory; 0: by vectors. */
struct Job {
    ChannelsLast of;
    int squares;
    unsigned blocks;
};

/* A square of places x channels of one image and group, WIDE places at a time. */
template <class T, int WIDE> __device__ void copy_square(const ChannelsLast &of, unsigned block, T (&square)[EDGE][PITCH<T>]) {
    constexpr int VECTOR = 16 / sizeof(T), VECTORS = EDGE / VECTOR, ROWS = THREADS * WIDE / EDGE;
    using Word = Pack<T, WIDE>;
    const T *from = (const T *)of.from;
    T *to = (T *)of.to;
    const unsigned across = (unsigned)ceil_div(of.rows * of.width, EDGE), down = (unsigned)ceil_div(of.padded, EDGE);
    const int place0 = (int)(block % across) * EDGE, channel0 = (int)(block / across % down) * EDGE, z = (int)(block / across / down);
    const int group = z / of.images, image = z - group * of.images, places = of.rows * of.width, plane = plane_of(of);
    from += ((int64_t)image * of.groups + group) * of.channels * plane;
    to += (int64_t)z * places * of.padded;
    const int x = threadIdx.x * WIDE % EDGE, y = threadIdx.x * WIDE / EDGE, place = place0 + x, row = of.every.plane ? place / of.width : 0;
    from += pixel_of(of, row, place - row * of.width);
    Word value[EDGE / ROWS];
#pragma unroll
    for (int i = 0; i < EDGE / ROWS; i++) {
        const int channel = channel0 + y + i * ROWS;
        value[i] = place < places && channel < of.channels ? *(const Word *)(from + (int64_t)channel * plane) : Word{};
    }
    if (WIDE == 1 && of.prologue.any()) /* behind the loads, which are all on their way */
#pragma unroll
        for (int i = 0; i < EDGE / ROWS; i++) {
            const int channel = channel0 + y + i * ROWS;
            if (place < places && channel < of.channels)
                value[i].value[0] = prologue_of(of, value[i].value[0], image, group * of.channels + channel);
        }
#pragma unroll
    for (int i = 0; i < EDGE / ROWS; i++) *(Word *)&square[y + i * ROWS][x] = value[i];
    __syncthreads();
    const int first = threadIdx.x % VECTORS * VECTOR;
    for (int i = threadIdx.x / VECTORS * WIDE; i < EDGE; i += THREADS / VECTORS * WIDE) {
        if (place0 + i >= places || channel0 + first >= of.padded) continue;
        Pack<T, VECTOR> vector[WIDE];
#pragma unroll
        for (int j = 0; j < VECTOR; j++) {
            const Word word = *(const Word *)&square[first + j][i];
#pragma unroll
            for (int k = 0; k < WIDE; k++) vector[k].value[j] = word.value[k];
        }
#pragma unroll
        for (int k = 0; k < WIDE; k++) *(Pack<T, VECTOR> *)(to + (int64_t)(place0 + i + k) * of.padded + channel0 + first) = vector[k];
    }
}

/* 16 bytes a thread. */
template <class T> __device__ void copy_vectors(const ChannelsLast &of, unsigned block) {
    constexpr int VECTOR = 16 / sizeof(T);
    const unsigned index = block * (unsigned)THREADS + threadIdx.x, vectors = (unsigned)(of.padded / VECTOR);
    if (index >= (uint64_t)of.images * of.groups * of.rows * of.wide * vectors) return;
    const unsigned at = index / vectors, line = at / (unsigned)of.wide, z = line / (unsigned)of.rows, row = line - z * (unsigned)of.rows;
    const unsigned group = z / (unsigned)of.images, image = z - group * (unsigned)of.images;
    const int first = (int)(index - at * vectors) * VECTOR, x = (int)(at - line * (unsigned)of.wide) - of.before;
    const bool inside = (unsigned)x < (unsigned)of.width;
    const int64_t channels = (int64_t)of.groups * of.channels, channel0 = (int64_t)group * of.channels + first, plane = plane_of(of);
    const int64_t place = pixel_of(of, (int)row, x), step = of.last ? 1 : plane;
    const T *from = (const T *)of.from + image * channels * plane + (of.last ? place * channels + channel0 : channel0 * plane + place);
    Pack<T, VECTOR> vector;
#pragma unroll
    for (int j = 0; j < VECTOR; j++)
        vector.value[j] = inside && first + j < of.channels ? prologue_of(of, from[j * step], (int)image, (int)channel0 + j) : T(0);
    *(Pack<T, VECTOR> *)((T *)of.to + (int64_t)index * VECTOR) = vector;
}

/* The same with space-to-depth. */
template <class T> __device__ void copy_folded(const ChannelsLast &of, unsigned block) {
    constexpr int VECTOR = 16 / sizeof(T);
    const Fold &fold = of.fold;
    const unsigned index = block * (unsigned)THREADS + threadIdx.x, vectors = (unsigned)(of.padded / VECTOR);
    if (index >= (uint64_t)of.images * fold.rows * of.wide * vectors) return;
    const unsigned at = index / vectors, line = at / (unsigned)of.wide, image = line / (unsigned)fold.rows;
    const int first = (int)(index - at * vectors) * VECTOR, y = (int)(line - image * (unsigned)fold.rows),
              x = (int)(at - line * (unsigned)of.wide);
    int across = first % fold.wide, down = first / fold.wide % fold.high, channel = first / fold.wide / fold.high;
    const int w0 = x * fold.wide - of.before, h0 = y * fold.high - fold.top, places = of.rows * of.width;
    /* `image` is a slice of a volume, whose channels lie a volume's pixels apart unless they are last */
    const int volume = (int)image / of.slices, slice = (int)image - volume * of.slices;
    const int64_t apart = (int64_t)places * of.slices;
    const T *const from =
        (const T *)of.from + (of.last ? (int64_t)image * of.channels * places : volume * of.channels * apart + slice * (int64_t)places);
    Pack<T, VECTOR> vector;
#pragma unroll
    for (int j = 0; j < VECTOR; j++) {
        const int h = h0 + down, w = w0 + across, place = h * of.width + w;
        const bool inside = channel < of.channels && (unsigned)h < (unsigned)of.rows && (unsigned)w < (unsigned)of.width;
        const int64_t at = of.last ? (int64_t)place * of.channels + channel : channel * apart + place;
        vector.value[j] = inside ? prologue_of(of, from[at], volume, channel) : T(0);
        if (++across == fold.wide) across = 0, down++;
        if (down == fold.high) down = 0, channel++;
    }
    *(Pack<T, VECTOR> *)((T *)of.to + (int64_t)index * VECTOR) = vector;
}

template <class T> __global__ void __launch_bounds__(THREADS)
    channels_last_kernel(const __grid_constant__ Job one, const __grid_constant__ Job other) {
    const bool first = blockIdx.x < one.blocks;
    const Job &job = first ? one : other;
    const unsigned block = first ? blockIdx.x : blockIdx.x - one.blocks;
    alignas(4) __shared__ T square[EDGE][PITCH<T>];
    wait_for_previous();
    launch_dependents();
    if (job.of.fold.rows) copy_folded<T>(job.of, block);
    else if (job.squares == 1) copy_square<T, 1>(job.of, block, square);
    else if (job.squares) copy_square<T, PAIR<T>>(job.of, block, square);
    else copy_vectors<T>(job.of, block);
}

template <class T> Job job_of(const ChannelsLast &of) {
    if (!of.to) return {of, 0, 0};
    const auto blocks = [&](int64_t rows) {
        return (unsigned)((rows * of.wide * of.padded * (int64_t)sizeof(T) / 16 + THREADS - 1) / THREADS);
    };
    if (of.fold.rows) return {of, 0, blocks((int64_t)of.images * of.fold.rows)};
    const int64_t images = (int64_t)of.images * of.groups, places = (int64_t)of.rows * of.width;
    if (of.last || of.wide != of.width || places < EDGE / 3 || of.padded < EDGE / 2) return {of, 0, blocks(images * of.rows)};
    const bool words = !of.every.plane && places % PAIR<T> == 0 && (uintptr_t)of.from % 4 == 0;
    return {of, words ? PAIR<T> : 1, (unsigned)(images * ceil_div((int)places, EDGE) * ceil_div(of.padded, EDGE))};
}

template <class T> cudaError_t start(const ChannelsLast &one, const ChannelsLast &other, cudaStream_t stream) {
    const Job first = job_of<T>(one), second = job_of<T>(other);
    return launch_with({1, has_dependent_launch()}, channels_last_kernel<T>, dim3(first.blocks + second.blocks), dim3(THREADS), 0, stream,
                       first, second);
}
}

cudaError_t channels_last(const ChannelsLast &one, const ChannelsLast &other, int element_bytes, cudaStream_t stream) {
    return element_bytes == 2 ? start<unsigned short>(one, other, stream) : start<unsigned>(one, other, stream);
}
}
