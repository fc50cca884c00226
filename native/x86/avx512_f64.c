/* SPDX-License-Identifier: Apache-2.0
 * FP64 on AVX-512: 8 lanes, 32 registers; 28 accumulators. */
#include "kernel.h"
#include "x86/vectors/vec_avx512_f64.h"
#include "pack.h"
enum { FIL_ROWS_AHEAD = 0 };
#include "lanes.h"

#define SIZES(M) V2(M, TO14)
DEFINE_WIN_SIZES(SIZES)
DEFINE_WIN(f64_win_16x14__avx512, 14)
DEFINE_FIL(f64_fil_14x16__avx512, 16, V2(FIL, TO14))

DEFINE_PACKER(pack_f64__avx512)
