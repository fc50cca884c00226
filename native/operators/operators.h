/* SPDX-License-Identifier: Apache-2.0
 * Argument checks that operators.c, arrays.c and integers.c share. */
#ifndef PYSIM_OPERATORS_H
#define PYSIM_OPERATORS_H
#include "loops.h"

pysim_status pysim_loops_of(int32_t dtype, const pysim_loops **loops);
pysim_status pysim_check_positive(const char *what, const int64_t *values, int32_t count);
pysim_status pysim_check_pool(const pysim_pool *p, const void *x, const void *y);
/* A step of one of the kinds of integers.c. */
pysim_status pysim_run_integer_step(const pysim_step *s);
#endif
