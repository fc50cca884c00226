/* SPDX-License-Identifier: Apache-2.0
 * The wgmma kernels for K-major operands of s8. */
#include "gemm/wgmma.cuh"

namespace pysim {
Rows<GemmRow> wgmma_s8_rows() { return rows::wgmma_rows<PYSIM_S8>(); }
}
