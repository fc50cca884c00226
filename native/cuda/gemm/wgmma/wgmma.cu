/* SPDX-License-Identifier: Apache-2.0
 * The rows of gemm/wgmma/rows.inc, a type at a time. Two-byte types take operands in either layout, tf32x3 takes A in either layout, other types take
 * K-major operands only. */
#include "gemm/rows.h"
#include "mainloop/wgmma/shape.h"
#ifdef PYSIM_HOPPER
#include "mainloop/wgmma/kernel.cuh"
#endif

#include "gemm/wgmma/rows.inc"

namespace pysim {
Rows<GemmRow> gemm_wgmma::PYSIM_UNIT() {
    return table_of<GemmRow>(rows::lines, [](auto line, auto add) {
        constexpr rows::Columns c = rows::lines[line];
        if constexpr (c.dtype == rows::PYSIM_UNIT) {
            using S = hopper::Shape<c.dtype == PYSIM_TF32X3 ? hopper::BF16X6 : c.dtype, c.block.m, c.block.n, c.warp.m, c.warp.n, c.stages,
                                    c.cluster.m, c.cluster.n, c.promotion, c.pingpong != 0, 128, 1, c.narrows>;
            static_assert(c.block.k == S::BLOCK_K && c.thread.m == 64 && c.thread.n == c.warp.n &&
                              c.k_major == (S::Element::MN_MAJOR     ? 0
                                            : S::DTYPE == PYSIM_TF32 ? 2
                                                                     : 1),
                          "a stage has 128 bytes of k; an instruction is as wide as its warpgroup's tile");
            static_assert(!S::Element::MN_MAJOR || S::Element::SPLIT > 0 ||
                              (S::BLOCK_M % S::BLOCK_K == 0 && S::BLOCK_N % S::BLOCK_K == 0 &&
                               (S::B_SHARE % S::BLOCK_K == 0 || S::CLUSTER_M == 2) && (S::A_SHARE % S::BLOCK_K == 0 || S::CLUSTER_N == 2)),
                          "an MN-major operand is loaded in boxes of BLOCK_K rows");
            static_assert(c.reduces_in_cluster == S::MAX_CLUSTER_PARTS, "as many parts as fit into a cluster");
#ifdef PYSIM_HOPPER
            add(row_of(c, hopper::launch<S>, hopper::attributes<S>));
#else
            add(row_of(c, nullptr, nullptr));
#endif
        }
    });
}
}
