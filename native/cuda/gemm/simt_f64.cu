/* SPDX-License-Identifier: Apache-2.0
 * DGEMM on the ordinary multipliers: the simt rows of f64. */
#include "gemm/simt.cuh"

namespace pysim {
Rows<GemmRow> simt_f64_rows() { return rows::simt_rows<PYSIM_F64>(); }
}
