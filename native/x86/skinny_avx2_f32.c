/* SPDX-License-Identifier: Apache-2.0
 * Products of a few vectors with a large matrix, FP32 on AVX2. */
#include "../kernel.h"
#include "vec_avx2_f32.h"
#include "../conv/skinny_kernels.h"

DEFINE_SKINNY(f32_axpy_64x4__avx2, 0)
DEFINE_SKINNY(f32_dot_8x4__avx2, 1)
