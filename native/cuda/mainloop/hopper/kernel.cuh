/* SPDX-License-Identifier: Apache-2.0
 * Hopper's GEMM: C = f(alpha op(A) op(B) + beta C + bias) with wgmma, tiles brought by TMA.
 *
 * One block per multiprocessor stays for the whole product (grid = multiprocessors) and walks its tiles. A block is
 *   one producer thread    keeps STAGES tiles of A and B in flight: waits until a stage is empty, announces its bytes, starts the
 *                          copies
 *   consumer warpgroups    each multiplies its WARP_M x WARP_N part of the tile out of shared memory into registers; the next
 *                          tile's loads are under way while they write theirs, and its products where two sets take turns (PINGPONG)
 * The blocks of a cluster work on neighbouring tiles in step: those in one column share B, those in one row share A; each loads
 * its part of what is shared and multicasts it. A stage is ROW bytes of k, BLOCK_K elements: 128, whatever the type, but of
 * convolutions that have fewer channels.
 *
 * All of it is one function (__forceinline__): ptxas would wait for each wgmma where accumulators pass from one to another.
 *
 * What is multiplied is a type, `Operands`: Matrices here, the windows and filters of a convolution in conv/wgmma/kernel.cuh. It names the
 * kernel's arguments, finds the product among them, starts the copies of a stage and stores tiles.
 *
 * Worked number: 128x256x64 of f16, 4 stages, cluster 2x1: a stage is (128 + 256) * 128 = 48 KiB, of which a block loads
 * 16 + 16 KiB; two consumers multiply 64x256x64 each in 4 instructions of 128 cycles at 512 multiply-adds per cycle in each of 4
 * tensor cores: 1024 cycles for both, that is 32 bytes per cycle and multiprocessor from L2. Sums take 64*256/128 = 128 registers. */
#ifndef PYSIM_CUDA_WGMMA_CUH
#define PYSIM_CUDA_WGMMA_CUH
#include <cuda.h>

#include "core/decomposition.cuh"
#include "core/launch.h"
#include "mainloop/hopper/shape.h"
#include "mainloop/hopper/epilogue.cuh"
#include "mainloop/hopper/mma.cuh"
#include "mainloop/hopper/parts.cuh"
#include "mainloop/hopper/ptx.cuh"
#include "mainloop/hopper/split.cuh"
#include "mainloop/hopper/thirds.cuh"

namespace pysim {
namespace hopper {

/* Where a block stands in its ring of stages. */
struct Ring {
    int stage = 0, parity = 0;
    template <int STAGES> __device__ void advance() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
    template <int STAGES> __device__ void advance(int steps) {
        stage += steps;
        parity ^= stage / STAGES & 1;
        stage %= STAGES;
    }
};

/* Shared memory of a block. */
template <class S> struct Stages {
    uint32_t data, barriers;
    __device__ uint32_t a(int stage) const { return data + stage * S::STAGE_BYTES; }
    __device__ uint32_t b(int stage) const { return data + stage * S::STAGE_BYTES + S::A_BYTES; }
    __device__ uint32_t full(int stage) const { return barriers + 16 * stage; }
    __device__ uint32_t empty(int stage) const { return barriers + 16 * stage + 8; }
    /* Where a set says that its last products of a tile are under way. */
    __device__ uint32_t multiplied(int set) const { return barriers + 16 * S::STAGES + 16 * set + 8; }
};

/* One operand's share of a stage: EXTENT rows of m (or n) from `first`, 128 bytes of k from element k, to every block in `blocks`. */
template <class S, int MN_MAJOR, int EXTENT, bool MULTICAST>
__device__ inline void load(uint32_t to, const CUtensorMap *map, uint32_t barrier, int first, int k, uint16_t blocks) {
#pragma unroll
    for (int part = 0; part < (MN_MAJOR ? EXTENT / S::BLOCK_K : 1); part++) {
        const int inner = MN_MAJOR ? first + S::BLOCK_K * part : k, outer = MN_MAJOR ? k : first;
        const uint32_t there = to + part * S::BLOCK_K * 128;
        if (MULTICAST) tensor_load_multicast(there, map, barrier, inner, outer, blocks);
        else tensor_load(there, map, barrier, inner, outer);
    }
}

/* Rows of the boxes of a K-major operand that has `rows` in all: where those are fewer than a tile's the box has no more, but for whole atoms of eight,
 * because filling what lies outside takes longer than loading. What then is in the rest of a stage gets into no number of C. */
template <int SHARE> __host__ __device__ inline int box_rows(int rows, bool whole) {
    const int atoms = (rows + 7) / 8 * 8;
    return whole || atoms > SHARE ? SHARE : atoms;
}

/* The operands of C = op(A) op(B). How they lie is told at run time: only what loads and what multiplies is there for each way. */
struct Matrices {
    using Arguments = Problem;
    static constexpr bool RAGGED = true; /* not of convolutions, whose rows seldom are, and whose kernels are the largest */
    static __device__ const Problem &product(const Problem &p) { return p; }
    static __device__ bool b_is_one(const Problem &) { return false; } /* nobody measured what it gives them */

