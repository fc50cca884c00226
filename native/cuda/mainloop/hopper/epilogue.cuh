/* SPDX-License-Identifier: Apache-2.0
 * From wgmma's accumulators to C. A thread holds pairs of neighbouring columns, 8 columns apart (mma.cuh), and C's lines of 16 bytes and more are
 * those of several threads. So results change threads in shared memory, where two pieces take turns and one barrier each is enough.
 *
 *   BY_ROWS     rows of the tile run through memory: what changes threads does so inside a warp
 *   BY_COLUMNS  columns do (results of convolutions in planes; C' = B' A'): inside a warpgroup
 *
 * Most tiles leave by a way that is unrolled and does its arithmetic where sums are (store_direct). What is left, scales, residuals, functions of many
 * instructions, rows that begin or end anywhere, and other types of results than the usual, takes a loop over strips of sums in f32 (store_strips):
 * 8 registers of each thread, 8 rows of each warp x 32 columns, or 64 rows x 16 columns. There a thread has four neighbours in memory, and asks for
 * bias, scale and what C had four at a time. An H200 waits 6 to 8 cycles from one instruction of a warp to its next in either, so each counts. */
#ifndef PYSIM_CUDA_WGMMA_EPILOGUE_CUH
#define PYSIM_CUDA_WGMMA_EPILOGUE_CUH
#include <type_traits>

#include "core/decomposition.cuh"
#include "core/epilogue.cuh"
#include "mainloop/hopper/ptx.cuh"

