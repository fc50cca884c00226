/* SPDX-License-Identifier: Apache-2.0
 * Convolutions of blocks of 8 channels, FP32 on AVX2. 16 registers: 12 accumulators, the filters and one pixel. */
#include "../kernel.h"
#include "vec_avx2_f32.h"
#include "../conv/depthwise_blocks.h"
#include "../conv/direct_nchwc_kernels.h"

DEFINE_NCHWC(f32_nchwc_12x8__avx2, 12, 1)
DEFINE_NCHWC(f32_nchwc_6x16__avx2, 6, 2)
DEFINE_BLOCKS(f32_blocks_8x8__avx2)
