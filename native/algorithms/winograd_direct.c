/* SPDX-License-Identifier: Apache-2.0
 * Results of Winograd's convolution that are not finite, again from the definition. The transforms mix the elements of a patch: an infinity or a
 * NaN reaches every result of its tile, and a sum of large elements may overflow where no result does. Additions and multiplications keep
 * infinities and NaN, so each such result is infinite or NaN before its activation (templates/winograd.c: outputs), whatever went wrong
 * before. This file computes the results of such tiles from the input and the filters themselves, in double precision. It is slow, but runs
 * of finite operands never come here. Filters: [group][panel][channel][row][column][panel_filters]. */
#include "elements.h"
#include "winograd.h"

enum { AT_ONCE = 16 };

static inline double value_at(const char *array, int64_t i, int wide) {
    return wide ? ((const double *)(const void *)array)[i] : (double)((const float *)(const void *)array)[i];
}

static inline __attribute__((always_inline)) void add_products(double x, const char *filters, int64_t at, int64_t count, double *sums,
                                                               const int wide) {
    for (int64_t i = 0; i < count; i++) sums[i] += x * value_at(filters, at + i, wide);
}

/* Sums of `count` filters of one panel for the window of output (z, y, x) of an image. */
static void window_sums(const pysim_winograd_exact *of, int64_t image, int64_t filter, int64_t count, int64_t z, int64_t y, int64_t x,
                        double *sums) {
    const pysim_conv *c = of->conv;
    const int64_t channels = c->channels / c->groups, block = c->input_block > 1 ? c->input_block : 1;
    const int64_t slice = c->height * c->width, size = c->depth * slice, z0 = z * c->stride_d - c->pad_front;
    const int64_t y0 = y * c->stride_h - c->pad_top, x0 = x * c->stride_w - c->pad_left, taps = c->kernel_d * c->kernel_h * c->kernel_w;
    const int64_t panel = filter / of->panel_filters * channels * taps * of->panel_filters + filter % of->panel_filters;
    const int64_t s0 = pysim_max(0, -x0), s1 = pysim_min(c->kernel_w, c->width - x0);
    const int wide = c->dtype == PYSIM_F64;
    for (int64_t i = 0; i < count; i++) sums[i] = 0;
    for (int64_t ch = 0; ch < channels; ch++)
        for (int64_t i = 0; i < c->kernel_d * c->kernel_h; i++) {
            const int64_t in_z = z0 + i / c->kernel_h * c->dilation_d, in_y = y0 + i % c->kernel_h;
            if (in_z < 0 || in_z >= c->depth || in_y < 0 || in_y >= c->height) continue;
            for (int64_t s = s0; s < s1; s++) {
                const int64_t pixel = in_z * slice + in_y * c->width + x0 + s,
                              at = panel + (ch * taps + i * c->kernel_w + s) * of->panel_filters;
                const int64_t of_input = image * c->channels * size + (ch / block * size + pixel) * block + ch % block;
                const double value = c->dtype == PYSIM_BF16 && block > 1
                                         ? (double)pysim_bf16_value(((const uint16_t *)(const void *)of->input)[of_input])
                                         : value_at(of->input, of_input, wide);
                if (wide) add_products(value, of->filters, at, count, sums, 1);
                else add_products(value, of->filters, at, count, sums, 0);
            }
        }
}

static void store(const pysim_winograd *w, int64_t image, int64_t filter, int64_t z, int64_t y, int64_t x, double sum) {
    const pysim_conv *c = w->exact.conv;
    const int64_t block = w->out_blocks ? c->output_block : 1, map = w->filter_pitch, pixel = (z * w->out_h + y) * w->out_w + x;
    const int64_t at = image * w->output_pitch + (filter / block * map + pixel) * block + filter % block;
    const double biased = sum + (w->bias ? value_at(w->bias, filter, c->dtype == PYSIM_F64) : 0);
    const double y_of = biased < w->bounds.low ? w->bounds.low : biased > w->bounds.high ? w->bounds.high : biased;
    if (c->dtype == PYSIM_F64) ((double *)(void *)w->output)[at] = y_of;
    else if (w->narrow_out) ((uint16_t *)(void *)w->output)[at] = pysim_bf16_of((float)y_of);
    else ((float *)(void *)w->output)[at] = (float)y_of;
}

void pysim_winograd_recompute(const pysim_winograd *w, int64_t tile, int64_t filter, int64_t filters) {
    const int64_t per_slice = w->tiles_h * w->tiles_w, image = tile / per_slice / w->out_d, z = tile / per_slice % w->out_d;
    const int64_t panel = w->exact.panel_filters, y0 = tile % per_slice / w->tiles_w * w->outputs_h, x0 = tile % w->tiles_w * w->outputs_w;
    const int64_t y1 = pysim_min(y0 + w->outputs_h, w->out_h), x1 = pysim_min(x0 + w->outputs_w, w->out_w);
    for (int64_t f = filter, some; f < filter + filters; f += some) {
        some = pysim_min(pysim_min(AT_ONCE, filter + filters - f), panel - f % panel);
        for (int64_t y = y0; y < y1; y++)
            for (int64_t x = x0; x < x1; x++) {
                double sums[AT_ONCE];
                window_sums(&w->exact, image, f, some, z, y, x, sums);
                for (int64_t i = 0; i < some; i++) store(w, image, f + i, z, y, x, sums[i]);
            }
    }
}
