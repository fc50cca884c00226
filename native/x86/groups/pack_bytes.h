/* SPDX-License-Identifier: Apache-2.0
 * Packing of bytes for vectors of 256 bits (contract: native/kernel.h): GROUP bytes of neighbouring k beside each other in 32 bits, for each
 * window. Form `pairs` widens two of them to 16 bits each.
 *
 *   dst[(p / GROUP)*pitch*GROUP + j*GROUP + p % GROUP] = element of window j at k = p, zeros where p reaches beyond k
 *
 * 16 windows at a time. Which bytes of a row a tap takes is known for all channels: loads of 16 or 8 bytes that lie inside the row, and shuffles
 * that move bytes to their windows. */
typedef int8_t E;
#define DTYPE s8
#ifdef PAIRS
enum { GROUP = 2 };
#else
enum { GROUP = 4 };
#endif
enum { STEP = 16, KNOWN_TAPS = 16, UNIT = 8 };

/* Where a tap's 16 windows lie: windows 0-15 of stride 1, 0-7 and 8-15 of stride 2, each taken from two loads of 8 bytes by a shuffle; `outside`
 * has the padding's byte where a window is none. */
typedef struct {
    int64_t at[2][2];
    __m128i order[2], outside;
    int whole; /* 16 neighbouring bytes at at[0][0] */
} place;

/* Whether places serve: rows have the bytes of a load, and windows lie within what loads reach. */
INLINE int has_places(const pysim_segment *s) { return s->row && s->width >= UNIT && s->stride <= 2; }

static void find_place(const pysim_segment *s, int64_t j, int64_t tap, place *of) {
    const __m128i even = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, -1, -1, -1, -1, -1, -1, -1, -1);
    const int64_t count = pysim_min(STEP, s->count - j), first = s->first + j * s->stride + tap * s->dilation, part = STEP / s->stride;
    int8_t order[2][STEP], outside[STEP];
    of->whole = s->stride == 1 && count == STEP && first >= 0 && first + STEP <= s->width;
    for (int64_t half = 0; half < 2; half++)
        for (int64_t i = 0; i < 2; i++) of->at[half][i] = pysim_max(0, pysim_min(s->width - UNIT, first + (2 * half + i) * UNIT));
    if (of->whole) return;                                                               /* 16 bytes from there on */
    if (s->stride == 2 && count == STEP && first >= 0 && first + 4 * UNIT <= s->width) { /* inside */
        of->order[0] = even, of->order[1] = _mm_or_si128(_mm_slli_si128(even, 8), _mm_srli_si128(_mm_set1_epi8(-1), 8));
        of->outside = _mm_setzero_si128();
        return;
    }
    memset(order, -1, sizeof order);
    memset(outside, (int8_t)s->fill, sizeof outside);
    for (int64_t i = 0; i < count; i++) {
        const int64_t column = first + i * s->stride, half = i / part, second = column >= first + (2 * half + 1) * UNIT;
        if (column < 0 || column >= s->width) continue;
        order[half][i] = (int8_t)(column - of->at[half][second] + second * UNIT);
        outside[i] = 0;
    }
    for (int half = 0; half < 2; half++) of->order[half] = _mm_loadu_si128((const __m128i *)(const void *)order[half]);
    of->outside = _mm_loadu_si128((const __m128i *)(const void *)outside);
}

INLINE __m128i two_units(const E *row, const int64_t at[2]) {
    const __m128i low = _mm_loadl_epi64((const __m128i *)(const void *)(row + at[0]));
    return _mm_unpacklo_epi64(low, _mm_loadl_epi64((const __m128i *)(const void *)(row + at[1])));
}

INLINE __m128i row_at(const int stride, const E *row, const place *of) {
    if (stride == 1 && of->whole) return _mm_loadu_si128((const __m128i *)(const void *)(row + of->at[0][0]));
    __m128i found = _mm_or_si128(of->outside, _mm_shuffle_epi8(two_units(row, of->at[0]), of->order[0]));
    return stride == 1 ? found : _mm_or_si128(found, _mm_shuffle_epi8(two_units(row, of->at[1]), of->order[1]));
}

