/* SPDX-License-Identifier: Apache-2.0
 * SGEMM on the ordinary multipliers: the simt rows of f32. */
#define PYSIM_SIMT_f32(...) PYSIM_INSTANCE(__VA_ARGS__)
#define PYSIM_SIMT_f64(...)
#define PYSIM_SIMT_f16(...)
#define PYSIM_SIMT_s8(...)
#include "simt_instances.inc"
