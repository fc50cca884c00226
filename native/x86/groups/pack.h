/* SPDX-License-Identifier: Apache-2.0
 * Packing of form `groups` (contract: native/kernel.h) of halves, and of bytes for vectors of 512 bits: GROUP elements of neighbouring k beside
 * each other, for each window.
 *
 *   dst[(p / GROUP)*pitch*GROUP + j*GROUP + p % GROUP] = element of window j at k = p, zeros where p reaches beyond k
 *
 * 16 windows at a time: GROUP rows of 16 elements are loaded, under masks where they meet the edge of the image, and interleaved into 64
 * bytes. */
#ifdef HALVES
typedef uint16_t E, UNSIGNED;
#define DTYPE bf16
#define NOT_FINITE(word) (((word) & 0x7F80u) == 0x7F80u || ((word) & 0x7F800000u) == 0x7F800000u)
#else
typedef int8_t E;
typedef uint8_t UNSIGNED;
#define DTYPE s8
#define NOT_FINITE(word) ((void)(word), 0)
#endif
enum { GROUP = 4 / sizeof(E), STEP = 16, MASKED_TAPS = 64 };

/* 16 elements. */
#ifdef HALVES
typedef __m256i ROW16;
INLINE ROW16 r_load(const E *p) { return _mm256_loadu_si256((const __m256i *)(const void *)p); }
INLINE ROW16 r_set1(int32_t x) { return _mm256_set1_epi16((int16_t)x); }
#else
typedef __m128i ROW16;
INLINE ROW16 r_load(const E *p) { return _mm_loadu_si128((const __m128i *)(const void *)p); }
INLINE ROW16 r_set1(int32_t x) { return _mm_set1_epi8((int8_t)x); }
#endif

/* Columns of a tap for 16 windows: the first one, and which are inside the image. */
typedef struct {
    int64_t column;
    int64_t begin, end; /* windows inside */
    uint32_t mask;      /* columns inside, of 16 * stride; strides 1 and 2 */
} place;

INLINE uint32_t columns_mask(int64_t column, int64_t width, int64_t count) {
    const int64_t lo = pysim_min(count, pysim_max(0, -column)), hi = pysim_max(lo, pysim_min(count, width - column));
    return (uint32_t)(((uint64_t)1 << hi) - ((uint64_t)1 << lo));
}

INLINE place place_of(const pysim_segment *s, int64_t j, int64_t tap) {
    const int64_t column = s->first + j * s->stride + tap * s->dilation, count = pysim_min(STEP, s->count - j),
                  width = s->row ? s->width : 0;
    const int64_t begin = column >= 0 ? 0 : pysim_min(count, (-column + s->stride - 1) / s->stride);
    const int64_t end = column >= width ? 0 : pysim_min(count, (width - 1 - column) / s->stride + 1);
    return (place){column, begin, pysim_max(begin, end), s->stride <= 2 ? columns_mask(column, width, (count - 1) * s->stride + 1) : 0};
}

INLINE ROW16 row_of(const pysim_segment *s, const E *row, const place *at) {
#if WIDTH == 512
#ifdef HALVES
    if (s->stride == 1) return _mm256_mask_loadu_epi16(r_set1(s->fill), (__mmask16)at->mask, row + at->column);
    if (s->stride == 2)
        return _mm512_cvtepi32_epi16(_mm512_mask_loadu_epi16(_mm512_set1_epi16((int16_t)s->fill), at->mask, row + at->column));
#else
    if (s->stride == 1) return _mm_mask_loadu_epi8(r_set1(s->fill), (__mmask16)at->mask, row + at->column);
    if (s->stride == 2) return _mm256_cvtepi16_epi8(_mm256_mask_loadu_epi8(_mm256_set1_epi8((int8_t)s->fill), at->mask, row + at->column));
#endif
#else
    if (s->stride == 1 && at->begin == 0 && at->end == STEP) return r_load(row + at->column);
#endif
    E line[STEP];
    for (int i = 0; i < STEP; i++) line[i] = (E)s->fill;
    for (int64_t i = at->begin; i < at->end; i++) line[i] = row[at->column + i * s->stride];
    return r_load(line);
}

/* Interleaves GROUP rows and stores the first `count` groups. */
INLINE void store_groups(const ROW16 row[GROUP], const ROW16 flip, uint32_t *to, int64_t count) {
#if WIDTH == 512 && defined HALVES
    (void)flip;
    const __m512i index = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3,
                                           18, 2, 17, 1, 16, 0);
    const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(row[0]), row[1], 1);
    _mm512_mask_storeu_epi32(to, m_first(count), _mm512_permutexvar_epi16(index, both));
