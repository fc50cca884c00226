/* SPDX-License-Identifier: Apache-2.0
 * The portable depthwise kernels, which also accept weights that are not finite. */
#ifndef PYSIM_DEPTHWISE_H
#define PYSIM_DEPTHWISE_H
#include "kernel.h"

/* Form `last`: channels are rounded up to so many; taps, kernel rows rounded up to 4; outputs of a row whose columns are interleaved together. */
enum { PYSIM_LAST_CHANNELS = 64, PYSIM_LAST_TAPS = 512, PYSIM_LAST_OUTPUTS = 16 };
static inline int64_t pysim_last_taps(const pysim_conv *c) { return (c->kernel_h + 3) / 4 * 4 * c->kernel_w; }
/* Columns that so many outputs of a row read. */
static inline int64_t pysim_last_columns(const pysim_conv *c, int64_t outputs) {
    return (outputs - 1) * c->stride_w + (c->kernel_w - 1) * c->dilation_w + 1;
}
/* Rows of outputs whose windows the rows of one's quads hold. */
static inline int64_t pysim_last_shared(const pysim_conv *c) {
    return c->dilation_h > 1 ? 1 : ((c->kernel_h + 3) / 4 * 4 - c->kernel_h) / c->stride_h + 1;
}
/* The lane of a channel in a block of so many, which fill four vectors. */
static inline int64_t pysim_last_place(int64_t channel, int64_t block) {
    return channel % 16 / 4 * (block / 4) + channel / 16 * 4 + channel % 4;
}

void f32_rows_64x1__portable(const pysim_direct *of, const void *input, const void *filters, const void *bias, void *out, int64_t groups,
                             int64_t begin, int64_t end, void *workspace);
void f64_rows_64x1__portable(const pysim_direct *of, const void *input, const void *filters, const void *bias, void *out, int64_t groups,
                             int64_t begin, int64_t end, void *workspace);
void s8_taps_64x1__portable(const pysim_direct *of, const void *input, const void *filters, const void *bias, void *out, int64_t groups,
                            int64_t begin, int64_t end, void *workspace);
void s8_last_1x1__portable(const pysim_direct *of, const void *input, const void *filters, const void *bias, void *out, int64_t groups,
                           int64_t begin, int64_t end, void *workspace);
#endif
