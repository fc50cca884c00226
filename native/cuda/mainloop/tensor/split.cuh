/* SPDX-License-Identifier: Apache-2.0
 * Products of f32 as six of bf16 thirds (core/split.cuh) on mma.sync: a warp splits its fragments when they are multiplied, so both operands may
 * lie either way and nothing is made ahead. Tensor cores cut bits off whatever is added: of an instruction's k the small products come first, and
 * every PROMOTION of k the accumulators are added to sums in registers and start from zeros.
 *
 * Worked number: warps of 64x32 read, of eight k, 768 elements, 24 a thread, and make 204 instructions of thirds, 96 of mma.sync, and 64 additions
 * every PROMOTION of k. */
#ifndef PYSIM_CUDA_TENSOR_SPLIT_CUH
#define PYSIM_CUDA_TENSOR_SPLIT_CUH
#include "core/ptx.cuh"
#include "core/split.cuh"

namespace pysim {
namespace mma_sync {

/* `part`, from zero where `first`, += the products of the fragments of TILES tiles of rows and PAIRS of two of columns, and is added to `sum` where
 * `last`. */
template <int SUMS, int TILES, int PAIRS>
__device__ inline void multiply_thirds(float (&sum)[SUMS], float (&part)[SUMS], const unsigned (&a)[TILES][4], const unsigned (&b)[PAIRS][4], bool first,
                                       bool last) {
    constexpr int ROW = SUMS / TILES; /* sums of a tile of rows: four of each tile of columns */
    static_assert(ROW == 8 * PAIRS, "two tiles a pair");
    unsigned right[3][2 * PAIRS];
#pragma unroll
    for (int j = 0; j < 2 * PAIRS; j++) { /* two elements of k, four apart, are the two that an instruction has beside one another: of A and B alike */
        const float x[2] = {__uint_as_float(b[j / 2][j % 2 * 2]), __uint_as_float(b[j / 2][j % 2 * 2 + 1])};
        split_two(x, right[0][j], right[1][j], right[2][j]);
    }
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        unsigned left[3][2];
#pragma unroll
        for (int down = 0; down < 2; down++) {
            const float x[2] = {__uint_as_float(a[i][down]), __uint_as_float(a[i][down + 2])};
            split_two(x, left[0][down], left[1][down], left[2][down]);
        }
        float(&own)[2 * PAIRS][4] = *(float(*)[2 * PAIRS][4])(part + i * ROW);
        if (first)
#pragma unroll
            for (int e = 0; e < ROW; e++) own[e / 4][e % 4] = 0;
        const auto add = [&](int of_a, int of_b) {
#pragma unroll
            for (int j = 0; j < 2 * PAIRS; j++) mma_short(own[j], left[of_a], right[of_b][j]);
        };
        add(2, 0), add(0, 2), add(1, 1), add(0, 1), add(1, 0), add(0, 0);
        if (last)
#pragma unroll
            for (int e = i * ROW; e < (i + 1) * ROW; e++) sum[e] += part[e];
    }
}
}
}
#endif
