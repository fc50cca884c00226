/* SPDX-License-Identifier: Apache-2.0
 * f32 products as six bf16 products of thirds (core/split.cuh) on mma.sync. A warp splits its fragments just before it multiplies them, so both operands may
 * have either layout, and nothing is split before the launch.
 *
 * Tensor cores truncate when they accumulate. So for each instruction's k the product of the first thirds, which is exact except for its own
 * accumulation, and the five smaller products each start from zero; FP32 additions, which round, add them to each other and to the accumulators.
 * A product that outweighs all others is then as accurate as by a multiply-add. A row of tiles is finished before the next, so only one row's partial
 * products are live.
 *
 * Worked number: for sixteen k, warps of 64x32 read 1,536 elements, 48 a thread, and issue 408 instructions to split them, 96 mma.sync, and 128
 * additions. */
#ifndef PYSIM_CUDA_MMA_SPLIT_CUH
#define PYSIM_CUDA_MMA_SPLIT_CUH
#include "core/ptx.cuh"
#include "core/split.cuh"

namespace pysim::mma_sync {

/* `acc` += the products of sixteen k of TILES tiles of rows and PAIRS of two of columns. load_a(tile, half, words) and load_b(pair, half, words)
 * bring the fragments of eight of them, as tf32's instruction takes them. Of those a lane has elements t and t + 4, which are the two that an
 * instruction of bf16 has beside one another: of A and B alike. */
template <int TILES, int PAIRS, int ACCUMULATORS, class LoadA, class LoadB>
__device__ inline void multiply_thirds(float (&acc)[ACCUMULATORS], LoadA load_a, LoadB load_b) {
    constexpr int ROW = ACCUMULATORS / TILES, COLUMNS = 2 * PAIRS; /* sums of a tile of rows: four of each tile of columns */
    static_assert(ROW == 4 * COLUMNS, "two tiles a pair");
    const auto split = [](unsigned one, unsigned other, unsigned &first, unsigned &second, unsigned &third) {
        const float x[2] = {__uint_as_float(one), __uint_as_float(other)};
        split_two<false>(x, first, second, third);
    };
    unsigned right[3][COLUMNS][2];
#pragma unroll
    for (int e = 0; e < COLUMNS; e++) {
        const int pair = e / 2, half = e % 2;
        unsigned words[4];
        load_b(pair, half, words);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int column = 2 * pair + i;
            split(words[2 * i], words[2 * i + 1], right[0][column][half], right[1][column][half], right[2][column][half]);
        }
    }
#pragma unroll
    for (int row = 0; row < TILES; row++) {
        unsigned left[3][4];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            unsigned words[4];
            load_a(row, half, words);
#pragma unroll
            for (int down = 0; down < 2; down++) {
                const int word = 2 * half + down;
                split(words[down], words[down + 2], left[0][word], left[1][word], left[2][word]);
            }
        }
        float large[COLUMNS][4] = {}, small[COLUMNS][4] = {};
        const auto add = [&](float (&to)[COLUMNS][4], int of_a, int of_b) {
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) mma(to[j], left[of_a], right[of_b][j], __nv_bfloat16());
        };
        add(small, 2, 0), add(small, 0, 2), add(small, 1, 1), add(small, 0, 1), add(small, 1, 0), add(large, 0, 0);
#pragma unroll
        for (int e = 0; e < ROW; e++) acc[row * ROW + e] += large[e / 4][e % 4] + small[e / 4][e % 4];
    }
}
}
#endif
