/* SPDX-License-Identifier: Apache-2.0
 * Contracts between the macro-kernel (native/conv) and the ISA folders. Everything here is internal to the library. */
#ifndef PYSIM_KERNEL_H
#define PYSIM_KERNEL_H
#include "pysim.h"

/* Between which a store keeps results: x < low ? low : x > high ? high : x, so a NaN stays one. A ReLU is 0 and infinity. */
typedef struct {
    double low, high;
} pysim_bounds;

/* Those of all results of operands of a dtype: nothing is changed. */
static inline pysim_bounds pysim_unbounded(int32_t dtype) {
    return dtype == PYSIM_S8 ? (pysim_bounds){INT32_MIN, INT32_MAX} : (pysim_bounds){-__builtin_inf(), __builtin_inf()};
}

/* What happens to a tile of accumulators on its way out: alpha*acc + bias_filters[f] + bias_windows[w] + beta*old, kept between bounds. */
typedef struct {
    double alpha, beta;
    const void *old;           /* rows that lie as those of the output, which they may be (or a residual), or NULL */
    const void *bias_filters;  /* one value per filter of this tile, or NULL */
    const void *bias_windows;  /* one value per window of this tile, or NULL */
    pysim_bounds bounds;
} pysim_store;

/* Micro-kernel: O[f][w] for f < nf, w < nw, from two panels.
 *
 *        filters                 windows                       out
 *   k  [ f0 f1 ... F-1 ]    k  [ w0 w1 ... nw-1 ] pitch     f  [ w0 ... nw-1 ]
 *   |  [ ............. ]    |  [ .............. ]           |  [ ........... ]  out_pitch
 *
 * filters: k rows of exactly F = the registry row's filters, padded by zeros where nf < F; the whole row may be read.
 * windows: k rows, window_pitch elements apart; only the first nw of each row may be read.
 * out: nf rows, out_pitch apart; only nw of each row may be read or written. k may be 0. */
typedef void (*pysim_micro_kernel)(int64_t k, const void *filters, const void *windows, int64_t window_pitch,
                                   void *out, int64_t out_pitch, int64_t nw, int64_t nf, const pysim_store *store);

/* The same of filters that are no panel: filter f of row p is filters[p*filter_pitch + f*filter_step]; only those below nf may be read. */
typedef void (*pysim_strided_kernel)(int64_t k, const void *filters, int64_t filter_pitch, int64_t filter_step, const void *windows,
                                     int64_t window_pitch, void *out, int64_t out_pitch, int64_t nw, int64_t nf, const pysim_store *store);

/* One run of `count` windows that lie in one output row, for one kernel row, over `channels` channels:
 *
 *   dst[c*dst_channel + s*pitch + j] = row[c*row_channel + first + j*stride + s*dilation]   j < count, s < taps, c < channels
 *
 * and zero where the column index leaves [0, width). row == NULL packs zeros. Nothing outside row[c][0..width) is read. */
typedef struct {
    const void *row;
    int64_t row_channel, width;
    int64_t first, stride, dilation, taps;
    int64_t channels, count;
    int64_t dst_channel, pitch;
} pysim_segment;
typedef void (*pysim_pack_segment)(const pysim_segment *s, void *dst);

/* dst[p*pitch + i] = src[i*ld + p] for i < rows, p < k; columns rows..pitch-1 of dst become zero. Where not_finite
 * is not NULL, *not_finite becomes 1 if any of these elements is infinite or NaN. */
typedef void (*pysim_pack_transposed)(const void *src, int64_t ld, int64_t rows, int64_t k, int64_t pitch, void *dst, int *not_finite);

typedef struct {
    pysim_pack_segment segment;
    pysim_pack_transposed transposed;
} pysim_packer;

/* A convolution of groups of few channels, from operands as they lie; p x q outputs of each filter. */
typedef struct {
    const pysim_conv *conv;
    int64_t p, q, channels, filters; /* the last two: of a group */
    pysim_bounds bounds;
} pysim_direct;

/* Columns of the input, padding among them, that one row of outputs reads. */
static inline int64_t pysim_direct_columns(const pysim_direct *of) {
    return (of->q - 1) * of->conv->stride_w + of->conv->dilation_w * (of->conv->kernel_w - 1) + 1;
}

/* Rows of outputs [begin, end) of `groups` neighbouring groups of one image, sum + bias between bounds; bias is NULL or has a value for each
 * filter. Weights that padding meets are finite. Form `planes` takes all rows of at most lane_filters groups of one channel and one filter each, and
 * keeps its transposed planes in the workspace. Form `blocks` takes lane_filters such groups whose input, filters ([tap][group]) and output
 * lie in blocks of them; no padding is multiplied. */
