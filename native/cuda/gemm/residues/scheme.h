/* SPDX-License-Identifier: Apache-2.0
 * f64 and f32 products from s8 products, by residues (Ozaki scheme II: Ozaki, Uchino, Imamura, arXiv 2504.08009). Rows of A and columns of B are scaled by powers
 * of two and rounded to integers; the integers' product X is computed modulo coprime numbers up to 256, in s8 with s32 sums; the Chinese
 * remainder theorem gives X exactly, because |X| < P / 2, P the product of the moduli. So the only errors are the rounding of the operands, and
 * that of X to the type. docs/accuracy.md proves the bound.
 *
 * Worked numbers: f64 has 15 moduli: P = 2^117.8. A row is scaled so that its norm is at most `largest` = 2^58.4; |X| <= its square by Cauchy and Schwarz. f32 has
 * 7: P = 2^55.7, norms up to 2^27.3. */
#ifndef PYSIM_CUDA_RESIDUES_SCHEME_H
#define PYSIM_CUDA_RESIDUES_SCHEME_H
#include <cuda_runtime.h>
#include <stdint.h>

#include <type_traits>
#include <utility>

namespace pysim::residues {

/* What differs between the types. MODULI: products. WORDS: of 40 bits that hold P. LIFT: 2^LIFT is added to a scaled number, which makes it a whole number from
 * 0 up to 2^(LIFT + 1). SMALL: an element is small if its square is below |a|^2 / (SMALL k). SHARE: of k, in 16ths, the least that must not be small. UNIT_BITS: the unit roundoff
 * is 2^-UNIT_BITS. MIN_SQUARES, MAX_SQUARES: exponents of sums of squares that neither overflow nor lose what is small. */
template <class T> struct Scheme;
template <> struct Scheme<double> {
    enum { MODULI = 15, WORDS = 3, LIFT = 59, SMALL = 128, SHARE = 0, UNIT_BITS = 53, MIN_SQUARES = -800, MAX_SQUARES = 800 };
};
template <> struct Scheme<float> {
    enum { MODULI = 7, WORDS = 2, LIFT = 28, SMALL = 16, SHARE = 2, UNIT_BITS = 24, MIN_SQUARES = -100, MAX_SQUARES = 120 };
};
enum { MOST = 15 }; /* moduli: sums of weights times residues are exact in f64 words of 40 bits */
constexpr int MODULUS[MOST] = {256, 255, 253, 251, 247, 241, 239, 233, 229, 227, 223, 217, 211, 199, 197};

template <class T> struct Constants : Scheme<T> {
    using Scheme<T>::MODULI;
    using Scheme<T>::LIFT;
    __extension__ typedef unsigned __int128 Wide;
    /* X = sum_i weight[i] (1 + residue[i] / 256) + before - q P; words of 40 bits (weights: 48), the last the highest */
    double weight[MODULI][3] = {}, before[3] = {}, product[3] = {};
    double over_product = 1; /* 2^(40 (WORDS - 1)) / P */
    double largest = 0;
    unsigned one = 0x3ff00000;       /* the upper bits of 1 in f64 */
    unsigned powers[MODULI][2] = {}; /* 2^(8 i) modulo the modulus, a byte each */
    /* Residues of x + 2^LIFT by a dp4a for each four of its bytes and one rounding: `start` is the bits of an f32 from 2^23 on, so that `start` and a
     * sum s of bytes times powers are the bits of base + s', base a multiple of the modulus and of 256, s' congruent to x and below 2^20. Times
     * `reciprocal` and plus `bias` that is 1.5 2^23 and the rounded quotient of s'. `reciprocal` is not below 1 / modulus and less than 2^-31 above it: what is
     * left is at least -128 and less than 128. */
    unsigned start[MODULI] = {};
    float reciprocal[MODULI] = {}, bias[MODULI] = {};

    static constexpr unsigned base_of(unsigned modulus) { return ((1u << 23) / (256 * modulus) + 1) * 256 * modulus; }
    static constexpr unsigned start_of(unsigned modulus, uint64_t lift) {
        return 0x4b000000 - (1u << 23) + base_of(modulus) + (modulus - (unsigned)(lift % modulus)) % modulus;
    }
    static constexpr void split(double (&to)[3], Wide x) {
        const Wide mask = ((Wide)1 << 40) - 1;
        to[0] = (double)(uint64_t)(x & mask), to[1] = (double)(uint64_t)(x >> 40 & mask), to[2] = (double)(uint64_t)(x >> 80);
    }
    constexpr Constants() {
        Wide all = 1;
        for (int i = 0; i < MODULI; i++) all *= (unsigned)MODULUS[i];
        split(product, all);
        double p = 1;
        for (int i = 0; i < MODULI; i++) p *= MODULUS[i];
        over_product = (double)((Wide)1 << 40 * (Scheme<T>::WORDS - 1)) / p;
        double root = 1;
        for (int i = 0; i < 300; i++) root = 0.5 * (root + 0.5 * p / root);
        largest = root * (1 - 1. / 512);
        for (int i = 0; i < MODULI; i++) {
            const unsigned of = (unsigned)MODULUS[i];
            const Wide rest = all / of;
            unsigned inverse = 1;
            while ((unsigned)(rest % of) * inverse % of != 1) inverse++;
            split(weight[i], rest * inverse);
            for (int w = 0; w < 3; w++) weight[i][w] *= 256, before[w] -= weight[i][w];
            for (unsigned j = 0, power = 1; j < 8; j++, power = power * 256 % of) powers[i][j / 4] |= power << 8 * (j % 4);
            start[i] = start_of(of, (uint64_t)1 << LIFT);
            reciprocal[i] = 1.f / (float)of;
            if ((double)reciprocal[i] * of < 1) reciprocal[i] += 0x1p-31f;
            bias[i] = 12582912.f - (float)(base_of(of) / of);
        }
    }
};
template <class T> constexpr Constants<T> CONSTANTS = {};
static_assert(CONSTANTS<double>.largest < 0x1p59 && CONSTANTS<float>.largest < 0x1p28, "a scaled number is below 2^LIFT");

/* body(integral_constant<int, i>) for each modulus: the constants become immediates. */
template <class Body, int... I> __host__ __device__ inline void each(Body body, std::integer_sequence<int, I...>) {
    (body(std::integral_constant<int, I>()), ...);
}
template <class T, class Body> __host__ __device__ inline void each_modulus(Body body) {
    each(body, std::make_integer_sequence<int, Scheme<T>::MODULI>());
}

/* As for operands, whose LIFT is 2^31 and 128 here. */
struct Modulus {
    unsigned modulus, powers, start;
    float reciprocal, bias;
};
constexpr Modulus modulus_of(int i) {
    const Constants<double> &all = CONSTANTS<double>;
    const unsigned of = (unsigned)MODULUS[i];
    return {of, all.powers[i][0], all.start_of(of, (1u << 31) + 128), all.reciprocal[i], all.bias[i]};
}

/* The low byte of a number from -128 to 127 that is congruent to x - 128, |x| <= 2^30. */
__device__ inline unsigned residue(int x, const Modulus &of) {
    const unsigned sum = __dp4a((unsigned)x ^ 0x80000000u, of.powers, of.start);
    return sum - __float_as_uint(fmaf(__uint_as_float(sum), of.reciprocal, of.bias)) * of.modulus;
}
enum : unsigned { FROM_ZERO = 0x80808080u }; /* exclusive or with four such bytes adds 128: residues of x from 0 to 255 */

/* Where the product with residues lies: an element for each modulus, `plane` bytes apart. Rows are padded, and columns permuted as accumulators lie:
 * of 64 columns, column 8 j + 2 t + i is at byte 16 t + 2 j + i. */
struct Residues {
    uint8_t *data;
    int64_t pitch, plane;
};

/* What conversions find: rows of A and of B whose elements are too small or not finite. The sum of both decides who computes the product. */
struct Verdict {
    unsigned *flags;      /* [0] of A: the largest number of small elements of a row; [2] is set to 1 if another kernel must compute */
    const unsigned *of_b; /* as [0] */
    unsigned most;        /* sum of both up to which the bound holds */
};
__device__ inline bool refuses(const Verdict &v) { return v.flags[0] + *v.of_b > v.most; }
}
#endif
