/* SPDX-License-Identifier: Apache-2.0
 * From wgmma's accumulators to C in 16-byte stores. A thread holds pairs of neighbouring columns, 8 columns apart (mma.cuh); four
 * neighbouring lanes hold a row's 8 columns. They exchange pairs until each holds 16 neighbouring bytes of one row, so that a warp
 * writes whole 32-byte sectors and no shared memory is needed. A slice of 32 columns and 16 registers goes through at a time: the
 * loop is rolled, or the program would be several times as large. */
#ifndef PYSIM_CUDA_WGMMA_EPILOGUE_CUH
#define PYSIM_CUDA_WGMMA_EPILOGUE_CUH
#include <type_traits>

#include "core/decomposition.cuh"
#include "core/epilogue.cuh"
#include "mainloop/hopper/ptx.cuh"

namespace pysim {
namespace hopper {

enum { SLICE = 16 }; /* registers: v[4j + 2h + i] = row 8h, column 8j + 2q + i of 32, q the lane in its quad */

/* The registers of slice `index`: by a switch, for registers have no addresses. */
template <int SLICES, class Acc, int SUMS>
__device__ inline void take_slice(Acc (&v)[SLICE], const Acc (&sum)[SLICES * SLICE / SUMS][SUMS], int index) {
#define PYSIM_SLICE(S)                                                                                                               \
    case S:                                                                                                                          \
        if constexpr (S < SLICES) {                                                                                                  \
            _Pragma("unroll") for (int i = 0; i < SLICE; i++) v[i] = sum[S * SLICE / SUMS][S * SLICE % SUMS + i];                      \
        }                                                                                                                            \
        break;
    static_assert(SLICES <= 8, "the cases below");
    switch (index) {
        PYSIM_SLICE(0) PYSIM_SLICE(1) PYSIM_SLICE(2) PYSIM_SLICE(3) PYSIM_SLICE(4) PYSIM_SLICE(5) PYSIM_SLICE(6) PYSIM_SLICE(7)
    }
#undef PYSIM_SLICE
}

/* Where a thread's part of a slice of partial sums lies: four vectors of four, `threads` vectors apart. */
template <class Acc> struct Partials {
    using Vector = Pack<Acc, 4>;
    Vector *own;
    int threads, slices;
    __device__ Partials(const Problem &p, int64_t first, int thread, int threads, int slices)
        : own((Vector *)p.partials + first * slices * 4 * threads + thread), threads(threads), slices(slices) {}
    __device__ Vector *at(int64_t slot, int slice, int vector) const {
        return own + ((slot * slices + slice) * 4 + vector) * threads;
    }
};

/* Leaves a part of a tile's sums; true for the block that does so last, which then adds all of them (core/decomposition.cuh). `tile_flag`
 * counts the tile's parts, `shared` is one int of shared memory. */
template <class S, class Acc, class Sync>
__device__ inline bool leave(const Partials<Acc> &partials, int64_t slot, const Acc (&sum)[S::PARTS][S::SUMS], unsigned *tile_flag,
                             int parts, int thread, int *shared, Sync sync) {
#pragma unroll 1
    for (int slice = 0; slice < S::SLICES; slice++) {
        Acc v[SLICE] = {};
        take_slice<S::SLICES>(v, sum, slice);
#pragma unroll
        for (int i = 0; i < 4; i++) *partials.at(slot, slice, i) = {{v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]}};
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

/* word[i] of lane q becomes word[q] of lane i, among the four lanes of a quad. */
__device__ inline void transpose_quad(unsigned (&word)[4], int lane) {
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (!(i & bit)) {
                const bool upper = lane & bit;
                const unsigned received = __shfl_xor_sync(~0u, upper ? word[i] : word[i | bit], bit);
                if (upper) word[i] = received;
                else word[i | bit] = received;
            }
}

/* Two results each of two columns 8 apart become four neighbours: of the first column in even lanes, of the second in odd ones. */
__device__ inline void exchange_pair(unsigned (&word)[4], int lane) {
    const bool odd = lane & 1;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const unsigned received = __shfl_xor_sync(~0u, odd ? word[i] : word[2 + i], 1);
        if (odd) word[i] = received;
        else word[2 + i] = received;
    }
}

/* 16 bytes at once, if `here`. The compiler makes four stores of a uint4, and branches. */
__device__ inline void store_16(void *to, const unsigned (&word)[4], bool here) {
    asm volatile("{\n.reg .pred here;\nsetp.ne.b32 here, %5, 0;\n@here st.global.v4.b32 [%0], {%1, %2, %3, %4};\n}" ::"l"(to),
                 "r"(word[0]), "r"(word[1]), "r"(word[2]), "r"(word[3]), "r"((int)here) : "memory");
}

/* x = f(alpha scale x + beta C + bias) on a slice whose first row and column of this thread these are; place(h, column) points at C in row 8h. */
template <class Acc, class Out, class T, class Place>
__device__ inline void finish_slice(const Epilogue<Acc, Out> &e, int row, int column, T (&x)[SLICE], Place place) {
    const auto row_of = [&](int i) { return row + i / 2 % 2 * 8; };
    const auto column_of = [&](int i) { return column + i / 4 * 8 + i % 2; };
    /* with(value, line): of every value, where bias and scale have it */
    const auto each_line = [&](auto with) {
        if (e.by_row)
#pragma unroll
            for (int i = 0; i < SLICE; i++) with(x[i], min(row_of(i), e.m - 1));
        else
#pragma unroll
            for (int i = 0; i < SLICE; i++) with(x[i], min(column_of(i), e.n - 1));
    };
#pragma unroll
    for (int i = 0; i < SLICE; i++) x[i] *= e.alpha;
    if (e.scale) each_line([&](T &value, int line) { value *= e.scale[line]; });
    if (e.beta != T(0)) {
        T before[SLICE]; /* all at once: sums that change under a condition each wait for their own load */
#pragma unroll
        for (int i = 0; i < SLICE; i++) {
            before[i] = T(0);
            if (column_of(i) < e.n && row_of(i) < e.m) before[i] = T(*place(i / 2 % 2, column_of(i)));
        }
#pragma unroll
        for (int i = 0; i < SLICE; i++) x[i] += e.beta * before[i];
    }
    if (e.bias) each_line([&](T &value, int line) { value += T(e.bias[line]); });
    activate(e.activation, x, e.low, e.high);
}

/* 8 of a slice's 16 results, one row of the warp's: x[2j + i] = column 8j + 2q + i of 32. `to` is place() columns after the first of the 32,
 * and `left` columns of C begin there: whole vectors, so each is inside C or outside. */
template <class Out> __device__ inline int place(int lane) { return sizeof(Out) == 2 ? 8 * lane : 8 * (lane % 2) + 4 * (lane / 2); }
template <class Out, class T> __device__ inline void store_row(Out *to, const T (&x)[8], int lane, int left) {
    Pack<Out, 2> pair[4];
#pragma unroll
    for (int j = 0; j < 4; j++) pair[j] = {{Out(x[2 * j]), Out(x[2 * j + 1])}};
    if constexpr (sizeof(Out) == 2) {
        unsigned word[4];
#pragma unroll
        for (int j = 0; j < 4; j++) word[j] = *(const unsigned *)&pair[j];
        transpose_quad(word, lane);
        store_16(to, word, left > 0);
    } else {
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
            const uint2 first = *(const uint2 *)&pair[j], second = *(const uint2 *)&pair[j + 1];
            unsigned word[4] = {first.x, first.y, second.x, second.y};
            exchange_pair(word, lane);
            store_16(to + 8 * j, word, left > 8 * j);
        }
    }
}

/* Whether all of C from `column` on, so many at once, is whole vectors of 16 bytes, each inside C or outside. */
template <class Acc, class Out> __device__ inline bool in_vectors(const Epilogue<Acc, Out> &e, int column, int columns) {
    return e.aligned % 16 == 0 && (column + columns <= e.n || e.n % (int)(16 / sizeof(Out)) == 0);
}

/* Where a warp's 16 rows of a slice lie on their way: 40 words apart, so that neither side meets in a bank. */
template <class S, class T> __device__ inline T *passage() {
    extern __shared__ char memory[];
    const uint32_t first = shared_address(memory), data = (first + 1023) / 1024 * 1024;
    return (T *)(memory + (data - first) + S::PASSAGES + threadIdx.x / 32 * S::PASSAGE_BYTES);
}

/* A warp's slice into its passage, in rows of PITCH. */
template <int PITCH, class T> __device__ inline void put_slice(T *passage, const T (&x)[SLICE]) {
    const int lane = threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            *(Pack<T, 2> *)(passage + (lane / 4 + 8 * h) * PITCH + 8 * j + lane % 4 * 2) = {{x[4 * j + 2 * h], x[4 * j + 2 * h + 1]}};
    __syncwarp();
}

/* A warp's slice, x as finish_slice has it, into rows of C that begin at no multiple of 16 bytes, or that end inside: a row at once, by all lanes. */
template <class Out, class T>
__device__ inline void store_ragged(Out *c, int64_t ldc, int rows, int columns, const T (&x)[SLICE], T *passage) {
    enum { PITCH = 40 };
    const int lane = threadIdx.x % 32;
    put_slice<PITCH>(passage, x);
    Out *const to = c + lane;
    if (rows >= 16 && columns >= 32)
#pragma unroll
        for (int r = 0; r < 16; r++) to[r * ldc] = Out(passage[r * PITCH + lane]);
    else
        for (int r = 0; r < min(rows, 16); r++)
            if (lane < columns) to[r * ldc] = Out(passage[r * PITCH + lane]);
}

/* A warp's slice of C' (Problem::turned), its first row and column given, into C: of each of eight rows of C 16 neighbours at once, in vectors, or of
 * each of two where rows of C are no whole vectors. */
template <class Acc, class Out>
__device__ inline void store_turned(Epilogue<Acc, Out> e, int row, int column, const Acc (&v)[SLICE], Acc *passage) {
    enum { PITCH = 34 }; /* read without conflicts, either way */
    const int lane = threadIdx.x % 32, m = e.m;
    put_slice<PITCH>(passage, v);
    e.m = e.n, e.n = m; /* C's own */
    if (e.aligned % (4 * sizeof(Out))) {
        row += lane % 16, column += lane / 16;
#pragma unroll 4
        for (int i = 0; i < 32; i += 2) e.store(column + i, row, passage[lane % 16 * PITCH + lane / 16 + i]);
        return;
    }
    const Acc *const from = passage + lane % 4 * 4 * PITCH + lane / 4;
    row += lane % 4 * 4, column += lane / 4;
#pragma unroll
    for (int i = 0; i < 32; i += 8) {
        const Acc some[4] = {from[i], from[PITCH + i], from[2 * PITCH + i], from[3 * PITCH + i]};
        if (e.plain && column + i < e.m && row + 4 <= e.n)
            *(Pack<Out, 4> *)(e.c + (column + i) * e.ldc + row) = {{Out(some[0]), Out(some[1]), Out(some[2]), Out(some[3])}};
        else e.store(column + i, row, some);
    }
}

/* A slice's results into C, whatever the epilogue and wherever C ends: `row` is the thread's first, `column` the warp's. */
template <class S, class Acc, class Out>
__device__ inline void store_slice(const Epilogue<Acc, Out> &e, int row, int column, const Acc (&v)[SLICE]) {
    using T = typename Epilogue<Acc, Out>::T;
    const int lane = threadIdx.x % 4;
    T x[SLICE];
#pragma unroll
    for (int i = 0; i < SLICE; i++) x[i] = T(v[i]);
    if (!e.plain) finish_slice(e, row, column + 2 * lane, x, [&](int h, int at) { return e.c + (row + 8 * h) * e.ldc + at; });
    if (!in_vectors(e, column, 32)) {
        row -= threadIdx.x % 32 / 4;
        return store_ragged(e.c + row * e.ldc + column, e.ldc, e.m - row, e.n - column, x, passage<S, T>());
    }
#pragma unroll
    for (int h = 0; h < 2; h++, row += 8) {
        T of_row[8];
#pragma unroll
        for (int i = 0; i < 8; i++) of_row[i] = x[i / 2 * 4 + 2 * h + i % 2];
        store_row(e.c + row * e.ldc + column + place<Out>(lane), of_row, lane, row < e.m ? e.n - column - place<Out>(lane) : 0);
    }
}

/* All of a warpgroup's part at once where sums are results and rows whole vectors: unrolled, so that exchanges and stores overlap. On an
 * H200 the loop over slices took twice as long. */
template <class S, class Acc, class Out>
__device__ inline void store_plain(const Epilogue<Acc, Out> &e, int row, int column, const Acc (&sum)[S::PARTS][S::SUMS]) {
    const int lane = threadIdx.x % 4;
#pragma unroll
    for (int part = 0; part < S::PARTS; part++) {
        Out *const upper = e.c + (row + 64 * part) * e.ldc + column + place<Out>(lane), *const lower = upper + 8 * e.ldc;
        const int left = e.n - column - place<Out>(lane), above = row + 64 * part < e.m ? left : 0, below = row + 64 * part + 8 < e.m ? left : 0;
#pragma unroll
        for (int slice = 0; slice < S::SUMS / SLICE; slice++) {
            Acc first[8], second[8];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                first[i] = sum[part][slice * SLICE + i / 2 * 4 + i % 2];
                second[i] = sum[part][slice * SLICE + i / 2 * 4 + 2 + i % 2];
            }
            store_row(upper + 32 * slice, first, lane, above - 32 * slice);
            store_row(lower + 32 * slice, second, lane, below - 32 * slice);
        }
    }
}

