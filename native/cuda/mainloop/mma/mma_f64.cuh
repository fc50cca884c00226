/* SPDX-License-Identifier: Apache-2.0
 * f64 GEMM on mma.sync (m16n8k8), warp-specialised. One producer thread keeps STAGES tiles of A and B in flight by TMA; for operands that TMA cannot
 * copy (rows not aligned to 16 bytes) all 128 producer threads use cp.async. Every other warp multiplies its WARP_M x WARP_N part of the block's
 * tile. Consumers wait only for one mbarrier a stage, so they drift apart, and the first fragments of the next stage are loaded under the last products
 * of this one: the multiplier of an SM quarter, busy for 32 cycles per instruction, never waits.
 *
 * A stage is 16 elements of k: 128 bytes. A K-major operand has one 128-byte row for each m (n); an MN-major one has boxes of 16 rows of k, 128 bytes each,
 * which are 16 elements of m (n). TMA swizzles 16-byte chunks: chunk c of row r is at c ^ (r mod 8). The assignment of matrix rows and of k to an
 * instruction's rows and k is free, as long as A, B and C agree: lane 4 g + t takes rows (columns) 2 g and 2 g + 1 of 16, and k = 2 t + (e ^ t / 2) of 8
 * for e = 0, 1. Then loads have no bank conflicts in either layout. Two rows are neighbouring registers, as the instruction needs; two columns are
 * not, so if B is MN-major a lane loads columns g and g + 8 separately, also without conflicts.
 *
 * Worked number: 128x128 with 8 warps of 64x32, k 8: a warp reads (64 + 32) * 8 * 8 bytes = 6 KiB for 16 instructions of 32 cycles; two
 * warps a quarter: 48 KiB in 1024 cycles, of 128 KiB that shared memory could give. From L2: 256 * 8 bytes for 128 * 128 / 128 cycles
 * = 16 bytes a cycle and SM. Sums: 128 registers; fragments: 2 x 8 of A, 2 x 16 of B. */
#ifndef PYSIM_CUDA_MMA_F64_CUH
#define PYSIM_CUDA_MMA_F64_CUH
#include <algorithm>

#include "core/epilogue.cuh"
#include "mainloop/mma/pipeline.cuh"
#include "mainloop/wgmma/kernel.cuh"

