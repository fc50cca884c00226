/* SPDX-License-Identifier: Apache-2.0
 * How a convolution of few channels a group is cut into blocks (kernel.cuh); pysim/algorithms/gpu/grouped.py computes the same.
 *
 * A block has a rectangle of up to WINDOWS windows of one image (of a volume: of one slice), and either several groups with up to FILTERS channels and filters in total, or
 * FILTERS filters of one group. Shared memory holds, in this order: the offset of each unit of k from a window's first pixel (ints), the rectangle of
 * pixels that its windows use, its filters, and accumulators. A unit is 8 bytes of channels of one tap; an instruction's k has four units.
 *
 * `single`: one group, with all its filters if they fit. A block keeps the filters for one rectangle after another; the next rectangle's pixels are
 * loaded into a second buffer while these are multiplied. Results are stored from registers, so shared memory holds no accumulators. If a group has so
 * few channels that several taps of a kernel row fit into a unit, a unit has `fold` taps, and pixels are stored that many times.
 *
 * Worked numbers: 32 groups of 4 channels at 56 x 56, f16: 8 groups, 8 x 8 windows, 10 x 10 pixels of 80 bytes, 32 filters of 96. One group of one
 * channel, 3 x 3 taps, f16, single: units of 3 taps, so one k-iteration has all of k. */
#ifndef PYSIM_CUDA_CONV_GROUPED_TILES_H
#define PYSIM_CUDA_CONV_GROUPED_TILES_H
#include <algorithm>

#include "abi/arguments.h"
#include "conv/conv.h"
#include "core/decomposition.cuh"
#include "core/limits.h"

namespace pysim::grouped {

enum { WINDOWS = (int)limit::GROUPED_WINDOWS, FILTERS = (int)limit::GROUPED_FILTERS };
enum { SINGLE_WINDOWS = (int)limit::GROUPED_SINGLE_WINDOWS, SINGLE_FILTERS = (int)limit::GROUPED_SINGLE_FILTERS };
enum {
    UNIT = 8,
    STEP_UNITS = 4,
    SUM_PITCH = FILTERS + 4,
    CHUNK = 32 /* windows of a warp */,
    ACROSS = 32 /* filters of a warp, single */,
    SECTOR = 32 /* bytes of memory */
};
enum { BLOCKS = 4, SINGLE_BLOCKS = 3 }; /* blocks that an SM's registers must suffice for */

/* The tiling of a launch. */
struct Tiling {
    int single, fold;                 /* taps of a unit */
    int across, taps, units, steps;   /* taps (folds of taps) of a kernel row, of the kernel; units of a tap; k-iterations */
    int groups, filters, slots;       /* of a block: groups, filters of a group, filters in shared memory */
    int high, wide, tiles_h, tiles_w; /* a rectangle in windows; rectangles of an image, of a volume of a slice */
    int down, rows, columns;          /* pixels that a rectangle reads: rows of a slice, of all slices of the kernel; columns */
    int pitch, filter_pitch;          /* bytes from a pixel, a filter, to the next */
    int sum_row;                      /* NCHW: accumulators from one filter to the next; never more memory than NHWC's layout */
    /* byte offsets in shared memory; tile, shared: bytes of a rectangle's pixels, in all */
    int at_windows, tile, at_filters, at_sums, shared;

