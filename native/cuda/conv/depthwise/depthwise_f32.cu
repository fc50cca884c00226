/* SPDX-License-Identifier: Apache-2.0
 * Convolutions of few channels a group for f32, and for those of tf32, which lie as f32 and may be multiplied so. */
#include "conv/depthwise/rows.cuh"

namespace pysim {
Rows<ConvRow> depthwise_f32_rows() { return rows_of<float>(); }
}
