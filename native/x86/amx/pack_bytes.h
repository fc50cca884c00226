/* SPDX-License-Identifier: Apache-2.0
 * Packing of bytes for tiles (contract: native/kernel.h): 16 windows of a row at a time, of which masks say once for all channels what lies inside,
 * and a permutation of 64 bytes that puts 4 neighbouring k beside each other. */
enum { CHUNK = 16, KNOWN_TAPS = 16, FOUR = 4 };

/* A tap's windows: the first is at `at` of each row; bit stride i of `inside` stands for window i. */
typedef struct {
    int64_t at;
    __mmask32 inside;
} known_tap;

/* The windows of all taps; returns whether loads of whole vectors read nothing else. */
static int find_taps(const pysim_segment *s, int64_t j, known_tap *to) {
    const int64_t count = pysim_min(CHUNK, s->count - j), span = s->stride == 1 ? CHUNK : 2 * CHUNK;
    int whole = count == CHUNK;
    for (int64_t tap = 0; tap < s->taps; tap++) {
        const int64_t at = s->first + j * s->stride + tap * s->dilation;
        const int64_t first = at < 0 ? -at : 0, end = pysim_min(s->width - at, (count - 1) * s->stride + 1);
        const uint64_t below = end <= 0 ? 0 : (1ull << end) - 1, outside = first >= 32 ? ~0ull : (1ull << first) - 1;
        to[tap] = (known_tap){at, (__mmask32)((below & ~outside) & (s->stride == 1 ? 0xFFFF : 0x55555555))};
        whole = whole && at >= 0 && at + span <= s->width;
    }
    return whole;
}

INLINE __m128i windows_of(const int stride, const int whole, const E *row, const known_tap *tap, __m256i fill) {
    const E *at = row + tap->at;
    if (stride == 1 && whole) return _mm_loadu_si128((const __m128i *)(const void *)at);
    if (stride == 1) return _mm_mask_loadu_epi8(_mm256_castsi256_si128(fill), (__mmask16)tap->inside, at);
    return _mm256_cvtepi16_epi8(whole ? _mm256_loadu_si256((const __m256i *)(const void *)at)
                                      : _mm256_mask_loadu_epi8(fill, tap->inside, at));
}

INLINE void store_four(const __m128i x[FOUR], __mmask16 some, uint32_t *to) {
    const __m512i order = _mm512_set_epi32(0x3F2F1F0F, 0x3E2E1E0E, 0x3D2D1D0D, 0x3C2C1C0C, 0x3B2B1B0B, 0x3A2A1A0A, 0x39291909, 0x38281808,
                                           0x37271707, 0x36261606, 0x35251505, 0x34241404, 0x33231303, 0x32221202, 0x31211101, 0x30201000);
    const __m512i two = _mm512_inserti32x4(_mm512_castsi128_si512(x[0]), x[1], 1);
    const __m512i four = _mm512_inserti32x4(_mm512_inserti32x4(two, x[2], 2), x[3], 3);
    _mm512_mask_storeu_epi32(to, some, _mm512_permutexvar_epi8(order, four));
}

/* TAPS: a constant, or 0 of any number. */
INLINE void pack_chunk(const int TAPS, const int stride, const int whole, const pysim_segment *s, const known_tap *known, int64_t j,
                       uint32_t *to) {
    const int64_t taps = TAPS ? TAPS : s->taps, k = s->channels * taps;
    const __m128i flip = _mm_set1_epi8((char)s->flip);
    const __m256i fill = _mm256_set1_epi8((char)s->fill);
    const __mmask16 some = whole ? 0xFFFF : lanes_of(s->count - j);
    const E *row = s->row;
    int64_t p = 0, tap = 0;
    for (; TAPS && p + TAPS * FOUR <= k; p += TAPS * FOUR, row += FOUR * s->row_channel)
#pragma GCC unroll 3
        for (int i = 0; i < TAPS; i++, to += WIDE) {
            __m128i x[FOUR];
#pragma GCC unroll 4
            for (int g = 0; g < FOUR; g++) {
                const int at = i * FOUR + g, channel = TAPS ? at / TAPS : 0;
                x[g] = _mm_xor_si128(windows_of(stride, whole, row + channel * s->row_channel, &known[at - channel * TAPS], fill), flip);
            }
            store_four(x, some, to);
        }
    for (; p < k; p += FOUR, to += WIDE) {
        __m128i x[FOUR];
#pragma GCC unroll 4
        for (int g = 0; g < FOUR; g++) {
            x[g] = _mm_setzero_si128();
            if (p + g >= k) continue;
            x[g] = _mm_xor_si128(windows_of(stride, whole, row, &known[tap], fill), flip);
            if (++tap == taps) tap = 0, row += s->row_channel;
        }
        store_four(x, some, to);
    }
}

#define PACK_CHUNK(taps, stride)                                 \
    if (whole) pack_chunk(taps, stride, 1, s, known, j, to + j); \
    else pack_chunk(taps, stride, 0, s, known, j, to + j)

/* Returns 0 of segments that it does not pack. */
static int pack_bytes(const pysim_segment *s, uint32_t *to) {
    known_tap known[KNOWN_TAPS];
    if (!s->row || s->pitch != WIDE || s->stride > 2 || s->taps > KNOWN_TAPS) return 0;
    for (int64_t j = 0; j < s->count; j += CHUNK) {
        const int whole = find_taps(s, j, known);
        if (s->stride == 1 && s->taps == 1) PACK_CHUNK(1, 1);
        else if (s->stride == 1 && s->taps == 3) PACK_CHUNK(3, 1);
        else if (s->stride == 1) PACK_CHUNK(0, 1);
        else if (s->taps == 1) PACK_CHUNK(1, 2);
        else if (s->taps == 3) PACK_CHUNK(3, 2);
        else PACK_CHUNK(0, 2);
    }
    return 1;
}
