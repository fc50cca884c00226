/* SPDX-License-Identifier: Apache-2.0
 * The rows of conv/pointwise/rows.inc. */
#include "conv/pointwise/stream.h"
#include "conv/rows.h"

#include "conv/pointwise/rows.inc"

namespace pysim {
namespace {

const char *refuses(const Conv &c) {
    if (!c.pointwise() || c.groups > 1 || !c.nhwc) return "it takes 1x1 kernels of stride 1 without padding and groups, channels last";
    return pointwise::refuses_sizes(c);
}

pysim_status launch(const Conv &c, int sms, cudaStream_t stream) {
    if (((uintptr_t)c.in | (uintptr_t)c.weights) % pointwise::VECTOR)
        return fail(PYSIM_UNSUPPORTED, "a pointwise convolution copies by 16 bytes; input and filters must begin at a multiple of them");
    pointwise::Tiling t;
    const pysim_status status = pointwise::tiling_here(c, sms, &t);
    return status == PYSIM_OK ? check(pointwise::start(c, t, stream), "a pointwise convolution") : status;
}
}

Rows<ConvRow> conv_pointwise::all() {
    return table_of<ConvRow>(
        rows::lines, [](auto line, auto add) { add(row_of(rows::lines[line], {refuses, nullptr, launch, pointwise::attributes})); });
}
}