namespace pysim {
namespace hopper {

/* A condition, or type, that the compiler does not know to be that of the strip before: it would make a program for each combination of them. */
__device__ inline int anew(int now) {
    asm volatile("" : "+r"(now));
    return now;
}

enum Runs { BY_ROWS, BY_COLUMNS };
enum { STRIP = 8 }; /* registers */

/* A strip in shared memory: LINES of LENGTH neighbours, by so many THREADS. */
template <Runs RUNS> struct Strip {
    static constexpr bool ROWS = RUNS == BY_ROWS;
    static constexpr int THREADS = ROWS ? 32 : 128, LENGTH = ROWS ? 32 : 64, LINES = STRIP * THREADS / LENGTH;
    static constexpr int PITCH = ROWS ? 40 : 68, WORDS = LINES * PITCH; /* neither side meets in a bank */

    /* This thread's registers of a strip. */
    template <class Acc> static __device__ void put(Acc *to, const Acc (&v)[STRIP]) {
        const int lane = threadIdx.x % 32, row = threadIdx.x % THREADS / 32 * 16 + lane / 4, column = lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < STRIP; i += 2)
            if constexpr (ROWS) *(Pack<Acc, 2> *)(to + row * PITCH + column + 4 * i) = {{v[i], v[i + 1]}};
            else
#pragma unroll
                for (int n = 0; n < 2; n++) to[(column + i / 4 * 8 + n) * PITCH + row + i % 4 * 4] = v[i + n];
    }
    static __device__ void sync() {
        if constexpr (ROWS) __syncwarp();
        else sync_threads(3 + threadIdx.x / 128, THREADS); /* after the barriers of two sets (kernel.cuh) */
    }
};

/* What follows the sums of a problem, of any type of results. */
template <class T> struct Behind {
    void *c;
    const void *bias;
    const T *scale;
    T alpha, beta, low, high;
    int activation, c_dtype;
    Function function;
    __device__ explicit Behind(const Problem &p)
        : c(p.c), bias(p.bias), scale((const T *)p.scale), alpha((T)p.alpha), beta((T)p.beta), low((T)p.low), high((T)p.high), activation(p.activation),
          c_dtype(p.c_dtype), function(function_of(p.activation)) {}
};

/* The result types of a dtype: f32 (s32) always, those of two bytes as abi/gemm.cu allows them; and that which most have. */
template <class T> struct Type { using type = T; };
template <int DTYPE, class Acc, class Body> __device__ inline void with_result(int c_dtype, Body body) {
    constexpr bool HALF = DTYPE == PYSIM_F16 || DTYPE == PYSIM_F8, BFLOAT = DTYPE == PYSIM_BF16 || DTYPE == PYSIM_F8;
    if constexpr (HALF)
        if (c_dtype == PYSIM_F16) return body(Type<__half>());
    if constexpr (BFLOAT)
        if (c_dtype == PYSIM_BF16) return body(Type<__nv_bfloat16>());
    body(Type<Acc>());
}
template <int DTYPE, class Acc> struct Usual { using type = Acc; static constexpr int DTYPE_OF_C = DTYPE == PYSIM_S8 ? PYSIM_S32 : PYSIM_F32; };
template <class Acc> struct Usual<PYSIM_F16, Acc> { using type = __half; static constexpr int DTYPE_OF_C = PYSIM_F16; };
template <class Acc> struct Usual<PYSIM_BF16, Acc> { using type = __nv_bfloat16; static constexpr int DTYPE_OF_C = PYSIM_BF16; };
template <class Acc> struct Usual<PYSIM_F8, Acc> : Usual<PYSIM_F16, Acc> {};

/* C under a tile: element `along` of line 0 lies place(along, here) elements after the first, if `here`, that of line l l pitch further, and there
 * are so many lines, of so many elements. Bias and scale are of lines, or (`by_line` false) of elements. `vectors`: all lie in whole vectors of four;
 * `direct`: in those of 16 bytes. */
template <class Place, class Pitch> struct Target {
    Place place;
    Pitch pitch;
    int lines, length;
    bool by_line, vectors, direct;
};
template <class Place, class Pitch> __device__ Target(Place, Pitch, int, int, bool, bool, bool) -> Target<Place, Pitch>;
template <Runs RUNS> struct As { static constexpr Runs runs = RUNS; };

/* What a thread has of the strips of 64 rows of a warpgroup: of each 8 / V vectors of V neighbours, V 4 or 1. */
template <Runs RUNS, int V, class Acc, class Out, class Place, class Pitch> class Share {
    using At = Strip<RUNS>;
    using T = typename Arithmetic<Acc>::type;
    using Vector = typename Word<V * sizeof(Out)>::type;
    static constexpr int VECTORS = STRIP / V, ACROSS = At::LENGTH / V, STEP = At::THREADS / ACROSS; /* lines from one vector to the next */
    const Behind<T> &e;
    const Target<Place, Pitch> &c;
    int line, along; /* of its first */
    Out *first;
    bool exists;

    /* Of a strip: lines and elements after those of the first strip. */
    static __device__ int lines_of(int strip, int vector) { return (At::ROWS ? strip % 2 * 8 : strip * 16) + vector * STEP; }
    static __device__ int elements_of(int strip) { return At::ROWS ? strip / 2 * 32 : 0; }
    __device__ bool here(int strip, int vector) const {
        return (At::ROWS ? along + elements_of(strip) < c.length : exists) && line + lines_of(strip, vector) < c.lines;
    }
    __device__ Out *place(int strip, int vector) const { return first + (int64_t)lines_of(strip, vector) * c.pitch + elements_of(strip); }

  public:
    /* From this row and column of the warpgroup on. */
    __device__ Share(const Behind<T> &e, const Target<Place, Pitch> &c, int row, int column) : e(e), c(c) {
        const int thread = threadIdx.x % At::THREADS;
        line = (At::ROWS ? row + threadIdx.x % 128 / 32 * 16 : column) + thread / ACROSS;
        along = (At::ROWS ? column : row) + thread % ACROSS * V;
        first = (Out *)e.c + c.place(along, exists) + (int64_t)line * c.pitch;
    }

    /* A strip's results are factor sum + term + beta before. */
    T factor[STRIP], term[STRIP];
    Vector before[VECTORS];

    /* Asks memory for these; `by_line` is c.by_line. */
    __device__ void ask(int strip, bool by_line) {
        const auto each = [&](auto *from, auto take) {
            using Value = std::decay_t<decltype(*from)>;
            if (by_line)
#pragma unroll
                for (int i = 0; i < VECTORS; i++) {
                    const T one = T(from[min(line + lines_of(strip, i), c.lines - 1)]);
#pragma unroll
                    for (int n = 0; n < V; n++) take(i * V + n, one);
                }
            else {
                const auto all = *(const Pack<Value, V> *)(from + min(along + elements_of(strip), c.length - V));
#pragma unroll
                for (int i = 0; i < STRIP; i++) take(i, T(all.value[i % V]));
            }
        };
#pragma unroll
        for (int i = 0; i < STRIP; i++) factor[i] = e.alpha, term[i] = T(0);
        if (anew(e.scale != nullptr)) each(e.scale, [&](int i, T value) { factor[i] = e.alpha * value; });
        if (anew(e.bias != nullptr)) each((const Out *)e.bias, [&](int i, T value) { term[i] = value; });
#pragma unroll
        for (int i = 0; i < VECTORS; i++) before[i] = Access<sizeof(Vector)>::load(place(strip, i), e.beta != T(0) && here(strip, i));
    }

    /* This thread's results of a strip, whose sums lie at `from`. */
    __device__ void take(T (&x)[STRIP], const Acc *from) const {
        const int thread = threadIdx.x % At::THREADS;
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            const Pack<Acc, V> sums = *(const Pack<Acc, V> *)(from + (i * STEP + thread / ACROSS) * At::PITCH + thread % ACROSS * V);
#pragma unroll
            for (int n = 0; n < V; n++) x[i * V + n] = factor[i * V + n] * T(sums.value[n]) + term[i * V + n];
        }
        if (anew(e.beta != T(0)))
#pragma unroll
            for (int i = 0; i < VECTORS; i++) {
                const auto old = *(const Pack<Out, V> *)&before[i];
#pragma unroll
                for (int n = 0; n < V; n++) x[i * V + n] += e.beta * T(old.value[n]);
            }
    }

