/* SPDX-License-Identifier: Apache-2.0
 * Loops over results of f32, compiled for avx512. */
#include "../loops.h"
#include "vec_avx512_f32.h"
#define DOUBLE 0
#define TARGET_LOOPS pysim_loops_f32__avx512
#include "../loops_body.h"
