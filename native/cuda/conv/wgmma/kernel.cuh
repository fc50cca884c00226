/* SPDX-License-Identifier: Apache-2.0
 * Convolution as an implicit product on wgmma (mainloop/hopper/kernel.cuh): windows are rows of A, filters columns of B.
 *
 *     out[window][filter] = sum over taps (r, s) and channels c of in[n][p stride_h + r dilation_h - pad_top][q stride_w + s dilation_w - pad_left][c]
 *                                                                  weights[filter][r, s][c],        window = (n, p, q)
 *
 * k runs over taps, and for each over blocks of channels: a row's ROW bytes, so that a stage is one block of one tap. TMA gathers: in
 * its im2col mode (CUDA driver API, cuTensorMapEncodeIm2col; PTX ISA 8.0, "im2col mode") a copy names the first window's corner and the
 * tap's offset, and brings a block of channels of so many windows, walking along w, h and n inside the box of corners by the strides,
 * with zeros for what lies outside the image. Channels after the last are zeros in both operands. No instruction of a thread gathers.
 *
 * Limits of that mode on four dimensions: corners in -128..127, offsets in 0..255, strides up to 8.
 *
 * Planes (planes() of operands.cu): under NCHW a pointwise convolution's windows are a channel's pixels as they lie, so A is MN-major and nothing
 * is gathered: a box is 128 bytes of a channel's windows of one image, of as many channels as a stage has k. Windows are numbered as if images were
 * whole boxes.
 *
 * Worked number: 64 -> 64 channels of f16, 3 x 3: 9 taps of one block, 9 steps, as k = 576 is of 64. */
#ifndef PYSIM_CUDA_CONV_WGMMA_CUH
#define PYSIM_CUDA_CONV_WGMMA_CUH
#include "conv/wgmma/wgmma.h"
#include "mainloop/hopper/kernel.cuh"

