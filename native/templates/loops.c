/* SPDX-License-Identifier: Apache-2.0
 * The loops of operators/loops.h, the lines of loops.inc. No product and sum is contracted to a multiply-add, and sums along rows have a fixed
 * number of partial sums, so that results do not depend on the vectors (docs/reproducible.md). */
#include <string.h>

#include "operators/loops.h"
#include "instance.h"
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

#include "activations.h"

/* Partial sums along a row, as many as the widest vector has lanes, and their vectors. */
enum { SUMS = 16, PARTS = SUMS / LANES };

/* In elements: a piece that stays in L1, a pool's row buffer, its slack, the prefetch distance. */
enum { PIECE = 1024, BLOCK = 2048, SLACK = 4 * LANES, AHEAD = 1024 };

#include "loops/blocks.h"
#include "loops/pairs.h"

INLINE VEC combined(const int largest, VEC a, VEC b) { return largest ? v_larger(a, b) : v_add(a, b); }

/* Of one vector: lane l with lane l + LANES / 2, and so on. Folds along rows have the same tree. */
INLINE NUMBER across(const int largest, VEC v) {
#pragma GCC unroll 4
    for (int n = LANES; n > 1; n /= 2) v = combined(largest, v_interleave_low(v, v), v_interleave_high(v, v));
    return v[0];
}

/* The maximum of SUMS partial results, or their sum: that of l with that of l + SUMS / 2, and so on, whatever the width of a vector. */
INLINE NUMBER across_parts(const int largest, VEC part[PARTS]) {
#pragma GCC unroll 4
    for (int n = PARTS / 2; n > 0; n /= 2)
#pragma GCC unroll 8
        for (int v = 0; v < n; v++) part[v] = combined(largest, part[v], part[v + n]);
    return across(largest, part[0]);
}

#ifdef STORED_NARROW
static void pool_planes(const pysim_pool *p, const void *from, void *to) { pool_blocks(p, from, to); }

static void widen_values(const void *from, int64_t count, void *to) {
    const T *x = from;
    NUMBER *y = to;
    const int64_t whole = count / LANES * LANES;
    const MASK rest = v_lanes(0, count - whole);
    for (int64_t i = 0; i < whole; i += LANES) v_store_numbers(y + i, v_load(x + i));
    if (whole < count) v_store_numbers_mask(y + whole, v_load_mask(x + whole, rest), rest);
}

static void narrow_values(const void *from, int64_t count, void *to) {
    const NUMBER *x = from;
    T *y = to;
    const int64_t whole = count / LANES * LANES;
    const MASK rest = v_lanes(0, count - whole);
    for (int64_t i = 0; i < whole; i += LANES) v_store(y + i, v_load_numbers(x + i));
    if (whole < count) v_store_mask(y + whole, v_load_numbers_mask(x + whole, rest), rest);
}

#include "loops_attention.h"

#define DEFINED(target, dtype)                                                        \
    const pysim_loops pysim_loops_##dtype##__##target = {.finish = finish_rows,       \
                                                         .map = map_planes,           \
                                                         .pool = pool_planes,         \
                                                         .pair = pair_arrays,         \
                                                         .attention = attention_rows, \
                                                         .widen = widen_values,       \
                                                         .narrow = narrow_values};
#else
#if DOUBLE
#define ROUND_ROWS NULL, NULL
#define FEW_BITS NULL, NULL, NULL, NULL
#else
#include "loops/rounding.h"
#include "loops/few_bits.h"
#include "loops/few_bytes.h"
#define ROUND_ROWS round_rows, shift_rows
#define FEW_BITS few_bits_panels, round_blocks, few_bytes_panels, byte_softmax_rows
#endif

/* ---- sums of integers ---- */

/* `step`: 1 if scales are of windows. Adding and subtracting 1.5 * 2^23 rounds numbers within 2^22 to whole ones, half to even. */
INLINE void rescale_row(const pysim_rescale *r, const int32_t *sums, const float *scales, const int64_t step, const int32_t result,
                        void *out, int64_t windows) {
    const float whole = 12582912.0F;
    const float low = r->low, high = r->high;
    float *floats = out;
    uint8_t *bytes = out;
    for (int64_t i = 0; i < windows; i++) {
        const float x = (float)sums[i] * scales[step * i], y = x < low ? low : x > high ? high : x;
        if (result == PYSIM_F32) floats[i] = y;
        else bytes[i] = (uint8_t)((int32_t)((y + whole) - whole) + r->zero);
    }
}

