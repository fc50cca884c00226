/* SPDX-License-Identifier: Apache-2.0
 * Winograd's transforms, the lines of winograd.inc.
 *
 * F(m x m, r x r), F(m x 1, r x 1) and F(1 x m, 1 x r): e = m + r - 1 along each axis, 1 along an axis without taps (winograd_points.h).
 *
 * patches  The column transform has pixels of a row in its lanes. The pixels are then separated by column modulo m, so that lanes hold tiles;
 *          tap t + m of a tile is tap t of the next lane.
 * outputs  Lanes hold filters; blocks of pixels x filters are transposed before the store.
 * If input or output is in channel blocks, lanes hold channels throughout, and each tile is transformed by itself. */
#include "algorithms/winograd.h"
#define FOUR_LANES
#include "instance.h"
#include "transpose.h"
#include "winograd_points.h"

#ifdef PORTABLE
enum { TAKES_BLOCKS = 0 }; /* blocks of one channel are planes */
#else
enum { TAKES_BLOCKS = 1 };
#endif
/* Values in blocks, which may be bf16 (`narrow`, a constant), from the i-th one on. */
#ifdef V_BF16
enum { TAKES_NARROW = 1 };
INLINE VEC load_values(const int narrow, const void *from, int64_t i) {
    return narrow ? v_widen_bf16((const uint16_t *)from + i) : v_load((const T *)from + i);
}
INLINE void store_values(const int narrow, void *to, int64_t i, VEC v) {
    if (narrow) v_narrow_bf16((uint16_t *)to + i, v);
    else v_store((T *)to + i, v);
}
#else
enum { TAKES_NARROW = 0 };
INLINE VEC load_values(const int narrow, const void *from, int64_t i) { return (void)narrow, v_load((const T *)from + i); }
INLINE void store_values(const int narrow, void *to, int64_t i, VEC v) { (void)narrow, v_store((T *)to + i, v); }
#endif
INLINE const char *value_at(const int narrow, const char *from, int64_t i) {
    return from + i * (int64_t)(narrow ? sizeof(uint16_t) : sizeof(T));
}

enum { PANEL_WIDTH = (PYSIM_WINOGRAD_MAX_PANEL_TILES + LANES - 1) / LANES * LANES + LANES, OUT_TILES = 16, AHEAD = 4 };

/* ---- patches ---- */

/* Tiles of a panel in the same row of tiles. row[i] points to row i of the first patch in channel 0, step[i] is the distance between
 * channels; rows outside the image point to zeros. */
typedef struct {
    const T *row[MAX_EDGE];
    int64_t step[MAX_EDGE], pixels, lane, vectors;
    MASK load[PYSIM_WINOGRAD_MAX_OUTPUTS];
} PATCH_RUN;

static const T zeros[PYSIM_WINOGRAD_MAX_OUTPUTS * LANES];
typedef T LINES[MAX_EDGE][PYSIM_WINOGRAD_MAX_OUTPUTS * LANES];

static int64_t find_runs(const pysim_winograd *w, int64_t tile, int64_t count, int64_t slice, PATCH_RUN *run) {
    const int64_t m = w->outputs_w, high = w->outputs_h + w->taps_h - 1, per_slice = w->tiles_h * w->tiles_w;
    const int64_t most = LANES - (m + w->taps_w - 2) / m; /* tiles whose taps fit into the lanes */
    int64_t runs = 0;
    for (int64_t lane = 0, n; lane < count; lane += n, runs++) {
        const int64_t t = tile + lane, column = t % w->tiles_w;
        n = pysim_min(pysim_min(most, count - lane), w->tiles_w - column);
        const int64_t y = t % per_slice / w->tiles_w * w->outputs_h - w->pad_top, x = column * m - w->pad_left;
        const int64_t needed = n * m + w->taps_w - 1;
        const int64_t image = t / per_slice / w->out_d;
        const int64_t z = t / per_slice % w->out_d * w->stride_d - w->pad_front + slice * w->dilation_d;
        const T *corner = (const T *)(const void *)w->input + image * w->image_pitch + (z * w->height + y) * w->width + x;
        for (int64_t i = 0; i < high; i++) {
            const int inside = z >= 0 && z < w->depth && y + i >= 0 && y + i < w->height;
            run[runs].row[i] = inside ? corner + i * w->width : zeros;
            run[runs].step[i] = inside ? w->channel_pitch : 0;
        }
        run[runs].pixels = n * m;
        run[runs].lane = lane;
        run[runs].vectors = pysim_ceil_div(needed, LANES);
        for (int64_t v = 0; v < m; v++) run[runs].load[v] = v_lanes(-x - v * LANES, pysim_min(w->width - x, needed) - v * LANES);
    }
    return runs;
}

