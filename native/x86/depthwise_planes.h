/* SPDX-License-Identifier: Apache-2.0
 * Form `planes` of depthwise.inc: lanes hold neighbouring groups of one channel each. Planes are transposed to [row][column][lane],
 * convolved with all lanes in use however short the rows are, and transposed back. Included once per vector type, after depthwise.h and
 * v_store_part, which stores one 128-bit part of a vector. */
#include "templates/transpose.h"

/* PART columns of LANES rows that are ld apart, transposed: 128-bit parts are loaded to their final place, which saves half of the shuffles. */
INLINE void load_transposed_part(const T *p, int64_t ld, VEC r[PART]) {
    VEC a[PART];
#pragma GCC unroll 4
    for (int i = 0; i < PART; i++) a[i] = v_parts(p + i * ld, PART * ld);
    transpose_parts(a, r);
}

INLINE void load_transposed(const T *p, int64_t ld, VEC r[LANES]) {
#pragma GCC unroll 8
    for (int part = 0; part < LANES; part += PART) load_transposed_part(p + part, ld, r + part);
}

/* The same for `rows` rows of `columns` elements, padded with zeros. */
INLINE void load_transposed_edge(const T *p, int64_t ld, int64_t rows, int64_t columns, VEC r[LANES]) {
    const MASK mask = v_lanes(0, columns);
#pragma GCC unroll 16
    for (int l = 0; l < LANES; l++) r[l] = l < rows ? v_load_mask(p + l * ld, mask) : v_zero();
    transpose(r);
}

/* Columns are transposed in whole blocks of LANES, and the rest in parts, of which the last one is moved back so that it is whole. */
INLINE int64_t columns_at(int64_t t, int64_t count) { return count - t >= LANES ? LANES : pysim_min(PART, count); }

/* Transposes in[lane][0..count) to out[0..count)[lane]; after every `width` columns a gap of `gap` vectors is left untouched. */
static void planes_to_lanes(const T *in, int64_t plane, int64_t lanes, int64_t count, int64_t width, int64_t gap, T *out) {
    int64_t x = 0;
    T *to = out;
    for (int64_t begin = 0, n; begin < count; begin += n) {
        n = columns_at(begin, count);
        const int64_t t = pysim_min(begin, count - n);
        VEC r[LANES];
        if (lanes < LANES || n < PART) load_transposed_edge(in + t, plane, lanes, n, r);
        else if (n < LANES) {
            load_transposed_part(in + t, plane, r);
#pragma GCC unroll 16
            for (int l = PART; l < LANES; l++) r[l] = r[0]; /* not stored; GCC would warn */
        } else load_transposed(in + t, plane, r);
        if (t != begin || begin == 0) {
            x = gap ? t % width : 0;
            to = out + (t + (gap ? t / width * gap : 0)) * LANES;
        }
#pragma GCC unroll 16
        for (int l = 0; l < LANES; l++) {
            if (l >= n) break;
            v_store(to, r[l]);
            to += LANES;
            if (gap && ++x == width) x = 0, to += gap * LANES;
        }
    }
}

/* Transposes in[0..count)[lane] to out[lane][0..count) and applies the bounds; this phase is limited by loads and shuffles, so the
 * comparisons are free. */
