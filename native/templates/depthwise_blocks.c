/* SPDX-License-Identifier: Apache-2.0
 * Forms `blocks` and `grouped` of depthwise.inc. Form `blocks`: lanes hold the groups of a block, each of
 * one channel and one filter; input, filters and output are stored as [row][column][lane]:
 *
 *   out[p][q] = (sum over kernel rows r, taps s  filters[r][s] input[p stride + r dilation - pad][q stride + s dilation - pad]) + bias
 *
 * A tile is up to MAX_TILE neighbouring outputs of a row. If the taps of a row and the stride are constants (3, 5, 7 taps, strides 1, 2), each
 * column of the input is loaded once for all outputs that read it: MAX_TILE + S - 1 loads for MAX_TILE S multiply-adds. Columns and rows outside the
 * image are skipped, so padding is never multiplied, whatever the weights. */
#define BLOCKS_OF_FOUR /* at least */
#include "algorithms/grouped/kernel_of_blocks.h"
#include "instance.h"

enum { MAX_TILE = 8, MAX_TAPS = 7 };

/* One output row of a block. x points to column 0 of the first kernel row inside the image. */
typedef struct {
    const T *x;
    const NUMBER *w;
    T *out;
    int64_t rows, row; /* kernel rows inside the image; elements between them */
    int64_t taps, stride, dilation, width, pad;
    int64_t tiles, min_width, wider_tiles; /* tiles have min_width outputs, the first `wider_tiles` of them one more */
    VEC bias, low, high;
} BLOCK_ROW;

/* P outputs; the first one's first tap is column `at`. EDGE: some columns are outside the image. S: taps of a row, SW: stride, both
 * constants; or 0. */
