/* SPDX-License-Identifier: Apache-2.0
 * Implicit GEMM on mma.sync: the tiles of mma.cu, windows x filters, their windows gathered from a channels-last input on the way into
 * shared memory.
 *
 *     sums[window][filter] = sum over k of in(window, k) weights[filter][k],    k = (r kernel_w + s) C + channel
 *
 * C is a group's channels, rounded up to 16 bytes: a copy of 16 bytes is then some channels of one tap of one window, inside the input or
 * outside as a whole, so that the gather is cp.async with zeros for what is outside. Inputs that do not lie so (NCHW, or other numbers of
 * channels) are re-laid-out into `own` first, and the filters with them. A thread copies the same 16 bytes of k of a few windows: it finds
 * its tap once a step, and each window by an offset and two comparisons.
 *
 * Worked number: f16, 64 -> 64 channels, 3 x 3: k = 576, 18 steps of 32; the thread of chunk 2 in step 7 has k = 7 * 32 + 16 = 240: tap 3
 * (r 1, s 0), channel 48. */
#include <algorithm>

#include "arguments.h"
#include "conv.h"
#include "conv_output.cuh"
#include "mma.cuh"

namespace pysim {
namespace {

enum { THREADS = 256, SQUARE = 32, LONGEST = 32767 };

/* A group's channels as the kernels see them. */
int padded_channels(const Conv &c) {
    const int element = dtypes[c.dtype].bytes;
    return ceil_div(c.channels * element, 16) * 16 / element;
}

/* Bytes of the operands' copies in `own`; 0: they stay where they are. */
struct Own { int64_t input, weights; };
Own own_of(const Conv &c) {
    const int64_t element = dtypes[c.dtype].bytes, channels = padded_channels(c);
    if (c.nhwc && channels == c.channels) return {0, 0};
    return {round_up(c.batch * (int64_t)c.height * c.width * c.groups * channels * element, ALIGN),
            round_up((int64_t)c.groups * c.filters * c.kernel_h * c.kernel_w * channels * element, ALIGN)};
}

/* to[image][place][group][channel], channels padded with zeros, from [image][group][channel][place] or, `last`, [image][place][group][channel].
 * A place is a pixel, or a filter's tap. A square of places x channels passes through shared memory: both sides are touched along what is
 * contiguous. */
template <class T> __global__ void __launch_bounds__(THREADS) channels_last_kernel(T *to, const T *from, int places, int groups, int channels, int padded, bool last) {
    __shared__ T square[SQUARE][SQUARE + 4 / sizeof(T)];
    const int x = threadIdx.x % SQUARE, y = threadIdx.x / SQUARE, place0 = blockIdx.x * SQUARE, channel0 = blockIdx.y * SQUARE;
    const int group = (int)(blockIdx.z % groups);
    const int64_t image = blockIdx.z / groups, first = image * groups * channels * places;
    for (int i = y; i < SQUARE; i += THREADS / SQUARE) {
        const int place = place0 + (last ? i : x), channel = channel0 + (last ? x : i);
        const int64_t at = last ? ((int64_t)place * groups + group) * channels + channel : ((int64_t)group * channels + channel) * places + place;
        square[last ? i : x][last ? x : i] = place < places && channel < channels ? from[first + at] : T(0);
    }
    __syncthreads();
    for (int i = y; i < SQUARE; i += THREADS / SQUARE) {
        const int place = place0 + i, channel = channel0 + x;
        if (place < places && channel < padded) to[((image * places + place) * groups + group) * padded + channel] = square[i][x];
    }
}

template <class T> cudaError_t to_channels_last(void *to, const void *from, int images, int places, int groups, const Conv &c, cudaStream_t stream) {
    const dim3 grid((unsigned)ceil_div(places, SQUARE), (unsigned)ceil_div(padded_channels(c), SQUARE), (unsigned)(images * groups));
    return launch(channels_last_kernel<T>, grid, dim3(THREADS), 0, stream, (T *)to, (const T *)from, places, groups, c.channels, padded_channels(c), (bool)c.nhwc);
}

/* A thread's share of the copies of tiles of windows, as Copies of tensor.cuh. */
template <class In, class Tile, int K, int COUNT_OF_THREADS> class Windows {
    static constexpr int element = sizeof(In), row_step = COUNT_OF_THREADS / Tile::chunks, COUNT = Tile::rows / row_step;
    static_assert(COUNT_OF_THREADS % Tile::chunks == 0 && Tile::rows % row_step == 0, "every thread copies as many windows");
    const Conv &c;
    const char *origin;
    int pixel, k, offset; /* pixel: bytes from one to the next */
    int base[COUNT];      /* pixels from the origin to a window's first one */
    int corner[COUNT];    /* that one's row and column, 16 bits each */

  public:
    __device__ Windows(const Conv &conv, int group, int window0)
        : c(conv), origin((const char *)conv.in + (int64_t)group * conv.channels * element), pixel(conv.groups * conv.channels * element) {
        const int row = (int)threadIdx.x / Tile::chunks, chunk = (int)threadIdx.x % Tile::chunks * 16;
        k = chunk / element;
        offset = row * Tile::pitch + chunk;
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const int window = window0 + row + i * row_step;
            int rest, q;
            const int n = c.per_image.of(min(window, c.windows - 1), rest), p = c.per_row.of(rest, q);
            const int h = window < c.windows ? p * c.stride_h - c.pad_top : -LONGEST, w = q * c.stride_w - c.pad_left; /* too far above for any tap */
            base[i] = (n * c.height + h) * c.width + w;
            corner[i] = (int)((unsigned)h << 16 | ((unsigned)w & 0xffff));
        }
    }
    __device__ void start(char *to, int step) const {
        int rest, channel;
        const int at = step * K + k, r = c.per_channel.of(at, rest) * c.dilation_h, s = c.per_kernel_row.of(rest, channel) * c.dilation_w;
        const char *tap = origin + (int64_t)(r * c.width + s) * pixel + channel * element;
        const bool there = at < c.k;
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const int h = (corner[i] >> 16) + r, w = (short)corner[i] + s;
            const bool inside = there && (unsigned)h < (unsigned)c.height && (unsigned)w < (unsigned)c.width;
            copy_async<16>(to + offset + i * row_step * Tile::pitch, inside ? tap + (int64_t)base[i] * pixel : origin, inside ? 16 : 0);
        }
    }
};

