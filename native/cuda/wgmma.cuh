/* SPDX-License-Identifier: Apache-2.0
 * Hopper's GEMM: C = f(alpha op(A) op(B) + beta C + bias) with wgmma, tiles brought by the tensor copy engine.
 *
 * One block per multiprocessor stays for the whole product (grid = multiprocessors) and walks its tiles. A block is
 *   one producer warp      keeps `STAGES` tiles of A and B in flight: waits until a stage is empty, announces its bytes, starts the copies
 *   consumer warpgroups    each multiplies its WARP_M x WARP_N part of the tile out of shared memory into registers; the next tile's
 *                          loads are under way while they write theirs
 * The blocks of a cluster work on neighbouring tiles in step: those in one column share B, those in one row share A; each loads its
 * part of what is shared and multicasts it. A stage is 128 bytes of k, whatever the type: BLOCK_K elements.
 *
 * Worked number: 128x256x64 of f16, 4 stages, cluster 2x1: a stage is (128 + 256) * 128 = 48 KiB, of which a block loads 16 + 16 KiB; two
 * consumers multiply 64x256x64 each in 4 instructions of 128 cycles at 512 multiply-adds per cycle in each of 4 tensor cores: 1024 cycles
 * for both, that is 32 bytes per cycle and multiprocessor from L2. Sums take 64*256/128 = 128 registers of a thread. */
#ifndef PYSIM_CUDA_WGMMA_CUH
#define PYSIM_CUDA_WGMMA_CUH
#include "decomposition.cuh"
#include "wgmma_epilogue.cuh"
#include "wgmma_mma.cuh"
#include "wgmma_ptx.cuh"

