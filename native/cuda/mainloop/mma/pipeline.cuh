/* SPDX-License-Identifier: Apache-2.0
 * The pipeline that the warp-level tensor-core kernels (mma, wmma) share: tiles of A and B are copied in their layout in memory to padded rows of shared
 * memory by 16-byte cp.async, `STAGES` k-iterations deep. Rows aligned to 4 bytes are copied by 4-byte cp.async, neighbouring lanes neighbouring words.
 * Other rows are copied element by element by loads and stores: synchronously, or, if a thread has few, held in registers while it multiplies.
 *
 * Banks: eight rows of a fragment lie `pitch` bytes apart. A pitch that is an odd multiple of 16 bytes puts them into eight different
 * 16-byte chunks of the 128 bytes of banks, so ldmatrix and wmma's loads need their minimum of wavefronts. Elements of 4 bytes whose rows run
 * along m or n are loaded one by one, four rows of k and eight neighbours of each by a warp: those rows lie 32 bytes apart modulo 128. */
#ifndef PYSIM_CUDA_MMA_PIPELINE_CUH
#define PYSIM_CUDA_MMA_PIPELINE_CUH
#include "core/decomposition.cuh"
#include "core/epilogue.cuh"
#include "core/launch.h"
#include "core/ptx.cuh"

