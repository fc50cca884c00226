/* SPDX-License-Identifier: Apache-2.0
 * The convolutions on wgmma for f32 by three tf32 products: the input is split in the kernel, filters are split before. */
#include "conv/wgmma/rows.cuh"

namespace pysim {
Rows<ConvRow> wgmma_conv_tf32x3_rows() { return rows::wgmma_rows<PYSIM_TF32X3>(); }
}
