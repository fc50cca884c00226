/* SPDX-License-Identifier: Apache-2.0
 * The wgmma kernels for K-major operands of tf32. */
#include "gemm/wgmma.cuh"

namespace pysim {
Rows<GemmRow> wgmma_tf32_rows() { return rows::wgmma_rows<PYSIM_TF32>(); }
}
