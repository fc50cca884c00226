/* SPDX-License-Identifier: Apache-2.0
 * Functions common to all vec_*.h; included there after T, VEC, LANES and V(name), which forms the intrinsic of that vector type. */
#define INLINE static inline __attribute__((always_inline))

INLINE VEC v_zero(void) { return V(setzero)(); }
INLINE VEC v_set1(T x) { return V(set1)(x); }
INLINE VEC v_load(const T *p) { return V(loadu)(p); }
INLINE void v_store(T *p, VEC v) { V(storeu)(p, v); }
/* Past the caches; p is a multiple of a vector's size. Other threads see it only behind a fence or a locked instruction. */
INLINE void v_stream(T *p, VEC v) { V(stream)(p, v); }
/* Keeps the value in a register; GCC would rather reload a vector for each multiply-add that uses it. */
INLINE VEC v_kept(VEC v) {
    __asm__("" : "+v"(v));
    return v;
}
INLINE VEC v_fma(VEC a, VEC b, VEC c) { return V(fmadd)(a, b, c); }
INLINE VEC v_fused(VEC a, VEC b, VEC c) { return v_fma(a, b, c); }
INLINE VEC v_mul(VEC a, VEC b) { return V(mul)(a, b); }
INLINE VEC v_add(VEC a, VEC b) { return V(add)(a, b); }
/* x < low ? low : x > high ? high : x; these instructions return their second operand if either is NaN. */
INLINE VEC v_between(VEC low, VEC high, VEC x) { return V(min)(high, V(max)(low, x)); }