#elif WIDTH == 512
    /* dwords of the four rows to one lane of 16 bytes, then a 4x4 transpose of its bytes */
    const __m512i dwords = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i bytes = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    __m512i all = _mm512_castsi128_si512(row[0]);
    all = _mm512_inserti32x4(all, row[1], 1);
    all = _mm512_inserti32x4(all, row[2], 2);
    all = _mm512_inserti32x4(all, row[3], 3);
    all = _mm512_shuffle_epi8(_mm512_permutexvar_epi32(dwords, all), bytes);
    _mm512_mask_storeu_epi32(to, m_first(count), _mm512_xor_si512(all, _mm512_broadcast_i32x4(flip)));
#else
    uint32_t part[STEP], *into = count < STEP ? part : to;
    (void)flip;
    const __m256i low = _mm256_unpacklo_epi16(row[0], row[1]), high = _mm256_unpackhi_epi16(row[0], row[1]);
    _mm256_storeu_si256((__m256i *)(void *)into, _mm256_permute2x128_si256(low, high, 0x20));
    _mm256_storeu_si256((__m256i *)(void *)(into + 8), _mm256_permute2x128_si256(low, high, 0x31));
    if (count < STEP) memcpy(to, part, (size_t)count * sizeof *to);
#endif
}

#define PACK3(dtype, target, what) pack_##dtype##__##target##_##what
#define PACK2(dtype, target, what) PACK3(dtype, target, what)
#define PACK(what) PACK2(DTYPE, TARGET, what)

#if WIDTH == 512
/* Columns of a tap for 16 windows that are known for all channels, strides 1 and 2. */
typedef struct {
    int64_t column;
    uint32_t mask;
} known_place;

/* Where all taps of 16 windows are inside, no tap needs a look. */
INLINE void know_places(const int stride, const pysim_segment *s, int64_t j, int64_t taps, known_place *at) {
    const int64_t count = pysim_min(STEP, s->count - j), first = s->first + j * stride, span = (count - 1) * stride + 1;
    const int inside = first >= 0 && first + (taps - 1) * s->dilation + span <= s->width;
    const uint32_t every = columns_mask(0, span, span);
#pragma GCC unroll 3
    for (int64_t tap = 0; tap < taps; tap++) {
        const int64_t column = first + tap * s->dilation;
        at[tap] = (known_place){column, inside ? every : columns_mask(column, s->width, span)};
    }
}

INLINE ROW16 known_row(const int stride, const E *row, known_place at, ROW16 fill) {
#ifdef HALVES
    if (stride == 1) return _mm256_mask_loadu_epi16(fill, (__mmask16)at.mask, row + at.column);
    return _mm512_cvtepi32_epi16(_mm512_mask_loadu_epi16(_mm512_broadcast_i64x4(fill), at.mask, row + at.column));
#else
    if (stride == 1) return _mm_mask_loadu_epi8(fill, (__mmask16)at.mask, row + at.column);
    return _mm256_cvtepi16_epi8(_mm256_mask_loadu_epi8(_mm256_broadcastsi128_si256(fill), at.mask, row + at.column));
#endif
}

/* Packs GROUP channels, which are `taps` groups, at a time for at most 16 windows. taps: a constant. */
INLINE void pack_channels(const int taps, const int stride, const pysim_segment *s, int64_t j, int64_t channels, uint32_t *dst) {
    const int64_t count = pysim_min(STEP, s->count - j), step = s->row_channel, pitch = s->pitch;
    const ROW16 fill = r_set1(s->fill), flip = r_set1(s->flip);
    known_place at[MASKED_TAPS];
    know_places(stride, s, j, taps, at);
    const E *row = s->row;
    for (int64_t c = 0; c < channels; c += GROUP, row += GROUP * step)
#pragma GCC unroll 3
        for (int i = 0; i < taps; i++, dst += pitch) {
            ROW16 rows[GROUP];
#pragma GCC unroll 4
            for (int g = 0; g < GROUP; g++) {
                const int k = i * GROUP + g;
                rows[g] = known_row(stride, row + k / taps * step, at[k % taps], fill);
            }
            store_groups(rows, flip, dst, count);
        }
}

