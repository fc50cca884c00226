/* SPDX-License-Identifier: Apache-2.0
 * The macro-kernel: SConv's five loops (SPEC: Convolution Slicing Optimization) over tiles of windows x filters x channels. */
#ifndef PYSIM_NEST_H
#define PYSIM_NEST_H
#include "../loops.h"

/* One image of one group as the loops see it: an output of `filters` rows x `windows` columns, summed over `channels` channels
 * of rows x taps kernel elements. A GEMM has one row and one tap. */
typedef struct pysim_nest pysim_nest;
struct pysim_nest {
    int64_t windows, filters, channels, rows, taps;
    int64_t bytes, out_bytes; /* of an element: operands and panels; output and bias */
    pysim_row row;
    pysim_schedule schedule;

    /* Packs windows [t0, t0+nw) x kernel rows [r0, r1) x channels [c0, c0+nc) as [r][c][s][schedule.windows]. */
    void (*pack_windows)(const pysim_nest *n, int64_t c0, int64_t nc, int64_t t0, int64_t nw, int64_t r0, int64_t r1, void *dst);
    /* Kernel rows that meet the image for at least one of the windows; the others are zero and are neither packed nor computed. */
    void (*live_rows)(const pysim_nest *n, int64_t t0, int64_t nw, int64_t *r0, int64_t *r1);
    /* Packs filters [f0, f0+nf) as [c][schedule.filters]; NULL when `filters` holds all panels, packed once. */
    void (*pack_filters)(const pysim_nest *n, int64_t c0, int64_t nc, int64_t f0, int64_t nf, void *dst);
    int64_t filter_channels; /* that all panels of a set take before the next ones; 0: all of them */
    /* What remains to be done to a thread's results after its tiles; NULL where nothing does. */
    void (*finish)(const pysim_nest *n);

    const void *problem;      /* pysim_conv or pysim_gemm, for the functions above */
    const char *input;        /* image of the group, or B */
    int reads_columns;        /* the input is a matrix of columns that the run has written, for traces */
    int windows_packed;       /* `input` holds all panels, packed once */
    int64_t input_pitch;      /* elements between channels, where the micro-kernel reads the input in place */
    const char *filter_data;  /* packed panels of the group, or A */
    int64_t filter_pitch, filter_step; /* elements of A between its k and between its rows, where the micro-kernel reads it in place; else 0 */
    char *output;
    int64_t output_pitch;     /* elements between filters */
    double alpha, beta;
    const char *residual;     /* lies as the output does, or NULL; beta is 1 with one */
    const char *bias_filters, *bias_windows;
    pysim_bounds bounds;
    pysim_finish finish_rows; /* of tiles whose sums are complete */
    int writes_far;           /* a tile's lines are asked for before its kernel, though they are only written */

    int64_t window_begin, window_end, filter_begin, filter_end; /* tiles of this thread */
};

/* Bytes that `threads` threads need, or an overflow. */
pysim_status pysim_nest_workspace(const pysim_nest *n, int32_t threads, int64_t *bytes);

/* The same of `each` bytes a thread. */
pysim_status pysim_team_workspace(int64_t each, int32_t threads, int64_t *bytes);

/* Checks a schedule against the nest and stores a copy with k2 and k3 clamped to the tile counts. */
pysim_status pysim_nest_schedule(pysim_nest *n, const pysim_schedule *s, int in_place_legal);

/* Calls item(i, thread, context) for i < items on a team of `threads` threads, thread 0 .. threads-1. */
typedef void (*pysim_item)(int64_t item, int64_t thread, const void *context);
void pysim_team(int64_t items, int32_t threads, pysim_item item, const void *context);

/* [*begin, *end): part `part` of `parts` of `count`. */
static inline void pysim_take_part(int64_t count, int64_t part, int64_t parts, int64_t *begin, int64_t *end) {
    const int64_t share = count / parts, extra = count % parts;
    *begin = part * share + pysim_min(part, extra);
    *end = *begin + share + (part < extra);
}

/* How many parts of each of so many items go round evenly among threads; 1 where the items are many. */
int64_t pysim_parts(int64_t items, int64_t threads);

/* For profiles: seconds of a clock that only goes forward; what one thread's work adds, where a profile is wanted. */
double pysim_now(void);
void pysim_add_profile(pysim_profile *profile, const pysim_profile *own);

/* Runs all tiles of `images` nests that prepare() fills, on `threads` threads, in as much workspace as pysim_nest_workspace says; each
 * tile is computed by one thread in one order, so the bits do not depend on their number. Adds to the profile, where one is given. */
typedef void (*pysim_nest_image)(pysim_nest *n, int64_t image, const void *context);
void pysim_nest_run(const pysim_nest *shared, int64_t images, pysim_nest_image prepare, const void *context, int32_t threads,
                    char *workspace, pysim_profile *profile);

/* Elements of the packed panels before channel c0 and filter tile f of an image group; panels are
 * [channel set][filter tile][r][c][s][schedule.filters]. */
int64_t pysim_nest_filter_offset(const pysim_nest *n, int64_t c0, int64_t nc, int64_t tile);
/* The same of the panels of a product's windows, [channel set][window tile][c][schedule.windows]. */
int64_t pysim_nest_window_offset(const pysim_nest *n, int64_t c0, int64_t nc, int64_t tile);

/* padding.c: the `finish` of a padded convolution whose filters are not all finite. */
void pysim_sum_again(const pysim_nest *n);
#endif
