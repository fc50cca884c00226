/* SPDX-License-Identifier: Apache-2.0
 * Form `last` of depthwise.inc: depthwise convolutions of bytes with channels last. Lanes hold channels; one instruction multiplies and adds 4 kernel
 * rows of one kernel column, which two interleavings bring beside each other:
 *
 *   4 rows of 64 bytes a b c d   ->  vector i: [a b c d] of channels 16 L + 4 i + 0..3, for each 16 bytes L
 *
 * Weights, first sums and scales lie in that order in the workspace; packing results to bytes restores that of channels. Rows and columns in the
 * padding are read from a row of zero points. */
enum { LAST_BYTES = 4 * LANES, TAPS_OF_WORD = 4, LAST_MOST = 128 }; /* channels of a block; 255 * 128 fits 16 bits */
#if WIDTH == 512
#define FLIPPED _mm512_xor_si512
#else
#define FLIPPED _mm256_xor_si256
#endif

typedef struct {
    int64_t channels, quads; /* rounded up to whole blocks; of 4 rows of a kernel column */
    uint32_t *weights;       /* [block][quad][vector][lane] */
    int32_t *start;          /* [block][vector][lane]: bias less zero point times weights */
    float *scales;
    uint8_t *zeros; /* a byte for each channel */
} last_room;

/* The first channel of a block: vectors of 256 bits, which have no masks of bytes, take the last ones together with those before them. */
INLINE int64_t last_first(int64_t block, int64_t groups) {
    return WIDTH == 256 && groups >= LAST_BYTES ? pysim_min(block, groups - LAST_BYTES) : block;
}

/* The place of a channel of a block. */
INLINE int64_t last_place(int64_t channel) { return channel % 16 / 4 * LANES + channel / 16 * 4 + channel % 4; }

static last_room last_room_of(const pysim_direct *of, int64_t groups, void *workspace) {
    const int64_t channels = pysim_ceil_div(groups, PYSIM_LAST_CHANNELS) * PYSIM_LAST_CHANNELS;
    const int64_t quads = pysim_ceil_div(of->conv->kernel_h, TAPS_OF_WORD) * of->conv->kernel_w;
    uint32_t *words = workspace;
    return (last_room){channels,
                       quads,
                       words,
                       (int32_t *)words + channels * quads,
                       (float *)(void *)(words + channels * (quads + 1)),
                       (uint8_t *)(words + channels * (quads + 2))};
}

static void last_prepare(const pysim_direct *of, const last_room *room, int64_t groups, const int8_t *filters, const int32_t *bias) {
    const pysim_conv *c = of->conv;
    const int64_t taps = c->kernel_h * c->kernel_w;
    memset(room->weights, 0, (size_t)(room->channels * (room->quads + 2)) * sizeof *room->weights);
    memset(room->zeros, of->zero ^ of->flip, (size_t)room->channels);
    for (int64_t block = 0; block < groups; block += LAST_BYTES)
        for (int64_t i = 0, first = last_first(block, groups); i < pysim_min(LAST_BYTES, groups - first); i++) {
            const int64_t g = first + i, place = last_place(i);
            const int8_t *filter = filters + g * taps;
            uint32_t *to = room->weights + block * room->quads + place;
            int32_t sum = 0;
            for (int64_t r = 0; r < c->kernel_h; r++)
                for (int64_t s = 0; s < c->kernel_w; s++) {
                    const int8_t w = filter[r * c->kernel_w + s];
                    to[(r / TAPS_OF_WORD * c->kernel_w + s) * LAST_BYTES] |= (uint32_t)(uint8_t)w << (8 * (r % TAPS_OF_WORD));
                    sum += w;
                }
            room->start[block + place] = (int32_t)((bias ? (uint32_t)bias[g] : 0) - (uint32_t)of->zero * (uint32_t)sum);
            if (of->rescale.scales) room->scales[block + place] = of->rescale.scales[g * of->rescale.filter_step];
        }
}

#if WIDTH == 256
/* Whether no two taps of any lane saturate sums of 16 bits, so that vpmaddubsw is exact. */
static int last_fits(const last_room *room) {
    WORDS beyond = _mm256_setzero_si256();
    for (int64_t i = 0; i < room->channels * room->quads; i += LANES) {
        const WORDS w = w_load(room->weights + i), most = _mm256_set1_epi16(LAST_MOST);
        const WORDS size = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_set1_epi8(1)); /* of both taps, whatever their signs */
        beyond = _mm256_or_si256(beyond, _mm256_cmpgt_epi16(size, most));
    }
    return _mm256_testz_si256(beyond, beyond);
}
#else
static int last_fits(const last_room *room) { return (void)room, 0; } /* one instruction multiplies four taps */
#endif