namespace pysim {
namespace hopper {

/* A row of gemms.inc. */
template <int DTYPE_, int BLOCK_M_, int BLOCK_N_, int WARP_M_, int WARP_N_, int STAGES_, int CLUSTER_M_, int CLUSTER_N_> struct Shape {
    static constexpr int DTYPE = DTYPE_, BLOCK_M = BLOCK_M_, BLOCK_N = BLOCK_N_, WARP_M = WARP_M_, WARP_N = WARP_N_, STAGES = STAGES_,
                         CLUSTER_M = CLUSTER_M_, CLUSTER_N = CLUSTER_N_;
    using Type = hopper::Type<DTYPE>;
    static constexpr int BYTES = Type::BYTES, BLOCK_K = 128 / BYTES, BLOCKS = CLUSTER_M * CLUSTER_N;
    static constexpr int CONSUMERS = BLOCK_M / WARP_M * (BLOCK_N / WARP_N), THREADS = 128 * (CONSUMERS + 1);
    /* producers and consumers start with equal registers; large tiles need the producer's */
    static constexpr bool HANDS_OVER = CONSUMERS == 2 && WARP_M * WARP_N >= 64 * 256;
    static constexpr int PARTS = WARP_M / 64, SUMS = WARP_N / 2; /* instructions along m, and each one's registers */
    static constexpr int A_BYTES = BLOCK_M * 128, B_BYTES = BLOCK_N * 128, STAGE_BYTES = A_BYTES + B_BYTES;
    /* what one block loads of a tile that the cluster shares */
    static constexpr int A_SHARE = BLOCK_M / CLUSTER_N, B_SHARE = BLOCK_N / CLUSTER_M;
    static constexpr int SHARED_BYTES = STAGES * STAGE_BYTES + 16 * STAGES + 16 + 1024; /* stages, barriers, a flag, room to align */
    static_assert(A_SHARE % 64 == 0 && B_SHARE % 64 == 0 && A_SHARE <= 256 && B_SHARE <= 256, "boxes of the copy engine");
    static_assert(BLOCK_M % WARP_M == 0 && BLOCK_N % WARP_N == 0 && WARP_M % 64 == 0, "warpgroups tile the block");
};

/* Where a block stands in its ring of stages. */
struct Ring {
    int stage = 0, parity = 0;
    template <int STAGES> __device__ void advance() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

/* Shared memory of a block. */
template <class S> struct Stages {
    uint32_t data, barriers;
    __device__ uint32_t a(int stage) const { return data + stage * S::STAGE_BYTES; }
    __device__ uint32_t b(int stage) const { return data + stage * S::STAGE_BYTES + S::A_BYTES; }
    __device__ uint32_t full(int stage) const { return barriers + 16 * stage; }
    __device__ uint32_t empty(int stage) const { return barriers + 16 * stage + 8; }
};

/* One operand's share of a stage: EXTENT rows of m (or n) from `first`, 128 bytes of k from element k, to every block in `blocks`. */
template <class S, int MN_MAJOR, int EXTENT, bool MULTICAST>
__device__ inline void load(uint32_t to, const CUtensorMap *map, uint32_t barrier, int first, int k, uint16_t blocks) {
#pragma unroll
    for (int part = 0; part < (MN_MAJOR ? EXTENT / 64 : 1); part++) {
        const int inner = MN_MAJOR ? first + 64 * part : k, outer = MN_MAJOR ? k : first;
        const uint32_t there = to + part * 64 * 128;
        if (MULTICAST) tensor_load_multicast(there, map, barrier, inner, outer, blocks);
        else tensor_load(there, map, barrier, inner, outer);
    }
}

template <class S, int TA, int TB>
__device__ inline void produce(const Stages<S> &shared, const CUtensorMap *map_a, const CUtensorMap *map_b, const Problem &p, Work &work,
                               int rank_m, int rank_n) {
    const uint16_t row = (uint16_t)(((1u << S::CLUSTER_N) - 1) << rank_m * S::CLUSTER_N); /* blocks with this rank_m: they share A */
    uint16_t column = 0;                                                                   /* with this rank_n: B */
    for (int i = 0; i < S::CLUSTER_M; i++) column |= (uint16_t)(1u << (i * S::CLUSTER_N + rank_n));
    const int share_a = rank_n * S::A_SHARE, share_b = rank_m * S::B_SHARE;
    Ring ring;
    for (Tile t; work.next(t);) {
        const int m = (t.i * S::CLUSTER_M + rank_m) * S::BLOCK_M + share_a, n = (t.j * S::CLUSTER_N + rank_n) * S::BLOCK_N + share_b;
        for (int step = t.begin; step < t.end; step++, ring.advance<S::STAGES>()) {
            const uint32_t full = shared.full(ring.stage);
            barrier_wait(shared.empty(ring.stage), ring.parity ^ 1);
            barrier_arrive_expect(full, S::STAGE_BYTES);
            load<S, TA, S::A_SHARE, (S::CLUSTER_N > 1)>(shared.a(ring.stage) + share_a * 128, map_a, full, m, step * S::BLOCK_K, row);
            load<S, TB, S::B_SHARE, (S::CLUSTER_M > 1)>(shared.b(ring.stage) + share_b * 128, map_b, full, n, step * S::BLOCK_K, column);
        }
    }
}

/* The products of one stage, as one group. `a`, `b`: where this warpgroup's rows of the tiles begin. */
template <class S, int TA, int TB>
__device__ inline void multiply(typename S::Type::Acc (&sum)[S::PARTS][S::SUMS], uint32_t a, uint32_t b) {
    /* 32 bytes of k: along a K-major row, or 16 rows of an MN-major one */
    constexpr int NEXT_A = TA ? 2048 : 32, NEXT_B = TB ? 2048 : 32;
    mma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int part = 0; part < S::PARTS; part++)
            S::Type::template multiply<TA, TB>(sum[part], matrix(a + part * 64 * 128 + k * NEXT_A, 8192), matrix(b + k * NEXT_B, 8192));
    mma_commit();
}

template <class S, int TA, int TB>
__device__ inline void consume(const Stages<S> &shared, int *flag, const Problem &p, const Problem &mine, Work &work, int rank_m, int rank_n) {
    using Acc = typename S::Type::Acc;
    const int thread = threadIdx.x, group = thread / 128, lane = thread % 32;
    const int row = group / (S::BLOCK_N / S::WARP_N) * S::WARP_M, column = group % (S::BLOCK_N / S::WARP_N) * S::WARP_N;
    /* A stage is free for a block's producer when all blocks that it writes to have read it: one arrival per warp and such block. */
    const int waiter = lane < S::CLUSTER_N ? rank_m * S::CLUSTER_N + lane                                            /* this row's */
                                           : (lane - S::CLUSTER_N + (lane - S::CLUSTER_N >= rank_m)) * S::CLUSTER_N + rank_n; /* column's others */
    const bool tells = lane < S::CLUSTER_M + S::CLUSTER_N - 1;
    Ring ring;
    for (Tile t; work.next(t);) {
        Acc sum[S::PARTS][S::SUMS] = {};
        int before = -1;
        for (int step = t.begin; step < t.end; step++, ring.advance<S::STAGES>()) {
            barrier_wait(shared.full(ring.stage), ring.parity);
            multiply<S, TA, TB>(sum, shared.a(ring.stage) + row * 128, shared.b(ring.stage) + column * 128);
            mma_wait<1>(); /* one group stays in flight; the one before is done with its stage */
            if (before >= 0 && tells) barrier_arrive_at(shared.empty(before), waiter);
            before = ring.stage;
        }
        mma_wait<0>();
        if (before >= 0 && tells) barrier_arrive_at(shared.empty(before), waiter);
        const auto sync = [] { sync_threads(1, 128 * S::CONSUMERS); };
        auto &sums = reinterpret_cast<Acc(&)[S::PARTS * S::SUMS]>(sum);
        if (meet(mine, work, t, sums, thread, 128 * S::CONSUMERS, flag, sync))
            store_tile<S>(p, (t.i * S::CLUSTER_M + rank_m) * S::BLOCK_M + row, (t.j * S::CLUSTER_N + rank_n) * S::BLOCK_N + column, sum);
    }
}

template <class S, int TA, int TB>
__global__ void __launch_bounds__(S::THREADS, 1)
    wgmma_kernel(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b, const __grid_constant__ Problem p) {
    extern __shared__ char memory[];
    Stages<S> shared;
    shared.data = (shared_address(memory) + 1023) / 1024 * 1024;
    shared.barriers = shared.data + S::STAGES * S::STAGE_BYTES;
    int *flag = (int *)(memory + (shared.barriers + 16 * S::STAGES - shared_address(memory)));
    const int rank = S::BLOCKS > 1 ? cluster_rank() : 0, rank_m = rank / S::CLUSTER_N, rank_n = rank % S::CLUSTER_N;
    if (threadIdx.x == 0) {
        tensor_prefetch(&map_a);
        tensor_prefetch(&map_b);
        for (int stage = 0; stage < S::STAGES; stage++) {
            barrier_init(shared.full(stage), 1);
            barrier_init(shared.empty(stage), 4 * S::CONSUMERS * (S::CLUSTER_M + S::CLUSTER_N - 1));
        }
        barrier_init_done();
    }
    if (S::BLOCKS > 1) cluster_sync();
    else __syncthreads();

    /* the decomposition sees clusters; each block of one keeps flags and partial sums of its own */
    const Grid grid(p, S::BLOCK_M * S::CLUSTER_M, S::BLOCK_N * S::CLUSTER_N, S::BLOCK_K);
    Work work(p, grid, blockIdx.x / S::BLOCKS, gridDim.x / S::BLOCKS);
    if (threadIdx.x >= 128 * S::CONSUMERS) {
        if (S::HANDS_OVER) registers_down<40>();
        if (threadIdx.x == 128 * S::CONSUMERS) produce<S, TA, TB>(shared, &map_a, &map_b, p, work, rank_m, rank_n);
    } else {
        if (S::HANDS_OVER) registers_up<232>();
        Problem mine = p;
        mine.flags += rank * grid.tiles();
        mine.partials = (typename S::Type::Acc *)mine.partials + rank * grid.slots(p) * S::BLOCK_M * S::BLOCK_N;
        consume<S, TA, TB>(shared, flag, p, mine, work, rank_m, rank_n);
    }
    if (S::BLOCKS > 1) cluster_sync(); /* nobody leaves while others may still signal or fill its shared memory */
}
}
}
#endif
