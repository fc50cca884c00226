/* SPDX-License-Identifier: Apache-2.0
 * Loops over results of f64, compiled for avx512. */
typedef double T;
#define DOUBLE 1
#define TARGET_LOOPS pysim_loops_f64__avx512
#include "../loops_body.h"