static void rescale(const pysim_rescale *r, const int32_t *sums, int64_t sums_pitch, int64_t f0, int64_t w0, void *to, int64_t pitch,
                    int64_t filters, int64_t windows) {
    char *out = to;
    const int64_t bytes = r->result == PYSIM_F32 ? (int64_t)sizeof(float) : 1;
    const float *scales = r->scales + f0 * r->filter_step + w0 * r->window_step;
    for (int64_t f = 0; f < filters; f++, sums += sums_pitch, out += pitch * bytes, scales += r->filter_step) {
        if (r->result == PYSIM_F32 && r->window_step) rescale_row(r, sums, scales, 1, PYSIM_F32, out, windows);
        else if (r->result == PYSIM_F32) rescale_row(r, sums, scales, 0, PYSIM_F32, out, windows);
        else if (r->result == PYSIM_U8 && r->window_step) rescale_row(r, sums, scales, 1, PYSIM_U8, out, windows);
        else if (r->result == PYSIM_U8) rescale_row(r, sums, scales, 0, PYSIM_U8, out, windows);
        else if (r->window_step) rescale_row(r, sums, scales, 1, PYSIM_S8, out, windows);
        else rescale_row(r, sums, scales, 0, PYSIM_S8, out, windows);
    }
}

/* ---- rows to one number ---- */

/* The first `count` lanes of v and the other lanes of `rest`. */
INLINE VEC first_lanes(VEC v, int64_t count, VEC rest) {
    VEC number;
    for (int i = 0; i < LANES; i++) number[i] = (T)i;
    const BITS first = (BITS)(number < v_set1((T)count));
    return (VEC)((first & (BITS)v) | (~first & (BITS)rest));
}

/* What a row is reduced to: the sum of its elements, of their squares about the mean, or the maximum. */
enum { ELEMENT, SQUARE, LARGEST };

INLINE T row_over(const int what, const T *x, int64_t size, T mean) {
    const VEC least = v_set1(what == LARGEST ? -(T)__builtin_inf() : 0), middle = v_set1(mean);
    VEC found[PARTS];
#pragma GCC unroll 8
    for (int p = 0; p < PARTS; p++) found[p] = least;
    int64_t i = 0;
    for (; i + SUMS <= size; i += SUMS)
#pragma GCC unroll 8
        for (int p = 0; p < PARTS; p++) {
            VEC v = v_load(x + i + p * LANES);
            if (what == SQUARE) v = (v - middle) * (v - middle);
            found[p] = combined(what == LARGEST, found[p], v);
        }
#pragma GCC unroll 8
    for (int p = 0; p < PARTS; p++, i += LANES) {
        if (i >= size) break;
        const int64_t count = pysim_min(LANES, size - i);
        VEC v = v_load_mask(x + i, v_lanes(0, count));
        if (what == SQUARE) v = (v - middle) * (v - middle);
        if (what != ELEMENT) v = first_lanes(v, count, least); /* the others are 0 */
        found[p] = combined(what == LARGEST, found[p], v);
    }
    return across_parts(what == LARGEST, found);
}

/* ---- pools of planes ---- */

INLINE T larger(T a, T b) { return (b > a) | (b != b) ? b : a; } /* NaN wins */

/* Output columns [q0, q0 + count). Their windows cover the input columns x0 .. x0 + wide - 1, of which [lo, hi) are inside the plane. */
typedef struct {
    int64_t q0, count, x0, wide, lo, hi;
    T counted[BLOCK + LANES]; /* taps per window that a mean divides by */
} strip;

static void strip_of(const pysim_pool *p, int64_t q0, int64_t count, strip *s) {
    s->q0 = q0, s->count = count, s->x0 = q0 * p->stride_w - p->pad_left;
    s->wide = extent(count, p->stride_w, p->kernel_w, p->dilation_w);
    s->lo = pysim_min(s->wide, pysim_max(0, -s->x0)), s->hi = pysim_max(s->lo, pysim_min(s->wide, p->width - s->x0));
    for (int64_t i = 0; i < count + LANES && !p->largest; i++)
        s->counted[i] = i < count ? (T)counted_columns(p, s->x0 + i * p->stride_w) : 1;
}

/* Number of taps along an axis: the constant `edge` (2 or 3, no dilation), or if that is 0 the pool's own. */
INLINE int64_t taps_of(const int edge, int64_t taps) { return edge ? edge : taps; }

