/* SPDX-License-Identifier: Apache-2.0
 * The im2win tensor (Lu, Chu, Liu: "Im2win: Memory Efficient Convolution on SIMD Architectures", arXiv 2306.14320; on GPUs arXiv 2306.14316,
 * equation 2 with its stride): each row of outputs keeps the kernel_h rows of the padded input that it needs, column by column.
 *
 *   NCHW  T(n, c, p, w kernel_h + u) = in(n, c, p stride_h + u dilation_h - pad_top, w - pad_left)
 *   NHWC  T(n, p, g, (w kernel_h + u) channels + c), a line for each group g: the same with channels innermost
 *
 * for the columns w that some window reads. With dilation_w = 1 a window's part of a line is contiguous: kernel_w kernel_h elements from
 * q stride_w kernel_h on (NHWC: times channels, so a whole window is one slice), and neighbouring windows share all but stride_w columns of it. Taps then
 * run over (c, s, r) under NCHW, over (s, r, c) under NHWC; filters are reordered likewise. The tensor contains the padding, so the product has no
 * edges.
 *
 * Elements: N C P kernel_h W, rounded up to whole vectors a line; im2col has N C kernel_h kernel_w P Q. Worked number: 3x3x3 input, kernel 2x2:
 * 3 channels, 2 rows, 6 elements a row: 36 (im2col: 48); here 48, as lines of 6 take 8. */
#ifndef PYSIM_CUDA_CONV_IM2WIN_CUH
#define PYSIM_CUDA_CONV_IM2WIN_CUH
#include "abi/arguments.h"
#include "conv/gather.cuh"

namespace pysim::im2win {

using gather::Arguments;

enum { VECTOR = 4 }; /* elements that a thread of the transform writes */

struct Tensor {
    int columns; /* of the padded input */
    int line;    /* elements */
    int64_t elements;
};
inline Tensor tensor_of(const Conv &c) {
    const int64_t columns = (int64_t)(c.out_w - 1) * c.stride_w + (int64_t)(c.kernel_w - 1) * c.dilation_w + 1;
    const int64_t line = (columns * c.kernel_h * (c.nhwc ? c.channels : 1) + VECTOR - 1) / VECTOR * VECTOR;
    const int64_t lines = (int64_t)c.batch * c.out_h * c.groups * (c.nhwc ? 1 : c.channels);
    const bool fits = line < INT32_MAX && lines < INT32_MAX / line; /* if not, the row refuses the problem */
    return {(int)columns, fits ? (int)line : 0, fits ? line * lines : INT64_MAX};
}
inline const char *refuses(const Conv &c) {
    return tensor_of(c).elements > INT32_MAX ? "it takes windows whose tensor has up to 2^31 - 1 elements" : nullptr;
}

inline gather::Steps steps_of(const Conv &c) {
    const int depth = c.nhwc ? c.channels : 1;
    return {c.nhwc ? 1 : c.out_h * tensor_of(c).line, depth, c.dilation_w * c.kernel_h * depth};
}

/* Gathers windows from the tensor. */
inline Arguments of_tensor(const Conv &c, const gather::Prepared &own) {
    const Tensor t = tensor_of(c);
    Arguments a = gather::of_input(c, own);
    a.base = (const char *)c.own + own.filters;
    const int depth = c.nhwc ? c.channels : 1, row = c.nhwc ? c.groups * t.line : t.line;
    const int group = c.nhwc ? t.line : c.channels * c.out_h * t.line, image = c.nhwc ? c.out_h * row : c.groups * group;
    a.layout = {image, group, row, c.stride_w * c.kernel_h * depth, 0};
    a.inside = 1, a.order = gather::BY_COLUMNS, a.steps = steps_of(c);
    a.vector = c.nhwc ? c.channels % VECTOR == 0
                      : c.dilation_w == 1 && c.stride_w * c.kernel_h % VECTOR == 0 && c.kernel_w * c.kernel_h % VECTOR == 0;
    return a;
}
/* The transform's arguments. */
struct Transform {
    Conv c;
    float *to;
    int columns, quads;                              /* quads: vectors of all lines */
    Divisor per_line, per_column, per_channel, rows; /* vectors of a line; elements of a column; channels (NHWC); out_h (NHWC: groups) */
};

/* A thread writes one vector at a time, a block 256 contiguous ones. */
template <bool NHWC> __global__ __launch_bounds__(256) void transform_kernel(const __grid_constant__ Transform t) {
    const Conv &c = t.c;
    const int channels = c.groups * c.channels;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < t.quads; i += (int64_t)gridDim.x * blockDim.x) {
        int at, rest, u, channel = 0, plane, p, group = 0;
        const int line = t.per_line.of((int)i, at);
        int w = t.per_column.of(at * VECTOR, rest);
        if (NHWC) {
            u = t.per_channel.of(rest, channel);
            plane = t.rows.of(line, group);
            p = plane % c.out_h, plane /= c.out_h;
        } else {
            u = rest, plane = t.rows.of(line, p);
        }
        const float *const image = (const float *)c.in + (int64_t)plane * c.height * c.width * (NHWC ? channels : 1) + group * c.channels;
        alignas(16) float values[VECTOR];
#pragma unroll
        for (int e = 0; e < VECTOR; e++) {
            const int64_t row = (int64_t)p * c.stride_h + (int64_t)u * c.dilation_h - c.pad_top;
            const int column = w - c.pad_left;
            const bool exists = (uint64_t)row < (uint64_t)c.height && (unsigned)column < (unsigned)c.width && w < t.columns;
            values[e] = exists ? image[((int)row * c.width + column) * (NHWC ? channels : 1) + channel] : 0.f;
            if (NHWC && ++channel < c.channels) continue;
            channel = 0;
            if (++u < c.kernel_h) continue;
            u = 0, w++;
        }
        *(float4 *)(t.to + i * VECTOR) = *(const float4 *)values;
    }
}

