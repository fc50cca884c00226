/* SPDX-License-Identifier: Apache-2.0
 * Convolutions of an input parted by phases, FP64 in plain C. */
#include "../kernel.h"
typedef double T;
#include "../vec_portable.h"
enum { PHASES_FILTERS = 4 };
#include "polyphase_kernels.h"

DEFINE_PHASES(f64_phases_6x4__portable)