/* Separates pixels by their column modulo m: part[column][tile]. If m is even, first into even and odd columns; thirds are gathered one
 * by one. */
INLINE void separate_pixels(const int m, const int vectors, const T *line, const GATHER *thirds, VEC part[PYSIM_WINOGRAD_MAX_OUTPUTS]) {
    const int halves = m % 2 ? 1 : 2;
    VEC half[2][3]; /* three of m = 3, or twice two of m = 4 */
#pragma GCC unroll 3
    for (int v = 0; v < m / halves; v++) {
        const VEC low = halves * v < vectors ? v_load(line + halves * v * LANES) : v_zero();
        const VEC high = halves * v + 1 < vectors ? v_load(line + (halves * v + 1) * LANES) : v_zero();
        half[0][v] = halves == 1 ? low : v_even(low, high);
        half[1][v] = halves == 1 ? low : v_odd(low, high);
    }
#pragma GCC unroll 6
    for (int i = 0; i < m; i++) {
        const VEC *of = half[i % halves];
        part[i] = m <= 2 ? of[0] : m == 4 ? (i < 2 ? v_even(of[0], of[1]) : v_odd(of[0], of[1])) : v_zero();
        if (m % 3) continue;
#pragma GCC unroll 3
        for (int v = 0; v < 3; v++) part[i] = v_gather_from(part[i], of[v], &thirds[i / halves], v);
    }
}

/* Column transform of one channel of a run: line[row][pixel]. */
INLINE void transform_columns(const int e, const int vectors, const PATCH_RUN *run, int64_t channel, LINES line) {
#pragma GCC unroll 1
    for (int64_t v = 0; v < vectors; v++) {
        const MASK inside = run->load[v];
        VEC x[MAX_EDGE], y[MAX_EDGE];
#pragma GCC unroll 8
        for (int i = 0; i < e; i++) {
            const T *from = run->row[i] + channel * run->step[i] + v * LANES;
            if (e == 1) __builtin_prefetch(from + run->pixels, 0, 2); /* of sequences the next panel's; their channels lie far apart */
            __builtin_prefetch(from + AHEAD * run->step[i]);
            x[i] = v_load_mask(from, inside);
        }
        input_transform(e, x, y);
#pragma GCC unroll 8
        for (int i = 0; i < e; i++) v_store(&line[i][v * LANES], y[i]);
    }
}

/* Taps of the run's tiles: x[tap][tile]. Tap t + m is tap t of the next tile. */
INLINE void separate_taps(const int m, const int r, const int vectors, const T *line, const GATHER *thirds, VEC x[MAX_EDGE]) {
    separate_pixels(m, vectors, line, thirds, x);
#pragma GCC unroll 4
    for (int tap = m; tap < m + r - 1; tap++) x[tap] = v_shift1(x[tap - m], v_zero());
}

INLINE void store_planes(const int e, const VEC x[MAX_EDGE], T *to, int64_t pitch) {
    VEC y[MAX_EDGE];
    input_transform(e, x, y);
#pragma GCC unroll 8
    for (int j = 0; j < e; j++) v_store(to + j * pitch, y[j]);
}

/* One channel of a panel that is a single run. */
INLINE void single_run(const int mh, const int rh, const int m, const int r, const int vectors, const PATCH_RUN *run, int64_t channel,
                       const GATHER *thirds, T *to, int64_t pitch) {
    const int high = mh + rh - 1, e = m + r - 1;
    LINES line;
    transform_columns(high, vectors, run, channel, line);
#pragma GCC unroll 1
    for (int i = 0; i < high; i++, to += e * pitch) {
        VEC x[MAX_EDGE];
        separate_taps(m, r, vectors, line[i], thirds, x);
        store_planes(e, x, to, pitch);
    }
}

/* One channel of one run of several: stores taps to the run's lanes. */
INLINE void gather_run(const int mh, const int rh, const int m, const int r, const int vectors, const PATCH_RUN *run, int64_t channel,
                       const GATHER *thirds, T (*d)[PANEL_WIDTH]) {
    const int high = mh + rh - 1, e = m + r - 1;
    LINES line;
    transform_columns(high, vectors, run, channel, line);
#pragma GCC unroll 1
    for (int i = 0; i < high; i++, d += e) {
        VEC x[MAX_EDGE];
        separate_taps(m, r, vectors, line[i], thirds, x);
#pragma GCC unroll 8
        for (int tap = 0; tap < e; tap++) v_store(&d[tap][run->lane], x[tap]);
    }
}

