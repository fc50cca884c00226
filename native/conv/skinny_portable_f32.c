/* SPDX-License-Identifier: Apache-2.0
 * Products of a few vectors with a large matrix, FP32 in plain C. */
#include "../kernel.h"
typedef float T;
#include "../vec_portable.h"
#include "skinny_kernels.h"

DEFINE_SKINNY(f32_axpy_64x4__portable, 0)
DEFINE_SKINNY(f32_dot_8x4__portable, 1)
