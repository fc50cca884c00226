/* SPDX-License-Identifier: Apache-2.0
 * The f64 rows of gemm/mma.inc: they need TMA and setmaxnreg (mainloop/mma/mma_f64.cuh). */
#include "gemm/rows.h"
#ifdef PYSIM_HOPPER
#include "mainloop/mma/mma_f64.cuh"
#endif

namespace pysim {
namespace rows {
namespace {
using Columns = GemmColumns;
#include "gemm/mma.inc"
};
}
}

Rows<GemmRow> mma_f64_rows() {
    return table_of<GemmRow>(rows::lines, [](auto line, auto add) {
        constexpr rows::GemmColumns c = rows::lines[line];
        if constexpr (c.dtype == PYSIM_F64) {
#ifdef PYSIM_HOPPER
            using K = f64_mma::Kernel<c.block.m, c.block.n, c.block.k, c.warp.m, c.warp.n, c.stages>;
            add(row_of(c, K::launch, K::attributes));
#else
            add(row_of(c, nullptr, nullptr));
#endif
        }
    });
}
}
