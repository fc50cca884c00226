/* SPDX-License-Identifier: Apache-2.0
 * The activations of epilogues.inc in vectors; included after the vectors, with DOUBLE if NUMBER is double. VEC is a vector type of the compiler:
 * it has operators, and a comparison selects between two values that are both computed.
 *
 * The bits of a float's results are the same for all vectors: a multiply-add is written where one is meant, `v_fused` rounds it once everywhere,
 * and loops.c lets the compiler contract nothing else. Those of doubles are the C library's. */
#include <math.h>

#if DOUBLE
typedef uint64_t BITS __attribute__((vector_size(sizeof(VEC))));
#else
typedef uint32_t BITS __attribute__((vector_size(sizeof(VEC))));
#endif

/* Vectors computed together, step by step: the steps of one wait for each other, and a core's schedulers hold those of two or three alone. GELU
 * of 803,000 floats takes 0.86 of the time so, erf 0.85, attention 0.97 (Zen 3). */
enum { TOGETHER = 4 };

/* a if the sign bit of x is set, else b. */
INLINE VEC where_negative(VEC x, VEC a, VEC b) {
    const BITS negative = -((BITS)x >> (8 * sizeof(NUMBER) - 1));
    return (VEC)((negative & (BITS)a) | (~negative & (BITS)b));
}

INLINE VEC exponential(VEC x);
#if DOUBLE
/* f of each lane of `n` vectors. */
INLINE void lane_by_lane(NUMBER (*f)(NUMBER), const int n, VEC *x) {
#pragma GCC unroll 4
    for (int v = 0; v < n; v++) {
        VEC one = x[v];
        for (int i = 0; i < LANES; i++) one[i] = f(one[i]);
        x[v] = one;
    }
}
INLINE void exponentials(const int n, VEC *x) { lane_by_lane(exp, n, x); }
INLINE void error_functions(const int n, VEC *x) { lane_by_lane(erf, n, x); }
INLINE VEC close_exponential(VEC x) {
    lane_by_lane(exp, 1, &x);
    return x;
}
INLINE VEC exponential_less_1(VEC x) {
    lane_by_lane(expm1, 1, &x);
    return x;
}
INLINE VEC log_of_1_and(VEC x) {
    lane_by_lane(log1p, 1, &x);
    return x;
}
INLINE VEC hyperbolic_tangent(VEC x) {
    lane_by_lane(tanh, 1, &x);
    return x;
}
INLINE VEC power(VEC x, NUMBER exponent) {
    for (int i = 0; i < LANES; i++) x[i] = pow(x[i], exponent);
    return x;
}
#else
/* A step of Horner's rule, and all steps of a polynomial, whose highest coefficient comes first. */
INLINE VEC step(VEC p, VEC x, NUMBER c) { return v_fused(p, x, v_set1(c)); }
INLINE void horners(const int n, const VEC *x, VEC *p, const int count, const NUMBER *c) {
    for (int v = 0; v < n; v++) p[v] = v_set1(c[0]);
#pragma GCC unroll 16
    for (int i = 1; i < count; i++)
#pragma GCC unroll 4
        for (int v = 0; v < n; v++) p[v] = step(p[v], x[v], c[i]);
}
INLINE VEC horner(VEC x, const int count, const NUMBER *c) {
    VEC p;
    horners(1, &x, &p, count, c);
    return p;
}
#define COEFFICIENTS(...) \
    sizeof((NUMBER[]){__VA_ARGS__}) / sizeof(NUMBER), (const NUMBER[]) { __VA_ARGS__ }
#define POLYNOMIAL(x, ...) horner(x, COEFFICIENTS(__VA_ARGS__))

/* e^x = 2^n 2^f, n + f = x / ln 2, |f| <= 1/2; 2^f by the polynomial of degree 6 that interpolates at Chebyshev points (within 2.6e-9). The
 * sum n + f + 1.5 2^23 has n in its lowest bits. Below 2^-126.5 it is 0, above 2^127.5 infinity. x / ln 2 is rounded, which is relative to
 * x: within 1 + |x| / 2 units in the last place. Nothing here needs more, for where |x| is large e^x or e^-x is a factor besides. */
INLINE void exponentials(const int n, VEC *x) {
    const VEC magic = v_set1(12582912.0f);
    VEC shifted[TOGETHER], p[TOGETHER];
#pragma GCC unroll 4
    for (int v = 0; v < n; v++) {
        const VEC both = v_between(v_set1(-127), v_set1(128), x[v] * 1.44269504f);
        shifted[v] = both + magic, x[v] = both - (shifted[v] - magic);
    }
    horners(n, x, p, COEFFICIENTS(0.000154614449f, 0.0013400428f, 0.00961805694f, 0.0555032715f, 0.240226507f, 0.693147182f, 1.0f));
#pragma GCC unroll 4
    for (int v = 0; v < n; v++) x[v] = p[v] * (VEC)(((BITS)shifted[v] + 127) << 23); /* 2^n */
}

