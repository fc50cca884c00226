/* SPDX-License-Identifier: Apache-2.0
 * What the macro-kernel computes: the nest of one image, and its tiles and panels. */
#ifndef PYSIM_NEST_DATA_H
#define PYSIM_NEST_DATA_H
#include "operators/loops.h"

/* One image of one group: an output of `filters` rows x `windows` columns, summed over `channels` channels of rows x taps kernel
 * elements. A GEMM has one row and one tap. */
typedef struct pysim_nest pysim_nest;
struct pysim_nest {
    int64_t windows, filters, channels, rows, taps;
    int64_t bytes, out_bytes; /* per element: of operands; of the output */
    int64_t sum_bytes;        /* of sums and bias */
    pysim_row row;
    pysim_schedule schedule;

    /* Packs windows [t0, t0+nw) x kernel rows [r0, r1) x channels [c0, c0+nc) as [r][c][s][schedule.windows]. */
    void (*pack_windows)(const pysim_nest *n, int64_t c0, int64_t nc, int64_t t0, int64_t nw, int64_t r0, int64_t r1, void *dst);
    /* Prefetches into L2 what pack_windows reads of channels [c0, c0+nc) for these windows; NULL if hardware does. */
    void (*fetch_windows)(const pysim_nest *n, int64_t c0, int64_t nc, int64_t t0, int64_t nw);
    /* Kernel rows [r0, r1) that at least one of the windows reads inside the image. The other kernel rows are padding for all of them:
     * they are neither packed nor computed. NULL: all rows are live. */
    void (*live_rows)(const pysim_nest *n, int64_t t0, int64_t nw, int64_t *r0, int64_t *r1);
    /* Packs filters [f0, f0+nf) as [c][schedule.filters]; NULL if `filter_data` holds panels packed once beforehand. */
    void (*pack_filters)(const pysim_nest *n, int64_t c0, int64_t nc, int64_t f0, int64_t nf, void *dst);
    int even_filters;        /* filters are divided evenly among their tiles, as no layout of panels made beforehand depends on it; else all
                              * tiles but the last are full. A last tile of few filters waits for windows from L2: 128 rows of a product as
                              * 9 x 14 + 2 take 1.08 times as long as 8 x 13 + 2 x 12, of 768 x 3072, windows packed (Zen 4) */
    int64_t filter_channels; /* channels packed into all panels of a set before the next channels; 0: all channels */
    /* Corrects a thread's results after its tiles; NULL if there is nothing to correct. */
    void (*finish)(const pysim_nest *n);

    int several;         /* images are divided among threads, which then share no panels */
    const void *problem; /* pysim_conv or pysim_gemm, for the functions above */
    const char *input;   /* image of the group, or B */
    int reads_columns;   /* the input is im2col's matrix, written by the run itself; traces need to know */
    int in_place_legal;  /* windows of the input lie in rows of k, whether or not they are packed */
    int windows_packed;  /* `input` holds panels packed once beforehand */
    int64_t input_pitch; /* elements between channels if the input is read in place */
    const char *filter_data;
    int64_t filter_pitch, filter_step; /* elements between k and between rows of A if A is read in place; else 0 */
    int64_t filter_row;                /* elements between rows of A if they are packed in the run, along k; else 0 */
    int64_t overread; /* of so many filters read in place whole groups of k may be read in rows of A whose last group is partial */
    /* Panels of filters are rows of whole groups of k, so many bytes apart, as rows that read them in place take them; 0: blocks of rows */
    int64_t row_panel;
    char *output;
    int64_t output_pitch; /* elements between filters */
    double alpha, beta;
    const char *residual; /* in the output's layout, or NULL; if given, beta is 1 */
    const char *bias_filters, *bias_windows;
    pysim_bounds bounds;
    int32_t fill, flip;       /* s8: padding of the input before, and what packing adds to its elements (pysim_segment) */
    int swapped;              /* form groups, s8: filters are unsigned */
    int both_signed;          /* form tiles, s8: neither operand is */
    pysim_rescale rescale;    /* of complete sums */
    pysim_rounding rounding;  /* of the numbers that rescaled sums then are */
    pysim_finish finish_rows; /* applied to tiles whose sums are complete */
    int prefetch_input;       /* prefetch the next tile of an input that is read in place */
    int traced;               /* addresses are recorded, and nothing is stored */
    int streams;              /* results pass the caches */
    int prefetch_output;      /* prefetch a tile's output lines before its kernel runs even if they are only written */

    int64_t window_begin, window_end, filter_begin, filter_end; /* this thread's tiles */
    int64_t tile_filters, longer_tiles;                         /* filters of a tile; the first `longer_tiles` have one more */
};

/* Filters [*f0, *f0 + *nf) of a tile. */
static inline void pysim_nest_filters_of(const pysim_nest *n, int64_t tile, int64_t *f0, int64_t *nf) {
    *f0 = tile * n->tile_filters + pysim_min(tile, n->longer_tiles);
    *nf = pysim_min(n->tile_filters + (tile < n->longer_tiles), n->filters - *f0);
}

/* Splits `count` into `parts` nearly equal ranges; [*begin, *end) is range number `part`. */
static inline void pysim_split_range(int64_t count, int64_t part, int64_t parts, int64_t *begin, int64_t *end) {
    const int64_t share = count / parts, extra = count % parts;
    *begin = part * share + pysim_min(part, extra);
    *end = *begin + share + (part < extra);
}

/* Bytes of an element in panels, in those of filters, and from a window to the next in a row of one. */
static inline int64_t pysim_panel_bytes(const pysim_nest *n) { return n->row.panel_bytes ? n->row.panel_bytes : n->bytes; }
static inline int64_t pysim_filter_bytes(const pysim_nest *n) { return n->row.filter_bytes ? n->row.filter_bytes : pysim_panel_bytes(n); }
static inline int64_t pysim_window_bytes(const pysim_nest *n) { return n->row.group > 1 ? 4 : n->bytes; }

/* Form tiles, whose panels have blocks of k; groups are 4 bytes. */
static inline int pysim_on_tiles(const pysim_nest *n) { return n->row.group > 4; }
#endif
