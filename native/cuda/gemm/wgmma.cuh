/* SPDX-License-Identifier: Apache-2.0
 * The rows of gemm/wgmma.inc, of some types. Those of two bytes take operands that lie either way, f32 in thirds its A, the others K-major operands
 * alone. */
#include "gemm/rows.h"
#include "mainloop/hopper/shape.h"
#ifdef PYSIM_HOPPER
#include "mainloop/hopper/kernel.cuh"
#endif

namespace pysim {
namespace rows {
namespace {

using Columns = GemmColumns;
#include "gemm/wgmma.inc"
};

template <int... DTYPES> Rows<GemmRow> wgmma_rows() {
    return table_of<GemmRow>(lines, [](auto line, auto add) {
        constexpr Columns c = lines[line];
        if constexpr (((c.dtype == DTYPES) || ...)) {
            using S = hopper::Shape<c.dtype == PYSIM_TF32X3 ? hopper::BF16X6 : c.dtype, c.block.m, c.block.n, c.warp.m, c.warp.n, c.stages, c.cluster.m, c.cluster.n, c.promotion, c.pingpong != 0>;
            static_assert(c.block.k == S::BLOCK_K && c.thread.m == 64 && c.thread.n == c.warp.n && c.k_major == (S::Element::MN_MAJOR ? 0 : S::DTYPE == PYSIM_TF32 ? 2 : 1),
                          "a stage is 128 bytes of k, an instruction as wide as its warpgroup's tile");
            static_assert(!S::Element::MN_MAJOR || S::Element::SPLIT > 0 || S::B_SHARE % S::BLOCK_K == 0, "boxes of B are as wide as a stage is deep where rows run along n");
            static_assert(c.reduces_in_cluster == S::NEAR, "as many parts as a cluster of blocks has room for");
#ifdef PYSIM_HOPPER
            add(row_of(c, hopper::launch<S>, hopper::attributes<S>));
#else
            add(row_of(c, nullptr, nullptr));
#endif
        }
    });
}
}
}
}
