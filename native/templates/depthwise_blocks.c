/* SPDX-License-Identifier: Apache-2.0
 * Form `blocks` of depthwise.inc. Lanes hold the groups of a block, each of
 * one channel and one filter; input, filters and output are stored as [row][column][lane]:
 *
 *   out[p][q] = (sum over kernel rows r, taps s  filters[r][s] input[p stride + r dilation - pad][q stride + s dilation - pad]) + bias
 *
 * A tile is up to MAX_TILE neighbouring outputs of a row. If the taps of a row and the stride are constants (3, 5, 7 taps, strides 1, 2), each
 * column of the input is loaded once for all outputs that read it: MAX_TILE + S - 1 loads for MAX_TILE S multiply-adds. Columns and rows outside the
 * image are skipped, so padding is never multiplied, whatever the weights. */
#define BLOCKS_OF_FOUR /* at least */
#include "instance.h"

enum { MAX_TILE = 8, MAX_TAPS = 7 };

/* One output row of a block. x points to column 0 of the first kernel row inside the image. */
typedef struct {
    const T *x, *w;
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
    const T *x = t->x + at * LANES, *w = t->w;
    for (int64_t r = 0; r < t->rows; r++, x += t->row, w += t->taps * LANES) {
        VEC weight[MAX_TAPS];
#pragma GCC unroll 7
        for (int s = 0; s < S; s++) weight[s] = v_load(w + s * LANES);
#pragma GCC unroll 21
        for (int j = 0; j < columns; j++) {
            if (EDGE && (uint64_t)(at + j) >= (uint64_t)t->width) continue;
            const VEC v = v_kept(v_load(x + j * LANES));
#pragma GCC unroll 8
            for (int i = 0; i < P; i++)
                if (j >= i * SW && j < i * SW + S) acc[i] = v_fma(weight[j - i * SW], v, acc[i]);
        }
        for (int64_t s = 0; !S && s < t->taps; s++) {
            const VEC one = v_load(w + s * LANES);
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
INLINE void blocks_body(const pysim_direct *of, const T *input, const T *filters, const T *bias, T *out, int64_t begin, int64_t end) {
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
                   .bias = bias ? v_load(bias) : v_zero(),
                   .low = v_set1((T)of->bounds.low),
                   .high = v_set1((T)of->bounds.high)};
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

/* The rows of depthwise.inc of this form for these vectors */
#define DEFINED_rows NOTHING
#define DEFINED_planes NOTHING
#define DEFINED_blocks(target, dtype, windows, filters) DEFINE_BLOCKS(dtype##_blocks_##windows##x##filters##__##target)
#define PYSIM_DIRECT_ROW(target, dtype, form, windows, filters, lane_windows, lane_filters) \
    MINE(target, dtype, DEFINED_##form)(target, dtype, windows, filters)
#include "depthwise.inc"
