/* SPDX-License-Identifier: Apache-2.0
 * Contract between the entry points (conv.cu) and the convolution families.
 *
 *     out(n, f, p, q) = e( sum over c, r, s of in(n, c, p stride_h + r dilation_h - pad_top, q stride_w + s dilation_w - pad_left) weights(f, c, r, s) )
 *
 * in each group of channels and filters, zeros outside the input. A window is one (n, p, q), numbered in this order; k runs over (c, r, s) under
 * NCHW, (r, s, c) under NHWC: the order in which filters lie. A kernel computes tiles of filters x windows; `product` says which (decomposition.cuh):
 * its rows are filters and its columns windows under NCHW, the other way round under NHWC, so that outputs that lie side by side are in one
 * row. Groups stand one after another along the windows, each padded to whole tiles.
 *
 * A family defines, for each of its rows of convs.inc, a `ConvRow`. The workspace holds, each from a multiple of 256 bytes: what the row asks for
 * itself, the tiles' flags, the partial sums. */
#ifndef PYSIM_CUDA_CONV_H
#define PYSIM_CUDA_CONV_H
#include "gemm.h"

namespace pysim {

/* Division by a number that is known before the launch: n / divisor for 0 <= n < 2^31 (Granlund and Montgomery, 1994). */
struct Divisor {
    unsigned divisor, factor, shift;
    Divisor() = default;
    explicit Divisor(unsigned d) : divisor(d), factor(0), shift(0) {
        while (shift < 31 && (1u << shift) < d) shift++;
        factor = (unsigned)((((uint64_t)1 << 32) * (((uint64_t)1 << shift) - d)) / d + 1);
    }
    __device__ int of(int n) const { return (int)((__umulhi((unsigned)n, factor) + (unsigned)n) >> shift); }
    __device__ int of(int n, int &rest) const {
        const int quotient = of(n);
        rest = n - quotient * (int)divisor;
        return quotient;
    }
};

/* A kernel's arguments: passed by value. Sizes and the tensors' element counts fit int (conv.cu refuses larger ones). */
struct Conv {
    const void *in, *weights;
    void *out;
    void *own;                /* the row's own part of the workspace */
    int batch, groups;
    int channels, filters;    /* of one group */
    int height, width, out_h, out_w;
    int kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w, pad_top, pad_left, pad_bottom, pad_right;
    int nhwc, dtype;
    int windows, k;           /* batch out_h out_w, channels kernel_h kernel_w */
    int group_tiles;          /* tiles of windows in one group */
    Divisor per_image, per_row; /* windows of an image, of a row of outputs */
    Divisor per_channel, per_kernel_row; /* NCHW: kernel_h kernel_w, kernel_w; NHWC: kernel_w channels, channels */
    Problem product;          /* decomposition and epilogue; a, b and c are not set, ldc is a row of outputs */
    int gemm;                 /* the schedule's row of gemms.inc, or -1 */
    int tile_m, tile_n, cluster; /* what the product is cut into, if it is: a block's tile, or that of a cluster of so many blocks */
};

struct ConvRow {
    pysim_cuda_conv_info info;
    /* NULL where the row computes `c`, else the reason: "it takes ..." */
    const char *(*refuses)(const Conv &c);
    /* Bytes of `own`; NULL: none. It may call pysim_cuda_gemm_workspace_bytes and then fails as that does. */
    pysim_status (*own_bytes)(const Conv &c, int64_t *bytes);
    /* Puts everything on the stream; a row that makes products runs them by pysim_cuda_gemm_run. */
    pysim_status (*launch)(const Conv &c, int sms, cudaStream_t stream);
    cudaError_t (*attributes)(const Conv &c, pysim_cuda_attributes *out);
    /* NULL where the product is as `conv_of` makes it (conv.cu), else sets its sizes, tile_m, tile_n, cluster and group_tiles. */
    void (*tile)(Conv &c) = nullptr;
    bool chunked = false; /* data parallel, and `splits` says in how many chunks of windows */
    int near = 0; /* so many parts of split-K meet in a cluster and need no workspace: then the product has no partials */
};

/* A line of convs.inc as its info: WHOLE where the kernel has no tiles, else TILED. A form other than full defines its suffix, e.g.
 * PYSIM_FORM_basic as "_basic"; a family of several `outputs` builds its name itself. */
#define PYSIM_NUMBER_f32 PYSIM_F32
#define PYSIM_NUMBER_f64 PYSIM_F64
#define PYSIM_NUMBER_f16 PYSIM_F16
#define PYSIM_NUMBER_bf16 PYSIM_BF16
#define PYSIM_NUMBER_tf32 PYSIM_TF32
#define PYSIM_FORM_full
#define PYSIM_CONV_WHOLE(family, dtype, form, ...) {#dtype "_" #family PYSIM_FORM_##form, #family, #form, PYSIM_NUMBER_##dtype, __VA_ARGS__}
#define PYSIM_CONV_TILED(family, dtype, form, bf, bw, bk, wf, ww, tf, tw, stages, ...)                                                \
    {#dtype "_" #family "_" #bf "x" #bw "x" #bk "_" #wf "x" #ww "_" #tf "x" #tw "_s" #stages PYSIM_FORM_##form, #family, #form,        \
     PYSIM_NUMBER_##dtype, bf, bw, bk, wf, ww, tf, tw, stages, __VA_ARGS__}

/* Each family's rows, in the order of convs.inc. Weak: a build may leave a family out, which then has none. */
struct ConvRows { const ConvRow *rows; int count; };
__attribute__((weak)) ConvRows direct_rows();
__attribute__((weak)) ConvRows depthwise_rows();
__attribute__((weak)) ConvRows im2col_rows();
__attribute__((weak)) ConvRows implicit_rows();
__attribute__((weak)) ConvRows im2win_rows();
__attribute__((weak)) ConvRows winograd_rows();
__attribute__((weak)) ConvRows wgmma_conv_rows();

/* conv_reference.cu */
cudaError_t conv_reference(const Conv &c, cudaStream_t stream);
}
#endif
