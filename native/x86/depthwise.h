/* SPDX-License-Identifier: Apache-2.0
 * Convolutions with few channels per group, without packing; included once per vector type, after vec_*.h and the functions v_strided,
 * v_parts, transpose_parts and v_shifted (contract: native/kernel.h).
 *
 * rows    Lanes hold neighbouring output columns; a tile is up to 8 output rows x 1 filter, or 4 x several filters. For each tap s every input
 *         row of the tile is loaded once, at that tap's column, and multiplied into all output rows that read it: ROWS + KR - 1 loads for
 *         KR ROWS multiply-adds at stride 1. KR kernel rows share loads this way if KR is a constant (3, 5, 7); otherwise kernel rows are
 *         processed one by one. Image edges are masked or skipped. */

#include <math.h>

enum { MAX_ROWS = 8, SEVERAL_ROWS = 4, MAX_FILTERS = 4, MAX_KR = 7 }; /* SEVERAL_ROWS: for tiles of several filters */
/* Fewest rows of a tile. Fewer output rows run as a tile of this many with rows skipped: the accumulators' latency leaves room for their
 * multiply-adds. */
enum { MIN_ROWS = 4, MIN_SEVERAL_ROWS = 3 };

/* How neighbouring output columns map to the input: contiguous; every second column; `stride` apart. */
enum { UNIT, PAIRS, STRIDED };

/* Which image edges a tile may touch: none; left or right; all. */
enum { INSIDE, COLUMNS, CORNER };

/* A row of tiles, ROWS output rows from the first to the last column, of some neighbouring groups. The pointers are the first group's. */
typedef struct {
    const T *x, *w, *bias; /* x: input row y, column -pad_left */
    T *out;
    int64_t groups, filters;             /* filters: of a group */
    int64_t in_group, w_group;           /* elements between two groups' inputs, weights */
    int64_t slices, in_slice, w_channel; /* as in pysim_direct */
    int64_t next_channel, next_weights;  /* elements from behind a channel's last slice to the next channel */
    int64_t y;                           /* first input row of the first output row */
    int64_t step;                        /* input rows between two loads */
    int64_t out_pitch;                   /* elements between output rows */
    int64_t q;                           /* output columns */
    int64_t rows;                        /* output rows, at most ROWS; fewer in corners */
    int64_t channels, kernel_h, kernel_w, dilation_h, height, width;
    int64_t stride, dilation, pad; /* along columns */
    int64_t out_filter;            /* elements between two filters' outputs */
    T low, high;                   /* bounds of outputs */
    int clamped;                   /* there is a bound */
} TILES;

/* Bit j: row y + j*step is inside the image. */
INLINE uint32_t live_rows(int64_t y, int64_t step, int64_t height, const int rows) {
    uint32_t live = 0;
    if (step == 1) {
        const int64_t lo = pysim_min(rows, pysim_max(0, -y)), hi = pysim_max(lo, pysim_min(rows, height - y));
        return ((1u << hi) - 1) & ~((1u << lo) - 1);
    }
    for (int j = 0; j < rows; j++, y += step) live |= (uint32_t)((uint64_t)y < (uint64_t)height) << j;
    return live;
}

/* Lanes whose column first + lane*stride is inside the row. */
INLINE MASK strided_lanes(int64_t first, int64_t stride, int64_t width, int64_t lanes) {
    const int64_t lo = first < 0 ? (stride - 1 - first) / stride : 0;
    const int64_t hi = first >= width ? 0 : (width - 1 - first) / stride + 1;
    return v_lanes(lo, pysim_min(hi, lanes));
}

INLINE VEC load_lanes(const T *p, const int edge, MASK mask) { return v_kept(edge ? v_load_mask(p, mask) : v_load(p)); }