/* e^f - 1 of |f| <= ln 2 / 2, f = x - n ln 2 in two parts of ln 2, the first of few digits, whose products with n are exact. The polynomial
 * is that of Cephes' expf (S. Moshier, 1992). */
INLINE VEC reduced_exponential(VEC x, VEC *n) {
    const VEC magic = v_set1(12582912.0f);
    *n = v_fused(x, v_set1(1.44269504f), magic) - magic;
    const VEC f = v_fused(*n, v_set1(2.12194440e-4f), v_fused(*n, v_set1(-0.693359375f), x));
    const VEC p = POLYNOMIAL(f, 1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 0.5f);
    return v_fused(p * f, f, f);
}

INLINE VEC power_of_2(VEC n) { return (VEC)(((BITS)(n + 12582912.0f) + 127) << 23); }

/* x 2^n of whole n, rounded once. By two factors, so that results may be subnormal: the product by the first is exact. */
#ifndef V_SCALED
INLINE VEC v_scaled(VEC x, VEC n) {
    const VEC half = step(n, v_set1(0.5f), 12582912.0f) - 12582912.0f;
    return x * power_of_2(half) * power_of_2(n - half);
}
#endif

/* Within two units in the last place, also of large |x|. */
INLINE VEC close_exponential(VEC x) {
    VEC n;
    const VEC less_1 = reduced_exponential(v_between(v_set1(-104), v_set1(89), x), &n);
    return v_scaled(less_1 + 1, n);
}

/* e^x - 1 of x <= 0, with the digits of small results. */
INLINE VEC exponential_less_1(VEC x) {
    VEC n;
    const VEC less_1 = reduced_exponential(v_between(v_set1(-87), v_zero(), x), &n), scale = power_of_2(n);
    return v_fused(less_1, scale, scale - 1);
}

/* ln(1 + x) = 2 (s + s^3 / 3 + ... + s^15 / 15), s = x / (2 + x), of 0 <= x <= 1: what is left out is below 2e-9 of it. */
INLINE VEC log_of_1_and(VEC x) {
    const VEC s = x / (x + 2), u = s * s;
    const VEC p = POLYNOMIAL(u, 0.133333333f, 0.153846154f, 0.181818182f, 0.222222222f, 0.285714286f, 0.4f, 0.666666667f, 2.0f);
    return p * s;
}

/* x^exponent of a normal number x > 0: x = 2^n m, 0.7 < m < 1.42, ln m = 2 (s + s^3 / 3 + ... + s^9 / 9), s = (m - 1) / (m + 1) (within
 * 1e-9); as exact as exponent ln x is as a float. */
INLINE VEC power(VEC x, NUMBER exponent) {
    const BITS half_root = (BITS)v_set1(0.707106781f), whole = (BITS)v_set1(1.0f);
    const BITS n = ((BITS)x - half_root + whole) >> 23; /* and 127 */
    const VEC m = (VEC)((BITS)x - (n << 23) + whole), s = (m - 1.0f) / (m + 1.0f), u = s * s;
    const VEC whole_power = (VEC)(n | 0x4b000000) - 8388735.0f;
    const VEC p = POLYNOMIAL(u, 0.222222222f, 0.285714286f, 0.4f, 0.666666667f, 2.0f);
    return exponential(exponent * v_fused(whole_power, v_set1(0.693147181f), p * s));
}

/* x p(x^2) / q(x^2) for |x| <= 8.5, where tanh is 1 in float; relatively within 2.8e-7. Minimax, times 1 + 5e-8, which makes it reach 1. */
INLINE VEC hyperbolic_tangent(VEC x) {
    const VEC z = v_between(v_set1(-8.5f), v_set1(8.5f), x), u = z * z;
    const VEC p = POLYNOMIAL(u, 1.42689407e-08f, 2.12508367e-05f, 0.00353401434f, 0.13413237f, 1.0f),
              q = POLYNOMIAL(u, 8.14500538e-07f, 0.000334884418f, 0.0260227025f, 0.46746558f, 1.0f);
    return v_between(v_set1(-1), v_set1(1), z * p / q);
}

/* x p(s) for |x| <= 3.92, where erf is 1 in float; relatively within 2.2e-7. s = x^2 / 7.6832 - 1 runs from -1 to 1, since powers of x^2 itself
 * would cancel. Minimax, times 1 + 1e-7, which makes it reach 1. */
