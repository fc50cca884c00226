/* SPDX-License-Identifier: Apache-2.0
 * Stands in for CUDA's header of this name: binary16. Arithmetic is in f32, then rounded; a fused multiply-add is rounded twice. */
#ifndef PYSIM_CUDA_EMULATED_FP16_H
#define PYSIM_CUDA_EMULATED_FP16_H
#include "small_float.h"

struct __half {
    unsigned short bits;
    __half() = default;
    __half(float x) : bits((unsigned short)pysim::emulated::encode<5, 10>(x)) {}
    operator float() const {
#ifdef __F16C__
        typedef short Lanes __attribute__((vector_size(16)));
        return __builtin_ia32_vcvtph2ps(Lanes{(short)bits})[0];
#else
        return pysim::emulated::decode<5, 10>(bits);
#endif
    }
};
struct alignas(4) __half2 {
    __half x, y;
};
using half = __half;
using half2 = __half2;

inline __half operator+(__half a, __half b) { return (float)a + (float)b; }
inline __half operator*(__half a, __half b) { return (float)a * (float)b; }
inline __half __float2half(float x) { return x; }
inline __half __float2half_rn(float x) { return x; }
inline float __half2float(__half x) { return x; }
inline __half2 __half2half2(__half x) { return {x, x}; }
inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
inline __half2 __floats2half2_rn(float x, float y) { return {x, y}; }
/* Maximum and minimum; NaN if either is NaN. */
inline __half __hmax_nan(__half x, __half y) { return (float)x >= (float)y || x != x ? x : y; }
inline __half __hmin_nan(__half x, __half y) { return (float)x <= (float)y || x != x ? x : y; }
inline __half2 __hmax2_nan(__half2 a, __half2 b) { return {__hmax_nan(a.x, b.x), __hmax_nan(a.y, b.y)}; }
inline __half2 __hmin2_nan(__half2 a, __half2 b) { return {__hmin_nan(a.x, b.x), __hmin_nan(a.y, b.y)}; }
inline float __low2float(__half2 x) { return x.x; }
inline float __high2float(__half2 x) { return x.y; }
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
    return {std::fma((float)a.x, (float)b.x, (float)c.x), std::fma((float)a.y, (float)b.y, (float)c.y)};
}
#endif
