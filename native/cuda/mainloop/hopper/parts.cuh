/* SPDX-License-Identifier: Apache-2.0
 * How sums of a tile's parts, of split-K and stream-K, become one: by way of the workspace, where the last block adds up what all left
 * (core/decomposition.cuh), or in the shared memory of a cluster, where each block adds up and stores its share. */
#ifndef PYSIM_CUDA_HOPPER_PARTS_CUH
#define PYSIM_CUDA_HOPPER_PARTS_CUH
#include "core/decomposition.cuh"
#include "mainloop/hopper/epilogue.cuh"
#include "mainloop/hopper/ptx.cuh"

namespace pysim {
namespace hopper {

/* A warpgroup's sums as vectors of four: v[4j + 2h + i] = row 8h, column 8j + 2q + i of 64 rows, q the lane in its quad. */
template <class S, class Acc> __device__ inline const Acc *vector_of(const Acc (&sum)[S::PARTS][S::SUMS], int vector) {
    return &sum[vector * 4 / S::SUMS][vector * 4 % S::SUMS];
}

/* Where a thread's parts of a tile's sums lie: VECTORS of four, of all threads side by side. */
template <class S, class Acc> struct Partials {
    using Vector = Pack<Acc, 4>;
    static constexpr int THREADS = 128 * S::GROUPS, VECTORS = 4 * S::SLICES;
    Vector *own;
    __device__ Partials(const Problem &p, int64_t first, int thread) : own((Vector *)p.partials + first * VECTORS * THREADS + thread) {}

    /* Leaves a part of a tile's sums; true for the block that does so last, which then adds all of them (core/decomposition.cuh). `tile_flag`
     * counts the tile's parts, `shared` is one int of shared memory. */
    template <class Sync>
    __device__ bool leave(int64_t slot, const Acc (&sum)[S::PARTS][S::SUMS], unsigned *tile_flag, int parts, int thread, int *shared, Sync sync) const {
        Vector *const to = own + slot * VECTORS * THREADS;
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            const Acc *const v = vector_of<S>(sum, i);
            to[i * THREADS] = {{v[0], v[1], v[2], v[3]}};
        }
        __threadfence();
        sync();
        if (thread == 0) *shared = atomicAdd(tile_flag, 1u) == (unsigned)parts - 1;
        sync();
        const bool last = *shared;
        sync(); /* before anyone writes *shared again */
        if (last) __threadfence();
        return last;
    }
    /* All parts of a tile, in the order of k. */
    __device__ void add_up(const Work &work, const Tile &t, Acc (&sum)[S::PARTS][S::SUMS]) const {
#pragma unroll
        for (int i = 0; i < 4 * VECTORS; i++) sum[i / S::SUMS][i % S::SUMS] = 0;
#pragma unroll 1
        for (int part = 0; part < t.parts; part++) {
            const Vector *const from = own + work.slot_of(t, part) * VECTORS * THREADS;
#pragma unroll
            for (int i = 0; i < VECTORS; i++) {
                const uint4 word = __ldcg((const uint4 *)(from + i * THREADS));
                const Vector of = *(const Vector *)&word;
#pragma unroll
                for (int n = 0; n < 4; n++) sum[4 * i / S::SUMS][4 * i % S::SUMS + n] += of.value[n];
                if (i % 4 == 3) asm volatile("" ::: "memory"); /* not all loads at once: registers */
            }
        }
    }
};

/* Parts of a tile's sums that meet in a cluster: each block sums, of all of them, every `parts`th vector of a thread's. Those lie in the stages of the block,
 * part after part, and nobody reads the stages any more. What comes from another block is few bytes a cycle, so all blocks share it evenly. */
template <class S, class Acc> struct Meeting {
    int part, parts;
    uint32_t stages; /* of this thread */
    static constexpr int THREADS = 128 * S::GROUPS, VECTORS = 4 * S::SLICES;
    static_assert((VECTORS + S::NEAR - 1) * THREADS * 16 <= S::STAGES * S::STAGE_BYTES, "all parts of a block's vectors");
    __device__ Meeting(uint32_t stages, int part, int parts, int thread) : part(part), parts(parts), stages(stages + thread * 16) {}
    __device__ void leave(const Acc (&sum)[S::PARTS][S::SUMS]) const {
        cluster_sync();
        int block = 0, to = part; /* of each `parts` vectors block by block */
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            store_at(address_at(stages + to * THREADS * 16, cluster_rank() + (block - part) * S::BLOCKS), (const float *)vector_of<S>(sum, i));
            if (++block == parts) block = 0, to += parts;
        }
        cluster_sync();
    }
    /* store_at(row, column, v): this block's vectors, of two rows eight apart and two columns, `row` and `column` those of the thread's first. */
    template <class StoreAt> __device__ void store(int row, int column, StoreAt store_at) const {
        constexpr int PER_PART = S::SUMS / 4;
        uint32_t from = stages;
#pragma unroll 1
        for (int vector = part; vector < VECTORS; vector += parts, from += parts * THREADS * 16) {
            Acc v[4] = {};
#pragma unroll
            for (int of = 0; of < S::NEAR; of++) {
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

/* Four sums of a meeting into C: sum 2 h + i goes place(h, i) elements after the first, where here(h, i) says so, and has bias and scale of line_of(h, i).
 * `pairs`: those of two i are one word. */
template <class S, class Acc, class T, class Place, class Here, class LineOf>
__device__ __forceinline__ void store_four(const Behind<T> &e, const Acc (&v)[4], bool pairs, Place place, Here here, LineOf line_of) {
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
    activate(e.function, e.activation, x, e.low, e.high);
    with_result<S::DTYPE, Acc>(e.c_dtype, [&](auto result) {
        using Out = typename decltype(result)::type;
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

/* Whether rows of C are whole pairs. */
__device__ inline bool in_whole_pairs(const Problem &p) { return p.ldc % 2 == 0 && (uintptr_t)p.c % (2 * bytes_of_result(p)) == 0; }

/* What of a tile's part is this block's after a meeting, the first row and column of the warpgroup's given. */
template <class S, class Acc> __device__ __forceinline__ void store_meeting(const Problem &p, const Meeting<S, Acc> &meeting, int row, int column) {
    row += row_of_thread(), column += threadIdx.x % 4 * 2;
    const Behind<typename Arithmetic<Acc>::type> e(p);
    const bool turned = S::DTYPE == PYSIM_TF32 && p.turned, by_row = (p.by_row != 0) != turned;
    const bool pairs = !turned && in_whole_pairs(p);
    meeting.store(row, column, [&](int at_row, int at, const Acc (&v)[4]) {
        store_four<S>(
            e, v, pairs, [&](int h, int i) { return turned ? (at + i) * p.ldc + at_row + 8 * h : (at_row + 8 * h) * p.ldc + at + i; },
            [&](int h, int i) { return at_row + 8 * h < p.m && at + i < p.n; },
            [&](int h, int i) { return by_row ? min(at_row + 8 * h, p.m - 1) : min(at + i, p.n - 1); });
    });
}
}
}
#endif
