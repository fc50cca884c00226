/* SPDX-License-Identifier: Apache-2.0
 * GEMM on Hopper: C = f(alpha op(A) op(B) + beta C + bias) with wgmma and TMA.
 *
 * Persistent: the grid has one block per multiprocessor, and each block iterates over its tiles. A block has
 *   one producer thread    keeps STAGES tiles of A and B in flight: waits for an empty stage, announces its bytes, starts the copies
 *   consumer warpgroups    each multiplies its WARP_M x WARP_N part of the tile from shared memory into registers. The loads of the next tile
 *                          overlap the epilogue; with PINGPONG its products do, too
 * The blocks of a cluster compute neighbouring tiles in lockstep. Blocks in one column share B, blocks in one row share A; each loads its share
 * and multicasts it. A stage has ROW bytes of k, BLOCK_K elements: 128 for every type, less for convolutions of few channels.
 *
 * Everything is inlined into one function (__forceinline__): ptxas waits for each wgmma if accumulators cross a call.
 *
 * The template parameter `Operands` is Matrices (below), or the windows and filters of a convolution (conv/wgmma/kernel.cuh). It defines the kernel's
 * arguments, extracts the product from them, starts the copies of a stage and stores tiles.
 *
 * Worked number: 128x256x64 of f16, 4 stages, cluster 2x1: a stage is (128 + 256) * 128 = 48 KiB, of which a block loads
 * 16 + 16 KiB; two consumers multiply 64x256x64 each in 4 instructions of 128 cycles at 512 multiply-adds per cycle in each of 4
 * tensor cores: 1024 cycles for both, so 32 bytes per cycle and multiprocessor from L2. Accumulators take 64*256/128 = 128 registers. */
#ifndef PYSIM_CUDA_WGMMA_CUH
#define PYSIM_CUDA_WGMMA_CUH
#include <cuda.h>

#include "core/decomposition.cuh"
#include "core/hopper.cuh"
#include "core/launch.h"
#include "mainloop/wgmma/epilogue.cuh"
#include "mainloop/wgmma/mma.cuh"
#include "mainloop/wgmma/parts.cuh"
#include "mainloop/wgmma/releases.h"
#include "mainloop/wgmma/shape.h"
#include "mainloop/wgmma/split.cuh"
#include "mainloop/wgmma/tensor_map.cuh"
#include "mainloop/wgmma/thirds.cuh"

