/* SPDX-License-Identifier: Apache-2.0
 * The portable depthwise kernels, which also accept weights that are not finite. */
#ifndef PYSIM_DEPTHWISE_H
#define PYSIM_DEPTHWISE_H
#include "kernel.h"

void f32_rows_64x1__portable(const pysim_direct *of, const void *input, const void *filters, const void *bias, void *out, int64_t groups,
                             int64_t begin, int64_t end, void *workspace);
void f64_rows_64x1__portable(const pysim_direct *of, const void *input, const void *filters, const void *bias, void *out, int64_t groups,
                             int64_t begin, int64_t end, void *workspace);
void s8_taps_64x1__portable(const pysim_direct *of, const void *input, const void *filters, const void *bias, void *out, int64_t groups,
                            int64_t begin, int64_t end, void *workspace);
#endif
