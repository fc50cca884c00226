/* SPDX-License-Identifier: Apache-2.0
 * The wgmma kernels for f16, all four layouts. */
#include "gemm/wgmma.cuh"

namespace pysim {
Rows<GemmRow> wgmma_f16_rows() { return rows::wgmma_rows<PYSIM_F16>(); }
}