INLINE void error_functions(const int n, VEC *x) {
    VEC s[TOGETHER], p[TOGETHER];
#pragma GCC unroll 4
    for (int v = 0; v < n; v++) {
        x[v] = v_between(v_set1(-3.92f), v_set1(3.92f), x[v]);
        s[v] = step(x[v] * x[v], v_set1(0.130154103f), -1.0f);
    }
    horners(n, s, p,
            COEFFICIENTS(-0.000843934889f, 0.00209876965f, -0.00139451493f, 0.00191993767f, -0.00766056124f, 0.0142099941f, -0.0199950077f,
                         0.0296975449f, -0.0434368737f, 0.0583960079f, -0.0740198269f, 0.0905969813f, -0.109179236f, 0.134084567f,
                         -0.180108652f, 0.360736847f));
#pragma GCC unroll 4
    for (int v = 0; v < n; v++) x[v] = v_between(v_set1(-1), v_set1(1), x[v] * p[v]);
}
#endif

INLINE VEC exponential(VEC x) {
    exponentials(1, &x);
    return x;
}

INLINE VEC error_function(VEC x) {
    error_functions(1, &x);
    return x;
}

/* tanh ln(1 + e^x) = n / (n + 2), n = e^x (e^x + 2); it is 1 where x > 20. */
INLINE VEC mish(VEC x) {
    const VEC e = exponential(v_between(v_set1(-(NUMBER)__builtin_inf()), v_set1(20), x)), n = e * (e + 2);
    return x * (n / (n + 2));
}

INLINE VEC softplus(VEC x) {
    const VEC infinite = v_set1((NUMBER)__builtin_inf());
    return v_between(v_zero(), infinite, x) + log_of_1_and(close_exponential(where_negative(x, x, -x)));
}

INLINE VEC elu(VEC low, VEC high, VEC x) {
    return where_negative(x, low * exponential_less_1(v_between(v_set1(-(NUMBER)__builtin_inf()), v_zero(), x)), high * x);
}

/* Those that vectors compute one by one. */
INLINE VEC activated_alone(const int activation, VEC low, VEC high, VEC x) {
    switch (activation) {
    case PYSIM_EPILOGUE_relu:
    case PYSIM_EPILOGUE_clamp: return v_between(low, high, x);
    case PYSIM_EPILOGUE_tanh: return hyperbolic_tangent(x);
    case PYSIM_EPILOGUE_hard_swish: return x * (v_between(v_zero(), v_set1(6), x + 3) * (NUMBER)(1.0 / 6)); /* x * 6 may overflow */
    case PYSIM_EPILOGUE_mish: return mish(x);
    case PYSIM_EPILOGUE_leaky_relu: return x * where_negative(x, low, high);
    case PYSIM_EPILOGUE_exp: return close_exponential(x);
    case PYSIM_EPILOGUE_elu: return elu(low, high, x);
    case PYSIM_EPILOGUE_softplus: return softplus(x);
    default: return x;
    }
}

/* What exponentials or error functions of `n` vectors take: their arguments, and what becomes of them. */
INLINE VEC argument_of(const int activation, VEC x) {
    switch (activation) {
    case PYSIM_EPILOGUE_gelu: return x * (NUMBER)0.70710678118654752440;
    case PYSIM_EPILOGUE_gelu_tanh: /* (1 + tanh u) / 2 = 1 / (1 + exp(-2u)) */
        return (NUMBER)-1.59576912160573071176 * v_fused((NUMBER)0.044715 * x * x, x, x);
    case PYSIM_EPILOGUE_erf: return x;
    default: return -x;
    }
}

/* x becomes its activation, a constant as `n` is, up to TOGETHER vectors. */
INLINE void activated(const int activation, VEC low, VEC high, const int n, VEC *x) {
    VEC of[TOGETHER] = {v_zero()};
#pragma GCC unroll 4
    for (int v = 0; v < n; v++) of[v] = argument_of(activation, x[v]);
    switch (activation) {
    case PYSIM_EPILOGUE_gelu:
    case PYSIM_EPILOGUE_erf: error_functions(n, of); break;
    case PYSIM_EPILOGUE_sigmoid:
    case PYSIM_EPILOGUE_silu:
    case PYSIM_EPILOGUE_gelu_tanh: exponentials(n, of); break;
    }
#pragma GCC unroll 4
    for (int v = 0; v < n; v++) {
        const VEC half = x[v] * (NUMBER)0.5;
        switch (activation) {
        case PYSIM_EPILOGUE_gelu: x[v] = v_fused(half, of[v], half); break;
        case PYSIM_EPILOGUE_erf: x[v] = of[v]; break;
        case PYSIM_EPILOGUE_sigmoid: x[v] = 1 / (1 + of[v]); break;
        case PYSIM_EPILOGUE_silu:
        case PYSIM_EPILOGUE_gelu_tanh: x[v] = x[v] / (1 + of[v]); break;
        default: x[v] = activated_alone(activation, low, high, x[v]);
        }
    }
}