    /* take(A, B), 1 where it is MN-major: one of those ways that a type's operands may lie. */
    template <class S, class Take> static __device__ void with_majors(const Problem &p, Take take) {
        constexpr std::integral_constant<int, 0> K;
        constexpr std::integral_constant<int, 1> MN;
        if constexpr (!S::Element::MN_MAJOR && S::DTYPE != PYSIM_TF32) take(K, K);
        else if constexpr (S::Element::SPLIT > 0 || S::DTYPE == PYSIM_TF32) p.trans_a ? take(MN, K) : take(K, K);
        else if (p.trans_a) p.trans_b ? take(MN, K) : take(MN, MN);
        else p.trans_b ? take(K, K) : take(K, MN);
    }
    template <class S> static __host__ __device__ int box_a(const Problem &p) { return box_rows<S::A_SHARE>(p.m, p.trans_a || S::CLUSTER_N > 1 || S::Element::SPLIT > 0); }
    template <class S> static __host__ __device__ int box_b(const Problem &p) { return box_rows<S::B_SHARE>(p.n, !p.trans_b || S::CLUSTER_M > 1 || S::Element::SPLIT > 0); }

    /* A block's shares of a tile, step after step: rows from m, columns from n. */
    template <class S> struct Shares {
        const Problem &p;
        int m, n;
        __device__ Shares(const Problem &p, int m, int n, int) : p(p), m(m), n(n) {}
        /* What a stage has of each operand. */
        static __device__ int bytes_a(const Problem &p) { return S::A_BYTES / S::A_SHARE * box_a<S>(p); }
        static __device__ int bytes_b(const Problem &p) { return S::B_BYTES / S::B_SHARE * box_b<S>(p); }
        __device__ void load_a(uint32_t to, const CUtensorMap *map, uint32_t barrier, int step, uint16_t blocks) const {
            with_majors<S>(p, [&](auto a, auto) { load<S, decltype(a)::value, S::A_SHARE, (S::CLUSTER_N > 1)>(to, map, barrier, m, step * S::BLOCK_K, blocks); });
        }
        __device__ void load_b(uint32_t to, const CUtensorMap *map, uint32_t barrier, int step, uint16_t blocks) const {
#pragma unroll
            for (int i = 0; i <= S::Element::SPLIT; i++) /* of B's thirds those of all columns, then the next ones */
                with_majors<S>(p, [&](auto, auto b) {
                    load<S, decltype(b)::value, S::B_SHARE, (S::CLUSTER_M > 1)>(to + i * (S::B_BYTES / (1 + S::Element::SPLIT)), map, barrier, i * p.n + n, step * S::BLOCK_K, blocks);
                });
        }
        __device__ void next() {}
    };

