/* SPDX-License-Identifier: Apache-2.0
 * Convolutions of an input parted by phases, FP64 on AVX-512. */
#include "../kernel.h"
#include "vec_avx512_f64.h"
enum { PHASES_FILTERS = 8 };
#include "../conv/polyphase_kernels.h"

DEFINE_PHASES(f64_phases_24x8__avx512)
