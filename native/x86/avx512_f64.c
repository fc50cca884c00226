/* SPDX-License-Identifier: Apache-2.0
 * FP64 on AVX-512: 8 lanes, 32 registers; 28 accumulators. */
#include "../kernel.h"
#include "vec_avx512_f64.h"
#include "pack.h"
#include "lanes.h"

DEFINE_WIN(f64_win_16x14__avx512, 16, 14, V2, TO14)
DEFINE_FIL(f64_fil_14x16__avx512, 14, 16, V2(FIL, TO14))

DEFINE_PACKER(pack_f64__avx512)
