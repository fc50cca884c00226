/* SPDX-License-Identifier: Apache-2.0
 * The fix-up of split-K and stream-K on wgmma: through the workspace, where the last block of a tile adds all parts (core/decomposition.cuh), or in the
 * shared memory of a cluster, where each block reduces and stores a share of the tile. */
#ifndef PYSIM_CUDA_WGMMA_PARTS_CUH
#define PYSIM_CUDA_WGMMA_PARTS_CUH
#include "core/decomposition.cuh"
#include "mainloop/wgmma/epilogue.cuh"
#include "core/hopper.cuh"

namespace pysim::hopper {

/* A thread's accumulators as vectors of four: v[4j + 2h + i] is row 8h, column 8j + 2q + i, q = the lane's index in its quad. */
template <class S, class Acc> __device__ inline const Acc *vector_of(const Acc (&acc)[S::PARTS][S::ACCUMULATORS], int vector) {
    return &acc[vector * 4 / S::ACCUMULATORS][vector * 4 % S::ACCUMULATORS];
}

/* A thread's partial sums in the workspace: VECTORS of four; neighbouring threads have neighbouring vectors. */
template <class S, class Acc> struct Partials {
    using Vector = Pack<Acc, 4>;
    static constexpr int THREADS = 128 * S::GROUPS, VECTORS = 4 * S::SLICES;
    Vector *own;
    __device__ Partials(const Problem &p, int64_t first, int thread) : own((Vector *)p.partials + first * VECTORS * THREADS + thread) {}

    /* Stores a part of a tile; returns true in the last block to do so, which then calls sum_parts(). `tile_flag` counts the tile's stored parts, `shared` is
     * one int of shared memory. */
    template <class Sync>
    __device__ bool publish(int64_t slot, const Acc (&acc)[S::PARTS][S::ACCUMULATORS], unsigned *tile_flag, int parts, int thread,
                            int *shared, Sync sync) const {
        Vector *const to = own + slot * VECTORS * THREADS;
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            const Acc *const v = vector_of<S>(acc, i);
            to[i * THREADS] = {{v[0], v[1], v[2], v[3]}};
        }
        __threadfence();
        sync();
        if (thread == 0) *shared = atomicAdd(tile_flag, 1u) == (unsigned)parts - 1;
        sync();
        const bool last = *shared;
        sync(); /* *shared may be written again */
        if (last) __threadfence();
        return last;
    }
    /* Adds all parts of a tile in the order of k. */
    __device__ void sum_parts(const Work &work, const Tile &t, Acc (&acc)[S::PARTS][S::ACCUMULATORS]) const {
#pragma unroll
        for (int i = 0; i < 4 * VECTORS; i++) acc[i / S::ACCUMULATORS][i % S::ACCUMULATORS] = 0;
#pragma unroll 1
        for (int part = 0; part < t.parts; part++) {
            const Vector *const from = own + work.slot_of(t, part) * VECTORS * THREADS;
#pragma unroll
            for (int i = 0; i < VECTORS; i++) {
                const uint4 word = __ldcg((const uint4 *)(from + i * THREADS));
                const Vector of = *(const Vector *)&word;
#pragma unroll
                for (int n = 0; n < 4; n++) acc[4 * i / S::ACCUMULATORS][4 * i % S::ACCUMULATORS + n] += of.value[n];
                if (i % 4 == 3) asm volatile("" ::: "memory"); /* limits the loads in flight, and so registers */
            }
        }
    }
};

/* The cluster reduction: block b of `parts` reduces vectors b, b + parts, ... of each thread. All blocks write these vectors into the stages of block
 * b, which are free by then, ordered by part. Distributed shared memory moves few bytes a cycle, so the blocks share the traffic evenly. */
