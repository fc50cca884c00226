/* SPDX-License-Identifier: Apache-2.0
 * The smooth activations of values that become results of two bytes. Their rounding hides that exponentials and reciprocals are the hardware's
 * approximations: 8 to 15 instructions a value, behind one switch; exact ones (epilogue.cuh) take 20 to 35 behind three. */
#ifndef PYSIM_CUDA_NARROW_CUH
#define PYSIM_CUDA_NARROW_CUH
#include <cuda_runtime.h>

#include "core/function.h"

namespace pysim::narrow {

/* 2^x and 1 / x within 2^-22 of them; 0 below 2^-126 */
#ifdef PYSIM_EMULATED
inline float power_of_two(float x) { return exp2f(x); }
inline float reciprocal(float x) { return 1 / x; }
#else
__device__ inline float power_of_two(float x) {
    asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
}
__device__ inline float reciprocal(float x) {
    asm("rcp.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
}
#endif

template <Function FUNCTION> __device__ inline float value_of(float x) {
    if constexpr (FUNCTION == logistic) {
        return reciprocal(1 + power_of_two(-1.4426950408889634f * x));
    } else if constexpr (FUNCTION == normal) {
        /* Abramowitz and Stegun 7.1.26, off by at most 1.3e-7: half of erfc(z) = (a1 t + ... + a5 t^5) exp(-z^2) with t = 1 / (1 + 0.3275911 z),
         * z = |x| / sqrt 2 */
        const float t = reciprocal(fmaf(0.23164189f, fabsf(x), 1.f));
        float sum = fmaf(0.5307027145f, t, -0.7265760135f);
        sum = fmaf(sum, t, 0.7107068705f), sum = fmaf(sum, t, -0.142248368f), sum = fmaf(sum, t, 0.127414796f) * t;
        const float tail = sum * power_of_two(-0.72134752f * x * x);
        return x < 0 ? tail : 1 - tail;
    } else {
        return (x < -3 ? 0.f : x > 3 ? 6.f : x + 3) * (1.f / 6);
    }
}

template <int N> __device__ __forceinline__ void activate(int activation, float (&value)[N]) {
    using T = float;
    switch (activation) {
#define PYSIM_EPILOGUE(number, name, whole, times, function, of)                           \
    case number:                                                                           \
        if constexpr (is_smooth(function)) _Pragma("unroll") for (int i = 0; i < N; i++) { \
                const T x = value[i];                                                      \
                value[i] = T(times) * value_of<function>(of);                              \
            }                                                                              \
        break;
#include "epilogues.inc"
#undef PYSIM_EPILOGUE
    }
}
}
#endif
