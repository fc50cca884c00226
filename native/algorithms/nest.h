/* SPDX-License-Identifier: Apache-2.0
 * The macro-kernel: SConv's five loops (convolution slicing, arXiv 2303.04739) over tiles of windows x filters x channels. */
#ifndef PYSIM_NEST_H
#define PYSIM_NEST_H
#include "algorithms/nest/data.h"

/* Workspace bytes for `threads` threads, or an overflow error. */
pysim_status pysim_nest_workspace(const pysim_nest *n, int32_t threads, int64_t *bytes);

/* Workspace bytes for `threads` threads of `each` bytes, or an overflow error. */
pysim_status pysim_threads_workspace(int64_t each, int32_t threads, int64_t *bytes);

/* Checks a schedule against the nest and stores a copy with k2 and k3 clamped to the numbers of tiles. */
pysim_status pysim_nest_schedule(pysim_nest *n, const pysim_schedule *s, int in_place_legal);

/* Calls item(i, thread, context) for each i < items on `threads` threads, numbered 0 .. threads-1. */
typedef void (*pysim_item)(int64_t item, int64_t thread, const void *context);
void pysim_parallel_for(int64_t items, int32_t threads, pysim_item item, const void *context);

/* Into how many parts each item must be cut so that all parts divide evenly among the threads; 1 if there are many items. */
int64_t pysim_split_count(int64_t items, int64_t threads);

/* For profiles: monotonic seconds; and adding one thread's profile to the run's (NULL: no profile wanted). */
double pysim_now(void);
void pysim_add_profile(pysim_profile *profile, const pysim_profile *own);

/* Runs all tiles of `images` nests on `threads` threads, in the workspace that pysim_nest_workspace asked for. Each nest is a copy of `n`
 * filled in by prepare(); a single one that is not divided is `n` itself. One thread computes a tile in one order, so the bits do not depend
 * on the number of threads. Adds to the profile if one is given. */
typedef void (*pysim_nest_image)(pysim_nest *n, int64_t image, const void *context);
void pysim_nest_run(pysim_nest *n, int64_t images, pysim_nest_image prepare, const void *context, int32_t threads, char *workspace,
                    pysim_profile *profile);

/* k-iterations that panels hold for `k` neighbouring ones, and for channels [0, c0) of a kernel row: whole groups in each set. */
static inline int64_t pysim_nest_depth(const pysim_nest *n, int64_t k) { return pysim_ceil_div(k, n->row.group) * n->row.group; }
static inline int64_t pysim_nest_channels_depth(const pysim_nest *n, int64_t c0) {
    const int64_t set = n->schedule.channels;
    return c0 / set * pysim_nest_depth(n, set * n->taps) + pysim_nest_depth(n, c0 % set * n->taps);
}

/* `fill` and `flip` of a segment for packers that know neither: [c][s][pitch] or, with taps 1 and pitch the row's, any panel. */
void pysim_fill_segment(const pysim_segment *s, void *dst);

/* Adds `flip` of the nest to the elements of a panel of filters with k iterations. */
void pysim_flip_filters(const pysim_nest *n, int64_t k, void *panel);

/* What s8 sums of this row need so that they are those of (x - zero) of the first operand: its elements get `flip` while they are packed. Returns
 * the number that they stand for zero by. */
int32_t pysim_nest_signs(pysim_nest *n, const pysim_epilogue *e);

/* Fills in `rescale` and the result's bytes; `along_windows`: scales are of windows, not of filters. */
void pysim_nest_rescale(pysim_nest *n, const pysim_epilogue *e, int along_windows);

/* Offset in elements of channel c0 and filter tile `tile` in the packed filters of a group: [channel set][filter
 * tile][r][c][s][schedule.filters]. */
int64_t pysim_nest_filter_offset(const pysim_nest *n, int64_t c0, int64_t nc, int64_t tile);
/* The same for packed windows of a product: [channel set][window tile][c][schedule.windows]. */
int64_t pysim_nest_window_offset(const pysim_nest *n, int64_t c0, int64_t nc, int64_t tile);

/* padding.c: `finish` of a padded convolution whose weights are not all finite. */
void pysim_recompute_padded(const pysim_nest *n);
#endif