typedef void (*pysim_direct_kernel)(const pysim_direct *of, const void *input, const void *filters, const void *bias, void *out,
                                    int64_t groups, int64_t begin, int64_t end, void *workspace);

/* A product of a few vectors with a large matrix, both of k elements along their sums: rows of the matrix are ld elements apart and lie along
 * the results (axpy) or along k (dot). The few lie as vectors[p/step][few][p%step], step 1 (axpy) or PYSIM_FEW_STEP (dot, zeros behind k). */
enum { PYSIM_FEW_STEP = 16 };
typedef struct {
    int64_t k, few, ld;
    int64_t block; /* of k, 1..k; dot: k, or a multiple of PYSIM_FEW_STEP */
    const void *matrix, *vectors;
} pysim_skinny;

/* sums[f*pitch + i], f < few, of results begin + i, i < results. axpy writes whole vectors of 64 bytes, so the pitch holds such. */
typedef void (*pysim_skinny_kernel)(const pysim_skinny *of, int64_t begin, int64_t results, void *sums, int64_t pitch);

/* Some filters of a convolution, over an input that is parted by phases: tap p reads x[offsets[p] + i] for window i. */
typedef struct {
    int64_t k, count, out_pitch; /* taps of all channels; filters 1..those of the registry's row; elements between filters' outputs */
    const int64_t *offsets;
    const void *filters, *bias;  /* a panel, [k][the row's filters]; NULL, or a value for each of the filters */
    pysim_bounds bounds;
} pysim_phases;

/* `windows` neighbouring outputs of one row. Of x whole vectors of up to 64 bytes are read. */
typedef void (*pysim_phases_kernel)(const pysim_phases *of, const void *x, void *out, int64_t windows);

/* Part of the sums of a tile of neighbouring pixels of one row of outputs, whose filters lie in vectors of one block each. Distances in
 * elements: of the input between channel blocks, kernel rows, taps and pixels, of the filters likewise; `inner` elements of the input that
 * follow one another have `inner` rows of filters that do. */
typedef struct {
    int64_t blocks, rows, taps, inner;
    int64_t block, row, tap, pixel;
    int64_t filter_block, filter_row, filter_tap;
    const void *input, *filters;
    void *out;
    int64_t pixels, vectors; /* of the tile; vectors of filters beyond are neither read nor written in `out` */
    int64_t out_vector;      /* elements of `out` between vectors of filters */
    int first, last;         /* part: sums begin at the bias, results are kept between bounds; else they are added to what is there */
    const void *bias, *residual; /* a value for each filter; what lies as `out` does; or NULL */
    pysim_bounds bounds;
    const char *ahead;   /* filters of a later call, asked for `ahead_lines` lines at each tap */
    int64_t ahead_lines;
} pysim_nchwc_tile;
typedef void (*pysim_nchwc_kernel)(const pysim_nchwc_tile *t);

typedef struct {
    pysim_kernel_info info;
    enum { PYSIM_OF_NEST, PYSIM_OF_DEPTHWISE, PYSIM_OF_SKINNY, PYSIM_OF_POLYPHASE, PYSIM_OF_NCHWC } of; /* whose row it is, on whatever CPU */
    pysim_micro_kernel run;       /* a row of kernels.inc has this and packing, */
    pysim_strided_kernel strided; /* and, of form win, this */
    pysim_packer pack;
    pysim_direct_kernel direct;   /* of conv/depthwise.inc */
    pysim_skinny_kernel skinny;   /* of conv/skinny.inc */
    pysim_phases_kernel phases;   /* of conv/polyphase.inc, and packing */
    pysim_nchwc_kernel nchwc;     /* of conv/direct_nchwc.inc */
} pysim_row;

/* The row of a schedule that fits the dtype and this CPU, or a failure with its reason. */
pysim_status pysim_row_for(const pysim_schedule *s, int32_t dtype, pysim_row *row);
/* The same for any CPU: what depends on the row's sizes only. Its functions may be NULL. */
pysim_status pysim_row_of(const pysim_schedule *s, int32_t dtype, pysim_row *row);
typedef pysim_status (*pysim_row_lookup)(const pysim_schedule *s, int32_t dtype, pysim_row *row);

/* Transposes elements of a dtype on this CPU. */
pysim_pack_transposed pysim_transposer_for(int32_t dtype);

static inline int64_t pysim_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t pysim_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t pysim_max(int64_t a, int64_t b) { return a > b ? a : b; }
#endif
