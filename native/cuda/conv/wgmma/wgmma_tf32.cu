/* SPDX-License-Identifier: Apache-2.0
 * The convolutions on wgmma for tf32. */
#include "conv/wgmma/rows.cuh"

namespace pysim {
Rows<ConvRow> wgmma_conv_tf32_rows() { return rows::wgmma_rows<PYSIM_TF32>(); }
}
