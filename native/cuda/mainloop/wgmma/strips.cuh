/* SPDX-License-Identifier: Apache-2.0
 * The general store path (epilogue.cuh): a loop over strips of accumulators. */
#ifndef PYSIM_CUDA_WGMMA_STRIPS_CUH
#define PYSIM_CUDA_WGMMA_STRIPS_CUH
#include "mainloop/wgmma/staging.cuh"

namespace pysim::hopper {

/* A thread's share of the strips of 64 rows of a warpgroup: 8 / V vectors of V neighbours of each strip, V = 4 or 1. */
template <int V, class Acc, class Out, class Place, class Pitch> class Share {
    using T = typename Arithmetic<Acc>::type;
    using Vector = typename Word<V * sizeof(Out)>::type;
    static constexpr int VECTORS = STRIP / V;
    const EpilogueTerms<T> &e;
    const Target<Place, Pitch> &c;
    const Strip of;
    int down, across; /* the thread's first line and element of a strip */
    int line, along;  /* the same in C */
    int64_t first;
    bool exists;

    /* Offsets of a strip from the first strip, in lines and elements. */
    __device__ int step() const { return of.rows ? V : 2 * V; } /* lines from one vector to the next */
    __device__ int lines_of(int strip, int vector) const { return (of.rows ? strip % 2 * 8 : strip * 16) + vector * step(); }
    __device__ int elements_of(int strip) const { return of.rows ? strip / 2 * 32 : 0; }
    __device__ bool here(int strip, int vector) const {
        return (of.rows ? along + elements_of(strip) < c.length : exists) && c.has(line + lines_of(strip, vector));
    }
    __device__ Out *place(int strip, int vector) const {
        return (Out *)e.c + first + c.offset(line + lines_of(strip, vector)) + elements_of(strip);
    }

public:
    /* `row`, `column`: the first of the warpgroup. */
    __device__ Share(const EpilogueTerms<T> &e, const Target<Place, Pitch> &c, Strip of, int row, int column) : e(e), c(c), of(of) {
        const int lane = threadIdx.x % 32, thread = threadIdx.x % 128;
        down = of.rows ? lane / (32 / V) : thread / (64 / V), across = of.rows ? lane % (32 / V) * V : thread % (64 / V) * V;
        line = (of.rows ? row + thread / 32 * 16 : column) + down;
        along = (of.rows ? column : row) + across;
        first = c.place(along, exists);
    }

    /* result = alpha (factor accumulator) + term + beta before, each rounded as on the direct paths */
    T factor[STRIP], term[STRIP];
    Vector before[VECTORS];

    /* Loads factor, term and before; `by_line` is c.by_line. */
    __device__ void load_terms(int strip, bool by_line) {
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
        for (int i = 0; i < STRIP; i++) factor[i] = T(1), term[i] = T(0);
        if (opaque(e.scale != nullptr)) each(e.scale, [&](int i, T value) { factor[i] = value; });
        if (opaque(e.bias != nullptr)) each((const Out *)e.bias, [&](int i, T value) { term[i] = value; });
#pragma unroll
        for (int i = 0; i < VECTORS; i++) before[i] = Access<sizeof(Vector)>::load(place(strip, i), e.beta != T(0) && here(strip, i));
    }

    /* This thread's results of a strip, whose accumulators are at `from` in shared memory. */
    __device__ void combine(T (&x)[STRIP], const Acc *from) const {
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            const Pack<Acc, V> sums = *(const Pack<Acc, V> *)(from + (i * step() + down) * of.pitch() + across);
#pragma unroll
            for (int n = 0; n < V; n++) x[i * V + n] = e.alpha * (factor[i * V + n] * T(sums.value[n])) + term[i * V + n];
        }
        if (opaque(e.beta != T(0)))
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

/* Stores a tile by strips; the first `count` strips of each 64 rows lie within C. */
template <class S, ResultOrder ORDER, class Acc, class T, class Place, class Pitch>
__device__ __forceinline__ void store_strips(Order<ORDER> order, const EpilogueTerms<T> &e, const Target<Place, Pitch> &c, int row,
                                             int column, int count, const Acc (&acc)[S::PARTS][S::ACCUMULATORS]) {
    constexpr int PER_PART = S::ACCUMULATORS / STRIP;
#pragma unroll 1
    for (int i = 0; i < S::PARTS * PER_PART; i++) {
        const Strip at = {order.by_rows()};
        const int part = i / PER_PART, strip = i % PER_PART;
        if (strip >= count) continue;
        /* calls with(share) for C's type, in vectors if C is aligned */
        const auto share = [&](auto with) {
            with_result<S::DTYPE, Acc>(opaque(e.c_dtype), [&](auto result) {
                using Out = typename decltype(result)::type;
                if (opaque(c.vectors)) with(Share<4, Acc, Out, Place, Pitch>(e, c, at, row + 64 * part, column));
                else with(Share<1, Acc, Out, Place, Pitch>(e, c, at, row + 64 * part, column));
            });
        };
        Acc sums[STRIP];
        with_number<2 * S::SLICES>(i, [&](auto number) {
            constexpr int N = decltype(number)::value;
            const Acc *const of = &acc[N / PER_PART][N % PER_PART / 2 * 16];
#pragma unroll
            for (int r = 0; r < STRIP; r++) sums[r] = at.rows ? of[r / 2 * 4 + N % 2 * 2 + r % 2] : of[N % 2 * STRIP + r];
        });
        Acc *const there = (Acc *)(Staging<S>::own(at.rows) + strip % 2 * Staging<S>::buffer_bytes(at.rows));
        at.put(there, sums);
        at.sync();
        T x[STRIP];
        share([&](auto of) {
            of.load_terms(strip, opaque(c.by_line));
            of.combine(x, there);
        });
        if constexpr (sizeof(typename DefaultResult<S::DTYPE, Acc>::type) == 2) {
            if (e.c_dtype != PYSIM_F32) activate<true>(e.function, e.activation, x, e.low, e.high);
            else activate<false>(e.function, e.activation, x, e.low, e.high);
        } else activate<false>(e.function, e.activation, x, e.low, e.high);
        share([&](auto of) { of.store(strip, x); });
    }
}
}
#endif
