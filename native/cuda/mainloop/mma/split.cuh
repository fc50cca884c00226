/* SPDX-License-Identifier: Apache-2.0
 * f32 products as six bf16 products of thirds (core/split.cuh) on mma.sync. A warp splits its fragments just before it multiplies them, so both operands may
 * have either layout, and nothing is split before the launch.
 *
 * Tensor cores truncate when they accumulate. So for each instruction's k the product of the first thirds, which is exact except for its own
 * accumulation, and the five smaller products each start from zero; FP32 additions, which round, add them to each other and to the accumulators.
 * A product that outweighs all others is then as accurate as by a multiply-add. A row of tiles is finished before the next, so only one row's partial
 * products are live.
 *
 * Rows with a promotion of 64 add as warpgroups do (mainloop/wgmma/thirds.cuh): within 64 k one sum of all small products, then of the large ones. So a
 * few rows have the bits of many.
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

/* The same of GROUPS times sixteen k, in the order of warpgroups. */
template <int TILES, int PAIRS, int GROUPS, int ACCUMULATORS, class LoadA, class LoadB>
__device__ inline void multiply_as_warpgroups(float (&acc)[ACCUMULATORS], LoadA load_a, LoadB load_b) {
    constexpr int COLUMNS = 2 * PAIRS;
    float part[TILES * COLUMNS][4] = {};
    unsigned left[GROUPS][TILES][4], right[GROUPS][COLUMNS][2]; /* the first thirds */
    const auto split = [](unsigned one, unsigned other, unsigned &first, unsigned &second, unsigned &third) {
        const float x[2] = {__uint_as_float(one), __uint_as_float(other)};
        split_two(x, first, second, third);
    };
#pragma unroll
    for (int group = 0; group < GROUPS; group++) {
        unsigned second[COLUMNS][2], third[COLUMNS][2], words[4];
#pragma unroll
        for (int e = 0; e < COLUMNS; e++) {
            const int pair = e / 2, half = e % 2;
            load_b(pair, 2 * group + half, words);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int column = 2 * pair + i;
                split(words[2 * i], words[2 * i + 1], right[group][column][half], second[column][half], third[column][half]);
            }
        }
#pragma unroll
        for (int row = 0; row < TILES; row++) {
            unsigned two[4], three[4];
            auto &one = left[group][row];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                load_a(row, 2 * group + half, words);
#pragma unroll
                for (int down = 0; down < 2; down++) {
                    const int word = 2 * half + down;
                    split(words[down], words[down + 2], one[word], two[word], three[word]);
                }
            }
            const auto add = [&](const unsigned (&a)[4], const unsigned (&b)[COLUMNS][2]) {
#pragma unroll
                for (int j = 0; j < COLUMNS; j++) mma(part[row * COLUMNS + j], a, b[j], __nv_bfloat16());
            };
            add(three, right[group]), add(one, third), add(two, second), add(one, second), add(two, right[group]);
        }
    }
#pragma unroll
    for (int i = 0; i < GROUPS * TILES * COLUMNS; i++) {
        const int group = i / (TILES * COLUMNS), at = i % (TILES * COLUMNS);
        mma(part[at], left[group][at / COLUMNS], right[group][at % COLUMNS], __nv_bfloat16());
    }
#pragma unroll
    for (int i = 0; i < ACCUMULATORS; i++) acc[i] += part[i / 4][i % 4];
}
}
#endif
