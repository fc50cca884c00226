/* SPDX-License-Identifier: Apache-2.0
 * FP32 on AVX-512: 16 lanes, 32 registers; 24 to 28 accumulators, 2 to 4 operand vectors, one broadcast. */
#include "kernel.h"
#include "x86/vectors/vec_avx512_f32.h"
#include "pack.h"
enum { FIL_ROWS_AHEAD = 0 };
#include "lanes.h"

#define SIZES(M) V2(M, TO14) TO9(M, 3) TO6(M, 4)
DEFINE_WIN_SIZES(SIZES)
DEFINE_WIN(f32_win_32x14__avx512, 14)
DEFINE_WIN(f32_win_48x9__avx512, 9)
DEFINE_WIN(f32_win_64x6__avx512, 6)
DEFINE_FIL(f32_fil_14x32__avx512, 32, V2(FIL, TO14))
DEFINE_FIL(f32_fil_9x48__avx512, 48, V3(FIL, TO9))
DEFINE_FIL(f32_fil_7x64__avx512, 64, V4(FIL, TO7))

DEFINE_PACKER(pack_f32__avx512)