/* acc[f][o] += w[f][r] x for all output rows o that read input row j as their kernel row r. */
INLINE void accumulate(const int KR, const int SH, const int ROWS, const int FILTERS, const int j, VEC x, VEC w[MAX_FILTERS][MAX_KR],
                       VEC acc[MAX_FILTERS][MAX_ROWS]) {
#pragma GCC unroll 8
    for (int o = 0; o < ROWS; o++) {
        const int r = j - o * SH;
        if (r < 0 || r >= KR) continue;
#pragma GCC unroll 4
        for (int f = 0; f < FILTERS; f++) acc[f][o] = v_fma(w[f][r], x, acc[f][o]);
    }
}

INLINE void broadcast(const int KR, const int FILTERS, const T *w, int64_t pitch, int64_t taps, VEC to[MAX_FILTERS][MAX_KR]) {
#pragma GCC unroll 4
    for (int f = 0; f < FILTERS; f++)
#pragma GCC unroll 7
        for (int r = 0; r < KR; r++) to[f][r] = v_set1(w[f * pitch + r * taps]);
}

/* One tap of KR kernel rows, and if BOTH the next tap, too. x: the address that lane 0 reads in the first row; `column` is its image
 * column. */
INLINE void add_taps(const int KR, const int SH, const int ROWS, const int FILTERS, const int MODE, const int EDGE, const int BOTH,
                     const TILES *t, const T *x, int64_t pitch, int64_t column, uint32_t live, const T *w, int64_t w_pitch, int64_t w_row,
                     VEC acc[MAX_FILTERS][MAX_ROWS]) {
    MASK low = v_lanes(-column, t->width - column), high = low;
    if (MODE == STRIDED) low = strided_lanes(column, t->stride, t->width, LANES);
    if (MODE == PAIRS) high = v_lanes(-column - LANES, t->width - column - LANES);
    VEC one[MAX_FILTERS][MAX_KR], other[MAX_FILTERS][MAX_KR];
    broadcast(KR, FILTERS, w, w_pitch, w_row, one);
    if (BOTH) broadcast(KR, FILTERS, w + 1, w_pitch, w_row, other);
#pragma GCC unroll 21
    for (int j = 0; j < (ROWS - 1) * SH + KR; j++, x += pitch) {
        if (EDGE == CORNER && !(live >> j & 1)) continue;
        if (MODE == UNIT) {
            accumulate(KR, SH, ROWS, FILTERS, j, load_lanes(x, EDGE, low), one, acc);
        } else if (MODE == STRIDED) {
            accumulate(KR, SH, ROWS, FILTERS, j, v_strided(x, t->stride, low), one, acc);
        } else {
            const VEC a = load_lanes(x, EDGE, low), b = load_lanes(x + LANES, EDGE, high);
            accumulate(KR, SH, ROWS, FILTERS, j, v_kept(v_even(a, b)), one, acc);
            if (BOTH) accumulate(KR, SH, ROWS, FILTERS, j, v_kept(v_odd(a, b)), other, acc);
        }
    }
}

/* Lanes inside the row for add_3x3: of a vector at `column`, of the next one, and of the first elements behind. */
typedef struct {
    MASK low, high, behind;
} MASKS;

INLINE MASKS masks_3x3(const int MODE, int64_t column, int64_t width) {
    const int64_t behind = column + (MODE == PAIRS ? 2 : 1) * LANES;
    return (MASKS){v_lanes(-column, width - column), v_lanes(-column - LANES, width - column - LANES),
                   v_lanes(-behind, pysim_min(MODE == PAIRS ? 1 : 2, width - behind))};
}