namespace pysim::hopper {

/* A position in the ring of stages. */
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

/* Shared memory addresses of a block. */
template <class S> struct Stages {
    uint32_t data, barriers;
    __device__ uint32_t a(int stage) const { return data + stage * S::STAGE_BYTES; }
    __device__ uint32_t b(int stage) const { return data + stage * S::STAGE_BYTES + S::A_BYTES; }
    __device__ uint32_t full(int stage) const { return barriers + 16 * stage; }
    __device__ uint32_t empty(int stage) const { return barriers + 16 * stage + 8; }
    /* The barrier at which a set signals that it has issued the last products of a tile. */
    __device__ uint32_t multiplied(int set) const { return barriers + 16 * S::STAGES + 16 * set + 8; }
};

/* First row of the share that block `rank` of a row or column of a cluster loads of a tile, SHARE rows: of an MN-major tile whole boxes. */
template <class S, int SHARE> __device__ inline int share_of(int rank, bool mn_major) {
    const int first = rank * SHARE;
    if constexpr (SHARE % S::BLOCK_K != 0)
        if (mn_major) return (first + S::BLOCK_K - 1) / S::BLOCK_K * S::BLOCK_K;
    return first;
}

/* Loads one operand's share of a stage: EXTENT rows of m (or n) from `first`, 128 bytes of k from element k; MULTICAST to the blocks in the mask `blocks`.
 * Tiles that narrow have `extent` rows.
 * Uneven shares of a tile of TILE rows: the boxes that begin in EXTENT rows from the share's start.
 * One loop for both layouts: with code for each, both executed under predicates, the producer was slower than 64x64 tiles' products (H100: 9.0 us, not 7.1). */
template <class S, int EXTENT, int TILE, bool MULTICAST>
__device__ inline void load(uint32_t to, const CUtensorMap *map, uint32_t barrier, int first, int k, bool mn_major, uint16_t blocks,
                            int extent = EXTENT) {
    int inner = mn_major ? first : k;
    const int outer = mn_major ? k : first;
    int boxes = !mn_major ? 1 : S::NARROWS ? ceil_div(extent, S::BLOCK_K) : EXTENT / S::BLOCK_K;
    if constexpr (EXTENT % S::BLOCK_K != 0) /* two shares, of which the first is larger */
        if (mn_major && first % TILE == 0) boxes++;
#pragma unroll 1
    for (int i = 0; i < boxes; i++, to += S::BLOCK_K * 128, inner += S::BLOCK_K)
        if (MULTICAST) tensor_load_multicast(to, map, barrier, inner, outer, blocks);
        else tensor_load(to, map, barrier, inner, outer);
}

/* The operands of C = op(A) op(B). Their layouts are run-time values; only the loads and the products have code per layout. */
struct Matrices {
    using Arguments = Problem;
    static constexpr bool RAGGED = true;     /* not for convolutions: their rows are seldom ragged, and their kernels are the largest */
    static constexpr bool OWN_STORE = false; /* true: store() stores a tile's sums (gemm/residues/product.cuh) */
    template <class S> static constexpr bool EVEN = S::CLUSTER_N == 1 && S::Element::SPLIT == 0; /* tiles may have fewer rows: even_rows */
    template <class S> static constexpr bool CONDITIONAL = S::DTYPE == BF16X6;                   /* a launch may do nothing: skips() */
    static __device__ const Problem &product(const Problem &p) { return p; }
    static __device__ bool skips(const Problem &p) {
        if (!p.only_if) return false;
        wait_for_previous(); /* it may write *only_if; and launches after this one rely on its wait */
        return !*p.only_if;
    }
    static __device__ bool b_is_one(const Problem &) { return false; } /* not measured for products */

    /* Calls take(A, B), each 1 if MN-major, for the layouts that the type allows. */
    template <class S, class Take> static __device__ __forceinline__ void with_majors(const Problem &p, Take take) {
        constexpr std::integral_constant<int, 0> K;
        constexpr std::integral_constant<int, 1> MN;
        if constexpr (!S::Element::MN_MAJOR && S::DTYPE != PYSIM_TF32) take(K, K);
        else if constexpr (S::Element::SPLIT > 0 || S::DTYPE == PYSIM_TF32) p.trans_a ? take(MN, K) : take(K, K);
        else if (p.trans_a) p.trans_b ? take(MN, K) : take(MN, MN);
        else p.trans_b ? take(K, K) : take(K, MN);
    }
    template <class S> static __device__ bool a_is_mn_major(const Problem &p) {
        return (S::Element::MN_MAJOR || S::DTYPE == PYSIM_TF32) && p.trans_a;
    }
    template <class S> static __device__ bool b_is_mn_major(const Problem &p) {
        return S::Element::MN_MAJOR && S::Element::SPLIT == 0 && !p.trans_b;
    }
    /* Rows of A in a block's tile; of transposed results whole vectors. */
    template <class S> static int rows_of_tile(const Problem &p) {
        return EVEN<S> && !p.trans_a ? even_rows(p.m, S::BLOCK_M, S::CLUSTER_M, p.transposed ? 8 : 1) : S::BLOCK_M;
    }
    /* `share`: columns of a block's tile that it loads */
    template <class S> static __host__ __device__ int box_b(const Problem &p, int share = S::B_SHARE) {
        return box_rows(share, p.n, !p.trans_b || S::CLUSTER_M > 1 || S::Element::SPLIT > 0);
    }
    /* Columns of a block's tile, if it NARROWS. Partial sums in memory have whole tiles. */
    template <class S> static int columns_of_tile(const Problem &p, int sms) {
        if (!S::NARROWS || p.partials || (S::DTYPE == PYSIM_TF32 && p.trans_a)) return S::BLOCK_N;
        return even_columns(ceil_div(p.m, S::BLOCK_M), p.n, S::NARROWEST, S::BLOCK_N, p.trans_b ? 16 : 32, sms);
    }

