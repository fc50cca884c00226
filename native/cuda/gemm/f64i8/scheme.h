/* SPDX-License-Identifier: Apache-2.0
 * f64 products from s8 products, by residues (Ozaki scheme II: Ozaki, Uchino, Imamura, arXiv 2504.08009). Rows of A and columns of B are scaled by powers
 * of two and rounded to integers; the integers' product X is computed modulo MODULI coprime numbers up to 256, in s8 with s32 sums; the Chinese
 * remainder theorem gives X exactly, because |X| < P / 2, P the product of the moduli. So the only errors are the rounding of the operands, and
 * that of X to f64. docs/accuracy.md proves the bound.
 *
 * Worked number: 15 moduli: P = 2^117.8. A row is scaled so that its norm is at most `largest` = 2^58.4; |X| <= its square by Cauchy and Schwarz. */
#ifndef PYSIM_CUDA_F64I8_SCHEME_H
#define PYSIM_CUDA_F64I8_SCHEME_H
#include <cuda_runtime.h>
#include <stdint.h>

#include <type_traits>
#include <utility>

namespace pysim::f64i8 {

#ifndef PYSIM_F64I8_MODULI
#define PYSIM_F64I8_MODULI 15
#endif
enum { MODULI = PYSIM_F64I8_MODULI };
static_assert(MODULI <= 15, "sums of weights times residues are exact in three f64 words");

struct Constants {
    __extension__ typedef unsigned __int128 Wide;
    int modulus[15] = {256, 255, 253, 251, 247, 241, 239, 233, 229, 227, 223, 217, 211, 199, 197};
    /* X = sum_i weight[i] residue[i] - q P; words of 40 bits, the last the highest */
    double weight[15][3] = {}, product[3] = {};
    double over_product = 1; /* 2^80 / P */
    double largest = 0;
    unsigned power[15][8] = {}; /* 2^(8 i) modulo the modulus */
    /* Residues of x + 2^59, 0 <= x + 2^59 < 2^60, by two dp4a of its bytes and one rounding: `start` is the bits of an f32 from 2^23 on, so that `start` and a
     * sum s of bytes times powers are the bits of base + s', base a multiple of the modulus and of 256, s' congruent to x and below 2^20. Times
     * `reciprocal` and plus `bias` that is 1.5 2^23 and the rounded quotient of s'. `reciprocal` is not below 1 / modulus and less than 2^-31 above it: what is
     * left is at least -128 and less than 128. */
    unsigned start[15] = {};
    float reciprocal[15] = {}, bias[15] = {};

    static constexpr void split(double (&to)[3], Wide x) {
        const Wide mask = ((Wide)1 << 40) - 1;
        to[0] = (double)(uint64_t)(x & mask), to[1] = (double)(uint64_t)(x >> 40 & mask), to[2] = (double)(uint64_t)(x >> 80);
    }
    constexpr Constants() {
        Wide all = 1;
        for (int i = 0; i < MODULI; i++) all *= (unsigned)modulus[i];
        split(product, all);
        double p = 1;
        for (int i = 0; i < MODULI; i++) p *= modulus[i];
        over_product = 1208925819614629174706176.0 / p;
        double root = 1;
        for (int i = 0; i < 300; i++) root = 0.5 * (root + 0.5 * p / root);
        largest = root * (1 - 1. / 512);
        for (int i = 0; i < MODULI; i++) {
            const unsigned of = (unsigned)modulus[i];
            const Wide rest = all / of;
            unsigned inverse = 1;
            while ((unsigned)(rest % of) * inverse % of != 1) inverse++;
            split(weight[i], rest * inverse);
            power[i][0] = 1;
            for (int j = 1; j < 8; j++) power[i][j] = power[i][j - 1] * 256 % of;
            const unsigned base = ((1u << 23) / (256 * of) + 1) * 256 * of;
            start[i] = 0x4b000000 - (1u << 23) + base + (of - power[i][7] * 8 % of) % of;
            reciprocal[i] = 1.f / (float)of;
            if ((double)reciprocal[i] * of < 1) reciprocal[i] += 0x1p-31f;
            bias[i] = 12582912.f - (float)(base / of);
        }
    }
};
constexpr Constants CONSTANTS;
static_assert(CONSTANTS.largest < 0x1p59, "a scaled number has 60 bits");
enum { SMALL = 128 }; /* an element is small if its square is below |a|^2 / (SMALL k) */

/* body(integral_constant<int, i>) for each modulus: the constants become immediates. */
template <class Body, int... I> __host__ __device__ inline void each(Body body, std::integer_sequence<int, I...>) {
    (body(std::integral_constant<int, I>()), ...);
}
template <class Body> __host__ __device__ inline void each_modulus(Body body) { each(body, std::make_integer_sequence<int, MODULI>()); }

struct Modulus {
    int modulus, factor; /* factor: ceil(2^38 / modulus) */
};
constexpr Modulus modulus_of(int i) {
    return {CONSTANTS.modulus[i], (int)((((int64_t)1 << 38) + CONSTANTS.modulus[i] - 1) / CONSTANTS.modulus[i])};
}

/* A number congruent to a sum |x| <= 2^30 in an unsigned byte: it is at least 0 and at most the modulus, of 256 less. The quotient's error is below 2^-8 and
 * has the sign of x. */
__device__ inline unsigned residue(int x, const Modulus &of) { return (unsigned)(x - (__mulhi(x, of.factor) >> 6) * of.modulus); }

/* Where the product with residues lies: an element for each modulus, `plane` bytes apart. Rows are padded, and columns permuted as accumulators lie:
 * of 64 columns, column 8 j + 2 t + i is at byte 16 t + 2 j + i. */
struct Residues {
    uint8_t *data;
    int64_t pitch, plane;
};

/* What conversions find: rows of A and of B whose elements are too small or not finite. The sum of both decides who computes the product. */
struct Verdict {
    unsigned
        *deficits; /* [0] of A, [1] of B: the largest number of small elements of a row; [2] is set to 1 if the f64 kernel must compute */
    unsigned most; /* sum of [0] and [1] up to which the bound holds */
};
__device__ inline bool refuses(const Verdict &v) { return v.deficits[0] + v.deficits[1] > v.most; }
}
#endif
