/* SPDX-License-Identifier: Apache-2.0
 * The rows of conv/pointwise/rows.inc. */
#include "conv/pointwise/kernel.cuh"
#include "conv/rows.h"
#include "core/element.h"

#include "conv/pointwise/rows.inc"

namespace pysim {
namespace {

const char *refuses(const Conv &c) {
    const int element = dtypes[c.dtype].bytes;
    if (!c.pointwise() || c.groups > 1 || !c.nhwc) return "it takes 1x1 kernels of stride 1 without padding and groups, channels last";
    if (c.channels * element % pointwise::VECTOR || c.filters * element % pointwise::VECTOR)
        return "it takes channels and filters of whole 16 bytes";
    static_assert(limit::POINTWISE_BYTES == 512, "what the sentence says");
    if (c.channels * element > limit::POINTWISE_BYTES) return "it takes up to 512 bytes of channels";
    return pointwise::tiling_of(c, 1).shared ? nullptr : "its filters and the windows of four warps exceed 224 KiB of shared memory";
}
}

Rows<ConvRow> conv_pointwise::all() {
    return table_of<ConvRow>(rows::lines, [](auto line, auto add) {
        constexpr auto c = rows::lines[line];
        using T = ElementOf<c.dtype>;
        add(row_of(c, {refuses, nullptr, pointwise::launch<T>, pointwise::attributes<T>}));
    });
}
}