static void lanes_to_planes(const T *in, int64_t plane, int64_t lanes, int64_t count, pysim_bounds bounds, T *out) {
    const VEC low = v_set1((T)bounds.low), high = v_set1((T)bounds.high);
    for (int64_t begin = 0, n; begin < count; begin += n) {
        n = columns_at(begin, count);
        const int64_t t = pysim_min(begin, count - n);
        T *to = out + t;
        VEC r[LANES];
        if (lanes < LANES || n < PART) {
            const MASK mask = v_lanes(0, n);
            load_transposed_edge(in + t * LANES, LANES, n, LANES, r);
#pragma GCC unroll 16
            for (int l = 0; l < LANES; l++)
                if (l < lanes) v_store_mask(to + l * plane, v_between(low, high, r[l]), mask);
        } else if (n < LANES) {
            VEC a[PART];
#pragma GCC unroll 4
            for (int i = 0; i < PART; i++) a[i] = v_between(low, high, v_load(in + (t + i) * LANES));
            transpose_parts(a, r);
#pragma GCC unroll 16
            for (int l = 0; l < LANES; l++) v_store_part(to + l * plane, r[l % PART], l / PART);
        } else {
            load_transposed(in + t * LANES, LANES, r);
#pragma GCC unroll 16
            for (int l = 0; l < LANES; l++) v_store(to + l * plane, v_between(low, high, r[l]));
        }
    }
}

/* COLUMNS outputs of a row from kernel rows [r0, r1); `x` is the first column of row r0. KW (taps of a row) and SW (stride) are
 * constants, so that each column is loaded once for all outputs that read it; or 0. */
