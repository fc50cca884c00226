/* SPDX-License-Identifier: Apache-2.0
 * The rows of gemm/mma_f64/rows.inc. */
#include "gemm/rows.h"
#ifdef PYSIM_HOPPER
#include "mainloop/mma/mma_f64.cuh"
#endif

#include "gemm/mma_f64/rows.inc"

namespace pysim {
Rows<GemmRow> gemm_mma_f64::all() {
    return table_of<GemmRow>(rows::lines, [](auto line, auto add) {
        constexpr rows::GemmColumns c = rows::lines[line];
#ifdef PYSIM_HOPPER
        using K = f64_mma::Kernel<c.block.m, c.block.n, c.block.k, c.warp.m, c.warp.n, c.stages>;
        add(row_of(c, K::launch, K::attributes));
#else
        add(row_of(c, nullptr, nullptr));
#endif
    });
}
}
