/* SPDX-License-Identifier: Apache-2.0
 * What the vectors of every vec_*.h do alike; included there, after T, VEC, LANES and V(name), an intrinsic of that vector type by what it
 * does. */
#define INLINE static inline __attribute__((always_inline))

INLINE VEC v_zero(void) { return V(setzero)(); }
INLINE VEC v_set1(T x) { return V(set1)(x); }
INLINE VEC v_load(const T *p) { return V(loadu)(p); }
INLINE void v_store(T *p, VEC v) { V(storeu)(p, v); }
/* In a register: GCC would rather load a vector again for each multiply-add that it is an operand of. */
INLINE VEC v_kept(VEC v) {
    __asm__("" : "+v"(v));
    return v;
}
INLINE VEC v_fma(VEC a, VEC b, VEC c) { return V(fmadd)(a, b, c); }
INLINE VEC v_mul(VEC a, VEC b) { return V(mul)(a, b); }
INLINE VEC v_add(VEC a, VEC b) { return V(add)(a, b); }
/* x < low ? low : x > high ? high : x; these instructions give their second operand where either is NaN. */
INLINE VEC v_between(VEC low, VEC high, VEC x) { return V(min)(high, V(max)(low, x)); }
