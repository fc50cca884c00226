/* SPDX-License-Identifier: Apache-2.0
 * GEMM on the CUDA cores with tiles of thread blocks, warps and threads, after NVIDIA's description of CUTLASS ("CUTLASS: Fast Linear Algebra in
 * CUDA C++", 2017). One template; gemm/simt/rows.inc has the sizes.
 *
 *   block    BM x BN outputs; each k-iteration copies BK of its rows of A and columns of B to shared memory (mainloop/simt/copy.cuh)
 *   warp     WM x WN of them, lanes LM x LN = 32
 *   thread   TM x TN of those: an outer product per unit of k, operands and accumulators in registers
 *
 * A thread's rows are 16-byte vectors, LM vectors apart; its columns likewise. The lowest two bits of the lane index are its lowest column bit
 * and lowest row bit, so of four neighbouring lanes two share each vector. Hopper then serves 16 lanes in one wavefront of a 16-byte load
 * (pysim/cachemodel/shared_memory/banks.py), without bank conflicts.
 *
 * Software pipeline: the fragments of unit k + 1 are read while unit k is multiplied. k-iterations:
 *   1 stage    registers hold the next k-iteration; two barriers each
 *   2 stages   registers hold the next k-iteration, stored into the other buffer; one barrier each
 *   3, 4       asynchronous copies run STAGES - 1 k-iterations ahead; one barrier each
 * An H200 multiprocessor issues 4 x 32 FFMA a cycle, one per scheduler, so every other instruction costs an FFMA. Fragment loads take
 * (TM + TN)/(4 TM TN) of the issue slots: 6 % at 8 x 8, 4.7 % at 16 x 8. */
#ifndef PYSIM_CUDA_SIMT_CUH
#define PYSIM_CUDA_SIMT_CUH
#include <new>
#include <type_traits>

#include "core/decomposition.cuh"
#include "core/launch.h"
#include "mainloop/simt/shape.h"
#ifndef PYSIM_EMULATED
#include "core/hopper.cuh"
#endif

namespace pysim::simt {

#ifdef PYSIM_EMULATED
constexpr bool CLUSTERS = false;
#else
constexpr bool CLUSTERS = true;
#endif
/* Cluster split-K: this block's part of its tile and the number of parts in the cluster; 1: no cluster reduction. */
struct ClusterPart {
    int part, parts;
};

__device__ inline void cluster_sync() {
#ifndef PYSIM_EMULATED
    if constexpr (CODE_CAPABILITY >= 90) hopper::cluster_sync();
#endif
}
/* to[i] += element i at the same shared address of block `rank` of the cluster. */
template <class Acc, int COUNT> __device__ inline void add_from(Acc (&to)[COUNT], const void *shared, int rank) {
#ifndef PYSIM_EMULATED
    if constexpr (CODE_CAPABILITY >= 90) {
        const uint32_t there = hopper::address_at(shared_address(shared), rank);
        unsigned word[COUNT * sizeof(Acc) / 4];
#pragma unroll
        for (int i = 0; i < (int)(COUNT * sizeof(Acc) / 4); i += 4)
            asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(word[i]), "=r"(word[i + 1]), "=r"(word[i + 2]), "=r"(word[i + 3])
                         : "r"(there + 4 * i)
                         : "memory");
        Acc value[COUNT];
        memcpy(value, word, sizeof word);
#pragma unroll
        for (int i = 0; i < COUNT; i++) to[i] += value[i];
    }
#endif
}

/* A lane's position in its warp's LM x LN. Bits of the lane index: lowest column bit, lowest row bit, other row bits, other column bits. */
template <int LM, int LN> __device__ inline void place_of(int lane, int &row, int &column) {
    constexpr int low = LN > 1 ? 1 : 0;
    row = (lane >> low) % LM;
    column = (lane & low) | (lane >> low) / LM << low;
}

