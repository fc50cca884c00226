/* SPDX-License-Identifier: Apache-2.0
 * The loops of loops.h for one type and target; included with T, DOUBLE (whether T is double) and TARGET_LOOPS, the name to define.
 * The compiler makes vectors of them: no loop has a branch, comparisons choose between values that are both computed. */
#include <math.h>
#include <string.h>

#include "loops.h"

#define INLINE static inline __attribute__((always_inline))
enum { PIECE = 1024, BLOCK = 2048, PARTS = 16 }; /* elements: what several passes go over in L1, a block of a pool, partial sums */

#if DOUBLE
INLINE T exponential(T x) { return exp(x); }
INLINE T normal_tail(T z) { return erfc(z) / 2; }
#else
/* e^x = 2^n e^r, n = x / ln 2 rounded, |r| <= ln 2 / 2; ln 2 in two parts, so that x - n ln 2 is nearly exact (Cody and Waite). The sum
 * x + 1.5 2^23 has n in its lowest bits. Below the least normal number 0, above the largest infinity; within 2 units in the last place. */
INLINE float exponential(float given) {
    const float magic = 12582912.0f, low = -87.3f, high = 88.7f;
    const float x = given < low ? low : given > high ? high : given;
    const float shifted = x * 1.44269504f + magic, n = shifted - magic;
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    union {
        float value;
        uint32_t bits;
    } scale = {.value = shifted}, zero = {.value = magic};
    scale.bits = (scale.bits - zero.bits + 126) << 23; /* 2^(n-1): n may be 128 */
    const float y = p * scale.value * 2.0f;
    return given < low ? 0.0f : given > high ? __builtin_inff() : y;
}

/* erfc(z) / 2 for z >= 0: erfc(z) = t exp(-z^2 + p(t)), t = 1 / (1 + z/2), where p of degree 9 interpolates at Chebyshev points of 0 <= z <= 10
 * (within 5e-8; behind that the result is 0 in float). */
INLINE float normal_tail(float z) {
    const float t = 1.0f / (1.0f + 0.5f * z);
    float p = 0.144930214f;
    p = p * t + -0.680827177f;
    p = p * t + 1.15673376f;
    p = p * t + -0.696251897f;
    p = p * t + -0.0802804334f;
    p = p * t + 0.00126758703f;
    p = p * t + 0.0346027998f;
    p = p * t + 0.386640412f;
    p = p * t + 0.998632783f;
    p = p * t + -1.265448f;
    return 0.5f * t * exponential(p - z * z);
}
#endif

INLINE T gelu(T x) {
    const T tail = normal_tail((x < 0 ? -x : x) * (T)0.70710678118654752440);
    return x * (x < 0 ? tail : 1 - tail);
}
INLINE T silu(T x) { return x / (1 + exponential(-x)); }
INLINE T gelu_tanh(T x) { /* (1 + tanh u) / 2 = 1 / (1 + exp(-2u)) */
    return x / (1 + exponential((T)-1.59576912160573071176 * (x + (T)0.044715 * x * x * x)));
}
INLINE T hard_swish(T x) {
    const T up = x + 3 < 0 ? 0 : x + 3;
    return x * (up > 6 ? 6 : up) * (T)(1.0 / 6);
}

/* ---- epilogues ---- */

#define EACH(function)                                                               \
    do {                                                                             \
        if (residual)                                                                \
            for (int64_t i = 0; i < columns; i++) {                                  \
                const T x = out[i] + residual[i];                                    \
                out[i] = (function);                                                 \
            }                                                                        \
        else                                                                         \
            for (int64_t i = 0; i < columns; i++) {                                  \
                const T x = out[i];                                                  \
                out[i] = (function);                                                 \
            }                                                                        \
    } while (0)

static void finish_row(const pysim_finish *f, T *restrict out, const T *restrict residual, int64_t columns) {
    const T low = (T)f->low, high = (T)f->high;
    switch (f->activation) {
    case PYSIM_EPILOGUE_relu: EACH(x < 0 ? 0 : x); break;
    case PYSIM_EPILOGUE_gelu: EACH(gelu(x)); break;
    case PYSIM_EPILOGUE_clamp: EACH(x < low ? low : x > high ? high : x); break;
    case PYSIM_EPILOGUE_silu: EACH(silu(x)); break;
    case PYSIM_EPILOGUE_hard_swish: EACH(hard_swish(x)); break;
    case PYSIM_EPILOGUE_gelu_tanh: EACH(gelu_tanh(x)); break;
    default:
        if (residual) EACH(x);
    }
}

static void finish_rows(const pysim_finish *f, void *to, int64_t pitch, int64_t rows, int64_t columns) {
    T *out = to;
    const T *residual = f->residual ? (const T *)(const void *)(f->residual + ((const char *)to - f->result)) : NULL;
    if (pitch == columns) columns *= rows, rows = 1;
    for (int64_t r = 0; r < rows; r++) finish_row(f, out + r * pitch, residual ? residual + r * pitch : NULL, columns);
}

