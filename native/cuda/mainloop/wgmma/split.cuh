/* SPDX-License-Identifier: Apache-2.0
 * f32 products as three tf32 products (core/split.cuh). B is split before the launch: a stage holds hi(B) above lo(B). A is split here: a
 * warpgroup loads its rows of a stage into registers, in the order in which wgmma takes A from registers, and splits them while the previous
 * products run. So shared memory holds and moves three tiles for three products, and A may have either layout.
 *
 * Tensor cores truncate when they accumulate. Therefore, within PROMOTION of k, the small products come first (hi(A) waits in registers), then the
 * large ones; then the accumulators are added to f32 registers and restart from zero.
 *
 * Worked number: 128x128x32, 4 stages: a stage is 16 + 32 KiB; its three products take 3 * 128 * 128 * 32 / 1024 = 1536 cycles, so 32
 * bytes per cycle and multiprocessor from L2, 21 where a cluster of two shares B. Registers: 64 accumulators, 64 sums, 48 halves of A. */
#ifndef PYSIM_CUDA_WGMMA_SPLIT_CUH
#define PYSIM_CUDA_WGMMA_SPLIT_CUH
#include "core/split.cuh"
#include "mainloop/wgmma/mma.cuh"
#include "core/hopper.cuh"
#include "mainloop/wgmma/shape.h"

namespace pysim::hopper {

/* Addresses of a thread's elements of A in a swizzled stage: rows r = 16 w + l / 4 and r + 8 of its warpgroup's 64, which begin at row `first`. Element k of
 * row r is at 128 r + 16 (k / 4 ^ r % 8) + 4 (k % 4) if K-major, else at 4096 (r / 32) + 128 k + 16 (r % 32 / 4 ^ k % 8) + 4 (r % 4). Loads have no bank
 * conflicts if K-major, or if MN-major with lanes two k apart (PAIRS); with lanes one k apart they have two-way conflicts. */
template <int MN_MAJOR, bool PAIRS = MN_MAJOR != 0> struct ThreadOfA {
    enum { NEXT = PAIRS ? 2 : 1, RIGHT = PAIRS ? 1 : 4 }; /* k between neighbouring lanes, and between a lane's two */
    uint32_t offset;
    __device__ explicit ThreadOfA(int first) {
        const int lane = threadIdx.x % 32, r = lane / 4, q = lane % 4, row = first + threadIdx.x % 128 / 32 * 16 + r;
        if (MN_MAJOR) offset = row / 32 * 4096 + q * NEXT * 128 + ((row % 32 / 4 ^ NEXT * q) * 16) + row % 4 * 4;
        else offset = row * 128 + r * 16 + q * 4;
    }
    /* Register i (mma.cuh) of the stage's instruction number `group`, of eight k. */
    __device__ unsigned load(uint32_t stage, int group, int i) const {
        const int below = i % 2, right = i / 2;
        const uint32_t at = stage + offset;
        const uint32_t from = MN_MAJOR ? (at ^ (right * RIGHT * 16 + below * 32)) + right * RIGHT * 128 + group * 1024
                                       : (at ^ ((2 * group + right) * 16)) + below * 1024;
        unsigned word;
        asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(from) : "memory");
        return word;
    }
};

/* Keeps the compiler from reading wgmma's results before the wait. */
template <int COUNT> __device__ inline void written(float (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(d[i])::"memory");
}

/* What a thread keeps of a stage until the large products: hi(A). */
template <class S> struct Halves {
    enum { COLUMN_BYTES = 128, LOW = S::B_BYTES / 2 };
    using Mma = Product<S::DTYPE>;
    unsigned hi[4][4];

    /* Issues the small products of the stage with operands at `a` and `b`; `more`: adds to `part`, otherwise starts it from zero. */
    template <class OfA> __device__ void add_small(float (&part)[S::ACCUMULATORS], const OfA &of_a, uint32_t a, uint32_t b, int more) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            unsigned lo[2][4];
#pragma unroll
            for (int i = 0; i < 8; i++) split_tf32(of_a.load(a, 2 * half + i / 4, i % 4), hi[2 * half + i / 4][i % 4], lo[i / 4][i % 4]);
            mma_fence();
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t k = b + (2 * half + i) * 32;
                Mma::add(part, lo[i], matrix(k, 8192), more || half || i);
                Mma::add(part, hi[2 * half + i], matrix(k + LOW, 8192), 1);
            }
            mma_commit();
            mma_wait<1>(); /* the previous group has read its registers */
        }
    }
    __device__ void add_large(float (&part)[S::ACCUMULATORS], uint32_t b) const {
#pragma unroll
        for (int i = 0; i < 4; i++) Mma::add(part, hi[i], matrix(b + i * 32, 8192), 1);
    }
};

