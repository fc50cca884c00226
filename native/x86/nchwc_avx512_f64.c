/* SPDX-License-Identifier: Apache-2.0
 * Convolutions of blocks of 8 channels, FP64 on AVX-512. */
#include "../kernel.h"
#include "vec_avx512_f64.h"
#include "../conv/depthwise_blocks.h"
#include "../conv/direct_nchwc_kernels.h"

DEFINE_NCHWC(f64_nchwc_28x8__avx512, 28, 1)
DEFINE_NCHWC(f64_nchwc_14x16__avx512, 14, 2)
DEFINE_NCHWC(f64_nchwc_9x24__avx512, 9, 3)
DEFINE_BLOCKS(f64_blocks_8x8__avx512)
