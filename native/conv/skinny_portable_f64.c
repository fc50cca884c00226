/* SPDX-License-Identifier: Apache-2.0
 * Products of a few vectors with a large matrix, FP64 in plain C. */
#include "../kernel.h"
typedef double T;
#include "../vec_portable.h"
#include "skinny_kernels.h"

DEFINE_SKINNY(f64_axpy_16x4__portable, 0)
DEFINE_SKINNY(f64_dot_8x4__portable, 1)