    /* use(As, product, target, row) of a tile whose first row this is; ONE: of either run by one program, where there are such. */
    template <class S, bool ONE, class Use> static __device__ __forceinline__ void with_target(const Problem &p, const Tile &, int row, Use use) {
        hopper::with_target<S>(p, [&](auto as, const auto &target) { use(as, p, target, row); });
    }
    template <class S, class Acc> static __device__ void store_meeting(const Problem &p, const Tile &, const Meeting<S, Acc> &meeting, int row, int column) {
        hopper::store_meeting(p, meeting, row, column);
    }
};

/* Where a block stands: which share of the work is its cluster's, which of the launch's cluster are this part's, and where in its own it is. */
template <class S> struct Place {
    int share, part = 0, rank = 0, rank_m, rank_n;
    __device__ Place(const Problem &p, bool near) : share((int)blockIdx.x / S::BLOCKS) {
        if (near) {
            part = share % p.splits;
            share = part * ((int)gridDim.x / S::BLOCKS / p.splits) + share / p.splits;
        }
        if (S::BLOCKS > 1) rank = (int)blockIdx.x % S::BLOCKS;
        rank_m = rank / S::CLUSTER_N, rank_n = rank % S::CLUSTER_N;
    }
    /* The block in the launch's cluster that is at this place in the row's own. */
    __device__ int block(int m, int n) const { return part * S::BLOCKS + m * S::CLUSTER_N + n; }
};

template <class S, class Operands>
__device__ __forceinline__ void produce(const Stages<S> &shared, const CUtensorMap *map_a, const CUtensorMap *map_b,
                               const typename Operands::Arguments &arguments, const Grid &grid, const Place<S> &place) {
    const int rank_m = place.rank_m, rank_n = place.rank_n;
    const uint16_t row = (uint16_t)(((1u << S::CLUSTER_N) - 1) << place.block(rank_m, 0)); /* blocks with this rank_m: they share A */
    uint16_t column = 0;                                                                    /* with this rank_n: B */
    for (int i = 0; i < S::CLUSTER_M; i++) column |= (uint16_t)(1u << place.block(i, rank_n));
    const int share_a = rank_n * S::A_SHARE, share_b = rank_m * S::B_SHARE;
    Work work(Operands::product(arguments), grid, place.share, gridDim.x / S::BLOCKS);
    Ring ring;
    /* one column of tiles whose steps return to the same stages has the same B there each time: it stays */
    const bool stays = Operands::b_is_one(arguments) && Operands::product(arguments).kind == PYSIM_DATA_PARALLEL && grid.tiles_n == 1 && S::STAGES % grid.steps == 0;
    int loads = 0; /* of B, until each stage has its own */
    const int bytes_a = Operands::template Shares<S>::bytes_a(arguments), bytes_b = Operands::template Shares<S>::bytes_b(arguments);
    for (Tile t; work.next(t);) {
        const int m = (t.i * S::CLUSTER_M + rank_m) * S::BLOCK_M + share_a, n = (t.j * S::CLUSTER_N + rank_n) * S::BLOCK_N + share_b;
        typename Operands::template Shares<S> shares(arguments, m, n, t.begin);
        for (int step = t.begin; step < t.end; step++, ring.advance<S::STAGES>(), shares.next()) {
            const uint32_t full = shared.full(ring.stage);
            barrier_wait(shared.empty(ring.stage), ring.parity ^ 1);
            const bool both = !stays || loads++ < S::STAGES;
            barrier_arrive_expect(full, both ? bytes_a + bytes_b : bytes_a);
            shares.load_a(shared.a(ring.stage) + share_a * S::ROW, map_a, full, step, row);
            if (both) shares.load_b(shared.b(ring.stage) + share_b * S::B_ROW, map_b, full, step, column);
        }
    }
}

/* An operand of a stage: MN-major its rows have 128 bytes of m (or n), whatever a stage has of k. */
template <class S, int MN_MAJOR> __device__ inline uint64_t matrix_of(uint32_t address) {
    if constexpr (MN_MAJOR || S::ROW == 128) return matrix(address, 8192);
    else return matrix_of_rows<S::ROW>(address);
}

/* The products of one stage, as one group. a(bytes) and b(bytes): descriptors of what lies so far from where this warpgroup's rows of the tiles begin. */
template <class S, int TA, int TB, class OfA, class OfB>
__device__ __forceinline__ void multiply(typename S::Acc (&sum)[S::PARTS][S::SUMS], OfA a, OfB b) {
    /* 32 bytes of k: along a K-major row, or 16 rows of an MN-major one */
    constexpr int NEXT_A = TA ? 2048 : 32, NEXT_B = TB ? 2048 : 32;
    mma_fence();
#pragma unroll
    for (int k = 0; k < S::ROW / 32; k++)
#pragma unroll
        for (int part = 0; part < S::PARTS; part++) Product<S::DTYPE>::template add<TA, TB>(sum[part], a(part * 64 * S::ROW + k * NEXT_A), b(k * NEXT_B));
    mma_commit();
}

/* `sum` += the products of the stages that follow in the ring, `steps` of them; `row` and `column`: where this warpgroup's part of the tile
 * begins. release(stage) gives one back; last() is called when the last products are under way.
 *
 * Where one instruction's tile is all of the warpgroup's, the stage is told by one lane, and what it adds to descriptors is added up in uniform registers:
 * a step of 64x64x64 takes 50 instructions instead of 80, and 2048 -> 512 channels at 7x7, batch 32, f16, 11.3 us instead of 12.7 on an H200. Of
 * several instructions at a time each waited for its own registers: 256 windows of 32 filters took up to 1.34 times as long. */
template <class S, int TA, int TB, class Release, class Last>
__device__ __forceinline__ void accumulate(typename S::Acc (&sum)[S::PARTS][S::SUMS], const Stages<S> &shared, Ring &ring, int steps, int row, int column,
                                  Release release, Last last) {
    const uint64_t first_a = matrix_of<S, TA>(shared.a(0) + row * S::ROW), first_b = matrix_of<S, TB>(shared.b(0) + column * S::ROW);
    const uint64_t high_a = matrix_of<S, TA>(0) >> 32 << 32, high_b = matrix_of<S, TB>(0) >> 32 << 32;
    int before = -1;
    for (int step = 0; step < steps; step++, ring.advance<S::STAGES>()) {
        if constexpr (S::PARTS == 1) {
            const unsigned at = __shfl_sync(~0u, ring.stage, 0) * (S::STAGE_BYTES / 16), a = (unsigned)first_a + at, b = (unsigned)first_b + at;
            barrier_wait(shared.full(ring.stage), ring.parity);
            multiply<S, TA, TB>(sum, [&](int bytes) { return high_a | (a + bytes / 16); }, [&](int bytes) { return high_b | (b + bytes / 16); });
        } else {
            const uint32_t a = shared.a(ring.stage) + row * S::ROW, b = shared.b(ring.stage) + column * S::ROW;
            barrier_wait(shared.full(ring.stage), ring.parity);
            multiply<S, TA, TB>(sum, [&](int bytes) { return matrix_of<S, TA>(a + bytes); }, [&](int bytes) { return matrix_of<S, TB>(b + bytes); });
        }
        mma_wait<1>(); /* one group stays in flight; the one before is done with its stage, which is what lets it be given back */
        if (before >= 0) release(before);
        before = ring.stage;
    }
    last();
    mma_wait<0>(); /* the last group's stage, too */
    if (before >= 0) release(before);
}

template <class S, class Operands>
__device__ __forceinline__ void consume(const Stages<S> &shared, int *flag, const typename Operands::Arguments &arguments, const Grid &grid, const Place<S> &place,
                               bool near) {
    using Acc = typename S::Acc;
    const Problem &p = Operands::product(arguments);
    /* of a warpgroup, told by one lane: the compiler then knows that it is, and computes what follows from it once a warp */
    const int warpgroup = __shfl_sync(~0u, (int)threadIdx.x / 128, 0), set = warpgroup / S::GROUPS, group = warpgroup % S::GROUPS;
    const int thread = (int)threadIdx.x % (128 * S::GROUPS), lane = thread % 32;
    const int rank_m = place.rank_m, rank_n = place.rank_n;
    const int row = group / (S::BLOCK_N / S::WARP_N) * S::WARP_M, column = group % (S::BLOCK_N / S::WARP_N) * S::WARP_N;
    /* A stage is free for a block's producer when all blocks that it writes to have read it: one arrival per warp and such block.
     * Lane l tells the l-th block that writes here: those of this row, then the others of this column. */
    const int other = lane - S::CLUSTER_N;
    const int waiter = other < 0 ? place.block(rank_m, lane) : place.block(other + (other >= rank_m), rank_n);
    /* each block of a cluster has flags and partial sums of its own */
    unsigned *const tile_flags = p.flags + place.rank * grid.tiles();
    const Partials<S, Acc> partials(p, place.rank * grid.slots(p), thread);
    const bool tells = lane < S::CLUSTER_M + S::CLUSTER_N - 1;
    Work work(p, grid, place.share, gridDim.x / S::BLOCKS);
    Ring ring;
    int number = -1; /* of the block's tiles */
    for (Tile t; work.next(t);) {
        if constexpr (S::SETS > 1) {
            if (++number % S::SETS != set) {
                ring.advance<S::STAGES>(t.end - t.begin);
                continue;
            }
            /* stages are the other's until its last products are under way: their barriers are a phase behind, or two */
            if (number) barrier_wait(shared.multiplied((number - 1) % S::SETS), (number - 1) / S::SETS % 2);
        }
        Acc sum[S::PARTS][S::SUMS] = {};
        const auto release = [&](int stage) {
            if constexpr (S::BLOCKS == 1) {
                if (lane == 0) barrier_arrive(shared.empty(stage));
            } else if (tells) barrier_arrive_at(shared.empty(stage), waiter);
        };
        const auto last = [&] {
            if (S::SETS > 1 && lane == 0) barrier_arrive(shared.multiplied(set));
        };
        const int first_row = (t.i * S::CLUSTER_M + rank_m) * S::BLOCK_M + row, first_column = (t.j * S::CLUSTER_N + rank_n) * S::BLOCK_N + column;
        Way way;
        const auto tell_way = [&] {
            Operands::template with_target<S, true>(arguments, t, first_row,
                                                    [&](auto as, const Problem &of, const auto &target, int) { way = way_of<S, Operands::RAGGED, Acc>(of, target, as.rows()); });
        };
        if constexpr (!FULL<S>) tell_way(); /* while operands come; others have no register for it */
        if (p.beta != 0 && !near)
            Operands::template with_target<S, true>(arguments, t, first_row, [&](auto as, const Problem &of, const auto &target, int first) {
                fetch_before<S>(as, of, target, first, first_column);
            });
        const int steps = t.end - t.begin;
        Operands::template with_majors<S>(arguments, [&](auto a, auto b) {
            constexpr int TA = decltype(a)::value; /* 1: MN-major */
            if constexpr (S::DTYPE == BF16X6) {
                accumulate_split<S, Thirds, TA>(sum[0], shared, ring, steps, row, column, release);
                mend_thirds<S, TA>(p, sum[0], first_row + row_of_thread(), first_column + lane % 4 * 2, t.begin, t.end);
            } else if constexpr (S::Element::SPLIT > 0) accumulate_split<S, Halves, TA>(sum[0], shared, ring, steps, row, column, release);
            else if constexpr (TA && !S::Element::MN_MAJOR) accumulate_turned<S>(sum, shared, ring, steps, row, column, release), last();
            else accumulate<S, TA, decltype(b)::value>(sum, shared, ring, steps, row, column, release, last);
        });
        if (near) {
            const Meeting<S, Acc> meeting(shared.data, place.part, p.splits, thread);
            meeting.leave(sum);
            Operands::store_meeting(arguments, t, meeting, first_row, first_column);
            return;
        }
        if (t.parts > 1) {
            const auto sync = [&] { sync_threads(1 + set, 128 * S::GROUPS); };
            if (!partials.leave(work.slot_of(t, t.part), sum, tile_flags + t.index, t.parts, thread, flag + 4 * set, sync)) continue;
            partials.add_up(work, t, sum);
        }
        if constexpr (FULL<S>) tell_way();
        if (way == STRIPS)
            Operands::template with_target<S, true>(arguments, t, first_row, [&](auto as, const Problem &of, const auto &target, int first) {
                store_by_strips<S>(as, of, target, first, first_column, sum);
            });
        else
            Operands::template with_target<S, false>(arguments, t, first_row, [&](auto as, const Problem &of, const auto &target, int first) {
                store_directly<S, Operands::RAGGED>(as, way, of, target, first, first_column, sum);
            });
    }
}

template <class S, class Operands>
__global__ void __launch_bounds__(S::THREADS, 1)
    wgmma_kernel(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
                 const __grid_constant__ typename Operands::Arguments arguments) {
    PYSIM_DYNAMIC_SHARED(memory);
    Stages<S> shared;
    shared.data = (shared_address(memory) + 1023) / 1024 * 1024;
    shared.barriers = shared.data + S::STAGES * S::STAGE_BYTES;
    int *flag = (int *)(memory + (shared.barriers + 16 * S::STAGES - shared_address(memory)));
    const bool near = is_near(Operands::product(arguments)); /* the launch's cluster has a row's own for each part of a tile */
    const Place<S> place(Operands::product(arguments), near);
    if (threadIdx.x == 0) {
        tensor_prefetch(&map_a);
        tensor_prefetch(&map_b);
        for (int stage = 0; stage < S::STAGES; stage++) {
            barrier_init(shared.full(stage), 1);
            barrier_init(shared.empty(stage), 4 * S::GROUPS * (S::CLUSTER_M + S::CLUSTER_N - 1));
        }
        for (int set = 0; S::SETS > 1 && set < S::SETS; set++) barrier_init(shared.multiplied(set), 4 * S::GROUPS);
        barrier_init_done();
    }
    if (S::BLOCKS > 1) cluster_sync();
    else __syncthreads();
    wait_for_previous();

    /* the decomposition deals with clusters */
    const Grid grid(Operands::product(arguments), S::BLOCK_M * S::CLUSTER_M, S::BLOCK_N * S::CLUSTER_N, S::BLOCK_K);
    if (threadIdx.x >= 128 * S::CONSUMERS) {
        if (S::HANDS_OVER) registers_down<S::PRODUCER_REGISTERS>();
        if (threadIdx.x == 128 * S::CONSUMERS) produce<S, Operands>(shared, &map_a, &map_b, arguments, grid, place);
    } else {
        if (S::HANDS_OVER) registers_up<S::CONSUMER_REGISTERS>();
        consume<S, Operands>(shared, flag, arguments, grid, place, near);
    }
    /* nobody leaves while others may still signal or fill its shared memory; where parts met, nobody does any more */
    if (S::BLOCKS > 1 && !near) cluster_sync();
}

/* A function of the driver, asked of it at run time: nothing links it. */
template <class Function> struct DriverFunction {
    Function call = nullptr;
    cudaError_t error;
    explicit DriverFunction(const char *name) {
        void *found = nullptr;
        cudaDriverEntryPointQueryResult result;
        error = cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result);
        if (error == cudaSuccess && !found) error = cudaErrorCallRequiresNewerDriver;
        call = (Function)found;
    }
};
using Encode = CUresult (*)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *,
                            const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                            CUtensorMapFloatOOBfill);
