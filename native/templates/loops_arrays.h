/* SPDX-License-Identifier: Apache-2.0
 * Loops over arrays of any shape: rows (softmax, layer norms), rows of a table (gather). Included by loops.c, which
 * defines larger. */

/* ---- rows ---- */

/* y = exp(x - top) where y is given; returns the sum. The partial last vector stays in a register, because a load of it would wait for the masked
 * store. */
INLINE T row_exponentials(const T *x, int64_t size, T most, T *y, VEC *last) {
    const VEC top = v_set1(most);
    const int64_t whole = size / LANES * LANES;
    VEC sum[PARTS];
#pragma GCC unroll 8
    for (int p = 0; p < PARTS; p++) sum[p] = v_zero();
    int64_t i = 0;
    for (; i + SUMS <= size; i += SUMS)
#pragma GCC unroll 8
        for (int p = 0; p < PARTS; p++) {
            const VEC v = exponential(v_load(x + i + p * LANES) - top);
            if (y) v_store(y + i + p * LANES, v);
            sum[p] += v;
        }
#pragma GCC unroll 8
    for (int p = 0; p < PARTS; p++, i += LANES) {
        if (i >= size) break;
        VEC v;
        if (i == whole) v = *last = first_lanes(exponential(v_load_mask(x + i, v_lanes(0, size - i)) - top), size - i, v_zero());
        else v = exponential(v_load(x + i) - top);
        if (y && i != whole) v_store(y + i, v);
        sum[p] += v;
    }
    return across_parts(0, sum);
}

static void softmax_row(const T *x, int64_t size, T *y) {
    const int64_t whole = size / LANES * LANES;
    VEC last = v_zero();
    const VEC factor = v_set1(1 / row_exponentials(x, size, row_over(LARGEST, x, size, 0), y, &last));
    for (int64_t i = 0; i < whole; i += LANES) v_store(y + i, v_load(y + i) * factor);
    if (whole < size) v_store_mask(y + whole, last * factor, v_lanes(0, size - whole));
}

static void log_softmax_row(const T *x, int64_t size, T *y) {
    const T most = row_over(LARGEST, x, size, 0);
    const int64_t whole = size / LANES * LANES;
    const MASK rest = v_lanes(0, size - whole);
    VEC last;
    const VEC top = v_set1(most), below = v_set1((T)log((double)row_exponentials(x, size, most, NULL, &last)));
    for (int64_t i = 0; i < whole; i += LANES) v_store(y + i, v_load(x + i) - top - below);
    if (whole < size) v_store_mask(y + whole, v_load_mask(x + whole, rest) - top - below, rest);
}

/* y = (x - mean) factor scale + shift. */
INLINE void row_line(const T *x, int64_t size, T mean, T factor, const T *scale, const T *shift, T *y) {
    const VEC middle = v_set1(mean), times = v_set1(factor);
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) {
        VEC v = (v_load(x + i) - middle) * times;
        if (scale) v *= v_load(scale + i);
        if (shift) v += v_load(shift + i);
        v_store(y + i, v);
    }
    if (i == size) return;
    const MASK rest = v_lanes(0, size - i);
    VEC v = (v_load_mask(x + i, rest) - middle) * times;
    if (scale) v *= v_load_mask(scale + i, rest);
    if (shift) v += v_load_mask(shift + i, rest);
    v_store_mask(y + i, v, rest);
}

/* Softmax, or its logarithm, of interleaved rows, whose elements are `inner` apart. */
INLINE void softmax_beside(const int logs, int64_t size, int64_t inner, const T *x, T *y) {
    for (int64_t n = 0; n < inner; n += LANES) {
        const MASK in = v_lanes(0, pysim_min(LANES, inner - n));
        VEC top = v_set1(-(T)__builtin_inf()), sum = v_zero();
        for (int64_t i = n; i < size * inner; i += inner) top = v_larger(top, v_load_mask(x + i, in));
        for (int64_t i = n; i < size * inner; i += inner) {
            const VEC v = exponential(v_load_mask(x + i, in) - top);
            if (!logs) v_store_mask(y + i, v, in);
            sum += v;
        }
        for (int l = 0; logs && l < LANES; l++) sum[l] = (T)log((double)sum[l]);
        for (int64_t i = n; logs && i < size * inner; i += inner) v_store_mask(y + i, v_load_mask(x + i, in) - top - sum, in);
        if (logs) continue;
        const VEC factor = 1 / sum;
        for (int64_t i = n; i < size * inner; i += inner) v_store_mask(y + i, v_load_mask(y + i, in) * factor, in);
    }
}

