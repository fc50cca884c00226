/* SPDX-License-Identifier: Apache-2.0
 * The way to C of most tiles (epilogue.cuh): a slice of 32 columns at a time, all that is computed where sums are. */
#ifndef PYSIM_CUDA_WGMMA_DIRECT_CUH
#define PYSIM_CUDA_WGMMA_DIRECT_CUH
#include "mainloop/hopper/passage.cuh"

namespace pysim {
namespace hopper {

/* Two results as a word, and what bounds them, or one: a NaN stays. */
template <class Out> struct Pair;
template <> struct Pair<__half> {
    using type = __half2;
    static __device__ type of(float a, float b) { return __floats2half2_rn(a, b); }
};
template <> struct Pair<__nv_bfloat16> {
    using type = __nv_bfloat162;
    static __device__ type of(float a, float b) { return __floats2bfloat162_rn(a, b); }
};
#ifdef PYSIM_EMULATED
inline float at_least(float x, float low) { return x < low ? low : x; }
inline float at_most(float x, float high) { return x > high ? high : x; }
#else
__device__ inline float at_least(float x, float low) {
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(low));
    return x;
}
__device__ inline float at_most(float x, float high) {
    asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(high));
    return x;
}
#endif
__device__ inline int at_least(int x, int low) { return max(x, low); }
__device__ inline int at_most(int x, int high) { return min(x, high); }
template <class Two> __device__ inline Two at_least(Two x, Two low) { return __hmax2_nan(x, low); }
template <class Two> __device__ inline Two at_most(Two x, Two high) { return __hmin2_nan(x, high); }

/* So many of a slice's values at a time, which then go behind the others: a part of the program, and of the registers. */
template <int COUNT, class T> __device__ __forceinline__ void activate_by(int activation, Function function, T (&x)[16]) {
#pragma unroll 1
    for (int part = 0; part < 16 / COUNT; part++) {
        T first[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; i++) first[i] = x[i];
        activate_smoothly(activation, function, first);
#pragma unroll
        for (int i = 0; i < 16 - COUNT; i++) x[i] = x[COUNT + i];
#pragma unroll
        for (int i = 0; i < COUNT; i++) x[16 - COUNT + i] = first[i];
    }
}

/* The way of most tiles: C of the usual type in whole vectors of 16 bytes, or columns of it that begin or end anywhere, or (RAGGED) rows of two-byte
 * results that do, with bias of columns behind the sums. All that is computed is computed where sums are, and results change threads as they are stored,
 * a slice of 64 rows x 32 columns at a time: words of two results by stmatrix, so that a thread then has 16 bytes of a line; of 4 bytes those of rows
 * leave as they are, four threads 32 bytes.
 *
 * ALL: functions and what C had, too, in loops that are rolled, so that there is one program of them. What C had comes in by the way that results leave,
 * the other way round: a thread asks for the vectors ahead that it will store, and lays them where it will take results from. Nobody else has to
 * do with those places between its taking one piece's results and the next barrier, and what then lies there a thread reads where it will put its results:
 * so what comes in costs no barrier. */
