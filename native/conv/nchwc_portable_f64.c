/* SPDX-License-Identifier: Apache-2.0
 * Convolutions of blocks of 4 channels, FP64 in plain C. */
#include "../kernel.h"
typedef double T;
#include "../vec_portable_pair.h"
#include "depthwise_blocks.h"
#include "direct_nchwc_kernels.h"

DEFINE_NCHWC(f64_nchwc_4x4__portable, 4, 1)
DEFINE_BLOCKS(f64_blocks_8x4__portable)
