/* SPDX-License-Identifier: Apache-2.0
 * The mma.sync convolutions of f32 by six bf16 products. */
#include "conv/mma/rows.cuh"

namespace pysim {
Rows<ConvRow> conv_mma_tf32x3_rows() { return rows::conv_mma_rows<PYSIM_TF32X3>(); }
}
