/* SPDX-License-Identifier: Apache-2.0
 * How a pointwise convolution is cut into blocks (kernel.cuh); pysim/algorithms/gpu/pointwise.py computes the same.
 *
 * An SM has one block. It keeps a part of the filters in shared memory, in groups of 128 bytes of results (64 filters of f16, 32 of tf32), or of 64 bytes
 * if there are no more. Each of its warps has `stages` buffers for the channels of WINDOWS windows. A block keeps all filters, so that the input is read
 * once, if they leave room for BESIDE_ALL buffers. Of the possible numbers of warps and stages, those with the fewest tiles of a warp are taken, of these
 * the most stages, of these the fewest warps.
 *
 * Worked number: 24 -> 144 channels of f16 at 56x56, batch 32, 132 SMs: one block of channels, three groups of 4 KiB. 3,136 tiles are two for each of the
 * 12 warps of a block; four buffers of 1,536 bytes for each warp and the filters take 84 KiB. */
#ifndef PYSIM_CUDA_CONV_POINTWISE_TILES_H
#define PYSIM_CUDA_CONV_POINTWISE_TILES_H
#include <algorithm>

#include "abi/arguments.h"
#include "conv/conv.h"
#include "core/decomposition.cuh"
#include "core/limits.h"

namespace pysim::pointwise {

enum { WINDOWS = 32 /* of a warp */, VECTOR = 16, BLOCK_BYTES = 4 * VECTOR /* of a window's channels */, ZEROS = 128 /* bytes */ };
enum { MIN_WARPS = 4, MAX_WARPS = 16, MAX_STAGES = 4, BESIDE_ALL = 16 /* buffers */ };

struct Tiling {
    int run;                    /* neighbouring results of a lane; eight lanes have a group */
    int blocks_k;               /* blocks of channels */
    int groups, parts;          /* groups of filters of a block; blocks that share windows */
    int warps, stages;          /* of a block; of a warp */
    int stage, filters, shared; /* bytes of a buffer, of the filters, in all */
    int tiles, workers;         /* tiles of WINDOWS windows; blocks of a part */
};

/* The tiling of `c` on `sms` SMs with `held` bytes of shared memory for a block; shared = 0: there is none. */
inline Tiling tiling_of(const Conv &c, int sms, int held = limit::GROUPED_HELD) {
    const int element = dtypes[c.dtype].bytes;
    Tiling t = {};
    t.run = (c.filters * element > BLOCK_BYTES ? VECTOR : VECTOR / 2) / element;
    const int all_groups = ceil_div(c.filters, 8 * t.run);
    t.blocks_k = ceil_div(c.channels, BLOCK_BYTES / element), t.tiles = ceil_div(c.windows, WINDOWS),
    t.stage = WINDOWS * c.channels * element;
    const int64_t group_bytes = (int64_t)t.blocks_k * BLOCK_BYTES * 8 * t.run;
    const int64_t most = std::min<int64_t>(limit::POINTWISE_ALL_FILTERS, held - ZEROS - (int64_t)BESIDE_ALL * t.stage);
    const int fitting = all_groups * group_bytes <= most ? all_groups : (int)std::max<int64_t>(1, limit::POINTWISE_FILTERS / group_bytes);
    const int idle = sms * MAX_WARPS / t.tiles; /* warps without tiles: they share out the filters */
    t.groups = ceil_div(all_groups, std::min(all_groups, std::max(ceil_div(all_groups, fitting), idle)));
    t.parts = ceil_div(all_groups, t.groups), t.filters = (int)std::min<int64_t>(t.groups * group_bytes, held);
    const int workers = std::max(1, sms / t.parts);
    int fewest = 0; /* tiles of a warp */
    for (int stages = MAX_STAGES; stages >= 2; stages--)
        for (int warps = MIN_WARPS; warps <= MAX_WARPS; warps++) {
            const int64_t shared = t.filters + ZEROS + (int64_t)warps * stages * t.stage;
            const int rounds = ceil_div(t.tiles, workers * warps);
            if (shared > held || (fewest && rounds >= fewest)) continue;
            fewest = rounds, t.warps = warps, t.stages = stages, t.shared = (int)shared,
            t.workers = std::min(workers, ceil_div(t.tiles, warps));
        }
    return t;
}
}
#endif
