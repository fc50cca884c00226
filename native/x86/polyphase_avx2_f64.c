/* SPDX-License-Identifier: Apache-2.0
 * Convolutions of an input parted by phases, FP64 on AVX2. */
#include "../kernel.h"
#include "vec_avx2_f64.h"
enum { PHASES_FILTERS = 4 };
#include "../conv/polyphase_kernels.h"

DEFINE_PHASES(f64_phases_12x4__avx2)
