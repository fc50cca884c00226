/* SPDX-License-Identifier: Apache-2.0
 * SGEMM on the ordinary multipliers: quarter 3 of the simt rows of f32. */
#include "gemm/simt.cuh"

namespace pysim {
Rows<GemmRow> simt_f32_rows_part3() { return rows::simt_rows<PYSIM_F32, 2, 4>(); }
}