/* Row transform of one channel of several runs, whose taps are in their lanes. */
INLINE void transform_rows(const int e, int high, T (*d)[PANEL_WIDTH], int64_t count, T *to, int64_t pitch) {
#pragma GCC unroll 1
    for (int i = 0; i < high; i++, to += e * pitch)
        for (int64_t lane = 0; lane < count; lane += LANES) {
            VEC x[MAX_EDGE];
#pragma GCC unroll 8
            for (int j = 0; j < e; j++) x[j] = v_load(&d[i * e + j][lane]);
            store_planes(e, x, to + lane, pitch);
        }
}
#define TRANSFORM_ROWS(e)                                                                                                         \
    static __attribute__((noinline)) void transform_rows_##e(int high, T(*d)[PANEL_WIDTH], int64_t count, T *to, int64_t pitch) { \
        transform_rows(e, high, d, count, to, pitch);                                                                             \
    }
TRANSFORM_ROWS(1)
TRANSFORM_ROWS(4)
TRANSFORM_ROWS(6)

INLINE void several_runs(const int mh, const int rh, const int m, const int r, int64_t runs, const PATCH_RUN *run, int64_t channel,
                         int64_t count, const GATHER *thirds, T (*d)[PANEL_WIDTH], T *to, int64_t pitch) {
    const int e = m + r - 1;
    for (int64_t i = 0; i < runs; i++)
        if (run[i].vectors <= m / 2) gather_run(mh, rh, m, r, m / 2, &run[i], channel, thirds, d);
        else gather_run(mh, rh, m, r, m, &run[i], channel, thirds, d);
    (e == 1 ? transform_rows_1 : e == 4 ? transform_rows_4 : transform_rows_6)(mh + rh - 1, d, count, to, pitch);
}

ONE_OF_MANY void patches_body(const int mh, const int rh, const int m, const int r, const pysim_winograd *w, int64_t tile, int64_t count,
                              T *panel) {
    PATCH_RUN run[PYSIM_WINOGRAD_MAX_PANEL_TILES];
    GATHER thirds[3];
    T d[MAX_EDGE * MAX_EDGE][PANEL_WIDTH] = {{0}};
    int64_t channels = w->channels / w->slices, first, end;
    pysim_winograd_slices(w, tile, count, &first, &end);
    for (int i = 0; i < 3; i++) thirds[i] = v_gather_plan(3, i);
    for (int64_t slice = first; slice < end; slice++) {
        const int64_t runs = find_runs(w, tile, count, slice, run);
        T *to = panel + slice * channels * w->panel_tiles;
        for (int64_t c = 0; c < channels; c++, to += w->panel_tiles)
            if (runs > 1) several_runs(mh, rh, m, r, runs, run, c, count, thirds, d, to, w->plane_pitch);
            else if (run->vectors <= m / 2) single_run(mh, rh, m, r, m / 2, run, c, thirds, to, w->plane_pitch);
            else single_run(mh, rh, m, r, m, run, c, thirds, to, w->plane_pitch);
    }
}

/* Input in channel blocks: lanes hold channels; writes V of each tile, [plane][tile][channel]. */
INLINE void block_patch(const int e, const int narrow, const char *corner, int64_t row, int64_t y, int64_t x, const pysim_winograd *w,
                        T *to) {
    VEC half[MAX_EDGE][MAX_EDGE];
    const int inside = y >= 0 && x >= 0 && y + e <= w->height && x + e <= w->width;
#pragma GCC unroll 8
    for (int j = 0; j < e; j++) {
        VEC d[MAX_EDGE], z[MAX_EDGE];
#pragma GCC unroll 8
        for (int i = 0; i < e; i++) {
            const int here = inside || ((uint64_t)(y + i) < (uint64_t)w->height && (uint64_t)(x + j) < (uint64_t)w->width);
            d[i] = here ? load_values(narrow, corner, i * row + j * LANES) : v_zero();
        }
        input_transform(e, d, z);
#pragma GCC unroll 8
        for (int i = 0; i < e; i++) half[i][j] = z[i];
    }
#pragma GCC unroll 1
    for (int i = 0; i < e; i++, to += e * w->plane_pitch) store_planes(e, half[i], to, w->plane_pitch);
}

