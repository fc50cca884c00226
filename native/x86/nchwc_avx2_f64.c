/* SPDX-License-Identifier: Apache-2.0
 * Convolutions of blocks of 4 channels, FP64 on AVX2. */
#include "../kernel.h"
#include "vec_avx2_f64.h"
#include "../conv/depthwise_blocks.h"
#include "../conv/direct_nchwc_kernels.h"

DEFINE_NCHWC(f64_nchwc_12x4__avx2, 12, 1)
DEFINE_NCHWC(f64_nchwc_6x8__avx2, 6, 2)
DEFINE_BLOCKS(f64_blocks_8x4__avx2)
