/* SPDX-License-Identifier: Apache-2.0
 * The operations of vec_avx512_*.h that differ only in their type. Included there after the names that vec.h needs, MASK, V_MASK(name), which is
 * an intrinsic that returns a mask, and v_shifted(low, high, n): LANES lanes of high:low from lane n on, n a constant. */
#include "vec.h"

/* lanes lo <= l < hi; any lo and hi. */
INLINE MASK v_lanes(int64_t lo, int64_t hi) {
    const uint32_t all = (1u << LANES) - 1u;
    const uint32_t up = hi <= 0 ? 0u : hi >= LANES ? all : (1u << hi) - 1u;
    const uint32_t down = lo <= 0 ? 0u : lo >= LANES ? all : (1u << lo) - 1u;
    return (MASK)(up & ~down);
}
INLINE VEC v_load_mask(const T *p, MASK m) { return V(maskz_loadu)(m, p); }
INLINE void v_store_mask(T *p, VEC v, MASK m) { V(mask_storeu)(p, m, v); }
INLINE VEC v_shift1(VEC lo, VEC hi) { return v_shifted(lo, hi, 1); }
INLINE int v_any_nan(VEC v) { return V_MASK(cmp)(v, v, _CMP_UNORD_Q) != 0; }
/* b > a ? b : a, and a NaN stays: max gives its second operand where either is one, or both are zeros. */
INLINE VEC v_larger(VEC a, VEC b) { return V(mask_mov)(V(max)(b, a), V_MASK(cmp)(b, b, _CMP_UNORD_Q), b); }