/* Reduces the taps of a column, `step` elements apart, for a vector of columns. */
INLINE VEC pool_taps(const int largest, const T *x, int64_t taps, int64_t step, const int masked, MASK inside) {
    VEC v = masked ? v_load_mask(x, inside) : v_load(x);
#pragma GCC unroll 3
    for (int64_t tap = 1; tap < taps; tap++)
        v = combined(largest, v, masked ? v_load_mask(x + tap * step, inside) : v_load(x + tap * step));
    return v;
}

/* Reduces the taps of each input column for a row of windows that starts at row y0; columns outside the plane become `empty`. Prefetches
 * AHEAD. */
INLINE void pool_down(const int largest, const int edge, const pysim_pool *p, const strip *s, const T *plane, int64_t y0, T *down) {
    const T empty = largest ? -(T)__builtin_inf() : 0;
    const int64_t inside = taps_inside(y0, p->height, p->kernel_h, p->dilation_h), step = p->dilation_h * p->width;
    const int64_t first = y0 < 0 ? y0 + (p->dilation_h - 1 - y0) / p->dilation_h * p->dilation_h : y0;
    const int64_t hi = inside ? s->hi : s->lo, whole = s->lo + (hi - s->lo) / LANES * LANES;
    const T *x = plane + first * p->width + s->x0;
    for (int64_t i = 0; i < s->lo; i++) down[i] = empty;
    if (inside == p->kernel_h)
        for (int64_t i = s->lo; i < whole; i += LANES) {
            for (int64_t r = 1; r <= p->stride_h; r++) __builtin_prefetch(x + i + (p->kernel_h - r) * step + AHEAD);
            v_store(down + i, pool_taps(largest, x + i, taps_of(edge, p->kernel_h), step, 0, v_lanes(0, LANES)));
        }
    else
        for (int64_t i = s->lo; i < whole; i += LANES) v_store(down + i, pool_taps(largest, x + i, inside, step, 0, v_lanes(0, LANES)));
    if (whole < hi) v_store(down + whole, pool_taps(largest, x + whole, inside, step, 1, v_lanes(0, hi - whole)));
    for (int64_t i = hi; i < s->wide; i++) down[i] = empty;
}

/* Reduces the taps along a row that pool_down has made, for strides 1 and 2. For stride 2, even and odd columns are separated from a
 * pair of vectors; they are two neighbouring taps. */
INLINE VEC pool_along(const int largest, const int stride, const int edge, const pysim_pool *p, const T *down) {
    const int64_t taps = taps_of(edge, p->kernel_w), step = edge ? 1 : p->dilation_w;
    if (stride == 1) return pool_taps(largest, down, taps, step, 0, v_lanes(0, LANES));
    const int pairs = step == 1;
    VEC low = v_load(down), high = v_load(down + LANES), v = v_even(low, high);
    if (pairs && taps > 1) v = combined(largest, v, v_odd(low, high));
#pragma GCC unroll 3
    for (int64_t tap = 1 + pairs; tap < taps; tap += 1 + pairs) {
        low = v_load(down + tap * step), high = v_load(down + tap * step + LANES);
        v = combined(largest, v, v_even(low, high));
        if (pairs && tap + 1 < taps) v = combined(largest, v, v_odd(low, high));
    }
    return v;
}

static T pool_column(const pysim_pool *p, const T *down) {
    T value = down[0];
    for (int64_t tap = 1; tap < p->kernel_w; tap++)
        value = p->largest ? larger(value, down[tap * p->dilation_w]) : value + down[tap * p->dilation_w];
    return value;
}

/* One output row of a strip, from the row that pool_down has made. */
INLINE void pool_row(const int largest, const int stride, const int edge, const pysim_pool *p, const strip *s, int64_t row, const T *down,
                     T *out) {
    const int64_t whole = s->count / LANES * LANES;
    const MASK rest = v_lanes(0, s->count - whole);
    const T rows = largest ? 1 : (T)counted_rows(p, row * p->stride_h - p->pad_top);
    for (int64_t i = 0; stride && i < s->count; i += LANES) {
        VEC v = pool_along(largest, stride, edge, p, down + i * stride);
        if (!largest) v /= v_set1(rows) * v_load(s->counted + i);
        if (i < whole) v_store(out + i, v);
        else v_store_mask(out + i, v, rest);
    }
    for (int64_t i = 0; !stride && i < s->count; i++) {
        const T value = pool_column(p, down + i * p->stride_w);
        out[i] = largest ? value : value / (rows * s->counted[i]);
    }
}

/* A strip of outputs, some rows at a time, because a load that overlaps several recent narrower stores would stall (no store
 * forwarding). */
