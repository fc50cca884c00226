/* SPDX-License-Identifier: Apache-2.0
 * Convolutions of few channels a group for bf16. */
#include "conv/depthwise/rows.cuh"

namespace pysim {
Rows<ConvRow> depthwise_bf16_rows() { return rows_of<__nv_bfloat16>(); }
}