namespace pysim::f64_mma {

using namespace hopper;

template <int BM, int BN, int BK, int WM, int WN, int STAGES_> struct Shape {
    static constexpr int DTYPE = PYSIM_F64, BYTES = 8, BLOCK_M = BM, BLOCK_N = BN, BLOCK_K = BK, WARP_M = WM, WARP_N = WN, STAGES = STAGES_;
    static constexpr int WARPS = (BM / WM) * (BN / WN), THREADS = 32 * WARPS + 128; /* the last warpgroup is the producer's */
    static constexpr int A_BYTES = BM * 128, STAGE_BYTES = (BM + BN) * 128, STAGING_OFFSET = STAGES * (STAGE_BYTES + 16) + 16;
    /* a warp's staging buffer for eight rows of results; pairs of four rows are in different banks */
    static constexpr int STAGING_PITCH = WN + 4, STAGING_BYTES = 8 * STAGING_PITCH * BYTES,
                         SHARED_BYTES = 1024 + STAGING_OFFSET + WARPS * STAGING_BYTES;
    static constexpr int BLOCKS = 8 / WARPS; /* per SM: two warps a quarter */
    /* all warps start with equal registers; the producer hands its own over for accumulators */
    static constexpr bool HANDS_OVER = WM * WN >= 32 * 32;
    static constexpr int UP = WARPS == 8 ? 232 : 216, DOWN = 40;
    static_assert(BK * BYTES == 128, "a stage is 128 bytes of k");
    static_assert(BM * BN * BYTES <= STAGES * STAGE_BYTES, "a cluster reduction stores accumulators over the stages");
    static_assert(WARPS == 8 || WARPS == 4, "setmaxnreg is for whole warpgroups");
    static_assert(BM % WM == 0 && BN % WN == 0 && WM % 16 == 0 && WN % 16 == 0, "warps tile the block, 16 x 16 sums tile warps");
};

__device__ inline void multiply(double (&c)[4], const double (&a)[4], const double (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
                 : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
}

/* Copies eight bytes, or zeros unless they exist; all copies of a thread so far count towards `barrier` as one arrival. */
__device__ inline void copy_eight(uint32_t to, const void *from, bool exists) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(exists ? 8 : 0) : "memory");
}
__device__ inline void barrier_arrive_copied(uint32_t barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

/* A lane's elements of 16 rows (columns) x 8 k: x[e][o] is row 2 g + o, without PAIRS g + 8 o, at the k of e. */
template <bool K_LAST, bool PAIRS> struct Fragment {
    /* Where they begin in an operand's stage, for the warp whose rows begin at `first`. */
    __device__ static int origin(int first) {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, e = t / 2;
        if (!PAIRS) return first * 128 + (2 * t + e) * 128 + (g / 2 ^ (2 * t + e)) * 16 + g % 2 * 8;
        return K_LAST ? (first + 2 * g) * 128 + (t ^ 2 * g % 8) * 16 + e * 8 : first * 128 + (2 * t + e) * 128 + (g ^ (2 * t + e)) * 16;
    }
    __device__ static void load(double (&x)[2][2], uint32_t from, int tile, int half) {
#pragma unroll
        for (int e = 0; e < 2; e++)
            if constexpr (!PAIRS) {
#pragma unroll
                for (int o = 0; o < 2; o++)
                    asm volatile("ld.shared.f64 %0, [%1];" : "=d"(x[e][o]) : "r"((from ^ (e * 144 + o * 64)) + half * 1024 + tile * 2048));
            } else if constexpr (K_LAST) {
#pragma unroll
                for (int o = 0; o < 2; o++)
                    asm volatile("ld.shared.f64 %0, [%1];" : "=d"(x[e][o]) : "r"((from ^ (e * 8 + o * 144 + half * 64)) + tile * 2048));
            } else
                asm volatile("ld.shared.v2.f64 {%0, %1}, [%2];"
                             : "=d"(x[e][0]), "=d"(x[e][1])
                             : "r"((from ^ e * 144) + half * 1024 + tile * 2048));
    }
};

/* Whether TMA can bring an operand: rows begin at multiples of 16 bytes. */
__host__ __device__ inline bool is_aligned(const void *data, int64_t pitch) { return ((uintptr_t)data | (uintptr_t)(pitch * 8)) % 16 == 0; }

/* One operand's EXTENT rows of m (or n) from `first`, 16 elements of k from element k. */
template <int EXTENT, bool K_LAST> __device__ inline void bring(uint32_t to, const CUtensorMap *map, uint32_t barrier, int first, int k) {
    if constexpr (K_LAST) tensor_load(to, map, barrier, k, first);
    else
        for (int part = 0; part < EXTENT / 16; part++) tensor_load(to + part * 2048, map, barrier, first + part * 16, k);
}

/* The same by the producer's threads, element by element, where TMA cannot: sixteen of them take 128 bytes of a row of memory, eight rows are a pass. */
template <int EXTENT, bool K_LAST>
__device__ inline void bring_elements(uint32_t to, const void *data, int64_t pitch, int first, int limit, int k, int k_end) {
    const int thread = threadIdx.x % 128, inner = thread % 16, line = thread / 16;
    const int across = inner + (K_LAST ? k : first), down = line + (K_LAST ? first : k);
    const double *from = (const double *)data + down * pitch + across;
    to += line * 128 + ((inner / 2) ^ line) * 16 + inner % 2 * 8;
    if constexpr (K_LAST) {
        const int rows = across < k_end ? limit - down : 0;
#pragma unroll 4
        for (int pass = 0; pass < EXTENT / 8; pass++, from += 8 * pitch) copy_eight(to + pass * 1024, from, pass * 8 < rows);
    } else {
        const int columns = limit - across;
#pragma unroll 4
        for (int part = 0; part < EXTENT / 16; part++, from += 16) {
            copy_eight(to + part * 2048, from, part * 16 < columns && down < k_end);
            copy_eight(to + part * 2048 + 1024, from + 8 * pitch, part * 16 < columns && down + 8 < k_end);
        }
    }
}

/* Fills the stages of a block, by one thread, or by all 128 if an operand is copied element by element (not whole). */
template <class S, bool TA, bool TB, bool WHOLE>
__device__ inline void produce(const Stages<S> &shared, const CUtensorMap *map_a, const CUtensorMap *map_b, const Problem &p) {
    const bool whole_a = WHOLE || is_aligned(p.a, p.lda), whole_b = WHOLE || is_aligned(p.b, p.ldb);
    const int bytes = (whole_a ? S::A_BYTES : 0) + (whole_b ? S::STAGE_BYTES - S::A_BYTES : 0);
    const Grid grid(p, S::BLOCK_M, S::BLOCK_N, S::BLOCK_K);
    PlacedWork work(p, grid, blockIdx.x, gridDim.x);
    Ring ring;
    for (Tile t; work.next(t);)
        for (int step = t.begin; step < t.end; step++, ring.advance<S::STAGES>()) {
            const uint32_t full = shared.full(ring.stage);
            barrier_wait(shared.empty(ring.stage), ring.parity ^ 1);
            if (WHOLE || threadIdx.x == 32 * S::WARPS) {
                barrier_arrive_expect(full, bytes);
                if (whole_a) bring<S::BLOCK_M, !TA>(shared.a(ring.stage), map_a, full, t.i * S::BLOCK_M, step * S::BLOCK_K);
                if (whole_b) bring<S::BLOCK_N, TB>(shared.b(ring.stage), map_b, full, t.j * S::BLOCK_N, step * S::BLOCK_K);
            }
            if (!whole_a) bring_elements<S::BLOCK_M, !TA>(shared.a(ring.stage), p.a, p.lda, t.i * S::BLOCK_M, p.m, step * S::BLOCK_K, p.k);
            if (!whole_b) bring_elements<S::BLOCK_N, TB>(shared.b(ring.stage), p.b, p.ldb, t.j * S::BLOCK_N, p.n, step * S::BLOCK_K, p.k);
            if (!WHOLE) barrier_arrive_copied(full);
        }
    launch_dependents();
}

/* Stores a part's accumulators over its stages, for the other blocks of the cluster. */
template <class S, int COUNT> __device__ inline void reduce_in_cluster(uint32_t data, const double (&acc)[COUNT]) {
    sync_threads(1, 32 * S::WARPS); /* every warp has read all stages */
#pragma unroll
    for (int e = 0; e < COUNT; e++)
        asm volatile("st.shared.f64 [%0], %1;" ::"r"(data + (e * 32 * S::WARPS + threadIdx.x) * 8), "d"(acc[e]) : "memory");
    cluster_sync();
}
/* The sum of one accumulator over all parts. */
template <class S> __device__ inline double sum_near(const Problem &p, uint32_t data, int which) {
    const uint32_t own = data + (which * 32 * S::WARPS + threadIdx.x) * 8;
    constexpr int AT_ONCE = 8;
    double acc = 0;
#pragma unroll 1
    for (int first = 0; first < p.splits; first += AT_ONCE) {
        double value[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            value[i] = 0;
            if (first + i < p.splits)
                asm volatile("ld.shared::cluster.f64 %0, [%1];" : "=d"(value[i]) : "r"(address_at(own, first + i)) : "memory");
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) acc += value[i];
    }
    return acc;
}

/* Stores a warp's accumulators as they are, two neighbours at a time straight from registers: rows of C begin at multiples of 16 bytes and have whole pairs.
 * Lanes t = 0 to 3 of a row have columns 2 t and 2 t + 8 of 16: they store 64 bytes together. Where B lies along k, a lane has four neighbours, and lanes in
 * pairs exchange two of them each, so that two lanes store 32 bytes: no sector is written in halves. */
template <class S, bool TB, int COUNT>
__device__ inline void store_pairs(const Epilogue<double, double> &epilogue, int row, int column, const double (&acc)[COUNT]) {
    const int lane = threadIdx.x % 32, t = lane % 4;
    row += lane / 4 * 2, column += TB ? t / 2 * 8 + t % 2 * 2 : t * 2;
    const int rows = epilogue.m - row, columns = epilogue.n - column;
    double *const to = epilogue.c + row * epilogue.ldc + column;
    const auto put = [&](int down, int across, const double (&pair)[2]) {
        if (down < rows && across < columns) *(double2 *)(to + down * epilogue.ldc + across) = {pair[0], pair[1]};
    };
#pragma unroll
    for (int i = 0; i < S::WARP_M / 16; i++)
#pragma unroll
        for (int odd = 0; odd < 2; odd++)
#pragma unroll
            for (int j = 0; j < S::WARP_N / 16; j++) {
                const double *const of = acc + (i * (S::WARP_N / 16) + j) * 8 + odd * 2;
                double left[2] = {of[0], of[TB ? 4 : 1]}, right[2] = {of[TB ? 1 : 4], of[5]};
                if constexpr (TB)
#pragma unroll
                    for (int c = 0; c < 2; c++) {
                        const double other = __shfl_xor_sync(~0u, t % 2 ? left[c] : right[c], 1);
                        (t % 2 ? left[c] : right[c]) = other;
                    }
                put(i * 16 + odd, j * 16, left), put(i * 16 + odd, j * 16 + (TB ? 4 : 8), right);
            }
}

template <class S, bool TA, bool TB> __device__ inline void consume(const Stages<S> &shared, int *flag, const Problem &p) {
    constexpr int TILES_M = S::WARP_M / 16, TILES_N = S::WARP_N / 8, ROW = TILES_N * 4; /* sums of a row of tiles */
    using A = Fragment<!TA, true>;
    using B = Fragment<TB, TB>; /* PAIRS where they lie along k */
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = warp / (S::BLOCK_N / S::WARP_N) * S::WARP_M, column = warp % (S::BLOCK_N / S::WARP_N) * S::WARP_N;
    const int origin_a = A::origin(row), origin_b = S::A_BYTES + B::origin(column);
    const Grid grid(p, S::BLOCK_M, S::BLOCK_N, S::BLOCK_K);
    PlacedWork work(p, grid, blockIdx.x, gridDim.x);
    Ring ring;
    for (Tile t; work.next(t);) {
        double acc[TILES_M * ROW] = {}, a[2][2][2], b[2][TILES_N / 2][2][2];
        barrier_wait(shared.full(ring.stage), ring.parity);
        uint32_t stage = shared.a(ring.stage), read = 0; /* the barrier of the stage that is read to its end */
        A::load(a[0], stage + origin_a, 0, 0);
#pragma unroll
        for (int j = 0; j < TILES_N / 2; j++) B::load(b[0][j], stage + origin_b, j, 0);
        for (int step = t.begin; step < t.end; step++) {
#pragma unroll
            for (int half = 0; half < 2; half++)
#pragma unroll
                for (int i = 0; i < TILES_M; i++) {
                    /* what the next row of tiles needs, before this one's products */
                    const int now = (half * TILES_M + i) % 2, next = (now + 1) % 2;
                    if (i < TILES_M - 1) A::load(a[next], stage + origin_a, i + 1, half);
                    else {
                        if (half == 1) {
                            read = shared.empty(ring.stage);
                            ring.advance<S::STAGES>();
                            if (step + 1 < t.end) barrier_wait(shared.full(ring.stage), ring.parity);
                            stage = shared.a(ring.stage);
                        }
                        if (half == 0 || step + 1 < t.end) {
                            A::load(a[next], stage + origin_a, 0, 1 - half);
#pragma unroll
                            for (int j = 0; j < TILES_N / 2; j++) B::load(b[1 - half][j], stage + origin_b, j, 1 - half);
                        }
                    }
#pragma unroll
                    for (int j = 0; j < TILES_N; j++) {
                        const double left[4] = {a[now][0][0], a[now][0][1], a[now][1][0], a[now][1][1]};
                        const double right[2] = {b[half][j / 2][0][j % 2], b[half][j / 2][1][j % 2]};
                        multiply(*(double (*)[4])(acc + i * ROW + j * 4), left, right);
                    }
                    if (half == 1 && i == TILES_M - 1) { /* safe by these products: the first of them waits for the last fragments */
                        __syncwarp();
                        if (lane == 0) barrier_arrive(read);
                    }
                }
        }
        const Epilogue<double, double> epilogue(p);
        /* Pair q of a row of tiles: [pair of tiles][row][pair of columns][column] */
        const auto acc_of = [](int e) { return e / 8 * 8 + e / 4 % 2 * 2 + (TB ? e % 2 * 4 + e / 2 % 2 : e / 2 % 2 * 4 + e % 2); };
        const auto column_of = [](int q) { return q / 4 * 16 + q % 2 * (TB ? 2 : 8); };
        if (is_cluster_split_k(p)) {
            const int row0 = t.i * S::BLOCK_M + row + lane / 4 * 2, column0 = t.j * S::BLOCK_N + column + lane % 4 * (TB ? 4 : 2);
            reduce_in_cluster<S>(shared.data, acc);
#pragma unroll 1
            for (int pair = t.part; pair < TILES_M * ROW / 2; pair += p.splits) {
                const int i = pair / (ROW / 2), q = pair % (ROW / 2);
                const double values[2] = {sum_near<S>(p, shared.data, i * ROW + acc_of(2 * q)),
                                          sum_near<S>(p, shared.data, i * ROW + acc_of(2 * q + 1))};
                epilogue.store(row0 + i * 16 + q / 2 % 2, column0 + column_of(q), values);
            }
            cluster_sync(); /* a block must not exit while others read its shared memory */
            return;
        }
        if (!reduce_parts(p, work, t, acc, (int)threadIdx.x, 32 * S::WARPS, flag, [] { sync_threads(1, 32 * S::WARPS); })) continue;
        if (epilogue.plain && epilogue.aligned % 16 == 0 && p.n % 2 == 0) {
            store_pairs<S, TB>(epilogue, t.i * S::BLOCK_M + row, t.j * S::BLOCK_N + column, acc);
            continue;
        }
        double *const staging = (double *)((char *)flag + 16 + warp * S::STAGING_BYTES);
#pragma unroll 1
        for (int i = 0; i < TILES_M; i++) {
#pragma unroll
            for (int odd = 0; odd < 2; odd++) { /* of the rows 2 g, or 2 g + 1 */
                __syncwarp();
#pragma unroll
                for (int pair = 0; pair < TILES_N; pair++) {
                    const int q = pair / 2 * 4 + odd * 2 + pair % 2;
                    *(double2 *)(staging + lane / 4 * S::STAGING_PITCH + lane % 4 * (TB ? 4 : 2) + column_of(q)) = {acc[acc_of(2 * q)],
                                                                                                                    acc[acc_of(2 * q + 1)]};
                }
                __syncwarp();
                constexpr int PASSES = S::WARP_N / 4, DOWN = 32 / S::WARP_N; /* rows of a pass */
                const int down = lane / S::WARP_N, across = lane % S::WARP_N;
                const int first = t.i * S::BLOCK_M + row + i * 16 + 2 * down + odd, at = t.j * S::BLOCK_N + column + across;
                if (epilogue.plain) {
                    double values[PASSES][1]; /* all asked for before any is stored */
#pragma unroll
                    for (int pass = 0; pass < PASSES; pass++) values[pass][0] = staging[(pass * DOWN + down) * S::STAGING_PITCH + across];
#pragma unroll
                    for (int pass = 0; pass < PASSES; pass++) epilogue.template store_as<true>(first + 2 * pass * DOWN, at, values[pass]);
                } else
#pragma unroll 1
                    for (int pass = 0; pass < PASSES; pass++)
                        epilogue.store(first + 2 * pass * DOWN, at, staging[(pass * DOWN + down) * S::STAGING_PITCH + across]);
            }
#pragma unroll
            for (int e = 0; e < TILES_M * ROW - ROW; e++) acc[e] = acc[e + ROW];
        }
    }
    wait_for_previous();
}

/* The columns of gemm/mma_f64/rows.inc, as in the other kernels on mma.sync: lab/fits/cuda_attributes.py finds them by this name. */
template <class In, int BM, int BN, int BK, int WM, int WN, int STAGES, bool TA, bool TB>
__global__ void __launch_bounds__(Shape<BM, BN, BK, WM, WN, STAGES>::THREADS, Shape<BM, BN, BK, WM, WN, STAGES>::BLOCKS)
    mma_kernel(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b, const __grid_constant__ Problem p) {
    using S = Shape<BM, BN, BK, WM, WN, STAGES>;
    if (p.only_if) {
        wait_for_previous(); /* also for the launches after this one, which rely on it */
        if (!*p.only_if) return;
    }
    extern __shared__ char memory[];
    Stages<S> shared;
    shared.data = (shared_address(memory) + 1023) / 1024 * 1024;
    shared.barriers = shared.data + STAGES * S::STAGE_BYTES;
    int *flag = (int *)(memory + (shared.barriers + 16 * STAGES - shared_address(memory)));
    const bool whole = is_aligned(p.a, p.lda) && is_aligned(p.b, p.ldb);
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            barrier_init(shared.full(stage), whole ? 1 : 1 + 128);
            barrier_init(shared.empty(stage), S::WARPS);
        }
        barrier_init_done();
    }
    __syncthreads();
    if (!p.follows) wait_for_previous(); /* else all before the previous launch have ended, and that one writes only flags */
    if (threadIdx.x >= 32 * S::WARPS) {
        if (S::HANDS_OVER) registers_down<S::DOWN>();
        if (!whole) produce<S, TA, TB, false>(shared, &map_a, &map_b, p);
        else if (threadIdx.x == 32 * S::WARPS) produce<S, TA, TB, true>(shared, &map_a, &map_b, p);
    } else {
        if (S::HANDS_OVER) registers_up<S::UP>();
        consume<S, TA, TB>(shared, flag, p);
    }
}