    __device__ void store(int strip, const T (&x)[STRIP]) const {
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            Pack<Out, V> value;
#pragma unroll
            for (int n = 0; n < V; n++) value.value[n] = Out(x[i * V + n]);
            Access<sizeof(Vector)>::store(place(strip, i), *(const Vector *)&value, here(strip, i));
        }
    }
};

/* Where a warp's, or a warpgroup's results change threads: the first of two places, TURN bytes apart, behind stages and barriers. What is put at one
 * was asked for by a barrier, and what was read there before by the one before it; so pieces take turns from the first place on, an even number
 * of them, or one more barrier follows. */
template <class S, Runs RUNS> struct Passage {
    static constexpr int THREADS = Strip<RUNS>::THREADS, TURN = S::PASSAGE_BYTES / (128 / THREADS) / 2;
    static __device__ char *own() {
        extern __shared__ char memory[];
        const uint32_t first = shared_address(memory), data = (first + 1023) / 1024 * 1024;
        return memory + (data - first) + S::PASSAGES + threadIdx.x / THREADS * (2 * TURN);
    }
};

/* Registers of strip `strip` into its place, by a switch where loops are rolled: registers have no addresses. */
template <Runs RUNS, class S, class Acc> __device__ __forceinline__ void put_strip(Acc *own, const Acc (&sum)[S::PARTS][S::SUMS], int strip) {
    constexpr int STRIPS = 2 * S::SLICES, PER_PART = S::SUMS / STRIP;
    static_assert(STRIPS <= 16, "the cases below");
#define PYSIM_STRIP(N)                                                                                                               \
    case N:                                                                                                                          \
        if constexpr (N < STRIPS) {                                                                                                  \
            Acc v[STRIP];                                                                                                            \
            _Pragma("unroll") for (int i = 0; i < STRIP; i++)                                                                        \
                v[i] = sum[N / PER_PART][N % PER_PART / 2 * 16 + (RUNS == BY_ROWS ? i / 2 * 4 + N % 2 * 2 + i % 2 : N % 2 * STRIP + i)]; \
            Strip<RUNS>::put(own + N % 2 * (Passage<S, RUNS>::TURN / 4), v);                                              \
        }                                                                                                                            \
        break;
    switch (strip) {
        PYSIM_STRIP(0) PYSIM_STRIP(1) PYSIM_STRIP(2) PYSIM_STRIP(3) PYSIM_STRIP(4) PYSIM_STRIP(5) PYSIM_STRIP(6) PYSIM_STRIP(7)
        PYSIM_STRIP(8) PYSIM_STRIP(9) PYSIM_STRIP(10) PYSIM_STRIP(11) PYSIM_STRIP(12) PYSIM_STRIP(13) PYSIM_STRIP(14) PYSIM_STRIP(15)
    }
#undef PYSIM_STRIP
}

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
__device__ inline float at_least(float x, float low) {
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(low));
    return x;
}
__device__ inline float at_most(float x, float high) {
    asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(high));
    return x;
}
__device__ inline int at_least(int x, int low) { return max(x, low); }
__device__ inline int at_most(int x, int high) { return min(x, high); }
template <class Two> __device__ inline Two at_least(Two x, Two low) { return __hmax2_nan(x, low); }
template <class Two> __device__ inline Two at_most(Two x, Two high) { return __hmin2_nan(x, high); }

