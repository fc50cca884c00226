/* SPDX-License-Identifier: Apache-2.0
 * Contracts between the macro-kernel (native/algorithms) and the ISA folders. Everything here is internal to the library. */
#ifndef PYSIM_KERNEL_H
#define PYSIM_KERNEL_H
#include "pysim.h"

/* A function with dozens of instances, each with constants for some arguments. Under AddressSanitizer and ThreadSanitizer, and without optimisation, it
 * is one function with variables instead: the instances would compile for minutes. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
#define ONE_OF_MANY static __attribute__((noinline))
#else
#define ONE_OF_MANY static inline __attribute__((always_inline))
#endif

/* Bounds that a store applies: x < low ? low : x > high ? high : x, so a NaN stays a NaN. ReLU is (0, infinity). */
typedef struct {
    double low, high;
} pysim_bounds;

/* Bounds that change no result of operands of this dtype. */
static inline pysim_bounds pysim_unbounded(int32_t dtype) {
    return dtype == PYSIM_S8 ? (pysim_bounds){INT32_MIN, INT32_MAX} : (pysim_bounds){-__builtin_inf(), __builtin_inf()};
}

/* y[f][w] = sums[f][w] scale, of filter f or window w, within the bounds; of s8 and u8 rounded half to even, then + zero. */
typedef struct {
    const float *scales;              /* NULL: sums are the result */
    int64_t filter_step, window_step; /* 0 or 1: where the next filter's and the next window's scale is */
    int32_t result, zero;             /* dtype: s8, u8 or f32 */
    float low, high;                  /* before the zero point is added */
    const pysim_byte_sum *sum;        /* NULL, or what becomes of bytes and those of `residual`, which lie as the results do */
    const uint8_t *residual;
} pysim_rescale;

/* What becomes of rescaled sums that are numbers: saturate(round(activation(number + shift) * factor) + zero), of filter f or window w. */
typedef struct {
    const float *factors, *shifts; /* no factors: no numbers become bytes; shifts may be NULL */
    int64_t factor_step;           /* 0 or 1 */
    int along_windows;             /* factors and shifts are of windows */
    int32_t result, zero;
} pysim_rounding;

/* The same of filters from f and windows from w on. */
static inline pysim_rounding pysim_rounding_at(const pysim_rounding *r, int64_t f, int64_t w) {
    pysim_rounding own = *r;
    const int64_t at = r->along_windows ? w : f;
    if (own.factors) own.factors += at * r->factor_step;
    if (own.shifts) own.shifts += at;
    return own;
}

/* Rows of lines of 64 bytes, `pitch` bytes apart; fetched into L2, or if they will be written, into L1. */
typedef struct {
    const char *at;
    int64_t pitch, rows, lines;
    int written;
} pysim_lines;
enum { PYSIM_AHEAD = 2 };

/* Epilogue of a tile: alpha*acc + bias_filters[f] + bias_windows[w] + beta*old, clamped to the bounds. */
typedef struct {
    double alpha, beta;
    const void *old;          /* NULL, the output itself, or a residual of the output's layout */
    const void *bias_filters; /* one value per filter of this tile, or NULL */
    const void *bias_windows; /* one value per window of this tile, or NULL */
    pysim_bounds bounds;
    int swapped;              /* form groups, s8: filters are the unsigned operand, not windows */
    unsigned both_signed : 1; /* form tiles, s8: neither is */
    unsigned streams : 1;     /* whole vectors of results, which begin at multiples of their size, go past the caches */
    unsigned passes : 1;      /* form tiles, unsplit: windows go past L1, which keeps the filters */
    pysim_rescale rescale;    /* of s8: of the results; scales are those of this tile */
    /* Filters are rows of whole groups of k, in place or in a panel, so many bytes apart: forms pixels and unpacked, and form tiles of 16 or 32; 0: a panel */
    int64_t filter_pitch;
    /* Form tiles, whose unit leaves the core's other units idle. Of split operands and rescaled sums: the tile before, which is stored beside the products of
     * this one, which waits then; or NULL. A call with no filters stores it. Results are complete only then. */
    struct pysim_waiting *waiting;
    pysim_lines ahead[PYSIM_AHEAD]; /* what later calls and packing read, and panels they write, fetched meanwhile */
} pysim_store;

