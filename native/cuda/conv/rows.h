/* SPDX-License-Identifier: Apache-2.0
 * The columns of conv/<algorithm>/rows.inc. Names are built from them: <dtype>_<algorithm>[_f<outputs>][_<block>_<warp>_<thread>_s<stages>]
 * [_<variant>][_c<cluster>], tiles as filters x windows [x k], where the algorithm has tiles, several outputs a window, clusters. */
#ifndef PYSIM_CUDA_CONV_ROWS_H
#define PYSIM_CUDA_CONV_ROWS_H
#include <cstdio>

#include "abi/arguments.h"
#include "conv/conv.h"

namespace pysim {
namespace rows {

struct ConvColumns {
    Text algorithm, variant = "full";
    int dtype = f32;
    Size block, warp, thread;   /* tiles, filters x windows, of a block with its step along k, of a warp (wgmma: a warpgroup), of a thread; 0: none */
    Size cluster = {1, 1};      /* blocks of a cluster, filters x windows, which share what they load */
    int stages = 0;             /* tiles that lie in shared memory at once */
    int outputs = 1;            /* edge of the square of outputs that a window stands for */
    int capability = 0;         /* at least, 10 major + minor */
    int exact_capability = 0;   /* 1: this capability alone */
    int replaced_on = 0;        /* see gemm/rows.h */
    int alignment = 1;          /* bytes that input and filters begin at multiples of; 1: elements */
    int makes_product = 0;      /* 1: the schedule names a row of gemm/ */
    int fused = 0;              /* 1: one kernel does what others do in several: Winograd's transforms and products, im2win's tensor */
    int staged = 0;             /* 1: Winograd's transforms and products are kernels of their own, for a chunk of windows at a time */
    int keeps_tensor = 0;       /* 1: im2win's tensor lies in the workspace */
    int reduces_in_cluster = 0; /* so many parts of split-K are reduced in a cluster, without workspace */
    int folds = 0;              /* 1: squares of pixels are channels, whatever the kernel's size (conv/wgmma/operands.cu) */
    int pingpong = 0;           /* see gemm/rows.h */
    int promotion = 0;          /* see gemm/rows.h */
    int prologue = 0;           /* 1: it takes a prologue (pysim_cuda.h), of the problems that it says itself */
    int ablation = 0;           /* 1: it is there to show what it leaves out */
    int finite = 0;             /* pysim_needs_finite: what must be, for a result as the definition has it. 1: the filters, where the problem is padded
                                   (zeros are gathered for the padding and multiplied, and zero times infinity is NaN); 2: input and filters
                                   (Winograd's transforms mix the elements of a patch) */
};

struct ConvFunctions {
    decltype(ConvRow::refuses) refuses;
    decltype(ConvRow::own_bytes) own_bytes;
    decltype(ConvRow::launch) launch;
    decltype(ConvRow::attributes) attributes;
    decltype(ConvRow::tile) tile = nullptr;
};
/* Those of a class; one that is not built has no kernels. */
template <class Of, bool BUILT = true> constexpr ConvFunctions functions_of() {
    if constexpr (BUILT) return {Of::refuses, Of::own_bytes, Of::launch_row, Of::attributes};
    else return {Of::refuses, Of::own_bytes, nullptr, nullptr};
}

/* The row of a line whose functions are given. */
inline ConvRow row_of(const ConvColumns &c, const ConvFunctions &f) {
    ConvRow row = {"", {nullptr, c.algorithm.data(), c.variant.data(), c.dtype, c.block.m, c.block.n, c.block.k, c.warp.m, c.warp.n, c.thread.m, c.thread.n,
                        c.stages, c.outputs, c.makes_product, c.capability, c.finite, c.prologue}, c.exact_capability != 0,
                   f.refuses, f.own_bytes, f.launch, f.attributes, f.tile, c.staged != 0, c.replaced_on, c.reduces_in_cluster};
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
}
#endif