INLINE void patches_of_blocks(const int e, const int narrow, const pysim_winograd *w, int64_t tile, int64_t count, T *panel) {
    const int64_t m = w->outputs_w, row = w->width * LANES, per_image = w->tiles_h * w->tiles_w;
    for (int64_t c = 0; c < w->channels; c += LANES)
        for (int64_t lane = 0; lane < count; lane++) {
            const int64_t t = tile + lane, in_image = t % per_image;
            const int64_t y = in_image / w->tiles_w * m - w->pad_top, x = in_image % w->tiles_w * m - w->pad_left;
            const int64_t at = t / per_image * w->image_pitch + c * w->height * w->width + y * row + x * LANES;
            block_patch(e, narrow, value_at(narrow, w->input, at), row, y, x, w, panel + lane * w->patch_pitch + c);
        }
}

ONE_OF_MANY void filters_body(const int mh, const int rh, const int m, const int r, const pysim_winograd_taps *from, int64_t width, T *to,
                              int64_t to_plane) {
    const int high = mh + rh - 1, e = m + r - 1;
    const T *const taps = from->first;
    for (int64_t f = 0; f < width; f += LANES) {
        const MASK mask = v_lanes(0, width - f);
        VEC half[MAX_EDGE][PYSIM_WINOGRAD_MAX_TAPS];
#pragma GCC unroll 5
        for (int j = 0; j < r; j++) {
            VEC x[PYSIM_WINOGRAD_MAX_TAPS], y[MAX_EDGE];
#pragma GCC unroll 5
            for (int i = 0; i < rh; i++) {
                const T *tap = taps + i * from->row_pitch + j * from->column_pitch + f;
                x[i] = i < from->rows && j < from->columns ? v_load_mask(tap, mask) : v_zero();
            }
            filter_transform(high, rh, x, y);
#pragma GCC unroll 8
            for (int i = 0; i < high; i++) half[i][j] = y[i];
        }
#pragma GCC unroll 1 /* no slower, and compiled sooner */
        for (int i = 0; i < high; i++) {
            VEC y[MAX_EDGE];
            filter_transform(e, r, half[i], y);
#pragma GCC unroll 8
            for (int j = 0; j < e; j++) v_store_mask(to + (i * e + j) * to_plane + f, y[j], mask);
        }
    }
}

/* ---- outputs ---- */

enum { OUT_ROW = (OUT_TILES * PYSIM_WINOGRAD_MAX_OUTPUTS + LANES) * LANES };
typedef T ROWS[PYSIM_WINOGRAD_MAX_OUTPUTS][OUT_ROW];

/* Output transform of one tile and LANES filters: y = A^T M A, bias and clamp; writes the pixels below `rows` and `columns`, rows `row`
 * elements apart. Returns a sum of products of two results each: infinite or NaN in every lane with a result that is, and where results are so
 * large (above 1e18 in FP32) that their products overflow. That is one multiply-add for two results. */
INLINE VEC output_tile(const int mh, const int rh, const int m, const int r, const int narrow, const T *accumulators, int64_t pitch,
                       VEC bias, VEC low, VEC high, void *to, int64_t row, int64_t rows, int64_t columns) {
    const int eh = mh + rh - 1, e = m + r - 1;
    VEC products = v_zero();
    VEC half[PYSIM_WINOGRAD_MAX_OUTPUTS][MAX_EDGE];
#pragma GCC unroll 8
    for (int j = 0; j < e; j++) {
        VEC x[MAX_EDGE], y[PYSIM_WINOGRAD_MAX_OUTPUTS];
#pragma GCC unroll 8
        for (int i = 0; i < eh; i++) x[i] = v_load(accumulators + (i * e + j) * pitch);
        output_transform(eh, mh, x, y);
#pragma GCC unroll 6
        for (int i = 0; i < mh; i++) half[i][j] = y[i];
    }
#pragma GCC unroll 6
    for (int i = 0; i < mh; i++) {
        VEC y[PYSIM_WINOGRAD_MAX_OUTPUTS];
        output_transform(e, m, half[i], y);
#pragma GCC unroll 6
        for (int j = 0; j < m; j++)
            if (i < rows && j < columns) store_values(narrow, to, i * row + j * LANES, v_between(low, high, v_add(y[j], bias)));
#pragma GCC unroll 6
        for (int j = 0; j < m; j += 2) products = v_fma(y[j], y[j + 1 < m ? j + 1 : j], products);
    }
    return products;
}

