/* SPDX-License-Identifier: Apache-2.0
 * Arithmetic on results in registers: pairs of two-byte results, bounds that keep NaN, slopes. */
#ifndef PYSIM_CUDA_WGMMA_PAIRS_CUH
#define PYSIM_CUDA_WGMMA_PAIRS_CUH
#include "core/ptx.cuh"

namespace pysim::hopper {

/* Two results packed into a word. */
template <class Out> struct Pair;
template <> struct Pair<__half> {
    using type = __half2;
    static __device__ type of(float a, float b) { return __floats2half2_rn(a, b); }
};
template <> struct Pair<__nv_bfloat16> {
    using type = __nv_bfloat162;
    static __device__ type of(float a, float b) { return __floats2bfloat162_rn(a, b); }
};

/* max and min that keep NaN */
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

/* ReLU and clamp of a thread's values, or pairs of them. */
template <class Value, int COUNT> __device__ __forceinline__ void bound(Value (&x)[COUNT], int bounded, int capped, Value low, Value high) {
    if (bounded)
#pragma unroll
        for (int i = 0; i < COUNT; i++) x[i] = at_least(x[i], low);
    if (capped)
#pragma unroll
        for (int i = 0; i < COUNT; i++) x[i] = at_most(x[i], high);
}

/* Leaky ReLU of a thread's values, before they are rounded. */
template <class T, int COUNT> __device__ __forceinline__ void slope(T (&x)[COUNT], int sloped, T low, T high) {
    if constexpr (T(0.5) != T(0))
        if (sloped)
#pragma unroll
            for (int i = 0; i < COUNT; i++) x[i] *= x[i] < T(0) ? low : high;
}
}
#endif