/* Form tiles: a tile whose sums are complete, and whose results are not stored yet. */
enum { PYSIM_WAITING_BYTES = 4096, PYSIM_TILE_ROWS = 16 };
typedef struct pysim_waiting {
    pysim_store store;
    char *out;
    int64_t out_pitch, nw, nf; /* nf 0: none waits */
    int64_t turn;              /* sums[turn] are free for the next tile */
    char sums[2][PYSIM_WAITING_BYTES] __attribute__((aligned(64)));
} pysim_waiting;

/* Micro-kernel: O[f][w] for f < nf, w < nw, from two panels.
 *
 *        filters                 windows                       out
 *   k  [ f0 f1 ... F-1 ]    k  [ w0 w1 ... nw-1 ] pitch     f  [ w0 ... nw-1 ]
 *   |  [ ............. ]    |  [ .............. ]           |  [ ........... ]  out_pitch
 *
 * filters: k rows of exactly F = the registry row's filters, padded by zeros where nf < F; the whole row may be read.
 * windows: k rows, window_pitch elements apart; only the first nw of each row may be read.
 * out: nf rows, out_pitch apart; only nw of each row may be read or written. k may be 0.
 *
 * Form groups: both panels hold groups of neighbouring k, 4 bytes of them, k/group rows of [width][group]; k is a multiple of the group,
 * padded by zeros in one panel, and rows of windows may be read as whole vectors. Of s8, one operand is unsigned and `swapped` says which. Form
 * pairs: the same with two elements of k, each widened to 16 bits. Form bounded: as groups, windows unsigned; panels of filters are twice as
 * long, and `bound` bounds the weights of a packed one and fills its second half. Form pixels: the same of panels of windows, which are signed, and
 * filters are unsigned rows of whole groups of k, store->filter_pitch bytes apart. Form unpacked: the same without bounds.
 *
 * Form tiles: panels of blocks of `group` k, of panel_bytes an element; the two panels differ (native/x86/amx/split.h). Windows are 4 bytes apart.
 * Both panels are padded by zeros to whole blocks. */
typedef void (*pysim_micro_kernel)(int64_t k, const void *filters, const void *windows, int64_t window_pitch, void *out, int64_t out_pitch,
                                   int64_t nw, int64_t nf, const pysim_store *store);

/* The same, reading filters in place instead of from a panel: filter f of row p is filters[p*filter_pitch + f*filter_step]; only f < nf
 * may be read. */
typedef void (*pysim_strided_kernel)(int64_t k, const void *filters, int64_t filter_pitch, int64_t filter_step, const void *windows,
                                     int64_t window_pitch, void *out, int64_t out_pitch, int64_t nw, int64_t nf, const pysim_store *store);

/* One run of `count` windows that lie in one output row, for one kernel row, over `channels` channels:
 *
 *   dst[c*dst_channel + s*pitch + j] = row[c*row_channel + first + j*stride + s*dilation]   j < count, s < taps, c < channels
 *
 * and zero where the column index leaves [0, width). row == NULL packs zeros. Nothing outside row[c][0..width) is read.
 *
 * Packers of forms groups, pairs, bounded and tiles write whole groups. Those of forms groups, pairs and bounded write k = c*taps + s as dst[(k/group)*group*pitch + j*group + k%group], with zeros up to the end of the last
 * group, and obey `fill` and `flip`; to others these are applied by pysim_fill_segment. */
typedef struct {
    const void *row;
    int64_t row_channel, width;
    int64_t first, stride, dilation, taps;
    int64_t channels, count;
    int64_t dst_channel, pitch;
    int32_t fill, flip; /* s8: what stands for the padding, and what is then added to every element modulo 256 (0 or 128) */
} pysim_segment;
typedef void (*pysim_pack_segment)(const pysim_segment *s, void *dst);

/* dst[p*pitch + i] = src[i*ld + p] for i < rows, p < k; columns rows..pitch-1 of dst become zero. Where not_finite
 * is not NULL, *not_finite becomes 1 if any of these elements is infinite or NaN. */
typedef void (*pysim_pack_transposed)(const void *src, int64_t ld, int64_t rows, int64_t k, int64_t pitch, void *dst, int *not_finite);

typedef struct {
    pysim_pack_segment segment;
    pysim_pack_transposed transposed;
} pysim_packer;

