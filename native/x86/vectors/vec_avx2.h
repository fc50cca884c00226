/* SPDX-License-Identifier: Apache-2.0
 * Functions common to vec_avx2_*.h; included there after the names that vec.h needs. */
#include "vec.h"

/* b > a ? b : a, and NaN wins: max returns its second operand if either is NaN or both are zeros. */
INLINE VEC v_larger(VEC a, VEC b) { return V(blendv)(V(max)(b, a), b, V(cmp)(b, b, _CMP_UNORD_Q)); }
INLINE int v_any_nan(VEC v) { return V(movemask)(V(cmp)(v, v, _CMP_UNORD_Q)) != 0; }

typedef __m256i MASK;
INLINE VEC v_load_mask(const T *p, MASK m) { return V(maskload)(p, m); }

INLINE VEC v_interleave_low(VEC a, VEC b) { return V(permute2f128)(V(unpacklo)(a, b), V(unpackhi)(a, b), 0x20); }
INLINE VEC v_interleave_high(VEC a, VEC b) { return V(permute2f128)(V(unpacklo)(a, b), V(unpackhi)(a, b), 0x31); }

enum { GATHER_MAX = 16 };
typedef struct {
    __m256i index; /* of 32-bit words: doubles have no variable cross-lane permute in AVX2 */
    MASK from[GATHER_MAX];
} GATHER;
