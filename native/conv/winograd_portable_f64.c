/* SPDX-License-Identifier: Apache-2.0
 * Winograd's transforms, FP64 in plain C. */
#include "winograd.h"
typedef double T;
#define FOUR_LANES
#include "../vec_portable.h"
#include "../transpose.h"
#define ROLLED_FILTERS /* no slower, and compiled in two thirds of the time */
#include "winograd_transforms.h"

DEFINE_WINOGRAD(pysim_winograd_f64__portable)