INLINE void pool_strip(const int largest, const int stride, const int edge, const pysim_pool *p, const strip *s, const T *plane, T *down,
                       T *out) {
    const int64_t most = BLOCK / s->wide;
    for (int64_t first = 0; first < p->out_h; first += most) {
        const int64_t end = pysim_min(p->out_h, first + most);
        for (int64_t row = first; row < end; row++)
            pool_down(largest, edge, p, s, plane, row * p->stride_h - p->pad_top, down + (row - first) * s->wide);
        for (int64_t row = first; row < end; row++)
            pool_row(largest, stride, edge, p, s, row, down + (row - first) * s->wide, out + row * p->out_w);
    }
}

/* Instances with constants: maximum or mean, the stride (0: any), the window's edge (0: any). */
static void pool_plane(const pysim_pool *p, const strip *s, const T *plane, T *down, T *out) {
    const int small = p->kernel_h == p->kernel_w && p->kernel_h >= 2 && p->kernel_h <= 3 && p->dilation_h == 1 && p->dilation_w == 1;
    const int stride = p->stride_w <= 2 ? (int)p->stride_w : 0, edge = small && stride ? (int)p->kernel_h : 0;
#define PYSIM_POOL(l, st, e) \
    if ((p->largest != 0) == l && stride == st && edge == e) pool_strip(l, st, e, p, s, plane, down, out)
    PYSIM_POOL(0, 0, 0);
    PYSIM_POOL(0, 1, 0);
    PYSIM_POOL(0, 1, 2);
    PYSIM_POOL(0, 1, 3);
    PYSIM_POOL(0, 2, 0);
    PYSIM_POOL(0, 2, 2);
    PYSIM_POOL(0, 2, 3);
    PYSIM_POOL(1, 0, 0);
    PYSIM_POOL(1, 1, 0);
    PYSIM_POOL(1, 1, 2);
    PYSIM_POOL(1, 1, 3);
    PYSIM_POOL(1, 2, 0);
    PYSIM_POOL(1, 2, 2);
    PYSIM_POOL(1, 2, 3);
#undef PYSIM_POOL
}

/* One output, tap by tap: for windows too wide for a strip's row buffer. */
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
    return p->largest ? value : value / (T)(counted_rows(p, y0) * counted_columns(p, x0));
}

static void pool_planes(const pysim_pool *p, const void *from, void *to) {
    const T *x = from;
    T *y = to;
    if (p->block > 1) {
        pool_blocks(p, x, y);
        return;
    }
    const int64_t in = p->height * p->width, out = p->out_h * p->out_w, left = BLOCK - extent(1, p->stride_w, p->kernel_w, p->dilation_w);
    const int is_mean = is_mean_of_planes(p);
    for (int64_t k = 0; is_mean && k < p->planes; k++) y[k] = row_over(ELEMENT, x + k * in, in, 0) / (T)in;
    for (int64_t k = 0; left < 0 && !is_mean && k < p->planes; k++)
        for (int64_t i = 0; i < out; i++) y[k * out + i] = pool_window(p, x + k * in, i / p->out_w, i % p->out_w);
    if (is_mean || left < 0) return;
    strip s;
    T down[BLOCK + SLACK] = {0}; /* of some rows; the slack behind them is read but not used */
    for (int64_t q0 = 0; q0 < p->out_w; q0 += s.count) {
        strip_of(p, q0, pysim_min(p->out_w - q0, left / p->stride_w + 1), &s);
        for (int64_t k = 0; k < p->planes; k++) pool_plane(p, &s, x + k * in, down, y + k * out + q0);
    }
}

#include "loops_arrays.h"
#include "loops_attention.h"
#include "loops_along.h"
#include "loops_recurrent.h"
#include "loops_sample.h"
#if !DOUBLE
#include "loops/byte_softmax.h"
#endif
#include "algorithms/strassen/quarters.h"

#define DEFINED(target, dtype)                                                                                           \
    const pysim_loops pysim_loops_##dtype##__##target = {                                                                \
        rescale,   finish_rows,      ROUND_ROWS,          map_planes,   pool_planes,     pair_arrays,   rows_of,         \
        take_rows, transpose_rows,   attention_rows,      fold_axis,    best_of_rows,    sample_images, recurrent_steps, \
        FEW_BITS,  sums_of_quarters, results_of_products, widen_halves, narrow_to_halves};
#endif

#ifdef ROUNDED_ONCE
const pysim_loops pysim_loops_rounded_once = {.finish = finish_rows, .rounded = round_rows, .rows = rows_of, .attention = attention_rows};
#else
#define PYSIM_LOOPS(target, dtype) MINE(target, dtype, DEFINED)(target, dtype)
#include "loops.inc"
#endif
