/* SPDX-License-Identifier: Apache-2.0
 * Loops over results of f32, compiled for any CPU. */
typedef float T;
#define DOUBLE 0
#define TARGET_LOOPS pysim_loops_f32__portable
#include "loops_body.h"
