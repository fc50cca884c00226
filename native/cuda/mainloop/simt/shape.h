/* SPDX-License-Identifier: Apache-2.0
 * Compile-time constants of a SIMT row. */
#ifndef PYSIM_CUDA_SIMT_H
#define PYSIM_CUDA_SIMT_H
#include "mainloop/simt/copy.cuh"
#include "mainloop/simt/singles.cuh"

namespace pysim::simt {

enum Form { full, scalar, unpadded };

/* Blocks of `threads` threads per multiprocessor at `registers` registers a thread. Each of the 4 schedulers has 512 registers per lane, allocated per
 * warp in units of eight. */
constexpr int blocks_of(int registers, int threads) {
    const int blocks = 4 * (512 / (registers > 255 ? 256 : (registers + 7) / 8 * 8)) / (threads / 32);
    return blocks < 1 ? 1 : blocks > 16 ? 16 : blocks;
}

/* The tiles of a row. */
template <class Type, Form FORM, int BLOCK_M, int BLOCK_N, int BLOCK_K, int WARP_M, int WARP_N, int THREAD_M, int THREAD_N, int DEPTH,
          int BELOW = 0, int REPLACED_ON = 0, int MAX_CLUSTER_PARTS = 0>
struct Shape {
    using T = Type;
    using Unit = typename T::Unit;
    using Acc = typename T::Acc;
    enum {
        BM = BLOCK_M,
        BN = BLOCK_N,
        BK = BLOCK_K,
        WM = WARP_M,
        WN = WARP_N,
        TM = THREAD_M,
        TN = THREAD_N,
        STAGES = DEPTH,
        UNITS = BK / T::DEPTH,
        LM = WM / TM,
        LN = WN / TN,
        WARPS_M = BM / WM,
        WARPS_N = BN / WN,
        THREADS = 32 * WARPS_M * WARPS_N,
        VM = TM * (int)sizeof(Unit) > 16 ? 16 / (int)sizeof(Unit) : TM, /* units of a fragment's vectors */
        VN = TN * (int)sizeof(Unit) > 16 ? 16 / (int)sizeof(Unit) : TN,
        ACCUMULATORS = TN / T::PACK,
    };
    static constexpr bool VECTOR = FORM != scalar, SWIZZLED = FORM != unpadded;
    static_assert(LM * LN == 32 && LM * TM == WM && LN * TN == WN && WARPS_M * WM == BM && WARPS_N * WN == BN, "tiles must nest");
    static_assert(STAGES >= 1 && STAGES <= 4 && UNITS % 2 == 0 && TN % T::PACK == 0 && TM % VM == 0 && TN % VN == 0, "");
    /* K_INNER: k is contiguous in device memory; the layout of a stage is the same for both */
    template <bool K_INNER> using CopyA = Copy<T, BM, BK, THREADS, VECTOR, SWIZZLED, K_INNER>;
    template <bool K_INNER> using CopyB = Copy<T, BN, BK, THREADS, VECTOR, SWIZZLED, K_INNER>;
    /* Whether unaligned operands are loaded by Singles, which lengthens the lines of a stage by PAD units. Larger tiles have no registers left for it: their
     * vector loop would spill, too. f64 would lose its second block per SM, and gains little: 16 bytes are two elements. */
    static constexpr bool SINGLES = VECTOR && SWIZZLED && T::DTYPE == PYSIM_F32 && STAGES < 3 && BM * BN <= 128 * 64;
    template <bool K_INNER> using SinglesA = Singles<T, BM, BK, THREADS, K_INNER>;
    template <bool K_INNER> using SinglesB = Singles<T, BN, BK, THREADS, K_INNER>;
    static constexpr int CLUSTER_PARTS = MAX_CLUSTER_PARTS;
    static constexpr bool CLUSTER_SPLIT = CLUSTER_PARTS > 1; /* a cluster reduces split-K parts */
    enum {
        A_BYTES = BM * UNITS * (int)sizeof(Unit),
        STAGE_BYTES = A_BYTES + BN * UNITS * (int)sizeof(Unit),
        PAD = SINGLES ? 16 / (int)sizeof(Unit) : 0,
        PIPE_BYTES = (STAGE_BYTES + 2 * PAD * UNITS * (int)sizeof(Unit)) * STAGES,
        TILE_BYTES = BM * BN * (int)sizeof(Acc) / T::PACK, /* the epilogue stores the tile through shared memory */
        SHARED_BYTES = PIPE_BYTES > TILE_BYTES ? PIPE_BYTES : TILE_BYTES,
        /* An estimate of a thread's registers: accumulators, two fragments of each operand, the k-iteration in flight, addresses; packed accumulators
         * (f16) once more as floats, which the split-K fix-up adds. Too low an estimate makes launch bounds that spill. ptxas of CUDA 13.0 then
         * overwrote, in 64x64x8 of f16, the uniform registers that held the base of shared memory: "an illegal instruction" on an H100 and an H200. */
        REGISTERS = (TM * TN + 2 * (TM + TN)) * (int)sizeof(Unit) / 4 + (T::PACK > 1 ? TM * TN : 0) +
                    (STAGES < 3      ? STAGE_BYTES / THREADS / 4 + (TM * TN < 64 ? 48 : 16)
                     : CLUSTER_SPLIT ? 32
                     : TM * TN < 64  ? 72
                                     : 40),
    };
    enum { BLOCKS = blocks_of(REGISTERS, THREADS) };
    static constexpr int CAPABILITY = CLUSTER_SPLIT ? 90 : STAGES > 2 ? 80 : 50; /* clusters; asynchronous copies */
    static constexpr bool BUILT = has_kernel(CAPABILITY, BELOW, REPLACED_ON);
};

/* By pysim_dtype. */
template <int DTYPE> struct TypeOf;
template <> struct TypeOf<PYSIM_F32> {
    using T = F32;
};
template <> struct TypeOf<PYSIM_F64> {
    using T = F64;
};
template <> struct TypeOf<PYSIM_F16> {
    using T = F16;
};
template <> struct TypeOf<PYSIM_S8> {
    using T = S8;
};
}
#endif
