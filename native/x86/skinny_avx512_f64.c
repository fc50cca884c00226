/* SPDX-License-Identifier: Apache-2.0
 * Products of a few vectors with a large matrix, FP64 on AVX-512. */
#include "../kernel.h"
#include "vec_avx512_f64.h"
#include "../conv/skinny_kernels.h"

DEFINE_SKINNY(f64_axpy_64x8__avx512, 0)
DEFINE_SKINNY(f64_dot_8x8__avx512, 1)