namespace pysim {

constexpr int CAPABILITY = 80; /* for asynchronous copies */

/* The least pitch in bytes that holds `bytes` (a multiple of 16) and is an odd multiple of 16. */
constexpr int padded(int bytes) { return bytes % 32 ? bytes : bytes + 16; }

/* One operand's tile of `OUTER` rows of C (columns for B) x K: rows of k where K_LAST, else rows of the outer index. */
template <class In, int OUTER, int K, bool K_LAST> struct SharedTile {
    static constexpr int rows = K_LAST ? OUTER : K, columns = K_LAST ? K : OUTER, element = sizeof(In);
    static constexpr bool single = !K_LAST && element == 4; /* loaded one by one */
    static constexpr int pitch = single ? columns * element + 32 : padded(columns * element), bytes = rows * pitch,
                         chunks = columns * element / 16;
    static_assert(columns * element % (single ? 128 : 16) == 0, "a row is whole 16-byte chunks, or all banks");

    /* Element (outer, k) of the tile at `base`. */
    __device__ static In *at(char *base, int outer, int k) {
        return (In *)(base + (K_LAST ? outer * pitch + k * element : k * pitch + outer * element));
    }
};

/* A thread's share of the copies of one operand's tiles: the same 16 bytes of every `row_step`th row. What lies outside the matrix is zero. ALIGNED: rows
 * begin at multiples of 16 bytes. */
template <class In, class Tile, int K, bool K_LAST, int THREADS, bool ALIGNED = false> class Copies {
    static constexpr int element = sizeof(In), row_step = THREADS / Tile::chunks, PIECES = 16 / element; /* elements of 16 bytes */
    static constexpr int PASSES = (Tile::rows + row_step - 1) / row_step;
    static_assert(THREADS % Tile::chunks == 0, "a thread stays in its column of chunks");
    const char *origin;
    int64_t pitch, k_pitch;                  /* bytes between rows, and between k steps */
    int rows_left, bytes_left, offset, unit; /* unit: bytes that are copied at once: 16, 4 or one element */

    __device__ static bool is_idle(int pass) {
        return Tile::rows % row_step && pass * row_step + (int)threadIdx.x / Tile::chunks >= Tile::rows;
    }

public:
    /* Whether a step's single elements are so few of a thread that it holds them all while it multiplies; and those. */
    static constexpr bool FEW = element < 4 && !ALIGNED && PASSES * PIECES <= 16;
    using Element = typename Word<element>::type;
    struct Held {
        Element some[FEW ? PASSES : 1][PIECES];
    };
    __device__ void ask(Held &held, char *base, int step) const {
        if (unit != element) return start(base, step);
        const char *const from = origin + step * k_pitch;
        const int rows = rows_left - (K_LAST ? 0 : step * K), bytes = bytes_left - (K_LAST ? step * K * element : 0);
#pragma unroll
        for (int i = 0; i < PASSES * PIECES; i++) {
            const int pass = i / PIECES, there = i % PIECES * Tile::chunks * element;
            const bool exists = !is_idle(pass) && pass * row_step < rows && there < bytes;
            held.some[pass][i % PIECES] = exists ? *(const Element *)(from + pass * row_step * pitch + there) : Element(0);
        }
    }
    __device__ void put(const Held &held, char *base) const {
        if (unit != element) return;
#pragma unroll
        for (int i = 0; i < PASSES * PIECES; i++) {
            const int pass = i / PIECES, there = i % PIECES * Tile::chunks * element;
            if (!is_idle(pass)) *(Element *)(base + offset + pass * row_step * Tile::pitch + there) = held.some[pass][i % PIECES];
        }
    }

    __device__ Copies(const void *matrix, int64_t ld, int outer0, int outer_end, int k_end) {
        const int row = (int)threadIdx.x / Tile::chunks, chunk = (int)threadIdx.x % Tile::chunks * 16;
        const int row0 = row + (K_LAST ? outer0 : 0), column0 = K_LAST ? 0 : outer0;
        pitch = ld * element, k_pitch = K_LAST ? K * element : K * pitch;
        const unsigned aligned = (unsigned)((uintptr_t)matrix | (uintptr_t)pitch);
        unit = ALIGNED || aligned % 16 == 0 ? 16 : aligned % 4 == 0 ? 4 : element;
        const int begin = chunk / 16 * unit; /* first byte of the thread in a row: neighbouring lanes copy neighbouring units */
        origin = (const char *)matrix + row0 * pitch + column0 * element + begin;
        rows_left = (K_LAST ? outer_end : k_end) - row0;
        bytes_left = ((K_LAST ? k_end : outer_end) - column0) * element - begin;
        offset = row * Tile::pitch + begin;
    }
    __device__ void start(char *base, int step) const {
        const char *from = origin + step * k_pitch;
        const int rows = rows_left - (K_LAST ? 0 : step * K), bytes = bytes_left - (K_LAST ? step * K * element : 0);
        if (ALIGNED || unit == 16) {
            const int piece = max(0, min(16, bytes));
#pragma unroll
            for (int pass = 0; pass < PASSES; pass++) {
                if (is_idle(pass)) break;
                copy_async<16>(base + offset + pass * row_step * Tile::pitch, from, pass * row_step < rows ? piece : 0);
                from += row_step * pitch;
            }
        } else if (element == 4 || unit == 4) {
#pragma unroll
            for (int pass = 0; pass < PASSES; pass++)
#pragma unroll
                for (int word = 0; word < 4; word++) {
                    const int there = word * Tile::chunks * 4;
                    if (!is_idle(pass))
                        copy_async<4>(base + offset + pass * row_step * Tile::pitch + there, from + pass * row_step * pitch + there,
                                      pass * row_step < rows ? max(0, min(4, bytes - there)) : 0);
                }
        } else {
            constexpr int AT_ONCE = PASSES < 32 / PIECES ? PASSES : 32 / PIECES, NEXT = Tile::chunks * element;
#pragma unroll 1
            for (int first = 0; first < PASSES; first += AT_ONCE) {
                Element some[AT_ONCE][PIECES]; /* all asked for before any is stored: a step waits for few of them one after the other */
#pragma unroll
                for (int i = 0; i < AT_ONCE * PIECES; i++) {
                    const int pass = first + i / PIECES, there = i % PIECES * NEXT;
                    const bool exists = !is_idle(pass) && pass * row_step < rows && there < bytes;
                    some[i / PIECES][i % PIECES] = exists ? *(const Element *)(from + pass * row_step * pitch + there) : Element(0);
                }
#pragma unroll
                for (int i = 0; i < AT_ONCE * PIECES; i++) {
                    const int pass = first + i / PIECES;
                    if (pass < PASSES && !is_idle(pass))
                        *(Element *)(base + offset + pass * row_step * Tile::pitch + i % PIECES * NEXT) = some[i / PIECES][i % PIECES];
                }
            }
        }
    }
};

template <class> constexpr bool FEW = false; /* of what copies something else than a matrix */
template <class In, class Tile, int K, bool K_LAST, int THREADS, bool ALIGNED>
constexpr bool FEW<Copies<In, Tile, K, K_LAST, THREADS, ALIGNED>> = Copies<In, Tile, K, K_LAST, THREADS, ALIGNED>::FEW;

/* Compile-time constants of a row. */
template <class In, int BM, int BN, int BK, int WM, int WN, int STAGES, bool TA, bool TB, int PROMOTION = 0> struct Shape {
    using A = SharedTile<In, BM, BK, !TA>;
    using B = SharedTile<In, BN, BK, TB>;
    using Element = In;
    static constexpr bool a_k_last = !TA, b_k_last = TB;
    static constexpr int block_m = BM, block_n = BN, block_k = BK, stages = STAGES;
    static constexpr int warps_m = BM / WM, warps_n = BN / WN, threads = 32 * warps_m * warps_n, stage = A::bytes + B::bytes;
    static constexpr int shared = STAGES * stage;
    /* 16 warps an SM hide the latency of loads and multiply-adds; they leave 128 registers a thread, half of them for sums. Warps with
     * more sums than that read less shared memory for a multiply-add; 8 of them an SM have 255 each. Thirds of fragments want registers, too, and take
     * so long to make that nothing need be fetched ahead. */
    static constexpr int sums = WM * WN / 32, at_once = sums > (PROMOTION ? 32 : 64) ? 256 : PROMOTION ? 384 : 512;
    static constexpr int blocks = threads < at_once ? at_once / threads : 1, buffers = sums > 64 && !PROMOTION ? 2 : 1;
    static constexpr int together = PROMOTION ? 1 : BK; /* instructions along k that are one stretch of code */
    static_assert(BM % WM == 0 && BN % WN == 0, "warps tile the block");
};

/* The operands of a product, as matrices: what copies block row t.i of A and block column t.j of B. */
template <class S> struct Matrices {
    const Problem &p;
    __device__ auto left(const Tile &t) const {
        return Copies<typename S::Element, typename S::A, S::block_k, S::a_k_last, S::threads>(p.a, p.lda, t.i * S::block_m, p.m, p.k);
    }
    __device__ auto right(const Tile &t) const {
        return Copies<typename S::Element, typename S::B, S::block_k, S::b_k_last, S::threads>(p.b, p.ldb, t.j * S::block_n, p.n, p.k);
    }
};

/* `pipeline` where threads hold a step's single elements, those of both operands at once, while they multiply the step before. */
template <class S, int K, class Left, class Right, class StageOf, class Arrive, class Fetch, class Multiply>
__device__ inline void pipeline_held(const Left &left, const Right &right, int begin, int end, StageOf stage_of, Arrive arrive, Fetch fetch,
                                     Multiply multiply) {
    constexpr int AHEAD = S::stages - 1;
    static_assert(S::buffers == 1, "warps with few elements to load have few sums");
    typename Left::Held of_left[AHEAD];
    typename Right::Held of_right[AHEAD];
    const auto ask = [&](int step, int held) {
        if (step < end) {
            left.ask(of_left[held], stage_of(step), step);
            right.ask(of_right[held], stage_of(step) + S::A::bytes, step);
        }
        commit_async(); /* of what is no single elements */
    };
    const auto put = [&](int step, int held) {
        if (step < end) left.put(of_left[held], stage_of(step)), right.put(of_right[held], stage_of(step) + S::A::bytes);
    };
#pragma unroll
    for (int s = 0; s < AHEAD; s++) ask(begin + s, s);
#pragma unroll
    for (int s = 0; s < AHEAD; s++) put(begin + s, s);
    for (int step = begin; step < end; step++) {
        arrive();
        ask(step + AHEAD, 0);
#pragma unroll
        for (int k0 = 0; k0 < S::block_k; k0 += K) {
            fetch(stage_of(step), k0, 0);
            multiply(k0, 0);
        }
        put(step + AHEAD, 0);
    }
    wait_async<0>();
}

/* Runs the k-iterations of a tile; `left` and `right` copy its operands STAGES - 1 iterations ahead. An iteration has BK / K instructions along k:
 * fetch(stage, k0, buffer) loads fragments, multiply(k0, buffer) uses them. Kernels with few warps (`buffers` = 2) fetch one instruction ahead, also across
 * the barrier. */
template <class S, int K, class Left, class Right, class Fetch, class Multiply>
__device__ void pipeline(const Left &left, const Right &right, const Tile &t, char *shared, Fetch fetch, Multiply multiply) {
    constexpr int BK = S::block_k, STAGES = S::stages;
    const int begin = t.begin, end = t.end;
    const auto stage_of = [&](int step) { return shared + (step - begin) % STAGES * S::stage; };
    const auto load = [&](int step) {
        if (step < end) {
            left.start(stage_of(step), step);
            right.start(stage_of(step) + S::A::bytes, step);
        }
        commit_async(); /* an empty group keeps the count */
    };
    /* Of the oldest step: for all threads, which also have read the one before. Its stage is safe to copy to by the barrier: cp.async is a
     * store like others, in the order of loads. */
    const auto arrive = [] {
        wait_async<STAGES - 2>();
        __syncthreads();
    };
    __syncthreads(); /* the tile before is read */
    if constexpr (FEW<Left> && FEW<Right>) {
        pipeline_held<S, K>(left, right, begin, end, stage_of, arrive, fetch, multiply);
    } else {
#pragma unroll
        for (int s = 0; s < STAGES - 1; s++) load(begin + s);
        if constexpr (S::buffers == 2) {
            arrive();
            fetch(stage_of(begin), 0, 0);
            for (int step = begin; step < end; step++) {
                char *stage = stage_of(step), *next = stage_of(step + 1);
#pragma unroll
                for (int k0 = 0; k0 < BK; k0 += K) {
                    if (k0 + K == BK) arrive();
                    fetch(k0 + K == BK ? next : stage, (k0 + K) % BK, (k0 / K + 1) % 2);
                    if (k0 == 0) load(step + STAGES - 1);
                    multiply(k0, k0 / K % 2);
                }
            }
        } else
            for (int step = begin; step < end; step++) {
                arrive();
                load(step + STAGES - 1);
#pragma unroll S::together
                for (int k0 = 0; k0 < BK; k0 += K) {
                    fetch(stage_of(step), k0, 0);
                    multiply(k0, 0);
                }
            }
        wait_async<0>();
    }
}

/* Stores the block's tile: fragments go to shared memory and are stored from there in whole rows, so that stores are coalesced, and the epilogue's code
 * exists once, in a rolled loop. The pitch puts the 4 rows of a half-warp's pairs into different banks. */
template <class Acc, int BM, int BN, int THREADS> struct SharedSums {
    static constexpr int pitch = BN + 8, bytes = BM * pitch * (int)sizeof(Acc), vector = 16 / sizeof(Acc) < 4 ? 16 / sizeof(Acc) : 4;
    __device__ static Acc *at(char *base, int row, int column) { return (Acc *)base + row * pitch + column; }
    /* Calls store(row, column, sums) for the tile in pieces of WIDE columns, AT_ONCE of a thread at a time. */
    template <int WIDE, int AT_ONCE, class Store> __device__ static void store_by(char *base, int row0, int column0, Store store) {
        constexpr int PIECES = BN / WIDE, STEP = THREADS / PIECES; /* of a row; rows between a thread's pieces */
        static_assert(THREADS % PIECES == 0 && BM % (STEP * AT_ONCE) == 0, "threads stay in their columns");
        const int column = (int)threadIdx.x % PIECES * WIDE;
#pragma unroll 1
        for (int row = (int)threadIdx.x / PIECES; row < BM; row += STEP * AT_ONCE) {
            Acc sums[AT_ONCE][WIDE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) *(Pack<Acc, WIDE> *)sums[i] = *(const Pack<Acc, WIDE> *)at(base, row + i * STEP, column);
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) store(row0 + row + i * STEP, column0 + column, sums[i]);
        }
    }
    /* Several pieces at once hide latency; with arithmetic one at a time, so that its code exists once. */
    template <int WIDE, bool AS_WARPGROUPS, class Of> __device__ static void store_by(const Of &epilogue, char *base, int row0,
                                                                                      int column0) {
        constexpr int ALL = BM * BN / WIDE / THREADS, AT_ONCE = ALL < 8 ? ALL : 8;
        if (epilogue.plain)
            store_by<WIDE, AT_ONCE>(base, row0, column0, [&](int row, int column, const Acc(&sums)[WIDE]) {
                epilogue.template store_as<true>(row, column, sums);
            });
        else if constexpr (AS_WARPGROUPS) {
            Of rest = epilogue; /* what is left after the bias */
            rest.alpha = 1, rest.bias = nullptr, rest.scale = nullptr;
            store_by<WIDE, 1>(base, row0, column0, [&](int row, int column, const Acc(&sums)[WIDE]) {
                Acc x[WIDE];
#pragma unroll
                for (int i = 0; i < WIDE; i++) {
                    const int line = epilogue.by_row ? min(row, epilogue.m - 1) : min(column + i, epilogue.n - 1);
                    x[i] = epilogue.scale ? epilogue.scale[line] * sums[i] : sums[i];
                    if (epilogue.bias || epilogue.alpha != 1) x[i] = fmaf(epilogue.alpha, x[i], epilogue.bias ? epilogue.bias[line] : 0.f);
                }
                rest.template store_as<false>(row, column, x);
            });
        } else
            store_by<WIDE, 1>(base, row0, column0,
                              [&](int row, int column, const Acc(&sums)[WIDE]) { epilogue.template store_as<false>(row, column, sums); });
    }
    /* In: the type of the operands. AS_WARPGROUPS: the bias is added before beta C, as where wgmma's accumulators are stored (mainloop/wgmma). */
    template <class In, bool AS_WARPGROUPS = false> __device__ static void store(const Problem &p, char *base, int row0, int column0) {
        with_epilogue<In, Acc>(p, [&](const auto &epilogue) {
            if (epilogue.aligned % (vector * sizeof(*epilogue.c)) == 0) store_by<vector, AS_WARPGROUPS>(epilogue, base, row0, column0);
            else store_by<1, AS_WARPGROUPS>(epilogue, base, row0, column0); /* neighbouring lanes at neighbours still */
        });
    }
};

/* Launches `kernel`, which begins with wait_for_previous(), with its dynamic shared memory. */
template <class Kernel, class Arguments> cudaError_t start(Kernel kernel, const Arguments &p, dim3 blocks, int threads, int shared,
                                                           cudaStream_t stream) {
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    if (error != cudaSuccess) return error;
    return launch_with({1, has_dependent_launch()}, kernel, blocks, threads, shared, stream, p);
}
}
#endif
