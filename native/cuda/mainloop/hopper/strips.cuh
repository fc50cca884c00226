/* SPDX-License-Identifier: Apache-2.0
 * The way to C of what has no other (epilogue.cuh): strip after strip of sums. */
#ifndef PYSIM_CUDA_WGMMA_STRIPS_CUH
#define PYSIM_CUDA_WGMMA_STRIPS_CUH
#include "mainloop/hopper/passage.cuh"

namespace pysim {
namespace hopper {

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

/* Registers of strip `strip` into its place. */
template <Runs RUNS, class S, class Acc> __device__ __forceinline__ void put_strip(Acc *own, const Acc (&sum)[S::PARTS][S::SUMS], int strip) {
    constexpr int PER_PART = S::SUMS / STRIP;
    with_number<2 * S::SLICES>(strip, [&](auto number) {
        constexpr int N = decltype(number)::value;
        Acc v[STRIP];
#pragma unroll
        for (int i = 0; i < STRIP; i++)
            v[i] = sum[N / PER_PART][N % PER_PART / 2 * 16 + (RUNS == BY_ROWS ? i / 2 * 4 + N % 2 * 2 + i % 2 : N % 2 * STRIP + i)];
        Strip<RUNS>::put(own + N % 2 * (Passage<S, RUNS>::TURN / 4), v);
    });
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
}
}
#endif
