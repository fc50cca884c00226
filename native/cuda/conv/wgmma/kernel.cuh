/* SPDX-License-Identifier: Apache-2.0
 * Convolution as implicit GEMM on wgmma (mainloop/wgmma/kernel.cuh): windows are rows of A, filters are columns of B.
 *
 *     out[window][filter] = sum over taps (r, s) and channels c of in[n][p stride_h + r dilation_h - pad_top][q stride_w + s dilation_w - pad_left][c]
 *                                                                  weights[filter][r, s][c],        window = (n, p, q)
 *
 * k runs over taps, and within a tap over blocks of channels, ROW bytes each, so a stage is one block of one tap. TMA gathers the windows in its im2col mode
 * (CUDA driver API, cuTensorMapEncodeIm2col; PTX ISA 8.0, "im2col mode"): a copy names the first window's corner and the tap's offset, and loads a block
 * of channels of consecutive windows along w, h and n, stepping by the strides inside the box of corners, with zeros outside the image. Channels beyond
 * the last are zeros in both operands. Threads gather nothing.
 *
 * Limits of that mode on four dimensions: corners in -128..127, offsets in 0..255, strides up to 8. Volumes are its five dimensions, with a tap more and a
 * corner more: -16..15, 0..31.
 *
 * Rows of taps (S::TAPS): without a stride along w, the windows of a row's taps are the same pixels, shifted by one each. A window is then any pixel of a
 * padded row, a stage has TAPS - 1 pixels more than windows, and TAPS tiles of filters multiply them. Windows of the last TAPS - 1 pixels of a row are no
 * results. 64 -> 64 channels of volumes: L2 is asked for a third of the windows.
 *
 * Planes (planes() of operands.cu): under NCHW a pointwise convolution's windows are the pixels of a channel, so A is MN-major and read in place. A box
 * is 128 bytes of windows of one image, for as many channels as a stage has k. Windows are numbered as if images were whole boxes.
 *
 * Worked number: 64 -> 64 channels of f16, 3 x 3: 9 taps of one block, 9 k-iterations, as k = 576 is of 64. */
#ifndef PYSIM_CUDA_CONV_WGMMA_CUH
#define PYSIM_CUDA_CONV_WGMMA_CUH
#include "conv/wgmma/wgmma.h"
#include "mainloop/wgmma/kernel.cuh"

namespace pysim::hopper {

/* The `Operands` of a convolution (mainloop/wgmma/kernel.cuh): windows and filters. Layouts are run-time values, as in Matrices. */
struct Gathered {
    using Arguments = Windows;
    static constexpr bool RAGGED = false, OWN_STORE = false;
    template <class> static constexpr bool CONDITIONAL = false;
    template <class> static constexpr bool EVEN = false;
    static __device__ const Problem &product(const Windows &c) { return c.product; }
    static __device__ bool b_is_one(const Windows &c) { return c.groups == 1; }
    /* Whether the input is planes as they lie; else TMA gathers pixels. */
    template <class S> static __device__ bool planes(const Windows &c) { return !S::Element::SPLIT && S::TAPS == 1 && !c.pitch; }
    template <class S> static int rows_of_tile(const Windows &) { return S::BLOCK_M; }
    template <class S, class Take> static __device__ void with_majors(const Windows &c, Take take) {
        constexpr std::integral_constant<int, 0> K;
        if constexpr (S::Element::SPLIT > 0 || S::TAPS > 1) take(K, K);
        else planes<S>(c) ? take(std::integral_constant<int, 1>(), K) : take(K, K);
    }

