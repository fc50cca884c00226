/* SPDX-License-Identifier: Apache-2.0
 * Winograd's transforms, FP32 on AVX-512. */
#include "../conv/winograd.h"
#include "vec_avx512_f32.h"
#include "../transpose.h"
#include "../conv/winograd_transforms.h"

DEFINE_WINOGRAD(pysim_winograd_f32__avx512)