/* All taps of 3 x 3 from few loads: the second and third tap are shifted lanes of the first. */
INLINE void add_3x3(const int SH, const int ROWS, const int MODE, const int EDGE, const T *x, int64_t pitch, const MASKS *inside,
                    uint32_t live, const T *w, VEC acc[MAX_FILTERS][MAX_ROWS]) {
    const int64_t behind = (MODE == PAIRS ? 2 : 1) * LANES; /* distance to the vector behind */
    VEC weight[3][MAX_FILTERS][MAX_KR];
#pragma GCC unroll 3
    for (int s = 0; s < 3; s++) broadcast(3, 1, w + s, 0, 3, weight[s]);
#pragma GCC unroll 21
    for (int j = 0; j < (ROWS - 1) * SH + 3; j++, x += pitch) {
        if (EDGE == CORNER && !(live >> j & 1)) continue;
        const VEC a = load_lanes(x, EDGE, inside->low);
        const VEC after = v_kept(EDGE ? v_load_mask(x + behind, inside->behind) : v_load_first(x + behind, MODE == PAIRS ? 1 : 2));
        VEC taps[3] = {a, a, a};
        if (MODE == PAIRS) {
            const VEC b = load_lanes(x + LANES, EDGE, inside->high);
            taps[0] = v_even(a, b), taps[1] = v_odd(a, b), taps[2] = v_shifted(taps[0], after, 1);
        } else {
            taps[1] = v_shifted(a, after, 1), taps[2] = v_shifted(a, after, 2);
        }
#pragma GCC unroll 3
        for (int s = 0; s < 3; s++) accumulate(3, SH, ROWS, 1, j, v_kept(taps[s]), weight[s], acc);
    }
}

/* All taps of KR kernel rows of one channel. KR > 1: the kernel is square, and its dilation along columns is 1. With stride 2, pairs of taps share
 * loads, but not for several filters and kernel rows: the weights of two taps would need more registers than there are (Zen 4, AVX-512,
 * 32 groups of 8 and of 16 filters: 400 and 386 us with pairs, 379 and 375 without). */
INLINE void add_rows(const int KR, const int SH, const int ROWS, const int FILTERS, const int MODE, const int EDGE, const TILES *t,
                     const T *x, int64_t pitch, int64_t column, const MASKS *inside, uint32_t live, const T *w, int64_t w_pitch,
                     VEC acc[MAX_FILTERS][MAX_ROWS]) {
    const int64_t taps = KR > 1 ? KR : t->kernel_w, by = KR > 1 ? 1 : t->dilation;
    int64_t s = 0;
    if (KR == 3 && FILTERS == 1 && SHIFTS_ARE_CHEAP) {
        add_3x3(SH, ROWS, MODE, EDGE, x, pitch, inside, live, w, acc);
        return;
    }
    if (MODE == PAIRS && (KR == 1 || FILTERS == 1)) {
        int64_t last = taps - 1;
        if (EDGE != CORNER) __asm__("" : "+r"(last)); /* otherwise GCC writes pairs one after the other, and accumulators to memory */
#pragma GCC unroll 1
        for (; s < last; s += 2)
            add_taps(KR, SH, ROWS, FILTERS, MODE, EDGE, 1, t, x + s, pitch, column + s, live, w + s, w_pitch, taps, acc);
    }
    for (; s < taps; s++)
        add_taps(KR, SH, ROWS, FILTERS, MODE, EDGE, 0, t, x + s * by, pitch, column + s * by, live, w + s, w_pitch, taps, acc);
}