/* The result types of a dtype: f32 (s32) always, those of two bytes as abi/gemm.cu allows them. */
template <int DTYPE, class Out> struct Becomes {
    static constexpr bool value = sizeof(Out) == 4 || DTYPE == PYSIM_F8 ||
                                  DTYPE == (std::is_same<Out, __half>::value ? PYSIM_F16 : PYSIM_BF16);
};

/* store_at(row, column, v) of each slice of a warpgroup's part of a tile whose first column is left of `columns`; of tiles in parts, of the
 * sum of all in the order of k. */
template <class S, class Acc, class StoreAt>
__device__ inline void each_slice(const Work &work, const Tile &t, const Partials<Acc> &partials, int row, int column, int columns,
                                  const Acc (&sum)[S::PARTS][S::SUMS], StoreAt store_at) {
    constexpr int PER_PART = S::SUMS / SLICE;
#pragma unroll 1
    for (int slice = 0; slice < S::SLICES; slice++) {
        const int at = column + slice % PER_PART * 32;
        if (at >= columns) continue;
        Acc v[SLICE] = {};
        if (t.parts == 1) take_slice<S::SLICES>(v, sum, slice);
        else
            for (int part = 0; part < t.parts; part++) {
                const int64_t slot = work.slot_of(t, part);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const uint4 word = __ldcg((const uint4 *)partials.at(slot, slice, i));
                    const Pack<Acc, 4> from = *(const Pack<Acc, 4> *)&word;
#pragma unroll
                    for (int n = 0; n < 4; n++) v[4 * i + n] += from.value[n];
                }
            }
        store_at(row + slice / PER_PART * 64, at, v);
    }
}

