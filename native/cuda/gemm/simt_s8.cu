/* SPDX-License-Identifier: Apache-2.0
 * IGEMM on the ordinary multipliers: the simt rows of s8. */
#include "gemm/simt.cuh"

namespace pysim {
Rows<GemmRow> simt_s8_rows() { return rows::simt_rows<PYSIM_S8>(); }
}