/* The same, byte by byte. */
static __m128i any_row(const pysim_segment *s, const E *row, int64_t j, int64_t tap) {
    const int64_t count = pysim_min(STEP, s->count - j), first = s->first + j * s->stride + tap * s->dilation;
    E line[STEP];
    memset(line, (E)s->fill, sizeof line);
    for (int64_t i = 0; i < count; i++) {
        const int64_t column = first + i * s->stride;
        if (s->row && column >= 0 && column < s->width) line[i] = row[column];
    }
    return _mm_loadu_si128((const __m128i *)(const void *)line);
}

/* Stores the first `count` of 16 windows' groups, four to a vector. */
INLINE void store_some(const __m128i groups[4], uint32_t *to, int64_t count) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++, to += 4, count -= 4) {
        if (count >= 4) {
            _mm_storeu_si128((__m128i *)(void *)to, groups[i]);
            continue;
        }
        __m128i rest = groups[i];
        if (count & 2) _mm_storel_epi64((__m128i *)(void *)to, rest), to += 2, rest = _mm_unpackhi_epi64(rest, rest);
        if (count & 1) *to = (uint32_t)_mm_cvtsi128_si32(rest);
        return;
    }
}

/* Interleaves GROUP rows and stores the first `count` groups. */
INLINE void store_groups(const __m128i x[GROUP], uint32_t *to, int64_t count) {
    const __m128i low = _mm_unpacklo_epi8(x[0], x[1]), high = _mm_unpackhi_epi8(x[0], x[1]);
#ifdef PAIRS
    const __m256i first = _mm256_cvtepi8_epi16(low), second = _mm256_cvtepi8_epi16(high);
    const __m128i groups[4] = {_mm256_castsi256_si128(first), _mm256_extracti128_si256(first, 1), _mm256_castsi256_si128(second),
                               _mm256_extracti128_si256(second, 1)};
    if (count < STEP) store_some(groups, to, count);
    else _mm256_storeu_si256((__m256i *)(void *)to, first), _mm256_storeu_si256((__m256i *)(void *)(to + STEP / 2), second);
#else
    const __m128i low2 = _mm_unpacklo_epi8(x[2], x[3]), high2 = _mm_unpackhi_epi8(x[2], x[3]);
    const __m128i groups[4] = {_mm_unpacklo_epi16(low, low2), _mm_unpackhi_epi16(low, low2), _mm_unpacklo_epi16(high, high2),
                               _mm_unpackhi_epi16(high, high2)};
    store_some(groups, to, count);
#endif
}

/* 16 windows of all channels. TAPS: a constant, or 0 of any number. */
INLINE void pack_windows_of(const int TAPS, const int stride, const pysim_segment *s, int64_t j, uint32_t *dst) {
    const int64_t taps = TAPS ? TAPS : s->taps, k = s->channels * taps, count = pysim_min(STEP, s->count - j), pitch = s->pitch;
    const __m128i flip = _mm_set1_epi8((char)s->flip);
    place known[KNOWN_TAPS];
    for (int64_t tap = 0; tap < taps; tap++) find_place(s, j, tap, &known[tap]);
    const E *row = s->row;
    int64_t p = 0, tap = 0;
    for (; TAPS && p + TAPS * GROUP <= k; p += TAPS * GROUP, row += GROUP * s->row_channel)
#pragma GCC unroll 3
        for (int i = 0; i < TAPS; i++, dst += pitch) {
            __m128i x[GROUP];
#pragma GCC unroll 4
            for (int g = 0; g < GROUP; g++) {
                const int at = i * GROUP + g, from = TAPS ? at / TAPS : 0;
                x[g] = _mm_xor_si128(row_at(stride, row + from * s->row_channel, &known[at - from * TAPS]), flip);
            }
            store_groups(x, dst, count);
        }
    for (; p < k; p += GROUP, dst += pitch) {
        __m128i x[GROUP];
#pragma GCC unroll 4
        for (int g = 0; g < GROUP; g++) {
            x[g] = _mm_setzero_si128();
            if (p + g >= k) continue;
            x[g] = _mm_xor_si128(row_at(stride, row, &known[tap]), flip);
            if (++tap == taps) tap = 0, row += s->row_channel;
        }
        store_groups(x, dst, count);
    }
}

