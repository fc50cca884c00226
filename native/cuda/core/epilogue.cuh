/* SPDX-License-Identifier: Apache-2.0
 * The epilogue: C = f(alpha scale[column] acc + beta C + bias[column]), converted to C's type. epilogues.inc lists the activations f. Arithmetic is in
 * f32 (f64 for f64; s32 for s32, where alpha and beta are whole numbers and there is no scale).
 *
 * All of it is chosen at run time by conditions that are uniform over the threads, so a kernel needs no instance per epilogue. The case without
 * arithmetic (`plain`) has its own branch. */
#ifndef PYSIM_CUDA_EPILOGUE_CUH
#define PYSIM_CUDA_EPILOGUE_CUH
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/narrow.cuh"
#include "core/problem.h"

namespace pysim {

/* The type that an accumulator's epilogue computes in. */
template <class Acc> struct Arithmetic {
    using type = float;
};
/* clang-format off */
template <> struct Arithmetic<double> { using type = double; };
template <> struct Arithmetic<int> { using type = int; };
/* clang-format on */

/* 1 / (1 + exp(-x)). In f32 within 2^-21: __fdividef is inlined and within 2 units in the last place (0 below 2^-126). */
__device__ inline float logistic_of(float x) { return __fdividef(1.f, 1.f + expf(-x)); }
__device__ inline double logistic_of(double x) { return 1 / (1 + exp(-x)); }

/* The normal cumulative distribution function. */
__device__ inline float normal_of(float x) { return 0.5f + 0.5f * erff(x * 0.70710678118654752440f); }
__device__ inline double normal_of(double x) { return 0.5 + 0.5 * erf(x * 0.70710678118654752440); }

/* Linear from 0 at -3 to 1 at 3. */
template <class T> __device__ inline T ramp_of(T x) { return (x < T(-3) ? T(0) : x > T(3) ? T(6) : x + T(3)) * T(1.0 / 6); }

/* Applies times function(of) to N values for the smooth functions; activations that share a function share its code. Unrolled: a loop over four values
 * at a time made wgmma kernels smaller by a sixth, but up to 1.4 times as slow where stores are most of the work (H200). */
template <class T, int N> __device__ inline void activate_smoothly(int activation, Function function, T (&value)[N]) {
    T of[N] = {};
    const auto each = [&](auto make) {
#pragma unroll
        for (int i = 0; i < N; i++) of[i] = make(value[i], of[i]);
    };
    switch (activation) {
#define PYSIM_EPILOGUE(number, name, whole, times, function, of) \
    case number: each([](T x, T) { return of; }); break;
#include "epilogues.inc"
#undef PYSIM_EPILOGUE
    }
    switch (function) {
    case logistic: each([](T, T x) { return logistic_of(x); }); break;
    case normal: each([](T, T x) { return normal_of(x); }); break;
    default: each([](T, T x) { return ramp_of(x); });
    }
    switch (activation) {
#define PYSIM_EPILOGUE(number, name, whole, times, function, of) \
    case number:                                                 \
        each([](T x, T y) {                                      \
            (void)x;                                             \
            return T(times) * y;                                 \
        });                                                      \
        break;
#include "epilogues.inc"
#undef PYSIM_EPILOGUE
    }
#pragma unroll
    for (int i = 0; i < N; i++) value[i] = of[i];
}

/* ReLU, clamp and leaky ReLU of N values, with one branch for all. */
template <class T, int N> __device__ inline void bound(Function function, T (&value)[N], T low, T high) {
    if (function == positive)
#pragma unroll
        for (int i = 0; i < N; i++) value[i] = value[i] < T(0) ? T(0) : value[i];
    else if (function == clamped)
#pragma unroll
        for (int i = 0; i < N; i++) value[i] = value[i] < low ? low : value[i], value[i] = value[i] > high ? high : value[i];
    else if constexpr (T(0.5) != T(0))
        if (function == sloped)
#pragma unroll
            for (int i = 0; i < N; i++) value[i] *= value[i] < T(0) ? low : high;
}
/* NARROW: the values become results of two bytes. All kernels take the same way, so that results do not depend on the plan. */
template <bool NARROW, class T, int N> __device__ inline void activate(Function function, int activation, T (&value)[N], T low, T high) {
    if constexpr (T(0.5) != T(0))
        if (is_smooth(function)) {
            if constexpr (NARROW) return narrow::activate(activation, value);
            else return activate_smoothly(activation, function, value);
        }
    bound(function, value, low, high);
}

/* An unsigned type of BYTES bytes, for loads and stores. */
template <int BYTES> struct Word;
/* clang-format off */
template <> struct Word<1> { using type = unsigned char; };
template <> struct Word<2> { using type = unsigned short; };
template <> struct Word<4> { using type = unsigned; };
template <> struct Word<8> { using type = uint2; };
template <> struct Word<16> { using type = uint4; };
/* clang-format on */

template <class T, int N> struct alignas(sizeof(T) * N <= 16 ? sizeof(T) * N : 16) Pack {
    T value[N];
};

/* Stores accumulators of type `Acc` to C of type `Out`. SMOOTH: any activation; otherwise only ReLU, clamp and leaky ReLU, whose code is short
 * enough to unroll. */
template <class Acc, class Out, bool SMOOTH = true> class Epilogue {
public:
    using T = typename Arithmetic<Acc>::type;
    enum { WIDE = 4 };                  /* columns that a caller stores at once if it can */
    enum { UNROLLED = SMOOTH ? 1 : 4 }; /* unroll factor of the caller's loop over rows */
    __device__ explicit Epilogue(const Problem &p)
        : c((Out *)p.c), bias((const Out *)p.bias), scale((const T *)p.scale), ldc(p.ldc), m(p.m), n(p.n), alpha((T)p.alpha),
          beta((T)p.beta), low((T)p.low), high((T)p.high), activation(p.activation), by_row(p.by_row) {
        plain = alpha == T(1) && beta == T(0) && !bias && !scale && activation == 0;
        aligned = (unsigned)((unsigned long long)p.c | ((unsigned long long)p.ldc * sizeof(Out)));
    }
    /* Stores columns [column, column + N) of one row; columns outside C are skipped. */
    template <int N> __device__ void store(int row, int column, const Acc (&acc)[N]) const {
        if (plain) store_as<true>(row, column, acc);
        else store_as<false>(row, column, acc);
    }
    /* The same for a caller that has tested `plain` outside of an unrolled loop. */
    template <bool PLAIN, int N> __device__ void store_as(int row, int column, const Acc (&acc)[N]) const {
        if (row < first_row || row >= m || column + N <= first_column || column >= n) return;
        Out *to = c + row * ldc + column;
        const auto exists = [&](int i) { return column + i >= first_column && column + i < n; };
        const bool whole = N > 1 && column >= first_column && column + N <= n && aligned % (sizeof(Out) * N) == 0 && column % N == 0;
        using Vector = Pack<Out, N>;
        Vector result;
        if (!PLAIN && beta != T(0)) {
            if (whole) result = *(const Vector *)to;
            else
#pragma unroll
                for (int i = 0; i < N; i++) result.value[i] = exists(i) ? to[i] : Out(0.f);
        }
        if constexpr (PLAIN) {
#pragma unroll
            for (int i = 0; i < N; i++) result.value[i] = Out(T(acc[i]));
        } else finish(acc, result.value, [&](int i) { return by_row ? row : min(column + i, n - 1); });
        if (whole) *(Vector *)to = result;
        else
#pragma unroll
            for (int i = 0; i < N; i++)
                if (exists(i)) to[i] = result.value[i];
    }
    __device__ void store(int row, int column, Acc acc) const {
        const Acc one[1] = {acc};
        store(row, column, one);
    }

    /* Replaces C's old values by results; accumulator i uses bias and scale of line_of(i). Each term is applied to all accumulators before the next
     * term, so its loads are in flight together. */
    template <int N, class LineOf> __device__ void finish(const Acc (&acc)[N], Out (&value)[N], LineOf line_of) const {
        T x[N];
#pragma unroll
        for (int i = 0; i < N; i++) x[i] = alpha * T(acc[i]);
        if (scale)
#pragma unroll
            for (int i = 0; i < N; i++) x[i] *= scale[line_of(i)];
        if (beta != T(0))
#pragma unroll
            for (int i = 0; i < N; i++) x[i] += beta * T(value[i]);
        if (bias)
#pragma unroll
            for (int i = 0; i < N; i++) x[i] += T(bias[line_of(i)]);
        if constexpr (SMOOTH) activate<sizeof(Out) == 2>(function_of(activation), activation, x, low, high);
        else bound(function_of(activation), x, low, high);
#pragma unroll
        for (int i = 0; i < N; i++) value[i] = Out(x[i]);
    }
    /* The same for one accumulator. */
    __device__ Out finish(Acc acc, T old, int line) const {
        if (plain) return Out(T(acc));
        const Acc one[1] = {acc};
        Out value[1] = {Out(old)};
        finish(one, value, [&](int) { return line; });
        return value[0];
    }

    Out *c;
    const Out *bias;
    const T *scale;
    int64_t ldc;
    int m, n;
    int first_row = 0, first_column = 0; /* rows and columns before these are not stored */
    T alpha, beta, low, high;
    int activation;
    bool by_row;      /* bias and scale are of rows */
    bool plain;       /* nothing but a conversion */
    unsigned aligned; /* base and pitch of C in bytes, or-ed */
};

/* Calls body(Epilogue) for one result type, with SMOOTH as `p`'s activation needs it. */
template <class Acc, class Out, class Body> __device__ inline void by_function(const Problem &p, Body body) {
    if constexpr (typename Arithmetic<Acc>::type(0.5) != 0)
        if (is_smooth(function_of(p.activation))) return body(Epilogue<Acc, Out, true>(p));
    body(Epilogue<Acc, Out, false>(p));
}

/* Calls body(Epilogue) for the type of C that `p` names: that of a two-byte operand, else the type that the epilogue computes in. */
template <class In, class Acc, class Body> __device__ inline void with_epilogue(const Problem &p, Body body) {
    if constexpr (sizeof(In) == 2)
        if (p.c_dtype != PYSIM_F32) return body(Epilogue<Acc, In>(p));
    body(Epilogue<Acc, typename Arithmetic<Acc>::type>(p));
}
}
#endif
