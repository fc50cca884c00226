/* SPDX-License-Identifier: Apache-2.0
 * Convolution as implicit GEMM on mma.sync (mainloop/mma/mma.cuh). Rows of the product are filters, columns are windows under NCHW, the reverse under
 * NHWC.
 *
 *     out[filter][window] = sum over taps (r, s) and channels c of weights[filter][r, s][c] in[n][p stride_h + r dilation_h - pad_top][q stride_w + ..][c]
 *
 * k runs over taps, and within a tap over channels, which are contiguous and padded to 16 bytes (windows.h). By cp.async a thread copies 16 bytes of a tap's
 * channels for a few windows to each stage. It divides its k into tap and channel once a k-iteration and compares each window's row and column (VOLUMES: and
 * slice) with the image's edges; outside it copies zeros. So both operands are K-major in either layout. Planes (NCHW, pointwise) are MN-major and read in place.
 *
 * Worked number: 128 windows by 32 of k of tf32x3, 256 threads: 4 copies a thread and k-iteration. */
#ifndef PYSIM_CUDA_CONV_MMA_KERNEL_CUH
#define PYSIM_CUDA_CONV_MMA_KERNEL_CUH
#include "abi/arguments.h"
#include "conv/mma/windows.h"
#include "conv/output.cuh"
#include "mainloop/mma/mma.cuh"