    template <class S> class Shares {
        const Windows &c;
        int image, high, wide, first; /* the first window's corner and channel; of planes `wide` is its place in the plane */
        int filter, tap, channel;
        int down, across; /* the tap's offset */
        int deep, behind; /* of volumes: the corner's slice, and the tap's offset */

    public:
        __device__ Shares(const Windows &conv, int m, int n, int step) : c(conv) {
            const int rows = c.group_tiles * S::BLOCK_M * S::CLUSTER_M, group = quotient(m, rows),
                      blocks = ceil_div(c.channels, S::BLOCK_K);
            int position, q;
            image = c.per_image.of(m - group * rows, position) + group * c.group_images;
            int row = c.per_row.of(position, q);
            deep = 0;
            if (c.volumes) deep = quotient(row, c.slice_rows), row -= deep * c.slice_rows, deep = deep * c.stride_d - c.pad_front;
            high = row * c.stride_h - c.pad_top;
            wide = planes<S>(c) ? position : q * c.stride_w - c.pad_left;
            first = group * c.group_channels;
            filter = group * c.filters + n;
            tap = quotient(step, blocks);
            channel = (step - tap * blocks) * S::BLOCK_K;
            const int line = quotient(tap, c.kernel_w), t = c.volumes ? quotient(line, c.kernel_h) : 0;
            behind = t * c.dilation_d, down = (line - t * c.kernel_h) * c.dilation_h, across = (tap - line * c.kernel_w) * c.dilation_w;
        }
        static __device__ int bytes_a(const Windows &, int) { return S::A_ROWS * S::ROW; }
        static __device__ int bytes_b(const Windows &, int) { return S::B_BYTES; }
        __device__ void load_a(uint32_t to, const CUtensorMap *map, uint32_t barrier, int, uint16_t blocks) const {
            if (planes<S>(c)) return load_planes(to, map, barrier, blocks);
            const Corner corner = {first + channel, wide, high, image};
            const uint16_t right = (uint16_t)across, below = (uint16_t)down;
            if (c.volumes) {
                const uint16_t after = (uint16_t)behind;
                if (S::CLUSTER_N > 1) volumes_load_multicast(to, map, barrier, corner, deep, right, below, after, blocks);
                else volumes_load(to, map, barrier, corner, deep, right, below, after);
            } else if (S::CLUSTER_N > 1) windows_load_multicast(to, map, barrier, corner, right, below, blocks);
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
#pragma unroll
            for (int i = 0; i < S::TAPS; i++) load_filters(to + i * S::TAP_BYTES, map, barrier, tap * S::TAPS + i, filter, blocks);
            if (S::Element::SPLIT) load_filters(to + S::B_BYTES / 2, map, barrier, tap, filter + c.groups * c.filters, blocks);
        }
        __device__ void load_filters(uint32_t to, const CUtensorMap *map, uint32_t barrier, int tap, int first, uint16_t blocks) const {
            if (S::CLUSTER_M > 1) tensor_load_multicast(to, map, barrier, channel, tap, first, blocks);
            else tensor_load(to, map, barrier, channel, tap, first);
        }
        __device__ void next() {
            channel += S::BLOCK_K;
            if (channel < c.channels) return;
            channel = 0, tap++, across += c.dilation_w;
            if (across == c.kernel_w * c.dilation_w) across = 0, down += c.dilation_h;
            if (c.volumes && down == c.kernel_h * c.dilation_h) down = 0, behind += c.dilation_d;
        }
    };

    /* The same for all groups: the alignment of results, bias and scale is that of the first group's, if a group has whole vectors of them. */
    template <class S> static StoreTerms store_terms(const Windows &c) {
        Problem p = c.product;
        p.c = c.out, p.n = c.filters;
        const int plane = c.out_h * c.out_w;
        return store_terms_of<S, RAGGED>(p, c.nhwc, !c.nhwc, c.nhwc ? p.ldc : plane, c.nhwc ? c.filters : plane);
    }
    /* Calls use(Order, product, target, row) for the group of a tile; ONE: one instance for both orders. NHWC: rows of C. NCHW: neighbouring windows are
     * neighbours in memory. */
    template <class S, bool ONE, class Use> static __device__ __forceinline__ void with_target(const Windows &c, const StoreTerms &terms,
                                                                                               const Tile &t, int row, int, Use use) {
        const Problem p = of_group<S>(c, t, row);
        const auto by = [&](auto order) {
            const bool rows = order.by_rows();
            const int64_t pitch = rows ? p.ldc : c.out_h * c.out_w;
            const auto place = [&, order](int along, bool &here) {
                if (!order.by_rows()) return find(c, p.m, along, here);
                here = along < p.n;
                return (int64_t)along;
            };
            const int lines = rows ? p.m : p.n, length = rows ? p.n : p.m;
            if constexpr (S::TAPS > 1)
                use(order, p, Target{place, Gapped{pitch, c.per_row, S::TAPS - 1}, lines, length, !rows, terms.vectors, terms.direct}, row);
            else use(order, p, Target{place, pitch, lines, length, !rows, terms.vectors, terms.direct}, row);
        };
        if constexpr (S::TAPS > 1) by(Order<BY_ROWS>()); /* NHWC only */
        else if constexpr (ONE && !FEW_REGISTERS<S>) by(Order<EITHER>{c.nhwc != 0});
        else if (c.nhwc) by(Order<BY_ROWS>());
        else by(Order<BY_COLUMNS>());
    }