ONE_OF_MANY void blocks_tile(const int S, const int SW, const int P, const int EDGE, const BLOCK_ROW *t, int64_t at, T *out) {
    const int columns = S ? (P - 1) * SW + S : 0; /* input columns */
    VEC acc[MAX_TILE];
#pragma GCC unroll 8
    for (int i = 0; i < P; i++) acc[i] = v_zero();
    const T *x = t->x + at * LANES;
    const NUMBER *w = t->w;
    for (int64_t r = 0; r < t->rows; r++, x += t->row, w += t->taps * LANES) {
        VEC weight[MAX_TAPS];
#pragma GCC unroll 7
        for (int s = 0; s < S; s++) weight[s] = v_load_numbers(w + s * LANES);
#pragma GCC unroll 21
        for (int j = 0; j < columns; j++) {
            if (EDGE && (uint64_t)(at + j) >= (uint64_t)t->width) continue;
            const VEC v = v_kept(v_load(x + j * LANES));
#pragma GCC unroll 8
            for (int i = 0; i < P; i++)
                if (j >= i * SW && j < i * SW + S) acc[i] = v_fma(weight[j - i * SW], v, acc[i]);
        }
        for (int64_t s = 0; !S && s < t->taps; s++) {
            const VEC one = v_load_numbers(w + s * LANES);
#pragma GCC unroll 8
            for (int i = 0; i < P; i++) {
                const int64_t j = s * t->dilation + i * t->stride;
                if (EDGE && (uint64_t)(at + j) >= (uint64_t)t->width) continue;
                acc[i] = v_fma(one, v_load(x + j * LANES), acc[i]);
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < P; i++) v_store(out + i * LANES, v_between(t->low, t->high, v_add(acc[i], t->bias)));
}

INLINE void blocks_row(const int S, const int SW, const BLOCK_ROW *t) {
    const int64_t reach = (t->taps - 1) * t->dilation;
    int64_t at = -t->pad;
    T *out = t->out;
    for (int64_t tile = 0, wide; tile < t->tiles; tile++, at += wide * t->stride, out += wide * LANES) {
        wide = t->min_width + (tile < t->wider_tiles);
        const int inside = at >= 0 && at + (wide - 1) * t->stride + reach < t->width;
        switch (2 * wide + inside) {
#define BLOCKS_CASE(P)                                       \
    case 2 * P: blocks_tile(S, SW, P, 1, t, at, out); break; \
    case 2 * P + 1: blocks_tile(S, SW, P, 0, t, at, out); break;
            BLOCKS_CASE(1) BLOCKS_CASE(2) BLOCKS_CASE(3) BLOCKS_CASE(4) BLOCKS_CASE(5) BLOCKS_CASE(6) BLOCKS_CASE(7) BLOCKS_CASE(8)
        }
    }
}

#define BLOCKS_ROW(S, SW) \
    static __attribute__((noinline)) void blocks_row_##S##_##SW(const BLOCK_ROW *t) { blocks_row(S, SW, t); }
BLOCKS_ROW(0, 0)
BLOCKS_ROW(3, 1)
BLOCKS_ROW(3, 2)
BLOCKS_ROW(5, 1)
BLOCKS_ROW(5, 2)
BLOCKS_ROW(7, 1)
BLOCKS_ROW(7, 2)

/* Selects the instance for the taps of a row and the stride. */
static void (*select_blocks_row(const pysim_conv *c))(const BLOCK_ROW *) {
    if (c->dilation_w == 1 && (c->stride_w == 1 || c->stride_w == 2)) switch (c->kernel_w) {
        case 3: return c->stride_w == 1 ? blocks_row_3_1 : blocks_row_3_2;
        case 5: return c->stride_w == 1 ? blocks_row_5_1 : blocks_row_5_2;
        case 7: return c->stride_w == 1 ? blocks_row_7_1 : blocks_row_7_2;
        default: break;
        }
    return blocks_row_0_0;
}

/* Output rows [begin, end) of a block. */
INLINE void blocks_body(const pysim_direct *of, const T *input, const NUMBER *filters, const NUMBER *bias, T *out, int64_t begin,
                        int64_t end) {
    const pysim_conv *c = of->conv;
    void (*const row_of)(const BLOCK_ROW *) = select_blocks_row(c);
    const int64_t wide = c->width * LANES, tiles = pysim_ceil_div(of->q, MAX_TILE), reach = (c->kernel_h - 1) * c->dilation_h;
    BLOCK_ROW t = {.row = c->dilation_h * wide,
                   .taps = c->kernel_w,
                   .stride = c->stride_w,
                   .dilation = c->dilation_w,
                   .width = c->width,
                   .pad = c->pad_left,
                   .tiles = tiles,
                   .min_width = of->q / tiles,
                   .wider_tiles = of->q % tiles,
                   .bias = bias ? v_load_numbers(bias) : v_zero(),
                   .low = v_set1((NUMBER)of->bounds.low),
                   .high = v_set1((NUMBER)of->bounds.high)};
    for (int64_t p = begin; p < end; p++) {
        const int64_t y = p * c->stride_h - c->pad_top;
        int64_t r0 = 0, r1 = c->kernel_h; /* kernel rows inside the image; divides only where needed, since divisions are slow */
        if (y < 0) r0 = pysim_min(c->kernel_h, pysim_ceil_div(-y, c->dilation_h));
        if (y + reach >= c->height) r1 = y >= c->height ? r0 : pysim_max(r0, (c->height - 1 - y) / c->dilation_h + 1);
        t.rows = r1 - r0;
        t.x = t.rows ? input + (y + r0 * c->dilation_h) * wide : input;
        t.w = filters + r0 * c->kernel_w * LANES;
        t.out = out + p * of->q * LANES;
        row_of(&t);
    }
}

#define DEFINE_BLOCKS(name)                                                                                                               \
    void name(const pysim_direct *of, const void *input, const void *filters, const void *bias, void *out, int64_t groups, int64_t begin, \
              int64_t end, void *workspace) {                                                                                             \
        (void)groups, (void)workspace;                                                                                                    \
        blocks_body(of, input, filters, bias, out, begin, end);                                                                           \
    }

/* Form `grouped`: lanes hold the filters of a channel block, which belong to one group or to two neighbouring ones.
 *
 *   out[p][q][lane] = (sum over channels i of a group, kernel rows r, taps s  filters[i][r][s][lane]
 *                      input[p stride + r dilation - pad][q stride + s - pad][channel i of the lane's group]) + bias
 *
 * A tile is PYSIM_GROUPED_ROWS rows of outputs x up to MOST columns, whose accumulators are registers. Of a channel and kernel row, the vectors of
 * filters are loaded once for both rows of outputs, and each element of the input once for all outputs of a row that read it. So a tile is one
 * loop over channels, where `direct_nchwc` has a loop for each tap, which for groups of few channels has few turns. In a block of two groups
 * an element of each is broadcast and the two are merged. Columns and rows outside the image are skipped, so padding is never multiplied. */

/* Lanes of b where the mask is set, which is at the end of the vector; else those of a. */
#if defined(PORTABLE)
INLINE VEC merged(VEC a, VEC b, MASK m) {
    T lanes[LANES], others[LANES];
    v_store(lanes, a), v_store(others, b);
    for (int64_t i = m.lo; i < LANES; i++) lanes[i] = others[i];
    return v_load(lanes);
}
#elif defined(__AVX512F__)
INLINE VEC merged(VEC a, VEC b, MASK m) { return V(mask_mov)(a, m, b); }
#else
INLINE VEC merged(VEC a, VEC b, MASK m) { return V(blendv)(a, b, (VEC)m); }
#endif

enum { ROWS = PYSIM_GROUPED_ROWS, TAPS = PYSIM_GROUPED_TAPS };
#define DEFINED_rows NOTHING
#define DEFINED_planes NOTHING
#define DEFINED_blocks NOTHING
#define DEFINED_grouped(target, dtype, windows, filters) +windows / ROWS
#define PYSIM_DIRECT_ROW(target, dtype, form, windows, filters, lane_windows, lane_filters) \
    MINE(target, dtype, DEFINED_##form)(target, dtype, windows, filters)
enum {
    MOST = 0 /* columns of a tile of this type's row */
#include "depthwise.inc"
};
enum { ROWS_AHEAD = 96, LINE = 64 / sizeof(NUMBER) }; /* rows of filters ahead, as `direct_nchwc` prefetches */
#undef DEFINED_blocks
#undef DEFINED_grouped

/* A tile of a block of filters. */
typedef struct {
    const T *x;                         /* the tile's first tap in channel 0 of the image */
    const NUMBER *w;                    /* filters */
    T *out;                             /* the tile's first output */
    int64_t channels, first, second;    /* of a group; the first channel of the block's first group, and of its second one */
    int64_t plane, row;                 /* elements between blocks of the input, and between kernel rows */
    int64_t out_row, pitch;             /* between the input rows of two rows of outputs, and between these */
    int64_t kernel_h, top, bottom;      /* kernel rows; from the first to behind the last one inside the image for any row of outputs */
    int64_t rows, from[ROWS], to[ROWS]; /* rows of outputs; kernel rows inside the image of each */
    int partial;                        /* whether one of them lacks any from the first to the last one */
    int without_first, without_last;    /* EDGE: whether the first and the last input column are outside the image */
    MASK seconds;                       /* SPLIT: lanes of the second group */
    VEC bias, low, high;
} GROUPED_TILE;

/* P columns of outputs. SW: stride. EDGE: the first or the last input column is outside the image. SPLIT: the block has filters of two groups. */
ONE_OF_MANY void grouped_tile(const int P, const int SW, const int EDGE, const int SPLIT, const GROUPED_TILE *t) {
    const int columns = (P - 1) * SW + TAPS;
    VEC acc[ROWS][MOST];
#pragma GCC unroll 2
    for (int o = 0; o < ROWS; o++)
#pragma GCC unroll 8
        for (int p = 0; p < P; p++) acc[o][p] = v_zero();
    for (int64_t i = 0; i < t->channels; i++) {
        const uint64_t first = (uint64_t)(t->first + i), second = (uint64_t)(t->second + i);
        const T *a = t->x + (int64_t)(first / LANES) * t->plane + first % LANES + t->top * t->row, *b = a;
        if (SPLIT) b = t->x + (int64_t)(second / LANES) * t->plane + second % LANES + t->top * t->row;
        const NUMBER *w = t->w + (i * t->kernel_h + t->top) * TAPS * LANES;
        for (int64_t r = t->top; r < t->bottom; r++, a += t->row, b += t->row, w += TAPS * LANES) {
            VEC weight[TAPS];
#pragma GCC unroll 3
            for (int s = 0; s < TAPS; s++) weight[s] = v_load_numbers(w + s * LANES);
#pragma GCC unroll 3
            for (int s = 0; s < TAPS * LANES; s += LINE) __builtin_prefetch(w + ROWS_AHEAD * LANES + s);
#pragma GCC unroll 2
            for (int o = 0; o < ROWS; o++) {
                if (t->partial && (r < t->from[o] || r >= t->to[o])) continue;
                const T *row = a + o * t->out_row, *other = b + o * t->out_row;
#pragma GCC unroll 17
                for (int j = 0; j < columns; j++) {
                    if (EDGE && ((j == 0 && t->without_first) || (j == columns - 1 && t->without_last))) continue;
                    VEC v = v_broadcast(row + j * LANES);
                    if (SPLIT) v = merged(v, v_broadcast(other + j * LANES), t->seconds);
#pragma GCC unroll 8
                    for (int p = 0; p < P; p++)
                        if (j >= p * SW && j < p * SW + TAPS) acc[o][p] = v_fma(weight[j - p * SW], v, acc[o][p]);
                }
            }
        }
    }
#pragma GCC unroll 2
    for (int o = 0; o < ROWS; o++) {
        if (o >= t->rows) break;
#pragma GCC unroll 8
        for (int p = 0; p < P; p++) v_store(t->out + o * t->pitch + p * LANES, v_between(t->low, t->high, v_add(acc[o][p], t->bias)));
    }
}

#define GROUPED_CASE(P)                                                     \
    case P:                                                                 \
        if (P <= MOST) grouped_tile(P <= MOST ? P : 1, SW, EDGE, SPLIT, t); \
        break;
#define GROUPED_TILES(sw, edge, split)                                                                                      \
    static __attribute__((noinline)) void grouped_tiles_##sw##_##edge##_##split(int64_t columns, const GROUPED_TILE *t) {   \
        enum { SW = sw, EDGE = edge, SPLIT = split };                                                                       \
        switch (columns) {                                                                                                  \
            GROUPED_CASE(1)                                                                                                 \
            GROUPED_CASE(2) GROUPED_CASE(3) GROUPED_CASE(4) GROUPED_CASE(5) GROUPED_CASE(6) GROUPED_CASE(7) GROUPED_CASE(8) \
        }                                                                                                                   \
    }
GROUPED_TILES(1, 0, 0)
GROUPED_TILES(1, 0, 1)
GROUPED_TILES(1, 1, 0)
GROUPED_TILES(1, 1, 1)
GROUPED_TILES(2, 0, 0)
GROUPED_TILES(2, 0, 1)
GROUPED_TILES(2, 1, 0)
GROUPED_TILES(2, 1, 1)

/* The kernel rows of a row of outputs that are inside the image, whose first one lies at row y. */
INLINE void rows_inside(const pysim_conv *c, int64_t y, int64_t *from, int64_t *to) {
    int64_t r0 = 0, r1 = c->kernel_h;
    while (r0 < r1 && y + r0 * c->dilation_h < 0) r0++;
    while (r0 < r1 && y + (r1 - 1) * c->dilation_h >= c->height) r1--;
    *from = r0, *to = r1;
}

/* The tiles of one or two rows of outputs. x: column 0 of the image in the row of their first kernel row, out: their first output. */
INLINE void grouped_row(const pysim_direct *of, GROUPED_TILE *t, const T *x, T *out) {
    /* stride - 1, EDGE, SPLIT */
    static void (*const by[2][2][2])(int64_t columns, const GROUPED_TILE *t) = {
        {{grouped_tiles_1_0_0, grouped_tiles_1_0_1}, {grouped_tiles_1_1_0, grouped_tiles_1_1_1}},
        {{grouped_tiles_2_0_0, grouped_tiles_2_0_1}, {grouped_tiles_2_1_0, grouped_tiles_2_1_1}},
    };
    const pysim_conv *c = of->conv;
    const int64_t tiles = pysim_ceil_div(of->q, MOST), narrow = of->q / tiles, wider = of->q % tiles;
    const int split = t->second != t->first;
    int64_t at = -c->pad_left;
    for (int64_t tile = 0, wide; tile < tiles; tile++, at += wide * c->stride_w, out += wide * LANES) {
        wide = narrow + (tile < wider);
        t->without_first = (at < 0), t->without_last = (at + (wide - 1) * c->stride_w + TAPS > c->width);
        t->x = x + at * LANES, t->out = out;
        by[c->stride_w - 1][t->without_first || t->without_last][split](wide, t);
    }
}

/* Output rows [begin, end) of a block of filters. */
INLINE void grouped_body(const pysim_direct *of, const T *input, const NUMBER *filters, const NUMBER *bias, T *out, int64_t block,
                         int64_t begin, int64_t end) {
    const pysim_conv *c = of->conv;
    const int64_t wide = c->width * LANES, filter = block * LANES, group = filter / of->filters;
    const int64_t last = (filter + LANES - 1) / of->filters; /* group */
    GROUPED_TILE t = {.w = filters,
                      .channels = of->channels,
                      .first = group * of->channels,
                      .second = last * of->channels,
                      .plane = c->height * wide,
                      .row = c->dilation_h * wide,
                      .out_row = c->stride_h * wide,
                      .pitch = of->q * LANES,
                      .kernel_h = c->kernel_h,
                      .seconds = v_lanes(last * of->filters - filter, LANES),
                      .bias = bias ? v_load_numbers(bias) : v_zero(),
                      .low = v_set1((NUMBER)of->bounds.low),
                      .high = v_set1((NUMBER)of->bounds.high)};
    for (int64_t p = begin; p < end; p += ROWS) {
        const int64_t y = p * c->stride_h - c->pad_top;
        t.rows = pysim_min(ROWS, end - p), t.top = c->kernel_h, t.bottom = 0;
        for (int64_t o = 0; o < ROWS; o++) {
            t.from[o] = t.to[o] = 0;
            if (o < t.rows) rows_inside(c, y + o * c->stride_h, &t.from[o], &t.to[o]);
            if (t.from[o] < t.to[o]) t.top = pysim_min(t.top, t.from[o]), t.bottom = pysim_max(t.bottom, t.to[o]);
        }
        t.partial = 0;
        for (int64_t o = 0; o < ROWS; o++) t.partial |= t.from[o] > t.top || t.to[o] < t.bottom;
        grouped_row(of, &t, input + y * wide, out + p * of->q * LANES);
    }
}

#define DEFINE_GROUPED(name)                                                                                                              \
    void name(const pysim_direct *of, const void *input, const void *filters, const void *bias, void *out, int64_t groups, int64_t begin, \
              int64_t end, void *workspace) {                                                                                             \
        (void)workspace;                                                                                                                  \
        grouped_body(of, input, filters, bias, out, groups, begin, end);                                                                  \
    }

/* The rows of depthwise.inc of these forms for these vectors */
#define DEFINED_blocks(target, dtype, windows, filters) DEFINE_BLOCKS(dtype##_blocks_##windows##x##filters##__##target)
#define DEFINED_grouped(target, dtype, windows, filters) DEFINE_GROUPED(dtype##_grouped_##windows##x##filters##__##target)
#include "depthwise.inc"
