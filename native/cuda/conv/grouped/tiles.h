/* SPDX-License-Identifier: Apache-2.0
 * How a convolution of few channels a group is cut into blocks (kernel.cuh), as pysim/algorithms/gpu/grouped.py cuts it, too.
 *
 * A block has a rectangle of windows of one image, WINDOWS at most, and as many groups as have FILTERS channels and filters, or FILTERS filters of
 * one. In shared memory lie, one after another: where each unit of k lies from a window's first (ints), the rectangle of pixels that its
 * windows touch, its filters, and sums. A unit is 8 bytes of channels of one tap, of which a step of an instruction's k has four.
 *
 * Worked number: 32 groups of 4 channels at 56 x 56, f16: 8 groups, 8 x 8 windows, 10 x 10 pixels of 80 bytes, 32 filters of 96. */
#ifndef PYSIM_CUDA_CONV_GROUPED_TILES_H
#define PYSIM_CUDA_CONV_GROUPED_TILES_H
#include <algorithm>

#include "abi/arguments.h"
#include "conv/conv.h"
#include "core/decomposition.cuh"
#include "core/limits.h"

namespace pysim {
namespace grouped {

enum { WINDOWS = (int)most::GROUPED_WINDOWS, FILTERS = (int)most::GROUPED_FILTERS };
enum { UNIT = 8, STEP_UNITS = 4, SUM_PITCH = FILTERS + 4, CHUNK = 32 /* windows of a warp */ };

/* What a launch's blocks have in common. */
struct Tiling {
    int taps, units, steps;             /* units of a tap; steps of all taps */
    int groups, filters;                /* of a block: groups, and filters of each */
    int high, wide, tiles_h, tiles_w;   /* a rectangle of windows, and how many an image has */
    int rows, columns;                  /* of pixels that it touches */
    int pitch, filter_pitch;            /* bytes from a pixel, a filter, to the next */
    int sum_row;                        /* NCHW: sums from a filter to the next, whose rows take no more than those of windows */
    int at_windows, at_filters, at_sums, shared;

    /* Where `high` and `wide` are set: the rest, which depends on them, if there is so much shared memory. */
    bool place(const Conv &c) {
        tiles_h = ceil_div(c.out_h, high), tiles_w = ceil_div(c.out_w, wide);
        const int64_t down = (int64_t)(high - 1) * c.stride_h + (int64_t)(c.kernel_h - 1) * c.dilation_h + 1;
        const int64_t across = (int64_t)(wide - 1) * c.stride_w + (int64_t)(c.kernel_w - 1) * c.dilation_w + 1;
        if (down * across > most::GROUPED_SHARED / pitch) return false;
        rows = (int)down, columns = (int)across;
        at_windows = (int)round_up(steps * STEP_UNITS * (int)sizeof(int), 16);
        at_filters = at_windows + rows * columns * pitch;
        at_sums = at_filters + (int)round_up(groups * filters * filter_pitch, 16);
        const int windows = (int)round_up(high * wide, CHUNK);
        sum_row = windows + 4;
        shared = at_sums + windows * SUM_PITCH * (int)sizeof(float);
        return shared <= most::GROUPED_SHARED;
    }
    int parts(const Conv &c) const { return groups > 1 ? ceil_div(c.groups, groups) : c.groups * ceil_div(c.filters, filters); }
    int64_t blocks(const Conv &c) const { return (int64_t)c.batch * tiles_h * tiles_w * parts(c); }
};

/* So many bytes or more, so that units of neighbours that are so far apart lie on different banks: of four neighbours four units of each, or of as
 * many as are on their way at once two or one. */
inline int spread(int bytes, bool four) { return four ? (bytes + 31) / 64 * 64 + 32 : (bytes + 15) / 32 * 32 + 16; }

/* The tiling of `c` on so many multiprocessors; shared: 0 where there is none. */
inline Tiling tiling_of(const Conv &c, int sms) {
    Tiling t = {}, best = {};
    const int of_unit = UNIT / dtypes[c.dtype].bytes;
    t.taps = c.kernel_h * c.kernel_w, t.units = ceil_div(c.channels, of_unit);
    if ((int64_t)t.taps * t.units > most::GROUPED_SHARED / UNIT) return best;
    t.steps = ceil_div(t.taps * t.units, STEP_UNITS);
    t.filters = std::min<int>(c.filters, FILTERS);
    t.groups = std::min(c.groups, std::max(1, FILTERS / std::max(t.units * of_unit, c.filters)));
    t.pitch = spread(t.groups * t.units * UNIT, t.units >= STEP_UNITS && c.stride_w % 2);
    t.filter_pitch = spread(t.steps * STEP_UNITS * UNIT, true);
    /* The least pixels that blocks read and windows that they multiply, of one block on each multiprocessor at least. Rectangles of an image are
     * as large as others, or a row or column smaller. */
    const auto even = [](int size, int of) { return ceil_div(of, ceil_div(of, size)) == size; };
    int64_t least = 0;
    for (t.wide = std::min<int>(c.out_w, WINDOWS); t.wide > 0; t.wide--)
        for (t.high = std::min(c.out_h, WINDOWS / t.wide); even(t.wide, c.out_w) && t.high > 0; t.high--) {
            if (!even(t.high, c.out_h) || !t.place(c)) continue;
            const int64_t cost = std::max<int64_t>(t.blocks(c), sms) * (t.rows * t.columns + round_up(t.high * t.wide, CHUNK));
            if (!best.shared || cost < least) least = cost, best = t;
        }
    return best;
}
}
}
#endif
