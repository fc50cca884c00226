/* SPDX-License-Identifier: Apache-2.0
 * Convolution by its definition: one thread per output, or (tiled.cuh) per few windows and filters. */
#include "conv/direct/tiled.cuh"
#include "core/element.h"

#include "conv/direct/rows.inc"

namespace pysim {
namespace {

template <class T> __global__ void __launch_bounds__(THREADS)
    direct_kernel(const __grid_constant__ Conv c, const __grid_constant__ Places places) {
    wait_for_previous();
    const int index = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (index >= places.count) return;
    const Place at = place_of(c, places, index);
    const Strides in(c.nhwc, c.groups * c.channels, c.rows(), c.width), taps(c.nhwc, c.channels, c.kernel_d * c.kernel_h, c.kernel_w);
    const int o = at.p / c.slice_rows, d0 = o * c.stride_d - c.pad_front;
    const int h0 = (at.p - o * c.slice_rows) * c.stride_h - c.pad_top, w0 = at.q * c.stride_w - c.pad_left;
    const T *image = (const T *)c.in + at.n * in.image + at.f / c.filters * c.channels * in.channel;
    const T *weights = (const T *)c.weights + at.f * taps.image;
    T sum = 0;
    for (int line = 0; line < c.kernel_d * c.kernel_h; line++) {
        const int t = line / c.kernel_h, d = d0 + t * c.dilation_d, h = h0 + (line - t * c.kernel_h) * c.dilation_h;
        if ((unsigned)d >= (unsigned)c.depth || (unsigned)h >= (unsigned)c.height) continue;
        for (int s = 0; s < c.kernel_w; s++) {
            const int w = w0 + s * c.dilation_w;
            if ((unsigned)w >= (unsigned)c.width) continue;
            const T *from = image + (d * c.height + h) * in.row + w * in.column, *by = weights + line * taps.row + s * taps.column;
            for (int channel = 0; channel < c.channels; channel++) sum = fma(from[channel * in.channel], by[channel * taps.channel], sum);
        }
    }
    launch_dependents();
    const Epilogue<T, T> epilogue(c.product);
    T *to = (T *)c.out + index;
    *to = epilogue.finish(sum, epilogue.beta != 0 ? *to : (T)0, at.f);
}

template <class T> Chosen direct_of(const Conv &, int) { return {direct_kernel<T>, 1, 1, 1}; }
template <class T> constexpr rows::ConvFunctions full() { return {nullptr, nullptr, launch_row<direct_of<T>>, attributes<direct_of<T>>}; }
template <class T> constexpr rows::ConvFunctions tiled() { return {not_tiled, nullptr, launch_tiled<T>, attributes_of_tiled<T>}; }

}

Rows<ConvRow> conv_direct::all() {
    return table_of<ConvRow>(rows::lines, [](auto line, auto add) {
        constexpr auto c = rows::lines[line];
        if constexpr (c.variant == "tiled") add(row_of(c, tiled<ElementOf<c.dtype>>()));
        else add(row_of(c, c.dtype == rows::f64 ? full<double>() : full<float>()));
    });
}
}
