/* SPDX-License-Identifier: Apache-2.0
 * Convolutions of few channels a group for f16. */
#include "conv/depthwise/rows.cuh"

namespace pysim {
Rows<ConvRow> depthwise_f16_rows() { return rows_of<__half>(); }
}