/* One tile of one group: ROWS rows x the vector of columns whose first input column is `column`, x FILTERS. The pointers are the tile's. */
ONE_OF_MANY void tile(const int KR, const int SH, const int ROWS, const int FILTERS, const int MODE, const int EDGE, const TILES *t,
                      const T *x, const T *w, const T *bias, T *out, int64_t column, const MASKS *inside, MASK keep, uint32_t live) {
    const int64_t pitch = t->step * t->width, taps = KR > 1 ? KR * KR : t->kernel_h * t->kernel_w, w_pitch = t->channels * t->w_channel;
    VEC acc[MAX_FILTERS][MAX_ROWS];
#pragma GCC unroll 4
    for (int f = 0; f < FILTERS; f++)
#pragma GCC unroll 8
        for (int o = 0; o < ROWS; o++) acc[f][o] = v_zero();
    for (int64_t i = 0, slice = 0; i < t->channels * t->slices; i++) {
        if (KR > 1) add_rows(KR, SH, ROWS, FILTERS, MODE, EDGE, t, x, pitch, column, inside, live, w, w_pitch, acc);
        for (int64_t r = 0; KR == 1 && r < t->kernel_h; r++) {
            if (EDGE == CORNER) live = live_rows(t->y + r * t->dilation_h, t->step, t->height, ROWS) & ((1u << t->rows) - 1);
            add_rows(1, 1, ROWS, FILTERS, MODE, EDGE, t, x + r * t->dilation_h * t->width, pitch, column, inside, live, w + r * t->kernel_w,
                     w_pitch, acc);
        }
        x += t->in_slice, w += taps;
        if (++slice == t->slices) slice = 0, x += t->next_channel, w += t->next_weights;
    }
    if (bias)
#pragma GCC unroll 4
        for (int f = 0; f < FILTERS; f++)
#pragma GCC unroll 8
            for (int o = 0; o < ROWS; o++) acc[f][o] = v_add(acc[f][o], v_set1(bias[f]));
    if (t->clamped) { /* otherwise 16 comparisons beside the 72 multiply-adds of a tile of 3x3 */
        const VEC low = v_set1(t->low), high = v_set1(t->high);
#pragma GCC unroll 4
        for (int f = 0; f < FILTERS; f++)
#pragma GCC unroll 8
            for (int o = 0; o < ROWS; o++) acc[f][o] = v_between(low, high, acc[f][o]);
    }
#pragma GCC unroll 4
    for (int f = 0; f < FILTERS; f++) {
        T *to = out + f * t->out_filter;
#pragma GCC unroll 8
        for (int o = 0; o < ROWS; o++, to += t->out_pitch) {
            if (EDGE == CORNER && o >= t->rows) break;
            if (EDGE) v_store_mask(to, acc[f][o], keep);
            else v_store(to, acc[f][o]);
        }
    }
}

/* Tiles of the columns [begin, end) at any edge of the image, of all groups. Small images have no others: groups are the inner loop, so that
 * a tile's masks are computed once. */
INLINE void corner(const int KR, const int SH, const int ROWS, const int FILTERS, const int MODE, const TILES *t, int64_t begin,
                   int64_t end) {
    const uint32_t live = KR > 1 ? live_rows(t->y, t->step, t->height, (ROWS - 1) * SH + KR) : 0;
    for (int64_t q = begin; q < end; q += LANES) {
        const int64_t column = q * t->stride - t->pad;
        const MASKS inside = masks_3x3(MODE, column, t->width);
        const MASK keep = v_lanes(0, t->q - q);
        const T *x = t->x + q * t->stride, *w = t->w, *bias = t->bias;
        T *out = t->out + q;
        for (int64_t g = 0; g < t->groups; g++) {
            tile(KR, SH, ROWS, FILTERS, MODE, CORNER, t, x, w, bias, out, column, &inside, keep, live);
            x += t->in_group, w += t->w_group, out += t->filters * t->out_filter;
            if (bias) bias += t->filters;
        }
    }
}

