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
template <class S, class Out, bool ALL, bool RAGGED, Runs RUNS, class Acc, class T, class Place, class Pitch>
__device__ __forceinline__ void store_direct(As<RUNS> as, const Behind<T> &e, const Target<Place, Pitch> &c, int row, int column, int columns, const Acc (&sum)[S::PARTS][S::SUMS]) {
    constexpr bool NARROW = sizeof(Out) == 2;
    constexpr int SLICES = S::SUMS / 16, VECTOR = 16 / sizeof(Out), WINDOWS = 64 / VECTOR; /* vectors of a column */
    [[maybe_unused]] constexpr int UNROLLED = ALL ? 1 : 16;
    constexpr bool FULL = hopper::FULL<S>; /* what goes to memory costs more than waiting */
    constexpr int ROWS_PITCH = 32, COLUMNS_PITCH = 64 + VECTOR; /* results */
    static_assert(!RAGGED || (RUNS == BY_ROWS && NARROW && !ALL), "what has no better way");
    static_assert(RUNS != EITHER, "each run has a program of its own");
    static_assert(16 * ROWS_PITCH * 2 <= Passage<S>::ROWS_TURN && 32 * COLUMNS_PITCH * 2 <= Passage<S>::COLUMNS_TURN, "a piece of two-byte results");
    const int lane = threadIdx.x % 32, thread = threadIdx.x % 128, warp = thread / 32;
    const bool arithmetic = e.bias || e.alpha != T(1), bounded = e.function == positive || e.function == clamped, capped = e.function == clamped;
    const auto residual = [&] {
        if constexpr (ALL) return anew(e.beta != T(0)) != 0;
        else return false;
    };
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
        /* A piece is what one of two places has, all columns of a slice, or of 4 bytes half of them. Of a thread's vectors: rows: 8 apart, columns
         * from `at` on; else columns 128 / WINDOWS apart */
        const bool rows = as.rows();
        const int turn = Passage<S>::turn(rows) / (int)sizeof(Out), pitch = rows ? ROWS_PITCH : COLUMNS_PITCH;
        Out *const own = (Out *)Passage<S>::own(rows);
        const int step = rows ? 8 : 128 / WINDOWS, piece_columns = NARROW || rows ? 32 : 16, piece_lines = rows ? 0 : piece_columns, piece_along = rows ? 32 : 0;
        const int line = rows ? row + 64 * part + 16 * warp + lane / 4 : column + thread / WINDOWS;
        const int at = rows ? column + lane % 4 * (NARROW ? VECTOR : 2) : row + 64 * part + thread % WINDOWS * VECTOR;
        bool here;
        Out *const to = (Out *)e.c + c.place(at, here) + (int64_t)line * c.pitch;
        const auto exists = [&](int piece, int i) { return (rows ? at + 32 * piece < c.length : here) && line + step * i + piece_lines * piece < c.lines; };
        const auto place = [&](int piece, int i) { return to + (int64_t)(step * i + piece_lines * piece) * c.pitch + piece_along * piece; };
        Out *const first_slot = own + (rows ? lane / 4 * ROWS_PITCH + (lane % 4 ^ lane / 8) * VECTOR : thread / WINDOWS * COLUMNS_PITCH + thread % WINDOWS * VECTOR);
        const auto slot = [&](int piece, int i) { return (uint4 *)(first_slot + piece % 2 * turn + step * i * pitch); };
        /* What C had of the piece after those that lie there: two vectors, or, of rows of 4 bytes, of which a thread has pairs, those of a slice as x has
         * them (FULL: of one h, and not ahead). */
        [[maybe_unused]] uint2 before[NARROW || FULL ? 4 : 8];
        const auto fetch = [&](int piece, uint2 *into) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint4 vector = Access<16>::load(place(piece, i), piece * piece_columns < 32 * count && exists(piece, i));
                into[2 * i] = {vector.x, vector.y}, into[2 * i + 1] = {vector.z, vector.w};
            }
        };
        const auto lay = [&](const uint2 *of, int piece) {
#pragma unroll
            for (int i = 0; i < 2; i++) *slot(piece, i) = {of[2 * i].x, of[2 * i].y, of[2 * i + 1].x, of[2 * i + 1].y};
        };
        const auto bring_first = [&] {
            uint2 other[4];
            fetch(0, before), fetch(1, other);
            lay(before, 0), lay(other, 1);
            fetch(2, before);
        };
        /* Rows that begin anywhere: a row by all lanes, 32 neighbours. */
        [[maybe_unused]] const auto leave_row_by_row = [&](int piece) {
            bool there;
            const int first = row + 64 * part + 16 * warp;
            const Out *const from = own + piece % 2 * turn + lane % VECTOR;
            Out *const lies = (Out *)e.c + c.place(column + lane, there) + (int64_t)first * c.pitch + 32 * piece;
            const bool inside = column + 32 * piece + lane < c.length;
#pragma unroll
            for (int r = 0; r < 16; r++) {
                const auto value = *(const typename pysim::Word<sizeof(Out)>::type *)(from + r * ROWS_PITCH + (lane / VECTOR ^ r % 8 / 2) * VECTOR);
                Access<sizeof(Out)>::store(lies + (int64_t)r * c.pitch, value, inside && first + r < c.lines);
            }
        };
        /* Results of a piece, which all have put, to C. */
        const auto leave = [&](int piece) {
            if constexpr (RAGGED) {
                leave_row_by_row(piece);
            } else if (!as.rows() && !anew(c.direct)) { /* columns of C that begin or end anywhere: each element by a thread of its own */
                bool there;
                const int of = thread / 64, window = thread % 64, first = piece_columns * piece;
                const Out *const from = own + piece % 2 * turn;
                Out *const lies = (Out *)e.c + c.place(row + 64 * part + window, there) + (int64_t)(column + first + of) * c.pitch;
#pragma unroll
                for (int i = 0; i < (NARROW ? 32 : 16); i += 2)
                    if (there && column + first + of + i < c.lines) lies[(int64_t)i * c.pitch] = from[(of + i) * COLUMNS_PITCH + window];
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
                if (residual()) add(x);
                if constexpr (T(0.5) != T(0))
                    if (anew(smooth)) activate_by<FULL ? 4 : 8>(e.activation, e.function, x);
            }
        };
        ask(0);
        if constexpr (NARROW) {
            using Two = typename Pair<Out>::type;
            const Two least = Pair<Out>::of(low, low), most = Pair<Out>::of(e.high, e.high);
            Out *const first_matrix = own + (rows ? lane % 8 * ROWS_PITCH + (lane / 8 ^ lane % 8 / 2) * VECTOR : lane * COLUMNS_PITCH + 16 * warp);
            const auto matrices = [&](int slice, int h) { return first_matrix + slice % 2 * turn + h * (rows ? 8 * ROWS_PITCH : 8); };
            const auto put = [&](int slice) {
                T x[16];
                finish(slice, x, [&](T (&x)[16]) {
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        unsigned old[4];
                        if (as.rows()) load_matrices<false>(old, matrices(slice, h));
                        else load_matrices<true>(old, matrices(slice, h));
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
                    if (as.rows()) store_matrices<false>(matrices(slice, h), of);
                    else store_matrices<true>(matrices(slice, h), of);
                }
            };
            const auto sync = [&] { Strip{as.rows()}.sync(); };
            if (residual()) bring_first(), sync();
            if (column < columns) put(0);
#pragma unroll UNROLLED
            for (int slice = 0; slice < (ALL ? count : SLICES); slice++)
                if (ALL || column + 32 * slice < columns) {
                    sync();
                    if (slice + 1 < (ALL ? count : SLICES)) put(slice + 1);
                    leave(slice);
                    if (residual()) lay(before, slice + 2), fetch(slice + 3, before);
                }
            if (count % 2) sync();
        } else {
            const auto there = [&](int slice, int i) { return at + 32 * slice + i / 2 * 8 < c.length && line + i % 2 * 8 < c.lines; };
            const auto pair = [&](int slice, int i) { return to + i % 2 * 8 * c.pitch + 32 * slice + i / 2 * 8; };
            const auto fetch_pairs = [&](int slice, int first) {
#pragma unroll
                for (int i = 0; i < 8; i += FULL ? 2 : 1) before[FULL ? i / 2 : i] = Access<8>::load(pair(slice, first + i), slice < count && there(slice, first + i));
            };
            const auto add = [&](int slice, T (&x)[16]) {
                if (as.rows()) {
#pragma unroll
                    for (int h = 0; h < (FULL ? 2 : 1); h++) {
                        if (FULL) fetch_pairs(slice, h);
#pragma unroll
                        for (int i = 0; i < (FULL ? 8 : 16); i++) x[FULL ? i / 2 * 4 + 2 * h + i % 2 : i] += e.beta * value(before[i / 2], i % 2);
                        if (!FULL) fetch_pairs(slice + 1, 0);
                    }
                } else {
                    Strip{false}.sync();
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        T old[STRIP];
                        Strip::get(old, own + half * turn);
#pragma unroll
                        for (int i = 0; i < STRIP; i++) x[STRIP * half + i] += e.beta * old[i];
                    }
                }
            };
            if (residual()) {
                if (!as.rows()) bring_first();
                else if (!FULL) fetch_pairs(0, 0);
            }
#pragma unroll UNROLLED
            for (int slice = 0; slice < (ALL ? count : SLICES); slice++)
                if (ALL || column + 32 * slice < columns) {
                    T x[16];
                    finish(slice, x, [&](T (&x)[16]) { add(slice, x); });
                    if (anew(bounded))
#pragma unroll
                        for (int i = 0; i < 16; i++) x[i] = at_least(x[i], low);
                    if (anew(capped))
#pragma unroll
                        for (int i = 0; i < 16; i++) x[i] = at_most(x[i], e.high);
                    if (as.rows()) {
#pragma unroll
                        for (int h = 0; h < 2; h++)
#pragma unroll
                            for (int i = h; i < 8; i += 2) {
                                const Pack<Out, 2> two = {{x[2 * i], x[2 * i + 1]}};
                                Access<8>::store(pair(slice, i), *(const uint2 *)&two, there(slice, i));
                            }
                    } else {
#pragma unroll
                        for (int half = 0; half < 2; half++) {
                            T v[STRIP];
#pragma unroll
                            for (int i = 0; i < STRIP; i++) v[i] = x[STRIP * half + i];
                            Strip{false}.put(own + half * turn, v);
                            Strip{false}.sync();
                            leave(2 * slice + half);
                            if (residual()) lay(before, half), fetch(2 * slice + 3 + half, before);
                        }
                    }
                }
        }
    }
}
}
}
#endif
