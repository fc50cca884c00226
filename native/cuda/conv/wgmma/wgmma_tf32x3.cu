/* SPDX-License-Identifier: Apache-2.0
 * The convolutions on wgmma for f32 as three products of tf32: windows as they lie, filters in halves. */
#include "conv/wgmma/rows.cuh"

namespace pysim {
Rows<ConvRow> wgmma_conv_tf32x3_rows() { return rows::wgmma_rows<PYSIM_TF32X3>(); }
}
