/* SPDX-License-Identifier: Apache-2.0
 * Stands in for CUDA's header of this name: e4m3, which has no infinity and one NaN; values beyond 448 saturate to it. */
#ifndef PYSIM_CUDA_EMULATED_FP8_H
#define PYSIM_CUDA_EMULATED_FP8_H
#include "small_float.h"

struct __nv_fp8_e4m3 {
    unsigned char bits;
    __nv_fp8_e4m3() = default;
    explicit __nv_fp8_e4m3(float x) {
        const unsigned sign = __float_as_uint(x) >> 31 << 7;
        if (x != x) bits = (unsigned char)(sign | 0x7f);
        else if (std::fabs(x) >= 448) bits = (unsigned char)(sign | 0x7e);
        else if (std::fabs(x) >= 256) bits = (unsigned char)(sign | (0x78u + (unsigned)std::nearbyint((std::fabs(x) - 256) / 32)));
        else bits = (unsigned char)pysim::emulated::encode<4, 3>(x);
    }
    explicit operator float() const {
        if ((bits & 0x7f) == 0x7f) return NAN;
        if ((bits & 0x78) == 0x78) return (bits & 0x80 ? -32.f : 32.f) * (float)(8 + (bits & 7));
        return pysim::emulated::decode<4, 3>(bits);
    }
};
#endif
