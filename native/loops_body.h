/* SPDX-License-Identifier: Apache-2.0
 * The loops of loops.h for one type and target; included after loops.h and a vec_*.h, with DOUBLE (whether T is double) and TARGET_LOOPS, the
 * name to define. Maps and pools are plain C, which the compiler turns into vectors: no loop has a branch. */
#include <string.h>

#include "activations.h"

enum { PIECE = 1024, BLOCK = 2048, GROUP = 16 }; /* elements: what several passes go over in L1, a block of a pool, a few vectors */

/* ---- epilogues ---- */

/* Of a constant activation; rows need not be whole vectors. */
INLINE void finish_as(const int activation, VEC low, VEC high, T *out, const T *residual, int64_t pitch, int64_t rows, int64_t columns) {
    const int64_t whole = columns / LANES * LANES;
    const MASK rest = v_lanes(0, columns - whole);
    for (int64_t r = 0; r < rows; r++, out += pitch, residual += residual ? pitch : 0) {
        for (int64_t i = 0; i < whole; i += LANES) {
            VEC x = v_load(out + i);
            if (residual) x += v_load(residual + i);
            v_store(out + i, activated(activation, low, high, x));
        }
        if (whole == columns) continue;
        VEC x = v_load_mask(out + whole, rest);
        if (residual) x += v_load_mask(residual + whole, rest);
        v_store_mask(out + whole, activated(activation, low, high, x), rest);
    }
}

