/* SPDX-License-Identifier: Apache-2.0
 * Few channels per group in plain C. Only taps inside the image are multiplied, so results are right for any weights. */
#include "algorithms/depthwise.h"

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
            for (int64_t r = 0; r < c->kernel_h; r++) {                                                                                   \
                const int64_t y = p * c->stride_h - c->pad_top + r * c->dilation_h;                                                       \
                if (y < 0 || y >= c->height) continue;                                                                                    \
                const T *row = image + (ch * c->height + y) * c->width, *w = weights + (ch * c->kernel_h + r) * c->kernel_w;              \
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
        const pysim_conv *c = of->conv;                                                                                                   \
        const int64_t plane = of->channels * c->height * c->width, size = of->channels * c->kernel_h * c->kernel_w;                       \
        (void)workspace;                                                                                                                  \
        for (int64_t f = 0; f < groups * of->filters; f++)                                                                                \
            for (int64_t p = begin; p < end; p++)                                                                                         \
                for (int64_t q = 0; q < of->q; q += WINDOWS)                                                                              \
                    name##_chunk(of, (const T *)input + f / of->filters * plane, (const T *)filters + f * size,                           \
                                 bias ? ((const T *)bias)[f] : 0, p, q, pysim_min(WINDOWS, of->q - q),                                    \
                                 (T *)out + (f * of->p + p) * of->q + q);                                                                 \
    }
DEFINE_ROWS(float, f32_rows_64x1__portable)
DEFINE_ROWS(double, f64_rows_64x1__portable)
