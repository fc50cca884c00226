/* SPDX-License-Identifier: Apache-2.0
 * The mma.sync kernels of types that need no split. */
#include "gemm/mma.cuh"

namespace pysim {
Rows<GemmRow> mma_rows() { return rows::mma_rows<PYSIM_F16, PYSIM_BF16, PYSIM_TF32, PYSIM_S8>(); }
}
