/* SPDX-License-Identifier: Apache-2.0
 * The wgmma kernels for f32 as six products of bf16: A as it lies, B in thirds. */
#include "gemm/wgmma.cuh"

namespace pysim {
Rows<GemmRow> wgmma_tf32x3_rows() { return rows::wgmma_rows<PYSIM_TF32X3>(); }
}
