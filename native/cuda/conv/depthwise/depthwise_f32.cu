/* SPDX-License-Identifier: Apache-2.0
 * Convolutions of few channels a group for f32, and for tf32, which is f32 in memory and is multiplied as f32. */
#include "conv/depthwise/rows.cuh"

namespace pysim {
Rows<ConvRow> depthwise_f32_rows() { return rows_of<float>(); }
}