/* A thread's first row of a warpgroup's part. */
__device__ inline int row_of_thread() { return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4; }

/* A warpgroup's part of a tile, its first row and column given. */
template <class S, class Acc>
__device__ inline void store_tile(const Problem &p, const Work &work, const Tile &t, const Partials<Acc> &partials, int row,
                                  int column, const Acc (&sum)[S::PARTS][S::SUMS]) {
    row += row_of_thread();
    const auto store = [&](const auto &e) {
        if constexpr (S::DTYPE == PYSIM_TF32)
            if (p.turned)
                return each_slice<S>(work, t, partials, row - threadIdx.x % 32 / 4, column, e.n, sum,
                                     [&](int at_row, int at, const Acc (&v)[SLICE]) { store_turned(e, at_row, at, v, passage<S, Acc>()); });
        if (t.parts == 1 && e.plain && in_vectors(e, column, S::WARP_N)) return store_plain<S>(e, row, column, sum);
        each_slice<S>(work, t, partials, row, column, e.n, sum, [&](int at_row, int at, const Acc (&v)[SLICE]) { store_slice<S>(e, at_row, at, v); });
    };
    with_epilogue<Acc>(p, [&](const auto &e) {
        if constexpr (Becomes<S::DTYPE, std::decay_t<decltype(*e.c)>>::value) store(e);
    });
}

