/* SPDX-License-Identifier: Apache-2.0
 * Contract between the entry points (abi/conv.cu) and the convolution families.
 *
 *     out(n, f, p, q) = e( sum over c, r, s of in(n, c, p stride_h + r dilation_h - pad_top, q stride_w + s dilation_w - pad_left) weights(f, c, r, s) )
 *
 * in each group of channels and filters, zeros outside the input. A window is one (n, p, q), numbered in this order; k runs over (c, r, s) under
 * NCHW, (r, s, c) under NHWC: the order in which filters lie. A kernel computes tiles of filters x windows; `product` says which (core/decomposition.cuh):
 * its rows are filters and its columns windows under NCHW, the other way round under NHWC, so that outputs that lie side by side are in one
 * row. Groups stand one after another along the windows, each padded to whole tiles.
 *
 * Volumes have slices before rows: windows (n, o, p, q), and taps (t, r, s) in place of (r, s). Rows of outputs are numbered through all slices of a
 * volume, so whatever stores results sees an image.
 *
 * A family (families.inc) defines, for each of its rows, a `ConvRow`. The workspace holds, each from a multiple of 256 bytes: what the row asks for
 * itself, the tiles' flags, the partial sums. */
#ifndef PYSIM_CUDA_CONV_H
#define PYSIM_CUDA_CONV_H
#include "core/divisor.h"
#include "core/problem.h"
#include "core/rows.h"

namespace pysim {

/* See pysim_cuda.h. */
struct Prologue {
    const float *scale, *shift;
    short by_image, relu;
    __host__ __device__ bool any() const { return scale || shift || relu; }
};
/* What it makes of an element of a channel, in an image whose scales begin at number `row` if images have their own. */
__device__ inline float with_prologue(const Prologue &p, float x, int row, int channel) {
    const float y = fmaf(x, p.scale ? __ldg(p.scale + (p.by_image ? row : 0) + channel) : 1.f, p.shift ? __ldg(p.shift + channel) : 0.f);
    return p.relu && y < 0 ? 0.f : y;
}

/* A kernel's arguments: passed by value. Sizes and the tensors' element counts fit int (abi/conv.cu refuses larger ones). */
struct Conv {
    const void *in, *weights;
    void *out;
    void *own; /* the row's own part of the workspace */
    int batch, groups;
    int channels, filters;           /* of one group */
    int height, width, out_h, out_w; /* out_h: rows of outputs, of a volume those of all slices */
    int kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w, pad_top, pad_left, pad_bottom, pad_right;
    int nhwc, dtype;
    int depth, kernel_d, stride_d, dilation_d, pad_front,
        slice_rows;                      /* of images 1, 1, 1, 1, 0, out_h; the last: rows of outputs of a slice */
    int pad_back, volumes;               /* 1: there is a depth, in the input or in the kernel */
    int windows, k;                      /* batch out_h out_w, channels taps() */
    int group_tiles;                     /* tiles of windows in one group */
    Divisor per_image, per_row;          /* windows of an image, of a row of outputs */
    Divisor per_channel, per_kernel_row; /* NCHW: taps(), kernel_w; NHWC: kernel_w channels, channels */
    Problem product;                     /* decomposition and epilogue; a, b and c are not set, ldc is a row of outputs */
    short halves;                        /* 1: the row takes filters in halves (core/split.cuh) */
    short folds;                         /* 1: the row takes squares of pixels as channels (conv/wgmma/operands.cu) */
    short step_bytes;                    /* bytes of a window's channels in one k-iteration */
    short row_taps;                      /* taps of a kernel's row that a k-iteration of the row has; 0: one (conv/wgmma/kernel.cuh) */
    int gemm;                            /* the schedule's row of gemm/, or -1 */
    /* A window is one pixel; windows are all pixels. */
    bool one_pixel() const { return taps() == 1 && !(pad_top | pad_left | pad_bottom | pad_right | pad_front | pad_back); }
    bool pointwise() const { return one_pixel() && stride_d == 1 && stride_h == 1 && stride_w == 1; }
    __host__ __device__ int taps() const { return kernel_d * kernel_h * kernel_w; }
    __host__ __device__ int rows() const { return depth * height; } /* of an image, or of all slices of a volume */
    int tile_m, tile_n, cluster;                                    /* tiled rows: the tile of a cluster, and the cluster's blocks */
    Prologue prologue;
};

struct ConvRow {
    char name[80];
    pysim_cuda_conv_info info;
    bool exact_capability; /* info.capability alone */
    /* NULL if the row computes `c`, else the reason: "it takes ..." */
    const char *(*refuses)(const Conv &c);
    /* Bytes of `own`; NULL: none. Returns the status of pysim_cuda_workspace_bytes if it calls that. */
    pysim_status (*own_bytes)(const Conv &c, int64_t *bytes);
    /* Enqueues all kernels; a row that makes products runs them by pysim_cuda_run. */
    pysim_status (*launch)(const Conv &c, int sms, cudaStream_t stream);
    cudaError_t (*attributes)(const Conv &c, pysim_cuda_attributes *out);
    /* Sets the product's sizes, tile_m, tile_n, cluster and group_tiles; NULL: the product stays as `conv_of` makes it (abi/conv.cu). */
    void (*tile)(Conv &c);
    bool chunked;                   /* data parallel in `splits` chunks of windows */
    static constexpr int below = 0; /* see gemm/rows.h */
    int replaced_on;                /* see gemm/rows.h */
    int reduces_in_cluster;         /* see gemm/rows.h */
    bool volumes;                   /* it computes volumes, too */
};

/* The units of each family: the functions that define its rows. */
#define PYSIM_CUDA_GEMM(...)
#define PYSIM_CUDA_CONV(family, gpus, ...)                       \
    namespace conv_##family {                                    \
        Unit<ConvRow> __VA_ARGS__;                               \
        inline constexpr Unit<ConvRow> *units[] = {__VA_ARGS__}; \
    }
#include "families.inc"
#undef PYSIM_CUDA_CONV
#undef PYSIM_CUDA_GEMM

/* conv/reference.cu; alpha == 0: without the product */
cudaError_t conv_reference(const Conv &c, cudaStream_t stream);
}
#endif