/* Along a piece of each row beside the others, whose neighbours stay in L1. */
static void local_beside(const pysim_rows *r, const T *x, T *y) {
    const int64_t inner = r->inner, before = pysim_min(r->size, (r->window - 1) / 2), behind = pysim_min(r->size, r->window / 2);
    const VEC epsilon = v_set1((T)r->epsilon), alpha = v_set1((T)r->alpha);
    for (int64_t piece = 0; piece < inner; piece += PIECE)
        for (int64_t i = 0; i < r->size; i++) {
            const int64_t first = pysim_max(0, i - before), end = pysim_min(r->size, i + behind + 1);
            for (int64_t n = piece; n < pysim_min(inner, piece + PIECE); n += LANES) {
                const MASK in = v_lanes(0, pysim_min(LANES, inner - n));
                VEC sum = v_zero();
                for (int64_t j = first; j < end; j++) {
                    const VEC v = v_load_mask(x + j * inner + n, in);
                    sum = v_fused(v, v, sum);
                }
                v_store_mask(y + i * inner + n, v_load_mask(x + i * inner + n, in) * power(v_fused(alpha, sum, epsilon), (T)-r->beta), in);
            }
        }
}

/* Layer norms. Each step is done for a few rows that stay in L1, since a row's own steps wait for each other: 3,136 rows of 32 take 0.64 of the
 * time so. */
static void standard_rows(const pysim_rows *r, const T *x, const T *scale, const T *shift, T *y) {
    enum { ROWS_TOGETHER = 8 };
    const int64_t size = r->size, together = pysim_max(1, pysim_min(ROWS_TOGETHER, BLOCK / size));
    for (int64_t first = 0; first < r->rows; first += together) {
        const int64_t rows = pysim_min(together, r->rows - first);
        T mean[ROWS_TOGETHER], factor[ROWS_TOGETHER];
        for (int64_t k = 0; k < rows; k++) mean[k] = row_over(ELEMENT, x + (first + k) * size, size, 0) / (T)size;
        for (int64_t k = 0; k < rows; k++) factor[k] = row_over(SQUARE, x + (first + k) * size, size, mean[k]) / (T)size;
        for (int64_t k = 0; k < rows; k++) factor[k] = (T)(1 / sqrt(factor[k] + r->epsilon));
        for (int64_t k = 0; k < rows; k++) row_line(x + (first + k) * size, size, mean[k], factor[k], scale, shift, y + (first + k) * size);
    }
}

/* Of `vectors` vectors of rows beside each other, or of the lanes `in` of one. */
INLINE void standard_columns(const int vectors, const pysim_rows *r, const T *x, const T *scale, const T *shift, T *y, MASK in) {
    const VEC size = v_set1((T)r->size);
    VEC mean[TOGETHER], factor[TOGETHER];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++) mean[v] = factor[v] = v_zero();
    for (int64_t i = 0; i < r->size; i++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) mean[v] += v_load_mask(x + i * r->inner + v * LANES, in);
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++) mean[v] /= size;
    for (int64_t i = 0; i < r->size; i++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            const VEC apart = v_load_mask(x + i * r->inner + v * LANES, in) - mean[v];
            factor[v] = v_fused(apart, apart, factor[v]);
        }
    for (int v = 0; v < vectors; v++)
        for (int l = 0; l < LANES; l++) factor[v][l] = (T)(1 / sqrt(factor[v][l] / (T)r->size + r->epsilon));
    for (int64_t i = 0; i < r->size; i++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            VEC one = (v_load_mask(x + i * r->inner + v * LANES, in) - mean[v]) * factor[v];
            if (scale) one *= v_set1(scale[i]);
            if (shift) one += v_set1(shift[i]);
            v_store_mask(y + i * r->inner + v * LANES, one, in);
        }
}

static void standard_beside(const pysim_rows *r, const T *x, const T *scale, const T *shift, T *y) {
    for (int64_t k = 0; k < r->rows; k++, x += r->size * r->inner, y += r->size * r->inner) {
        int64_t n = 0;
        for (; n + TOGETHER * LANES <= r->inner; n += TOGETHER * LANES)
            standard_columns(TOGETHER, r, x + n, scale, shift, y + n, v_lanes(0, LANES));
        for (; n < r->inner; n += LANES) standard_columns(1, r, x + n, scale, shift, y + n, v_lanes(0, pysim_min(LANES, r->inner - n)));
    }
}