    /* A block's shares of a tile for each k-iteration: rows from m, columns from n. */
    template <class S> struct Shares {
        const Problem &p;
        int m, n, columns = S::B_SHARE;
        __device__ Shares(const Problem &p, int m, int n, int) : p(p), m(m), n(n) {}
        /* Bytes of each operand in a stage. */
        static __device__ int bytes_a(const Problem &, int rows) { return S::A_BYTES / S::BLOCK_M * rows; }
        static __device__ int bytes_b(const Problem &p, int columns) {
            if (!S::NARROWS) return S::B_BYTES / S::B_SHARE * box_b<S>(p);
            return S::B_ROW * (b_is_mn_major<S>(p) ? ceil_div(columns, S::BLOCK_K) * S::BLOCK_K : box_b<S>(p, columns));
        }
        __device__ void load_a(uint32_t to, const CUtensorMap *map, uint32_t barrier, int step, uint16_t blocks) const {
            load<S, S::A_SHARE, S::BLOCK_M, (S::CLUSTER_N > 1)>(to, map, barrier, m, step * S::BLOCK_K, a_is_mn_major<S>(p), blocks);
        }
        __device__ void load_b(uint32_t to, const CUtensorMap *map, uint32_t barrier, int step, uint16_t blocks) const {
#pragma unroll
            for (int i = 0; i <= S::Element::SPLIT; i++) /* B's thirds: the first thirds of all columns, then the second, then the third */
                load<S, S::B_SHARE, S::BLOCK_N, (S::CLUSTER_M > 1)>(to + i * (S::B_BYTES / (1 + S::Element::SPLIT)), map, barrier,
                                                                    i * p.n + n, step * S::BLOCK_K, b_is_mn_major<S>(p), blocks, columns);
        }
        __device__ void next() {}
    };

