/* SPDX-License-Identifier: Apache-2.0
 * Convolutions of blocks of 16 channels, FP32 on AVX-512. 32 registers: 24 to 28 accumulators, the filters and one pixel. */
#include "../kernel.h"
#include "vec_avx512_f32.h"
#include "../conv/depthwise_blocks.h"
#include "../conv/direct_nchwc_kernels.h"

DEFINE_NCHWC(f32_nchwc_28x16__avx512, 28, 1)
DEFINE_NCHWC(f32_nchwc_14x32__avx512, 14, 2)
DEFINE_NCHWC(f32_nchwc_9x48__avx512, 9, 3)
DEFINE_NCHWC(f32_nchwc_6x64__avx512, 6, 4)
DEFINE_BLOCKS(f32_blocks_8x16__avx512)
