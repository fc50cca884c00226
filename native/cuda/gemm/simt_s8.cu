/* SPDX-License-Identifier: Apache-2.0
 * IGEMM on the ordinary multipliers: the simt rows of s8. */
#define PYSIM_SIMT_f32(...)
#define PYSIM_SIMT_f64(...)
#define PYSIM_SIMT_f16(...)
#define PYSIM_SIMT_s8(...) PYSIM_INSTANCE(__VA_ARGS__)
#include "simt_instances.inc"