static void finish_rows(const pysim_finish *f, void *to, int64_t pitch, int64_t rows, int64_t columns) {
    const int is_relu = f->activation == PYSIM_EPILOGUE_relu;
    const VEC low = v_set1(is_relu ? 0 : (T)f->low), high = v_set1(is_relu ? (T)__builtin_inf() : (T)f->high);
    const T *residual = f->residual ? (const T *)(const void *)(f->residual + ((const char *)to - f->result)) : NULL;
    if (pitch == columns) columns *= rows, rows = 1;
    switch (f->activation) {
#define PYSIM_EPILOGUE(number, name, operations, function) \
    case number: finish_as(number, low, high, to, residual, pitch, rows, columns); break;
#include "epilogues.inc"
#undef PYSIM_EPILOGUE
    }
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

/* The taps of windows, x[i + tap step] for count windows that are neighbours, and for as many more as fill the last group: there is no rest. */
INLINE void combine(const int largest, int64_t taps, const T *restrict x, int64_t step, int64_t count, T *restrict into) {
    const int64_t whole = (count + GROUP - 1) / GROUP * GROUP;
    if (taps == 1) memcpy(into, x, (size_t)whole * sizeof(T));
    for (int64_t i = 0; taps > 1 && i < whole; i += GROUP)
        for (int j = 0; j < GROUP; j++) into[i + j] = largest ? larger(x[i + j], x[i + j + step]) : x[i + j] + x[i + j + step];
    for (int64_t tap = 2; tap < taps; tap++)
        for (int64_t i = 0; i < whole; i += GROUP)
            for (int j = 0; j < GROUP; j++)
                into[i + j] = largest ? larger(into[i + j], x[i + j + tap * step]) : into[i + j] + x[i + j + tap * step];
}

/* Taps of a window at `at` that lie in [0, size). */
INLINE int64_t taps_inside(int64_t at, int64_t size, int64_t kernel, int64_t dilation) {
    if (at >= 0 && at + dilation * (kernel - 1) < size) return kernel;
    const int64_t first = at < 0 ? pysim_min(kernel, (dilation - 1 - at) / dilation) : 0;
    const int64_t last = at >= size ? 0 : pysim_min(kernel, (size - 1 - at) / dilation + 1);
    return pysim_max(0, last - first);
}

/* How many taps of a window from row y or column x on a mean divides by. */
INLINE int64_t counted_rows(const pysim_pool *p, int64_t y) {
    if (p->count_padding) return taps_inside(y + p->pad_top, p->height + p->pad_top + p->pad_bottom, p->kernel_h, p->dilation_h);
    return taps_inside(y, p->height, p->kernel_h, p->dilation_h);
}
INLINE int64_t counted_columns(const pysim_pool *p, int64_t x) {
    if (p->count_padding) return taps_inside(x + p->pad_left, p->width + p->pad_left + p->pad_right, p->kernel_w, p->dilation_w);
    return taps_inside(x, p->width, p->kernel_w, p->dilation_w);
}

/* Outputs [row, row + rows) x [q0, q0 + count) of a plane. Their part of it, padding and all, lies as rows of whole groups of columns one
 * behind the other, so that down the columns and along the rows all go in long loops; what those make of the ends of rows is left out. */
INLINE void pool_block(const int largest, const pysim_pool *p, const T *plane, int64_t row, int64_t rows, int64_t q0, int64_t count, T *out) {
    const T empty = largest ? -(T)__builtin_inf() : 0;
    const int64_t wide = extent(count, p->stride_w, p->kernel_w, p->dilation_w), high = extent(rows, p->stride_h, p->kernel_h, p->dilation_h);
    const int64_t y0 = row * p->stride_h - p->pad_top, x0 = q0 * p->stride_w - p->pad_left;
    const int64_t lo = pysim_min(wide, pysim_max(0, -x0)), hi = pysim_max(lo, pysim_min(wide, p->width - x0));
    const int64_t pitch = (wide + GROUP - 1) / GROUP * GROUP;
    T in[BLOCK], down[BLOCK + GROUP], along[BLOCK + GROUP];
    for (int64_t r = 0; r < high; r++) {
        T *to = in + r * pitch;
        const int inside = y0 + r >= 0 && y0 + r < p->height;
        for (int64_t i = 0; i < (inside ? lo : pitch); i++) to[i] = empty;
        if (!inside) continue;
        memcpy(to + lo, plane + (y0 + r) * p->width + x0 + lo, (size_t)(hi - lo) * sizeof(T));
        for (int64_t i = hi; i < pitch; i++) to[i] = empty;
    }
    const int64_t together = p->stride_h == 1 ? rows : 1; /* rows that one loop goes over */
    for (int64_t r = 0; r < rows; r += together)
        combine(largest, p->kernel_h, in + r * p->stride_h * pitch, p->dilation_h * pitch, together * pitch, down + r * pitch);
    for (int i = 0; i < GROUP; i++) down[rows * pitch + i] = empty;
    T columns[BLOCK]; /* that windows are of */
    for (int64_t i = 0; !largest && i < count; i++) columns[i] = (T)counted_columns(p, x0 + i * p->stride_w);
    combine(largest, p->kernel_w, down, p->dilation_w, rows * pitch - p->dilation_w * (p->kernel_w - 1), along);
    for (int64_t r = 0; r < rows; r++, out += p->out_w) {
        const T *from = along + r * pitch;
        if (p->stride_w == 1)
            memcpy(out, from, (size_t)count * sizeof(T));
        else if (p->stride_w == 2)
            for (int64_t i = 0; i < count; i++) out[i] = from[2 * i];
        else
            for (int64_t i = 0; i < count; i++) out[i] = from[i * p->stride_w];
        const T counted = largest ? 1 : (T)counted_rows(p, y0 + r * p->stride_h);
        for (int64_t i = 0; !largest && i < count; i++) out[i] /= counted * columns[i];
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
    return p->largest ? value : value / (T)(counted_rows(p, y0) * counted_columns(p, x0));
}

/* The mean of a plane: lanes are summed in pairs. */
static T plane_mean(const T *x, int64_t count) {
    VEC sum = v_zero();
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) sum += v_load(x + i);
    if (i < count) sum += v_load_mask(x + i, v_lanes(0, count - i));
    T part[LANES];
    v_store(part, sum);
    for (int n = LANES / 2; n > 0; n /= 2)
        for (int j = 0; j < n; j++) part[j] += part[j + n];
    return part[0] / (T)count;
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

/* First tap of a window at `at` that is not in front of the image. */
INLINE int64_t first_inside(int64_t at, int64_t kernel, int64_t dilation) {
    return at < 0 ? pysim_min(kernel, (dilation - 1 - at) / dilation) : 0;
}

/* One output of a block: elements of a pixel lie together, so each tap is a vector for itself, or as much of one as `in` says. A NaN stays one:
 * the largest of vectors forgets it, and the bits of a true comparison are one. */
INLINE void pool_pixel(const int largest, const MASK in, int64_t block, const pysim_pool *p, const T *x, int64_t y0, int64_t x0, T *out) {
    const int64_t r0 = first_inside(y0, p->kernel_h, p->dilation_h), rows = taps_inside(y0, p->height, p->kernel_h, p->dilation_h);
    const int64_t s0 = first_inside(x0, p->kernel_w, p->dilation_w), taps = taps_inside(x0, p->width, p->kernel_w, p->dilation_w);
    const VEC infinite = v_set1((T)__builtin_inf());
    VEC found = largest ? -infinite : v_zero();
    __typeof__(found != found) not_numbers = found != found;
    for (int64_t r = r0; r < r0 + rows; r++) {
        const T *from = x + ((y0 + r * p->dilation_h) * p->width + x0 + s0 * p->dilation_w) * block;
        for (int64_t s = 0; s < taps; s++, from += p->dilation_w * block) {
            const VEC one = v_load_mask(from, in);
            if (largest) {
                found = v_between(found, infinite, one);
                not_numbers |= one != one;
            } else
                found += one;
        }
    }
    if (largest)
        found = (VEC)((__typeof__(not_numbers))found | not_numbers);
    else
        found /= v_set1((T)(counted_rows(p, y0) * counted_columns(p, x0)));
    v_store_mask(out, found, in);
}

static void pool_blocks(const pysim_pool *p, const T *x, T *y) {
    const int64_t block = p->block;
    for (int64_t k = 0; k < p->planes / block; k++, x += p->height * p->width * block)
        for (int64_t row = 0; row < p->out_h; row++)
            for (int64_t q = 0; q < p->out_w; q++, y += block)
                for (int64_t i = 0; i < block; i += LANES) {
                    const int64_t y0 = row * p->stride_h - p->pad_top, x0 = q * p->stride_w - p->pad_left;
                    if (p->largest)
                        pool_pixel(1, v_lanes(0, block - i), block, p, x + i, y0, x0, y + i);
                    else
                        pool_pixel(0, v_lanes(0, block - i), block, p, x + i, y0, x0, y + i);
                }
}

static void pool_planes(const pysim_pool *p, const void *from, void *to) {
    const T *x = from;
    T *y = to;
    if (p->block > 1) {
        pool_blocks(p, x, y);
        return;
    }
    const int is_mean = !p->largest && p->out_h == 1 && p->out_w == 1 && p->kernel_h == p->height && p->kernel_w == p->width &&
                        !(p->pad_top | p->pad_left) && p->dilation_h == 1 && p->dilation_w == 1;
    const int64_t row = BLOCK / extent(1, 1, p->kernel_h, p->dilation_h) / GROUP * GROUP; /* columns that a block can have */
    const int64_t columns = outputs_within(row, p->out_w, p->stride_w, p->kernel_w, p->dilation_w);
    const int64_t wide = columns ? (extent(columns, p->stride_w, p->kernel_w, p->dilation_w) + GROUP - 1) / GROUP * GROUP : 1;
    const int64_t rows = columns ? outputs_within(BLOCK / wide, p->out_h, p->stride_h, p->kernel_h, p->dilation_h) : 0;
    for (int64_t k = 0; k < p->planes; k++, x += p->height * p->width, y += p->out_h * p->out_w)
        if (is_mean)
            *y = plane_mean(x, p->height * p->width);
        else
            pool_plane(p, rows, rows ? columns : 1, x, y);
}

const pysim_loops TARGET_LOOPS = {finish_rows, map_planes, pool_planes};
