/* SPDX-License-Identifier: Apache-2.0
 * Convolution as products over a matrix of columns (Chellapilla, Puri and Simard, 2006; Caffe's layout), by the row of gemm/ that the
 * schedule names.
 *
 *   NCHW   for each image and group   out[filters][windows] = weights[filters][k] columns[k][windows]
 *   NHWC   for each group, as many images at a time as have CHUNK bytes of columns
 *                                     out[windows][filters] = columns[windows][k] weights[filters][k]^T
 *
 * A kernel of 1 x 1 without stride and padding needs no columns: the input has them. `own` holds the columns and the product's workspace. */
#include <algorithm>

#include "abi/operation.h"
#include "conv/rows.h"
#include "core/decomposition.cuh"
#include "core/launch.h"

#include "conv/im2col/rows.inc"

namespace pysim {
namespace {

enum { THREADS = 256 };

/* The matrices of one product, in elements. */
struct Columns {
    int images;      /* of one product */
    int64_t windows; /* of these */
    int64_t pitch;   /* of the columns, or of the input that stands for them */
    int64_t bytes;   /* of the columns; 0: the input stands for them */
};

Columns columns_of(const Conv &c) {
    const int element = dtypes[c.dtype].bytes;
    const int64_t in_image = (int64_t)c.out_h * c.out_w;
    Columns m = {1, in_image, in_image, 0};
    if (c.nhwc) {
        m.pitch = c.pointwise() ? c.groups * c.channels : round_up(c.k * element, 16) / element;
        const int64_t fit = c.pointwise() ? c.batch : limit::COLUMNS_BYTES / (in_image * m.pitch * element),
                      rows = limit::GEMM_SIDE / in_image;
        m.images = (int)std::max<int64_t>(1, std::min<int64_t>({fit, rows, c.batch}));
        m.windows = in_image * m.images;
    } else if (!c.pointwise()) {
        m.pitch = round_up(in_image * element, 16) / element;
    }
    if (!c.pointwise()) m.bytes = round_up((c.nhwc ? m.windows : c.k) * m.pitch * element, ALIGN);
    return m;
}

/* columns[k][window] of one image (NCHW), columns[window][k] of several (NHWC), of one group. */
template <class T> __global__ void __launch_bounds__(THREADS)
    columns_kernel(const __grid_constant__ Conv c, T *to, int64_t pitch, int image, int group, int64_t count) {
    const int64_t index = blockIdx.x * (int64_t)THREADS + threadIdx.x;
    if (index >= count) return;
    const int inner = c.nhwc ? c.k : c.out_h * c.out_w;
    const int line = (int)(index / inner), at = (int)(index - (int64_t)line * inner), k = c.nhwc ? at : line, window = c.nhwc ? line : at;
    int rest, channel, r, s, p, q;
    const int n = image + c.per_image.of(window, rest);
    p = c.per_row.of(rest, q);
    if (c.nhwc) r = c.per_channel.of(k, rest), s = c.per_kernel_row.of(rest, channel);
    else channel = c.per_channel.of(k, rest), r = c.per_kernel_row.of(rest, s);
    int d = 0;
    if (c.volumes) {
        const int o = p / c.slice_rows, t = r / c.kernel_h;
        p -= o * c.slice_rows, r -= t * c.kernel_h, d = o * c.stride_d + t * c.dilation_d - c.pad_front;
    }
    const int h = p * c.stride_h + r * c.dilation_h - c.pad_top, w = q * c.stride_w + s * c.dilation_w - c.pad_left;
    channel += group * c.channels;
    const int64_t all = (int64_t)c.groups * c.channels;
    T value = T(0);
    if ((unsigned)d < (unsigned)c.depth && (unsigned)h < (unsigned)c.height && (unsigned)w < (unsigned)c.width)
        value = ((const T *)c.in)[c.nhwc ? (((int64_t)n * c.depth + d) * c.height + h) * c.width * all + w * all + channel
                                         : (((n * all + channel) * c.depth + d) * c.height + h) * c.width + w];
    to[line * pitch + at] = value;
}

unsigned blocks_of(int64_t count) { return (unsigned)((count + THREADS - 1) / THREADS); }

/* The product of one group, without its operands' places. */
pysim_cuda_gemm product_of(const Conv &c, const Columns &m) {
    if (c.nhwc) return {m.windows, c.filters, c.k, m.pitch, c.k, (int64_t)c.groups * c.filters, 0, 1, c.dtype, c.product.c_dtype, nullptr};
    return {c.filters, m.windows, c.k, c.k, m.pitch, m.windows, 0, 0, c.dtype, c.product.c_dtype, nullptr};
}

pysim_cuda_schedule schedule_of(const Conv &c) {
    return {c.gemm, c.product.kind, c.product.splits, c.product.along_n, c.product.group, -1};
}

/* Bytes for the product's own workspace, wherever the tensors begin: an operand off its alignment takes the most. Fails where the schedule
 * does not suit the product, that of the batch's last images too. */
pysim_status product_bytes(const Conv &c, const Columns &m, int64_t *bytes) {
    pysim_cuda_problem p = problem_of(product_of(c, m));
    const pysim_cuda_schedule s = schedule_of(c);
    const void *odd = (const void *)(uintptr_t)dtypes[c.dtype].bytes, *even = (const void *)(uintptr_t)ALIGN;
    const void *columns = m.bytes ? even : odd;
    const auto ask = [&](int64_t *out) { return pysim_cuda_workspace_bytes(&p, &s, c.nhwc ? columns : odd, c.nhwc ? odd : columns, out); };
    int64_t last = 0;
    pysim_status status = ask(bytes);
    if (c.nhwc && c.batch % m.images) {
        p.gemm.m = m.windows / m.images * (c.batch % m.images);
        if (status == PYSIM_OK) status = ask(&last);
        *bytes = std::max(*bytes, last);
    }
    return status;
}

pysim_status own_bytes(const Conv &c, int64_t *bytes) {
    const Columns m = columns_of(c);
    int64_t product = 0;
    const pysim_status status = product_bytes(c, m, &product);
    *bytes = m.bytes + product;
    return status;
}

template <class T> cudaError_t make_columns(const Conv &c, const Columns &m, int images, int image, int group, cudaStream_t stream) {
    const int64_t count = (int64_t)c.k * c.out_h * c.out_w * images;
    return launch(columns_kernel<T>, dim3(blocks_of(count)), dim3(THREADS), 0, stream, c, (T *)c.own, m.pitch, image, group, count);
}

pysim_status run(const Conv &c, int, cudaStream_t stream) {
    const Columns m = columns_of(c);
    const int element = dtypes[c.dtype].bytes, result = dtypes[c.product.c_dtype].bytes;
    const pysim_cuda_schedule s = schedule_of(c);
    int64_t product_size = 0;
    pysim_status status = product_bytes(c, m, &product_size);
    for (int image = 0; image < c.batch && status == PYSIM_OK; image += m.images)
        for (int group = 0; group < c.groups && status == PYSIM_OK; group++) {
            const int images = min(m.images, c.batch - image);
            pysim_cuda_problem product = problem_of(product_of(c, m));
            const int64_t plane = (int64_t)c.rows() * c.width, in_image = c.groups * c.channels * plane,
                          out_image = (int64_t)c.groups * c.filters * c.out_h * c.out_w;
            const char *columns = (const char *)c.in +
                                  (image * in_image + group * (c.nhwc ? c.channels : c.channels * plane)) * element;
            const char *weights = (const char *)c.weights + (int64_t)group * c.filters * c.k * element;
            char *out =
                (char *)c.out + (image * out_image + group * (c.nhwc ? c.filters : (int64_t)c.filters * c.out_h * c.out_w)) * result;
            if (c.nhwc) product.gemm.m = (int64_t)c.out_h * c.out_w * images;
            if (m.bytes) {
                columns = (const char *)c.own;
                status = check(element == 8   ? make_columns<double>(c, m, images, image, group, stream)
                               : element == 4 ? make_columns<float>(c, m, images, image, group, stream)
                                              : make_columns<unsigned short>(c, m, images, image, group, stream),
                               "im2col");
                if (status != PYSIM_OK) break;
            }
            const Problem &p = c.product;
            const int64_t filter = (int64_t)group * c.filters;
            const pysim_cuda_epilogue e = {p.alpha,
                                           p.beta,
                                           p.bias ? (const char *)p.bias + filter * result : nullptr,
                                           p.activation,
                                           p.low,
                                           p.high,
                                           p.scale ? (const char *)p.scale + filter * scale_bytes(p.c_dtype) : nullptr,
                                           !c.nhwc,
                                           nullptr};
            status = pysim_cuda_run(&product, &s, &e, c.nhwc ? columns : weights, c.nhwc ? weights : columns, out,
                                    product_size ? (char *)c.own + m.bytes : nullptr, product_size, stream);
        }
    return status;
}

cudaError_t attributes(const Conv &, pysim_cuda_attributes *out) { return attributes_of(columns_kernel<float>, THREADS, 0, out); }
}

Rows<ConvRow> conv_im2col::all() {
    return table_of<ConvRow>(rows::lines,
                             [](auto line, auto add) { add(row_of(rows::lines[line], {nullptr, own_bytes, run, attributes})); });
}
}
