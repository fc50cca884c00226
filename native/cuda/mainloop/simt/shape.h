/* SPDX-License-Identifier: Apache-2.0
 * What the table of the simt family (simt.cu) and its kernels (simt.cuh) share: a row's constants, and the two functions of each row. */
#ifndef PYSIM_CUDA_SIMT_H
#define PYSIM_CUDA_SIMT_H
#include "simt_copy.cuh"

namespace pysim {
namespace simt {

enum Form { full, scalar, unpadded };

/* Blocks of `threads` that fit where a thread has so many registers: each of the 4 schedulers has registers for 512 of a thread's, a warp at a
 * time, by eights. */
constexpr int blocks_of(int registers, int threads) {
    const int blocks = 4 * (512 / (registers > 255 ? 256 : (registers + 7) / 8 * 8)) / (threads / 32);
    return blocks < 1 ? 1 : blocks > 16 ? 16 : blocks;
}

/* One row of gemms.inc. */
template <class Type, Form FORM, int BLOCK_M, int BLOCK_N, int BLOCK_K, int WARP_M, int WARP_N, int THREAD_M, int THREAD_N, int DEPTH>
struct Shape {
    using T = Type;
    using Unit = typename T::Unit;
    using Sum = typename T::Sum;
    enum {
        BM = BLOCK_M, BN = BLOCK_N, BK = BLOCK_K, WM = WARP_M, WN = WARP_N, TM = THREAD_M, TN = THREAD_N, STAGES = DEPTH,
        UNITS = BK / T::DEPTH,
        LM = WM / TM, LN = WN / TN,
        WARPS_M = BM / WM, WARPS_N = BN / WN, THREADS = 32 * WARPS_M * WARPS_N,
        VM = TM * (int)sizeof(Unit) > 16 ? 16 / (int)sizeof(Unit) : TM, /* units of a fragment's vectors */
        VN = TN * (int)sizeof(Unit) > 16 ? 16 / (int)sizeof(Unit) : TN,
        SUMS = TN / T::PACK,
    };
    static constexpr bool VECTOR = FORM != scalar, SWIZZLED = FORM != unpadded;
    static_assert(LM * LN == 32 && LM * TM == WM && LN * TN == WN && WARPS_M * WM == BM && WARPS_N * WN == BN, "tiles must nest");
    static_assert(STAGES >= 1 && STAGES <= 4 && UNITS % 2 == 0 && TN % T::PACK == 0 && TM % VM == 0 && TN % VN == 0, "");
    /* by whether k is contiguous in device memory; a stage is the same either way */
    template <bool K_INNER> using CopyA = Copy<T, BM, BK, THREADS, VECTOR, SWIZZLED, K_INNER>;
    template <bool K_INNER> using CopyB = Copy<T, BN, BK, THREADS, VECTOR, SWIZZLED, K_INNER>;
    enum {
        A_BYTES = BM * UNITS * (int)sizeof(Unit),
        STAGE_BYTES = A_BYTES + BN * UNITS * (int)sizeof(Unit),
        PIPE_BYTES = STAGE_BYTES * STAGES,
        TILE_BYTES = BM * BN * (int)sizeof(Sum) / T::PACK, /* the epilogue passes the tile through shared memory */
        SHARED_BYTES = PIPE_BYTES > TILE_BYTES ? PIPE_BYTES : TILE_BYTES,
        /* registers, more or less: sums, two fragments of each, the step on its way, addresses */
        REGISTERS = (TM * TN + 2 * (TM + TN)) * (int)sizeof(Unit) / 4 + (STAGES < 3 ? STAGE_BYTES / THREADS / 4 : 24) + (TM * TN < 64 ? 48 : 16),
    };
    enum { BLOCKS = blocks_of(REGISTERS, THREADS) };
};

template <class S> cudaError_t launch(const Problem &p, int sms, cudaStream_t stream);
template <class S> cudaError_t attributes(const Problem &p, pysim_cuda_attributes *out);

/* A line of gemms.inc as a Shape. */
#define PYSIM_SIMT_SHAPE(dtype, form, bm, bn, bk, wm, wn, tm, tn, stages)                                                             \
    pysim::simt::Shape<pysim::simt::Type_##dtype, pysim::simt::form, bm, bn, bk, wm, wn, tm, tn, stages>
using Type_f32 = F32;
using Type_f64 = F64;
using Type_f16 = F16;
using Type_s8 = S8;
}
}
#endif
