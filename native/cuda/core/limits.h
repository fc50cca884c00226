/* SPDX-License-Identifier: Apache-2.0
 * The lines of native/cuda/limits.inc as constants. */
#ifndef PYSIM_CUDA_LIMITS_H
#define PYSIM_CUDA_LIMITS_H
#include <cstdint>

namespace pysim::limit {
#define PYSIM_LIMIT(name, value) constexpr int64_t name = value;
#include "limits.inc"
#undef PYSIM_LIMIT
}
#endif
