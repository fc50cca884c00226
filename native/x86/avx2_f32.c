/* SPDX-License-Identifier: Apache-2.0
 * FP32 on AVX2 + FMA: 8 lanes, 16 registers; 12 accumulators (latency 4 x 2 units needs 8), 2 operand vectors, one broadcast. */
#include "kernel.h"
#include "x86/vectors/vec_avx2_f32.h"
#include "pack.h"
/* Distance of prefetched rows of windows in place in form fil. The 24 bytes of a row that a tile of 6 reads are a line that no hardware prefetcher
 * brings. Rows of 49, 196, 784 and 225 floats in L2, k of 768, time over that of windows in a panel, none -> 8 rows ahead: 1.39 -> 1.22, 1.11 -> 1.02,
 * 1.17 -> 1.05, 1.24 -> 1.03; 16 rows the same (Zen 3). */
enum { FIL_ROWS_AHEAD = 8 };
#include "lanes.h"

#define SIZES(M) V2(M, TO6)
DEFINE_WIN_SIZES(SIZES)
DEFINE_WIN(f32_win_16x6__avx2, 6)
DEFINE_FIL(f32_fil_6x16__avx2, 16, V2(FIL, TO6))

DEFINE_PACKER(pack_f32__avx2)