/* ---- maps ---- */

static void map_piece(const T *x, T scale, T shift, int64_t count, T *y) {
    for (int64_t i = 0; i < count; i++) y[i] = scale * x[i] + shift;
}

static void map_planes(const pysim_map *m, const pysim_finish *f, const void *from, const void *scales, const void *shifts, void *to) {
    const T *x = from, *scale = scales, *shift = shifts;
    T *y = to;
    const int copies = !scale && !shift;
    for (int64_t k = 0; k < m->planes; k++)
        for (int64_t i = 0; i < m->size; i += PIECE) {
            const int64_t count = pysim_min(PIECE, m->size - i), at = k * m->size + i;
            if (!copies)
                map_piece(x + at, scale ? scale[k % m->period] : 1, shift ? shift[k % m->period] : 0, count, y + at);
            else if (x != y)
                memcpy(y + at, x + at, (size_t)count * sizeof(T));
            if (f->loops) finish_rows(f, y + at, count, 1, count);
        }
}

/* ---- pools ---- */

INLINE T larger(T a, T b) { return (b > a) | (b != b) ? b : a; } /* a NaN stays */

/* Rows or columns that neighbouring windows reach over. */
INLINE int64_t extent(int64_t windows, int64_t stride, int64_t kernel, int64_t dilation) {
    return (windows - 1) * stride + dilation * (kernel - 1) + 1;
}

/* The taps of windows, x[i + tap step] for count windows that are neighbours. */
INLINE void combine(const int largest, int64_t taps, const T *restrict x, int64_t step, int64_t count, T *restrict into) {
    if (taps == 1) memcpy(into, x, (size_t)count * sizeof(T));
    for (int64_t i = 0; taps > 1 && i < count; i++) into[i] = largest ? larger(x[i], x[i + step]) : x[i] + x[i + step];
    for (int64_t tap = 2; tap < taps; tap++)
        for (int64_t i = 0; i < count; i++)
            into[i] = largest ? larger(into[i], x[i + tap * step]) : into[i] + x[i + tap * step];
}

/* Taps of a window at `at` that lie in [0, size). */
INLINE int64_t taps_inside(int64_t at, int64_t size, int64_t kernel, int64_t dilation) {
    const int64_t first = at < 0 ? pysim_min(kernel, (dilation - 1 - at) / dilation) : 0;
    const int64_t last = at >= size ? 0 : pysim_min(kernel, (size - 1 - at) / dilation + 1);
    return pysim_max(0, last - first);
}

/* Sums of windows from row y0 and column x0 on, divided by how many elements they are of. */
INLINE void divide(const pysim_pool *p, int64_t y0, int64_t x0, int64_t count, T *out) {
    const int64_t height = p->count_padding ? p->height + p->pad_top + p->pad_bottom : p->height;
    const int64_t width = p->count_padding ? p->width + p->pad_left + p->pad_right : p->width;
    const int64_t rows = taps_inside(y0 + (p->count_padding ? p->pad_top : 0), height, p->kernel_h, p->dilation_h);
    const int64_t left = x0 + (p->count_padding ? p->pad_left : 0), reach = p->dilation_w * (p->kernel_w - 1);
    const int64_t first = pysim_min(count, left < 0 ? (p->stride_w - 1 - left) / p->stride_w : 0);
    const int64_t last = left + reach >= width ? first : pysim_max(first, pysim_min(count, (width - 1 - reach - left) / p->stride_w + 1));
    const T whole = (T)(rows * p->kernel_w);
    for (int64_t i = first; i < last; i++) out[i] /= whole;
    for (int64_t i = first == 0 ? last : 0; i < count; i = i + 1 == first ? last : i + 1)
        out[i] /= (T)(rows * taps_inside(left + i * p->stride_w, width, p->kernel_w, p->dilation_w));
}

/* Outputs [row, row + rows) x [q0, q0 + count) of a plane. Their part of it, padding and all, lies as rows of `wide` columns one behind the
 * other, in place where it has no padding, so that down the columns and along the rows all go in long loops; what those make of the ends of rows is left out. */