static void rows_of(const pysim_rows *r, const void *from, const void *scale, const void *shift, void *to) {
    const int64_t step = r->size * r->inner;
    const T *x = from;
    T *y = to;
    if (r->kind == PYSIM_ROWS_STANDARD) {
        if (r->inner == 1) standard_rows(r, x, scale, shift, y);
        else standard_beside(r, x, scale, shift, y);
        return;
    }
    for (int64_t k = 0; k < r->rows; k++, x += step) {
        switch (r->kind) {
        case PYSIM_ROWS_LENGTH: y[k] = (T)sqrt(row_over(SQUARE, x, r->size, 0)); break;
        case PYSIM_ROWS_LOCAL: local_beside(r, x, y + k * step); break;
        case PYSIM_ROWS_SOFTMAX:
            if (r->inner == 1) softmax_row(x, r->size, y + k * step);
            else softmax_beside(0, r->size, r->inner, x, y + k * step);
            break;
        case PYSIM_ROWS_LOG_SOFTMAX:
            if (r->inner == 1) log_softmax_row(x, r->size, y + k * step);
            else softmax_beside(1, r->size, r->inner, x, y + k * step);
            break;
        default: break;
        }
    }
}

/* ---- rows of a table ---- */

/* Offset of the row that an index selects. */
INLINE const T *row_at(const pysim_take *t, const T *x, int64_t at) { return x + (at < 0 ? at + t->size : at) * t->inner; }

/* y[i] = sum over taps of shares[tap] row[tap][i], of constant taps, or of as many as there are (0). */
INLINE void blend_row(const int taps, const pysim_take *t, const T *x, const int64_t *at, const T *shares, T *y) {
    const int64_t count = taps ? taps : t->taps;
    for (int64_t i = 0; i < t->inner; i++) {
        T sum = 0;
#pragma GCC unroll 4
        for (int64_t tap = 0; tap < count; tap++) sum += shares[tap * t->count] * row_at(t, x, at[tap * t->count])[i];
        y[i] = sum;
    }
}

/* Elements with an index each. Returns the next indices. */
INLINE const int64_t *take_each(const pysim_take *t, const T *x, const int64_t *at, T *y) {
    for (int64_t n = 0; n < t->inner; n++) y[n] = x[(at[n] < 0 ? at[n] + t->size : at[n]) * t->inner + n];
    return at + t->inner;
}

static void take_rows(const pysim_take *t, const void *from, const int64_t *at, const void *given, void *to) {
    const T *x = from, *shares = given;
    T *y = to;
    for (int64_t o = 0; o < t->outer; o++, x += t->size * t->inner)
        for (int64_t i = 0; i < t->count; i++, y += t->inner) {
            if (!shares && !t->taps) at = take_each(t, x, at, y);
            else if (!shares && t->inner == 1) *y = *row_at(t, x, at[i]);
            else if (!shares) memcpy(y, row_at(t, x, at[i]), (size_t)t->inner * sizeof(T));
            else if (t->taps == 2) blend_row(2, t, x, at + i, shares + i, y);
            else if (t->taps == 4) blend_row(4, t, x, at + i, shares + i, y);
            else blend_row(0, t, x, at + i, shares + i, y);
        }
}

/* ---- rows that are columns ---- */

#include "transpose.h"

/* A block at an edge: `rows` of y, `columns` of it. */
static void turn_edge(const T *x, int64_t column_from, int64_t rows, int64_t columns, T *y, int64_t row_to) {
    VEC r[LANES];
    const MASK read = v_lanes(0, rows), written = v_lanes(0, columns);
#pragma GCC unroll 16
    for (int l = 0; l < LANES; l++) r[l] = l < columns ? v_load_mask(x + l * column_from, read) : v_zero();
    transpose(r);
#pragma GCC unroll 16
    for (int l = 0; l < LANES; l++)
        if (l < rows) v_store_mask(y + l * row_to, r[l], written);
}

/* Block by block, along rows of y, which are written line by line. */
static void transpose_rows(const void *from, int64_t column_from, int64_t rows, int64_t columns, void *to, int64_t row_to) {
    const T *x = from;
    T *y = to;
    int64_t apart[LANES];
    for (int l = 0; l < LANES; l++) apart[l] = l * column_from;
    for (int64_t i = 0; i < rows; i += LANES)
        for (int64_t c = 0; c < columns; c += LANES) {
            const T *block = x + c * column_from + i;
            T *there = y + i * row_to + c;
            if (rows - i < LANES || columns - c < LANES) {
                turn_edge(block, column_from, pysim_min(LANES, rows - i), pysim_min(LANES, columns - c), there, row_to);
                continue;
            }
            VEC r[LANES];
            v_load_columns(r, block, apart);
#pragma GCC unroll 16
            for (int l = 0; l < LANES; l++) v_store(there + l * row_to, r[l]);
        }
}
