/* SPDX-License-Identifier: Apache-2.0
 * One vector type in plain C with the names of x86/vectors/vec_*.h: 16 bytes of T (defined by the includer), the registers of a base CPU (SSE2, VSX,
 * NEON). A wider vector would live in memory, which took 5 to 20 times as long in FP64. The includer defines FOUR_LANES for templates that need
 * at least four lanes. */
#define PORTABLE
#ifdef FOUR_LANES
enum { LANES = 4 };
#else
enum { LANES = 16 / sizeof(T) };
#endif
typedef T VEC __attribute__((vector_size(LANES * sizeof(T))));
#define INLINE static inline __attribute__((always_inline))

INLINE VEC v_zero(void) { return (VEC){0}; }
INLINE VEC v_set1(T x) { return x - v_zero(); } /* 0 + x would be +0 of -0 */
INLINE VEC v_load(const T *p) {
    VEC v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}
INLINE void v_store(T *p, VEC v) { __builtin_memcpy(p, &v, sizeof v); }
INLINE VEC v_kept(VEC v) { return v; }
INLINE VEC v_fma(VEC a, VEC b, VEC c) { return a * b + c; }
#if defined(DOUBLE) ? defined(__FP_FAST_FMA) : defined(__FP_FAST_FMAF)
INLINE VEC v_fused(VEC a, VEC b, VEC c) {
    for (int i = 0; i < LANES; i++)
        c[i] = sizeof(T) == 4 ? (T)__builtin_fmaf((float)a[i], (float)b[i], (float)c[i]) : (T)__builtin_fma(a[i], b[i], c[i]);
    return c;
}
#elif !defined(ROUNDED_ONCE) /* by its product, rounded; loops_once.c is for calls that promise more */
INLINE VEC v_fused(VEC a, VEC b, VEC c) { return a * b + c; }
#else
/* a b + c rounded once without such an instruction. The product is exact in double. Rounding its sum with c to double, then to float, is as good
 * as once, unless the double lies halfway between two floats or below their normal ones: then the C library adds. */
typedef double DOUBLES __attribute__((vector_size(16)));
typedef int32_t WORDS __attribute__((vector_size(16)));
static __attribute__((noinline)) VEC v_fused(VEC a, VEC b, VEC c) {
    const WORDS rest = {0x1fffffff, 0, 0x1fffffff, 0}, halfway = {0x10000000, 1, 0x10000000, 1};
    WORDS doubtful = {0};
    VEC y;
    for (int i = 0; i < LANES; i += 2) {
        const DOUBLES factor = {a[i], a[i + 1]}, times = {b[i], b[i + 1]}, term = {c[i], c[i + 1]}, sum = factor * times + term;
        const DOUBLES least = {0x1p-126, 0x1p-126};
        doubtful |= (((WORDS)sum & rest) == halfway) | (WORDS)((sum < least) & (-sum < least) & (sum != 0));
        y[i] = (float)sum[0], y[i + 1] = (float)sum[1];
    }
    if (__builtin_expect((doubtful[0] | doubtful[1] | doubtful[2] | doubtful[3]) != 0, 0))
        for (int i = 0; i < LANES; i++) y[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return y;
}
#endif
INLINE VEC v_mul(VEC a, VEC b) { return a * b; }
INLINE VEC v_add(VEC a, VEC b) { return a + b; }
/* Selects lane by lane without a branch: GCC takes seconds for the thousands of branches in an unrolled tile. */
typedef __typeof__((VEC){0} < (VEC){0}) TEST;
INLINE VEC v_chosen(TEST where, VEC a, VEC b) { return (VEC)(((TEST)a & where) | ((TEST)b & ~where)); }
/* The larger of both; NaN wins. */
INLINE VEC v_larger(VEC a, VEC b) { return v_chosen((b > a) | (b != b), b, a); }
/* NaN stays NaN. */
INLINE VEC v_between(VEC low, VEC high, VEC x) { return v_chosen(x < low, low, v_chosen(x > high, high, x)); }

typedef struct {
    int64_t lo, hi;
} MASK;
INLINE MASK v_lanes(int64_t lo, int64_t hi) { return (MASK){pysim_max(lo, 0), pysim_min(hi, LANES)}; }
INLINE VEC v_load_mask(const T *p, MASK m) {
    VEC v = v_zero();
    if (m.hi - m.lo == LANES) return v_load(p);
    for (int64_t i = m.lo; i < m.hi; i++) v[i] = p[i];
    return v;
}
INLINE void v_store_mask(T *p, VEC v, MASK m) {
    if (m.hi - m.lo == LANES) v_store(p, v);
    else
        for (int64_t i = m.lo; i < m.hi; i++) p[i] = v[i];
}
INLINE VEC v_shift1(VEC lo, VEC hi) {
    for (int i = 0; i < LANES; i++) lo[i] = i + 1 < LANES ? lo[i + 1] : hi[0];
    return lo;
}
INLINE VEC interleave(VEC a, VEC b, const int from) {
    VEC v = a;
    for (int i = 0; i < LANES; i++) v[i] = i % 2 ? b[from + i / 2] : a[from + i / 2];
    return v;
}
INLINE VEC v_interleave_low(VEC a, VEC b) { return interleave(a, b, 0); }
INLINE VEC v_interleave_high(VEC a, VEC b) { return interleave(a, b, LANES / 2); }
INLINE VEC every_second(VEC a, VEC b, const int from) {
    VEC v = a;
    for (int i = 0; i < LANES; i++) v[i] = 2 * i + from < LANES ? a[2 * i + from] : b[2 * i + from - LANES];
    return v;
}
INLINE VEC v_even(VEC a, VEC b) { return every_second(a, b, 0); }
INLINE VEC v_odd(VEC a, VEC b) { return every_second(a, b, 1); }

typedef struct {
    int64_t stride, phase;
} GATHER;
INLINE GATHER v_gather_plan(int64_t stride, int64_t phase) { return (GATHER){stride, phase}; }
INLINE VEC v_gather_from(VEC sofar, VEC source, const GATHER *g, int64_t i) {
    for (int lane = 0; lane < LANES; lane++) {
        const int64_t element = lane * g->stride + g->phase - i * LANES;
        if (element >= 0 && element < LANES) sofar[lane] = source[element];
    }
    return sofar;
}