/* A convolution with few channels per group, operands not packed; p x q outputs per filter, of volumes those of one slice. */
typedef struct {
    const pysim_conv *conv;
    int64_t p, q, channels, filters; /* channels and filters of one group */
    /* Of the kernel's slices those that lie in the volume, from the one that input and filters point at; elements between two of them in the
     * input, between channels of the input and of the weights, and between filters' outputs. An image has one slice. */
    int64_t slices, in_slice, in_channel, w_channel, out_filter;
    pysim_bounds bounds;
    int32_t zero, flip;    /* form taps: elements ^ flip are unsigned, and then have this zero point, which also stands for padding */
    pysim_rescale rescale; /* of complete sums; scales are those of the first group */
    const struct pysim_finish *finish; /* form last: NULL, or what becomes of the numbers that rescaled sums are, */
    pysim_rounding rounding;           /* and then */
} pysim_direct;

/* Columns of the padded input that one row of outputs reads. */
static inline int64_t pysim_direct_columns(const pysim_direct *of) {
    return (of->q - 1) * of->conv->stride_w + of->conv->dilation_w * (of->conv->kernel_w - 1) + 1;
}

/* Rows of it likewise; what form taps has room for behind them, twice. */
static inline int64_t pysim_direct_rows(const pysim_direct *of) {
    return (of->p - 1) * of->conv->stride_h + of->conv->dilation_h * (of->conv->kernel_h - 1) + 1;
}
#define PYSIM_DIRECT_BYTES(edge, behind) enum { PYSIM_EDGE_BYTES = edge, PYSIM_BEHIND_ROWS = behind };
#include "depthwise.inc"
#undef PYSIM_DIRECT_BYTES

/* Computes output rows [begin, end) of `groups` neighbouring groups of one image: sum + bias, clamped to the bounds; bias is NULL or has
 * one value per filter. The caller guarantees finite weights where a window meets padding. Form `planes` computes all rows of at most
 * lane_filters groups of one channel and one filter each; it keeps the transposed planes in the workspace. Form `blocks` computes
 * lane_filters such groups whose input, filters ([tap][group]) and output are in the blocked layout; it multiplies no padding. Form `taps`
 * computes s8 groups of one channel and one filter each, whose padded rows it keeps in the workspace. */
typedef void (*pysim_direct_kernel)(const pysim_direct *of, const void *input, const void *filters, const void *bias, void *out,
                                    int64_t groups, int64_t begin, int64_t end, void *workspace);

/* Product of a few vectors with a large matrix; k is the length of the sums. Rows of the matrix are ld elements apart; they run along
 * the results (axpy) or along k (dot). The vectors are stored as vectors[p/step][vector][p%step]; step is 1 (axpy) or PYSIM_VECTOR_STEP
 * (dot, zeros beyond k). */
enum { PYSIM_VECTOR_STEP = 16 };
typedef struct {
    int64_t k, n_vectors, ld;
    int64_t block;          /* block size along k, 1..k; for dot k itself or a multiple of PYSIM_VECTOR_STEP */
    int64_t prefetch_level; /* cache that receives prefetched lines of the matrix: 1 or 2 */
    const void *matrix, *vectors;
} pysim_skinny;

/* Writes partial[f*pitch + i] for f < n_vectors, i < results; i counts from result `begin`. axpy writes whole vectors of 64 bytes, so the pitch
 * must have room for them. */
typedef void (*pysim_skinny_kernel)(const pysim_skinny *of, int64_t begin, int64_t results, void *partial, int64_t pitch);

/* Some filters of a convolution over an input split into the phases of the stride: tap p of window i reads x[offsets[p] + i]. */
typedef struct {
    int64_t k, count, out_pitch; /* taps of all channels; filters, at most the registry row's; elements between filters' outputs */
    const int64_t *offsets;
    const void *filters, *bias; /* panel [k][filters of the row]; NULL or one bias per filter */
    pysim_bounds bounds;
} pysim_phases;

/* Computes `windows` neighbouring outputs of one row. Reads x in whole vectors of up to 64 bytes. */
typedef void (*pysim_phases_kernel)(const pysim_phases *of, const void *x, void *out, int64_t windows);

/* One channel set of some tiles: neighbouring pixels of a row x vectors of filters, one block of filters per vector. Strides are in
 * elements: of the input between channel blocks, kernel rows, taps and pixels; of the filters between channel blocks, kernel rows and
 * taps. At each tap, `inner` consecutive elements of the input meet `inner` consecutive rows of filters. */