template <class S, class Acc> struct ClusterReduction {
    int part, parts;
    uint32_t stages; /* of this thread */
    int columns;     /* of the tile, if Shape::NARROWS */
    static constexpr int THREADS = 128 * S::GROUPS, VECTORS = 4 * S::SLICES;
    static_assert((VECTORS + S::MAX_CLUSTER_PARTS - 1) * THREADS * 16 <= S::STAGES * S::STAGE_BYTES,
                  "the stages hold all parts of a block's vectors");
    __device__ ClusterReduction(uint32_t stages, int part, int parts, int thread, int columns)
        : part(part), parts(parts), stages(stages + thread * 16), columns(columns) {}
    /* Whether the tile has a vector's columns. */
    __device__ bool has(int vector) const { return !S::NARROWS || vector % (S::ACCUMULATORS / 4) * 8 < columns; }
    __device__ void exchange(const Acc (&acc)[S::PARTS][S::ACCUMULATORS]) const {
        cluster_sync();
        int block = 0, to = part; /* consecutive vectors go to consecutive blocks */
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            if (has(i))
                store_at(address_at(stages + to * THREADS * 16, cluster_rank() + (block - part) * S::BLOCKS),
                         (const float *)vector_of<S>(acc, i));
            if (++block == parts) block = 0, to += parts;
        }
        cluster_sync();
    }
    /* Calls store_at(row, column, v) for this block's reduced vectors: two rows, eight apart, of two columns. `row`, `column`: the thread's first. */
    template <class StoreAt> __device__ void store(int row, int column, StoreAt store_at) const {
        constexpr int PER_PART = S::ACCUMULATORS / 4, AT_ONCE = 8;
        uint32_t from = stages;
#pragma unroll 1
        for (int vector = part; vector < VECTORS; vector += parts, from += parts * THREADS * 16) {
            if (!has(vector)) continue;
            Acc v[4] = {};
#pragma unroll 1
            for (int first = 0; first < parts; first += AT_ONCE)
#pragma unroll
                for (int of = first; of < first + AT_ONCE; of++) {
                    if (of >= parts) break;
                    const uint4 word = load_shared(from + of * THREADS * 16);
                    const Pack<Acc, 4> more = *(const Pack<Acc, 4> *)&word;
#pragma unroll
                    for (int i = 0; i < 4; i++) v[i] += more.value[i];
                }
            store_at(row + vector / PER_PART * 64, column + vector % PER_PART * 8, v);
        }
    }
};

/* Epilogue and store of four reduced sums: sum 2 h + i goes to C[place(h, i)] if here(h, i), with bias and scale of line_of(h, i). `pairs`: sums 2 h and
 * 2 h + 1 are stored as one word. */
template <class S, class Acc, class T, class Place, class Here, class LineOf>
__device__ __forceinline__ void store_four(const EpilogueTerms<T> &e, const Acc (&v)[4], bool pairs, Place place, Here here,
                                           LineOf line_of) {
    T x[4];
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = e.alpha * T(v[i]);
    if (e.scale)
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] *= e.scale[line_of(i / 2, i % 2)];
    with_result<S::DTYPE, Acc>(e.c_dtype, [&](auto result) {
        using Out = typename decltype(result)::type;
        using Old = typename Word<sizeof(Out)>::type;
        if (e.beta != T(0)) {
            Old old[4];
#pragma unroll
            for (int i = 0; i < 4; i++) old[i] = Access<sizeof(Out)>::load((const Out *)e.c + place(i / 2, i % 2), here(i / 2, i % 2));
#pragma unroll
            for (int i = 0; i < 4; i++) x[i] += e.beta * T(*(const Out *)&old[i]);
        }
        if (e.bias)
#pragma unroll
            for (int i = 0; i < 4; i++) x[i] += T(((const Out *)e.bias)[line_of(i / 2, i % 2)]);
    });
    with_result<S::DTYPE, Acc>(e.c_dtype, [&](auto result) {
        using Out = typename decltype(result)::type;
        activate<sizeof(Out) == 2>(e.function, e.activation, x, e.low, e.high);
        Out *const c = (Out *)e.c;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const Pack<Out, 2> value = {{Out(x[2 * h]), Out(x[2 * h + 1])}};
            if (pairs && here(h, 1)) *(Pack<Out, 2> *)(c + place(h, 0)) = value;
            else
#pragma unroll
                for (int i = 0; i < 2; i++)
                    if (here(h, i)) c[place(h, i)] = value.value[i];
        }
    });
}

/* Whether pairs of columns of C are aligned words. */
__device__ inline bool in_whole_pairs(const Problem &p) { return p.ldc % 2 == 0 && (uintptr_t)p.c % (2 * bytes_of_result(p)) == 0; }

/* Stores this block's share of a reduced tile, rows up to `end` and columns up to `last`; `row`, `column`: the first of the warpgroup. */
template <class S, class Acc> __device__ __forceinline__ void store_reduced(const Problem &p, const ClusterReduction<S, Acc> &reduction,
                                                                            int row, int end, int column, int last) {
    row += row_of_thread(), column += threadIdx.x % 4 * 2;
    const EpilogueTerms<typename Arithmetic<Acc>::type> e(p);
    const bool transposed = S::DTYPE == PYSIM_TF32 && p.transposed, by_row = (p.by_row != 0) != transposed;
    const bool pairs = !transposed && in_whole_pairs(p);
    reduction.store(row, column, [&](int at_row, int at, const Acc(&v)[4]) {
        store_four<S>(
            e, v, pairs, [&](int h, int i) { return transposed ? (at + i) * p.ldc + at_row + 8 * h : (at_row + 8 * h) * p.ldc + at + i; },
            [&](int h, int i) { return at_row + 8 * h < end && at + i < last; },
            [&](int h, int i) { return by_row ? min(at_row + 8 * h, p.m - 1) : min(at + i, p.n - 1); });
    });
}
}
#endif
