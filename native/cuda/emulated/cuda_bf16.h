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

inline __nv_bfloat16 operator+(__nv_bfloat16 a, __nv_bfloat16 b) { return (float)a + (float)b; }
inline __nv_bfloat16 __float2bfloat16(float x) { return x; }
inline float __bfloat162float(__nv_bfloat16 x) { return x; }
#endif