namespace pysim::mma_sync {

enum { NOWHERE = -(1 << 30), PAST = 1 << 29 }; /* rows that are outside every image, for any window and any tap */

/* A window's first tap: its element's offset in the input, modulo 2^32, and its slice, row and column of the image. */
template <bool VOLUMES> struct Place {
    unsigned at;
    int d, h, w;
    Place() = default;
    __device__ Place(const Windows &g, int group, int window) : at(0), d(0), h(NOWHERE), w(0) {
        if (window >= g.c.windows) return;
        int position, q;
        const int image = g.c.per_image.of(window, position);
        int p = g.c.per_row.of(position, q);
        if constexpr (VOLUMES) {
            const int o = p / g.c.slice_rows;
            p -= o * g.c.slice_rows, d = o * g.c.stride_d - g.c.pad_front;
        }
        h = p * g.c.stride_h - g.c.pad_top, w = q * g.c.stride_w - g.c.pad_left;
        at = (unsigned)image * g.image + (unsigned)group * g.group + (unsigned)d * g.slice + (unsigned)h * g.row + (unsigned)w * g.pitch;
    }
};
/* Element k of every window: its distance from the window's first tap in elements, slices, rows and columns. */
template <bool VOLUMES> struct Tap {
    unsigned at;
    int d, h, w;
    __device__ Tap(const Windows &g, int k) {
        int channel, s;
        int r = g.per_row.of(g.per_tap.of(k, channel), s);
        d = 0;
        if constexpr (VOLUMES) {
            const int t = r / g.c.kernel_h;
            r -= t * g.c.kernel_h, d = t * g.c.dilation_d;
        }
        h = r * g.c.dilation_h, w = s * g.c.dilation_w;
        at = (unsigned)d * g.slice + (unsigned)h * g.row + (unsigned)w * g.pitch + channel;
        if (k >= g.c.product.k) h = PAST;
    }
    __device__ bool inside(const Windows &g, const Place<VOLUMES> &place) const {
        return (!VOLUMES || (unsigned)(place.d + d) < (unsigned)g.c.depth) && (unsigned)(place.h + h) < (unsigned)g.c.height && (unsigned)(place.w + w) < (unsigned)g.c.width;
    }
};

/* A thread's share of the copies of windows: the same 16 bytes of k of every STEPth window. */
template <class S, class Tile, bool VOLUMES> class Gather {
    using In = typename S::Element;
    static constexpr int STEP = S::threads / Tile::chunks, COUNT = Tile::rows / STEP;
    static_assert(S::threads % Tile::chunks == 0 && Tile::rows % STEP == 0, "a thread has COUNT windows and the same k of each");
    const Windows &g;
    Place<VOLUMES> place[COUNT];
    int k, offset;

public:
    __device__ Gather(const Windows &of, int group, int first) : g(of) {
        const int row = (int)threadIdx.x / Tile::chunks, chunk = (int)threadIdx.x % Tile::chunks * 16;
        k = chunk / (int)sizeof(In), offset = row * Tile::pitch + chunk;
#pragma unroll
        for (int i = 0; i < COUNT; i++) place[i] = Place<VOLUMES>(g, group, first + row + i * STEP);
    }
    __device__ void start(char *base, int step) const {
        const Tap<VOLUMES> tap(g, step * S::block_k + k);
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            copy_async<16>(base + offset + i * STEP * Tile::pitch, (const In *)g.c.in + (place[i].at + tap.at),
                           tap.inside(g, place[i]) ? 16 : 0);
    }
};

/* The operands and the epilogue: a Source of multiply_tiles. */
template <class S, bool NHWC, bool PLANES, bool VOLUMES> struct Source {
    using In = typename S::Element;
    enum { BLOCK = NHWC ? S::block_m : S::block_n }; /* of windows */
    const Windows &g;

    __device__ int group_of(const Tile &t) const { return (NHWC ? t.i : t.j) / g.c.group_tiles; }
    __device__ int first_of(const Tile &t) const { return ((NHWC ? t.i : t.j) - group_of(t) * g.c.group_tiles) * BLOCK; }

    template <class Tiled> __device__ auto windows(const Tile &t) const {
        if constexpr (!PLANES) return Gather<S, Tiled, VOLUMES>(g, group_of(t), first_of(t));
        else { /* a thread's 16 bytes lie in one image, as whose matrix of channels x pixels it sees the windows */
            const int plane = (int)g.c.per_image.divisor,
                      image = g.c.per_image.of(first_of(t) + (int)threadIdx.x % Tiled::chunks * (16 / (int)sizeof(In)));
            const int64_t channel = ((int64_t)image * g.c.groups + group_of(t)) * g.c.channels;
            return Copies<In, Tiled, S::block_k, false, S::threads, true>((const In *)g.c.in + (channel - image) * plane, plane,
                                                                          first_of(t), g.c.windows, g.c.channels);
        }
    }
    template <class Tiled> __device__ auto filters(const Tile &t) const {
        const int k = g.c.product.k, tile = NHWC ? t.j : t.i, block = NHWC ? S::block_n : S::block_m;
        const In *const of_group = (const In *)g.c.weights + (int64_t)group_of(t) * g.c.filters * k;
        return Copies<In, Tiled, S::block_k, true, S::threads, true>(of_group, k, tile * block, g.c.filters, k);
    }
    __device__ auto left(const Tile &t) const {
        if constexpr (NHWC) return windows<typename S::A>(t);
        else return filters<typename S::A>(t);
    }
    __device__ auto right(const Tile &t) const {
        if constexpr (NHWC) return filters<typename S::B>(t);
        else return windows<typename S::B>(t);
    }

    __device__ float again(const Tile &t, int row, int column) const {
        const int group = group_of(t), window = (NHWC ? row : column) - group * g.c.group_tiles * BLOCK, filter = NHWC ? column : row;
        float value = 0;
        if (window >= g.c.windows || filter >= g.c.filters) return value;
        const float *const weights = (const float *)g.c.weights + ((int64_t)group * g.c.filters + filter) * g.c.product.k,
                           *const in = (const float *)g.c.in;
        const Place<VOLUMES> place(g, group, window);
        int pixel;
        const int image = g.c.per_image.of(window, pixel), plane = (int)g.c.per_image.divisor;
        for (int k = t.begin * S::block_k; k < min(t.end * S::block_k, g.c.product.k) && value == value; k++) { /* NaN stays NaN */
            const Tap<VOLUMES> tap(g, k);
            if (PLANES ? k >= g.c.channels : !tap.inside(g, place)) continue;
            value = fmaf(weights[k],
                         PLANES ? in[(((int64_t)image * g.c.groups + group) * g.c.channels + k) * plane + pixel] : in[place.at + tap.at],
                         value);
        }
        return value;
    }

    template <class Sums> __device__ void store(const Tile &t, char *shared) const {
        launch_dependents(); /* as products do */
        const int group = group_of(t);
        const auto as = [&](auto out) {
            with_conv_output<NHWC, float, decltype(out)>(g.c, group, group * g.c.group_tiles * BLOCK, [&](const auto &to) {
                constexpr int WIDE = std::decay_t<decltype(to)>::WIDE;
                Sums::template store_by<WIDE, 1>(shared, t.i * S::block_m, t.j * S::block_n,
                                                 [&](int row, int column, const float (&sums)[WIDE]) { to.store(row, column, sums); });
            });
        };
        if (sizeof(In) == 2 && g.c.product.c_dtype != PYSIM_F32) as(In());
        else as(0.f);
    }
};

template <class R, bool NHWC, bool PLANES, bool VOLUMES>
__global__ void __launch_bounds__(R::THREADS, R::template Shape<false, !PLANES>::blocks) conv_kernel(const __grid_constant__ Windows g) {
    using S = typename R::template Shape<false, !PLANES>;
    if constexpr (R::BUILT) {
        wait_for_previous();
        multiply_tiles<R, S>(g.c.product, Source<S, NHWC, PLANES, VOLUMES>{g});
    }
}

/* A row's kernels: WIDE under NCHW, DEEP under NHWC. */
template <class WIDE, class DEEP> struct Kernels {
    /* f(kernel, the threads and the shared bytes of its block, the product's grid of blocks) */
    template <class R, bool NHWC, bool PLANES, bool VOLUMES, class F> static cudaError_t with(const Conv &c, F f) {
        const int shared = std::max(R::template Shape<false, !PLANES>::shared, SharedSums<float, R::BM, R::BN, R::THREADS>::bytes);
        return f(conv_kernel<R, NHWC, PLANES, VOLUMES>, (int)R::THREADS, shared, Grid(c.product, R::BM, R::BN, R::BK));
    }
    template <class F> static cudaError_t choose(const Conv &c, F f) {
        if (c.volumes) return c.nhwc ? with<DEEP, true, false, true>(c, f) : with<WIDE, false, false, true>(c, f);
        if (c.nhwc) return with<DEEP, true, false, false>(c, f);
        return planes(c) ? with<WIDE, false, true, false>(c, f) : with<WIDE, false, false, false>(c, f);
    }
    static pysim_status launch(const Conv &c, int, cudaStream_t stream) {
        Windows windows;
        const pysim_status status = prepare(c, windows, stream);
        if (status != PYSIM_OK) return status;
        return check(choose(c, [&](auto kernel, int threads, int shared,
                                   const Grid &grid) { return start(kernel, windows, grid.items(c.product), threads, shared, stream); }),
                     "a convolution on mma.sync");
    }
    static cudaError_t attributes(const Conv &c, pysim_cuda_attributes *out) {
        return choose(c, [&](auto kernel, int threads, int shared, const Grid &) { return attributes_of(kernel, threads, shared, out); });
    }
};
}
#endif
