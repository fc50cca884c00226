/* SPDX-License-Identifier: Apache-2.0
 * The wgmma kernels for K-major operands of f8 (e4m3). */
#include "gemm/wgmma.cuh"

namespace pysim {
Rows<GemmRow> wgmma_f8_rows() { return rows::wgmma_rows<PYSIM_F8>(); }
}