/* Reads a thread's part of a fragment of unit k: COUNT units in vectors of V, LANES vectors apart. `base`: byte offset in a line; PITCH: units between
 * consecutive k. */
template <class S, class Copier, int COUNT, int V, int LANES, int WARP, int PITCH>
__device__ inline void read_fragment(typename S::Unit *to, const char *shared, int k, int base) {
    constexpr int size = sizeof(typename S::Unit), run = LANES * V * size;
    /* if lines are multiples of 128 bytes, the xor splits into lane bits and constants: for one vector completely (pipelines of asynchronous copies have no
     * registers for it), for several within their run */
    constexpr bool single = COUNT == V && S::STAGES < 3,
                   nested = PITCH * size % 128 == 0 && (single || (WARP * size % 128 == 0 && run <= 128));
    const int s = Copier::swizzle(k), low = single ? s : s & (run - 1), high = s & ~low;
#pragma unroll
    for (int v = 0; v < COUNT / V; v++) {
        const int constant = k * PITCH * size;
        const char *from = shared + (nested ? (base ^ low) + (constant + ((v * run) ^ high)) : (constant + base + v * run) ^ s);
        from_shared<V * size, S::VECTOR, size>(to + v * V, from);
    }
}

/* acc += a b^T, row by row in alternating direction, so that consecutive multiplies share at least one operand. */
template <class S> __device__ inline void multiply(typename S::Acc (&acc)[S::TM][S::ACCUMULATORS], const typename S::Unit *a,
                                                   const typename S::Acc *b) {
#pragma unroll
    for (int m = 0; m < S::TM; m++)
#pragma unroll
        for (int i = 0; i < S::ACCUMULATORS; i++) {
            const int n = m % 2 ? S::ACCUMULATORS - 1 - i : i;
            S::T::multiply(acc[m][n], a[m], b[n]);
        }
}

/* Stores the warp's tile through its own part of shared memory, so that rows are stored whole, and the epilogue's code exists once, in a loop. An xor
 * separates 16-byte pieces of rows that lanes store together.
 *
 * SWAP exchanges neighbouring accumulators: a vector store needs consecutive registers, so accumulator n of a row then is in a register of the parity
 * of n + 1, while column n of the B fragment, loaded as a vector, is in one of the parity of n. An H200's register file has two banks, even and odd
 * registers, each of which reads one operand a cycle; after the swap an FFMA that reuses its row's operand reads one register from each bank.
 * Measured with the operands of 768 FFMA in a loop chosen by hand: 65.2 TFLOP/s one from each bank, 33.2 both from one, 22.2 three from one. */
