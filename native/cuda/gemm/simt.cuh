/* SPDX-License-Identifier: Apache-2.0
 * The rows of gemm/simt.inc, a type at a time, or a part of a type's rows. */
#include <iterator>

#include "gemm/rows.h"
#include "mainloop/simt/kernel.cuh"

namespace pysim {
namespace rows {
namespace {

using Columns = GemmColumns;
#include "gemm/simt.inc"
};

/* Rows of a type before line `end`. */
constexpr int rows_before(int end, int dtype) {
    int count = 0;
    for (int i = 0; i < end; i++) count += lines[i].dtype == dtype;
    return count;
}
/* Which of `parts` equal parts of a type's rows has the row of a line. */
constexpr int part_of(int line, int dtype, int parts) { return rows_before(line, dtype) * parts / rows_before((int)std::size(lines), dtype); }

template <int DTYPE, int PART = 0, int PARTS = 1> Rows<GemmRow> simt_rows() {
    return table_of<GemmRow>(lines, [](auto line, auto add) {
        constexpr Columns c = lines[line];
        if constexpr (c.dtype == DTYPE && part_of(line, DTYPE, PARTS) == PART) {
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
