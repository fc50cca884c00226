/* SPDX-License-Identifier: Apache-2.0
 * Winograd's transforms, FP32 in plain C. */
#include "winograd.h"
typedef float T;
#include "../vec_portable.h"
#include "../transpose.h"
#define PLANES_ALONE /* a row of one lane: blocks of one channel are planes */
#include "winograd_transforms.h"

DEFINE_WINOGRAD(pysim_winograd_f32__portable)
