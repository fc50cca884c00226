/* SPDX-License-Identifier: Apache-2.0
 * The way to C of what has no other (epilogue.cuh): strip after strip of sums. */
#ifndef PYSIM_CUDA_WGMMA_STRIPS_CUH
#define PYSIM_CUDA_WGMMA_STRIPS_CUH
#include "mainloop/hopper/passage.cuh"

namespace pysim {
namespace hopper {

/* What a thread has of the strips of 64 rows of a warpgroup: of each 8 / V vectors of V neighbours, V 4 or 1. */
template <int V, class Acc, class Out, class Place, class Pitch> class Share {
    using T = typename Arithmetic<Acc>::type;
    using Vector = typename Word<V * sizeof(Out)>::type;
    static constexpr int VECTORS = STRIP / V;
    const Behind<T> &e;
    const Target<Place, Pitch> &c;
    const Strip of;
    int down, across; /* of a strip's lines and vectors, its first */
    int line, along;  /* and of C's */
    Out *first;
    bool exists;

    /* Of a strip: lines and elements after those of the first strip. */
    __device__ int step() const { return of.rows ? V : 2 * V; } /* lines from one vector to the next */
    __device__ int lines_of(int strip, int vector) const { return (of.rows ? strip % 2 * 8 : strip * 16) + vector * step(); }
    __device__ int elements_of(int strip) const { return of.rows ? strip / 2 * 32 : 0; }
    __device__ bool here(int strip, int vector) const {
        return (of.rows ? along + elements_of(strip) < c.length : exists) && line + lines_of(strip, vector) < c.lines;
    }
    __device__ Out *place(int strip, int vector) const { return first + (int64_t)lines_of(strip, vector) * c.pitch + elements_of(strip); }

  public:
    /* From this row and column of the warpgroup on. */
    __device__ Share(const Behind<T> &e, const Target<Place, Pitch> &c, Strip of, int row, int column) : e(e), c(c), of(of) {
        const int lane = threadIdx.x % 32, thread = threadIdx.x % 128;
        down = of.rows ? lane / (32 / V) : thread / (64 / V), across = of.rows ? lane % (32 / V) * V : thread % (64 / V) * V;
        line = (of.rows ? row + thread / 32 * 16 : column) + down;
        along = (of.rows ? column : row) + across;
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
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            const Pack<Acc, V> sums = *(const Pack<Acc, V> *)(from + (i * step() + down) * of.pitch() + across);
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

/* All other ways, strip after strip: `count` of each 64 rows are not beyond C. */
template <class S, Runs RUNS, class Acc, class T, class Place, class Pitch>
__device__ __forceinline__ void store_strips(As<RUNS> as, const Behind<T> &e, const Target<Place, Pitch> &c, int row, int column, int count, const Acc (&sum)[S::PARTS][S::SUMS]) {
    constexpr int PER_PART = S::SUMS / STRIP;
#pragma unroll 1
    for (int i = 0; i < S::PARTS * PER_PART; i++) {
        const Strip at = {as.rows()};
        const int part = i / PER_PART, strip = i % PER_PART;
        if (strip >= count) continue;
        /* with(share): in vectors or not, of what type C is */
        const auto share = [&](auto with) {
            with_result<S::DTYPE, Acc>(anew(e.c_dtype), [&](auto result) {
                using Out = typename decltype(result)::type;
                if (anew(c.vectors)) with(Share<4, Acc, Out, Place, Pitch>(e, c, at, row + 64 * part, column));
                else with(Share<1, Acc, Out, Place, Pitch>(e, c, at, row + 64 * part, column));
            });
        };
        Acc sums[STRIP];
        with_number<2 * S::SLICES>(i, [&](auto number) {
            constexpr int N = decltype(number)::value;
            const Acc *const of = &sum[N / PER_PART][N % PER_PART / 2 * 16];
#pragma unroll
            for (int r = 0; r < STRIP; r++) sums[r] = at.rows ? of[r / 2 * 4 + N % 2 * 2 + r % 2] : of[N % 2 * STRIP + r];
        });
        Acc *const there = (Acc *)(Passage<S>::own(at.rows) + strip % 2 * Passage<S>::turn(at.rows));
        at.put(there, sums);
        at.sync();
        T x[STRIP];
        share([&](auto of) {
            of.ask(strip, anew(c.by_line));
            of.take(x, there);
        });
        activate(e.function, e.activation, x, e.low, e.high);
        share([&](auto of) { of.store(strip, x); });
    }
}
}
}
#endif