    /* Of either layout by one program. */
    template <class S, class Acc> static __device__ void store_reduced(const Windows &c, const Tile &t,
                                                                       const ClusterReduction<S, Acc> &reduction, int row, int,
                                                                       int column) {
        const Problem p = of_group<S>(c, t, row);
        const EpilogueTerms<typename Arithmetic<Acc>::type> e(p);
        const bool rows = c.nhwc, pairs = rows && in_whole_pairs(p);
        const int64_t pitch = rows ? p.ldc : c.out_h * c.out_w;
        reduction.store(row + row_of_thread(), column + threadIdx.x % 4 * 2, [&](int at_row, int at, const Acc(&v)[4]) {
            bool exists[2] = {at_row < p.m, at_row + 8 < p.m};
            int64_t first[2] = {at_row, at_row + 8};
            if constexpr (S::TAPS > 1)
                for (int h = 0; h < 2; h++) exists[h] = exists[h] && Gapped{1, c.per_row, S::TAPS - 1}.at(at_row + 8 * h, first[h]);
            if (!rows) first[0] = find(c, p.m, at_row, exists[0]), first[1] = find(c, p.m, at_row + 8, exists[1]);
            store_four<S>(
                e, v, pairs, [&](int h, int i) { return rows ? first[h] * pitch + at + i : first[h] + (at + i) * pitch; },
                [&](int h, int i) { return exists[h] && at + i < p.n; }, [&](int, int i) { return min(at + i, p.n - 1); });
        });
    }

private:
    /* What a tile's group has of output, bias and scale, of which `row` becomes a window. */
    template <class S> static __device__ Problem of_group(const Windows &c, const Tile &t, int &row) {
        const int group = quotient(t.i, c.group_tiles), filter = group * c.filters, bytes = c.product.c_dtype == PYSIM_F32 ? 4 : 2;
        Problem p = c.product;
        p.c = (char *)c.out + (int64_t)(c.nhwc ? filter : filter * c.out_h * c.out_w) * bytes;
        if (p.bias) p.bias = (const char *)p.bias + filter * bytes;
        if (p.scale) p.scale = (const float *)p.scale + filter;
        p.m = c.windows, p.n = c.filters;
        row -= group * c.group_tiles * S::BLOCK_M * S::CLUSTER_M;
        return p;
    }