namespace pysim {
namespace hopper {

/* How results lie, and input: PLANES as results do under NCHW, else in pixels, as TMA gathers them. */
enum Lying { CHANNELS_FIRST, CHANNELS_LAST, PLANES };

/* Windows and filters as the operands of a product, and how its results lie. */
template <Lying LYING> struct Gathered {
    enum { TA = LYING == PLANES, TB = 0 };
    using Arguments = Windows;
    static __device__ const Problem &product(const Windows &c) { return c.product; }
    static __device__ bool b_is_one(const Windows &c) { return c.groups == 1; }

    template <class S> class Shares {
        const Windows &c;
        int image, high, wide, first; /* the first window's corner and channel; PLANES: `wide` is its place in the plane */
        int filter, tap, channel;
        int down, across;             /* the tap's offset */

      public:
        __device__ Shares(const Windows &conv, int m, int n, int step) : c(conv) {
            const int rows = c.group_tiles * S::BLOCK_M * S::CLUSTER_M, group = quotient(m, rows), blocks = ceil_div(c.channels, S::BLOCK_K);
            int position, q;
            image = c.per_image.of(m - group * rows, position) + group * c.group_images;
            high = c.per_row.of(position, q) * c.stride_h - c.pad_top;
            wide = LYING == PLANES ? position : q * c.stride_w - c.pad_left;
            first = group * c.group_channels;
            filter = group * c.filters + n;
            tap = quotient(step, blocks);
            channel = (step - tap * blocks) * S::BLOCK_K;
            const int r = quotient(tap, c.kernel_w);
            down = r * c.dilation_h, across = (tap - r * c.kernel_w) * c.dilation_w;
        }
        static __device__ int bytes_a(const Windows &) { return S::A_BYTES; }
        static __device__ int bytes_b(const Windows &) { return S::B_BYTES; }
        __device__ void load_a(uint32_t to, const CUtensorMap *map, uint32_t barrier, int, uint16_t blocks) const {
            if constexpr (LYING == PLANES) return load_planes(to, map, barrier, blocks);
            const Corner corner = {first + channel, wide, high, image};
            const uint16_t right = (uint16_t)across, below = (uint16_t)down;
            if (S::CLUSTER_N > 1) windows_load_multicast(to, map, barrier, corner, right, below, blocks);
            else windows_load(to, map, barrier, corner, right, below);
        }
        __device__ void load_planes(uint32_t to, const CUtensorMap *map, uint32_t barrier, uint16_t blocks) const {
            enum { BOX = 128 / S::BYTES };
            int at = wide, of = image;
#pragma unroll
            for (int part = 0; part < S::A_SHARE / BOX; part++, to += S::BLOCK_K * 128) {
                if (S::CLUSTER_N > 1) tensor_load_multicast(to, map, barrier, at, channel, of, blocks);
                else tensor_load(to, map, barrier, at, channel, of);
                at += BOX;
                if (at == (int)c.per_image.divisor) at = 0, of++;
            }
        }
        __device__ void load_b(uint32_t to, const CUtensorMap *map, uint32_t barrier, int, uint16_t blocks) const {
            load_filters(to, map, barrier, filter, blocks);
            if (S::Element::SPLIT) load_filters(to + S::B_BYTES / 2, map, barrier, filter + c.groups * c.filters, blocks);
        }
        __device__ void load_filters(uint32_t to, const CUtensorMap *map, uint32_t barrier, int first, uint16_t blocks) const {
            if (S::CLUSTER_M > 1) tensor_load_multicast(to, map, barrier, channel, tap, first, blocks);
            else tensor_load(to, map, barrier, channel, tap, first);
        }
        __device__ void next() {
            channel += S::BLOCK_K;
            if (channel < c.channels) return;
            channel = 0, tap++, across += c.dilation_w;
            if (across == c.kernel_w * c.dilation_w) across = 0, down += c.dilation_h;
        }
    };

    /* NHWC: rows of C. NCHW: neighbouring windows are neighbours in memory, so that results change places in shared memory, `staging`. */
    template <class S, class Acc>
    static __device__ void store(const Windows &c, const Work &work, const Tile &t, const Partials<Acc> &partials, int row, int column,
                                 const Acc (&sum)[S::PARTS][S::SUMS], void *staging) {
        const Problem p = of_group<S>(c, t, row);
        if constexpr (LYING == CHANNELS_LAST) store_tile<S>(p, work, t, partials, row, column, sum);
        else
            with_epilogue<Acc>(p, [&](const auto &e) {
                using Out = std::decay_t<decltype(*e.c)>;
                if constexpr (Becomes<S::DTYPE, Out>::value) {
                    Out *const own = (Out *)((char *)staging + threadIdx.x / 128 * (S::STAGED_BYTES / S::CONSUMERS));
                    if (t.parts == 1 && e.plain) return store_plain_planes<S>(c, e, row, column, sum, own);
                    each_slice<S>(work, t, partials, row, column, e.n, sum, [&](int at_row, int at, const Acc (&v)[SLICE]) {
                        Acc x[SLICE];
#pragma unroll
                        for (int i = 0; i < SLICE; i++) x[i] = v[i];
                        finish_planes(c, e, at_row + row_of_thread(), at + 2 * (threadIdx.x % 4), x);
                        store_planes(c, e, at_row, at, x, own);
                    });
                }
            });
    }

    template <class S, class Acc> static __device__ void store_meeting(const Windows &c, const Tile &t, const Meeting<S, Acc> &meeting, int row, int column) {
        const Problem p = of_group<S>(c, t, row);
        if constexpr (LYING == CHANNELS_LAST) hopper::store_meeting(p, meeting, row, column);
        else
            with_epilogue<Acc>(p, [&](const auto &e) {
                using Out = std::decay_t<decltype(*e.c)>;
                if constexpr (Becomes<S::DTYPE, Out>::value)
                    meeting.store(row + row_of_thread(), column + threadIdx.x % 4 * 2, [&](int at_row, int at, const Acc (&v)[4]) {
                        Out *to[2];
                        const bool exists[2] = {find(c, e, at_row, to[0]), find(c, e, at_row + 8, to[1])};
                        store_four(
                            e, v, false, [&](int h, int i) { return to[h] + (at + i) * (c.out_h * c.out_w); },
                            [&](int h, int i) { return exists[h] && at + i < e.n; }, [&](int, int i) { return min(at + i, e.n - 1); });
                    });
            });
    }

  private:
    /* What a tile's group has of output, bias and scale, of which `row` becomes a window. */
    template <class S> static __device__ Problem of_group(const Windows &c, const Tile &t, int &row) {
        const int group = quotient(t.i, c.group_tiles), filter = group * c.filters, bytes = c.product.c_dtype == PYSIM_F32 ? 4 : 2;
        Problem p = c.product;
        p.c = (char *)c.out + (int64_t)(LYING == CHANNELS_LAST ? filter : filter * c.out_h * c.out_w) * bytes;
        if (p.bias) p.bias = (const char *)p.bias + filter * bytes;
        if (p.scale) p.scale = (const float *)p.scale + filter;
        p.m = c.windows, p.n = c.filters;
        row -= group * c.group_tiles * S::BLOCK_M * S::CLUSTER_M;
        return p;
    }

    /* Unrolled, as store_plain of epilogue.cuh is. */
    template <class S, class Acc, class Out>
    static __device__ void store_plain_planes(const Windows &c, const Epilogue<Acc, Out> &e, int row, int column, const Acc (&sum)[S::PARTS][S::SUMS], Out *own) {
#pragma unroll
        for (int part = 0; part < S::PARTS; part++)
#pragma unroll
            for (int slice = 0; slice < S::SUMS / SLICE; slice++) {
                if (column + 32 * slice >= e.n) break;
                Acc x[SLICE];
#pragma unroll
                for (int i = 0; i < SLICE; i++) x[i] = sum[part][slice * SLICE + i];
                store_planes(c, e, row + 64 * part, column + 32 * slice, x, own);
            }
    }

    /* Where output 0 of a window's image lies, and the window in its plane; false where there is none. */
    template <class Acc, class Out> static __device__ bool find(const Windows &c, const Epilogue<Acc, Out> &e, int window, Out *&to) {
        const int plane = c.out_h * c.out_w;
        int position;
        const int image = c.per_image.of(min(window, e.m - 1), position);
        const bool spare = LYING == PLANES && position >= plane; /* beyond its plane */
        to = e.c + (int64_t)image * c.groups * c.filters * plane + (spare ? plane - 1 : position);
        return window < e.m && !spare;
    }

    /* The epilogue of a slice: windows `row` and row + 8, filters 8 j + i after `column`. */
    template <class Acc, class Out>
    static __device__ void finish_planes(const Windows &c, const Epilogue<Acc, Out> &e, int row, int column, Acc (&x)[SLICE]) {
        if (e.plain) return;
        Out *to[2];
#pragma unroll
        for (int h = 0; h < 2; h++) find(c, e, row + 8 * h, to[h]);
        finish_slice(e, row, column, x, [&](int h, int at) { return to[h] + (int64_t)at * c.out_h * c.out_w; });
    }

    /* A warpgroup's slice of 64 windows from `row` and 32 filters from `column`, by its own part of shared memory, where filters are rows: they are
     * whole lines of the output. 16 bytes of padding a row keep lanes on different banks. */
    template <class Acc, class Out>
    static __device__ void store_planes(const Windows &c, const Epilogue<Acc, Out> &e, int row, int column, const Acc (&x)[SLICE], Out *own) {
        enum { VECTOR = 16 / sizeof(Out), PITCH = 64 + VECTOR, ACROSS = 64 / VECTOR, FIRST_BARRIER = 3 /* after those of two sets (mainloop/hopper/kernel.cuh) */ };
        const int thread = threadIdx.x % 128, lane = thread % 32, barrier = FIRST_BARRIER + threadIdx.x / 128, plane = c.out_h * c.out_w;
        sync_threads(barrier, 128); /* the slice before has been read */
        if constexpr (sizeof(Out) == 2) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                unsigned pairs[4];
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const Pack<Out, 2> pair = {{Out(x[4 * j + 2 * h]), Out(x[4 * j + 2 * h + 1])}};
                    pairs[j] = *(const unsigned *)&pair;
                }
                store_transposed(shared_address(own + lane * PITCH + thread / 32 * 16 + 8 * h), pairs);
            }
        } else {
            Out *const to = own + 2 * (lane % 4) * PITCH + row_of_thread();
#pragma unroll
            for (int i = 0; i < SLICE; i++) to[(i / 4 * 8 + i % 2) * PITCH + i / 2 % 2 * 8] = Out(x[i]);
        }
        sync_threads(barrier, 128);
        Out *to;
        if (plane % VECTOR == 0 && (uintptr_t)e.c % 16 == 0) {
            const int window = thread % ACROSS * VECTOR, filter = thread / ACROSS;
            const bool here = find(c, e, row + window, to);
            to += (int64_t)(column + filter) * plane;
#pragma unroll
            for (int i = 0; i < 32; i += 128 / ACROSS) {
                const uint4 v = *(const uint4 *)(own + (filter + i) * PITCH + window);
                const unsigned word[4] = {v.x, v.y, v.z, v.w};
                store_16(to + i * plane, word, here && column + filter + i < e.n);
            }
        } else {
            const int window = thread % 64, filter = thread / 64;
            const bool here = find(c, e, row + window, to);
            to += (int64_t)(column + filter) * plane;
#pragma unroll
            for (int i = 0; i < 32; i += 2)
                if (here && column + filter + i < e.n) to[i * plane] = own[(filter + i) * PITCH + window];
        }
    }
};

