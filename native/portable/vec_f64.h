/* SPDX-License-Identifier: Apache-2.0
 * Vectors of doubles in plain C; pairs of them for templates that need four lanes in any case and vectors of two in registers. */
typedef double T;
#define DOUBLE 1
#define INSTANCE_portable_f64 ~,
#ifdef BLOCKS_OF_FOUR
#include "vec_portable_pair.h"
#else
#include "vec_portable.h"
#endif
