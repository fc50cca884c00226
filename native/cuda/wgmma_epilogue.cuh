/* SPDX-License-Identifier: Apache-2.0
 * From wgmma's accumulators to C in 16-byte stores. A thread holds pairs of neighbouring columns, 8 columns apart (wgmma_mma.cuh); four
 * neighbouring lanes hold a row's 8 columns. They exchange pairs until each holds 16 neighbouring bytes of one row, so that a warp
 * writes whole 32-byte sectors and no shared memory is needed. C's sums go through here 32 columns at a time. */
#ifndef PYSIM_CUDA_WGMMA_EPILOGUE_CUH
#define PYSIM_CUDA_WGMMA_EPILOGUE_CUH
#include "epilogue.cuh"

namespace pysim {
namespace hopper {

/* word[i] of lane q becomes word[q] of lane i, among the four lanes of a quad. */
__device__ inline void transpose_quad(unsigned (&word)[4], int lane) {
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (!(i & bit)) {
                const bool upper = lane & bit;
                const unsigned received = __shfl_xor_sync(~0u, upper ? word[i] : word[i | bit], bit);
                if (upper) word[i] = received;
                else word[i | bit] = received;
            }
}

/* Two results of two columns, 8 apart, in each lane become four neighbouring columns of one of them: of `word[0..1]` in even lanes. */
__device__ inline void exchange_pair(unsigned (&word)[4], int lane) {
    const bool odd = lane & 1;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const unsigned received = __shfl_xor_sync(~0u, odd ? word[i] : word[2 + i], 1);
        if (odd) word[i] = received;
        else word[2 + i] = received;
    }
}

/* Results of columns `column` and `column + 1`, both inside C if `inside`; else those outside come out as zeros. */
template <class Acc, class Out>
__device__ inline Pack<Out, 2> results(const Epilogue<Acc, Out> &e, int row, int column, bool inside, Acc first, Acc second) {
    using T = typename Epilogue<Acc, Out>::T;
    Pack<Out, 2> result = {}, old = {};
    if (e.plain) {
        result.value[0] = Out(T(first)), result.value[1] = Out(T(second));
        return result;
    }
    const Out *from = e.c + row * e.ldc + column;
    const bool here = row < e.m;
    if (e.beta != T(0) && here && inside && e.aligned % sizeof old == 0) old = *(const Pack<Out, 2> *)from;
    else if (e.beta != T(0) && here)
        for (int i = 0; i < 2; i++)
            if (column + i < e.n) old.value[i] = from[i];
    if (inside || column < e.n) result.value[0] = e.finish(first, T(old.value[0]), column);
    if (inside || column + 1 < e.n) result.value[1] = e.finish(second, T(old.value[1]), column + 1);
    return result;
}

/* 32 columns from `column` of rows `row` and `row + 8`: v[4j + 2h + i] = row 8h, column 8j + 2q + i, q the lane in its quad. */
template <class Acc, class Out> __device__ inline void store_slice(const Epilogue<Acc, Out> &e, int row, int column, const Acc (&v)[16]) {
    const int lane = threadIdx.x % 4;
    const bool inside = column + 32 <= e.n, fast = inside && e.aligned % 16 == 0;
#pragma unroll
    for (int h = 0; h < 2; h++, row += 8) {
        Pack<Out, 2> pair[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            pair[j] = results(e, row, column + 8 * j + 2 * lane, inside, v[4 * j + 2 * h], v[4 * j + 2 * h + 1]);
        Out *to = e.c + row * e.ldc + column;
        if (!fast) {
            for (int j = 0; j < 4; j++)
                for (int i = 0; i < 2; i++)
                    if (row < e.m && column + 8 * j + 2 * lane + i < e.n) to[8 * j + 2 * lane + i] = pair[j].value[i];
        } else if constexpr (sizeof(Out) == 2) {
            unsigned word[4];
            for (int j = 0; j < 4; j++) word[j] = *(const unsigned *)&pair[j];
            transpose_quad(word, lane);
            if (row < e.m) *(uint4 *)(to + 8 * lane) = make_uint4(word[0], word[1], word[2], word[3]);
        } else {
            for (int j = 0; j < 4; j += 2) {
                const uint2 low = *(const uint2 *)&pair[j], high = *(const uint2 *)&pair[j + 1];
                unsigned word[4] = {low.x, low.y, high.x, high.y};
                exchange_pair(word, lane);
                if (row < e.m) *(uint4 *)(to + 8 * (j + lane % 2) + 4 * (lane / 2)) = make_uint4(word[0], word[1], word[2], word[3]);
            }
        }
    }
}

/* The 16 registers of 32-column slice `index`. A switch: registers have no addresses, and unrolling everything that follows would make
 * the program many times as large. */
template <int SLICES, class Acc, int PARTS, int SUMS> __device__ inline void take_slice(Acc (&v)[16], const Acc (&sum)[PARTS][SUMS], int index) {
#define PYSIM_SLICE(S)                                                                                                               \
    case S:                                                                                                                          \
        if constexpr (S < SLICES) {                                                                                                  \
            _Pragma("unroll") for (int i = 0; i < 16; i++) v[i] = sum[S * 16 / SUMS][S * 16 % SUMS + i];                               \
        }                                                                                                                            \
        break;
    switch (index) {
        PYSIM_SLICE(0) PYSIM_SLICE(1) PYSIM_SLICE(2) PYSIM_SLICE(3) PYSIM_SLICE(4) PYSIM_SLICE(5) PYSIM_SLICE(6) PYSIM_SLICE(7)
    }
#undef PYSIM_SLICE
}

/* A warpgroup's part of a tile: `row`, `column` are its first. */
template <class S, class Acc> __device__ inline void store_tile(const Problem &p, int row, int column, const Acc (&sum)[S::PARTS][S::SUMS]) {
    constexpr int SLICES = S::PARTS * S::SUMS / 16, PER_PART = S::SUMS / 16;
    static_assert(SLICES <= 8, "slices that take_slice knows");
    const int own = row + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    with_epilogue<Acc>(p, [&](const auto &e) {
#pragma unroll 1
        for (int slice = 0; slice < SLICES; slice++) {
            const int c = column + slice % PER_PART * 32;
            if (c >= e.n) continue;
            Acc v[16] = {};
            take_slice<SLICES>(v, sum, slice);
            store_slice(e, own + slice / PER_PART * 64, c, v);
        }
    });
}
}
}
#endif
