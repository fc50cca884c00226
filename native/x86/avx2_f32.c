/* SPDX-License-Identifier: Apache-2.0
 * FP32 on AVX2 + FMA: 8 lanes, 16 registers; 12 accumulators (latency 4 x 2 units needs 8), 2 operand vectors, one broadcast. */
#include "kernel.h"
#include "x86/vectors/vec_avx2_f32.h"
#include "pack.h"
#include "lanes.h"

#define SIZES(M) V2(M, TO6)
DEFINE_WIN_SIZES(SIZES)
DEFINE_WIN(f32_win_16x6__avx2, 6)
DEFINE_FIL(f32_fil_6x16__avx2, 16, V2(FIL, TO6))

DEFINE_PACKER(pack_f32__avx2)