static void pack_any(const pysim_segment *s, int64_t j, uint32_t *dst) {
    const int64_t k = s->channels * s->taps, count = pysim_min(STEP, s->count - j);
    const __m128i flip = _mm_set1_epi8((char)s->flip);
    for (int64_t p = 0; p < k; p += GROUP, dst += s->pitch) {
        __m128i x[GROUP];
        for (int i = 0; i < GROUP; i++) {
            const E *row = s->row ? (const E *)s->row + (p + i) / s->taps * s->row_channel : NULL;
            x[i] = p + i < k ? _mm_xor_si128(any_row(s, row, j, (p + i) % s->taps), flip) : _mm_setzero_si128();
        }
        store_groups(x, dst, count);
    }
}

#ifdef BOUNDED
#define PACK3(dtype, target, what) pack_##dtype##__##target##_bounded_##what
#elif defined PAIRS && WIDTH == 512
#define PACK3(dtype, target, what) pack_##dtype##__##target##_pairs_##what
#else
#define PACK3(dtype, target, what) pack_##dtype##__##target##_##what
#endif
#define PACK2(dtype, target, what) PACK3(dtype, target, what)
#define PACK(what) PACK2(DTYPE, TARGET, what)

void PACK(segment)(const pysim_segment *s, void *to);
void PACK(segment)(const pysim_segment *s, void *to) {
    for (int64_t j = 0; j < s->count; j += STEP) {
        uint32_t *dst = (uint32_t *)to + j;
        if (!has_places(s) || s->taps > KNOWN_TAPS) pack_any(s, j, dst);
        else if (s->stride == 1 && s->taps == 1) pack_windows_of(1, 1, s, j, dst);
        else if (s->stride == 1 && s->taps == 3) pack_windows_of(3, 1, s, j, dst);
        else if (s->stride == 1) pack_windows_of(0, 1, s, j, dst);
        else if (s->taps == 1) pack_windows_of(1, 2, s, j, dst);
        else if (s->taps == 3) pack_windows_of(3, 2, s, j, dst);
        else pack_windows_of(0, 2, s, j, dst);
    }
}

/* UNIT bytes of a row, each group to the next row of groups. */
INLINE void scatter_groups(const E *row, int64_t pitch, uint32_t *dst) {
    uint64_t eight;
    memcpy(&eight, row, sizeof eight);
#ifdef PAIRS
    const __m128i wide = _mm_cvtepi8_epi16(_mm_cvtsi64_si128((long long)eight));
    dst[0] = (uint32_t)_mm_cvtsi128_si32(wide), dst[pitch] = (uint32_t)_mm_extract_epi32(wide, 1);
    dst[2 * pitch] = (uint32_t)_mm_extract_epi32(wide, 2), dst[3 * pitch] = (uint32_t)_mm_extract_epi32(wide, 3);
#else
    dst[0] = (uint32_t)eight, dst[pitch] = (uint32_t)(eight >> 32);
#endif
}

/* A group of the first `count` elements of a row and zeros. */
INLINE uint32_t group_of(const E *row, int64_t count) {
    uint32_t group = 0;
    for (int64_t i = 0; i < pysim_min(count, GROUP); i++) {
        const int bits = 32 / GROUP;
        group |= ((uint32_t)row[i] & (0xFFFFFFFFu >> (32 - bits))) << (i * bits);
    }
    return group;
}

void PACK(transposed)(const void *from, int64_t ld, int64_t rows, int64_t k, int64_t pitch, void *to, int *not_finite);
void PACK(transposed)(const void *from, int64_t ld, int64_t rows, int64_t k, int64_t pitch, void *to, int *not_finite) {
    uint32_t *dst = to;
    (void)not_finite;
    for (int64_t i = 0; i < rows; i++, dst++) {
        const E *row = (const E *)from + i * ld;
        int64_t p = 0;
        for (; p + UNIT <= k; p += UNIT) scatter_groups(row + p, pitch, dst + p / GROUP * pitch);
        for (; p < k; p += GROUP) dst[p / GROUP * pitch] = group_of(row + p, k - p);
    }
    for (int64_t i = rows; i < pitch; i++, dst++)
        for (int64_t p = 0; p < pysim_ceil_div(k, GROUP); p++) dst[p * pitch] = 0;
}