/* Parts of a tile's sums that meet in a cluster: each block sums, of all of them, every `parts`th vector of a thread's. Those lie in the stages of the block,
 * part after part, and nobody reads the stages any more. What comes from another block is few bytes a cycle, so all blocks share it evenly. */
template <class S, class Acc> struct Meeting {
    int part, parts;
    uint32_t stages; /* of this thread */
    static constexpr int THREADS = 128 * S::GROUPS, VECTORS = 4 * S::SLICES;
    static_assert((VECTORS + S::NEAR - 1) * THREADS * 16 <= S::STAGES * S::STAGE_BYTES, "all parts of a block's vectors");
    __device__ Meeting(uint32_t stages, int part, int parts, int thread) : part(part), parts(parts), stages(stages + thread * 16) {}
    __device__ uint32_t at(int vector, int of_part) const { return stages + (vector / parts * parts + of_part) * THREADS * 16; }
    __device__ void leave(const Acc (&sum)[S::PARTS][S::SUMS]) const {
        cluster_sync();
#pragma unroll 1
        for (int slice = 0; slice < S::SLICES; slice++) {
            Acc v[SLICE] = {};
            take_slice<S::SLICES>(v, sum, slice);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int vector = 4 * slice + i;
                store_at(address_at(at(vector, part), cluster_rank() + (vector % parts - part) * S::BLOCKS), (const float *)v + 4 * i);
            }
        }
        cluster_sync();
    }
    /* store_at(row, column, v): this block's vectors, of two rows eight apart and two columns, `row` and `column` those of the thread's first. */
    template <class StoreAt> __device__ void store(int row, int column, StoreAt store_at) const {
        constexpr int PER_PART = S::SUMS / SLICE;
#pragma unroll 1
        for (int vector = part; vector < VECTORS; vector += parts) {
            Acc v[4] = {};
            for (int from = 0; from < parts; from++) {
                const uint4 word = load_shared(at(vector, from));
                const Pack<Acc, 4> of = *(const Pack<Acc, 4> *)&word;
#pragma unroll
                for (int i = 0; i < 4; i++) v[i] += of.value[i];
            }
            const int slice = vector / 4;
            store_at(row + slice / PER_PART * 64, column + slice % PER_PART * 32 + vector % 4 * 8, v);
        }
    }
};