template <class S, Runs RUNS, class Out, bool ALL, bool RAGGED, class Acc, class T, class Place, class Pitch>
__device__ __forceinline__ void store_direct(const Behind<T> &e, const Target<Place, Pitch> &c, int row, int column, int columns, const Acc (&sum)[S::PARTS][S::SUMS]) {
    constexpr bool ROWS = RUNS == BY_ROWS, NARROW = sizeof(Out) == 2;
    constexpr int SLICES = S::SUMS / 16, VECTOR = 16 / sizeof(Out);
    [[maybe_unused]] constexpr int UNROLLED = ALL ? 1 : 16;
    constexpr bool FULL = !NARROW && S::PARTS * S::SUMS >= 96; /* sums leave few registers to results of 4 bytes, and those that go to memory cost more than waiting */
    constexpr int PITCH = ROWS ? 32 : 64 + VECTOR, TURN = Passage<S, RUNS>::TURN / (int)sizeof(Out); /* results */
    static_assert(!RAGGED || (ROWS && NARROW && !ALL), "what has no better way");
    static_assert((NARROW ? (ROWS ? 16 : 32) * PITCH : Strip<RUNS>::WORDS) <= TURN, "a piece");
    const int lane = threadIdx.x % 32, thread = threadIdx.x % 128, warp = thread / 32;
    Out *const own = (Out *)Passage<S, RUNS>::own();
    const bool arithmetic = e.bias || e.alpha != T(1), bounded = e.function == positive || e.function == clamped, capped = e.function == clamped;
    const bool residual = ALL && e.beta != T(0);
    [[maybe_unused]] const bool smooth = ALL && is_smooth(e.function);
    const T low = e.function == positive ? T(0) : e.low;
    const int first_column = column + lane % 4 * 2, count = min(SLICES, ceil_div(columns - column, 32));
    using Word = typename pysim::Word<2 * sizeof(Out)>::type; /* two of bias, as they lie: the compiler else takes halves apart */
    const auto value = [](const Word &word, int i) { return T(((const Pack<Out, 2> *)&word)->value[i]); };
    Word bias[4];
    const Out *const first_bias = (const Out *)e.bias + first_column;
    const auto ask = [&](int slice) {
#pragma unroll
        for (int j = 0; j < 4; j++) bias[j] = Access<sizeof(Word)>::load(first_bias + 32 * slice + 8 * j, e.bias && first_column + 32 * slice + 8 * j < columns);
    };
#pragma unroll UNROLLED
    for (int part = 0; part < S::PARTS; part++) {
        /* A piece is what one of two places has, all columns of a slice, or of 4 bytes half of them. Of a thread's vectors: ROWS: rows 8 apart, columns
         * from `at` on; else columns 128 / ACROSS apart */
        constexpr int ACROSS = ROWS ? 4 : 64 / VECTOR, STEP = ROWS ? 8 : 128 / ACROSS, COLUMNS = NARROW || ROWS ? 32 : 16;
        const int line = ROWS ? row + 64 * part + 16 * warp + lane / 4 : column + thread / ACROSS;
        const int at = ROWS ? column + (NARROW ? lane % 4 * VECTOR : lane % 4 * 2) : row + 64 * part + thread % ACROSS * VECTOR;
        bool here;
        Out *const to = (Out *)e.c + c.place(at, here) + (int64_t)line * c.pitch;
        const auto exists = [&](int piece, int i) { return (ROWS ? at + 32 * piece < c.length : here) && line + STEP * i + (ROWS ? 0 : COLUMNS * piece) < c.lines; };
        const auto place = [&](int piece, int i) { return to + (int64_t)(STEP * i + (ROWS ? 0 : COLUMNS * piece)) * c.pitch + (ROWS ? 32 * piece : 0); };
        Out *const first_slot = own + (ROWS ? lane / 4 * PITCH + (lane % 4 ^ lane / 8) * VECTOR : thread / ACROSS * PITCH + thread % ACROSS * VECTOR);
        const auto slot = [&](int piece, int i) { return (uint4 *)(first_slot + piece % 2 * TURN + STEP * i * PITCH); };
        const auto fetch = [&](uint4 (&before)[2], int piece) {
#pragma unroll
            for (int i = 0; i < 2; i++) before[i] = Access<16>::load(place(piece, i), piece * COLUMNS < 32 * count && exists(piece, i));
        };
        const auto lay = [&](const uint4 (&before)[2], int piece) {
#pragma unroll
            for (int i = 0; i < 2; i++) *slot(piece, i) = before[i];
        };
        uint4 before[2]; /* of the piece after those that lie there */
        const auto bring_first = [&] {
            uint4 other[2];
            fetch(before, 0), fetch(other, 1);
            lay(before, 0), lay(other, 1);
            fetch(before, 2);
        };
        /* Rows that begin anywhere: a row by all lanes, 32 neighbours. */
        [[maybe_unused]] const auto leave_row_by_row = [&](int piece) {
            bool there;
            const int first = row + 64 * part + 16 * warp;
            const Out *const from = own + piece % 2 * TURN + lane % VECTOR;
            Out *const lies = (Out *)e.c + c.place(column + lane, there) + (int64_t)first * c.pitch + 32 * piece;
            const bool inside = column + 32 * piece + lane < c.length;
#pragma unroll
            for (int r = 0; r < 16; r++) {
                const auto value = *(const typename pysim::Word<sizeof(Out)>::type *)(from + r * PITCH + (lane / VECTOR ^ r % 8 / 2) * VECTOR);
                Access<sizeof(Out)>::store(lies + (int64_t)r * c.pitch, value, inside && first + r < c.lines);
            }
        };
        /* Results of a piece, which all have put, to C. */
        const auto leave = [&](int piece) {
            if constexpr (RAGGED) {
                leave_row_by_row(piece);
            } else if (!ROWS && !anew(c.direct)) { /* columns of C that begin or end anywhere: each element by a thread of its own */
                bool there;
                const int of = thread / 64, window = thread % 64, first = COLUMNS * piece;
                const Out *const from = own + piece % 2 * TURN;
                Out *const lies = (Out *)e.c + c.place(row + 64 * part + window, there) + (int64_t)(column + first + of) * c.pitch;
#pragma unroll
                for (int i = 0; i < COLUMNS; i += 2)
                    if (there && column + first + of + i < c.lines) lies[(int64_t)i * c.pitch] = from[(of + i) * PITCH + window];
            } else {
#pragma unroll
                for (int i = 0; i < 2; i++) Access<16>::store(place(piece, i), *slot(piece, i), exists(piece, i));
            }
        };
        /* What follows the sums of a slice but bounds; add(x): what C had */
        const auto finish = [&](int slice, T (&x)[16], auto add) {
            const auto take = [&](const Acc *from) {
#pragma unroll
                for (int i = 0; i < 16; i++) x[i] = T(from[i]);
            };
            if constexpr (ALL)
                with_number<S::SLICES>(part * SLICES + slice, [&](auto number) {
                    constexpr int N = decltype(number)::value;
                    take(&sum[N / SLICES][N % SLICES * 16]);
                });
            else take(&sum[part][16 * slice]);
            if (anew(arithmetic))
#pragma unroll
                for (int i = 0; i < 16; i++) x[i] = e.alpha * x[i] + value(bias[i / 4], i % 2);
            if (slice + 1 < SLICES) ask(slice + 1);
            if constexpr (ALL) {
                if (anew(residual)) add(x);
                if constexpr (T(0.5) != T(0))
                    if (anew(smooth)) activate_by<FULL ? 4 : 8>(e.activation, e.function, x);
            }
        };
        ask(0);
        if constexpr (NARROW) {
            using Two = typename Pair<Out>::type;
            const Two least = Pair<Out>::of(low, low), most = Pair<Out>::of(e.high, e.high);
            const auto matrices = [&](int slice, int h) {
                return own + slice % 2 * TURN + (ROWS ? (8 * h + lane % 8) * PITCH + (lane / 8 ^ lane % 8 / 2) * VECTOR : lane * PITCH + 16 * warp + 8 * h);
            };
            const auto put = [&](int slice) {
                T x[16];
                finish(slice, x, [&](T (&x)[16]) {
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        unsigned old[4];
                        load_matrices<!ROWS>(old, matrices(slice, h));
#pragma unroll
                        for (int i = 0; i < 8; i++) x[i / 2 * 4 + 2 * h + i % 2] += e.beta * value(old[i / 2], i % 2);
                    }
                });
                Two word[8]; /* 2j + h */
#pragma unroll
                for (int i = 0; i < 8; i++) word[i] = Pair<Out>::of(x[2 * i], x[2 * i + 1]);
                if (anew(bounded))
#pragma unroll
                    for (int i = 0; i < 8; i++) word[i] = at_least(word[i], least);
                if (anew(capped))
#pragma unroll
                    for (int i = 0; i < 8; i++) word[i] = at_most(word[i], most);
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const unsigned of[4] = {*(unsigned *)&word[h], *(unsigned *)&word[2 + h], *(unsigned *)&word[4 + h], *(unsigned *)&word[6 + h]};
                    store_matrices<!ROWS>(matrices(slice, h), of);
                }
            };
            if (anew(residual)) bring_first(), Strip<RUNS>::sync();
            if (column < columns) put(0);
#pragma unroll UNROLLED
            for (int slice = 0; slice < (ALL ? count : SLICES); slice++)
                if (ALL || column + 32 * slice < columns) {
                    Strip<RUNS>::sync();
                    if (slice + 1 < (ALL ? count : SLICES)) put(slice + 1);
                    leave(slice);
                    if (anew(residual)) lay(before, slice + 2), fetch(before, slice + 3);
                }
            if (count % 2) Strip<RUNS>::sync();
        } else {
            const auto bound = [&](T (&x)[16]) {
                if (anew(bounded))
#pragma unroll
                    for (int i = 0; i < 16; i++) x[i] = at_least(x[i], low);
                if (anew(capped))
#pragma unroll
                    for (int i = 0; i < 16; i++) x[i] = at_most(x[i], e.high);
            };
            if constexpr (ROWS) {
                const auto there = [&](int slice, int i) { return at + 32 * slice + i / 2 * 8 < c.length && line + i % 2 * 8 < c.lines; };
                const auto pair = [&](int slice, int i) { return to + i % 2 * 8 * c.pitch + 32 * slice + i / 2 * 8; };
                Word before[FULL ? 4 : 8]; /* 2j + h, as x; FULL: of one h, and not ahead */
                const auto fetch = [&](int slice, int first) {
#pragma unroll
                    for (int i = 0; i < 8; i += FULL ? 2 : 1) before[FULL ? i / 2 : i] = Access<8>::load(pair(slice, first + i), slice < count && there(slice, first + i));
                };
                if (!FULL && anew(residual)) fetch(0, 0);
#pragma unroll UNROLLED
                for (int slice = 0; slice < (ALL ? count : SLICES); slice++)
                    if (ALL || column + 32 * slice < columns) {
                        T x[16];
                        finish(slice, x, [&](T (&x)[16]) {
#pragma unroll
                            for (int h = 0; h < (FULL ? 2 : 1); h++) {
                                if (FULL) fetch(slice, h);
#pragma unroll
                                for (int i = 0; i < (FULL ? 8 : 16); i++) {
                                    const int of = FULL ? i / 2 * 4 + 2 * h + i % 2 : i;
                                    x[of] += e.beta * value(before[i / 2], i % 2);
                                }
                                if (!FULL) fetch(slice + 1, 0);
                            }
                        });
                        bound(x);
#pragma unroll
                        for (int h = 0; h < 2; h++)
#pragma unroll
                            for (int i = h; i < 8; i += 2) {
                                const Pack<Out, 2> two = {{x[2 * i], x[2 * i + 1]}};
                                Access<8>::store(pair(slice, i), *(const uint2 *)&two, there(slice, i));
                            }
                    }
            } else {
                if (anew(residual)) bring_first();
#pragma unroll UNROLLED
                for (int slice = 0; slice < (ALL ? count : SLICES); slice++)
                    if (ALL || column + 32 * slice < columns) {
                        T x[16];
                        finish(slice, x, [&](T (&x)[16]) {
                            Strip<RUNS>::sync();
#pragma unroll
                            for (int half = 0; half < 2; half++) {
                                T old[STRIP];
                                Strip<RUNS>::get(old, own + half * TURN);
#pragma unroll
                                for (int i = 0; i < STRIP; i++) x[STRIP * half + i] += e.beta * old[i];
                            }
                        });
                        bound(x);
#pragma unroll
                        for (int half = 0; half < 2; half++) {
                            T v[STRIP];
#pragma unroll
                            for (int i = 0; i < STRIP; i++) v[i] = x[STRIP * half + i];
                            Strip<RUNS>::put(own + half * TURN, v);
                            Strip<RUNS>::sync();
                            leave(2 * slice + half);
                            if (anew(residual)) lay(before, half), fetch(before, 2 * slice + 3 + half);
                        }
                    }
            }
        }
    }
}
}
}
#endif