    /* Computes the fields that depend on `high` and `wide`. False if shared memory does not suffice. */
    bool place(const Conv &c) {
        tiles_h = ceil_div(c.slice_rows, high), tiles_w = ceil_div(c.out_w, wide);
        const int64_t of_slice = (int64_t)(high - 1) * c.stride_h + (int64_t)(c.kernel_h - 1) * c.dilation_h + 1;
        const int64_t side = (int64_t)(wide - 1) * c.stride_w + (int64_t)(across - 1) * fold * c.dilation_w + 1;
        if (of_slice > limit::GROUPED_SHARED / c.kernel_d || c.kernel_d * of_slice * side > limit::GROUPED_SHARED / pitch) return false;
        down = (int)of_slice, rows = c.kernel_d * down, columns = (int)side;
        at_windows = (int)round_up(steps * STEP_UNITS * (int)sizeof(int), 16);
        tile = (int)round_up(rows * columns * pitch, 16);
        at_filters = at_windows + (single ? 2 : 1) * tile;
        const int64_t sums = at_filters + round_up((int64_t)slots * filter_pitch, 16);
        const int windows = (int)round_up(high * wide, CHUNK);
        sum_row = windows + 4;
        const int64_t all = sums + (single ? 0 : windows * SUM_PITCH * (int)sizeof(float));
        at_sums = (int)sums, shared = (int)all;
        return all <= limit::GROUPED_SHARED;
    }
    int parts(const Conv &c) const { return groups > 1 ? ceil_div(c.groups, groups) : c.groups * ceil_div(c.filters, filters); }
    int64_t tiles(const Conv &c) const { return (int64_t)c.batch * (c.out_h / c.slice_rows) * tiles_h * tiles_w; }
    /* Thread blocks of a part: one per rectangle; `single`: at most as many as run at once. */
    int64_t workers(const Conv &c, int sms) const {
        if (!single) return tiles(c);
        const int held = std::min<int>(SINGLE_BLOCKS, (int)limit::GROUPED_HELD / shared);
        return std::min(tiles(c), std::max<int64_t>(1, (int64_t)sms * held / parts(c)));
    }
};

/* A pitch of at least `bytes` without bank conflicts between neighbours: `four`: when four neighbours access four units each at once; else when more
 * neighbours access two units or one each. */
inline int spread(int bytes, bool four) { return four ? (bytes + 31) / 64 * 64 + 32 : (bytes + 15) / 32 * 32 + 16; }

/* The fields that do not depend on the rectangle. */
inline Tiling kept_of(const Conv &c, bool single) {
    Tiling t = {};
    const int of_unit = UNIT / dtypes[c.dtype].bytes;
    t.single = single, t.fold = single ? std::min(std::max(1, of_unit / c.channels), c.kernel_w) : 1;
    t.across = ceil_div(c.kernel_w, t.fold);
    t.fold = ceil_div(c.kernel_w, t.across), t.taps = c.kernel_d * c.kernel_h * t.across;
    t.units = ceil_div(c.channels * t.fold, of_unit);
    if ((int64_t)t.taps * t.units > limit::GROUPED_SHARED / UNIT) return {};
    t.steps = ceil_div(t.taps * t.units, STEP_UNITS);
    t.filter_pitch = spread(t.steps * STEP_UNITS * UNIT, true);
    if (single) {
        const int room = (int)limit::GROUPED_SHARED / 2 / t.filter_pitch / ACROSS * ACROSS;
        const int parts = ceil_div(c.filters, std::max<int>(ACROSS, std::min<int>(SINGLE_FILTERS, room)));
        t.groups = 1, t.slots = (int)round_up(ceil_div(c.filters, parts), ACROSS), t.filters = std::min(c.filters, t.slots);
        t.pitch = t.units == 1 ? UNIT : spread(t.units * UNIT, t.units >= STEP_UNITS && c.stride_w % 2);
        return t;
    }
    t.filters = std::min<int>(c.filters, FILTERS);
    t.groups = std::min(c.groups, std::max(1, FILTERS / std::max(t.units * of_unit, c.filters)));
    t.slots = t.groups * t.filters;
    t.pitch = spread(t.groups * t.units * UNIT, t.units >= STEP_UNITS && c.stride_w % 2);
    return t;
}

/* The tiling of `c` on `sms` SMs; shared = 0: there is none. */
inline Tiling tiling_of(const Conv &c, int sms, bool single) {
    Tiling t = kept_of(c, single), best = {};
    const int most = single ? (int)SINGLE_WINDOWS : (int)WINDOWS;
    const int fours = single && !c.nhwc && c.out_w % 4 == 0 ? 4 : 1;        /* windows that are stored at once */
    const int run = single && !c.nhwc ? SECTOR / dtypes[c.dtype].bytes : 1; /* windows of a row that fill a sector */
    /* Minimises pixels read plus windows multiplied, over all blocks, or over one block per SM if there are fewer. Only sizes that cut the image
     * evenly are tried: rectangles differ by at most a row or column. */
    const auto even = [](int size, int of) { return ceil_div(of, ceil_div(of, size)) == size; };
    int64_t least = 0;
    for (t.wide = t.steps ? std::min(c.out_w, most) : 0; t.wide > 0; t.wide--)
        for (t.high = std::min(c.slice_rows, most / t.wide); even(t.wide, c.out_w) && t.wide % fours == 0 && t.high > 0; t.high--) {
            if (!even(t.high, c.slice_rows) || !t.place(c)) continue;
            const int touched = t.rows * ((t.wide - 1) * c.stride_w + (c.kernel_w - 1) * c.dilation_w + 1);
            const int64_t windows = std::max(round_up(t.high * t.wide, CHUNK), t.high * round_up(t.wide, run)),
                          blocks = t.tiles(c) * t.parts(c);
            const int64_t cost = std::max<int64_t>(blocks, sms) * (touched + windows);
            if (!best.shared || cost < least) least = cost, best = t;
        }
    return best;
}
}
#endif
