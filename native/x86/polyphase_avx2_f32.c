/* SPDX-License-Identifier: Apache-2.0
 * Convolutions of an input parted by phases, FP32 on AVX2: 12 accumulators, 3 vectors of the input and one value. */
#include "../kernel.h"
#include "vec_avx2_f32.h"
enum { PHASES_FILTERS = 4 };
#include "../conv/polyphase_kernels.h"

DEFINE_PHASES(f32_phases_24x4__avx2)