    template <class S> static StoreTerms store_terms(const Problem &p) {
        const bool transposed = S::DTYPE == PYSIM_TF32 && p.transposed;
        return store_terms_of<S, RAGGED>(p, !transposed, p.by_row != 0, p.ldc, transposed ? p.m : p.n);
    }
    /* Calls use(Order, product, target, row) for a tile with first row `row`; ONE: one instance for both orders of results, where both exist. */
    template <class S, bool ONE, class Use> static __device__ __forceinline__ void with_target(const Problem &p, const StoreTerms &terms,
                                                                                               const Tile &t, int row, int end, Use use) {
        const int last = S::NARROWS ? min((t.j + 1) * terms.columns, p.n) : p.n;
        hopper::with_target<S>(p, terms, min(end, p.m), last, [&](auto order, const auto &target) { use(order, p, target, row); });
    }
    template <class S, class Acc> static __device__ void store_reduced(const Problem &p, const Tile &,
                                                                       const ClusterReduction<S, Acc> &reduction, int row, int end,
                                                                       int column) {
        hopper::store_reduced(p, reduction, row, min(end, p.m), column, S::NARROWS ? min(column + reduction.columns, p.n) : p.n);
    }
};

/* A block's position: its cluster's share of the work, its split-K part within the launch's cluster, its rank within the row's cluster. */
template <class S> struct Place {
    int share, part, rank = 0, rank_m, rank_n;
    __device__ explicit Place(bool cluster_split) : share((int)blockIdx.x / S::BLOCKS), part(cluster_split ? (int)blockIdx.z : 0) {
        if (S::BLOCKS > 1) rank = (int)blockIdx.x % S::BLOCKS;
        rank_m = rank / S::CLUSTER_N, rank_n = rank % S::CLUSTER_N;
    }
    /* Rank, in the launch's cluster, of the block at (m, n) of the row's cluster. */
    __device__ int block(int m, int n) const { return part * S::BLOCKS + m * S::CLUSTER_N + n; }
};

/* What the host computes once for all blocks of a launch, because divisions on the device delayed each tile. */
struct Precomputed {
    Grid grid;
    StoreTerms store;
    Raster raster;
    int rows;      /* of A in a block's tile, where these are even */
    int columns;   /* of B, where tiles narrow */
    bool releases; /* the next launch, when the last loads are issued */
};

/* Called by a whole warp, of which lane 0 loads. begin() waits until all blocks of the cluster have barriers: until then, the first tile is found. */
template <class S, class Operands, class Begin>
__device__ __forceinline__ void produce(const Stages<S> &shared, const CUtensorMap *map_a, const CUtensorMap *map_b,
                                        const typename Operands::Arguments &arguments, const Precomputed &precomputed,
                                        const Place<S> &place, Begin begin) {
    const Grid &grid = precomputed.grid;
    const int rank_m = place.rank_m, rank_n = place.rank_n;
    /* multicast mask of A: blocks with this rank_m */
    const uint16_t row = (uint16_t)(((1u << S::CLUSTER_N) - 1) << place.block(rank_m, 0));
    uint16_t column = 0; /* with this rank_n: B */
    for (int i = 0; i < S::CLUSTER_M; i++) column |= (uint16_t)(1u << place.block(i, rank_n));
    int share_a = rank_n * S::A_SHARE, share_b = rank_m * S::B_SHARE;
    if constexpr (S::BLOCKS > 1 && (S::A_SHARE % S::BLOCK_K != 0 || S::B_SHARE % S::BLOCK_K != 0)) {
        share_a = share_of<S, S::A_SHARE>(rank_n, Operands::template a_is_mn_major<S>(Operands::product(arguments)));
        share_b = share_of<S, S::B_SHARE>(rank_m, Operands::template b_is_mn_major<S>(Operands::product(arguments)));
    }
    RasterWork work(Operands::product(arguments), grid, precomputed.raster, place.share, gridDim.x / S::BLOCKS);
    Ring ring;
    /* with one column of tiles whose k-iterations reuse the same stages, each stage keeps its B */
    const bool stays = Operands::b_is_one(arguments) && Operands::product(arguments).kind == PYSIM_DATA_PARALLEL && grid.tiles_n == 1 &&
                       S::STAGES % grid.steps == 0;
    int loads = 0; /* of B, until each stage holds its part */
    bool began = false;
    const int rows = Operands::template EVEN<S> ? precomputed.rows : S::BLOCK_M;
    const int columns = S::NARROWS ? precomputed.columns : S::BLOCK_N, bytes_a = Operands::template Shares<S>::bytes_a(arguments, rows),
              bytes_b = Operands::template Shares<S>::bytes_b(arguments, columns);
    for (Tile t; work.next(t);) {
        const int m = (t.i * S::CLUSTER_M + rank_m) * rows + share_a, n = (t.j * S::CLUSTER_N + rank_n) * columns + share_b;
        typename Operands::template Shares<S> shares(arguments, m, n, t.begin);
        if constexpr (S::NARROWS) shares.columns = columns;
        if (!began) {
            began = true;
            begin();
            if (threadIdx.x % 32) return;
        }
        for (int step = t.begin; step < t.end; step++, ring.advance<S::STAGES>(), shares.next()) {
            const uint32_t full = shared.full(ring.stage);
            barrier_wait(shared.empty(ring.stage), ring.parity ^ 1);
            const bool both = !stays || loads++ < S::STAGES;
            barrier_arrive_expect(full, both ? bytes_a + bytes_b : bytes_a);
            shares.load_a(shared.a(ring.stage) + share_a * S::ROW, map_a, full, step, row);
            if (both) shares.load_b(shared.b(ring.stage) + share_b * S::B_ROW, map_b, full, step, column);
        }
    }
    if (precomputed.releases) launch_dependents();
    if (!began) begin();
    /* a block must not exit before the others of its cluster have released its last stages; consumers wait for all that others write to this block */
    if constexpr (S::BLOCKS > 1)
        for (int stage = 0; stage < S::STAGES; stage++, ring.advance<S::STAGES>()) barrier_wait(shared.empty(ring.stage), ring.parity ^ 1);
}

/* acc = the products, N columns, of the next `steps` stages of the ring. `row`, `column`: start of this warpgroup's part of the tile. release(stage)
 * returns a stage to the producer; last() is called after the last products were issued.
 *
 * If a warpgroup's tile is one instruction (PARTS 1), the stage index is broadcast from lane 0, so that descriptors are computed in uniform registers: a
 * k-iteration of 64x64x64 takes 50 instructions instead of 80, and 2048 -> 512 channels at 7x7, batch 32, f16, 11.3 us instead of 12.7 (H200). With
 * several instructions each waited for its uniform registers: 256 windows of 32 filters took up to 1.34 times as long. */
template <class S, int TA, int TB, int N, class Release, class Last>
__device__ __forceinline__ void accumulate(typename S::Acc (&acc)[S::PARTS][S::ACCUMULATORS], const Stages<S> &shared, Ring &ring,
                                           int steps, int row, int column, Release release, Last last) {
    const uint64_t first_a = matrix_of<S, TA>(shared.a(0) + row * S::ROW), first_b = matrix_of<S, TB>(shared.b(0) + column * S::ROW);
    const uint64_t high_a = matrix_of<S, TA>(0) >> 32 << 32, high_b = matrix_of<S, TB>(0) >> 32 << 32;
    const auto multiply_stage = [&](auto first) {
        constexpr bool FIRST = decltype(first)::value;
        if constexpr (S::PARTS == 1) {
            const unsigned at = __shfl_sync(~0u, ring.stage, 0) * (S::STAGE_BYTES / 16), a = (unsigned)first_a + at,
                           b = (unsigned)first_b + at;
            barrier_wait(shared.full(ring.stage), ring.parity);
            multiply<S, TA, TB, FIRST, N>(
                acc, [&](int bytes) { return high_a | (a + bytes / 16); }, [&](int bytes) { return high_b | (b + bytes / 16); });
        } else {
            const uint32_t a = shared.a(ring.stage) + row * S::ROW, b = shared.b(ring.stage) + column * S::ROW;
            barrier_wait(shared.full(ring.stage), ring.parity);
            multiply<S, TA, TB, FIRST, N>(
                acc, [&](int bytes) { return matrix_of<S, TA>(a + bytes); }, [&](int bytes) { return matrix_of<S, TB>(b + bytes); });
        }
    };
    multiply_stage(std::true_type());
    int before = ring.stage;
    ring.advance<S::STAGES>();
    for (int step = 1; step < steps; step++, ring.advance<S::STAGES>()) {
        multiply_stage(std::false_type());
        mma_wait<1>(); /* one group stays in flight; the group before it has finished, so its stage can be released */
        release(before);
        before = ring.stage;
    }
    last();
    mma_wait<0>(); /* the last group's stage, too */
    release(before);
}

template <class Acc, int PARTS, int ACCUMULATORS> __device__ __forceinline__ void set_zero(Acc (&acc)[PARTS][ACCUMULATORS]) {
#pragma unroll
    for (int i = 0; i < PARTS * ACCUMULATORS; i++) acc[i / ACCUMULATORS][i % ACCUMULATORS] = 0;
}

template <class S, class Operands, class Begin>
__device__ __forceinline__ void consume(const Stages<S> &shared, int *flag, const typename Operands::Arguments &arguments,
                                        const Precomputed &precomputed, const Place<S> &place, bool cluster_split, Begin begin) {
    const Grid &grid = precomputed.grid;
    const StoreTerms &store = precomputed.store;
    using Acc = typename S::Acc;
    const Problem &p = Operands::product(arguments);
    /* broadcast from lane 0, so that the compiler knows it is uniform over the warp */
    const int warpgroup = __shfl_sync(~0u, (int)threadIdx.x / 128, 0), set = warpgroup / S::GROUPS, group = warpgroup % S::GROUPS;
    const int thread = (int)threadIdx.x % (128 * S::GROUPS), lane = thread % 32;
    const int rank_m = place.rank_m, rank_n = place.rank_n;
    const int row = group / (S::BLOCK_N / S::WARP_N) * S::WARP_M, column = group % (S::BLOCK_N / S::WARP_N) * S::WARP_N;
    /* A producer may refill a stage when all blocks that it multicasts to have read it: one arrival per warp of each of them. Lane l signals the l-th
     * block that writes to this one: the blocks of its row, then the others of its column. */
    const int other = lane - S::CLUSTER_N;
    const int arrives_at = other < 0 ? place.block(rank_m, lane) : place.block(other + (other >= rank_m), rank_n);
    /* each block of a cluster has its own flags and partial sums */
    unsigned *const tile_flags = p.flags + place.rank * grid.tiles();
    const Partials<S, Acc> partials(p, place.rank * grid.slots(p), thread);
    const bool signals = lane < S::CLUSTER_M + S::CLUSTER_N - 1;
    RasterWork work(p, grid, precomputed.raster, place.share, gridDim.x / S::BLOCKS);
    Ring ring;
    int number = -1; /* index of the tile among the block's */
    bool began = false;
    for (Tile t; work.next(t);) {
        if (!began) began = true, begin();
        if constexpr (S::SETS > 1) {
            if (++number % S::SETS != set) {
                ring.advance<S::STAGES>(t.end - t.begin);
                continue;
            }
            /* the other set uses the stages until it has issued its last products; until then their barriers are a phase or two behind */
            if (number) barrier_wait(shared.multiplied((number - 1) % S::SETS), (number - 1) / S::SETS % 2);
        }
        Acc acc[S::PARTS][S::ACCUMULATORS];
        const auto release = [&](int stage) {
            if constexpr (S::BLOCKS == 1) {
                if (lane == 0) barrier_arrive(shared.empty(stage));
            } else if (signals) barrier_arrive_at(shared.empty(stage), arrives_at);
        };
        const auto last = [&] {
            if (S::SETS > 1 && lane == 0) barrier_arrive(shared.multiplied(set));
        };
        const int rows = Operands::template EVEN<S> ? precomputed.rows : S::BLOCK_M;
        const int columns = S::NARROWS ? precomputed.columns : S::BLOCK_N;
        const int first = (t.i * S::CLUSTER_M + rank_m) * rows, first_row = first + row, end = first + rows,
                  first_column = (t.j * S::CLUSTER_N + rank_n) * columns + column;
        if constexpr (!Operands::OWN_STORE)
            if (p.beta != 0 && !cluster_split)
                Operands::template with_target<S, true>(arguments, store, t, first_row, end,
                                                        [&](auto order, const Problem &of, const auto &target, int first) {
                                                            fetch_before<S>(order, of, target, first, first_column);
                                                        });
        const int steps = t.end - t.begin;
        Operands::template with_majors<S>(arguments, [&](auto a, auto b) {
            constexpr int TA = decltype(a)::value; /* 1: MN-major */
            if constexpr (S::Element::SPLIT > 0 || (TA && !S::Element::MN_MAJOR)) set_zero(acc);
            if constexpr (S::DTYPE == BF16X6) {
                accumulate_split<S, Thirds, TA>(acc[0], shared, ring, steps, row, column, release);
                recompute_nonfinite_thirds<S, TA>(p, acc[0], first_row + row_of_thread(), first_column + lane % 4 * 2, t.begin, t.end);
            } else if constexpr (S::Element::SPLIT > 0) accumulate_split<S, Halves, TA>(acc[0], shared, ring, steps, row, column, release);
            else if constexpr (TA && !S::Element::MN_MAJOR) accumulate_mn_major<S>(acc, shared, ring, steps, row, column, release), last();
            else
                with_columns<S, decltype(b)::value>(columns, [&](auto n) {
                    accumulate<S, TA, decltype(b)::value, decltype(n)::value>(acc, shared, ring, steps, row, column, release, last);
                });
        });
        if constexpr (Operands::OWN_STORE) {
            Operands::template store<S>(arguments, first_row, first_column, acc);
            continue;
        } else {
            if (cluster_split) {
                const ClusterReduction<S, Acc> reduction(shared.data, place.part, p.splits, thread, columns);
                reduction.exchange(acc);
                Operands::store_reduced(arguments, t, reduction, first_row, end, first_column);
                return;
            }
            if (t.parts > 1) {
                const auto sync = [&] { sync_threads(1 + set, 128 * S::GROUPS); };
                if (!partials.publish(work.slot_of(t, t.part), acc, tile_flags + t.index, t.parts, thread, flag + 4 * set, sync)) continue;
                partials.sum_parts(work, t, acc);
            }
            if (store.path == STRIPS)
                Operands::template with_target<S, true>(arguments, store, t, first_row, end,
                                                        [&](auto order, const Problem &of, const auto &target, int first) {
                                                            store_by_strips<S>(order, of, target, first, first_column, acc);
                                                        });
            else
                Operands::template with_target<S, false>(
                    arguments, store, t, first_row, end, [&](auto order, const Problem &of, const auto &target, int first) {
                        store_directly<S, Operands::RAGGED>(order, store.path, of, target, first, first_column, acc);
                    });
        }
    }
}

template <class S, class Operands>
__global__ void __launch_bounds__(S::THREADS, 1)
    wgmma_kernel(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
                 const __grid_constant__ Precomputed precomputed, const __grid_constant__ typename Operands::Arguments arguments) {
    if constexpr (Operands::template CONDITIONAL<S>)
        if (Operands::skips(arguments)) return;
    PYSIM_DYNAMIC_SHARED(memory);
    Stages<S> shared;
    shared.data = (shared_address(memory) + 1023) / 1024 * 1024;
    shared.barriers = shared.data + S::STAGES * S::STAGE_BYTES;
    int *flag = (int *)(memory + (shared.barriers + 16 * S::STAGES - shared_address(memory)));
    /* the launch's cluster has one cluster of the row's shape per split-K part */
    const bool cluster_split = is_cluster_split_k(Operands::product(arguments));
    const Place<S> place(cluster_split);
    const auto initialize = [&] {
        for (int stage = 0; stage < S::STAGES; stage++) {
            barrier_init(shared.full(stage), 1);
            barrier_init(shared.empty(stage), 4 * S::GROUPS * (S::CLUSTER_M + S::CLUSTER_N - 1));
        }
        for (int set = 0; S::SETS > 1 && set < S::SETS; set++) barrier_init(shared.multiplied(set), 4 * S::GROUPS);
        barrier_init_done();
    };
    /* Called once per thread, by whole warps, each role at a place of its own: so not __syncthreads(). The producer, which makes the barriers, waits for
     * nobody if its block is alone. */
    constexpr int WAITING = 128 * S::CONSUMERS + 32;
    const auto begin = [](auto arrive_or_sync) {
        if constexpr (S::BLOCKS > 1) cluster_sync_initialized();
        else arrive_or_sync(0, WAITING);
        wait_for_previous();
    };
    if (threadIdx.x >= 128 * S::CONSUMERS) {
        if (S::HANDS_OVER) registers_down<S::PRODUCER_REGISTERS>();
        if (threadIdx.x >= WAITING) {
            if (S::BLOCKS > 1) cluster_sync_initialized();
            return;
        }
        if (threadIdx.x == 128 * S::CONSUMERS) {
            tensor_prefetch(&map_a);
            tensor_prefetch(&map_b);
            initialize();
        }
        produce<S, Operands>(shared, &map_a, &map_b, arguments, precomputed, place, [&] { begin(arrive_threads); });
    } else {
        if (S::HANDS_OVER) registers_up<S::CONSUMER_REGISTERS>();
        consume<S, Operands>(shared, flag, arguments, precomputed, place, cluster_split, [&] { begin(sync_threads); });
    }
}

template <class S, class Kernel> cudaError_t prepare(Kernel kernel) {
    return cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::SHARED_BYTES);
}