/* Tiles of one group whose input rows are all inside the image. Columns [begin, end) read whole vectors. */
INLINE void middle(const int KR, const int SH, const int ROWS, const int FILTERS, const int MODE, const TILES *t, int64_t begin,
                   int64_t end, void (*corner)(const TILES *t, int64_t begin, int64_t end)) {
    if (MODE == STRIDED) {
        corner(t, 0, t->q);
        return;
    }
    begin = pysim_min(t->q, pysim_ceil_div(begin, LANES) * LANES);
    const int masked = MASKS_ARE_CHEAP && KR <= 3; /* in larger kernels more multiply-adds per load hide the corners' tests of rows */
    if (!masked) corner(t, 0, begin);
    int64_t q = masked ? 0 : begin;
    for (; q < (masked ? t->q : end); q += LANES) {
        const int64_t column = q * t->stride - t->pad;
        const MASKS inside = masks_3x3(MODE, column, t->width);
        const T *x = t->x + q * t->stride;
        if (masked && (q < begin || q >= end))
            tile(KR, SH, ROWS, FILTERS, MODE, COLUMNS, t, x, t->w, t->bias, t->out + q, column, &inside, v_lanes(0, t->q - q), 0);
        else tile(KR, SH, ROWS, FILTERS, MODE, INSIDE, t, x, t->w, t->bias, t->out + q, column, &inside, v_lanes(0, t->q - q), 0);
    }
    if (!masked) corner(t, q, t->q);
}

#define TILES_OF(KR, SH, MODE, ROWS, FILTERS)                                                                                     \
    static __attribute__((noinline)) void corner_##KR##_##MODE##_##ROWS##x##FILTERS(const TILES *t, int64_t begin, int64_t end) { \
        corner(KR, SH, ROWS, FILTERS, MODE, t, begin, end);                                                                       \
    }                                                                                                                             \
    static __attribute__((noinline)) void middle_##KR##_##MODE##_##ROWS##x##FILTERS(const TILES *t, int64_t begin, int64_t end) { \
        middle(KR, SH, ROWS, FILTERS, MODE, t, begin, end, corner_##KR##_##MODE##_##ROWS##x##FILTERS);                            \
    }
#define TILE_PAIR(KR, MODE, ROWS, FILTERS) {middle_##KR##_##MODE##_##ROWS##x##FILTERS, corner_##KR##_##MODE##_##ROWS##x##FILTERS}
#ifdef SEVERAL_ALONE /* a single filter is the last of several: its tiles have SEVERAL_ROWS rows */
#define TILES_TO8(KR, SH, MODE) TILES_OF(KR, SH, MODE, 4, 1)
#define TILE_PAIRS_TO8(KR, MODE) {TILE_PAIR(KR, MODE, 4, 1)}
#else
#define TILES_TO8(KR, SH, MODE)  \
    TILES_OF(KR, SH, MODE, 4, 1) \
    TILES_OF(KR, SH, MODE, 5, 1) TILES_OF(KR, SH, MODE, 6, 1) TILES_OF(KR, SH, MODE, 7, 1) TILES_OF(KR, SH, MODE, 8, 1)
#define TILE_PAIRS_TO8(KR, MODE) \
    {TILE_PAIR(KR, MODE, 4, 1), TILE_PAIR(KR, MODE, 5, 1), TILE_PAIR(KR, MODE, 6, 1), TILE_PAIR(KR, MODE, 7, 1), TILE_PAIR(KR, MODE, 8, 1)}
#endif
#define SEVERAL_TO4(KR, SH, MODE, FILTERS) TILES_OF(KR, SH, MODE, 3, FILTERS) TILES_OF(KR, SH, MODE, 4, FILTERS)
#define SEVERAL_PAIRS(KR, MODE, FILTERS) {TILE_PAIR(KR, MODE, 3, FILTERS), TILE_PAIR(KR, MODE, 4, FILTERS)}

TILES_OF(1, 1, UNIT, 8, 1)
TILES_OF(1, 1, PAIRS, 8, 1)
TILES_OF(1, 1, STRIDED, 8, 1)
TILES_TO8(3, 1, UNIT)
TILES_TO8(3, 2, PAIRS)
#ifndef SEVERAL_ALONE
TILES_TO8(5, 1, UNIT)
TILES_TO8(5, 2, PAIRS)
TILES_TO8(7, 1, UNIT)
TILES_TO8(7, 2, PAIRS)
#endif
#ifdef SEVERAL
TILES_OF(1, 1, UNIT, 4, SEVERAL)
TILES_OF(1, 1, PAIRS, 4, SEVERAL)
TILES_OF(1, 1, STRIDED, 4, SEVERAL)
SEVERAL_TO4(3, 1, UNIT, SEVERAL)
SEVERAL_TO4(3, 2, PAIRS, SEVERAL)
#endif

