/* SPDX-License-Identifier: Apache-2.0
 * Each .c file of this folder is a template over a vector type. It is compiled once for each (meson.build, pysim/runtime/foreign.py), with
 * -DVECTORS="file": x86/vectors/vec_*.h or portable/vec_*.h. That file defines T, VEC, LANES and functions on them, DOUBLE if T is double, and
 * INSTANCE_<target>_<dtype>.
 *
 * MINE(target, dtype, define)(...) is define(...) if these are the target and dtype of the vectors, and nothing otherwise. So a template defines
 * its rows of a table, and a new row needs no file. */
#include "kernel.h"
#include VECTORS

/* T is what memory has of a network's values; NUMBER, what lanes hold, of biases, scales and weights that are not multiplied DEPTH at a time. Vectors of a
 * narrower T define STORED_NARROW and these names themselves. */
#ifndef STORED_NARROW
typedef T NUMBER;
#define v_load_numbers v_load
#define v_load_numbers_mask v_load_mask
#define v_broadcast(p) v_set1(*(p))
/* DEPTH neighbouring elements in each lane, as many weights of each filter, and sums of their products */
enum { DEPTH = 1 };
#define v_element(p) v_set1(*(const T *)(p))
#define v_filters v_load
#define v_products v_fma
#endif

#define SECOND_OF(a, b, ...) b
#define SECOND(...) SECOND_OF(__VA_ARGS__, )
#define NOTHING(...)
#define MINE(target, dtype, define) SECOND(INSTANCE_##target##_##dtype define, NOTHING) /* INSTANCE_... is "~,", or no macro */
