/* SPDX-License-Identifier: Apache-2.0
 * How a pointwise convolution is cut into blocks (kernel.cuh); pysim/algorithms/gpu/pointwise.py computes the same.
 *
 * A block has a part of the filters, in groups of 64 bytes of results: 32 filters of f16, 16 of tf32. It keeps them in shared memory. Each of its warps
 * has `stages` buffers for the channels of WINDOWS windows, in blocks of 64 bytes. Of the possible numbers of warps and stages, the one with the most
 * warps on an SM is taken, and of these the one with the most stages: these bytes are in flight.
 *
 * Worked number: 24 -> 144 channels of f16: one block of k, five groups of 2 KiB; a buffer has 32 x 64 bytes. Eight warps of four buffers and the
 * filters take 74 KiB, so an SM has two blocks. */
#ifndef PYSIM_CUDA_CONV_POINTWISE_TILES_H
#define PYSIM_CUDA_CONV_POINTWISE_TILES_H
#include <algorithm>

#include "abi/arguments.h"
#include "conv/conv.h"
#include "core/decomposition.cuh"
#include "core/limits.h"

namespace pysim {
namespace pointwise {

enum { WINDOWS = 32 /* of a warp */, VECTOR = 16, BLOCK_BYTES = 4 * VECTOR /* of a window's channels, of a group's results */ };
enum { MAX_WARPS = 8, MAX_STAGES = 4, BLOCKS = 2 /* of an SM */ };

struct Tiling {
    int blocks_k;      /* blocks of channels */
    int groups, parts; /* groups of filters of a block; blocks that share windows */
    int warps, stages; /* of a block; of a warp */
    int stage, filters, shared; /* bytes of a buffer, of the filters, in all */
    int tiles, workers; /* tiles of WINDOWS windows; blocks of a part */
};

/* The tiling of `c` on `sms` SMs; shared = 0: there is none. */
inline Tiling tiling_of(const Conv &c, int sms) {
    const int element = dtypes[c.dtype].bytes, groups = ceil_div(c.filters, BLOCK_BYTES / element);
    Tiling t = {};
    t.blocks_k = ceil_div(c.channels, BLOCK_BYTES / element), t.tiles = ceil_div(c.windows, WINDOWS);
    const int64_t group_bytes = (int64_t)t.blocks_k * BLOCK_BYTES * (BLOCK_BYTES / element), stage = (int64_t)WINDOWS * t.blocks_k * BLOCK_BYTES;
    const int fitting = (int)std::max<int64_t>(1, limit::POINTWISE_FILTERS / group_bytes), idle = sms * BLOCKS * MAX_WARPS / t.tiles;
    t.groups = ceil_div(groups, std::min(groups, std::max(ceil_div(groups, fitting), idle)));
    t.parts = ceil_div(groups, t.groups), t.filters = (int)std::min<int64_t>(t.groups * group_bytes, limit::GROUPED_HELD);
    int most = 0;
    for (int warps = MAX_WARPS; warps >= MAX_WARPS / 2; warps /= 2)
        for (int stages = MAX_STAGES; stages >= 2; stages--) {
            const int64_t shared = t.filters + warps * stages * stage;
            const int blocks = (int)std::min<int64_t>(BLOCKS, limit::GROUPED_HELD / shared);
            if (blocks * warps <= most) continue;
            most = blocks * warps, t.warps = warps, t.stages = stages, t.stage = (int)stage, t.shared = (int)shared;
            t.workers = std::min(ceil_div(t.tiles, warps), std::max(1, sms * blocks / t.parts));
        }
    return t;
}
}
}
#endif
