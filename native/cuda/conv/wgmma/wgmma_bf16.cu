/* SPDX-License-Identifier: Apache-2.0
 * The convolutions on wgmma for bf16. */
#include "conv/wgmma/rows.cuh"

namespace pysim {
Rows<ConvRow> wgmma_conv_bf16_rows() { return rows::wgmma_rows<PYSIM_BF16>(); }
}