/* Four sums of a meeting into C: sum 2 h + i goes where place(h, i) points, which is read and written where here(h, i) says so, and has bias and scale of
 * line_of(h, i). `pairs`: those of two i are one word. */
template <class Acc, class Out, class Place, class Here, class LineOf>
__device__ inline void store_four(const Epilogue<Acc, Out> &e, const Acc (&v)[4], bool pairs, Place place, Here here, LineOf line_of) {
    Pack<Out, 2> value[2];
    auto &all = *(Out(*)[4])value;
    if (e.beta != 0)
#pragma unroll
        for (int i = 0; i < 4; i++) all[i] = here(i / 2, i % 2) ? *place(i / 2, i % 2) : Out(0.f);
    if (e.plain)
#pragma unroll
        for (int i = 0; i < 4; i++) all[i] = Out(typename Epilogue<Acc, Out>::T(v[i]));
    else e.finish(v, all, [&](int i) { return line_of(i / 2, i % 2); });
#pragma unroll
    for (int h = 0; h < 2; h++)
        if (pairs && here(h, 1)) *(Pack<Out, 2> *)place(h, 0) = value[h];
        else
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (here(h, i)) *place(h, i) = value[h].value[i];
}

/* What of a tile's part is this block's after a meeting, the first row and column of the warpgroup's given. */
template <class S, class Acc> __device__ inline void store_meeting(const Problem &p, const Meeting<S, Acc> &meeting, int row, int column) {
    row += row_of_thread(), column += threadIdx.x % 4 * 2;
    const auto store = [&](const auto &e) {
        const bool turned = S::DTYPE == PYSIM_TF32 && p.turned, by_row = e.by_row != turned;
        meeting.store(row, column, [&](int at_row, int at, const Acc (&v)[4]) {
            store_four(
                e, v, !turned && e.aligned % (2 * sizeof(*e.c)) == 0,
                [&](int h, int i) { return e.c + (turned ? (at + i) * e.ldc + at_row + 8 * h : (at_row + 8 * h) * e.ldc + at + i); },
                [&](int h, int i) { return at_row + 8 * h < e.m && at + i < e.n; },
                [&](int h, int i) { return by_row ? min(at_row + 8 * h, e.m - 1) : min(at + i, e.n - 1); });
        });
    };
    with_epilogue<Acc>(p, [&](const auto &e) {
        if constexpr (Becomes<S::DTYPE, std::decay_t<decltype(*e.c)>>::value) store(e);
    });
}
}
}
#endif
