/* SPDX-License-Identifier: Apache-2.0
 * Padded convolutions with weights that are not finite. Packed windows hold zeros for padding, and the kernels multiply them: 0 w is 0 for a finite
 * weight w, but NaN for an infinite or NaN weight, where the definition has no term. A NaN survives sums and epilogue, so every wrong result
 * is a NaN whose window meets padding. pysim_recompute_padded computes those results again from the definition. Packing marks filters that hold such
 * weights; runs of all other filters skip this.
 *
 * And what quantised operands need: what stands for padding, their zero points, and scales of results. */
#include <math.h>

#include "algorithm.h"
#include "elements.h"

static double value_at(int32_t dtype, const void *array, int64_t i) {
    switch (dtype) {
    case PYSIM_F64: return ((const double *)array)[i];
    case PYSIM_BF16: return pysim_bf16_value(((const uint16_t *)array)[i]);
    default: return ((const float *)array)[i];
    }
}

/* A window's first tap; it may lie in the padding. */
typedef struct {
    int64_t z, y, x;
} corner;

static int inside(int64_t at, int64_t size) { return at >= 0 && at < size; }

/* Sum of filter f of the nest's group for the window at a corner. */
static double window_sum(const pysim_nest *n, int64_t f, corner at) {
    const pysim_conv *c = n->problem;
    const int64_t width = n->schedule.filters;
    double sum = 0;
    for (int64_t ch = 0; ch < n->channels; ch++) {
        const int64_t c0 = ch / n->schedule.channels * n->schedule.channels, nc = pysim_min(n->schedule.channels, n->channels - c0);
        const int64_t panel = pysim_nest_filter_offset(n, c0, nc, f / width), group = n->row.group,
                      row_k = pysim_nest_depth(n, nc * n->taps);
        for (int64_t r = 0; r < n->rows; r++) {
            const int64_t z = at.z + r / c->kernel_h * c->dilation_d, y = at.y + r % c->kernel_h * c->dilation_h;
            if (!inside(z, c->depth) || !inside(y, c->height)) continue;
            for (int64_t s = 0; s < n->taps; s++) {
                const int64_t x = at.x + s * c->dilation_w;
                if (!inside(x, c->width)) continue;
                const int64_t k = (ch - c0) * n->taps + s, block = panel + (r * row_k + k / group * group) * width;
                const double weight = n->row.weight ? n->row.weight(n->filter_data + block * pysim_panel_bytes(n), f % width, k % group)
                                                    : value_at(c->dtype, n->filter_data, block + f % width * group + k % group);
                sum += value_at(c->dtype, n->input, ch * n->input_pitch + (z * c->height + y) * c->width + x) * weight;
            }
        }
    }
    return sum;
}

void pysim_recompute_padded(const pysim_nest *n) {
    const pysim_conv *c = n->problem;
    const int32_t result = n->out_bytes == sizeof(double) ? PYSIM_F64 : PYSIM_F32;
    const int64_t deep = c->dilation_d * (c->kernel_d - 1), high = c->dilation_h * (c->kernel_h - 1);
    const int64_t wide = c->dilation_w * (c->kernel_w - 1), p = (c->height + c->pad_top + c->pad_bottom - high - 1) / c->stride_h + 1;
    const int64_t q = (c->width + c->pad_left + c->pad_right - wide - 1) / c->stride_w + 1;
    const int64_t t_end = pysim_min(n->window_end * n->schedule.windows, n->windows);
    const int64_t f_end = pysim_min(n->filter_end * n->schedule.filters, n->filters);
    for (int64_t f = n->filter_begin * n->schedule.filters; f < f_end; f++)
        for (int64_t t = n->window_begin * n->schedule.windows; t < t_end; t++) {
            const corner first = {t / q / p * c->stride_d - c->pad_front, t / q % p * c->stride_h - c->pad_top,
                                  t % q * c->stride_w - c->pad_left};
            const int64_t at = f * n->output_pitch + t;
            const int whole = inside(first.z, c->depth - deep) && inside(first.y, c->height - high) && inside(first.x, c->width - wide);
            if (whole || !isnan(value_at(result, n->output, at))) continue;
            const double sum = window_sum(n, f, first) + (n->bias_filters ? value_at(result, n->bias_filters, f) : 0) +
                               (n->residual ? value_at(result, n->residual, at) : 0);
            const double value = sum < n->bounds.low ? n->bounds.low : sum > n->bounds.high ? n->bounds.high : sum;
            if (result == PYSIM_F64) ((double *)(void *)n->output)[at] = value;
            else ((float *)(void *)n->output)[at] = (float)value;
            pysim_finish_rows(&n->finish_rows, n->output + at * n->out_bytes, 1, 1, 1);
        }
}