INLINE void pool_block(const int largest, const pysim_pool *p, const T *plane, int64_t row, int64_t rows, int64_t q0, int64_t count, T *out) {
    const T empty = largest ? -(T)__builtin_inf() : 0;
    const int64_t wide = extent(count, p->stride_w, p->kernel_w, p->dilation_w), high = extent(rows, p->stride_h, p->kernel_h, p->dilation_h);
    const int64_t y0 = row * p->stride_h - p->pad_top, x0 = q0 * p->stride_w - p->pad_left;
    const int64_t lo = pysim_min(wide, pysim_max(0, -x0)), hi = pysim_max(lo, pysim_min(wide, p->width - x0));
    T padded[BLOCK], down[BLOCK], along[BLOCK];
    const int as_it_is = wide == p->width && x0 == 0 && y0 >= 0 && y0 + high <= p->height;
    const T *in = as_it_is ? plane + y0 * wide : padded;
    for (int64_t r = 0; !as_it_is && r < high; r++) {
        T *to = padded + r * wide;
        const int inside = y0 + r >= 0 && y0 + r < p->height;
        for (int64_t i = 0; i < (inside ? lo : wide); i++) to[i] = empty;
        if (!inside) continue;
        memcpy(to + lo, plane + (y0 + r) * p->width + x0 + lo, (size_t)(hi - lo) * sizeof(T));
        for (int64_t i = hi; i < wide; i++) to[i] = empty;
    }
    const int64_t together = p->stride_h == 1 ? rows : 1; /* rows that one loop goes over */
    for (int64_t r = 0; r < rows; r += together)
        combine(largest, p->kernel_h, in + r * p->stride_h * wide, p->dilation_h * wide, together * wide, down + r * wide);
    combine(largest, p->kernel_w, down, p->dilation_w, rows * wide - p->dilation_w * (p->kernel_w - 1), along);
    for (int64_t r = 0; r < rows; r++, out += p->out_w) {
        const T *from = along + r * wide;
        if (p->stride_w == 1)
            memcpy(out, from, (size_t)count * sizeof(T));
        else if (p->stride_w == 2)
            for (int64_t i = 0; i < count; i++) out[i] = from[2 * i];
        else
            for (int64_t i = 0; i < count; i++) out[i] = from[i * p->stride_w];
        if (!largest) divide(p, y0 + r * p->stride_h, x0, count, out);
    }
}

/* One output of a plane, tap by tap: where a window is larger than a block. */
static T pool_window(const pysim_pool *p, const T *plane, int64_t row, int64_t q) {
    const int64_t y0 = row * p->stride_h - p->pad_top, x0 = q * p->stride_w - p->pad_left;
    T value = p->largest ? -(T)__builtin_inf() : 0;
    for (int64_t r = 0; r < p->kernel_h; r++)
        for (int64_t s = 0; s < p->kernel_w; s++) {
            const int64_t y = y0 + r * p->dilation_h, x = x0 + s * p->dilation_w;
            if (y < 0 || y >= p->height || x < 0 || x >= p->width) continue;
            const T one = plane[y * p->width + x];
            value = p->largest ? larger(value, one) : value + one;
        }
    if (!p->largest) divide(p, y0, x0, 1, &value);
    return value;
}

/* The mean of a plane. */
static T plane_mean(const T *x, int64_t count) {
    T part[PARTS] = {0};
    double sum = 0;
    int64_t i = 0;
    for (; i + PARTS <= count; i += PARTS)
        for (int j = 0; j < PARTS; j++) part[j] += x[i + j];
    for (int j = 0; j < PARTS; j++) sum += part[j];
    for (; i < count; i++) sum += x[i];
    return (T)(sum / (double)count);
}

/* As many outputs along an axis as their windows stay within `most` elements; 0 where not one does. */
INLINE int64_t outputs_within(int64_t most, int64_t out, int64_t stride, int64_t kernel, int64_t dilation) {
    const int64_t left = most - extent(1, stride, kernel, dilation);
    return left < 0 ? 0 : pysim_min(out, left / stride + 1);
}

static void pool_plane(const pysim_pool *p, int64_t rows, int64_t columns, const T *x, T *y) {
    for (int64_t row = 0; row < p->out_h; row += pysim_max(1, rows))
        for (int64_t q = 0; q < p->out_w; q += pysim_max(1, columns)) {
            const int64_t high = pysim_min(rows, p->out_h - row), wide = pysim_min(columns, p->out_w - q);
            T *out = y + row * p->out_w + q;
            if (rows == 0)
                *out = pool_window(p, x, row, q);
            else if (p->largest)
                pool_block(1, p, x, row, high, q, wide, out);
            else
                pool_block(0, p, x, row, high, q, wide, out);
        }
}

static void pool_planes(const pysim_pool *p, const void *from, void *to) {
    const T *x = from;
    T *y = to;
    const int is_mean = !p->largest && p->out_h == 1 && p->out_w == 1 && p->kernel_h == p->height && p->kernel_w == p->width &&
                        !(p->pad_top | p->pad_left) && p->dilation_h == 1 && p->dilation_w == 1;
    const int64_t columns = outputs_within(BLOCK / extent(1, 1, p->kernel_h, p->dilation_h), p->out_w, p->stride_w, p->kernel_w, p->dilation_w);
    const int64_t wide = columns ? extent(columns, p->stride_w, p->kernel_w, p->dilation_w) : 1;
    const int64_t rows = columns ? outputs_within(BLOCK / wide, p->out_h, p->stride_h, p->kernel_h, p->dilation_h) : 0;
    for (int64_t k = 0; k < p->planes; k++, x += p->height * p->width, y += p->out_h * p->out_w)
        if (is_mean)
            *y = plane_mean(x, p->height * p->width);
        else
            pool_plane(p, rows, rows ? columns : 1, x, y);
}

const pysim_loops TARGET_LOOPS = {finish_rows, map_planes, pool_planes};