/* The way of most tiles: sums of a problem with nothing but bias of columns and bounds behind them, C in whole vectors of 16 bytes. All that is
 * computed is computed where sums are, and results change threads as they are stored, 64 rows x 32 columns at a time: words of two results by
 * stmatrix, so that a thread then has 16 bytes of a line; of 4 bytes those of rows leave as they are, four threads 32 bytes. */
template <class S, Runs RUNS, class Out, class Acc, class T, class Place, class Pitch>
__device__ __forceinline__ void store_direct(const Behind<T> &e, const Target<Place, Pitch> &c, int row, int column, int columns, const Acc (&sum)[S::PARTS][S::SUMS]) {
    constexpr bool ROWS = RUNS == BY_ROWS, NARROW = sizeof(Out) == 2;
    constexpr int SLICES = S::SUMS / 16, VECTOR = 16 / sizeof(Out);
    constexpr int PITCH = ROWS ? 32 : 64 + VECTOR, TURN = Passage<S, RUNS>::TURN / (int)sizeof(Out); /* results */
    static_assert((NARROW ? (ROWS ? 16 : 32) * PITCH : Strip<RUNS>::WORDS) <= TURN, "a piece");
    const int lane = threadIdx.x % 32, thread = threadIdx.x % 128, warp = thread / 32;
    Out *const own = (Out *)Passage<S, RUNS>::own();
    const bool arithmetic = e.bias || e.alpha != T(1), bounded = e.function != same, capped = e.function == clamped;
    const T low = e.function == positive ? T(0) : e.low;
    const int first_column = column + lane % 4 * 2;
    using Word = typename pysim::Word<2 * sizeof(Out)>::type; /* two of bias, as they lie: the compiler else takes halves apart */
    Word bias[4];
    const Out *const first_bias = (const Out *)e.bias + first_column;
    const auto ask = [&](int slice) {
#pragma unroll
        for (int j = 0; j < 4; j++) bias[j] = Access<sizeof(Word)>::load(first_bias + 32 * slice + 8 * j, e.bias && first_column + 32 * slice + 8 * j < columns);
    };
#pragma unroll
    for (int part = 0; part < S::PARTS; part++) {
        /* of a thread's vectors: ROWS: rows 8 apart, columns from `at` on; else columns 128 / ACROSS apart */
        constexpr int ACROSS = ROWS ? 4 : 64 / VECTOR, STEP = 128 / ACROSS;
        const int line = ROWS ? row + 64 * part + 16 * warp + lane / 4 : column + thread / ACROSS;
        const int at = ROWS ? column + (NARROW ? lane % 4 * VECTOR : lane % 4 * 2) : row + 64 * part + thread % ACROSS * VECTOR;
        bool here;
        Out *const to = (Out *)e.c + c.place(at, here) + (int64_t)line * c.pitch;
        const auto exists = [&](int slice, int lines) { return (ROWS ? at + 32 * slice < c.length : here) && line + lines + (ROWS ? 0 : 32 * slice) < c.lines; };
        const auto finish = [&](int slice, T (&x)[16]) {
#pragma unroll
            for (int i = 0; i < 16; i++) x[i] = T(sum[part][16 * slice + i]);
            if (anew(arithmetic))
#pragma unroll
                for (int i = 0; i < 16; i++) x[i] = e.alpha * x[i] + T(((const Pack<Out, 2> *)&bias[i / 4])->value[i % 2]);
            if (slice + 1 < SLICES) ask(slice + 1);
        };
        /* Columns of C that begin or end anywhere: so many, each element by a thread of its own. */
        const auto elements = [&](const Out *from, int pitch, int count, int first) {
            bool there;
            const int of = thread / 64, window = thread % 64;
            Out *const lies = (Out *)e.c + c.place(row + 64 * part + window, there) + (int64_t)(column + first + of) * c.pitch;
#pragma unroll
            for (int i = 0; i < count; i += 2)
                if (there && column + first + of + i < c.lines) lies[(int64_t)i * c.pitch] = from[(of + i) * pitch + window];
        };
        ask(0);
        if constexpr (NARROW) {
            using Two = typename Pair<Out>::type;
            const Two least = Pair<Out>::of(low, low), most = Pair<Out>::of(e.high, e.high);
            const auto put = [&](int slice) {
                T x[16];
                finish(slice, x);
                Two word[8]; /* 2j + h */
#pragma unroll
                for (int i = 0; i < 8; i++) word[i] = Pair<Out>::of(x[2 * i], x[2 * i + 1]);
                if (anew(bounded))
#pragma unroll
                    for (int i = 0; i < 8; i++) word[i] = at_least(word[i], least);
                if (anew(capped))
#pragma unroll
                    for (int i = 0; i < 8; i++) word[i] = at_most(word[i], most);
                Out *const buffer = own + slice % 2 * TURN;
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const unsigned of[4] = {*(unsigned *)&word[h], *(unsigned *)&word[2 + h], *(unsigned *)&word[4 + h], *(unsigned *)&word[6 + h]};
                    if constexpr (ROWS) store_matrices(shared_address(buffer + (8 * h + lane % 8) * PITCH + (lane / 8 ^ lane % 8 / 2) * VECTOR), of);
                    else store_transposed(shared_address(buffer + lane * PITCH + 16 * warp + 8 * h), of);
                }
            };
            if (column < columns) put(0);
#pragma unroll
            for (int slice = 0; slice < SLICES; slice++)
                if (column + 32 * slice < columns) {
                    Strip<RUNS>::sync();
                    if (slice + 1 < SLICES) put(slice + 1);
                    if (!ROWS && !anew(c.direct)) {
                        elements(own + slice % 2 * TURN, PITCH, 32, 32 * slice);
                        continue;
                    }
                    const Out *const from = own + slice % 2 * TURN + (ROWS ? lane / 4 * PITCH + (lane % 4 ^ lane / 8) * VECTOR : thread / ACROSS * PITCH + thread % ACROSS * VECTOR);
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        const int lines = i * (ROWS ? 8 : STEP);
                        const uint4 v = *(const uint4 *)(from + lines * PITCH);
                        Access<16>::store(to + (int64_t)(lines + (ROWS ? 0 : 32 * slice)) * c.pitch + (ROWS ? 32 * slice : 0), v, exists(slice, lines));
                    }
                }
            if (min(SLICES, ceil_div(columns - column, 32)) % 2) Strip<RUNS>::sync();
        } else {
#pragma unroll
            for (int slice = 0; slice < SLICES; slice++)
                if (column + 32 * slice < columns) {
                    T x[16];
                    finish(slice, x);
                    if (anew(bounded))
#pragma unroll
                        for (int i = 0; i < 16; i++) x[i] = at_least(x[i], low);
                    if (anew(capped))
#pragma unroll
                        for (int i = 0; i < 16; i++) x[i] = at_most(x[i], e.high);
                    if constexpr (ROWS) {
#pragma unroll
                        for (int h = 0; h < 2; h++)
#pragma unroll
                            for (int j = 0; j < 4; j++) {
                                const Pack<Out, 2> two = {{x[4 * j + 2 * h], x[4 * j + 2 * h + 1]}};
                                Access<8>::store(to + 8 * h * c.pitch + 32 * slice + 8 * j, *(const uint2 *)&two, at + 32 * slice + 8 * j < c.length && line + 8 * h < c.lines);
                            }
                    } else {
#pragma unroll
                        for (int half = 0; half < 2; half++) {
                            T v[STRIP];
#pragma unroll
                            for (int i = 0; i < STRIP; i++) v[i] = x[STRIP * half + i];
                            Out *const buffer = own + half * TURN;
                            Strip<RUNS>::put(buffer, v);
                            Strip<RUNS>::sync();
                            if (!anew(c.direct)) {
                                elements(buffer, Strip<RUNS>::PITCH, 16, 32 * slice + 16 * half);
                                continue;
                            }
#pragma unroll
                            for (int i = 0; i < 2; i++) {
                                const int lines = 16 * half + i * STEP;
                                const uint4 word = *(const uint4 *)(buffer + (i * STEP + thread / ACROSS) * Strip<RUNS>::PITCH + thread % ACROSS * VECTOR);
                                Access<16>::store(to + (int64_t)(lines + 32 * slice) * c.pitch, word, exists(slice, lines));
                            }
                        }
                    }
                }
        }
    }
}