inline pysim_status transform(const Arguments &a, cudaStream_t stream) {
    const Conv &c = a.c;
    const Tensor t = tensor_of(c);
    const int depth = c.nhwc ? c.channels : 1;
    const Transform of = {c,
                          (float *)const_cast<void *>(a.base),
                          t.columns,
                          (int)(t.elements / VECTOR),
                          Divisor((unsigned)(t.line / VECTOR)),
                          Divisor((unsigned)(c.kernel_h * depth)),
                          Divisor((unsigned)depth),
                          Divisor((unsigned)(c.nhwc ? c.groups : c.out_h))};
    const int blocks = ceil_div(of.quads, 256);
    return check(launch(c.nhwc ? transform_kernel<true> : transform_kernel<false>, dim3((unsigned)(blocks < 16384 ? blocks : 16384)),
                        dim3(256), 0, stream, of),
                 "the im2win tensor");
}

/* Algorithm 2: one thread per output reads its window slice by slice. Neighbours have windows of one filter (NHWC: filters of one window). */
struct Basic {
    Arguments a;
    int size[3], step[3]; /* of the loops over taps, outermost first */
};
__global__ __launch_bounds__(256) void basic_kernel(const __grid_constant__ Basic b) {
    const Conv &c = b.a.c;
    const int all = c.groups * c.filters, i = (int)(blockIdx.x * blockDim.x + threadIdx.x), images = c.out_h * c.out_w;
    if (i >= all * c.windows) return;
    const int filter = c.nhwc ? i % all : i / images % all, window = c.nhwc ? i / all : i / images / all * images + i % images;
    int o, p, q;
    const float *from = (const float *)b.a.base + (unsigned)gather::start_of(b.a, filter / c.filters, window, o, p, q);
    const float *weight = (const float *)b.a.weights + (int64_t)filter * b.a.pitch;
    float sum = 0;
    for (int x = 0; x < b.size[0]; x++)
        for (int y = 0; y < b.size[1]; y++)
            for (int z = 0; z < b.size[2]; z++) sum = fmaf(from[x * b.step[0] + y * b.step[1] + z * b.step[2]], *weight++, sum);
    Problem product = c.product;
    product.c = c.out;
    const Epilogue<float, float> to(product);
    to.c[i] = to.finish(sum, to.beta != 0 ? to.c[i] : 0, filter);
}
inline Basic basic_of(const Arguments &a) {
    const Conv &c = a.c;
    const gather::Steps s = steps_of(c);
    if (c.nhwc) return {a, {c.kernel_w, c.kernel_h, c.channels}, {s.wide, s.high, s.channel}};
    return {a, {c.channels, c.kernel_w, c.kernel_h}, {s.channel, s.wide, s.high}};
}
}
#endif
