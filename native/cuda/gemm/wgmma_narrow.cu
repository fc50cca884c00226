/* SPDX-License-Identifier: Apache-2.0
 * The wgmma kernels for K-major operands of tf32, s8 and f8 (e4m3). */
#include "wgmma.cuh"

#define PYSIM_OF_f16(...)
#define PYSIM_OF_bf16(...)
#define PYSIM_OF_tf32 PYSIM_WGMMA_INSTANTIATE
#define PYSIM_OF_s8 PYSIM_WGMMA_INSTANTIATE
#define PYSIM_OF_f8 PYSIM_WGMMA_INSTANTIATE
#include "wgmma_instances.inc"