/* All other ways, strip after strip: `count` of each 64 rows are not beyond C. */
template <class S, Runs RUNS, class Acc, class T, class Place, class Pitch>
__device__ __forceinline__ void store_strips(const Behind<T> &e, const Target<Place, Pitch> &c, int row, int column, int count, const Acc (&sum)[S::PARTS][S::SUMS]) {
    using At = Strip<RUNS>;
    constexpr int PER_PART = S::SUMS / STRIP;
    static_assert(4 * At::WORDS <= Passage<S, RUNS>::TURN, "a strip");
    Acc *const own = (Acc *)Passage<S, RUNS>::own();
    T x[STRIP];
#pragma unroll 1
    for (int i = 0; i < S::PARTS * PER_PART; i++) {
        const int part = i / PER_PART, strip = i % PER_PART;
        if (strip >= count) continue;
        /* with(share): in vectors or not, of what type C is */
        const auto share = [&](auto with) {
            with_result<S::DTYPE, Acc>(anew(e.c_dtype), [&](auto result) {
                using Out = typename decltype(result)::type;
                if (anew(c.vectors)) with(Share<RUNS, 4, Acc, Out, Place, Pitch>(e, c, row + 64 * part, column));
                else with(Share<RUNS, 1, Acc, Out, Place, Pitch>(e, c, row + 64 * part, column));
            });
        };
        put_strip<RUNS, S>(own, sum, i);
        At::sync();
        share([&](auto of) {
            of.ask(strip, anew(c.by_line));
            of.take(x, own + strip % 2 * (Passage<S, RUNS>::TURN / 4));
        });
        activate(e.function, e.activation, x, e.low, e.high);
        share([&](auto of) { of.store(strip, x); });
    }
}
__device__ inline int bytes_of_result(const Problem &p) { return p.c_dtype == PYSIM_F16 || p.c_dtype == PYSIM_BF16 ? 2 : 4; }
/* Whether so many results a line, `pitch` apart, are whole vectors of `count`, a power of two: no division. */
__device__ inline bool in_vectors(const Problem &p, int64_t pitch, int length, int count) {
    return ((uintptr_t)p.c & (count * bytes_of_result(p) - 1)) == 0 && ((pitch | length) & (count - 1)) == 0;
}
/* The same in fours, and with what elements have of bias and scale. */
__device__ inline bool in_fours(const Problem &p, int64_t pitch, int length, bool by_line) {
    return in_vectors(p, pitch, length, 4) && (by_line || (((uintptr_t)p.bias & (4 * bytes_of_result(p) - 1)) | ((uintptr_t)p.scale & 15)) == 0);
}
/* Whether columns have a bias that lies in pairs. */
__device__ inline bool in_pairs(const Problem &p) { return ((uintptr_t)p.bias & (2 * bytes_of_result(p) - 1)) == 0 && (p.n & 1) == 0; }

