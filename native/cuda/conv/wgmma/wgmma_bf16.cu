/* SPDX-License-Identifier: Apache-2.0
 * The convolutions on wgmma for bf16. */
#include "conv_wgmma.cuh"

#define PYSIM_OF_f16(...)
#define PYSIM_OF_bf16 PYSIM_WGMMA_CONV_INSTANTIATE
#define PYSIM_OF_tf32(...)
#include "conv_wgmma_instances.inc"
