/* SPDX-License-Identifier: Apache-2.0
 * FP32 as three bf16, and the panels of them. x = high + middle + low exactly, each part the rest rounded to 8 bits (ties away from zero), but for
 * what lies below 2^-126, where parts are subnormal and count as zeros. Where `high` would not be finite (infinities, NaN and numbers next
 * to the largest) the parts are the two halves of the bits of x and a NaN, which makes each result that x takes part in a NaN:
 * the micro-kernel computes such results again.
 *
 * A block is 32 of k; word p of a row of a block holds k = p in its low half and k = p + 16 in its high half, so both come from whole vectors
 * by a shift and a mask:
 *
 *   filters  [block][part][filter][word p]     a tile is 16 rows of one part
 *   windows  [block][part][word p][window]     words of a window lie one row of the panel apart */
#include <stdint.h>
#include <string.h>

enum { BLOCK = 32, PAIRS = 16, PARTS = 3 };
typedef SUMS FLOATS;
typedef uint32_t BITS __attribute__((vector_size(64)));
typedef FLOATS FLOATS_ANYWHERE __attribute__((aligned(4)));
typedef BITS BITS_ANYWHERE __attribute__((aligned(4)));

static const uint32_t TOP = 0xFFFF0000u, EXPONENT = 0x7F800000u, MARK = 0x7FC0u;

INLINE FLOATS f_load(const float *p) { return *(const FLOATS_ANYWHERE *)(const void *)p; }
INLINE FLOATS f_load_first(const float *p, int64_t n) {
#ifdef __AVX512F__
    return (FLOATS)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
#else
    FLOATS x = {0};
    memcpy(&x, p, (size_t)n * sizeof *p);
    return x;
#endif
}
INLINE void b_store(uint32_t *p, BITS x) { *(BITS_ANYWHERE *)(void *)p = x; }
INLINE void b_store_first(uint32_t *p, BITS x, int64_t n) {
#ifdef __AVX512F__
    _mm512_mask_storeu_epi32(p, (__mmask16)((1u << n) - 1), (__m512i)x);
#else
    memcpy(p, &x, (size_t)n * sizeof *p);
#endif
}
/* Whether any of the first n lanes is at least `least`, as signed integers. */
INLINE int any_from(WORDS x, int32_t least, int64_t n) {
#ifdef __AVX512F__
    return (_mm512_cmpge_epi32_mask((__m512i)x, _mm512_set1_epi32(least)) & ((1u << n) - 1)) != 0;
#else
    int found = 0;
    for (int i = 0; i < n; i++) found |= x[i] >= least;
    return found;
#endif
}
INLINE WORDS w_larger(WORDS x, WORDS y) {
#ifdef __AVX512F__
    return (WORDS)_mm512_max_epi32((__m512i)x, (__m512i)y);
#else
    const WORDS more = x > y;
    return (x & more) | (y & ~more);
#endif
}

typedef struct {
    BITS part[PARTS];
} split;

INLINE split split_of(FLOATS x) {
    const BITS high = ((BITS)x + 0x8000u) & TOP;
    const FLOATS rest = x - (FLOATS)high;
    const BITS middle = ((BITS)rest + 0x8000u) & TOP;
    return (split){{high, middle, (BITS)(rest - (FLOATS)middle)}};
}

/* Parts of what split_of may not split. */
static split split_any(FLOATS x) {
    split of = split_of(x);
    for (int i = 0; i < LANES; i++)
        if ((of.part[0][i] & EXPONENT) == EXPONENT) {
            const uint32_t bits = ((BITS)x)[i];
            of.part[0][i] = bits & TOP, of.part[1][i] = bits << 16, of.part[2][i] = MARK << 16;
        }
    return of;
}

INLINE BITS joined(BITS low, BITS high) { return (low >> 16) | (high & TOP); }

INLINE FLOATS joined_value(BITS high, BITS middle, BITS low) {
    const BITS marked = (BITS)((low & ~0x80000000u) > EXPONENT), raw = high | (middle >> 16);
    const BITS sum = (BITS)(((FLOATS)high + (FLOATS)middle) + (FLOATS)low);
    return (FLOATS)((raw & marked) | (sum & ~marked));
}

/* Words of a row of a block, its low halves (`odd` 0: k = p) or high halves (k = p + 16), as numbers. */
INLINE FLOATS value_of(BITS high, BITS middle, BITS low, const int odd) {
    return odd ? joined_value(high & TOP, middle & TOP, low & TOP) : joined_value(high << 16, middle << 16, low << 16);
}

INLINE float one_value(const uint32_t *words, int64_t part_words, int odd) {
    const BITS none = {0};
    return value_of(none + words[0], none + words[part_words], none + words[2 * part_words], odd)[0];
}
