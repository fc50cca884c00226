/* SPDX-License-Identifier: Apache-2.0
 * SGEMM on the ordinary multipliers: quarter 2 of the simt rows of f32. */
#include "gemm/simt.cuh"

namespace pysim {
Rows<GemmRow> simt_f32_rows_part2() { return rows::simt_rows<PYSIM_F32, 1, 4>(); }
}
