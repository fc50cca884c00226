/* SPDX-License-Identifier: Apache-2.0
 * Convolutions of blocks of 4 channels, FP64 in plain C. */
#include "../kernel.h"
typedef double T;
#define FOUR_LANES
#include "../vec_portable.h"
#include "direct_nchwc_kernels.h"

DEFINE_NCHWC(f64_nchwc_4x4__portable, 4, 1)
