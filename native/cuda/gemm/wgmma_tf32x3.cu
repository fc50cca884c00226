/* SPDX-License-Identifier: Apache-2.0
 * The wgmma kernels for f32 as three products of tf32: A as it lies, B in halves. */
#include "gemm/wgmma.cuh"

namespace pysim {
Rows<GemmRow> wgmma_tf32x3_rows() { return rows::wgmma_rows<PYSIM_TF32X3>(); }
}
