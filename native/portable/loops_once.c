/* SPDX-License-Identifier: Apache-2.0
 * The loops of floats in plain C whose multiply-adds round once, as those of vector instructions do, on CPUs without such an instruction:
 * several times slower, and for accuracy reproducible alone (pysim_round_once). */
#ifndef __FP_FAST_FMAF /* else plain C has the instruction, too */
#define VECTORS "portable/vec_f32.h"
#define ROUNDED_ONCE
#ifdef __GNUC__
#pragma GCC diagnostic ignored "-Wunused-function"
#endif
#include "templates/loops.c"
#endif
