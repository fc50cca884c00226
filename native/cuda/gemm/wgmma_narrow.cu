/* SPDX-License-Identifier: Apache-2.0
 * The wgmma kernels for K-major operands of tf32, s8 and f8 (e4m3). */
#include "gemm/wgmma.cuh"

namespace pysim {
Rows<GemmRow> wgmma_narrow_rows() { return rows::wgmma_rows<PYSIM_TF32, PYSIM_S8, PYSIM_F8>(); }
}
