/* SPDX-License-Identifier: Apache-2.0
 * Loops over values of any T, in channel blocks or element by element: epilogues, maps, pools of blocks, pairs. Included by loops.c. */

/* ---- epilogues ---- */

/* `activation` and `n` are constants. */
INLINE void finish_vectors(const int activation, const int n, VEC low, VEC high, T *out, const T *residual) {
    VEC x[TOGETHER];
#pragma GCC unroll 4
    for (int v = 0; v < n; v++) {
        x[v] = v_load(out + v * LANES);
        if (residual) x[v] += v_load(residual + v * LANES);
    }
    activated(activation, low, high, n, x);
#pragma GCC unroll 4
    for (int v = 0; v < n; v++) v_store(out + v * LANES, x[v]);
}

/* `activation` is a constant; rows may end within a vector. */
INLINE void finish_as(const int activation, VEC low, VEC high, T *out, const T *residual, int64_t pitch, int64_t rows, int64_t columns) {
    const int64_t whole = columns / LANES * LANES;
    const MASK rest = v_lanes(0, columns - whole);
    for (int64_t r = 0; r < rows; r++, out += pitch, residual += residual ? pitch : 0) {
        int64_t i = 0;
        for (; i + TOGETHER * LANES <= whole; i += TOGETHER * LANES)
            finish_vectors(activation, TOGETHER, low, high, out + i, residual ? residual + i : NULL);
        for (; i < whole; i += LANES) finish_vectors(activation, 1, low, high, out + i, residual ? residual + i : NULL);
        if (whole == columns) continue;
        VEC x = v_load_mask(out + whole, rest);
        if (residual) x += v_load_mask(residual + whole, rest);
        activated(activation, low, high, 1, &x);
        v_store_mask(out + whole, x, rest);
    }
}

static void finish_rows(const pysim_finish *f, void *to, int64_t pitch, int64_t rows, int64_t columns) {
    const int is_relu = f->activation == PYSIM_EPILOGUE_relu;
    const VEC low = v_set1(is_relu ? 0 : (NUMBER)f->low), high = v_set1(is_relu ? (NUMBER)__builtin_inf() : (NUMBER)f->high);
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

/* The product is rounded before the sum. */
INLINE VEC mapped(VEC x, VEC scale, VEC shift) { return v_add(v_mul(scale, x), shift); }

static void map_piece(const T *x, NUMBER scale, NUMBER shift, int64_t count, T *y) {
    const VEC factor = v_set1(scale), term = v_set1(shift);
    const int64_t whole = count / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES) v_store(y + i, mapped(v_load(x + i), factor, term));
    if (whole == count) return;
    const MASK rest = v_lanes(0, count - whole);
    v_store_mask(y + whole, mapped(v_load_mask(x + whole, rest), factor, term), rest);
}

/* Pixels in channel blocks, each multiplied by the block's scales. */
static void map_pixels(const T *x, const NUMBER *scale, const NUMBER *shift, int64_t block, int64_t count, T *y) {
    for (int64_t l = 0; l < block; l += LANES) {
        const MASK in = v_lanes(0, block - l);
        const VEC factor = scale ? v_load_numbers_mask(scale + l, in) : v_set1(1);
        const VEC term = shift ? v_load_numbers_mask(shift + l, in) : v_zero();
        for (int64_t i = l; i < count * block; i += block) v_store_mask(y + i, mapped(v_load_mask(x + i, in), factor, term), in);
    }
}

static void map_planes(const pysim_map *m, const pysim_finish *f, const void *from, const void *scales, const void *shifts, void *to) {
    const T *x = from;
    const NUMBER *scale = scales, *shift = shifts;
    T *y = to;
    const int copies = !scale && !shift;
    const int64_t block = pysim_max(1, m->block), size = m->size * block, piece = pysim_max(1, PIECE / block) * block;
    for (int64_t k = 0; k < m->planes; k += block)
        for (int64_t i = 0; i < size; i += piece) {
            const int64_t count = pysim_min(piece, size - i), at = k * m->size + i, first = k % m->period;
            if (!copies && block > 1)
                map_pixels(x + at, scale ? scale + first : NULL, shift ? shift + first : NULL, block, count / block, y + at);
            else if (!copies) map_piece(x + at, scale ? scale[first] : 1, shift ? shift[first] : 0, count, y + at);
            else if (x != y) memcpy(y + at, x + at, (size_t)count * sizeof(T));
            pysim_finish_rows(f, y + at, count, 1, count);
        }
}

/* ---- pools of blocks ---- */

/* Rows or columns that `windows` neighbouring windows cover. */
INLINE int64_t extent(int64_t windows, int64_t stride, int64_t kernel, int64_t dilation) {
    return (windows - 1) * stride + dilation * (kernel - 1) + 1;
}

/* Number of taps of a window at `at` that are inside [0, size). */
INLINE int64_t taps_inside(int64_t at, int64_t size, int64_t kernel, int64_t dilation) {
    if (at >= 0 && at + dilation * (kernel - 1) < size) return kernel;
    const int64_t first = at < 0 ? pysim_min(kernel, (dilation - 1 - at) / dilation) : 0;
    const int64_t last = at >= size ? 0 : pysim_min(kernel, (size - 1 - at) / dilation + 1);
    return pysim_max(0, last - first);
}

