/* SPDX-License-Identifier: Apache-2.0
 * The contract between Winograd's loops (winograd.c) and the transforms of a target and dtype (templates/winograd.c).
 *
 * F(m x m, r x r), the forms of winograd.inc, also along one axis, F(m x 1, r x 1) and F(1 x m, 1 x r): tiles of m x m outputs, numbered t = (slice * tiles_h + row) * tiles_w + column, read patches
 * of e x e inputs, e = m + r - 1. Slices are those of the outputs of all images; an image that is no volume is one slice:
 *
 *   V = B^T d B of a patch,  U = G g G^T of a filter,  M = sum over channels of U V, element by element,  y = A^T M A
 *
 * M is e^2 matrix products, one per element of a patch ("plane"). The micro-kernel computes them with filters along its lanes (its "windows") and
 * tiles broadcast (its "filters"). Layouts in the workspace:
 *
 *   patches       [panel of tiles][plane][channel][panel_tiles]  planes are plane_pitch apart, with free elements at the end
 *                 [panel of tiles][plane][tile][channel]         if the input is in channel blocks; tiles are patch_pitch apart
 *   accumulators  [tile][plane][filters]                         of a set; planes are accumulator_pitch apart, tiles tile_pitch */
#ifndef PYSIM_WINOGRAD_H
#define PYSIM_WINOGRAD_H
#include "algorithm.h"

enum {
    PYSIM_WINOGRAD_MAX_OUTPUTS = 4,      /* m */
    PYSIM_WINOGRAD_MAX_TAPS = 5,         /* largest r; e is at most LARGEST + 2 */
    PYSIM_WINOGRAD_SLACK = 16,           /* elements behind the last channel of a plane that a transform may overwrite */
    PYSIM_WINOGRAD_MAX_PANEL_TILES = 16, /* largest number of tiles per panel of any registry row */
};

/* What winograd_direct.c reads: the convolution as it was given, not its phases. */
typedef struct {
    const pysim_conv *conv;
    const char *input, *filters; /* of the group; filters as winograd_direct.c has them */
    int64_t panel_filters;
} pysim_winograd_exact;

typedef struct {
    int64_t outputs_h, outputs_w, taps_h, taps_w; /* m, r; 1, 1 along an axis without taps */
    int64_t channels, height, width;              /* of all slices of a patch, slice by slice; of one slice of an image of the group */
    int64_t pad_top, pad_left, out_h, out_w;
    int64_t depth, slices, stride_d, dilation_d, pad_front, out_d; /* slices: kernel_d */
    int64_t tiles_h, tiles_w;                                      /* of one slice of outputs */
    int64_t image_pitch, channel_pitch;                            /* elements between images and channels of the input */
    int64_t output_pitch, filter_pitch;                            /* and between images and filters of the output */
    int64_t panel_tiles, plane_pitch, patch_pitch, accumulator_pitch, tile_pitch;
    int in_blocks, out_blocks; /* input, output are in blocks of one vector of channels, */
    int narrow_in, narrow_out; /* of bf16 */
    const char *input;         /* first image, first channel of the group; output: first filter of the group */
    char *output;
    const char *bias; /* first filter of the group, or NULL */
    pysim_bounds bounds;
    pysim_finish finish; /* applied to each filter's rows of a run of tiles */
    pysim_winograd_exact exact;
} pysim_winograd;

/* Taps [row][column][width] of one channel; taps beyond `rows` and `columns` are zero. */
typedef struct {
    const void *first;
    int64_t rows, columns, row_pitch, column_pitch;
} pysim_winograd_taps;

typedef struct {
    /* Transforms the patches of tiles [tile, tile + count), all channels, into one panel. */
    void (*patches)(const pysim_winograd *w, int64_t tile, int64_t count, void *panel);
    /* Transforms `width` filters of one channel into planes to[plane][width], to_plane elements apart. */
    void (*filters)(const pysim_winograd *w, const pysim_winograd_taps *from, int64_t width, void *to, int64_t to_plane);
    /* Transforms the accumulators of tiles [tile, tile + count) and filters [filter, filter + filters) into outputs.
     * Tiles with a result that is not finite before its bounds are computed again by pysim_winograd_recompute. */
    void (*outputs)(const pysim_winograd *w, int64_t tile, int64_t count, int64_t filter, int64_t filters, const void *accumulators);
    int takes_narrow; /* blocks of bf16 */
} pysim_winograd_transforms;

/* Slices [*first, *end) of the patches of tiles [tile, tile + count) that are not padding for all of them; at least one. */
static inline void pysim_winograd_slices(const pysim_winograd *w, int64_t tile, int64_t count, int64_t *first, int64_t *end) {
    *first = 0, *end = w->slices;
    if (w->slices == 1) return;
    const int64_t per_slice = w->tiles_h * w->tiles_w, front = tile / per_slice, back = (tile + count - 1) / per_slice;
    if (front / w->out_d != back / w->out_d) return;
    const int64_t low = front % w->out_d * w->stride_d - w->pad_front, high = back % w->out_d * w->stride_d - w->pad_front;
    while (*first < *end - 1 && high + *first * w->dilation_d < 0) ++*first;
    while (*first < *end - 1 && low + (*end - 1) * w->dilation_d >= w->depth) --*end;
}

/* winograd_direct.c: stores the results of a tile and of some filters again, from the definition; with bias and bounds, without `finish`. */
void pysim_winograd_recompute(const pysim_winograd *w, int64_t tile, int64_t filter, int64_t filters);

/* winograd_phases.c: the equivalent convolution of stride 1 with p x q outputs, on the input itself or on its phases; bytes of the phases in
 * front of a run's workspace, 0 without a stride; its input. */
pysim_conv pysim_winograd_stride_one(const pysim_conv *c, int64_t p, int64_t q);
pysim_status pysim_winograd_phases_bytes(const pysim_conv *c, int64_t p, int64_t q, int64_t *bytes);
const char *pysim_winograd_input(const pysim_job *job, const pysim_call *call);
#endif
