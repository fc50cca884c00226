/* SPDX-License-Identifier: Apache-2.0
 * The columns of gemm/<family>/rows.inc. Names are built from them: <dtype>_<mainloop>_<block>_<warp>_<thread>_s<stages>_c<cluster>[_<variant>],
 * tiles as MxN or MxNxK. */
#ifndef PYSIM_CUDA_GEMM_ROWS_H
#define PYSIM_CUDA_GEMM_ROWS_H
#include <cstdio>

#include "abi/arguments.h"
#include "gemm/gemm.h"

namespace pysim::rows {

struct GemmColumns {
    Text mainloop, variant = "full";
    int dtype = f32;
    /* tile of a block (k: of one k-iteration), of a warp (wgmma: a warpgroup), of a thread (tensor cores: an instruction) */
    Size block, warp, thread;
    Size cluster = {1, 1}; /* blocks of a cluster */
    /* threads that issue an instruction of tensor cores together: 32 (a warp), 128 (a warpgroup); 0: CUDA cores multiply */
    int tensor_threads = 0;
    int stages = 2;           /* tiles of A and B in shared memory at once */
    int capability = 0;       /* lowest compute capability, 10 major + minor */
    int exact_capability = 0; /* 1: no other capability */
    /* other rows replace this one from this capability on: it is not planned, and only builds with ablations have it; 0: never */
    int below = 0;
    int replaced_on = 0; /* the same on this capability alone (9.0: wgmma rows replace it) */
    int alignment = 1;   /* bytes: base and pitch of operands are multiples of it */
    int k_major = 0;     /* 1: both operands must be K-major; 2: B must be, and if only A is, the kernel computes C' = B' A' */
    int dense = 0;       /* 1: rows of both operands must lie without gaps, or are copied so (algorithm tall) */
    int producer = 0;    /* 1: one warpgroup only loads, by TMA */
    int narrows = 0;     /* columns down to which a launch's tiles may have fewer (mainloop/wgmma/shape.h); 0: none */
    int pingpong = 0;    /* 1: two sets of warpgroups alternate over a block's tiles; one multiplies while the other stores */
    int promotion = 0;   /* k after which tensor-core accumulators are added to f32 registers and restart from zero; 0: never */
    int accumulates_f16 = 0;
    int reduces_in_cluster = 0; /* split-K parts that a cluster reduces without workspace, at most */
    int residues = 0; /* number of s8 products of residues that make one product of f64 or f32 (gemm/residues/scheme.h); 0: none */
    int ablation = 0; /* 1: built only to measure what it leaves out */
};
using Columns = GemmColumns; /* of the tables that follow */

/* The row of a line of the table. */
inline GemmRow row_of(const GemmColumns &c, decltype(GemmRow::launch) launch, decltype(GemmRow::attributes) attributes) {
    GemmRow row = {"",
                   {nullptr, c.mainloop.data(), c.variant.data(), c.dtype, c.block.m, c.block.n, c.block.k, c.warp.m, c.warp.n, c.thread.m,
                    c.thread.n, c.stages, c.cluster.m, c.cluster.n, c.capability},
                   {c.alignment, c.k_major, c.promotion && c.producer, c.dense},
                   c.exact_capability != 0,
                   launch,
                   attributes,
                   c.below,
                   c.reduces_in_cluster,
                   c.replaced_on};
    snprintf(row.name, sizeof row.name, "%s_%s_%dx%dx%d_%dx%d_%dx%d_s%d_c%dx%d%s%s", dtypes[c.dtype].name, c.mainloop.data(), c.block.m,
             c.block.n, c.block.k, c.warp.m, c.warp.n, c.thread.m, c.thread.n, c.stages, c.cluster.m, c.cluster.n,
             c.variant == "full" ? "" : "_", c.variant == "full" ? "" : c.variant.data());
    return row;
}
}
#endif
