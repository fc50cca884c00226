/* SPDX-License-Identifier: Apache-2.0
 * Loops over results of f32, compiled for avx2. */
#include "../loops.h"
#include "vec_avx2_f32.h"
#define DOUBLE 0
#define TARGET_LOOPS pysim_loops_f32__avx2
#include "../loops_body.h"
