/* SPDX-License-Identifier: Apache-2.0
 * Each .c file of this folder is a template over a vector type. It is compiled once for each (meson.build, pysim/runtime/foreign.py), with
 * -DVECTORS="file": x86/vectors/vec_*.h or portable/vec_*.h. That file defines T, VEC, LANES and functions on them, DOUBLE if T is double, and
 * INSTANCE_<target>_<dtype>.
 *
 * MINE(target, dtype, define)(...) is define(...) if these are the target and dtype of the vectors, and nothing otherwise. So a template defines
 * its rows of a table, and a new row needs no file. */
#include "kernel.h"
#include VECTORS

#define SECOND_OF(a, b, ...) b
#define SECOND(...) SECOND_OF(__VA_ARGS__, )
#define NOTHING(...)
#define MINE(target, dtype, define) SECOND(INSTANCE_##target##_##dtype define, NOTHING) /* INSTANCE_... is "~,", or no macro */
