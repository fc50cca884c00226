/* SPDX-License-Identifier: Apache-2.0
 * Addresses of a convolution tile's outputs. Rows and columns count from the product's first ones (conv/conv.h), in every group.
 *
 *   NCHW  row = filter of the group, column = window: out + ((image all_filters + filter) P Q + position), image = window / (P Q),
 *         position = window mod (P Q). Consecutive windows of an image are contiguous: lanes store four consecutive windows each if P Q is a multiple of 4
 *         (they are then in one image and as aligned as the tensor), otherwise one each, which still fills whole sectors.
 *   NHWC  row = window, column = filter of the group: rows of all filters, from the group's first one.
 *
 * Worked number: P Q = 49, 512 filters: window 100 of filter 7 is at ((2 512 + 7) 49 + 2). */
#ifndef PYSIM_CUDA_CONV_OUTPUT_CUH
#define PYSIM_CUDA_CONV_OUTPUT_CUH
#include <type_traits>

#include "conv/conv.h"
#include "core/epilogue.cuh"

namespace pysim {

/* A group's own part of output, bias and scale: filters and windows count from 0. */
template <class Acc, class Out> __device__ inline Problem output_of(const Conv &c, int group) {
    Problem p = c.product;
    const int filter = group * c.filters;
    p.c = (Out *)c.out + (c.nhwc ? filter : filter * c.out_h * c.out_w);
    p.bias = p.bias ? (const Out *)p.bias + filter : nullptr;
    p.scale = p.scale ? (const typename Arithmetic<Acc>::type *)p.scale + filter : nullptr;
    p.m = c.windows, p.n = c.filters;
    return p;
}

/* NHWC. */
template <class Acc, class Out, bool SMOOTH> class WindowRows {
    using To = Epilogue<Acc, Out, SMOOTH>;
    To to;
    int first;

public:
    enum { WIDE = To::WIDE, UNROLLED = To::UNROLLED };
    __device__ WindowRows(const Conv &c, int group, int first_window) : to(output_of<Acc, Out>(c, group)), first(first_window) {}
    __device__ void store(int row, int column, const Acc (&acc)[WIDE]) const { to.store(row - first, column, acc); }
};

/* NCHW; COUNT windows at once: 4 if `fours`, otherwise 1. PLAIN: accumulators are only converted. PLAIN has its own, short code: where k is short, as
 * in a network's first layers, the epilogue takes most of the instructions. */
template <class Acc, class Out, int COUNT, bool PLAIN, bool SMOOTH = false> class FilterRows {
    using To = Epilogue<Acc, Out, SMOOTH>;
    const Conv &conv;
    To to;
    int first;

public:
    enum { WIDE = COUNT, UNROLLED = To::UNROLLED };
    static __device__ bool fours(const Conv &c) { return c.out_h * c.out_w % 4 == 0 && (uintptr_t)c.out % (4 * sizeof(Out)) == 0; }
    __device__ FilterRows(const Conv &c, int group, int first_window) : conv(c), to(output_of<Acc, Out>(c, group)), first(first_window) {}
    __device__ void store(int row, int column, const Acc (&acc)[WIDE]) const {
        const int window = column - first;
        if (row >= conv.filters || window >= conv.windows) return;
        int position;
        const int image = conv.per_image.of(window, position), size = conv.out_h * conv.out_w;
        using Vector = Pack<Out, WIDE>;
        Vector *at = (Vector *)(to.c + (image * conv.groups * conv.filters + row) * size + position), result;
        if (!PLAIN && to.beta != 0) result = *at;
        if constexpr (PLAIN)
#pragma unroll
            for (int i = 0; i < WIDE; i++) result.value[i] = Out(acc[i]);
        else to.finish(acc, result.value, [&](int) { return row; });
        *at = result;
    }
};

/* body(output) for the tiles of one group whose windows begin with number `first` of the product. */
template <bool NHWC, class Acc, class Out, class Body> __device__ inline void with_conv_output(const Conv &c, int group, int first,
                                                                                               Body body) {
    const bool smooth = is_smooth(function_of(c.product.activation));
    if constexpr (NHWC) {
        if (smooth) body(WindowRows<Acc, Out, true>(c, group, first));
        else body(WindowRows<Acc, Out, false>(c, group, first));
    } else {
        const bool fours = FilterRows<Acc, Out, 4, true>::fours(c), plain = Epilogue<Acc, Out>(c.product).plain;
        const auto by = [&](auto count) {
            constexpr int COUNT = decltype(count)::value;
            if (plain) body(FilterRows<Acc, Out, COUNT, true>(c, group, first));
            else if (smooth) body(FilterRows<Acc, Out, COUNT, false, true>(c, group, first));
            else body(FilterRows<Acc, Out, COUNT, false>(c, group, first));
        };
        if (fours) by(std::integral_constant<int, 4>());
        else by(std::integral_constant<int, 1>());
    }
}
}
#endif