template <class S, class Source>
__device__ inline void store_tile(const Source &source, const Tile &t, const typename S::Acc (&acc)[S::TM][S::ACCUMULATORS], char *shared,
                                  int row0, int column0, int lm, int ln, int lane, ClusterPart cluster) {
    using T = typename S::T;
    using Acc = typename S::Acc;
    constexpr int PACK = T::PACK, V = S::VN / PACK, pitch = S::WN * (int)sizeof(Acc) / PACK, mask = pitch >= 128 ? 96 : 0, SWAP = V > 1;
    const auto place = [&](int row, int byte) { return row * pitch + (byte ^ (row / S::VM * 32 & mask)); };
#pragma unroll
    for (int m = 0; m < S::TM; m++) {
        const int row = m / S::VM * S::LM * S::VM + lm * S::VM + m % S::VM;
#pragma unroll
        for (int n = 0; n < S::ACCUMULATORS; n += V) {
            const int column = n / V * S::LN * S::VN + ln * S::VN;
            Pack<Acc, V> some;
#pragma unroll
            for (int i = 0; i < V; i++) some.value[i] = acc[m][n + (i ^ SWAP)];
            *(Pack<Acc, V> *)(shared + place(row, column * (int)sizeof(Acc) / PACK)) = some;
        }
    }
    if (cluster.parts > 1) cluster_sync();
    else __syncwarp();
    const auto finish = [&](const auto &epilogue) {
        /* A lane stores WIDE columns at once and, if possible, always the same columns, so that their addresses and bias are computed once. */
        using Of = std::decay_t<decltype(epilogue)>;
        constexpr int WIDE = Of::WIDE, GROUPS = S::WN / WIDE, ACROSS = GROUPS < 32 ? GROUPS : 32;
        constexpr int BYTES = WIDE * (int)sizeof(Acc) / PACK, PART = BYTES > 16 ? 16 : BYTES, OUT = WIDE > 1 ? SWAP : 0;
        static_assert(32 % ACROSS == 0 && GROUPS % ACROSS == 0 && WIDE % PACK == 0, "");
#pragma unroll
        for (int pass = 0; pass < GROUPS / ACROSS; pass++) {
            const int column = (pass * ACROSS + lane % ACROSS) * WIDE;
#pragma unroll Of::UNROLLED
            for (int row = lane / ACROSS + cluster.part * (32 / ACROSS); row < S::WM; row += 32 / ACROSS * cluster.parts) {
                alignas(16) Acc some[WIDE / PACK] = {};
#pragma unroll
                for (int b = 0; b < BYTES; b += PART) {
                    using Vector = typename Word<PART>::type;
                    const char *const from = shared + place(row, (column ^ (SWAP - OUT)) * (int)sizeof(Acc) / PACK + b);
                    if constexpr (S::CLUSTER_SPLIT && PART == 16) {
                        if (cluster.parts > 1) {
#pragma unroll
                            for (int part = 0; part < S::CLUSTER_PARTS; part++)
                                if (part < cluster.parts) add_from(*(Acc(*)[PART / sizeof(Acc)])((char *)some + b), from, part);
                            continue;
                        }
                    }
                    *(Vector *)((char *)some + b) = *(const Vector *)from;
                }
                typename T::Value values[WIDE];
#pragma unroll
                for (int e = 0; e < WIDE; e++) values[e] = T::value(some[e / PACK ^ OUT], e % PACK);
                epilogue.store(row0 + row, column0 + column, values);
            }
        }
    };
    source.with_output(t, finish);
}

/* Accumulates one tile over `steps` k-iterations. EDGE: parts of it may lie outside the operands. RESTS: otherwise the last k-iteration may be shorter; it is
 * loaded first, so that the loop needs no bounds checks: their branches, and the register allocation that follows, take a seventh of its time.
 * Shared memory may be reused after the next barrier. */
