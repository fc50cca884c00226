/* SPDX-License-Identifier: Apache-2.0
 * The mma.sync kernels for f32 as six products of bf16: both operands as they lie. */
#include "gemm/mma.cuh"

namespace pysim {
Rows<GemmRow> mma_tf32x3_rows() { return rows::mma_rows<PYSIM_TF32X3>(); }
}
