/* SPDX-License-Identifier: Apache-2.0
 * The portable depthwise kernels, which also accept weights that are not finite. */
#ifndef PYSIM_DEPTHWISE_H
#define PYSIM_DEPTHWISE_H
#include "kernel.h"

/* Form `last`: channels are rounded up to so many; addresses of taps, kernel rows rounded up to 4, of one output. */
enum { PYSIM_LAST_CHANNELS = 64, PYSIM_LAST_TAPS = 512 };
static inline int64_t pysim_last_taps(const pysim_conv *c) { return (c->kernel_h + 3) / 4 * 4 * c->kernel_w; }

void f32_rows_64x1__portable(const pysim_direct *of, const void *input, const void *filters, const void *bias, void *out, int64_t groups,
                             int64_t begin, int64_t end, void *workspace);
void f64_rows_64x1__portable(const pysim_direct *of, const void *input, const void *filters, const void *bias, void *out, int64_t groups,
                             int64_t begin, int64_t end, void *workspace);
void s8_taps_64x1__portable(const pysim_direct *of, const void *input, const void *filters, const void *bias, void *out, int64_t groups,
                            int64_t begin, int64_t end, void *workspace);
void s8_last_1x1__portable(const pysim_direct *of, const void *input, const void *filters, const void *bias, void *out, int64_t groups,
                           int64_t begin, int64_t end, void *workspace);
#endif
