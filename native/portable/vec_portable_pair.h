/* SPDX-License-Identifier: Apache-2.0
 * A vector of twice the lanes of vec_portable.h as two of its vectors, for templates that need only these names. One wider vector would live in
 * memory and be read and written at every multiply-add. */
#include "vec_portable.h"

typedef struct {
    VEC low, high;
} PAIR;
INLINE PAIR pair_zero(void) { return (PAIR){v_zero(), v_zero()}; }
INLINE PAIR pair_set1(T x) { return (PAIR){v_set1(x), v_set1(x)}; }
INLINE PAIR pair_load(const T *p) { return (PAIR){v_load(p), v_load(p + LANES)}; }
INLINE void pair_store(T *p, PAIR x) { v_store(p, x.low), v_store(p + LANES, x.high); }
INLINE PAIR pair_kept(PAIR x) { return x; }
INLINE PAIR pair_add(PAIR a, PAIR b) { return (PAIR){a.low + b.low, a.high + b.high}; }
INLINE PAIR pair_fma(PAIR a, PAIR b, PAIR c) { return (PAIR){v_fma(a.low, b.low, c.low), v_fma(a.high, b.high, c.high)}; }
INLINE PAIR pair_between(PAIR low, PAIR high, PAIR x) {
    return (PAIR){v_between(low.low, high.low, x.low), v_between(low.high, high.high, x.high)};
}

enum { PAIR_LANES = 2 * LANES };
#define VEC PAIR
#define LANES PAIR_LANES
#define v_zero pair_zero
#define v_set1 pair_set1
#define v_load pair_load
#define v_store pair_store
#define v_kept pair_kept
#define v_add pair_add
#define v_fma pair_fma
#define v_between pair_between