typedef struct {
    int64_t blocks, rows, taps, inner;
    int64_t block, row, tap, pixel;
    int64_t filter_block, filter_row, filter_tap;
    const void *input, *filters;
    void *out;
    int64_t pixels, vectors;     /* of all tiles; `out` is not touched beyond these vectors */
    int64_t out_vector;          /* elements of `out` between vectors of filters */
    int first, last;             /* first set: sums start at the bias, else at `out`; last set: results are clamped */
    const void *bias, *residual; /* one bias per filter; residual in the layout of `out`; either may be NULL */
    pysim_bounds bounds;
    int64_t without_first; /* the first taps of each kernel row that leave out the first pixel, */
    int64_t without_last;  /* the last taps that leave out the last pixel: these pixels' elements lie in the padding */
    const char *ahead;     /* filters of a later call, prefetched `ahead_lines` lines at each tap */
    int64_t ahead_lines;
    int64_t panels, panel; /* 1, or of one pixel and tap PYSIM_NCHWC_PANELS whole panels at once; elements between their filters */
} pysim_nchwc_tile;
enum { PYSIM_NCHWC_PANELS = 4 };
typedef void (*pysim_nchwc_kernel)(const pysim_nchwc_tile *t);

typedef enum { PYSIM_FAMILY_NEST, PYSIM_FAMILY_DEPTHWISE, PYSIM_FAMILY_SKINNY, PYSIM_FAMILY_POLYPHASE, PYSIM_FAMILY_NCHWC } pysim_family;

typedef struct {
    pysim_kernel_info info;
    pysim_family family;                                           /* which algorithms run the row: decides which functions below are set */
    pysim_micro_kernel run;                                        /* rows of kernels.inc: this and `pack`, */
    pysim_strided_kernel strided;                                  /* and for form win also this */
    pysim_packer pack;                                             /* panels of windows, and of filters but for form tiles */
    pysim_packer pack_filters;                                     /* panels of filters */
    float (*weight)(const void *block, int64_t filter, int64_t k); /* of a block of filters that are not in panels as they are; else NULL */
    void (*enter)(void); /* form tiles: called by a thread before its first tile and after its last, */
    void (*leave)(void); /* or NULL */
    int32_t streams;     /* its store can pass the caches (pysim_store) */
    int32_t adds;        /* that store adds residuals of bytes, which may lie where the results will */
    int32_t rescales;    /* its store rescales sums of bytes: forms groups, pairs, bounded, pixels, unpacked and tiles */
    int32_t group;       /* elements of k beside each other in panels; 1 but for forms groups, pairs, bounded, pixels, unpacked and tiles */
    int32_t in_rows;     /* filters are read where they lie if they are rows of k, a multiple of so many of them; 0: never */
    int32_t panel_bytes; /* of an element in panels, where it is not the operands': forms pairs and pixels, form tiles in FP32; else 0 */
    int32_t filter_bytes; /* of an element in panels of filters, where these differ: forms bounded and pixels; else 0 */
    const struct pysim_quad_transforms *quads; /* form pairs: transforms of Winograd's algorithm of bytes */
    /* Forms bounded and pixels: called for each packed panel of weights of k iterations; else NULL */
    void (*bound)(int64_t k, void *panel);
    pysim_direct_kernel direct; /* rows of depthwise.inc */
    pysim_skinny_kernel skinny; /* rows of skinny.inc */
    pysim_phases_kernel phases; /* rows of polyphase.inc: this and `pack` */
    pysim_nchwc_kernel nchwc;   /* rows of direct_nchwc.inc */
} pysim_row;

/* Whether it reads rows of filters one by one: forms pixels and unpacked, beside panels of windows made beforehand. */
static inline int pysim_reads_rows(const pysim_row *row) { return row->in_rows == 1; }

/* Finds the schedule's row for this dtype and this CPU, or fails with the reason. */
pysim_status pysim_row_for(const pysim_schedule *s, int32_t dtype, pysim_row *row);
/* The same for any CPU, e.g. to validate a schedule: the row's sizes are filled in, its functions may be NULL. */
pysim_status pysim_row_of(const pysim_schedule *s, int32_t dtype, pysim_row *row);
typedef pysim_status (*pysim_row_lookup)(const pysim_schedule *s, int32_t dtype, pysim_row *row);

/* Transposes elements of a dtype on this CPU. */
pysim_pack_transposed pysim_transposer_for(int32_t dtype);

static inline int64_t pysim_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t pysim_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t pysim_max(int64_t a, int64_t b) { return a > b ? a : b; }
#endif