template <class S, bool EDGE, bool RESTS, class CopyA, class CopyB>
__device__ inline void sum_tile(CopyA a, CopyB b, int steps, typename S::Acc (&acc)[S::TM][S::ACCUMULATORS], char *shared, int base_a,
                                int base_b) {
    using Unit = typename S::Unit;
    using Acc = typename S::Acc;
    const int thread = threadIdx.x;
    typename CopyA::Staged staged_a;
    typename CopyB::Staged staged_b;
    constexpr bool ASYNC = S::STAGES >= 3;
    enum {
        AHEAD = ASYNC ? S::STAGES - 1 : 0,
        A_BYTES = CopyA::PITCH * S::UNITS * (int)sizeof(Unit),
        STAGE_BYTES = A_BYTES + CopyB::PITCH * S::UNITS * (int)sizeof(Unit),
    };

    const auto stage = [&](int i) { return shared + i * STAGE_BYTES; };
    const auto fetch = [&](int i) {
        if constexpr (ASYNC) a.template load_async<EDGE>(stage(i), thread), b.template load_async<EDGE>(stage(i) + A_BYTES, thread);
    };
    const auto begin = [&](auto load) { /* calls load(a, b, edge) for the first k-iteration */
                                        if constexpr (RESTS && !EDGE)
                                            if (a.has_rest()) {
                                                auto last_a = a.rest(steps);
                                                auto last_b = b.rest(steps);
                                                return load(last_a, last_b, std::true_type());
                                            }
                                        load(a, b, std::bool_constant<EDGE>());
    };
    const auto store = [&](int i) { a.store(stage(i), staged_a, thread), b.store(stage(i) + A_BYTES, staged_b, thread); };
    if constexpr (ASYNC) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (i == 0)
                begin([&](auto &from_a, auto &from_b, auto edge) {
                    from_a.template load_async<edge>(stage(0), thread), from_b.template load_async<edge>(stage(0) + A_BYTES, thread);
                });
            else if (i < steps) fetch(i);
            commit_async();
        }
        wait_async<AHEAD - 1>();
    } else {
        begin([&](auto &from_a, auto &from_b, auto edge) {
            from_a.template load<edge>(staged_a, thread), from_b.template load<edge>(staged_b, thread);
        });
        store(0);
    }
    __syncthreads();

    alignas(16) Unit fa[2][S::TM];
    alignas(16) Acc fb[2][S::ACCUMULATORS];
    const auto read = [&](int to, const char *from, int k) {
        read_fragment<S, CopyA, S::TM, S::VM, S::LM, S::WM, CopyA::PITCH>(fa[to], from, k, base_a);
        read_fragment<S, CopyB, S::TN, S::VN, S::LN, S::WN, CopyB::PITCH>((Unit *)fb[to], from + A_BYTES, k, base_b);
    };
    int at = 0, filled = AHEAD; /* the stage to multiply; the stage to fill next */
    read(0, stage(0), 0);
#pragma unroll 1
    for (int i = 0; i < steps; i++) {
        const bool more = i + 1 < steps;
        if constexpr (ASYNC) {
            if (i + AHEAD < steps) fetch(filled); /* the last barrier came after its last read */
            commit_async();
            filled = filled + 1 == S::STAGES ? 0 : filled + 1;
        } else if (more) {
            a.template load<EDGE>(staged_a, thread), b.template load<EDGE>(staged_b, thread);
        }
#pragma unroll
        for (int k = 0; k < S::UNITS; k++) {
            if (S::STAGES == 2 && k == S::UNITS - 2 && more) store(1 - at);
            if (k == S::UNITS - 1) { /* all fragments of this k-iteration have been read */
                if constexpr (ASYNC) wait_async<AHEAD - 1>();
                at = at + 1 == S::STAGES ? 0 : at + 1;
                __syncthreads();
                if (S::STAGES == 1) {
                    if (more) store(0);
                    __syncthreads();
                }
            }
            read((k + 1) % 2, stage(at), (k + 1) % S::UNITS); /* after the last k-iteration: unused */
            __syncwarp();                                     /* keeps the compiler from sinking the loads above to their uses */
            multiply<S>(acc, fa[k % 2], fb[k % 2]);
        }
    }
    if constexpr (ASYNC) wait_async<0>();
}

/* Computes the tiles of one block. A Source provides the operands and the epilogue:
 *   a(t, begin, end), b(t, begin, end)   the loaders (see Copy) of block row t.i of A and block column t.j of B, for k in [begin, end)
 *   with_output(t, body)                 calls body(epilogue); epilogue.store(row, column, values) stores epilogue.WIDE columns, with row and column
 *                                        relative to the first tile; the caller unrolls its loop by epilogue.UNROLLED
 * Matrices also provide
 *   singles_a(t, begin, end), singles_b  loaders of single elements
 *   row(t), column(t)                    the first row and column of a tile */