void pysim_fill_segment(const pysim_segment *s, void *to) {
    int8_t *dst = to;
    for (int64_t c = 0; c < s->channels; c++, dst += s->dst_channel)
        for (int64_t tap = 0; tap < s->taps; tap++) {
            int8_t *at = dst + tap * s->pitch;
            for (int64_t j = 0; s->fill && j < s->count; j++) {
                const int64_t column = s->first + j * s->stride + tap * s->dilation;
                if (!s->row || column < 0 || column >= s->width) at[j] = (int8_t)s->fill;
            }
            for (int64_t j = 0; s->flip && j < s->count; j++) at[j] = (int8_t)(at[j] ^ s->flip);
        }
}

/* Form groups multiplies an unsigned first operand, form tiles one of either kind, other rows a signed one. */
void pysim_flip_filters(const pysim_nest *n, int64_t k, void *panel) {
    const int64_t size = (n->row_panel ? n->row_panel : pysim_nest_depth(n, k)) * n->schedule.filters;
    const char flip = (char)n->flip;
    char *bytes = panel;
    int16_t *wide = panel;
    if (pysim_panel_bytes(n) == (int64_t)sizeof *wide)
        for (int64_t i = 0; i < size; i++) wide[i] = (int8_t)(wide[i] ^ flip);
    else
        for (int64_t i = 0; i < size; i++) bytes[i] ^= flip;
}

int32_t pysim_nest_signs(pysim_nest *n, const pysim_epilogue *e) {
    const int tiles = pysim_on_tiles(n), is_unsigned = tiles ? e->first_unsigned : n->row.group > 2;
    n->both_signed = tiles && !is_unsigned;
    n->flip = e->first_unsigned == is_unsigned ? 0 : 128;
    return e->first_zero + (n->flip ? is_unsigned ? 128 : -128 : 0);
}

void pysim_nest_rescale(pysim_nest *n, const pysim_epilogue *e, int along_windows) {
    if (!e->scales) return;
    const int clamps = e->activation == PYSIM_EPILOGUE_clamp, whole = e->result != PYSIM_F32;
    const double least = e->result == PYSIM_S8 ? INT8_MIN : 0, most = e->result == PYSIM_S8 ? INT8_MAX : UINT8_MAX;
    double low = clamps ? e->low : -__builtin_inf(), high = clamps ? e->high : __builtin_inf();
    if (whole) {
        low = low > least ? __builtin_ceil(low) : least;
        high = high < most ? __builtin_floor(high) : most;
    }
    n->rescale = (pysim_rescale){.scales = e->scales,
                                 .filter_step = !along_windows && e->scale_count > 1,
                                 .window_step = along_windows && e->scale_count > 1,
                                 .result = e->result,
                                 .zero = e->result_zero,
                                 .low = (float)(low - e->result_zero),
                                 .high = (float)(high - e->result_zero),
                                 .sum = e->sum};
    n->out_bytes = pysim_dtype_bytes(e->result);
    n->rounding = (pysim_rounding){e->result_scales, e->shifts, e->result_scale_count > 1, along_windows, e->result, e->result_zero};
    if (!e->result_scales) return;
    n->rescale.result = PYSIM_F32, n->rescale.zero = 0; /* numbers first */
    n->rescale.low = -__builtin_inff(), n->rescale.high = __builtin_inff();
}

pysim_epilogue pysim_without_zero(const pysim_epilogue *e, int32_t zero, const int32_t *sums, int64_t count, int32_t *room) {
    const uint32_t factor = (uint32_t)zero * (uint32_t)(int32_t)e->alpha;
    const int32_t *bias = e->bias;
    pysim_epilogue without = *e;
    for (int64_t i = 0; i < count; i++) room[i] = (int32_t)((bias ? (uint32_t)bias[i] : 0) - factor * (uint32_t)sums[i]);
    without.bias = room;
    return without;
}
