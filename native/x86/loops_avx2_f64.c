/* SPDX-License-Identifier: Apache-2.0
 * Loops over results of f64, compiled for avx2. */
#include "../loops.h"
#include "vec_avx2_f64.h"
#define DOUBLE 1
#define TARGET_LOOPS pysim_loops_f64__avx2
#include "../loops_body.h"