template <class S, bool MATRICES = false, class Source> __device__ inline void sum_tiles(const Problem &p, const Source &source) {
    using T = typename S::T;
    using Acc = typename S::Acc;
    PYSIM_DYNAMIC_SHARED(shared);
    /* The block's state is in shared memory, because the loop needs the registers. */
    __shared__ struct {
        Tile tile;
        alignas(Work) char work[sizeof(Work)];
        bool valid;
        int last;
    } now;
    Work &work = *(Work *)now.work;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warp_m = warp % S::WARPS_M * S::WM, warp_n = warp / S::WARPS_M * S::WN;
    int lm, ln;
    place_of<S::LM, S::LN>(lane, lm, ln);
    const int base_a = (warp_m + lm * S::VM) * (int)sizeof(typename S::Unit),
              base_b = (warp_n + ln * S::VN) * (int)sizeof(typename S::Unit);

    const bool in_cluster = S::CLUSTER_SPLIT && is_cluster_split_k(p); /* the blocks of a cluster compute the parts of one tile */
    if (threadIdx.x == 0) {
        const Grid grid(p, S::BM, S::BN, S::BK);
        new (now.work)
            Work(p, grid, in_cluster ? (int)blockIdx.x % p.splits * grid.tiles() + (int)blockIdx.x / p.splits : (int)blockIdx.x, gridDim.x);
    }
    while (true) {
        if (threadIdx.x == 0) {
            now.valid = work.next(now.tile);
#ifdef PYSIM_EMULATED
            /* no clusters: one block computes all parts */
            if (in_cluster) now.valid = now.valid && now.tile.part == 0, now.tile.end = ceil_div(p.k, S::BK);
#endif
        }
        __syncthreads();
        /* so that the next launch, which may start when this one ends, also finds the previous one finished */
        if (!now.valid) return wait_for_previous();
        const Tile &t = now.tile;
        Acc acc[S::TM][S::ACCUMULATORS];
#pragma unroll
        for (int m = 0; m < S::TM; m++)
#pragma unroll
            for (int n = 0; n < S::ACCUMULATORS; n++) memset(&acc[m][n], 0, sizeof(Acc));
        const int begin = t.begin * S::BK, end = min(t.end * S::BK, p.k);
        const auto a = source.a(t, begin, end);
        const auto b = source.b(t, begin, end);
        const auto sum_up = [&](auto edge, const auto &from_a, const auto &from_b) {
            sum_tile<S, decltype(edge)::value, MATRICES>(from_a, from_b, t.end - t.begin, acc, shared, base_a, base_b);
        };
        int row = t.i * S::BM, column = t.j * S::BN;
        constexpr std::false_type INSIDE;
        constexpr std::true_type EDGE;
        if constexpr (MATRICES) {
            row = source.row(t), column = source.column(t);
            const bool vectors = a.by_vectors() && b.by_vectors(), fits = a.fits() && b.fits();
            if (vectors && fits) sum_up(INSIDE, a, b);
            else if constexpr (!S::SINGLES) sum_up(EDGE, a, b);
            else if (fits) sum_up(INSIDE, source.singles_a(t, begin, end), source.singles_b(t, begin, end));
            else sum_up(EDGE, source.singles_a(t, begin, end), source.singles_b(t, begin, end));
        } else if (a.whole() && b.whole()) sum_up(INSIDE, a, b);
        else sum_up(EDGE, a, b);
        bool whole = true;
        if (t.parts > 1 && !in_cluster) {
            constexpr int COUNT = S::TM * S::TN;
            typename T::Value values[COUNT];
#pragma unroll
            for (int e = 0; e < COUNT; e++) values[e] = T::value(acc[e / S::TN][e % S::TN / T::PACK], e % T::PACK);
            whole = reduce_parts(p, work, t, values, threadIdx.x, S::THREADS, &now.last, [] { __syncthreads(); });
#pragma unroll
            for (int e = 0; e < COUNT; e += T::PACK) acc[e / S::TN][e % S::TN / T::PACK] = T::acc_of(values + e);
        }
        __syncthreads(); /* shared memory is reused for the tile */
        if (whole)
            store_tile<S>(source, t, acc, shared + warp * (S::WM * S::WN * (int)sizeof(Acc) / T::PACK), row + warp_m, column + warp_n, lm,
                          ln, lane, in_cluster && CLUSTERS ? ClusterPart{t.part, t.parts} : ClusterPart{0, 1});
        if (in_cluster && CLUSTERS) return cluster_sync(); /* a block must not exit while others read its shared memory */
        __syncthreads();
    }
}