/* The tile of sums in shared memory, rows of what is contiguous in the output. The pitches put the 32 pairs of a warp's store on different banks. */
template <int WINDOWS, int FILTERS, bool NHWC> struct Sums {
    static constexpr int rows = NHWC ? WINDOWS : FILTERS, columns = NHWC ? FILTERS : WINDOWS, pitch = columns + (NHWC ? 8 : 4);
    static constexpr int bytes = rows * pitch * 4;
    __device__ static void put(char *base, int window, int filter, float one, float two) { /* of neighbouring filters */
        float *to = (float *)base;
        if (NHWC) *(Pack<float, 2> *)(to + window * pitch + filter) = {one, two};
        else to[filter * pitch + window] = one, to[(filter + 1) * pitch + window] = two;
    }
};

template <class In, class S, int BW, int BF, int BK, int WW, int WF, int STAGES, bool NHWC>
__global__ void __launch_bounds__(S::threads, S::blocks) conv_mma_kernel(const __grid_constant__ Conv c) {
    using M = Mma<In>;
    using Out = Sums<BW, BF, NHWC>;
    constexpr int tiles_w = WW / 16, tiles_f = WF / 8;
    PYSIM_DYNAMIC_SHARED(shared);
    __shared__ int meeting;
    const Problem &p = c.product; /* rows: windows of all groups */
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int warp_window = warp / S::warps_n * WW, warp_filter = warp % S::warps_n * WF;
    Work work(p, Grid(p, BW, BF, BK), blockIdx.x, gridDim.x);
    for (Tile t; work.next(t);) {
        const int group = t.i / c.group_tiles, window0 = (t.i - group * c.group_tiles) * BW, filter0 = t.j * BF;
        float acc[tiles_w * tiles_f * 4] = {};
        Fragments<In, S, tiles_w, tiles_f> f[S::buffers];
        const Windows<In, typename S::A, BK, S::threads> windows(c, group, window0);
        const Copies<In, typename S::B, BK, true, S::threads> weights((const In *)c.weights + (int64_t)group * c.filters * c.k, c.k, filter0, c.filters, c.k);
        pipeline<S, BK, M::k, STAGES>(
            windows, weights, t, shared, [&](char *stage, int k0, int buffer) { f[buffer].load(stage, stage + S::A::bytes, warp_window, warp_filter, k0); },
            [&](int buffer) { f[buffer].multiply(acc); });
        if (!meet(p, work, t, acc, (int)threadIdx.x, S::threads, &meeting, [] { __syncthreads(); })) continue;
        __syncthreads(); /* the last stages are read */
#pragma unroll
        for (int i = 0; i < tiles_w * tiles_f * 2; i++)
            Out::put(shared, warp_window + i / 2 / tiles_f * 16 + lane / 4 + i % 2 * 8, warp_filter + i / 2 % tiles_f * 8 + lane % 4 * 2, acc[2 * i], acc[2 * i + 1]);
        __syncthreads();
        const auto finish = [&](const auto &output) {
            constexpr int WIDE = std::decay_t<decltype(output)>::WIDE, ACROSS = Out::columns / WIDE;
#pragma unroll 1
            for (int i = (int)threadIdx.x; i < Out::rows * ACROSS; i += S::threads) {
                const int row = i / ACROSS, column = i % ACROSS * WIDE;
                float sums[WIDE];
                *(Pack<float, WIDE> *)sums = *(const Pack<float, WIDE> *)((const float *)shared + row * Out::pitch + column);
                output.store((NHWC ? t.i * BW : filter0) + row, (NHWC ? filter0 : t.i * BW) + column, sums);
            }
        };
        const int first = group * c.group_tiles * BW;
        switch (p.c_dtype) {
        case PYSIM_F16: with_conv_output<NHWC, float, __half>(c, group, first, finish); break;
        case PYSIM_BF16: with_conv_output<NHWC, float, __nv_bfloat16>(c, group, first, finish); break;
        default: with_conv_output<NHWC, float, float>(c, group, first, finish);
        }
    }
}