/* Instances for rows of tiles in the middle of the image and at its top or bottom, by the number of kernel rows that share loads (1, 3,
 * 5, 7), the column mapping, and the rows of the tile (the largest tile only, if no rows share loads). Corners skip missing rows. */
typedef void (*tile_functions[2])(const TILES *t, int64_t begin, int64_t end);
static const tile_functions single_filter[4][3][MAX_ROWS - MIN_ROWS + 1] = {
    {{TILE_PAIR(1, UNIT, 8, 1)}, {TILE_PAIR(1, PAIRS, 8, 1)}, {TILE_PAIR(1, STRIDED, 8, 1)}},
    {TILE_PAIRS_TO8(3, UNIT), TILE_PAIRS_TO8(3, PAIRS)},
#ifndef SEVERAL_ALONE
    {TILE_PAIRS_TO8(5, UNIT), TILE_PAIRS_TO8(5, PAIRS)},
    {TILE_PAIRS_TO8(7, UNIT), TILE_PAIRS_TO8(7, PAIRS)},
#endif
};
#ifdef SEVERAL
static const tile_functions several_filters[2][3][SEVERAL_ROWS - MIN_SEVERAL_ROWS + 1] = {
    {{TILE_PAIR(1, UNIT, 4, SEVERAL)}, {TILE_PAIR(1, PAIRS, 4, SEVERAL)}, {TILE_PAIR(1, STRIDED, 4, SEVERAL)}},
    {SEVERAL_PAIRS(3, UNIT, SEVERAL), SEVERAL_PAIRS(3, PAIRS, SEVERAL)},
};
#else
#define several_filters single_filter /* no row of the file has tiles of several filters */
#endif

static int column_mode(const pysim_conv *c) {
    if (c->stride_w == 1) return UNIT;
    return c->stride_w == 2 && c->dilation_w == 1 ? PAIRS : STRIDED;
}

/* Number of kernel rows that share loads, for kernels listed in the table; else 1. */
static int shared_rows(const pysim_conv *c) {
    const int square = c->kernel_h == c->kernel_w && c->stride_h == c->stride_w && c->dilation_w == 1;
    const int listed = c->stride_w == 1 || (c->stride_w == 2 && c->dilation_h == 1);
    return square && listed && (c->kernel_h == 3 || c->kernel_h == 5 || c->kernel_h == 7) ? (int)c->kernel_h : 1;
}

/* Output rows [begin, end) of each group, in tiles of up to `high` rows x `most` filters. With a row dilation, output rows that far
 * apart share input rows: each such set ("phase") is a dense convolution. */