/* A row of gemm/mma_f64/rows.inc. */
template <int BM, int BN, int BK, int WM, int WN, int STAGES> struct Kernel {
    using S = Shape<BM, BN, BK, WM, WN, STAGES>;
    static auto layout(const Problem &p) {
#define LAYOUT(ta, tb) mma_kernel<double, BM, BN, BK, WM, WN, STAGES, ta, tb>
        if (p.trans_a) return p.trans_b ? LAYOUT(true, true) : LAYOUT(true, false);
        return p.trans_b ? LAYOUT(false, true) : LAYOUT(false, false);
#undef LAYOUT
    }
    static cudaError_t launch(const Problem &problem, int sms, cudaStream_t stream) {
        Problem p = problem;
        CUtensorMap a = {}, b = {};
        const Encode encode = encoder().call;
        cudaError_t error = encoder().error;
        if (error == cudaSuccess && is_aligned(p.a, p.lda))
            error = p.trans_a ? describe<S>(&a, encode, p.a, p.m, p.k, p.lda, BK) : describe<S>(&a, encode, p.a, p.k, p.m, p.lda, BM);
        if (error == cudaSuccess && is_aligned(p.b, p.ldb))
            error = p.trans_b ? describe<S>(&b, encode, p.b, p.k, p.n, p.ldb, BN) : describe<S>(&b, encode, p.b, p.n, p.k, p.ldb, BK);
        if (error == cudaSuccess) error = prepare<S>(layout(p));
        if (error != cudaSuccess) return error;
        const Grid grid(p, BM, BN, BK);
        const bool cluster_split = is_cluster_split_k(p);
        const dim3 blocks = place_blocks(p, grid, sms * S::BLOCKS, cluster_split);
        return launch_with({1, has_dependent_launch(), cluster_split ? p.splits : 1, p.follows != 0}, layout(p), blocks, S::THREADS,
                           S::SHARED_BYTES, stream, a, b, p);
    }
    static cudaError_t attributes(const Problem &p, pysim_cuda_attributes *out) {
        return attributes_of(layout(p), S::THREADS, S::SHARED_BYTES, out);
    }
};
}
#endif
