/* SPDX-License-Identifier: Apache-2.0
 * Products of f32 as three of tf32 (core/split.cuh). B comes in halves, hi(B) above lo(B) in every stage: they were made ahead. A comes as it is: a
 * warpgroup reads its rows of a stage into registers, in the order that wgmma takes them from there, and splits them while its last
 * products are still under way. So shared memory holds and moves three tiles for three products, and A may lie either way.
 *
 * The accumulators of tensor cores cut bits off whatever is added: of PROMOTION of k the small products come first, hi(A) waiting in
 * registers, and then the large ones, as few as there are; and after them the accumulators are added to sums in registers and start from zeros.
 *
 * Worked number: 128x128x32, 4 stages: a stage is 16 + 32 KiB; its three products take 3 * 128 * 128 * 32 / 1024 = 1536 cycles, so 32
 * bytes per cycle and multiprocessor from L2, 21 where a cluster of two shares B. Registers: 64 accumulators, 64 sums, 48 of A's halves. */
#ifndef PYSIM_CUDA_HOPPER_SPLIT_CUH
#define PYSIM_CUDA_HOPPER_SPLIT_CUH
#include "core/split.cuh"
#include "mainloop/hopper/mma.cuh"
#include "mainloop/hopper/ptx.cuh"
#include "mainloop/hopper/shape.h"

namespace pysim {
namespace hopper {

/* Where a thread's elements of A lie in a swizzled stage: rows r = 16 w + l / 4 and r + 8 of its warpgroup's 64, beginning at row `first`.
 * K-major, element k of row r lies at 128 r + 16 (k / 4 ^ r % 8) + 4 (k % 4); otherwise at 4096 (r / 32) + 128 k + 16 (r % 32 / 4 ^ k % 8) + 4 (r % 4).
 * K-major all lanes of a load touch different banks, and MN-major where lanes are two of k apart (PAIRS); one apart two lanes meet. */
template <int MN_MAJOR, bool PAIRS = MN_MAJOR != 0> struct ThreadOfA {
    enum { NEXT = PAIRS ? 2 : 1, RIGHT = PAIRS ? 1 : 4 }; /* k from one lane to the next, and from a lane's first to its second */
    uint32_t offset;
    __device__ explicit ThreadOfA(int first) {
        const int lane = threadIdx.x % 32, r = lane / 4, q = lane % 4, row = first + threadIdx.x % 128 / 32 * 16 + r;
        if (MN_MAJOR) offset = row / 32 * 4096 + q * NEXT * 128 + ((row % 32 / 4 ^ NEXT * q) * 16) + row % 4 * 4;
        else offset = row * 128 + r * 16 + q * 4;
    }
    /* Register i (mma.cuh) of the instruction of eight k that is the `group`th of the stage. */
    __device__ unsigned load(uint32_t stage, int group, int i) const {
        const int below = i % 2, right = i / 2;
        const uint32_t at = stage + offset;
        const uint32_t from = MN_MAJOR ? (at ^ (right * RIGHT * 16 + below * 32)) + right * RIGHT * 128 + group * 1024 : (at ^ ((2 * group + right) * 16)) + below * 1024;
        unsigned word;
        asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(from) : "memory");
        return word;
    }
};

/* After a wait: registers that wgmma wrote are not read before it. */
template <int COUNT> __device__ inline void written(float (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(d[i])::"memory");
}

/* What a thread keeps of a stage until the large products: its elements of hi(A). */
template <class S> struct Halves {
    enum { COLUMN_BYTES = 128, LOW = S::B_BYTES / 2 };
    using Mma = Product<S::DTYPE>;
    unsigned hi[4][4];

    /* The small products of the stage whose operands lie at `a` and `b`; `more`: onto `part` as it is. */
    template <class OfA> __device__ void add_small(float (&part)[S::SUMS], const OfA &of_a, uint32_t a, uint32_t b, int more) {
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
            mma_wait<1>(); /* those before are done with their registers */
        }
    }
    __device__ void add_large(float (&part)[S::SUMS], uint32_t b) const {
#pragma unroll
        for (int i = 0; i < 4; i++) Mma::add(part, hi[i], matrix(b + i * 32, 8192), 1);
    }
};

/* The next COUNT stages of the ring: `sum` += their products. `column`: where this warpgroup's part of B begins; release(stage) gives one back. */
template <class S, class Kept, int COUNT, class OfA, class Ring, class Stages, class Release>
__device__ __forceinline__ void promote(float (&sum)[S::SUMS], const OfA &of_a, const Stages &shared, Ring &ring, int column, Release release) {
    float part[S::SUMS];
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
    if constexpr (COUNT > 1) { /* as early as can be: the loads of the next but one are waited for */
        mma_wait<1>();
#pragma unroll
        for (int n = 0; n < COUNT - 1; n++) release(stage[n]);
    }
    mma_wait<0>();
    release(stage[COUNT - 1]);
    written(part);
#pragma unroll
    for (int i = 0; i < S::SUMS; i++) sum[i] += part[i];
}

/* `sum` += the products of the stages that follow in the ring, `steps` of them; `row` and `column`: where this warpgroup's part of the tile
 * begins. Kept: Halves, or Thirds (thirds.cuh). */
template <class S, template <class> class Kept, int TA, class Ring, class Stages, class Release>
__device__ __forceinline__ void accumulate_split(float (&sum)[S::SUMS], const Stages &shared, Ring &ring, int steps, int row, int column, Release release) {
    constexpr int TOGETHER = S::PROMOTION / S::BLOCK_K;
    const ThreadOfA<TA> of_a(row);
#pragma unroll 1
    for (; steps >= TOGETHER; steps -= TOGETHER) promote<S, Kept<S>, TOGETHER>(sum, of_a, shared, ring, column, release);
    if constexpr (TOGETHER > 1)
#pragma unroll 1
        for (; steps > 0; steps--) promote<S, Kept<S>, 1>(sum, of_a, shared, ring, column, release);
}

/* Of tf32 whose A is MN-major, as no instruction reads it from shared memory: by registers, in which A's elements of TOGETHER instructions come while
 * those before multiply, where sums leave room for both. */
template <class S, class Ring, class Stages, class Release>
__device__ __forceinline__ void accumulate_turned(typename S::Acc (&sum)[S::PARTS][S::SUMS], const Stages &shared, Ring &ring, int steps, int row, int column, Release release) {
    constexpr int TOGETHER = 2, LEFT = S::PARTS > 1 || S::SUMS > 64 ? 0 : 1;
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
                for (int i = 0; i < TOGETHER; i++) Product<PYSIM_TF32X3>::add(sum[part], of[i], matrix(b + (first + i) * 32, 8192), 1);
                mma_commit();
                mma_wait<LEFT>(); /* those before are done with their registers, and at first with their stage */
                if (first == 0 && part == 0 && before >= 0) release(before);
            }
        before = ring.stage;
    }
    mma_wait<0>();
    if (before >= 0) release(before);
}
}
}
#endif
