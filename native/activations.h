/* SPDX-License-Identifier: Apache-2.0
 * The activations of epilogues.inc in vectors; included after a vec_*.h, with DOUBLE (whether T is double). Vectors of the compiler have
 * operators, and comparisons choose between values that are both computed. */
#include <math.h>

#if DOUBLE
typedef int64_t BITS __attribute__((vector_size(sizeof(VEC))));
#else
typedef int32_t BITS __attribute__((vector_size(sizeof(VEC))));
#endif

/* a where x is negative, else b, also for a NaN. */
INLINE VEC where_negative(VEC x, VEC a, VEC b) {
    const BITS negative = (BITS)(x < v_zero());
    return (VEC)((negative & (BITS)a) | (~negative & (BITS)b));
}

#if DOUBLE
INLINE VEC exponential(VEC x) {
    for (int i = 0; i < LANES; i++) x[i] = exp(x[i]);
    return x;
}
INLINE VEC normal_tail(VEC z) {
    for (int i = 0; i < LANES; i++) z[i] = erfc(z[i]) / 2;
    return z;
}
#else
/* e^x = 2^n e^r, n = x / ln 2 rounded, |r| <= ln 2 / 2; ln 2 in two parts, so that x - n ln 2 is nearly exact (Cody and Waite). The sum
 * x + 1.5 2^23 has n in its lowest bits. Below the least normal number 0, above the largest infinity; within 2 units in the last place. */
INLINE VEC exponential(VEC given) {
    const VEC magic = v_set1(12582912.0f), x = v_between(v_set1(-87.34f), v_set1(89.0f), given);
    const VEC shifted = x * 1.44269504f + magic, n = shifted - magic;
    const VEC r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    VEC p = r * (1.0f / 5040) + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return p * (VEC)(((BITS)shifted + 126) << 23) * 2.0f; /* 2^(n-1): n may be 128, and -126 gives 0 */
}

/* erfc(z) / 2 for z >= 0: erfc(z) = t exp(-z^2 + p(t)), t = 1 / (1 + z/2), where p of degree 9 interpolates at Chebyshev points of 0 <= z <= 10
 * (within 5e-8; behind that the result is 0 in float). */
INLINE VEC normal_tail(VEC z) {
    const VEC t = 1.0f / (1.0f + 0.5f * z);
    VEC p = t * 0.144930214f + -0.680827177f;
    p = p * t + 1.15673376f;
    p = p * t + -0.696251897f;
    p = p * t + -0.0802804334f;
    p = p * t + 0.00126758703f;
    p = p * t + 0.0346027998f;
    p = p * t + 0.386640412f;
    p = p * t + 0.998632783f;
    p = p * t + -1.265448f;
    return 0.5f * t * exponential(p - z * z);
}
#endif

INLINE VEC gelu(VEC x) {
    const VEC tail = normal_tail(where_negative(x, -x, x) * (T)0.70710678118654752440);
    return x * where_negative(x, tail, 1 - tail);
}

/* Of a constant activation. */
INLINE VEC activated(const int activation, VEC low, VEC high, VEC x) {
    switch (activation) {
    case PYSIM_EPILOGUE_relu:
    case PYSIM_EPILOGUE_clamp: return v_between(low, high, x);
    case PYSIM_EPILOGUE_gelu: return gelu(x);
    case PYSIM_EPILOGUE_silu: return x / (1 + exponential(-x));
    case PYSIM_EPILOGUE_sigmoid: return 1 / (1 + exponential(-x));
    case PYSIM_EPILOGUE_hard_swish: return x * v_between(v_zero(), v_set1(6), x + 3) * (T)(1.0 / 6);
    case PYSIM_EPILOGUE_gelu_tanh: /* (1 + tanh u) / 2 = 1 / (1 + exp(-2u)) */
        return x / (1 + exponential((T)-1.59576912160573071176 * (x + (T)0.044715 * x * x * x)));
    default: return x;
    }
}