INLINE WORDS last_load(const uint8_t *p, int64_t count) {
#if WIDTH == 512
    return _mm512_maskz_loadu_epi8(count >= LAST_BYTES ? ~0ull : ~0ull >> (LAST_BYTES - count), p);
#else
    uint8_t some[LAST_BYTES];
    if (count >= LAST_BYTES) return _mm256_loadu_si256((const __m256i *)(const void *)p);
    memcpy(some, p, (size_t)count);
    return _mm256_loadu_si256((const __m256i *)(const void *)some);
#endif
}

INLINE void last_store(uint8_t *p, WORDS bytes, int64_t count) {
#if WIDTH == 512
    _mm512_mask_storeu_epi8(p, count >= LAST_BYTES ? ~0ull : ~0ull >> (LAST_BYTES - count), bytes);
#else
    uint8_t some[LAST_BYTES];
    _mm256_storeu_si256((__m256i *)(void *)(count >= LAST_BYTES ? p : some), bytes);
    if (count < LAST_BYTES) memcpy(p, some, (size_t)count);
#endif
}

/* `rows` of a kernel column: four addresses of bytes, fewer than `some` channels of which may be left. */
INLINE void last_quad(const int fits, const uint8_t *const rows[TAPS_OF_WORD], int64_t at, int64_t some, WORDS flip, const uint32_t *w,
                      SUMS acc[4]) {
    WORDS x[TAPS_OF_WORD], quad[4];
#pragma GCC unroll 4
    for (int i = 0; i < TAPS_OF_WORD; i++) x[i] = FLIPPED(last_load(rows[i] + at, some), flip);
    const WORDS ab = I(unpacklo_epi8)(x[0], x[1]), ab_high = I(unpackhi_epi8)(x[0], x[1]);
    const WORDS cd = I(unpacklo_epi8)(x[2], x[3]), cd_high = I(unpackhi_epi8)(x[2], x[3]);
    quad[0] = I(unpacklo_epi16)(ab, cd), quad[1] = I(unpackhi_epi16)(ab, cd);
    quad[2] = I(unpacklo_epi16)(ab_high, cd_high), quad[3] = I(unpackhi_epi16)(ab_high, cd_high);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
#if WIDTH == 256 && !defined PRODUCTS
        if (fits) {
            const WORDS two = _mm256_maddubs_epi16(quad[i], w_load(w + i * LANES));
            acc[i] = s_add(acc[i], _mm256_madd_epi16(two, _mm256_set1_epi16(1)));
            continue;
        }
#endif
        acc[i] = s_dot(acc[i], unsigned_of(quad[i]), signed_of(w_load(w + i * LANES)));
    }
    (void)fits;
}

/* What all outputs have in common. */
typedef struct {
    SUMS least, most, zero;
    FLOATS low, high;
    int32_t result; /* S32: sums */
} last_finish;

INLINE void last_results(const last_finish *f, SUMS acc[4], const float *scales, int64_t some, int64_t at, char *pixel) {
    WORDS whole[4];
    FLOATS y[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        acc[i] = s_between(f->least, f->most, acc[i]);
        y[i] = f_scaled(acc[i], I(loadu_ps)(scales + i * LANES), f->low, f->high);
        whole[i] = s_add(I(cvtps_epi32)(y[i]), f->zero);
    }
    if (f->result == PYSIM_U8 || f->result == PYSIM_S8) {
        const WORDS a = I(packs_epi32)(whole[0], whole[1]), b = I(packs_epi32)(whole[2], whole[3]);
        last_store((uint8_t *)pixel + at, f->result == PYSIM_U8 ? I(packus_epi16)(a, b) : I(packs_epi16)(a, b), some);
        return;
    }
    uint32_t words[LAST_BYTES];
    for (int i = 0; i < 4; i++) {
        if (f->result == PYSIM_F32) I(storeu_ps)((float *)(void *)words + i * LANES, y[i]);
        else s_store((T *)(void *)words + i * LANES, acc[i]);
    }
    for (int64_t i = 0; i < pysim_min(some, LAST_BYTES); i++) memcpy(pixel + (at + i) * 4, words + last_place(i), 4);
}