ONE_OF_MANY void planes_tile(const int KW, const int SW, const int COLUMNS, const TILES *t, const T *x, int64_t r0, int64_t r1, const T *w,
                             VEC bias, T *out) {
    VEC acc[MAX_FILTERS][MAX_ROWS];
#pragma GCC unroll 8
    for (int i = 0; i < COLUMNS; i++) acc[0][i] = v_zero();
    for (int64_t r = r0; r < r1; r++, x += t->step * LANES) {
        const T *weights = w + r * t->kernel_w * LANES;
        VEC weight[MAX_FILTERS][MAX_KR];
#pragma GCC unroll 7
        for (int s = 0; s < KW; s++) weight[0][s] = v_kept(v_load(weights + s * LANES));
        if (KW) {
#pragma GCC unroll 21
            for (int i = 0; i < (COLUMNS - 1) * SW + KW; i++) accumulate(KW, SW, COLUMNS, 1, i, v_kept(v_load(x + i * LANES)), weight, acc);
        }
        for (int64_t s = 0; !KW && s < t->kernel_w; s++) {
            const VEC one = v_load(weights + s * LANES);
#pragma GCC unroll 8
            for (int i = 0; i < COLUMNS; i++) acc[0][i] = v_fma(one, v_load(x + (s * t->dilation + i * t->stride) * LANES), acc[0][i]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < COLUMNS; i++) v_store(out + i * LANES, v_add(acc[0][i], bias));
}

/* Output rows of up to LANES groups of one channel and one filter; t->step: elements between kernel rows, t->pad: the row stride. */
INLINE void planes_rows(const int KW, const int SW, const TILES *t, int64_t columns, int64_t rows, const T *w, VEC bias) {
    const int64_t blocks = pysim_ceil_div(t->q, MAX_ROWS), least = t->q / blocks, more = t->q % blocks;
    int64_t y = t->y;
    T *to = t->out;
    for (int64_t p = 0; p < rows; p++, y += t->pad) {
        const int64_t r0 = y < 0 ? pysim_min(t->kernel_h, (t->dilation_h - 1 - y) / t->dilation_h) : 0;
        int64_t r1 = t->kernel_h;
        if (y + (t->kernel_h - 1) * t->dilation_h >= t->height)
            r1 = y >= t->height ? r0 : pysim_max(r0, (t->height - 1 - y) / t->dilation_h + 1);
        const T *x = t->x + (y + r0 * t->dilation_h) * columns * LANES;
        for (int64_t block = 0, wide; block < blocks; block++, x += wide * t->stride * LANES, to += wide * LANES) {
            wide = least + (block < more);
            switch (wide) {
#define PLANES_CASE(n) \
    case n: planes_tile(KW, SW, n, t, x, r0, r1, w, bias, to); break;
                PLANES_CASE(1) PLANES_CASE(2) PLANES_CASE(3) PLANES_CASE(4) PLANES_CASE(5) PLANES_CASE(6) PLANES_CASE(7) PLANES_CASE(8)
            }
        }
    }
}

#define PLANES_ROWS(KW, SW)                                                                                                              \
    static __attribute__((noinline)) void planes_rows_##KW##_##SW(const TILES *t, int64_t columns, int64_t rows, const T *w, VEC bias) { \
        planes_rows(KW, SW, t, columns, rows, w, bias);                                                                                  \
    }
PLANES_ROWS(0, 1)
PLANES_ROWS(3, 1)
PLANES_ROWS(3, 2)
PLANES_ROWS(5, 1)
PLANES_ROWS(5, 2)
PLANES_ROWS(7, 1)
PLANES_ROWS(7, 2)

/* Selects the instance for the taps of a row and the stride. */
static void (*select_planes_rows(const pysim_conv *c))(const TILES *, int64_t, int64_t, const T *, VEC) {
    if (c->dilation_w == 1 && (c->stride_w == 1 || c->stride_w == 2)) switch (c->kernel_w) {
        case 3: return c->stride_w == 1 ? planes_rows_3_1 : planes_rows_3_2;
        case 5: return c->stride_w == 1 ? planes_rows_5_1 : planes_rows_5_2;
        case 7: return c->stride_w == 1 ? planes_rows_7_1 : planes_rows_7_2;
        default: break;
        }
    return planes_rows_0_1;
}

/* `groups` neighbouring groups, at most LANES. */
static void planes_body(const pysim_direct *of, const T *image, const T *filters, const T *bias, T *out, int64_t groups, T *workspace) {
    const pysim_conv *c = of->conv;
    const int64_t columns = pysim_direct_columns(of), taps = c->kernel_h * c->kernel_w, plane = c->height * c->width;
    const int64_t kept = pysim_min(c->width, columns - c->pad_left); /* columns behind these are in no window */
    T *in = (T *)(((uintptr_t)workspace + sizeof(VEC) - 1) / sizeof(VEC) * sizeof(VEC));
    T *w = in + c->height * columns * LANES, *to = w + taps * LANES;
    VEC start = v_zero();
    if (bias) start = v_load_mask(bias, v_lanes(0, groups)); /* a branch: masked loads of NULL are microcode assists, 150 cycles on Zen 4 */
    planes_to_lanes(filters, taps, groups, taps, taps, 0, w);
    for (int64_t y = 0; y < c->height && (c->pad_left || columns > c->pad_left + c->width); y++) {
        T *row = in + y * columns * LANES;
        for (int64_t x = 0; x < pysim_min(columns, c->pad_left); x++) v_store(row + x * LANES, v_zero());
        for (int64_t x = c->pad_left + c->width; x < columns; x++) v_store(row + x * LANES, v_zero());
    }
    if (kept == c->width) planes_to_lanes(image, plane, groups, plane, c->width, columns - c->width, in + c->pad_left * LANES);
    else
        for (int64_t y = 0; kept > 0 && y < c->height; y++)
            planes_to_lanes(image + y * c->width, plane, groups, kept, kept, 0, in + (y * columns + c->pad_left) * LANES);
    const TILES t = {.x = in,
                     .out = to,
                     .y = -c->pad_top,
                     .step = c->dilation_h * columns,
                     .q = of->q,
                     .kernel_h = c->kernel_h,
                     .kernel_w = c->kernel_w,
                     .stride = c->stride_w,
                     .dilation_h = c->dilation_h,
                     .dilation = c->dilation_w,
                     .height = c->height,
                     .pad = c->stride_h};
    select_planes_rows(c)(&t, columns, of->p, w, start);
    lanes_to_planes(to, of->p * of->q, groups, of->p * of->q, of->bounds, out);
}

#define DEFINE_PLANES(name)                                            \
    void name(DIRECT_ARGUMENTS) {                                      \
        (void)begin, (void)end;                                        \
        planes_body(of, input, filters, bias, out, groups, workspace); \
    }
