/* SPDX-License-Identifier: Apache-2.0
 * Few channels per group in plain C. Only taps inside the image are multiplied, so results are right for any weights. */
#include <string.h>

#include "depthwise_portable.h"
#include "operators/loops.h"

enum { WINDOWS = 64 };

/* Columns of outputs [0, count) whose column first + q*stride lies in the row: [*lo, *hi). */
static void columns_in_row(int64_t first, int64_t stride, int64_t width, int64_t count, int64_t *lo, int64_t *hi) {
    *lo = pysim_min(count, first < 0 ? (stride - 1 - first) / stride : 0);
    *hi = pysim_max(*lo, first >= width ? 0 : pysim_min(count, (width - 1 - first) / stride + 1));
}

#define DEFINE_ROWS(T, name)                                                                                                              \
    /* Columns [q0, q0 + count) of row p of one filter. */                                                                                \
    static void name##_chunk(const pysim_direct *of, const T *image, const T *weights, T own, int64_t p, int64_t q0, int64_t count,       \
                             T *out) {                                                                                                    \
        const pysim_conv *c = of->conv;                                                                                                   \
        T acc[WINDOWS];                                                                                                                   \
        for (int64_t i = 0; i < count; i++) acc[i] = 0;                                                                                   \
        for (int64_t ch = 0; ch < of->channels; ch++)                                                                                     \
            for (int64_t i = 0; i < of->slices * c->kernel_h; i++) {                                                                      \
                const int64_t y = p * c->stride_h - c->pad_top + i % c->kernel_h * c->dilation_h;                                         \
                if (y < 0 || y >= c->height) continue;                                                                                    \
                const T *row = image + ch * of->in_channel + i / c->kernel_h * of->in_slice + y * c->width;                               \
                const T *w = weights + ch * of->w_channel + i * c->kernel_w;                                                              \
                for (int64_t s = 0; s < c->kernel_w; s++) {                                                                               \
                    const int64_t first = q0 * c->stride_w - c->pad_left + s * c->dilation_w;                                             \
                    int64_t lo, hi;                                                                                                       \
                    columns_in_row(first, c->stride_w, c->width, count, &lo, &hi);                                                        \
                    if (c->stride_w == 1)                                                                                                 \
                        for (int64_t i = lo; i < hi; i++) acc[i] += w[s] * row[first + i];                                                \
                    else                                                                                                                  \
                        for (int64_t i = lo; i < hi; i++) acc[i] += w[s] * row[first + i * c->stride_w];                                  \
                }                                                                                                                         \
            }                                                                                                                             \
        const T low = (T)of->bounds.low, high = (T)of->bounds.high;                                                                       \
        for (int64_t i = 0; i < count; i++) {                                                                                             \
            const T sum = acc[i] + own;                                                                                                   \
            out[i] = sum < low ? low : sum > high ? high : sum;                                                                           \
        }                                                                                                                                 \
    }                                                                                                                                     \
                                                                                                                                          \
    void name(const pysim_direct *of, const void *input, const void *filters, const void *bias, void *out, int64_t groups, int64_t begin, \
              int64_t end, void *workspace) {                                                                                             \
        const int64_t group = of->channels * of->in_channel, size = of->channels * of->w_channel;                                         \
        (void)workspace;                                                                                                                  \
        for (int64_t f = 0; f < groups * of->filters; f++)                                                                                \
            for (int64_t p = begin; p < end; p++)                                                                                         \
                for (int64_t q = 0; q < of->q; q += WINDOWS)                                                                              \
                    name##_chunk(of, (const T *)input + f / of->filters * group, (const T *)filters + f * size,                           \
                                 bias ? ((const T *)bias)[f] : 0, p, q, pysim_min(WINDOWS, of->q - q),                                    \
                                 (T *)out + f * of->out_filter + p * of->q + q);                                                          \
    }
DEFINE_ROWS(float, f32_rows_64x1__portable)
DEFINE_ROWS(double, f64_rows_64x1__portable)

