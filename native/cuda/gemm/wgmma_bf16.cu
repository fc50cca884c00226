/* SPDX-License-Identifier: Apache-2.0
 * The wgmma kernels for bf16, all four layouts. */
#include "gemm/wgmma.cuh"

namespace pysim {
Rows<GemmRow> wgmma_bf16_rows() { return rows::wgmma_rows<PYSIM_BF16>(); }
}
