/* SPDX-License-Identifier: Apache-2.0
 * Converts f32 to and from IEEE 754 formats with E exponent and M mantissa bits, rounding to nearest, ties to even. */
#ifndef PYSIM_CUDA_EMULATED_SMALL_FLOAT_H
#define PYSIM_CUDA_EMULATED_SMALL_FLOAT_H
#include "cuda_runtime.h"

namespace pysim::emulated {

/* Overflow gives infinity (an exponent of all ones); for a format without infinity the caller corrects the result. */
template <int E, int M> inline unsigned encode(float x) {
    constexpr int bias = (1 << (E - 1)) - 1;
    constexpr unsigned infinite = ((1u << E) - 1) << M;
    const unsigned bits = __float_as_uint(x), sign = bits >> 31 << (E + M), size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return sign | infinite | 1u << (M - 1);
    const int exponent = max((int)(size >> 23), 1) - 127, least = 1 - bias; /* subnormal f32 have the least exponent */
    if (exponent > bias) return sign | infinite;
    const int place = max(exponent, least), shift = 23 - M + place - exponent;
    if (shift > 24) return sign;
    const unsigned mantissa = (size & 0x7fffffu) | (size >= 0x00800000u ? 0x800000u : 0);
    const unsigned rounded = (mantissa + (1u << (shift - 1)) - 1 + (mantissa >> shift & 1)) >> shift;
    return sign | (rounded + ((unsigned)(place - least) << M)); /* the leading one, or a carry, adds to the exponent */
}

template <int E, int M> inline float decode(unsigned bits) {
    constexpr int bias = (1 << (E - 1)) - 1;
    const unsigned sign = bits >> (E + M) << 31, exponent = bits >> M & ((1u << E) - 1), mantissa = bits & ((1u << M) - 1);
    if (exponent == 0) return (sign ? -1.f : 1.f) * (float)mantissa * __uint_as_float((unsigned)(127 + 1 - bias - M) << 23);
    const unsigned wide = exponent == (1u << E) - 1 ? 255u : exponent + 127 - bias;
    return __uint_as_float(sign | wide << 23 | mantissa << (23 - M));
}
}
#endif
