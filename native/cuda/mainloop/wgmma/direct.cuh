/* SPDX-License-Identifier: Apache-2.0
 * The store path of tiles BY_COLUMNS, of residuals and smooth activations, and of ragged rows (epilogue.cuh): arithmetic on the accumulators in place, a
 * slice of 32 columns at a time. */
#ifndef PYSIM_CUDA_WGMMA_DIRECT_CUH
#define PYSIM_CUDA_WGMMA_DIRECT_CUH
#include "mainloop/wgmma/pairs.cuh"
#include "mainloop/wgmma/staging.cuh"

namespace pysim::hopper {

/* Applies a smooth activation to COUNT of a slice's 16 values at a time and rotates the slice: less code and fewer registers than all at once. */
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

/* Stores C of the usual type: in aligned vectors of 16 bytes, or unaligned BY_COLUMNS, or (RAGGED) unaligned rows of two-byte results; with a scale and a
 * bias per column. The epilogue is computed on the accumulators in place, and results change threads as they are stored, a slice of 64 rows x 32 columns at a
 * time. Two-byte results go through stmatrix in words of two, after which a thread has 16 contiguous bytes. Four-byte results BY_ROWS are stored
 * without an exchange, 32 bytes by four threads.
 *
 * ALL: also smooth activations and beta C, in rolled loops, so that their code exists once. The old C takes the stores' route backwards: a thread loads the
 * vectors ahead that it will store, and stages them in the slots from which it will read its results. No other thread touches those slots between
 * the reads of one piece and the next barrier, and afterwards each thread reads the old values from where it will write its results. So the
 * old C costs no barrier. */
template <class S, class Out, bool ALL, bool RAGGED, ResultOrder ORDER, class Acc, class T, class Place, class Pitch>
__device__ __forceinline__ void store_direct(Order<ORDER> order, const EpilogueTerms<T> &e, const Target<Place, Pitch> &c, int row,
                                             int column, int columns, const Acc (&acc)[S::PARTS][S::ACCUMULATORS]) {
    constexpr bool NARROW = sizeof(Out) == 2;
    constexpr int SLICES = S::ACCUMULATORS / 16, VECTOR = 16 / sizeof(Out), WINDOWS = 64 / VECTOR; /* vectors of a column */
    [[maybe_unused]] constexpr int UNROLLED = ALL ? 1 : 16;
    constexpr bool FEW_REGISTERS = hopper::FEW_REGISTERS<S>;    /* spills cost more than waiting for loads */
    constexpr int ROWS_PITCH = 32, COLUMNS_PITCH = 64 + VECTOR; /* results */
    static_assert(!RAGGED || (ORDER == BY_ROWS && NARROW && !ALL), "other results have a better path");
    static_assert(ORDER != EITHER, "each order has its own instance");
    static_assert(ORDER == BY_COLUMNS || ALL || RAGGED, "rows.cuh stores other rows");
    static_assert(16 * ROWS_PITCH * 2 <= Staging<S>::ROWS_BUFFER && 32 * COLUMNS_PITCH * 2 <= Staging<S>::COLUMNS_BUFFER,
                  "a piece of two-byte results");
    const int lane = threadIdx.x % 32, thread = threadIdx.x % 128, warp = thread / 32;
    const bool arithmetic = e.bias || e.alpha != T(1), bounded = e.function == positive || e.function == clamped,
               capped = e.function == clamped;
    const auto residual = [&] {
        if constexpr (ALL) return opaque(e.beta != T(0)) != 0;
        else return false;
    };
    [[maybe_unused]] const bool smooth = ALL && is_smooth(e.function);
    const T low = e.function == positive ? T(0) : e.low;
    const int first_column = column + lane % 4 * 2, count = min(SLICES, ceil_div(columns - column, 32));
    using Word = typename pysim::Word<2 * sizeof(Out)>::type; /* two values of the bias, packed: the compiler would unpack them */
    const auto value = [](const Word &word, int i) { return T(((const Pack<Out, 2> *)&word)->value[i]); };
    Word bias[4];
    const Out *const first_bias = (const Out *)e.bias + first_column;
    const auto load_bias = [&](int slice) {
#pragma unroll
        for (int j = 0; j < 4; j++)
            bias[j] = Access<sizeof(Word)>::load(first_bias + 32 * slice + 8 * j, e.bias && first_column + 32 * slice + 8 * j < columns);
    };
#pragma unroll UNROLLED
    for (int part = 0; part < S::PARTS; part++) {
        /* A piece is what one of two places has, all columns of a slice, or of 4 bytes half of them. Of a thread's vectors: rows: 8 apart, columns
         * from `at` on; else columns 128 / WINDOWS apart */
        const bool rows = order.by_rows();
        const int buffer = Staging<S>::buffer_bytes(rows) / (int)sizeof(Out), pitch = rows ? ROWS_PITCH : COLUMNS_PITCH;
        Out *const own = (Out *)Staging<S>::own(rows);
        const int step = rows ? 8 : 128 / WINDOWS, piece_columns = NARROW || rows ? 32 : 16, piece_lines = rows ? 0 : piece_columns,
                  piece_along = rows ? 32 : 0;
        const int line = rows ? row + 64 * part + 16 * warp + lane / 4 : column + thread / WINDOWS;
        const int at = rows ? column + lane % 4 * (NARROW ? VECTOR : 2) : row + 64 * part + thread % WINDOWS * VECTOR;
        bool here;
        static_assert(!Target<Place, Pitch>::GAPPED || (ORDER == BY_ROWS && NARROW), "gaps between rows of two-byte results");
        Out *const to = (Out *)e.c + c.place(at, here) + c.offset(line);
        const int64_t other = c.GAPPED ? c.offset(line + step) - c.offset(line) : 0; /* the second line of a thread's */
        const auto exists = [&](int piece, int i) {
            return (rows ? at + 32 * piece < c.length : here) && c.has(line + step * i + piece_lines * piece);
        };
        const auto place = [&](int piece, int i) {
            if constexpr (Target<Place, Pitch>::GAPPED) return to + i * other + piece_along * piece;
            else return to + c.offset(step * i + piece_lines * piece) + piece_along * piece;
        };
        Out *const first_slot = own + (rows ? lane / 4 * ROWS_PITCH + (lane % 4 ^ lane / 8) * VECTOR
                                            : thread / WINDOWS * COLUMNS_PITCH + thread % WINDOWS * VECTOR);
        const auto slot = [&](int piece, int i) { return (uint4 *)(first_slot + piece % 2 * buffer + step * i * pitch); };
        /* Old values of C of the piece after the staged ones: two vectors; for four-byte results BY_ROWS the pairs of a slice in the order of x
         * (FEW_REGISTERS: of one h, and not ahead). */
        [[maybe_unused]] uint2 before[NARROW || FEW_REGISTERS ? 4 : 8];
        const auto fetch = [&](int piece, uint2 *into) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint4 vector = Access<16>::load(place(piece, i), piece * piece_columns < 32 * count && exists(piece, i));
                into[2 * i] = {vector.x, vector.y}, into[2 * i + 1] = {vector.z, vector.w};
            }
        };
        const auto stage = [&](const uint2 *of, int piece) {
#pragma unroll
            for (int i = 0; i < 2; i++) *slot(piece, i) = {of[2 * i].x, of[2 * i].y, of[2 * i + 1].x, of[2 * i + 1].y};
        };
        const auto load_first = [&] {
            uint2 other[4];
            fetch(0, before), fetch(1, other);
            stage(before, 0), stage(other, 1);
            fetch(2, before);
        };
        /* Unaligned rows: all lanes store 32 neighbours of one row. */
        [[maybe_unused]] const auto store_row_by_row = [&](int piece) {
            bool there;
            const int first = row + 64 * part + 16 * warp;
            const Out *const from = own + piece % 2 * buffer + lane % VECTOR;
            Out *const lies = (Out *)e.c + c.place(column + lane, there) + c.offset(first) + 32 * piece;
            const bool inside = column + 32 * piece + lane < c.length;
#pragma unroll
            for (int r = 0; r < 16; r++) {
                const auto value =
                    *(const typename pysim::Word<sizeof(Out)>::type *)(from + r * ROWS_PITCH + (lane / VECTOR ^ r % 8 / 2) * VECTOR);
                Access<sizeof(Out)>::store(lies + c.offset(r), value, inside && first + r < c.lines);
            }
        };
        /* Stores a piece after the barrier behind its writes. */
        const auto store_piece = [&](int piece) {
            if constexpr (RAGGED) {
                store_row_by_row(piece);
            } else if (!order.by_rows() && !opaque(c.direct)) { /* unaligned columns of C: element by element */
                bool there;
                const int of = thread / 64, window = thread % 64, first = piece_columns * piece;
                const Out *const from = own + piece % 2 * buffer;
                Out *const lies = (Out *)e.c + c.place(row + 64 * part + window, there) + c.offset(column + first + of);
#pragma unroll
                for (int i = 0; i < (NARROW ? 32 : 16); i += 2)
                    if (there && column + first + of + i < c.lines) lies[c.offset(i)] = from[(of + i) * COLUMNS_PITCH + window];
            } else {
#pragma unroll
                for (int i = 0; i < 2; i++) Access<16>::store(place(piece, i), *slot(piece, i), exists(piece, i));
            }
        };
        /* The epilogue of a slice except ReLU and clamp; add(x) adds beta C */
        const auto finish = [&](int slice, T(&x)[16], auto add) {
            const auto take = [&](const Acc *from) {
#pragma unroll
                for (int i = 0; i < 16; i++) x[i] = T(from[i]);
            };
            if constexpr (ALL)
                with_number<S::SLICES>(part * SLICES + slice, [&](auto number) {
                    constexpr int N = decltype(number)::value;
                    take(&acc[N / SLICES][N % SLICES * 16]);
                });
            else take(&acc[part][16 * slice]);
            if (opaque(e.scale != nullptr))
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const int along = first_column + 32 * slice + 8 * j;
                    scale_columns(&x[4 * j], e.scale + along, along < columns);
                }
            if (opaque(arithmetic))
#pragma unroll
                for (int i = 0; i < 16; i++) x[i] = e.alpha * x[i] + value(bias[i / 4], i % 2);
            if (slice + 1 < SLICES) load_bias(slice + 1);
            if constexpr (ALL) {
                if (residual()) add(x);
                if constexpr (T(0.5) != T(0))
                    if (opaque(smooth)) {
                        if constexpr (NARROW) narrow::activate(e.activation, x);
                        else activate_by<FEW_REGISTERS ? 4 : 8>(e.activation, e.function, x);
                    }
            }
            slope(x, opaque(e.function == sloped), low, e.high);
        };
        load_bias(0);
        if constexpr (NARROW) {
            using Two = typename Pair<Out>::type;
            const Two least = Pair<Out>::of(low, low), most = Pair<Out>::of(e.high, e.high);
            Out *const first_matrix =
                own + (rows ? lane % 8 * ROWS_PITCH + (lane / 8 ^ lane % 8 / 2) * VECTOR : lane * COLUMNS_PITCH + 16 * warp);
            const auto matrices = [&](int slice, int h) { return first_matrix + slice % 2 * buffer + h * (rows ? 8 * ROWS_PITCH : 8); };
            const auto put = [&](int slice) {
                T x[16];
                finish(slice, x, [&](T(&x)[16]) {
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        unsigned old[4];
                        if (order.by_rows()) load_matrices<false>(old, matrices(slice, h));
                        else load_matrices<true>(old, matrices(slice, h));
#pragma unroll
                        for (int i = 0; i < 8; i++) x[i / 2 * 4 + 2 * h + i % 2] += e.beta * value(old[i / 2], i % 2);
                    }
                });
                Two word[8]; /* 2j + h */
#pragma unroll
                for (int i = 0; i < 8; i++) word[i] = Pair<Out>::of(x[2 * i], x[2 * i + 1]);
                bound(word, opaque(bounded), opaque(capped), least, most);
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const unsigned of[4] = {*(unsigned *)&word[h], *(unsigned *)&word[2 + h], *(unsigned *)&word[4 + h],
                                            *(unsigned *)&word[6 + h]};
                    if (order.by_rows()) store_matrices<false>(matrices(slice, h), of);
                    else store_matrices<true>(matrices(slice, h), of);
                }
            };
            const auto sync = [&] { Strip{order.by_rows()}.sync(); };
            if (residual()) load_first(), sync();
            if (column < columns) put(0);
