/* SPDX-License-Identifier: Apache-2.0
 * Vectors of floats in plain C. */
typedef float T;
#define INSTANCE_portable_f32 ~,
#include "vec_portable.h"
