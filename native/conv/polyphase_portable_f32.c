/* SPDX-License-Identifier: Apache-2.0
 * Convolutions of an input parted by phases, FP32 in plain C. */
#include "../kernel.h"
typedef float T;
#include "../vec_portable.h"
enum { PHASES_FILTERS = 4 };
#include "polyphase_kernels.h"

DEFINE_PHASES(f32_phases_24x4__portable)
