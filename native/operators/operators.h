/* SPDX-License-Identifier: Apache-2.0
 * Argument checks shared by operators.c and arrays.c. */
#ifndef PYSIM_OPERATORS_H
#define PYSIM_OPERATORS_H
#include "loops.h"

pysim_status pysim_loops_of(int32_t dtype, const pysim_loops **loops);
pysim_status pysim_check_positive(const char *what, const int64_t *values, int32_t count);
#endif
