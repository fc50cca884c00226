/* SPDX-License-Identifier: Apache-2.0
 * Loops over results of f32, compiled for any CPU. */
#include "loops.h"
typedef float T;
#include "vec_portable.h"
#define DOUBLE 0
#define TARGET_LOOPS pysim_loops_f32__portable
#include "loops_body.h"
