/* SPDX-License-Identifier: Apache-2.0
 * Stands in for CUDA's header of this name: bfloat16, the upper half of an f32. */
#ifndef PYSIM_CUDA_EMULATED_BF16_H
#define PYSIM_CUDA_EMULATED_BF16_H
#include "small_float.h"

struct __nv_bfloat16 {
    unsigned short bits;
    __nv_bfloat16() = default;
    __nv_bfloat16(float x) : bits((unsigned short)pysim::emulated::encode<8, 7>(x)) {}
    operator float() const { return __uint_as_float((unsigned)bits << 16); }
};

struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};

inline __nv_bfloat16 operator+(__nv_bfloat16 a, __nv_bfloat16 b) { return (float)a + (float)b; }
inline __nv_bfloat16 __float2bfloat16(float x) { return x; }
inline float __bfloat162float(__nv_bfloat16 x) { return x; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {x, y}; }
/* Maximum and minimum; NaN if either is NaN. */
inline __nv_bfloat16 __hmax_nan(__nv_bfloat16 x, __nv_bfloat16 y) { return (float)x >= (float)y || x != x ? x : y; }
inline __nv_bfloat16 __hmin_nan(__nv_bfloat16 x, __nv_bfloat16 y) { return (float)x <= (float)y || x != x ? x : y; }
inline __nv_bfloat162 __hmax2_nan(__nv_bfloat162 a, __nv_bfloat162 b) { return {__hmax_nan(a.x, b.x), __hmax_nan(a.y, b.y)}; }
inline __nv_bfloat162 __hmin2_nan(__nv_bfloat162 a, __nv_bfloat162 b) { return {__hmin_nan(a.x, b.x), __hmin_nan(a.y, b.y)}; }
#endif
