/* SPDX-License-Identifier: Apache-2.0
 * Conversion of elements to summands, in plain C. A product of two bf16 has 16 significant bits, so it is exact in f32 (unless it leaves f32's
 * exponent range). Sums of s8 products wrap modulo 2^32 or 2^64, which C allows for unsigned types only: x is represented by its residue. */
#ifndef PYSIM_ELEMENTS_H
#define PYSIM_ELEMENTS_H
#include <stdint.h>
#include <string.h>

#define PYSIM_SAME(x) (x)
#define PYSIM_RESIDUE_32(x) ((uint32_t)(int32_t)(x))
#define PYSIM_RESIDUE_64(x) ((uint64_t)(int64_t)(x))

/* bf16 is the upper half of an f32. */
static inline float pysim_bf16_value(uint16_t x) {
    const uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* To nearest, ties to even; a NaN becomes a quiet one. */
static inline uint16_t pysim_bf16_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
#endif