/* Columns [q0, q0 + count) of row p of one group of bytes. */
static void sum_taps(const pysim_direct *of, const uint8_t *image, const int8_t *weights, int32_t start, int64_t p, int64_t q0,
                     int64_t count, int32_t *acc) {
    const pysim_conv *c = of->conv;
    const int32_t flip = of->flip, zero = of->zero;
    for (int64_t i = 0; i < count; i++) acc[i] = start;
    for (int64_t r = 0; r < c->kernel_h; r++) {
        const int64_t y = p * c->stride_h - c->pad_top + r * c->dilation_h;
        if (y < 0 || y >= c->height) continue;
        const uint8_t *row = image + y * c->width;
        for (int64_t s = 0; s < c->kernel_w; s++) {
            const int64_t first = q0 * c->stride_w - c->pad_left + s * c->dilation_w;
            const int32_t w = weights[r * c->kernel_w + s];
            int64_t lo, hi;
            columns_in_row(first, c->stride_w, c->width, count, &lo, &hi);
            for (int64_t i = lo; i < hi; i++)
                acc[i] = (int32_t)((uint32_t)acc[i] + (uint32_t)(w * ((row[first + i * c->stride_w] ^ flip) - zero)));
        }
    }
    const int32_t low = (int32_t)of->bounds.low, high = (int32_t)of->bounds.high;
    for (int64_t i = 0; i < count; i++) acc[i] = acc[i] < low ? low : acc[i] > high ? high : acc[i];
}

void s8_taps_64x1__portable(const pysim_direct *of, const void *input, const void *filters, const void *bias, void *out, int64_t groups,
                            int64_t begin, int64_t end, void *workspace) {
    const pysim_conv *c = of->conv;
    const pysim_rescale *r = &of->rescale;
    const int64_t taps = c->kernel_h * c->kernel_w, bytes = !r->scales || r->result == PYSIM_F32 ? 4 : 1;
    (void)workspace;
    for (int64_t g = 0; g < groups; g++)
        for (int64_t p = begin; p < end; p++)
            for (int64_t q = 0; q < of->q; q += WINDOWS) {
                int32_t acc[WINDOWS];
                const int64_t count = pysim_min(WINDOWS, of->q - q);
                char *to = (char *)out + ((g * of->p + p) * of->q + q) * bytes;
                sum_taps(of, (const uint8_t *)input + g * c->height * c->width, (const int8_t *)filters + g * taps,
                         bias ? ((const int32_t *)bias)[g] : 0, p, q, count, acc);
                if (r->scales) pysim_loops_for(PYSIM_F32)->rescale(r, acc, WINDOWS, g, 0, to, 0, 1, count);
                else memcpy(to, acc, (size_t)(count * bytes));
            }
}

/* One output of one group with channels last. */
static int32_t sum_window(const pysim_direct *of, const uint8_t *image, const int8_t *weights, int32_t start, int64_t p, int64_t q) {
    const pysim_conv *c = of->conv;
    uint32_t sum = (uint32_t)start;
    for (int64_t r = 0; r < c->kernel_h; r++)
        for (int64_t s = 0; s < c->kernel_w; s++) {
            const int64_t y = p * c->stride_h - c->pad_top + r * c->dilation_h, x = q * c->stride_w - c->pad_left + s * c->dilation_w;
            if (y < 0 || y >= c->height || x < 0 || x >= c->width) continue;
            sum += (uint32_t)(weights[r * c->kernel_w + s] * ((image[(y * c->width + x) * c->groups] ^ of->flip) - of->zero));
        }
    const int32_t low = (int32_t)of->bounds.low, high = (int32_t)of->bounds.high, x = (int32_t)sum;
    return x < low ? low : x > high ? high : x;
}

/* A sum that becomes a number, and that a byte. */
static void round_number(const pysim_direct *of, int32_t sum, int64_t group, uint8_t *to) {
    const pysim_rounding own = pysim_rounding_at(&of->rounding, group, 0);
    float number;
    pysim_loops_for(PYSIM_F32)->rescale(&of->rescale, &sum, 1, group, 0, &number, 0, 1, 1);
    of->finish->loops->rounded(of->finish, &own, &number, 1, 1, 1, to, 1);
}

void s8_last_1x1__portable(const pysim_direct *of, const void *input, const void *filters, const void *bias, void *out, int64_t groups,
                           int64_t begin, int64_t end, void *workspace) {
    const pysim_rescale *r = &of->rescale;
    const int64_t taps = of->conv->kernel_h * of->conv->kernel_w, bytes = !r->scales || r->result == PYSIM_F32 ? 4 : 1;
    (void)workspace;
    for (int64_t p = begin; p < end; p++)
        for (int64_t q = 0; q < of->q; q++)
            for (int64_t g = 0; g < groups; g++) {
                const int32_t sum = sum_window(of, (const uint8_t *)input + g, (const int8_t *)filters + g * taps,
                                               bias ? ((const int32_t *)bias)[g] : 0, p, q);
                char *to = (char *)out + ((p * of->q + q) * groups + g) * bytes;
                if (of->finish) round_number(of, sum, g, (uint8_t *)out + (p * of->q + q) * groups + g);
                else if (r->scales) pysim_loops_for(PYSIM_F32)->rescale(r, &sum, 1, g, 0, to, 0, 1, 1);
                else memcpy(to, &sum, sizeof sum);
            }
}
