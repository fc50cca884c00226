/* SPDX-License-Identifier: Apache-2.0
 * Loops over results of f64, compiled for any CPU. */
#include "loops.h"
typedef double T;
#include "vec_portable.h"
#define DOUBLE 1
#define TARGET_LOOPS pysim_loops_f64__portable
#include "loops_body.h"
