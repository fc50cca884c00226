/* SPDX-License-Identifier: Apache-2.0
 * Winograd's transforms, FP64 on AVX-512. */
#include "../conv/winograd.h"
#include "vec_avx512_f64.h"
#include "../transpose.h"
#include "../conv/winograd_transforms.h"

DEFINE_WINOGRAD(pysim_winograd_f64__avx512)