/* Packs `channels` channels at `row` of any number of taps for at most 16 windows, the last group filled up by zeros. */
INLINE void pack_taps(const int stride, const pysim_segment *s, int64_t j, const E *row, int64_t channels, uint32_t *dst) {
    const int64_t count = pysim_min(STEP, s->count - j), k = channels * s->taps;
    const ROW16 fill = r_set1(s->fill), flip = r_set1(s->flip);
    known_place at[MASKED_TAPS];
    know_places(stride, s, j, s->taps, at);
    const known_place *next = at, *end = at + s->taps;
    for (int64_t p = 0; p < k; p += GROUP, dst += s->pitch) {
        ROW16 rows[GROUP];
#pragma GCC unroll 4
        for (int g = 0; g < GROUP; g++) {
            if (p + g >= k) {
                rows[g] = r_set1(0);
                continue;
            }
            rows[g] = known_row(stride, row, *next++, fill);
            if (next == end) next = at, row += s->row_channel;
        }
        store_groups(rows, flip, dst, count);
    }
}
#endif

/* Whether the 16 windows behind j were packed with masks known for all channels. */
INLINE int is_packed(const pysim_segment *s, int64_t j, uint32_t *dst) {
#if WIDTH == 512
    if (!s->row || s->stride > 2 || s->taps > MASKED_TAPS) return 0;
    const int64_t channels = s->taps == 1 || s->taps == 3 ? s->channels / GROUP * GROUP : 0;
    const E *rest = (const E *)s->row + channels * s->row_channel;
    uint32_t *behind = dst + channels * s->taps / GROUP * s->pitch;
    if (s->taps == 1 && s->stride == 1) pack_channels(1, 1, s, j, channels, dst);
    else if (s->taps == 1) pack_channels(1, 2, s, j, channels, dst);
    else if (s->taps == 3 && s->stride == 1) pack_channels(3, 1, s, j, channels, dst);
    else if (s->taps == 3) pack_channels(3, 2, s, j, channels, dst);
    if (channels < s->channels && s->stride == 1) pack_taps(1, s, j, rest, s->channels - channels, behind);
    else if (channels < s->channels) pack_taps(2, s, j, rest, s->channels - channels, behind);
    return 1;
#else
    (void)s, (void)j, (void)dst;
    return 0;
#endif
}

void PACK(segment)(const pysim_segment *s, void *to);
void PACK(segment)(const pysim_segment *s, void *to) {
    const int64_t k = s->channels * s->taps;
    const ROW16 flip = r_set1(s->flip);
    for (int64_t j = 0; j < s->count; j += STEP) {
        uint32_t *dst = (uint32_t *)to + j;
        if (is_packed(s, j, dst)) continue;
        place known[MASKED_TAPS];
        for (int64_t tap = 0; tap < pysim_min(s->taps, MASKED_TAPS); tap++) known[tap] = place_of(s, j, tap);
        const E *row = s->row ? s->row : (const E *)(const void *)s; /* of padding no element is read */
        const int64_t step = s->row ? s->row_channel : 0, count = pysim_min(STEP, s->count - j);
        int64_t tap = 0;
        for (int64_t p = 0; p < k; p += GROUP, dst += s->pitch) {
            ROW16 rows[GROUP];
#pragma GCC unroll 4
            for (int g = 0; g < GROUP; g++) {
                if (p + g >= k) {
                    rows[g] = r_set1(0);
                    continue;
                }
                const place at = tap < MASKED_TAPS ? known[tap] : place_of(s, j, tap);
                rows[g] = row_of(s, row, &at);
                if (++tap == s->taps) tap = 0, row += step;
            }
            store_groups(rows, flip, dst, count);
        }
    }
}

void PACK(transposed)(const void *from, int64_t ld, int64_t rows, int64_t k, int64_t pitch, void *to, int *not_finite);
void PACK(transposed)(const void *from, int64_t ld, int64_t rows, int64_t k, int64_t pitch, void *to, int *not_finite) {
    const int64_t whole = k / GROUP, rest = k % GROUP;
    uint32_t *dst = to;
    int found = 0;
    for (int64_t i = 0; i < rows; i++, dst++) {
        const E *row = (const E *)from + i * ld;
        uint32_t word = 0;
        for (int64_t p = 0; p < whole; p++) {
            memcpy(&word, row + p * GROUP, sizeof word);
            found |= NOT_FINITE(word);
            dst[p * pitch] = word;
        }
        word = 0;
        for (int64_t g = 0; g < rest; g++) word |= (uint32_t)(UNSIGNED)row[whole * GROUP + g] << (8 * sizeof(E) * (size_t)g);
        if (rest) found |= NOT_FINITE(word), dst[whole * pitch] = word;
    }
    for (int64_t i = rows; i < pitch; i++, dst++)
        for (int64_t p = 0; p < whole + (rest > 0); p++) dst[p * pitch] = 0;
    if (found && not_finite) *not_finite = 1;
}
