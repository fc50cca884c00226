/* SPDX-License-Identifier: Apache-2.0
 * A vector type in plain C for x86/lanes.h and x86/pack.h that records its loads and stores: the vector kernels' own source then shows its accesses on
 * any CPU. The includer defines T, LANES and SUFFIX. A masked access covers its active lanes. */
#include "record.h"

typedef struct {
    T lane[LANES];
} VEC;
#define INLINE static inline __attribute__((always_inline))
#define EACH(expression)                                          \
    do {                                                          \
        for (int l = 0; l < LANES; l++) out.lane[l] = expression; \
        return out;                                               \
    } while (0)

typedef uint32_t MASK; /* bit l is lane l; active lanes are neighbours */
INLINE MASK v_lanes(int64_t lo, int64_t hi) {
    MASK m = 0;
    for (int l = 0; l < LANES; l++) m |= (MASK)(l >= lo && l < hi) << l;
    return m;
}
INLINE void record_lanes(const T *p, MASK m, int is_write) {
    if (m) record(p + __builtin_ctz(m), (size_t)__builtin_popcount(m) * sizeof(T), is_write);
}

/* clang-format off */
INLINE VEC v_set1(T x) { VEC out; EACH(x); }
INLINE VEC v_zero(void) { return v_set1(0); }
INLINE VEC v_load_mask(const T *p, MASK m) {
    VEC out;
    record_lanes(p, m, 0);
    EACH(m >> l & 1 ? p[l] : 0);
}
INLINE void v_store_mask(T *p, VEC v, MASK m) {
    record_lanes(p, m, 1);
    for (int l = 0; l < LANES; l++)
        if (m >> l & 1) p[l] = v.lane[l];
}
INLINE VEC v_load(const T *p) { return v_load_mask(p, v_lanes(0, LANES)); }
INLINE void v_store(T *p, VEC v) { v_store_mask(p, v, v_lanes(0, LANES)); }
INLINE void v_stream(T *p, VEC v) { v_store(p, v); }
INLINE VEC v_spread(const T *p) { return v_set1(LOAD(p)); }
INLINE VEC v_fma(VEC a, VEC b, VEC c) { VEC out; EACH(a.lane[l] * b.lane[l] + c.lane[l]); }
INLINE VEC v_mul(VEC a, VEC b) { VEC out; EACH(a.lane[l] * b.lane[l]); }
INLINE VEC v_add(VEC a, VEC b) { VEC out; EACH(a.lane[l] + b.lane[l]); }
INLINE int v_any_nan(VEC v) {
    int any = 0;
    for (int l = 0; l < LANES; l++) any |= v.lane[l] != v.lane[l];
    return any;
}
INLINE VEC v_between(VEC low, VEC high, VEC x) {
    VEC out;
    EACH(x.lane[l] < low.lane[l] ? low.lane[l] : x.lane[l] > high.lane[l] ? high.lane[l] : x.lane[l]);
}
INLINE VEC v_shift1(VEC lo, VEC hi) { VEC out; EACH(l + 1 < LANES ? lo.lane[l + 1] : hi.lane[0]); }
INLINE VEC v_interleave_low(VEC a, VEC b) { VEC out; EACH(l % 2 ? b.lane[l / 2] : a.lane[l / 2]); }
INLINE VEC v_interleave_high(VEC a, VEC b) { VEC out; EACH(l % 2 ? b.lane[(LANES + l) / 2] : a.lane[(LANES + l) / 2]); }
/* clang-format on */

enum { GATHER_MAX = 16 };
typedef struct {
    int64_t stride, phase;
} GATHER;
INLINE GATHER v_gather_plan(int64_t stride, int64_t phase) { return (GATHER){stride, phase}; }
INLINE VEC v_gather_from(VEC out, VEC source, const GATHER *g, int64_t i) {
    for (int l = 0; l < LANES; l++) {
        const int64_t element = l * g->stride + g->phase;
        if (element / LANES == i) out.lane[l] = source.lane[element % LANES];
    }
    return out;
}
#undef EACH