/* Clusters of the row's shape that run at once. Those of four blocks leave multiprocessors idle; if a persistent launch had more, the last ones would start
 * when the first ones have finished all their tiles. */
template <class S, class Kernel> int clusters_at_once(Kernel kernel, int sms) {
    if constexpr (S::BLOCKS > 2) {
        static const int found = [&] {
            cudaLaunchAttribute cluster = {};
            cluster.id = cudaLaunchAttributeClusterDimension, cluster.val.clusterDim = {(unsigned)S::BLOCKS, 1, 1};
            cudaLaunchConfig_t config = {};
            config.gridDim = (unsigned)(sms / S::BLOCKS * S::BLOCKS), config.blockDim = S::THREADS,
            config.dynamicSmemBytes = S::SHARED_BYTES, config.attrs = &cluster, config.numAttrs = 1;
            int count = 0;
            return cudaOccupancyMaxActiveClusters(&count, kernel, &config) == cudaSuccess ? count : 0;
        }();
        if (found) return found;
    }
    return sms / S::BLOCKS;
}

/* `p` is the product in `arguments`. `early`: the kernel may start before the previous one ends, as it does after its own layout conversion. */
template <class S, class Operands>
cudaError_t start(const CUtensorMap &a, const CUtensorMap &b, typename Operands::Arguments &arguments, Problem &p, int sms,
                  cudaStream_t stream, bool early = false) {
    const auto kernel = wgmma_kernel<S, Operands>;
    const cudaError_t error = prepare<S>(kernel);
    if (error != cudaSuccess) return error;
    const int columns = Matrices::columns_of_tile<S>(p, sms);
    const Grid grid(p, S::BLOCK_M * S::CLUSTER_M, columns * S::CLUSTER_N, S::BLOCK_K);
    const bool cluster_split = is_cluster_split_k(p);
    const dim3 blocks = place_blocks(p, grid, clusters_at_once<S>(kernel, sms), cluster_split, S::BLOCKS);
    Precomputed once = {grid,           Operands::template store_terms<S>(arguments),
                        grid.raster(p), Operands::template rows_of_tile<S>(arguments),
                        columns,        releases(p, S::BYTES, blocks, sms)};
    once.store.columns = columns;
    return launch_with({S::BLOCKS, p.follows || early, cluster_split ? p.splits : 1}, kernel, blocks, S::THREADS, S::SHARED_BYTES, stream,
                       a, b, once, arguments);
}