/* The number of taps that a mean divides by, for a window at row y or column x; 1 if no tap is inside the plane, so that the mean is 0. */
INLINE int64_t counted_rows(const pysim_pool *p, int64_t y) {
    const int64_t top = p->count_padding ? p->pad_top : 0, bottom = p->count_padding ? p->pad_bottom : 0;
    return pysim_max(1, taps_inside(y + top, p->height + top + bottom, p->kernel_h, p->dilation_h));
}
INLINE int64_t counted_columns(const pysim_pool *p, int64_t x) {
    const int64_t left = p->count_padding ? p->pad_left : 0, right = p->count_padding ? p->pad_right : 0;
    return pysim_max(1, taps_inside(x + left, p->width + left + right, p->kernel_w, p->dilation_w));
}

/* First tap of a window at `at` that is not before the image. */
INLINE int64_t first_inside(int64_t at, int64_t kernel, int64_t dilation) {
    return at < 0 ? pysim_min(kernel, (dilation - 1 - at) / dilation) : 0;
}

/* One output pixel in channel blocks: each tap is one vector, masked by `in`. The vector maximum drops NaNs, so they are collected
 * apart; a true comparison sets all bits, which is a NaN. Prefetches data that no earlier window has read. */
INLINE void pool_pixel(const int largest, const MASK in, int64_t block, const pysim_pool *p, const T *x, int64_t y0, int64_t x0, T *out) {
    const int64_t r0 = first_inside(y0, p->kernel_h, p->dilation_h), rows = taps_inside(y0, p->height, p->kernel_h, p->dilation_h);
    const int64_t s0 = first_inside(x0, p->kernel_w, p->dilation_w), taps = taps_inside(x0, p->width, p->kernel_w, p->dilation_w);
    const VEC infinite = v_set1((NUMBER)__builtin_inf());
    VEC found = largest ? -infinite : v_zero();
    __typeof__(found != found) not_numbers = found != found;
    for (int64_t r = r0; r < r0 + rows; r++) {
        const T *from = x + ((y0 + r * p->dilation_h) * p->width + x0 + s0 * p->dilation_w) * block;
        for (int64_t s = 0; s < taps; s++, from += p->dilation_w * block) {
            const VEC one = v_load_mask(from, in);
            if (p->kernel_h - r <= p->stride_h && p->kernel_w - s <= p->stride_w) __builtin_prefetch(from + AHEAD);
            if (largest) {
                found = v_between(found, infinite, one);
                not_numbers |= one != one;
            } else found += one;
        }
    }
    if (largest) found = (VEC)((__typeof__(not_numbers))found | not_numbers);
    else found /= v_set1((NUMBER)(counted_rows(p, y0) * counted_columns(p, x0)));
    v_store_mask(out, found, in);
}

/* Whether a pool is the mean of whole planes. */
static int is_mean_of_planes(const pysim_pool *p) {
    return !p->largest && p->out_h == 1 && p->out_w == 1 && p->kernel_h == p->height && p->kernel_w == p->width &&
           !(p->pad_top | p->pad_left) && p->dilation_h == 1 && p->dilation_w == 1;
}

/* The mean of whole planes in channel blocks. MEAN_SUMS sums: each addition to a single one would wait for the one
 * before. */
enum { MEAN_SUMS = 8 };
INLINE void mean_of_blocks(const MASK in, int64_t block, int64_t pixels, const T *x, T *out) {
    VEC sum[MEAN_SUMS];
#pragma GCC unroll 8
    for (int j = 0; j < MEAN_SUMS; j++) sum[j] = v_zero();
    int64_t i = 0;
    for (; i + MEAN_SUMS <= pixels; i += MEAN_SUMS, x += MEAN_SUMS * block)
#pragma GCC unroll 8
        for (int j = 0; j < MEAN_SUMS; j++) sum[j] += v_load_mask(x + j * block, in);
    for (; i < pixels; i++, x += block) sum[0] += v_load_mask(x, in);
#pragma GCC unroll 3
    for (int n = MEAN_SUMS / 2; n > 0; n /= 2)
#pragma GCC unroll 4
        for (int j = 0; j < n; j++) sum[j] += sum[j + n];
    v_store_mask(out, sum[0] / v_set1((NUMBER)pixels), in);
}

static void pool_blocks(const pysim_pool *p, const T *x, T *y) {
    const int64_t block = p->block, pixels = p->height * p->width;
    for (int64_t k = 0; k < p->planes && is_mean_of_planes(p); k += block, x += pixels * block, y += block)
        for (int64_t i = 0; i < block; i += LANES) mean_of_blocks(v_lanes(0, block - i), block, pixels, x + i, y + i);
    if (is_mean_of_planes(p)) return;
    for (int64_t k = 0; k < p->planes / block; k++, x += p->height * p->width * block)
        for (int64_t row = 0; row < p->out_h; row++)
            for (int64_t q = 0; q < p->out_w; q++, y += block)
                for (int64_t i = 0; i < block; i += LANES) {
                    const int64_t y0 = row * p->stride_h - p->pad_top, x0 = q * p->stride_w - p->pad_left;
                    if (p->largest) pool_pixel(1, v_lanes(0, block - i), block, p, x + i, y0, x0, y + i);
                    else pool_pixel(0, v_lanes(0, block - i), block, p, x + i, y0, x0, y + i);
                }
}
