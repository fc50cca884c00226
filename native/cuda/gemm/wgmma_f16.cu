/* SPDX-License-Identifier: Apache-2.0
 * The wgmma kernels for f16, all four layouts. */
#include "wgmma.cuh"

#define PYSIM_OF_f16 PYSIM_WGMMA_INSTANTIATE
#define PYSIM_OF_bf16(...)
#define PYSIM_OF_tf32(...)
#define PYSIM_OF_s8(...)
#define PYSIM_OF_f8(...)
#include "wgmma_instances.inc"