/* Whether the first `count` lanes are numbers; the others may come from accumulators that nothing was written to. */
INLINE int all_finite(VEC x, int64_t count) {
    T lane[LANES];
    int all = 1;
    v_store(lane, x);
    for (int64_t i = 0; i < LANES; i++) all &= i >= count || lane[i] - lane[i] == 0;
    return all;
}

/* Tile by tile, so that bits do not depend on the number of tiles. */
static __attribute__((noinline)) void recompute_tiles(const pysim_winograd *w, int64_t tile, int64_t count, int64_t filter, int64_t filters,
                                                      const VEC *products) {
    for (int64_t j = 0; j < count; j++)
        if (!all_finite(products[j], filters)) pysim_winograd_recompute(w, tile + j, filter, filters);
}

/* Transposes a row of `columns` pixels x `filters` filters into the output, LANES x LANES elements at a time. */
INLINE void store_row(const T *row, int64_t columns, int64_t filters, T *out, int64_t pitch) {
    for (int64_t x = 0; x < columns; x += LANES) {
        const MASK mask = v_lanes(0, columns - x);
        VEC r[LANES];
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) r[i] = v_load(row + (x + i) * LANES);
        transpose(r);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            if (i < filters) v_store_mask(out + i * pitch + x, r[i], mask);
    }
}

ONE_OF_MANY void outputs_body(const int mh, const int rh, const int m, const int r, const pysim_winograd *w, int64_t tile, int64_t count,
                              int64_t filter, int64_t filters, const T *accumulators) {
    const VEC low = v_set1((T)w->bounds.low), high = v_set1((T)w->bounds.high);
    const int64_t per_slice = w->tiles_h * w->tiles_w;
    ROWS rows;
    for (int64_t f = 0; f < filters; f += LANES) {
        const T *bias = (const T *)(const void *)w->bias;
        const VEC added = bias ? v_load_mask(bias + filter + f, v_lanes(0, filters - f)) : v_zero();
        for (int64_t i = 0, n; i < count; i += n) {
            const int64_t t = tile + i, column = t % w->tiles_w;
            n = pysim_min(pysim_min(OUT_TILES, count - i), w->tiles_w - column);
            const T *first = accumulators + i * w->tile_pitch + f;
            const int64_t y = t % per_slice / w->tiles_w * mh, x = column * m, slice = t / per_slice;
            const int64_t at = slice / w->out_d * w->output_pitch + (filter + f) * w->filter_pitch + slice % w->out_d * w->out_h * w->out_w;
            const int64_t rows_in = pysim_min(mh, w->out_h - y), wide = pysim_min(n * m, w->out_w - x);
            VEC products[OUT_TILES], all = v_zero();
            if (TAKES_BLOCKS && w->out_blocks) {
                const int narrow = TAKES_NARROW && w->narrow_out;
                char *const out = w->output + (at + (y * w->out_w + x) * LANES) * (int64_t)(narrow ? sizeof(uint16_t) : sizeof(T));
                for (int64_t j = 0; j < n; j++) {
                    const T *from = first + j * w->tile_pitch;
                    if (narrow)
                        products[j] = output_tile(mh, rh, m, r, 1, from, w->accumulator_pitch, added, low, high,
                                                  out + j * m * LANES * (int64_t)sizeof(uint16_t), w->out_w * LANES, rows_in, wide - j * m);
                    else
                        products[j] = output_tile(mh, rh, m, r, 0, from, w->accumulator_pitch, added, low, high,
                                                  (T *)(void *)out + j * m * LANES, w->out_w * LANES, rows_in, wide - j * m);
                    all = v_add(all, products[j]);
                }
                if (!all_finite(all, filters - f)) recompute_tiles(w, t, n, filter + f, pysim_min(LANES, filters - f), products);
                pysim_finish_rows(&w->finish, out, w->out_w * LANES, rows_in, wide * LANES);
                continue;
            }
            T *const out = (T *)(void *)w->output + at + y * w->out_w + x;
            for (int64_t j = 0; j < n; j++) {
                products[j] = output_tile(mh, rh, m, r, 0, first + j * w->tile_pitch, w->accumulator_pitch, added, low, high,
                                          &rows[0][j * m * LANES], OUT_ROW, mh, m);
                all = v_add(all, products[j]);
            }
            for (int64_t k = 0; k < rows_in; k++) store_row(rows[k], wide, filters - f, out + k * w->out_w, w->filter_pitch);
            if (!all_finite(all, filters - f)) recompute_tiles(w, t, n, filter + f, pysim_min(LANES, filters - f), products);
            for (int64_t l = 0; w->finish.loops && l < pysim_min(LANES, filters - f); l++)
                pysim_finish_rows(&w->finish, out + l * w->filter_pitch, w->out_w, rows_in, wide);
        }
    }
}