inline const DriverFunction<Encode> &encoder() {
    static const DriverFunction<Encode> once("cuTensorMapEncodeTiled");
    return once;
}

/* As TFLOAT32 TMA rounds f32 to the nearest tf32 on the way (seen on an H200: 1 + 5/8192 arrives as 1 + 8/8192); as FLOAT32
 * wgmma would cut bits off. */
template <class S> constexpr CUtensorMapDataType map_type() {
    return S::DTYPE == PYSIM_F16    ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
           : S::DTYPE == PYSIM_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
           : S::DTYPE == PYSIM_TF32 ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
           : S::DTYPE == PYSIM_F64  ? CU_TENSOR_MAP_DATA_TYPE_FLOAT64
           : S::DTYPE == PYSIM_TF32X3 || S::DTYPE == BF16X6 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                    : CU_TENSOR_MAP_DATA_TYPE_UINT8;
}

/* The operand as TMA sees it: rows of `inner` elements, `outer` of them; boxes of 128 bytes x `box`, or of B's thirds 64. L2 is promoted a line at a time: where a
 * row of a box lies in two, promotions to 256 bytes ask for up to four, and 640x6984x9296 tn of f16 takes 1.13 times as long on an H200. */
template <class S>
cudaError_t describe(CUtensorMap *map, Encode encode, const void *data, int inner, int outer, int64_t pitch, int box, bool thirds = false) {
    const int bytes = thirds ? 2 : S::BYTES;
    const cuuint64_t sizes[] = {(cuuint64_t)inner, (cuuint64_t)outer}, pitches[] = {(cuuint64_t)pitch * bytes};
    const cuuint32_t boxes[] = {128 / S::BYTES, (cuuint32_t)box}, steps[] = {1, 1};
    const CUresult result = encode(map, thirds ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : map_type<S>(), 2, const_cast<void *>(data), sizes, pitches, boxes, steps,
                                   CU_TENSOR_MAP_INTERLEAVE_NONE, thirds ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B,
                                   CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

template <class Arguments> using Kernel = void (*)(const CUtensorMap, const CUtensorMap, const Arguments);

template <class S, class Arguments> cudaError_t prepare(Kernel<Arguments> kernel) {
    return cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::SHARED_BYTES);
}

/* `early`: it begins while the kernel before it ends, as where the problem follows its own copies. */
template <class S, class Arguments>
cudaError_t start(Kernel<Arguments> kernel, const CUtensorMap &a, const CUtensorMap &b, const Arguments &arguments, const Problem &p, int sms,
                  cudaStream_t stream, bool early = false) {
    const cudaError_t error = prepare<S>(kernel);
    if (error != cudaSuccess) return error;
    const Grid grid(p, S::BLOCK_M * S::CLUSTER_M, S::BLOCK_N * S::CLUSTER_N, S::BLOCK_K);
    const bool near = is_near(p);
    const int clusters = near || grid.items(p) < sms / S::BLOCKS ? grid.items(p) : sms / S::BLOCKS;
    return launch_with({near ? p.splits * S::BLOCKS : S::BLOCKS, p.follows || early}, kernel, clusters * S::BLOCKS, S::THREADS, S::SHARED_BYTES, stream, a, b, arguments);
}

template <class S, class Arguments> cudaError_t attributes_of(Kernel<Arguments> kernel, pysim_cuda_attributes *out) {
    const cudaError_t error = prepare<S>(kernel);
    return error == cudaSuccess ? pysim::attributes_of(kernel, S::THREADS, S::SHARED_BYTES, out) : error;
}

template <class S> cudaError_t launch(const Problem &p, int sms, cudaStream_t stream) {
    CUtensorMap a, b;
    const Encode encode = encoder().call;
    const int box_a = Matrices::box_a<S>(p), box_b = Matrices::box_b<S>(p);
    cudaError_t error = encoder().error;
    if (error == cudaSuccess) error = p.trans_a ? describe<S>(&a, encode, p.a, p.m, p.k, p.lda, S::BLOCK_K)
                                                : describe<S>(&a, encode, p.a, p.k, p.m, p.lda, box_a);
    if (error == cudaSuccess) error = p.trans_b ? describe<S>(&b, encode, p.b, S::Element::SPLIT > 0 ? (int)p.ldb : p.k, p.n * (1 + S::Element::SPLIT), p.ldb, box_b, S::DTYPE == BF16X6)
                                                : describe<S>(&b, encode, p.b, p.n, p.k, p.ldb, S::BLOCK_K);
    return error == cudaSuccess ? start<S, Problem>(wgmma_kernel<S, Matrices>, a, b, p, p, sms, stream) : error;
}

template <class S> cudaError_t attributes(const Problem &, pysim_cuda_attributes *out) { return attributes_of<S, Problem>(wgmma_kernel<S, Matrices>, out); }
}
}
#endif