    /* How far output 0 of a window's image, and the window in its plane, lies from the first output; `here`: there is one, of so many windows. */
    static __device__ int64_t find(const Windows &c, int windows, int window, bool &here) {
        const int plane = c.out_h * c.out_w;
        int position;
        const int image = c.per_image.of(min(window, windows - 1), position);
        const bool spare = position >= plane; /* windows of planes beyond them */
        here = window < windows && !spare;
        return (int64_t)image * c.groups * c.filters * plane + (spare ? plane - 1 : position);
    }
};

using EncodeWindows = CUresult (*)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *,
                                   const int *, const int *, cuuint32_t, cuuint32_t, const cuuint32_t *, CUtensorMapInterleave,
                                   CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
inline const DriverFunction<EncodeWindows> &windows_encoder() {
    static const DriverFunction<EncodeWindows> once("cuTensorMapEncodeIm2col");
    return once;
}

inline CUtensorMapSwizzle swizzle_of(int row) { return row == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B; }

/* Corners: start of the first and of the last window of an image, relative to its first and last pixel. Images are volumes of one slice, whose dimension is
 * left out. */
template <class S> cudaError_t describe_windows(CUtensorMap *map, const Windows &c) {
    const cuuint64_t pitch = (cuuint64_t)c.pitch * S::BYTES, row = (cuuint64_t)c.row * S::BYTES;
    const cuuint64_t images = (cuuint64_t)c.images, slices = c.volumes ? (cuuint64_t)c.depth : images;
    const cuuint64_t sizes[] = {(cuuint64_t)c.run, (cuuint64_t)c.width, (cuuint64_t)c.height, slices, images};
    const cuuint64_t pitches[] = {pitch, row, row * c.height, row * c.height * c.depth};
    const int lower[] = {-c.pad_left, -c.pad_top, -c.pad_front};
    const int upper[] = {c.pad_right - (c.kernel_w - 1) * c.dilation_w, c.pad_bottom - (c.kernel_h - 1) * c.dilation_h,
                         c.pad_back - (c.kernel_d - 1) * c.dilation_d};
    const cuuint32_t steps[] = {1, (cuuint32_t)c.stride_w, (cuuint32_t)c.stride_h, c.volumes ? (cuuint32_t)c.stride_d : 1, 1};
    if (windows_encoder().error != cudaSuccess) return windows_encoder().error;
    const CUresult result = windows_encoder().call(
        map, map_type<S>(), 4 + c.volumes, const_cast<void *>(c.in), sizes, pitches, lower, upper, S::BLOCK_K, S::A_SHARE + S::TAPS - 1,
        steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_of(S::ROW), CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

template <class S>
cudaError_t describe_3d(CUtensorMap *map, const void *data, const cuuint64_t (&sizes)[3], const cuuint64_t (&pitches)[2],
                        const cuuint32_t (&boxes)[3]) {
    const cuuint32_t steps[] = {1, 1, 1};
    if (encoder().error != cudaSuccess) return encoder().error;
    const CUresult result =
        encoder().call(map, map_type<S>(), 3, const_cast<void *>(data), sizes, pitches, boxes, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                       swizzle_of((int)boxes[0] * S::BYTES), CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

/* Planes in place: pixels, channels, images. */
template <class S> cudaError_t describe_planes(CUtensorMap *map, const Windows &c) {
    const cuuint64_t plane = (cuuint64_t)c.out_h * c.out_w, sizes[] = {plane, (cuuint64_t)c.channels, (cuuint64_t)c.batch};
    const cuuint64_t pitches[] = {plane * S::BYTES, plane * S::BYTES * c.channels};
    const cuuint32_t boxes[] = {128 / S::BYTES, S::BLOCK_K, 1};
    return describe_3d<S>(map, c.in, sizes, pitches, boxes);
}

template <class S> cudaError_t describe_filters(CUtensorMap *map, const Windows &c) {
    const int taps = c.taps() * S::TAPS;
    const cuuint64_t tap = (cuuint64_t)c.channels * S::BYTES;
    const cuuint64_t sizes[] = {(cuuint64_t)c.channels, (cuuint64_t)taps, (cuuint64_t)c.groups * c.filters * (1 + S::Element::SPLIT)},
                     pitches[] = {tap, tap * taps};
    const cuuint32_t boxes[] = {S::BLOCK_K, 1, S::B_SHARE};
    return describe_3d<S>(map, c.weights, sizes, pitches, boxes);
}

template <class S> cudaError_t launch_windows(const Windows &c, int sms, cudaStream_t stream) {
    CUtensorMap windows, filters;
    cudaError_t error = !c.pitch ? describe_planes<S>(&windows, c) : describe_windows<S>(&windows, c);
    if (error == cudaSuccess) error = describe_filters<S>(&filters, c);
    Windows arguments = c;
    return error == cudaSuccess ? start<S, Gathered>(windows, filters, arguments, arguments.product, sms, stream, has_dependent_launch())
                                : error;
}

template <class S> cudaError_t attributes_of_windows(pysim_cuda_attributes *out) {
    return attributes_of<S>(wgmma_kernel<S, Gathered>, out);
}
}
#endif
