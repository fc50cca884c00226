/* SPDX-License-Identifier: Apache-2.0
 * The rows of conv/mma/rows.inc of the given types. */
#include <climits>

#include "conv/mma/kernel.cuh"
#include "conv/rows.h"
#include "core/element.h"

namespace pysim {
namespace rows {
namespace {
using Columns = ConvColumns;
#include "conv/mma/rows.inc"
};

inline void set_k(Conv &c) {
    const int64_t k = mma_sync::steps_of_k(c);
    c.product.k = k < INT_MAX ? (int)k : INT_MAX; /* of filters that it refuses */
}

template <int... DTYPES> Rows<ConvRow> conv_mma_rows() {
    return table_of<ConvRow>(lines, [](auto line, auto add) {
        constexpr Columns c = lines[line];
        if constexpr (((c.dtype == DTYPES) || ...)) {
            using In = ElementOf<c.dtype>;
            using Wide = mma_sync::Row<In, c.block.m, c.block.n, c.block.k, c.warp.m, c.warp.n, c.stages, c.promotion, c.replaced_on>;
            using Deep = mma_sync::Row<In, c.block.n, c.block.m, c.block.k, c.warp.n, c.warp.m, c.stages, c.promotion, c.replaced_on>;
            using Of = mma_sync::Kernels<Wide, Deep>;
            add(row_of(c, {mma_sync::refuses, mma_sync::own_bytes, Of::launch, Of::attributes, set_k}));
        }
    });
}
}
}
}
