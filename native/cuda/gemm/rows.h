/* SPDX-License-Identifier: Apache-2.0
 * The columns of gemm/<mainloop>.inc. Names are built from them: <dtype>_<mainloop>_<block>_<warp>_<thread>_s<stages>_c<cluster>[_<variant>],
 * tiles as MxN or MxNxK. */
#ifndef PYSIM_CUDA_GEMM_ROWS_H
#define PYSIM_CUDA_GEMM_ROWS_H
#include <cstdio>

#include "abi/arguments.h"
#include "gemm/gemm.h"

namespace pysim {
namespace rows {

struct GemmColumns {
    Text mainloop, variant = "full";
    int dtype = f32;
    Size block, warp, thread;  /* tiles of a block with its step along k, of a warp (wgmma: a warpgroup), of a thread (tensor cores: an instruction) */
    Size cluster = {1, 1};     /* blocks of a cluster */
    int stages = 2;            /* tiles of A and B that lie in shared memory at once */
    int capability = 0;        /* at least, 10 major + minor */
    int exact_capability = 0;  /* 1: this capability alone */
    int below = 0;             /* from this capability on others replace it: it is not planned with, and built with ablations alone; 0: never */
    int replaced_on = 0;       /* the same on this capability alone, whose own instructions (wgmma) others have */
    int alignment = 1;         /* bytes that base and pitch of operands are multiples of */
    int k_major = 0;           /* 1: it takes operands whose rows run along k alone, 2: such a B alone, and where it has one A alone, C' = B' A' is computed */
    int producer = 0;          /* 1: a warpgroup does nothing but load, by TMA */
    int pingpong = 0;          /* 1: two sets of warpgroups take a block's tiles in turn, and one multiplies while the other's results leave */
    int promotion = 0;         /* of so many k the accumulators of tensor cores are added to sums in f32; 0: they are the sums */
    int accumulates_f16 = 0;
    int reduces_in_cluster = 0; /* so many parts of split-K meet in a cluster, without workspace */
    int ablation = 0;          /* 1: it is there to show what it leaves out */
};

/* The row of a line whose functions are given. */
inline GemmRow row_of(const GemmColumns &c, decltype(GemmRow::launch) launch, decltype(GemmRow::attributes) attributes) {
    GemmRow row = {"", {nullptr, c.mainloop.data(), c.variant.data(), c.dtype, c.block.m, c.block.n, c.block.k, c.warp.m, c.warp.n, c.thread.m, c.thread.n,
                        c.stages, c.cluster.m, c.cluster.n, c.capability}, {c.alignment, c.k_major, c.promotion && c.producer}, c.exact_capability != 0,
                   launch, attributes, c.below, c.reduces_in_cluster, c.replaced_on};
    snprintf(row.name, sizeof row.name, "%s_%s_%dx%dx%d_%dx%d_%dx%d_s%d_c%dx%d%s%s", dtypes[c.dtype].name, c.mainloop.data(), c.block.m, c.block.n,
             c.block.k, c.warp.m, c.warp.n, c.thread.m, c.thread.n, c.stages, c.cluster.m, c.cluster.n, c.variant == "full" ? "" : "_",
             c.variant == "full" ? "" : c.variant.data());
    return row;
}
}
}
#endif