template <class S, class Kernel> cudaError_t attributes_of(Kernel kernel, pysim_cuda_attributes *out) {
    const cudaError_t error = prepare<S>(kernel);
    return error == cudaSuccess ? pysim::attributes_of(kernel, S::THREADS, S::SHARED_BYTES, out) : error;
}

template <class S> cudaError_t launch(const Problem &problem, int sms, cudaStream_t stream) {
    Problem p = problem;
    CUtensorMap a, b;
    const Encode encode = encoder().call;
    const int box_a = Matrices::rows_of_tile<S>(p) / S::CLUSTER_N,
              box_b = Matrices::box_b<S>(p, Matrices::columns_of_tile<S>(p, sms) / S::CLUSTER_M);
    cudaError_t error = encoder().error;
    if (error == cudaSuccess)
        error =
            p.trans_a ? describe<S>(&a, encode, p.a, p.m, p.k, p.lda, S::BLOCK_K) : describe<S>(&a, encode, p.a, p.k, p.m, p.lda, box_a);
    if (error == cudaSuccess)
        error = p.trans_b ? describe<S>(&b, encode, p.b, S::Element::SPLIT > 0 ? (int)p.ldb : p.k, p.n * (1 + S::Element::SPLIT), p.ldb,
                                        box_b, S::DTYPE == BF16X6)
                          : describe<S>(&b, encode, p.b, p.n, p.k, p.ldb, S::BLOCK_K);
    return error == cudaSuccess ? start<S, Matrices>(a, b, p, p, sms, stream, has_dependent_launch()) : error;
}

template <class S> cudaError_t attributes(const Problem &, pysim_cuda_attributes *out) {
    return attributes_of<S>(wgmma_kernel<S, Matrices>, out);
}
}
#endif
