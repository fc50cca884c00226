/* SPDX-License-Identifier: Apache-2.0
 * The convolutions on wgmma for tf32. */
#include "conv_wgmma.cuh"

#define PYSIM_OF_f16(...)
#define PYSIM_OF_bf16(...)
#define PYSIM_OF_tf32 PYSIM_WGMMA_CONV_INSTANTIATE
#include "conv_wgmma_instances.inc"
