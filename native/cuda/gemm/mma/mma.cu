/* SPDX-License-Identifier: Apache-2.0
 * The rows of gemm/mma/rows.inc, a type at a time. */
#include "core/element.h"
#include "gemm/rows.h"
#include "mainloop/mma/mma.cuh"

#include "gemm/mma/rows.inc"

namespace pysim {
Rows<GemmRow> gemm_mma::PYSIM_UNIT() {
    return table_of<GemmRow>(rows::lines, [](auto line, auto add) {
        constexpr rows::Columns c = rows::lines[line];
        if constexpr (c.dtype == rows::PYSIM_UNIT) {
            using R = mma_sync::Row<ElementOf<c.dtype>, c.block.m, c.block.n, c.block.k, c.warp.m, c.warp.n, c.stages, c.promotion,
                                    c.replaced_on, c.capability>;
            static_assert(c.capability >= CAPABILITY && c.k_major == R::K_MAJOR,
                          "types that can be loaded from rows that run along m or n");
            if constexpr (c.below && !ABLATIONS) add(row_of(c, nullptr, nullptr));
            else add(row_of(c, mma_sync::launch<R>, mma_sync::attributes<R>));
        }
    });
}
}
