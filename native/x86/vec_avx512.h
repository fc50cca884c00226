/* SPDX-License-Identifier: Apache-2.0
 * Masks of vec_avx512_*.h; included there after MASK and the names that vec.h needs. */
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