using EncodeWindows = CUresult (*)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *, const int *,
                                   const int *, cuuint32_t, cuuint32_t, const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                   CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
inline const DriverFunction<EncodeWindows> &windows_encoder() {
    static const DriverFunction<EncodeWindows> once("cuTensorMapEncodeIm2col");
    return once;
}

inline CUtensorMapSwizzle swizzle_of(int row) {
    return row == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B;
}

/* Corners: where the first and the last window of an image begin, from its first and last pixel. */
template <class S> cudaError_t describe_windows(CUtensorMap *map, const Windows &c) {
    const cuuint64_t pitch = (cuuint64_t)c.pitch * S::BYTES, row = (cuuint64_t)c.row * S::BYTES;
    const cuuint64_t sizes[] = {(cuuint64_t)c.depth, (cuuint64_t)c.width, (cuuint64_t)c.height, (cuuint64_t)c.images};
    const cuuint64_t pitches[] = {pitch, row, row * c.height};
    const int lower[] = {-c.pad_left, -c.pad_top};
    const int upper[] = {c.pad_right - (c.kernel_w - 1) * c.dilation_w, c.pad_bottom - (c.kernel_h - 1) * c.dilation_h};
    const cuuint32_t steps[] = {1, (cuuint32_t)c.stride_w, (cuuint32_t)c.stride_h, 1};
    if (windows_encoder().error != cudaSuccess) return windows_encoder().error;
    const CUresult result = windows_encoder().call(map, map_type<S>(), 4, const_cast<void *>(c.in), sizes, pitches, lower, upper, S::BLOCK_K,
                                                   S::A_SHARE, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_of(S::ROW),
                                                   CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

template <class S>
cudaError_t describe_3d(CUtensorMap *map, const void *data, const cuuint64_t (&sizes)[3], const cuuint64_t (&pitches)[2], const cuuint32_t (&boxes)[3]) {
    const cuuint32_t steps[] = {1, 1, 1};
    if (encoder().error != cudaSuccess) return encoder().error;
    const CUresult result = encoder().call(map, map_type<S>(), 3, const_cast<void *>(data), sizes, pitches, boxes, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                           swizzle_of((int)boxes[0] * S::BYTES), CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

/* Pixels of a plane, channels and images as they lie. */
template <class S> cudaError_t describe_planes(CUtensorMap *map, const Windows &c) {
    const cuuint64_t plane = (cuuint64_t)c.out_h * c.out_w, sizes[] = {plane, (cuuint64_t)c.channels, (cuuint64_t)c.batch};
    const cuuint64_t pitches[] = {plane * S::BYTES, plane * S::BYTES * c.channels};
    const cuuint32_t boxes[] = {128 / S::BYTES, S::BLOCK_K, 1};
    return describe_3d<S>(map, c.in, sizes, pitches, boxes);
}

template <class S> cudaError_t describe_filters(CUtensorMap *map, const Windows &c) {
    const int taps = c.kernel_h * c.kernel_w;
    const cuuint64_t tap = (cuuint64_t)c.channels * S::BYTES;
    const cuuint64_t sizes[] = {(cuuint64_t)c.channels, (cuuint64_t)taps, (cuuint64_t)c.groups * c.filters * (1 + S::Element::SPLIT)}, pitches[] = {tap, tap * taps};
    const cuuint32_t boxes[] = {S::BLOCK_K, 1, S::B_SHARE};
    return describe_3d<S>(map, c.weights, sizes, pitches, boxes);
}

template <class S> Kernel<Windows> kernel_for(const Conv &c, bool planes) {
    if constexpr (!S::Element::SPLIT)
        if (planes) return wgmma_kernel<S, Gathered<PLANES>>;
    return c.nhwc ? wgmma_kernel<S, Gathered<CHANNELS_LAST>> : wgmma_kernel<S, Gathered<CHANNELS_FIRST>>;
}

template <class S> cudaError_t launch_windows(const Windows &c, int sms, cudaStream_t stream) {
    CUtensorMap windows, filters;
    const bool made = c.own && (c.in == c.own || c.weights == c.own); /* by a kernel before */
    cudaError_t error = !c.pitch ? describe_planes<S>(&windows, c) : describe_windows<S>(&windows, c);
    if (error == cudaSuccess) error = describe_filters<S>(&filters, c);
    return error == cudaSuccess ? start<S>(kernel_for<S>(c, !c.pitch), windows, filters, c, c.product, sms, stream, made) : error;
}

template <class S> cudaError_t attributes_of_windows(const Conv &c, pysim_cuda_attributes *out) { return attributes_of<S>(kernel_for<S>(c, planes(c)), out); }
}
}
#endif
