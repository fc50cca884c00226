/* SPDX-License-Identifier: Apache-2.0
 * FP64 on AVX2 + FMA: 4 lanes, 16 registers; 12 accumulators. */
#include "kernel.h"
#include "x86/vectors/vec_avx2_f64.h"
#include "pack.h"
enum { FIL_ROWS_AHEAD = 8 }; /* as in avx2_f32.c */
#include "lanes.h"

#define SIZES(M) V2(M, TO6)
DEFINE_WIN_SIZES(SIZES)
DEFINE_WIN(f64_win_8x6__avx2, 6)
DEFINE_FIL(f64_fil_6x8__avx2, 8, V2(FIL, TO6))

DEFINE_PACKER(pack_f64__avx2)