template <class In, int BF, int BW, int BK, int WF, int WW, int STAGES> struct Kernel {
    using S = Shape<In, BW, BF, BK, WW, WF, STAGES, false, true>;

    template <class F> static cudaError_t choose(const Conv &c, F f) {
        return c.nhwc ? f(conv_mma_kernel<In, S, BW, BF, BK, WW, WF, STAGES, true>, std::max(S::shared, Sums<BW, BF, true>::bytes))
                      : f(conv_mma_kernel<In, S, BW, BF, BK, WW, WF, STAGES, false>, std::max(S::shared, Sums<BW, BF, false>::bytes));
    }
    static pysim_status run(const Conv &given, int, cudaStream_t stream) {
        Conv c = given;
        const Own own = own_of(c);
        const int taps = c.kernel_h * c.kernel_w, channels = padded_channels(c);
        pysim_status status = PYSIM_OK;
        if (own.input) {
            c.in = c.own, c.weights = (char *)c.own + own.input;
            status = check(to_channels_last<In>((void *)c.in, given.in, c.batch, c.height * c.width, c.groups, given, stream), "channels last");
            if (status == PYSIM_OK)
                status = check(to_channels_last<In>((void *)c.weights, given.weights, c.groups * c.filters, taps, 1, given, stream), "channels last, filters");
        }
        c.channels = channels, c.k = taps * channels;
        c.per_channel = Divisor((unsigned)(c.kernel_w * channels)), c.per_kernel_row = Divisor((unsigned)channels);
        c.product.m = c.groups * c.group_tiles * BW, c.product.n = c.filters, c.product.k = c.k;
        const int blocks = Grid(c.product, BW, BF, BK).items(c.product);
        if (status == PYSIM_OK)
            status = check(choose(c, [&](auto kernel, int shared) { return start(kernel, c, blocks, S::threads, shared, stream); }), "an implicit GEMM");
        return status;
    }
    static cudaError_t attributes(const Conv &c, pysim_cuda_attributes *out) {
        return choose(c, [&](auto kernel, int shared) { return attributes_of(kernel, S::threads, shared, out); });
    }
};

pysim_status own_bytes(const Conv &c, int64_t *bytes) {
    const Own own = own_of(c);
    *bytes = own.input + own.weights;
    return PYSIM_OK;
}

const char *refuses(const Conv &c) {
    const int64_t high = c.height + (int64_t)c.pad_top + c.pad_bottom, wide = c.width + (int64_t)c.pad_left + c.pad_right;
    if (high > LONGEST / 2 || wide > LONGEST / 2) return "it takes padded images of up to 16,383 rows and columns";
    if ((int64_t)c.batch * c.groups > 65535 || (int64_t)c.groups * c.filters > 65535) return "it takes up to 65,535 images of a group, and filters";
    return nullptr;
}

using f16 = __half;
using bf16 = __nv_bfloat16;
using tf32 = float;
#define PYSIM_CONV_ROW_direct(...)
#define PYSIM_CONV_ROW_depthwise(...)
#define PYSIM_CONV_ROW_im2col(...)
#define PYSIM_CONV_ROW_implicit(...)
#define PYSIM_CONV_ROW_im2win(...)
#define PYSIM_CONV_ROW_winograd(...)
#define PYSIM_CONV_ROW_mma(dtype, form, bf, bw, bk, wf, ww, tf, tw, stages, ...)                                                      \
    {PYSIM_CONV_TILED(mma, dtype, form, bf, bw, bk, wf, ww, tf, tw, stages, __VA_ARGS__), refuses, own_bytes,                           \
     Kernel<dtype, bf, bw, bk, wf, ww, stages>::run, Kernel<dtype, bf, bw, bk, wf, ww, stages>::attributes},
#define PYSIM_CUDA_CONV(family, ...) PYSIM_CONV_ROW_##family(__VA_ARGS__)
const ConvRow rows[] = {
#include "convs.inc"
};
}

ConvRows mma_conv_rows() { return {rows, (int)(sizeof rows / sizeof *rows)}; }
}