static void rows_body(int high, int most, const pysim_direct *of, const T *image, const T *filters, const T *bias, T *out, int64_t groups,
                      int64_t begin, int64_t end) {
    const pysim_conv *c = of->conv;
    const int mode = column_mode(c), shared = most > 1 && c->kernel_h > 3 ? 1 : shared_rows(c);
    const tile_functions *const single = single_filter[shared / 2][mode], *const several = several_filters[most > 1 ? shared / 2 : 0][mode];
    const int64_t group_bytes = (of->channels * of->slices * c->height * c->width + of->filters * of->p * of->q) * (int64_t)sizeof(T);
    const int64_t together = pysim_max(1, PYSIM_EDGE_BYTES / group_bytes);
    const int64_t phases = shared > 1 ? c->dilation_h : 1, size = of->channels * of->w_channel;
    const int64_t reach = (c->kernel_h - 1) * c->dilation_h + 1;
    /* columns whose tiles read whole vectors */
    const int64_t after = (mode == PAIRS ? (c->kernel_w - 1) / 2 * 2 + 2 * LANES : c->dilation_w * (c->kernel_w - 1) + LANES) - c->pad_left;
    const int64_t first = mode == STRIDED ? of->q : pysim_ceil_div(c->pad_left, c->stride_w);
    const int64_t last = c->width < after ? 0 : pysim_min(of->q - LANES, (c->width - after) / c->stride_w) + 1;
    TILES t = {.step = shared > 1 ? c->dilation_h : c->stride_h,
               .out_pitch = phases * of->q,
               .q = of->q,
               .channels = of->channels,
               .filters = of->filters,
               .in_group = of->channels * of->in_channel,
               .w_group = of->filters * size,
               .slices = of->slices,
               .in_slice = of->in_slice,
               .w_channel = of->w_channel,
               .next_channel = of->in_channel - of->slices * of->in_slice,
               .next_weights = of->w_channel - of->slices * c->kernel_h * c->kernel_w,
               .kernel_h = c->kernel_h,
               .kernel_w = c->kernel_w,
               .stride = c->stride_w,
               .dilation_h = c->dilation_h,
               .dilation = c->dilation_w,
               .height = c->height,
               .width = c->width,
               .pad = c->pad_left,
               .out_filter = of->out_filter,
               .low = (T)of->bounds.low,
               .high = (T)of->bounds.high,
               .clamped = of->bounds.low > -INFINITY || of->bounds.high < INFINITY};
    for (int64_t phase = 0; phase < pysim_min(phases, end - begin); phase++) {
        const int64_t rows = pysim_ceil_div(end - begin - phase, phases), blocks = pysim_ceil_div(rows, high);
        const int64_t least = rows / blocks, more = rows % blocks;
        for (int64_t first_group = 0; first_group < groups; first_group += together) {
            const int64_t end_group = pysim_min(groups, first_group + together);
            for (int64_t block = 0, row = 0; block < blocks; block++, row += t.rows) {
                const int64_t p = begin + phase + row * phases;
                t.rows = shared > 1 ? least + (block < more) : pysim_min(high, rows - row); /* otherwise only whole tiles exist */
                t.y = p * c->stride_h - c->pad_top;
                const int64_t rows_end = t.y + (t.rows - 1) * phases * c->stride_h + reach;
                const int at_edge = t.y < 0 || rows_end > c->height;
                for (int64_t f = 0, width; f < of->filters; f += width) {
                    width = of->filters - f >= most ? most : 1;
                    const int64_t fewest = width > 1 ? MIN_SEVERAL_ROWS : MIN_ROWS;
                    /* rows of the smallest tile that exists */
                    const int64_t whole = shared > 1 ? pysim_max(fewest, t.rows) : width > 1 ? SEVERAL_ROWS : MAX_ROWS;
                    const int is_corner = at_edge || t.rows < whole;
                    t.groups = is_corner ? end_group - first_group : 1;
                    for (int64_t g = first_group; g < end_group; g += t.groups) {
                        const int64_t filter = g * of->filters + f;
                        t.x = image + g * t.in_group + t.y * c->width - c->pad_left;
                        t.w = filters + filter * size;
                        t.bias = bias ? bias + filter : NULL;
                        t.out = out + filter * of->out_filter + p * of->q;
                        (width > 1 ? several : single)[shared > 1 ? whole - fewest : 0][is_corner](&t, is_corner ? 0 : first,
                                                                                                   is_corner ? of->q : last);
                    }
                }
            }
        }
    }
}

#define DIRECT_ARGUMENTS                                                                                                        \
    const pysim_direct *of, const void *input, const void *filters, const void *bias, void *out, int64_t groups, int64_t begin, \
        int64_t end, void *workspace
#define DEFINE_ROWS(name, high, most)                                             \
    void name(DIRECT_ARGUMENTS) {                                                 \
        (void)workspace;                                                          \
        rows_body(high, most, of, input, filters, bias, out, groups, begin, end); \
    }