INLINE void last_pixel(const int fits, const last_room *room, const last_finish *f, const uint8_t *const *rows, WORDS flip, int64_t groups,
                       char *out) {
    for (int64_t block = 0; block < groups; block += LAST_BYTES) {
        const int64_t at = last_first(block, groups);
        const uint32_t *w = room->weights + block * room->quads;
        SUMS acc[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) acc[i] = s_load(room->start + block + i * LANES);
        for (int64_t quad = 0; quad < room->quads; quad++)
            last_quad(fits, rows + TAPS_OF_WORD * quad, at, groups - at, flip, w + quad * LAST_BYTES, acc);
        last_results(f, acc, room->scales + block, groups - at, at, out);
    }
}

static void last_pixel_fitting(const last_room *room, const last_finish *f, const uint8_t *const *rows, WORDS flip, int64_t groups,
                               char *out) {
    last_pixel(1, room, f, rows, flip, groups, out);
}
static void last_pixel_any(const last_room *room, const last_finish *f, const uint8_t *const *rows, WORDS flip, int64_t groups, char *out) {
    last_pixel(0, room, f, rows, flip, groups, out);
}

/* The addresses of an output's taps, whose first column is `left`: 4 kernel rows of each column. */
static void last_addresses(const pysim_direct *of, const uint8_t *image, const uint8_t *zeros, int64_t groups, int64_t p, int64_t left,
                           const uint8_t **row, int64_t *step) {
    const pysim_conv *c = of->conv;
    for (int64_t r0 = 0; r0 < c->kernel_h; r0 += TAPS_OF_WORD)
        for (int64_t s = 0; s < c->kernel_w; s++)
            for (int64_t i = r0; i < r0 + TAPS_OF_WORD; i++) {
                const int64_t x = left + s * c->dilation_w, y = p * c->stride_h - c->pad_top + i * c->dilation_h;
                const int inside = i < c->kernel_h && y >= 0 && y < c->height && x >= 0 && x < c->width;
                *row++ = inside ? image + (y * c->width + x) * groups : zeros;
                *step++ = inside ? c->stride_w * groups : 0;
            }
}

#define LAST_ROW3(filters, target) s8_last_1x##filters##__##target
#define LAST_ROW2(filters, target) LAST_ROW3(filters, target)
#if WIDTH == 512
#define LAST_ROW LAST_ROW2(64, TARGET)
#else
#define LAST_ROW LAST_ROW2(32, TARGET)
#endif
void LAST_ROW(const pysim_direct *of, const void *input, const void *filters, const void *bias, void *out, int64_t groups, int64_t begin,
              int64_t end, void *workspace);
void LAST_ROW(const pysim_direct *of, const void *input, const void *filters, const void *bias, void *out, int64_t groups, int64_t begin,
              int64_t end, void *workspace) {
    const pysim_conv *c = of->conv;
    const pysim_rescale *r = &of->rescale;
    const last_room room = last_room_of(of, groups, workspace);
    const last_finish finish = {s_set1((T)of->bounds.low), s_set1((T)of->bounds.high), s_set1(r->zero),
                                I(set1_ps)(r->low),        I(set1_ps)(r->high),        r->scales ? r->result : PYSIM_S32};
    const WORDS flip = I(set1_epi8)((char)of->flip);
    const int64_t bytes = !r->scales || r->result == PYSIM_F32 ? 4 : 1;
    const uint8_t *rows[PYSIM_LAST_TAPS];
    int64_t steps[PYSIM_LAST_TAPS]; /* to the next output's */
    const int64_t addresses = pysim_last_taps(c), reach = (c->kernel_w - 1) * c->dilation_w;
    char *to = (char *)out + begin * of->q * groups * bytes;
    last_prepare(of, &room, groups, filters, bias);
    const int fits = last_fits(&room);
    for (int64_t p = begin; p < end; p++)
        for (int64_t q = 0, whole = 0; q < of->q; q++, to += groups * bytes) {
            const int64_t left = q * c->stride_w - c->pad_left;
            const int inner = left >= 0 && left + reach < c->width;
            for (int64_t i = 0; inner && whole && i < addresses; i++) rows[i] += steps[i];
            if (!inner || !whole) last_addresses(of, input, room.zeros, groups, p, left, rows, steps);
            whole = inner;
            if (fits) last_pixel_fitting(&room, &finish, rows, flip, groups, to);
            else last_pixel_any(&room, &finish, rows, flip, groups, to);
        }
}
