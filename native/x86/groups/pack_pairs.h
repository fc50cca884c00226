/* SPDX-License-Identifier: Apache-2.0
 * Packing of form `pairs` (contract: native/kernel.h): two bytes of neighbouring k beside each other, each widened to 16 bits, for each window.
 *
 *   dst[(p / 2)*pitch*2 + j*2 + p % 2] = element of window j at k = p, zeros where p reaches beyond k
 *
 * 16 windows at a time. Which bytes of a row a tap takes is known for all channels: loads of 16 or 8 bytes that lie inside the row, and shuffles
 * that move bytes to their windows. */
typedef int8_t E;
#define DTYPE s8
enum { GROUP = 2, STEP = 16, KNOWN_TAPS = 16, UNIT = 8 };

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
        for (int64_t i = 0; i < 2; i++)
            of->at[half][i] = pysim_max(0, pysim_min(s->width - UNIT, first + (2 * half + i) * UNIT));
    if (of->whole) return; /* 16 bytes from there on */
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

/* Interleaves two rows, widened, and stores the first `count` pairs. */
INLINE void store_pairs(__m128i a, __m128i b, uint32_t *to, int64_t count) {
    const __m256i low = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(a, b)), high = _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(a, b));
    if (count >= LANES) _mm256_storeu_si256((__m256i *)(void *)to, low);
    if (count >= STEP) _mm256_storeu_si256((__m256i *)(void *)(to + LANES), high);
    if (count % LANES == 0) return;
    const __m256i last = count > LANES ? high : low;
    to += count / LANES * LANES;
    __m128i rest = _mm256_castsi256_si128(last);
    if (count & 4) _mm_storeu_si128((__m128i *)(void *)to, rest), to += 4, rest = _mm256_extracti128_si256(last, 1);
    if (count & 2) _mm_storel_epi64((__m128i *)(void *)to, rest), to += 2, rest = _mm_unpackhi_epi64(rest, rest);
    if (count & 1) *to = (uint32_t)_mm_cvtsi128_si32(rest);
}

/* 16 windows of all channels. TAPS: a constant, or 0 of any number. */
INLINE void pack_windows_of(const int TAPS, const int stride, const pysim_segment *s, int64_t j, uint32_t *dst) {
    const int64_t taps = TAPS ? TAPS : s->taps, k = s->channels * taps, count = pysim_min(STEP, s->count - j), pitch = s->pitch;
    const __m128i flip = _mm_set1_epi8((char)s->flip);
    place known[KNOWN_TAPS];
    for (int64_t tap = 0; tap < taps; tap++) find_place(s, j, tap, &known[tap]);
    const E *row = s->row;
    int64_t p = 0, tap = 0;
    if (TAPS == 1)
        for (; p + GROUP <= k; p += GROUP, row += GROUP * s->row_channel, dst += pitch) {
            const __m128i a = row_at(stride, row, known), b = row_at(stride, row + s->row_channel, known);
            store_pairs(_mm_xor_si128(a, flip), _mm_xor_si128(b, flip), dst, count);
        }
    if (TAPS == 3)
        for (; p + 2 * TAPS <= k; p += 2 * TAPS, row += GROUP * s->row_channel, dst += 3 * pitch) {
            __m128i x[6];
#pragma GCC unroll 6
            for (int i = 0; i < 6; i++) x[i] = _mm_xor_si128(row_at(stride, row + (i / 3) * s->row_channel, &known[i % 3]), flip);
#pragma GCC unroll 3
            for (int i = 0; i < 3; i++) store_pairs(x[2 * i], x[2 * i + 1], dst + i * pitch, count);
        }
    for (; p < k; p += GROUP, dst += pitch) {
        __m128i x[GROUP] = {_mm_setzero_si128(), _mm_setzero_si128()};
        for (int i = 0; i < GROUP && p + i < k; i++) {
            x[i] = _mm_xor_si128(row_at(stride, row, &known[tap]), flip);
            if (++tap == taps) tap = 0, row += s->row_channel;
        }
        store_pairs(x[0], x[1], dst, count);
    }
}

static void pack_any(const pysim_segment *s, int64_t j, uint32_t *dst) {
    const int64_t k = s->channels * s->taps, count = pysim_min(STEP, s->count - j);
    const __m128i flip = _mm_set1_epi8((char)s->flip);
    for (int64_t p = 0; p < k; p += GROUP, dst += s->pitch) {
        __m128i x[GROUP] = {_mm_setzero_si128(), _mm_setzero_si128()};
        for (int i = 0; i < GROUP && p + i < k; i++) {
            const E *row = s->row ? (const E *)s->row + (p + i) / s->taps * s->row_channel : NULL;
            x[i] = _mm_xor_si128(any_row(s, row, j, (p + i) % s->taps), flip);
        }
        store_pairs(x[0], x[1], dst, count);
    }
}

#define PACK3(dtype, target, what) pack_##dtype##__##target##_##what
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

/* Four pairs of a row, each to the next row of groups. */
INLINE void scatter_pairs(const E *row, int64_t pitch, uint32_t *dst) {
    uint64_t eight;
    memcpy(&eight, row, sizeof eight);
    const __m128i wide = _mm_cvtepi8_epi16(_mm_cvtsi64_si128((long long)eight));
    dst[0] = (uint32_t)_mm_cvtsi128_si32(wide), dst[pitch] = (uint32_t)_mm_extract_epi32(wide, 1);
    dst[2 * pitch] = (uint32_t)_mm_extract_epi32(wide, 2), dst[3 * pitch] = (uint32_t)_mm_extract_epi32(wide, 3);
}

void PACK(transposed)(const void *from, int64_t ld, int64_t rows, int64_t k, int64_t pitch, void *to, int *not_finite);
void PACK(transposed)(const void *from, int64_t ld, int64_t rows, int64_t k, int64_t pitch, void *to, int *not_finite) {
    enum { AT_ONCE = 4 * GROUP };
    uint32_t *dst = to;
    (void)not_finite;
    for (int64_t i = 0; i < rows; i++, dst++) {
        const E *row = (const E *)from + i * ld;
        int64_t p = 0;
        for (; p + AT_ONCE <= k; p += AT_ONCE) scatter_pairs(row + p, pitch, dst + p / GROUP * pitch);
        for (; p < k; p += GROUP) {
            const uint16_t first = (uint16_t)row[p], second = p + 1 < k ? (uint16_t)row[p + 1] : 0;
            dst[p / GROUP * pitch] = first | (uint32_t)second << 16;
        }
    }
    for (int64_t i = rows; i < pitch; i++, dst++)
        for (int64_t p = 0; p < (k + 1) / GROUP; p++) dst[p * pitch] = 0;
}
