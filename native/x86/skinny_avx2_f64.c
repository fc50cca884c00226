/* SPDX-License-Identifier: Apache-2.0
 * Products of a few vectors with a large matrix, FP64 on AVX2. */
#include "../kernel.h"
#include "vec_avx2_f64.h"
#include "../conv/skinny_kernels.h"

DEFINE_SKINNY(f64_axpy_32x4__avx2, 0)
DEFINE_SKINNY(f64_dot_8x4__avx2, 1)
