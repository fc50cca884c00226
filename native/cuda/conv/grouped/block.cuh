/* SPDX-License-Identifier: Apache-2.0
 * What a block of grouped/kernel.cuh computes, and which rows of the input it reads. */
#ifndef PYSIM_CUDA_CONV_GROUPED_BLOCK_CUH
#define PYSIM_CUDA_CONV_GROUPED_BLOCK_CUH
#include "conv/grouped/tiles.h"

namespace pysim::grouped {

enum { THREADS = 256, WARPS = THREADS / 32 };

/* A kernel's arguments. */
struct Grouped {
    Conv c;
    Tiling t;
    int vector, whole; /* bytes of an access to a pixel, to a filter; 0: element by element */
    int piece;         /* NCHW: columns of an access to a channel */
    int shares;        /* warps that share the same windows */
    int tiles, step;   /* rectangles of windows; distance from one of a block to its next */
    int whole_steps;   /* k-iterations at the start that need no masks */
    Divisor by_part, by_tile_w, by_tile_h, by_slices, by_down, by_wide, by_columns, by_pixels, by_places, by_units, by_vectors, by_steps,
        by_taps, by_across, by_chunks, by_share;
};

/* A block's outputs: rectangle of windows, groups, filters of each group. */
struct Block {
    int image, slice, p, q, group, groups, filter, filters; /* filter: the first, counted over all groups */
    __device__ Block(const Grouped &g, int part, int tile) {
        const Conv &c = g.c;
        int chunk;
        image = g.by_tile_h.of(g.by_tile_w.of(tile, q), p), slice = 0;
        if (c.volumes) image = g.by_slices.of(image, slice);
        p *= g.t.high, q *= g.t.wide;
        group = g.by_chunks.of(part, chunk) * g.t.groups;
        groups = min(g.t.groups, c.groups - group);
        filter = group * c.filters + chunk * g.t.filters, filters = min(g.t.filters, c.filters - chunk * g.t.filters);
    }
};

/* Whether there is a row `line` of the pixels of a block's rectangle, and which of the input's rows it is. */
__device__ inline bool row_of(const Grouped &g, const Block &b, int line, int &row) {
    const Conv &c = g.c;
    if (!c.volumes) {
        row = b.p * c.stride_h - c.pad_top + line;
        return (unsigned)row < (unsigned)c.height;
    }
    int below;
    const int t = g.by_down.of(line, below);
    const int d = b.slice * c.stride_d - c.pad_front + t * c.dilation_d, h = b.p * c.stride_h - c.pad_top + below;
    row = d * c.height + h;
    return (unsigned)d < (unsigned)c.depth && (unsigned)h < (unsigned)c.height;
}
}
#endif
