/* SPDX-License-Identifier: Apache-2.0
 * The rows of gemm/simt.inc, a type at a time. */
#include "gemm/rows.h"
#include "mainloop/simt/kernel.cuh"

namespace pysim {
namespace rows {
namespace {

using Columns = GemmColumns;
#include "gemm/simt.inc"
};

template <int DTYPE> Rows<GemmRow> simt_rows() {
    return table_of<GemmRow>(lines, [](auto line, auto add) {
        constexpr Columns c = lines[line];
        if constexpr (c.dtype == DTYPE) {
            constexpr simt::Form form = c.variant == "scalar" ? simt::scalar : c.variant == "unpadded" ? simt::unpadded : simt::full;
            using S = simt::Shape<typename simt::TypeOf<DTYPE>::T, form, c.block.m, c.block.n, c.block.k, c.warp.m, c.warp.n, c.thread.m, c.thread.n, c.stages, c.below,
                                     c.replaced_on, c.reduces_in_cluster>;
            static_assert(c.capability >= S::CAPABILITY, "asynchronous copies");
            if constexpr (c.ablation && !ABLATIONS) add(row_of(c, nullptr, nullptr));
            else add(row_of(c, simt::launch<S>, simt::attributes<S>));
        }
    });
}
}
}
}
