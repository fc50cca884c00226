/* SPDX-License-Identifier: Apache-2.0
 * The constants of a row on wgmma. */
#ifndef PYSIM_CUDA_WGMMA_H
#define PYSIM_CUDA_WGMMA_H
#include "core/decomposition.cuh"

namespace pysim::hopper {

/* A type beside those of pysim.h: f32 by six products of bf16 thirds (thirds.cuh). */
enum { BF16X6 = 16 };

/* How a type is multiplied. A stage holds 128 bytes of k of each operand (Shape::ROW may be less); an instruction takes 32. MN_MAJOR: operands may be
 * MN-major. SPLIT: an element is represented by 1 + SPLIT numbers; B is split before the launch, A in registers (split.cuh, thirds.cuh). */
template <int DTYPE> struct Element;
/* clang-format off */
template <> struct Element<PYSIM_F16> { enum { BYTES = 2, MN_MAJOR = 1, SPLIT = 0 }; using Acc = float; };
template <> struct Element<PYSIM_BF16> { enum { BYTES = 2, MN_MAJOR = 1, SPLIT = 0 }; using Acc = float; };
template <> struct Element<PYSIM_TF32> { enum { BYTES = 4, MN_MAJOR = 0, SPLIT = 0 }; using Acc = float; };
template <> struct Element<PYSIM_S8> { enum { BYTES = 1, MN_MAJOR = 0, SPLIT = 0 }; using Acc = int; };
template <> struct Element<PYSIM_F8> { enum { BYTES = 1, MN_MAJOR = 0, SPLIT = 0 }; using Acc = float; };
template <> struct Element<PYSIM_TF32X3> { enum { BYTES = 4, MN_MAJOR = 1, SPLIT = 1 }; using Acc = float; };
template <> struct Element<BF16X6> { enum { BYTES = 4, MN_MAJOR = 1, SPLIT = 2 }; using Acc = float; };
/* clang-format on */

/* The tiles of a row. ROW: bytes of k in a stage, the width of TMA's and wgmma's swizzle. TAPS: a stage has TAPS tiles of B, which multiply the rows of A
 * from the first, second ... on: neighbouring taps of a convolution, whose windows lie in memory one after another. PROMOTION: k after which tensor-core accumulators are added to f32
 * registers; 0: never. PINGPONG: two sets of warpgroups alternate over a block's tiles, so that one multiplies while the other stores. NARROWEST: a launch's
 * tiles may have fewer columns, down to so many (even_columns); 0: they do not. */
template <int DTYPE_, int BLOCK_M_, int BLOCK_N_, int WARP_M_, int WARP_N_, int STAGES_, int CLUSTER_M_, int CLUSTER_N_, int PROMOTION_ = 0,
          bool PINGPONG_ = false, int ROW_ = 128, int TAPS_ = 1, int NARROWEST_ = 0>
struct Shape {
    static constexpr int DTYPE = DTYPE_, BLOCK_M = BLOCK_M_, BLOCK_N = BLOCK_N_, WARP_M = WARP_M_, WARP_N = WARP_N_, STAGES = STAGES_,
                         CLUSTER_M = CLUSTER_M_, CLUSTER_N = CLUSTER_N_, PROMOTION = PROMOTION_, SETS = PINGPONG_ ? 2 : 1, ROW = ROW_,
                         TAPS = TAPS_;
    static constexpr int NARROWEST = NARROWEST_;
    static constexpr bool NARROWS = NARROWEST > 0;
    using Element = hopper::Element<DTYPE>;
    using Acc = typename Element::Acc;
    static constexpr int BYTES = Element::BYTES, BLOCK_K = ROW / BYTES, BLOCKS = CLUSTER_M * CLUSTER_N;
    /* warpgroups that multiply one tile; all that multiply */
    static constexpr int GROUPS = BLOCK_M / WARP_M * (BLOCK_N / WARP_N), CONSUMERS = GROUPS * SETS, THREADS = 128 * (CONSUMERS + 1);
    /* all warpgroups start with equal registers; with large tiles the producer hands most of its own over (setmaxnreg) */
    static constexpr bool HANDS_OVER = (CONSUMERS == 2 && WARP_M * WARP_N >= 64 * 128) || (CONSUMERS == 3 && WARP_M * WARP_N >= 64 * 192);
    static constexpr int CONSUMER_REGISTERS = CONSUMERS == 3       ? 160
                                              : Element::SPLIT > 0 ? 232
                                                                   : 224,
                         PRODUCER_REGISTERS = CONSUMERS == 3       ? 32
                                              : Element::SPLIT > 0 ? 40
                                                                   : 56;
    /* instructions along m; accumulators of each; slices of 16 accumulators in all */
    static constexpr int PARTS = WARP_M / 64, ACCUMULATORS = WARP_N / 2, SLICES = PARTS * ACCUMULATORS / 16;
    static constexpr int B_ROW = Element::SPLIT == 2 ? 64 : ROW; /* bytes of k of one column of B, per number of an element */
    static constexpr int A_ROWS = BLOCK_M + TAPS - 1, A_BYTES = (A_ROWS * ROW + 1023) / 1024 * 1024,
                         TAP_BYTES = BLOCK_N * B_ROW * (1 + Element::SPLIT), B_BYTES = TAPS * TAP_BYTES, STAGE_BYTES = A_BYTES + B_BYTES;
    /* rows that one block loads of an operand tile that the cluster shares; of an MN-major tile whole boxes of BLOCK_K (share_of) */
    static constexpr int A_SHARE = BLOCK_M / CLUSTER_N, B_SHARE = BLOCK_N / CLUSTER_M;
    /* parts that a cluster reduces: as many as it has room for, and the stages for what a block receives (parts.cuh) */
    static constexpr int ROOM = STAGES * STAGE_BYTES / (128 * GROUPS * 16) - 4 * SLICES + 1;
    static constexpr int MAX_CLUSTER_PARTS = ROOM >= MAX_CLUSTER_BLOCKS / BLOCKS ? MAX_CLUSTER_BLOCKS / BLOCKS : 8 / BLOCKS;
    /* shared memory: stages, barriers, a flag and a barrier per set, a staging buffer per warpgroup (staging.cuh), alignment */
    static constexpr int STAGING_BYTES = 4 * 16 * 40 * 4, STAGING_OFFSET = STAGES * (STAGE_BYTES + 16) + 16 * SETS;
    static constexpr int SHARED_BYTES = STAGING_OFFSET + CONSUMERS * STAGING_BYTES + 1024;
    static_assert(SHARED_BYTES <= 227 * 1024, "shared memory of a block");
    static_assert(ROW == 128 || (ROW == 64 && BYTES == 2), "the swizzles that exist; operands read into registers need rows of 128 bytes");
    static_assert(TAPS == 1 || (CLUSTER_N == 1 && Element::SPLIT == 0), "A of several taps is not shared, nor read into registers");
    static_assert(!NARROWS || (BLOCKS == 1 && SETS == 1 && TAPS == 1 && Element::SPLIT == 0 && WARP_N == BLOCK_N),
                  "one instruction has all columns");
    static_assert(A_SHARE % 32 == 0 && B_SHARE % 32 == 0 && A_SHARE <= 256 && B_SHARE <= 256, "boxes of TMA");
    static_assert(Element::SPLIT > 0 ? PARTS == 1 && PROMOTION > 0 && PROMOTION % BLOCK_K == 0 : PROMOTION == 0,
                  "promotions of whole stages");
    static_assert(BLOCK_M % WARP_M == 0 && BLOCK_N % WARP_N == 0 && WARP_M % 64 == 0, "warpgroups tile the block");
};

/* Rows of the TMA boxes of a K-major operand with `rows` rows. If a tile has more rows than the operand, the box is cut to whole atoms of eight rows,
 * because TMA fills out-of-bounds rows more slowly than it loads. The stale rest of the stage affects no element of C. */
__host__ __device__ inline int box_rows(int share, int rows, bool whole) {
    const int atoms = (rows + 7) / 8 * 8;
    return whole || atoms > share ? share : atoms;
}

/* Rows of a tile of an operand with `rows` rows, where all tiles of up to `most` rows are to have equally many, multiples of `unit`: TMA fills rows behind
 * the operand's end more slowly than it loads. A cluster has `blocks` tiles. */
inline int even_rows(int rows, int most, int blocks, int unit) {
    const int tiles = ceil_div(rows, most * blocks) * blocks;
    return ceil_div(ceil_div(rows, tiles), unit) * unit;
}

/* Columns of tiles of `tiles_m` rows of tiles that have from `least` to `most` columns, multiples of `unit`: as many tiles as run in the waves that the
 * widest ones take, one an SM. Narrower tiles take as much less time as they have fewer columns, but the last wave of wide ones leaves SMs idle.
 * pysim/algorithms/product_tiles.py has the same rule.
 *
 * Worked number: 577 x 4096 by 128 x 192 is 5 x 22 tiles, one wave of 132 SMs; 5 x 26 tiles of 160 columns are one wave, too. */
inline int even_columns(int tiles_m, int n, int least, int most, int unit, int sms) {
    least = ceil_div(least, unit) * unit;
    const int fewest = ceil_div(n, most), waves = ceil_div(tiles_m * fewest, sms), fitting = waves * sms / tiles_m,
              narrowest = ceil_div(n, least), wanted = fitting < narrowest ? fitting : narrowest,
              columns = ceil_div(ceil_div(n, wanted > fewest ? wanted : fewest), unit) * unit;
    return columns < least ? least : columns;
}
}
#endif