/* acc += the products of the next COUNT stages of the ring. `column`: start of this warpgroup's part of B; release(stage) returns a stage to the producer. */
template <class S, class Kept, int COUNT, class OfA, class Ring, class Stages, class Release>
__device__ __forceinline__ void promote(float (&acc)[S::ACCUMULATORS], const OfA &of_a, const Stages &shared, Ring &ring, int column,
                                        Release release) {
    float part[S::ACCUMULATORS];
    Kept kept[COUNT];
    int stage[COUNT];
#pragma unroll
    for (int n = 0; n < COUNT; n++, ring.template advance<S::STAGES>()) {
        stage[n] = ring.stage;
        barrier_wait(shared.full(ring.stage), ring.parity);
        kept[n].add_small(part, of_a, shared.a(ring.stage), shared.b(ring.stage) + column * Kept::COLUMN_BYTES, n);
    }
#pragma unroll
    for (int n = 0; n < COUNT; n++) {
        kept[n].add_large(part, shared.b(stage[n]) + column * Kept::COLUMN_BYTES);
        mma_commit();
    }
    if constexpr (COUNT > 1) { /* as early as possible: the producer waits for these stages */
        mma_wait<1>();
#pragma unroll
        for (int n = 0; n < COUNT - 1; n++) release(stage[n]);
    }
    mma_wait<0>();
    release(stage[COUNT - 1]);
    written(part);
#pragma unroll
    for (int i = 0; i < S::ACCUMULATORS; i++) acc[i] += part[i];
}

/* acc += the products of the next `steps` stages of the ring. `row`, `column`: start of this warpgroup's part of the tile. Kept: Halves, or Thirds
 * (thirds.cuh). */
template <class S, template <class> class Kept, int TA, class Ring, class Stages, class Release>
__device__ __forceinline__ void accumulate_split(float (&acc)[S::ACCUMULATORS], const Stages &shared, Ring &ring, int steps, int row,
                                                 int column, Release release) {
    constexpr int TOGETHER = S::PROMOTION / S::BLOCK_K;
    const ThreadOfA<TA> of_a(row);
#pragma unroll 1
    for (; steps >= TOGETHER; steps -= TOGETHER) promote<S, Kept<S>, TOGETHER>(acc, of_a, shared, ring, column, release);
    if constexpr (TOGETHER > 1)
#pragma unroll 1
        for (; steps > 0; steps--) promote<S, Kept<S>, 1>(acc, of_a, shared, ring, column, release);
}

/* tf32 with an MN-major A, which wgmma cannot read from shared memory: A comes from registers, loaded for TOGETHER instructions while the previous ones
 * multiply, if the accumulators leave registers for both. */
template <class S, class Ring, class Stages, class Release>
__device__ __forceinline__ void accumulate_mn_major(typename S::Acc (&acc)[S::PARTS][S::ACCUMULATORS], const Stages &shared, Ring &ring,
                                                    int steps, int row, int column, Release release) {
    constexpr int TOGETHER = 2, LEFT = S::PARTS > 1 || S::ACCUMULATORS > 64 ? 0 : 1;
    const ThreadOfA<1, false> of_a(row);
    int before = -1;
#pragma unroll 1
    for (int step = 0; step < steps; step++, ring.template advance<S::STAGES>()) {
        barrier_wait(shared.full(ring.stage), ring.parity);
        const uint32_t a = shared.a(ring.stage), b = shared.b(ring.stage) + column * 128;
#pragma unroll
        for (int first = 0; first < 4; first += TOGETHER)
#pragma unroll
            for (int part = 0; part < S::PARTS; part++) {
                unsigned of[TOGETHER][4];
#pragma unroll
                for (int i = 0; i < 4 * TOGETHER; i++) of[i / 4][i % 4] = of_a.load(a + part * 64 * 128, first + i / 4, i % 4);
                mma_fence();
#pragma unroll
                for (int i = 0; i < TOGETHER; i++) Product<PYSIM_TF32X3>::add(acc[part], of[i], matrix(b + (first + i) * 32, 8192), 1);
                mma_commit();
                mma_wait<LEFT>(); /* the previous group has read its registers, and, first in a stage, the previous stage */
                if (first == 0 && part == 0 && before >= 0) release(before);
            }
        before = ring.stage;
    }
    mma_wait<0>();
    if (before >= 0) release(before);
}
}
#endif
