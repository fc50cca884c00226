/* SPDX-License-Identifier: Apache-2.0
 * HGEMM on the ordinary multipliers: the simt rows of f16. */
#define PYSIM_SIMT_f32(...)
#define PYSIM_SIMT_f64(...)
#define PYSIM_SIMT_f16(...) PYSIM_INSTANCE(__VA_ARGS__)
#define PYSIM_SIMT_s8(...)
#include "simt_instances.inc"