/* The operands of a product. The last rows and columns of tiles are aligned to the end of C and overlap the tiles before, which store the overlap. So only a
 * product smaller than a tile needs bounds checks. */
template <class S, bool TRANS_A, bool TRANS_B> struct Matrices {
    const Problem &p;
    static __device__ int first(int tile, int extent, int limit) { return max(min(tile * extent, limit - extent), 0); }
    __device__ int row(const Tile &t) const { return first(t.i, S::BM, p.m); }
    __device__ int column(const Tile &t) const { return first(t.j, S::BN, p.n); }
    __device__ auto a(const Tile &t, int begin, int end) const {
        return typename S::template CopyA<!TRANS_A>(p.a, p.lda, row(t), p.m, begin, end, threadIdx.x);
    }
    __device__ auto b(const Tile &t, int begin, int end) const {
        return typename S::template CopyB<TRANS_B>(p.b, p.ldb, column(t), p.n, begin, end, threadIdx.x);
    }
    __device__ auto singles_a(const Tile &t, int begin, int end) const {
        return typename S::template SinglesA<!TRANS_A>(p.a, p.lda, row(t), p.m, begin, end, threadIdx.x);
    }
    __device__ auto singles_b(const Tile &t, int begin, int end) const {
        return typename S::template SinglesB<TRANS_B>(p.b, p.ldb, column(t), p.n, begin, end, threadIdx.x);
    }
    template <class Body> __device__ void with_output(const Tile &t, Body body) const {
        using Value = typename S::T::Value;
        const auto from_here = [&](auto epilogue) {
            epilogue.first_row = t.i * S::BM, epilogue.first_column = t.j * S::BN;
            body(epilogue);
        };
        if constexpr (S::T::PACK == 2) {
            if (p.c_dtype == PYSIM_F16) by_function<float, __half>(p, from_here);
            else by_function<float, float>(p, from_here);
        } else {
            by_function<Value, Value>(p, from_here);
        }
    }
};

template <class S, bool TRANS_A, bool TRANS_B> __global__ __launch_bounds__(S::THREADS,
                                                                            S::BLOCKS) void kernel(const __grid_constant__ Problem p) {
    if constexpr (S::BUILT) sum_tiles<S, true>(p, Matrices<S, TRANS_A, TRANS_B>{p});
}

/* The kernel of a layout, with its shared memory limit raised. */
template <class S> cudaError_t kernel_of(const Problem &p, void (**out)(Problem)) {
    *out = p.trans_a   ? (p.trans_b ? kernel<S, true, true> : kernel<S, true, false>)
           : p.trans_b ? kernel<S, false, true>
                       : kernel<S, false, false>;
    return S::SHARED_BYTES > 47 * 1024 ? cudaFuncSetAttribute(*out, cudaFuncAttributeMaxDynamicSharedMemorySize, S::SHARED_BYTES)
                                       : cudaSuccess;
}

template <class S> cudaError_t launch(const Problem &p, int, cudaStream_t stream) {
    void (*run)(Problem);
    const cudaError_t error = kernel_of<S>(p, &run);
    if (error != cudaSuccess) return error;
    const LaunchOptions options = {S::CLUSTER_SPLIT && is_cluster_split_k(p) ? p.splits : 1, p.follows != 0, 1, true};
    return launch_with(options, run, Grid(p, S::BM, S::BN, S::BK).items(p), S::THREADS, S::SHARED_BYTES, stream, p);
}

template <class S> cudaError_t attributes(const Problem &p, pysim_cuda_attributes *out) {
    void (*run)(Problem);
    const cudaError_t error = kernel_of<S>(p, &run);
    return error == cudaSuccess ? attributes_of(run, S::THREADS, S::SHARED_BYTES, out) : error;
}
}
#endif