/* Instances with constants: one per form of winograd.inc; block_patches, which depends on e alone, one per e. */
static __attribute__((noinline)) void block_patches(const pysim_winograd *w, int64_t tile, int64_t count, T *panel) {
    const int is_4 = w->outputs_w + w->taps_w - 1 == 4;
    if (TAKES_NARROW && w->narrow_in && is_4) patches_of_blocks(4, 1, w, tile, count, panel);
    else if (TAKES_NARROW && w->narrow_in) patches_of_blocks(6, 1, w, tile, count, panel);
    else if (is_4) patches_of_blocks(4, 0, w, tile, count, panel);
    else patches_of_blocks(6, 0, w, tile, count, panel);
}
/* One function per form and axes: GCC compiles a function of all forms for longer and spills more. */
#define INSTANCE(name, mh, rh, m, r)                                                                                                \
    static __attribute__((noinline)) void patches_##name(const pysim_winograd *w, int64_t tile, int64_t count, T *panel) {          \
        patches_body(mh, rh, m, r, w, tile, count, panel);                                                                          \
    }                                                                                                                               \
    static __attribute__((noinline)) void filters_##name(const pysim_winograd_taps *from, int64_t width, T *to, int64_t to_plane) { \
        filters_body(mh, rh, m, r, from, width, to, to_plane);                                                                      \
    }                                                                                                                               \
    static __attribute__((noinline)) void outputs_##name(const pysim_winograd *w, int64_t tile, int64_t count, int64_t filter,      \
                                                         int64_t filters, const T *accumulators) {                                  \
        outputs_body(mh, rh, m, r, w, tile, count, filter, filters, accumulators);                                                  \
    }
#define PYSIM_WINOGRAD_FORM(m, r) INSTANCE(m##_##r, m, r, m, r) INSTANCE(h_##m##_##r, m, r, 1, 1) INSTANCE(w_##m##_##r, 1, 1, m, r)
#include "winograd.inc"
#undef PYSIM_WINOGRAD_FORM

static const struct {
    int64_t outputs_h, taps_h, outputs_w, taps_w;
    void (*patches)(const pysim_winograd *w, int64_t tile, int64_t count, T *panel);
    void (*filters)(const pysim_winograd_taps *from, int64_t width, T *to, int64_t to_plane);
    void (*outputs)(const pysim_winograd *w, int64_t tile, int64_t count, int64_t filter, int64_t filters, const T *accumulators);
} instances[] = {
#define INSTANCE_OF(name, mh, rh, m, r) {mh, rh, m, r, patches_##name, filters_##name, outputs_##name},
#define PYSIM_WINOGRAD_FORM(m, r) INSTANCE_OF(m##_##r, m, r, m, r) INSTANCE_OF(h_##m##_##r, m, r, 1, 1) INSTANCE_OF(w_##m##_##r, 1, 1, m, r)
#include "winograd.inc"
#undef PYSIM_WINOGRAD_FORM
};

static int64_t instance_of(const pysim_winograd *w) {
    int64_t i = 0;
    while (instances[i].outputs_h != w->outputs_h || instances[i].taps_h != w->taps_h || instances[i].outputs_w != w->outputs_w ||
           instances[i].taps_w != w->taps_w)
        i++;
    return i;
}
static void patches(const pysim_winograd *w, int64_t tile, int64_t count, void *panel) {
    if (TAKES_BLOCKS && w->in_blocks) block_patches(w, tile, count, panel);
    else instances[instance_of(w)].patches(w, tile, count, panel);
}
static void filters(const pysim_winograd *w, const pysim_winograd_taps *from, int64_t width, void *to, int64_t to_plane) {
    instances[instance_of(w)].filters(from, width, to, to_plane);
}
static void outputs(const pysim_winograd *w, int64_t tile, int64_t count, int64_t filter, int64_t filters, const void *accumulators) {
    instances[instance_of(w)].outputs(w, tile, count, filter, filters, accumulators);
}

#define DEFINED(target, dtype) \
    const pysim_winograd_transforms pysim_winograd_##dtype##__##target = {patches, filters, outputs, TAKES_NARROW};
#define PYSIM_WINOGRAD(target, dtype) MINE(target, dtype, DEFINED)(target, dtype)
#include "winograd.inc"
