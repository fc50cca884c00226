/* SPDX-License-Identifier: Apache-2.0
 * The rows of conv/mma/rows.inc, a type at a time. */
#include <climits>

#include "conv/mma/kernel.cuh"
#include "conv/rows.h"
#include "core/element.h"

#include "conv/mma/rows.inc"

namespace pysim {
namespace {

void set_k(Conv &c) {
    const int64_t k = mma_sync::steps_of_k(c);
    c.product.k = k < INT_MAX ? (int)k : INT_MAX; /* of filters that it refuses */
}
}

Rows<ConvRow> conv_mma::PYSIM_UNIT() {
    return table_of<ConvRow>(rows::lines, [](auto line, auto add) {
        constexpr rows::ConvColumns c = rows::lines[line];
        if constexpr (c.dtype == rows::PYSIM_UNIT) {
            using In = ElementOf<c.dtype>;
            using Wide = mma_sync::Row<In, c.block.m, c.block.n, c.block.k, c.warp.m, c.warp.n, c.stages, c.promotion, c.replaced_on>;
            using Deep = mma_sync::Row<In, c.block.n, c.block.m, c.block.k, c.warp.n, c.warp.m, c.stages, c.promotion, c.replaced_on>;
            using Of = mma_sync::Kernels<Wide, Deep>;
            add(row_of(c, {mma_sync::refuses, mma_sync::own_bytes, Of::launch, Of::attributes, set_k}));
        }
    });
}
}
