/* SPDX-License-Identifier: Apache-2.0
 * The columns of conv/<family>/rows.inc. Names are built from them: <dtype>_<algorithm>[_f<outputs>][_<block>_<warp>_<thread>_s<stages>]
 * [_<variant>][_c<cluster>], tiles as filters x windows [x k], where the algorithm has tiles, several outputs a window, clusters. */
#ifndef PYSIM_CUDA_CONV_ROWS_H
#define PYSIM_CUDA_CONV_ROWS_H
#include <cstdio>

#include "abi/arguments.h"
#include "conv/conv.h"

namespace pysim::rows {

struct ConvColumns {
    Text algorithm, variant = "full";
    int dtype = f32;
    /* tiles, filters x windows, of a block (k: of one k-iteration), of a warp (wgmma: a warpgroup), of a thread; 0: none */
    Size block, warp, thread;
    Size cluster = {1, 1};      /* blocks of a cluster, filters x windows; they multicast what they share */
    int tensor_threads = 0;     /* see gemm/rows.h */
    int stages = 0;             /* tiles in shared memory at once */
    int outputs = 1;            /* Winograd: a window is a tile of outputs x outputs pixels */
    int capability = 0;         /* lowest compute capability, 10 major + minor */
    int exact_capability = 0;   /* 1: no other capability */
    int replaced_on = 0;        /* see gemm/rows.h */
    int alignment = 1;          /* bytes: base addresses of input and filters are multiples of it; 1: of their elements */
    int makes_product = 0;      /* 1: the schedule names a row of gemm/ */
    int fused = 0;              /* 1: one kernel has all phases (Winograd's transforms and products, im2win's gather) */
    int staged = 0;             /* 1: Winograd's transforms and products are separate kernels, run on one chunk of windows after another */
    int keeps_tensor = 0;       /* 1: im2win's tensor is stored in the workspace */
    int reduces_in_cluster = 0; /* see gemm/rows.h */
    int row_taps = 0;  /* a k-iteration has that many taps of a kernel's row, from one load of pixels (conv/wgmma/kernel.cuh); 0: one */
    int folds = 0;     /* 1: space-to-depth: squares of pixels become channels, for any kernel size (conv/wgmma/operands.cu) */
    int pingpong = 0;  /* see gemm/rows.h */
    int promotion = 0; /* see gemm/rows.h */
    int prologue = 0;  /* 1: it accepts a prologue (pysim_cuda.h) on the problems that its `refuses` allows */
    int volumes = 0;   /* 1: it computes volumes, too */
    int ablation = 0;  /* 1: built only to measure what it leaves out */
    /* pysim_needs_finite: operands that must be finite for the result of the definition. 1: the filters, if the problem is padded (padding is
     * multiplied as zeros, and zero times infinity is NaN); 2: input and filters (Winograd's transforms mix the elements of a patch) */
    int finite = 0;
};
using Columns = ConvColumns; /* of the tables that follow */

struct ConvFunctions {
    decltype(ConvRow::refuses) refuses;
    decltype(ConvRow::own_bytes) own_bytes;
    decltype(ConvRow::launch) launch;
    decltype(ConvRow::attributes) attributes;
    decltype(ConvRow::tile) tile = nullptr;
};
/* The functions of a class; a class that is not built has no kernels. */
template <class Of, bool BUILT = true> constexpr ConvFunctions functions_of() {
    if constexpr (BUILT) return {Of::refuses, Of::own_bytes, Of::launch_row, Of::attributes};
    else return {Of::refuses, Of::own_bytes, nullptr, nullptr};
}

/* The row of a line of the table. */
inline ConvRow row_of(const ConvColumns &c, const ConvFunctions &f) {
    ConvRow row = {"",
                   {nullptr, c.algorithm.data(), c.variant.data(), c.dtype, c.block.m, c.block.n, c.block.k, c.warp.m, c.warp.n, c.thread.m,
                    c.thread.n, c.stages, c.outputs, c.makes_product, c.capability, c.finite, c.prologue, c.volumes},
                   c.exact_capability != 0,
                   f.refuses,
                   f.own_bytes,
                   f.launch,
                   f.attributes,
                   f.tile,
                   c.staged != 0,
                   c.replaced_on,
                   c.reduces_in_cluster,
                   c.volumes != 0};
    int at = 0;
    const auto add = [&](const char *format, auto... values) { at += snprintf(row.name + at, sizeof row.name - at, format, values...); };
    add("%s_%s", dtypes[c.dtype].name, c.algorithm.data());
    if (c.outputs > 1) add("_f%d", c.outputs);
    if (c.block.k) add("_%dx%dx%d_%dx%d_%dx%d_s%d", c.block.m, c.block.n, c.block.k, c.warp.m, c.warp.n, c.thread.m, c.thread.n, c.stages);
    if (c.variant != "full") add("_%s", c.variant.data());
    if (c.cluster.m * c.cluster.n > 1) add("_c%dx%d", c.cluster.m, c.cluster.n), row.info.form = nullptr; /* the end of the name */
    return row;
}
}
#endif
