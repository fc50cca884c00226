/* SPDX-License-Identifier: Apache-2.0
 * The convolutions on wgmma for f16. */
#include "conv/wgmma/rows.cuh"

namespace pysim {
Rows<ConvRow> wgmma_conv_f16_rows() { return rows::wgmma_rows<PYSIM_F16>(); }
}
