/* SPDX-License-Identifier: Apache-2.0
 * Chooses the kernel (kernel.cuh) for a problem, and defines the rows of conv/depthwise/rows.inc, a type at a time. The unit of f32 has those of tf32,
 * too, which is f32 in memory and is multiplied as f32. */
#include <numeric>

#include "conv/depthwise/kernel.cuh"
#include "conv/depthwise/sequence.cuh"
#include "conv/depthwise/toeplitz.cuh"
#include "conv/depthwise/volume.cuh"
#include "core/element.h"

#include "conv/depthwise/rows.inc"

namespace pysim {
namespace {

/* Chooses the columns of a thread. NCHW: no more than a vector access holds, since lanes would otherwise store strided words. One if more columns
 * would leave fewer blocks than SMs. */
template <class T, int OF> struct By {
    const Conv &c;
    int sms;
    bool enough(int columns) const { return Places(c, ROWS, columns, OF).count / THREADS >= sms; }
    /* Whether two neighbouring channels can be read, and their outputs written, by one access. */
    bool pairs() const {
        const int out_bytes = 2 * dtypes[c.product.c_dtype].bytes;
        return c.nhwc && c.filters == 1 && c.groups % 2 == 0 && (uintptr_t)c.in % (2 * sizeof(T)) == 0 && (uintptr_t)c.out % out_bytes == 0;
    }
    /* The lanes of a block along pairs of channels: half of the most where else a fifth of all would be idle. Loads of 32 bytes in place of 64 take longer:
     * 32 x 56x56 x 144, 3x3 of f16, 33.2 us by 8 lanes and 25.4 by 16, of which a tenth is idle (H200). */
    int lanes() const {
        const int pairs = c.groups / 2, all = (pairs + MOST_LANES - 1) / MOST_LANES * MOST_LANES;
        return 5 * (all - pairs) > all && (pairs - 1) % MOST_LANES < MOST_LANES / 2 ? MOST_LANES / 2 : MOST_LANES;
    }
    template <int KERNEL, int STRIDE> Chosen kept() const {
        const auto pieces = [&](int size) {
            const int bytes = size * (int)sizeof(T), out_bytes = size * dtypes[c.product.c_dtype].bytes;
            return c.pad_left == KERNEL / 2 && c.width % size == 0 && c.out_w % size == 0 && (uintptr_t)c.in % bytes == 0 &&
                   (uintptr_t)c.out % out_bytes == 0;
        };
        if constexpr (sizeof(T) == 2 && OF == 1)
            if (pairs()) {
                if (enough(4)) return {paired_kernel<T, KERNEL, STRIDE, 4>, ROWS, 4, 1, 1, lanes()};
                return {paired_kernel<T, KERNEL, STRIDE, 1>, ROWS, 1, 1, 1, lanes()};
            }
        if (c.nhwc && enough(4)) return {kept_kernel<T, KERNEL, STRIDE, 4, 1, OF>, ROWS, 4, OF};
        if (!c.nhwc && pieces(4) && enough(4)) return {kept_kernel<T, KERNEL, STRIDE, 4, 4, OF>, ROWS, 4, OF};
        if (!c.nhwc && pieces(2) && enough(2)) return {kept_kernel<T, KERNEL, STRIDE, 2, 2, OF>, ROWS, 2, OF};
        return {kept_kernel<T, KERNEL, STRIDE, 1, 1, OF>, ROWS, 1, OF};
    }
    Chosen passing() const {
        if (c.dilation_w == 1 && enough(4) && c.stride_w == 1) return {passing_kernel<T, 1, 4, OF>, ROWS, 4, OF};
        if (c.dilation_w == 1 && enough(4) && c.stride_w == 2) return {passing_kernel<T, 2, 4, OF>, ROWS, 4, OF};
        return {passing_kernel<T, 1, 1, OF>, ROWS, 1, OF};
    }
};

/* The kernel's edge if kept_kernel has it, else 0. */
int kept_edge(const Conv &c) {
    const bool square = c.kernel_h == c.kernel_w && c.stride_h == c.stride_w && c.stride_h <= 2 && c.dilation_h == 1 && c.dilation_w == 1;
    return square && (c.kernel_h == 3 || c.kernel_h == 5 || c.kernel_h == 7) ? c.kernel_h : 0;
}

template <class T> Chosen depthwise_of(const Conv &c, int sms) {
    const By<T, 1> by = {c, sms};
    const int edge = kept_edge(c);
    if (edge == 3) return c.stride_h == 1 ? by.template kept<3, 1>() : by.template kept<3, 2>();
    if (edge == 5) return c.stride_h == 1 ? by.template kept<5, 1>() : by.template kept<5, 2>();
    if (edge == 7) return c.stride_h == 1 ? by.template kept<7, 1>() : by.template kept<7, 2>();
    if (c.kernel_h != c.kernel_w) return by.passing();
    /* outputs `rows` apart read the same rows of the input, except `steps` of them */
    const int common = std::gcd(c.stride_h, c.dilation_h), rows = c.dilation_h / common, steps = c.stride_h / common;
    if (2 * steps > c.kernel_h || rows >= c.out_h) switch (c.kernel_h) { /* they share fewer than half, or there are no such outputs */
        case 2: return {apart_kernel<T, 2, 1>, 1, 1, 1};
        case 3: return {apart_kernel<T, 3, 1>, 1, 1, 1};
        case 4: return {apart_kernel<T, 4, 1>, 1, 1, 1};
        case 5: return {apart_kernel<T, 5, 1>, 1, 1, 1};
        case 7: return {apart_kernel<T, 7, 1>, 1, 1, 1};
        }
    else if (steps == 1 && (c.dilation_h > 1 || c.dilation_w > 1)) switch (c.kernel_h) {
        case 3: return {apart_kernel<T, 3, ROWS>, ROWS, 1, 1, rows};
        case 5: return {apart_kernel<T, 5, ROWS>, ROWS, 1, 1, rows};
        case 7: return {apart_kernel<T, 7, ROWS>, ROWS, 1, 1, rows};
        }
    return by.passing();
}

/* Larger kernels: four filters' weights do not fit in registers. */
template <class T> Chosen grouped_of(const Conv &c, int sms) {
    const By<T, FILTERS> by = {c, sms};
    if (kept_edge(c) == 3) return c.stride_h == 1 ? by.template kept<3, 1>() : by.template kept<3, 2>();
    return by.passing();
}

/* Of volumes with few threads each has one column. */
template <class T> Chosen volume_of(const Conv &c, int sms) {
    enum { WIDE = 4, MOST_SHARED = 48 << 10 };
    const int high = (c.slice_rows + ROWS - 1) / ROWS, edge = kept_edge(c);
    Conv threads = c;
    threads.out_h = c.out_h / c.slice_rows * high * ROWS;
    const By<T, 1> by = {threads, sms};
    if (!by.enough(WIDE) || edge == 0 || edge == 7 || (edge == 5 && c.stride_h == 2))
        return {any_volume_kernel<T>, ROWS, 1, 1, high, 0, 0, true};
    if (by.pairs() && pairs_bytes(c) <= MOST_SHARED) {
        const auto kernel = edge == 5         ? volume_pairs_kernel<T, 5, 1, WIDE>
                            : c.stride_h == 1 ? volume_pairs_kernel<T, 3, 1, WIDE>
                                              : volume_pairs_kernel<T, 3, 2, WIDE>;
        return {kernel, ROWS, WIDE, 1, high, by.lanes(), pairs_bytes(c), true};
    }
    const auto kernel = edge == 5         ? volume_kernel<T, 5, 1, WIDE>
                        : c.stride_h == 1 ? volume_kernel<T, 3, 1, WIDE>
                                          : volume_kernel<T, 3, 2, WIDE>;
    return {kernel, ROWS, WIDE, 1, high, 0, 0, true};
}

const char *not_depthwise(const Conv &c) { return c.channels == 1 ? nullptr : "it takes one channel a group"; }
const char *not_grouped(const Conv &c) {
    static_assert(limit::GROUPED_CHANNELS == 16, "what the sentence says");
    return c.filters > 1 && c.channels <= limit::GROUPED_CHANNELS ? nullptr : "it takes up to 16 channels and several filters a group";
}

}

Rows<ConvRow> conv_depthwise::PYSIM_UNIT() {
    return table_of<ConvRow>(rows::lines, [](auto line, auto add) {
        constexpr auto c = rows::lines[line];
        using T = ElementOf<rows::PYSIM_UNIT>;
        if constexpr (c.dtype == rows::PYSIM_UNIT || (c.dtype == rows::tf32 && rows::PYSIM_UNIT == rows::f32)) {
            if constexpr (c.variant == "grouped")
                add(row_of(c, {not_grouped, nullptr, launch_row<grouped_of<T>>, attributes<grouped_of<T>>}));
            else if constexpr (c.variant == "sequence")
                add(row_of(c, {not_sequence<T>, nullptr, launch_sequence<T>, attributes_of_sequence<T>}));
            else if constexpr (c.variant == "volume")
                add(row_of(c, {not_volume, nullptr, launch_row<volume_of<T>>, attributes<volume_of<T>>}));
            else if constexpr (c.variant == "toeplitz")
                add(row_of(c, {not_sequence<T>, nullptr, launch_toeplitz<T>, attributes_of_toeplitz<T>}));
            else add(row_of(c, {not_depthwise, nullptr, launch_row<depthwise_of<T>>, attributes<depthwise_of<T>>}));
        }
    });
}
}
