/* SPDX-License-Identifier: Apache-2.0
 * The convolutions on mma.sync of f32 as six products of bf16. */
#include "conv/mma/rows.cuh"

namespace pysim {
Rows<ConvRow> conv_mma_tf32x3_rows() { return rows::conv_mma_rows<PYSIM_TF32X3>(); }
}
