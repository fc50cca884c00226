/* SPDX-License-Identifier: Apache-2.0
 * The mma.sync convolutions of types that need no split. */
#include "conv/mma/rows.cuh"

namespace pysim {
Rows<ConvRow> conv_mma_rows() { return rows::conv_mma_rows<PYSIM_F16, PYSIM_BF16, PYSIM_TF32>(); }
}