#pragma unroll UNROLLED
            for (int slice = 0; slice < (ALL ? count : SLICES); slice++)
                if (ALL || column + 32 * slice < columns) {
                    sync();
                    if (slice + 1 < (ALL ? count : SLICES)) put(slice + 1);
                    store_piece(slice);
                    if (residual()) stage(before, slice + 2), fetch(slice + 3, before);
                }
            if (count % 2) sync();
        } else {
            const auto there = [&](int slice, int i) { return at + 32 * slice + i / 2 * 8 < c.length && line + i % 2 * 8 < c.lines; };
            const auto pair = [&](int slice, int i) { return to + i % 2 * c.offset(8) + 32 * slice + i / 2 * 8; };
            const auto fetch_pairs = [&](int slice, int first) {
#pragma unroll
                for (int i = 0; i < 8; i += FEW_REGISTERS ? 2 : 1)
                    before[FEW_REGISTERS ? i / 2 : i] = Access<8>::load(pair(slice, first + i), slice < count && there(slice, first + i));
            };
            const auto add = [&](int slice, T(&x)[16]) {
                if (order.by_rows()) {
#pragma unroll
                    for (int h = 0; h < (FEW_REGISTERS ? 2 : 1); h++) {
                        if (FEW_REGISTERS) fetch_pairs(slice, h);
#pragma unroll
                        for (int i = 0; i < (FEW_REGISTERS ? 8 : 16); i++)
                            x[FEW_REGISTERS ? i / 2 * 4 + 2 * h + i % 2 : i] += e.beta * value(before[i / 2], i % 2);
                        if (!FEW_REGISTERS) fetch_pairs(slice + 1, 0);
                    }
                } else {
                    Strip{false}.sync();
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        T old[STRIP];
                        Strip::get(old, own + half * buffer);
#pragma unroll
                        for (int i = 0; i < STRIP; i++) x[STRIP * half + i] += e.beta * old[i];
                    }
                }
            };
            if (residual()) {
                if (!order.by_rows()) load_first();
                else if (!FEW_REGISTERS) fetch_pairs(0, 0);
            }
#pragma unroll UNROLLED
            for (int slice = 0; slice < (ALL ? count : SLICES); slice++)
                if (ALL || column + 32 * slice < columns) {
                    T x[16];
                    finish(slice, x, [&](T(&x)[16]) { add(slice, x); });
                    bound(x, opaque(bounded), opaque(capped), low, e.high);
                    if (order.by_rows()) {
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
                            Strip{false}.put(own + half * buffer, v);
                            Strip{false}.sync();
                            store_piece(2 * slice + half);
                            if (residual()) stage(before, half), fetch(2 * slice + 3 + half, before);
                        }
                    }
                }
        }
    }
}
}
#endif