template <class S, Runs RUNS, class Acc, class Place, class Pitch>
__device__ __forceinline__ void store_sums(const Problem &p, const Target<Place, Pitch> &c, int row, int column, const Acc (&sum)[S::PARTS][S::SUMS]) {
    using Of = Usual<S::DTYPE, Acc>;
    const Behind<typename Arithmetic<Acc>::type> e(p);
    if ((c.direct || RUNS == BY_COLUMNS) && in_pairs(p) && p.beta == 0 && !p.scale && !is_smooth(e.function) && e.c_dtype == Of::DTYPE_OF_C && (!p.bias || c.by_line == (RUNS == BY_COLUMNS)))
        store_direct<S, RUNS, typename Of::type>(e, c, row, column, p.n, sum);
    else store_strips<S, RUNS>(e, c, row, column, 2 * ceil_div(p.n - column, 32), sum);
}

/* A thread's first row of a warpgroup's part. */
__device__ inline int row_of_thread() { return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4; }

/* use(As<RUNS>, target) of a product's C. */
template <class S, class Use> __device__ __forceinline__ void with_target(const Problem &p, Use use) {
    const bool turned = S::DTYPE == PYSIM_TF32 && p.turned;
    const int length = turned ? p.m : p.n;
    const auto place = [&](int along, bool &here) {
        here = along < length;
        return along;
    };
    const Target target{place, p.ldc, turned ? p.n : p.m, length, p.by_row != 0, in_fours(p, p.ldc, length, p.by_row), in_vectors(p, p.ldc, length, 16 / bytes_of_result(p))};
    if constexpr (S::DTYPE == PYSIM_TF32)
        if (turned) return use(As<BY_COLUMNS>(), target);
    use(As<BY_ROWS>(), target);
}

/* What C has, which will be added, into L2 while the products are made: a warpgroup's part of a tile, by 128 bytes. */
template <class S, Runs RUNS, class Place, class Pitch>
__device__ inline void fetch_before(const Problem &p, const Target<Place, Pitch> &c, int row, int column) {
    constexpr bool ROWS = RUNS == BY_ROWS;
    constexpr int LINES = ROWS ? 64 : S::WARP_N, LENGTH = ROWS ? S::WARP_N : 64;
    const int bytes = bytes_of_result(p), pieces = LINES * (LENGTH * bytes / 128);
#pragma unroll 1
    for (int i = threadIdx.x % 128; i < S::PARTS * pieces; i += 128) {
        const int part = i / pieces, of = i - part * pieces, line = (ROWS ? row + 64 * part : column) + of % LINES;
        const int along = (ROWS ? column : row + 64 * part) + of / LINES * (128 / bytes);
        bool here;
        const int64_t at = c.place(along, here) + (int64_t)line * c.pitch;
        if (here && line < c.lines) asm volatile("prefetch.global.L2 [%0];" ::"l"((const char *)p.c + at * bytes));
    }
}
}
}
#endif
