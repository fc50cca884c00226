/* SPDX-License-Identifier: Apache-2.0
 * Padded convolutions with weights that are not finite. Packed windows hold zeros for padding, and the kernels multiply them: 0 w is 0 for a finite
 * weight w, but NaN for an infinite or NaN weight, where the definition has no term. A NaN survives sums and epilogue, so every wrong result
 * is a NaN whose window meets padding. This file computes those results again from the definition. Packing marks filters that hold such
 * weights; runs of all other filters skip this. */
#include <math.h>

#include "elements.h"
#include "nest.h"

static double value_at(int32_t dtype, const void *array, int64_t i) {
    switch (dtype) {
    case PYSIM_F64: return ((const double *)array)[i];
    case PYSIM_BF16: return pysim_bf16_value(((const uint16_t *)array)[i]);
    default: return ((const float *)array)[i];
    }
}

/* Sum of filter f of the nest's group for the window whose top left corner is (y0, x0). */
static double window_sum(const pysim_nest *n, int64_t f, int64_t y0, int64_t x0) {
    const pysim_conv *c = n->problem;
    const int64_t width = n->schedule.filters;
    double sum = 0;
    for (int64_t ch = 0; ch < n->channels; ch++) {
        const int64_t c0 = ch / n->schedule.channels * n->schedule.channels, nc = pysim_min(n->schedule.channels, n->channels - c0);
        const int64_t panel = pysim_nest_filter_offset(n, c0, nc, f / width), group = n->row.group,
                      row_k = pysim_nest_depth(n, nc * n->taps);
        for (int64_t r = 0; r < n->rows; r++) {
            const int64_t y = y0 + r * c->dilation_h;
            if (y < 0 || y >= c->height) continue;
            for (int64_t s = 0; s < n->taps; s++) {
                const int64_t x = x0 + s * c->dilation_w;
                if (x < 0 || x >= c->width) continue;
                const int64_t k = (ch - c0) * n->taps + s, at = (r * row_k + k / group * group) * width + f % width * group + k % group;
                sum += value_at(c->dtype, n->input, (ch * c->height + y) * c->width + x) * value_at(c->dtype, n->filter_data, panel + at);
            }
        }
    }
    return sum;
}

void pysim_recompute_padded(const pysim_nest *n) {
    const pysim_conv *c = n->problem;
    const int32_t result = n->out_bytes == sizeof(double) ? PYSIM_F64 : PYSIM_F32;
    const int64_t high = c->dilation_h * (c->kernel_h - 1), wide = c->dilation_w * (c->kernel_w - 1);
    const int64_t q = (c->width + c->pad_left + c->pad_right - wide - 1) / c->stride_w + 1;
    const int64_t t_end = pysim_min(n->window_end * n->schedule.windows, n->windows);
    const int64_t f_end = pysim_min(n->filter_end * n->schedule.filters, n->filters);
    for (int64_t f = n->filter_begin * n->schedule.filters; f < f_end; f++)
        for (int64_t t = n->window_begin * n->schedule.windows; t < t_end; t++) {
            const int64_t y0 = t / q * c->stride_h - c->pad_top, x0 = t % q * c->stride_w - c->pad_left, at = f * n->output_pitch + t;
            const int meets_padding = y0 < 0 || x0 < 0 || y0 + high >= c->height || x0 + wide >= c->width;
            if (!meets_padding || !isnan(value_at(result, n->output, at))) continue;
            const double sum = window_sum(n, f, y0, x0) + (n->bias_filters ? value_at(result, n->bias_filters, f) : 0) +
                               (n->residual ? value_at(result, n->residual, at) : 0);
            const double value = sum < n->bounds.low ? n->bounds.low : sum > n->bounds.high ? n->bounds.high : sum;
            if (result == PYSIM_F64) ((double *)(void *)n->output)[at] = value;
            else ((float *)(void *)n->output)[at] = (float)value;
            pysim_finish_rows(&n->finish_rows, n->output + at * n->out_bytes, 1, 1, 1);
        }
}
