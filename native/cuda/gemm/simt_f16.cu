/* SPDX-License-Identifier: Apache-2.0
 * HGEMM on the ordinary multipliers: the simt rows of f16. */
#include "gemm/simt.cuh"

namespace pysim {
Rows<GemmRow> simt_f16_rows() { return rows::simt_rows<PYSIM_F16>(); }
}
