/* SPDX-License-Identifier: Apache-2.0
 * Form `last` of depthwise.inc: depthwise convolutions of bytes with channels last. Lanes hold channels; one instruction multiplies and adds 4 kernel
 * rows of one kernel column, a quad, which two interleavings bring beside each other:
 *
 *   4 rows of 64 bytes a b c d   ->  vector i: [a b c d] of channels 16 L + 4 i + 0..3, for each 16 bytes L
 *
 * Of each block of channels, the columns that some outputs of a row read are interleaved into the workspace, and are then operands of up to kernel_w
 * outputs. Weights lie in the order of lanes beforehand (pysim_last_weights); packing results to bytes restores that of channels. Rows and columns in
 * the padding are zero points. */
enum { LAST_BYTES = 4 * LANES, TAPS_OF_WORD = 4, LAST_MOST = 128 }; /* channels of a block; 255 * 128 fits 16 bits */
enum { LAST_TOGETHER = WIDTH == 512 ? 4 : 2 };                      /* outputs whose sums registers hold */
#if WIDTH == 512
#define FLIPPED _mm512_xor_si512
#else
#define FLIPPED _mm256_xor_si256
#endif

/* What all outputs have in common. */
typedef struct {
    SUMS least, most; /* of sums, if `bounded` */
    FLOATS low, high;
    WORDS zero, lowest, highest, flip; /* of bytes as unsigned ones: the zero point in 16 bits, bounds; 0x80 for signed results */
    int bounded, near;                 /* near: no sum times its scale exceeds 32 bits */
    int32_t result;                    /* S32: sums */
    const pysim_finish *activation;    /* NULL, or what becomes of numbers before they are multiplied and rounded */
} last_finish;

typedef struct {
    const pysim_direct *of;
    const uint8_t *image;
    const uint32_t *weights;       /* [block][row of those that share columns][column][quad][vector][lane], then the sum of each lane's */
    int64_t groups, quads, shared; /* quads: of a column; shared: rows of outputs that read the same columns */
    int64_t block_words;
    int32_t *start; /* [block][vector][lane]: bias less zero point times weights */
    float *scales, *factors, *shifts;
    uint8_t *zeros;    /* a byte for each channel of a block */
    uint32_t *columns; /* [column][quad][vector][lane] */
    WORDS flip;
    last_finish finish;
} last_run;

/* The first channel of a block: the last block takes its channels together with those before them. */
INLINE int64_t last_first(int64_t block, int64_t groups) { return groups >= LAST_BYTES ? pysim_min(block, groups - LAST_BYTES) : block; }

/* Four bytes a channel in the order of lanes, from that of channels. */
INLINE void last_ordered(const void *from, int64_t count, void *to) {
    const char *in = from;
    char *out = to;
    for (int64_t i = 0; i < LAST_BYTES / 4; i++) {
        const int64_t some = pysim_max(0, pysim_min(4, count - 4 * i)), at = i % 4 * LANES + i / 4 * 4;
        if (some == 4) memcpy(out + 4 * at, in + 16 * i, 16);
        else memcpy(out + 4 * at, in + 16 * i, (size_t)(4 * some));
    }
}

/* Scales of a block's lanes, of one for all channels or one each. */
static void last_scales(const float *scales, int64_t each, int64_t at, int64_t left, float *to) {
    for (int i = 0; i < 4; i++) I(storeu_ps)(to + i * LANES, I(set1_ps)(scales[0]));
    if (each) last_ordered(scales + at, left, to);
}

/* First sums and scales of a block's lanes. */
static void last_begin(const last_run *r, int64_t block, const int32_t *bias) {
    const pysim_rescale *by = &r->of->rescale;
    const int64_t at = last_first(block, r->groups), left = r->groups - at;
    const int32_t *sums = (const int32_t *)r->weights + (block / LAST_BYTES + 1) * r->block_words - LAST_BYTES;
    memset(r->start + block, 0, LAST_BYTES * sizeof *r->start);
    if (bias) last_ordered(bias + at, left, r->start + block);
    for (int i = 0; i < 4; i++) {
        int32_t *start = r->start + block + i * LANES;
        s_store(start, s_fma(s_load(sums + i * LANES), s_set1(-r->of->zero), s_load(start)));
    }
    if (by->scales) last_scales(by->scales, by->filter_step, at, left, r->scales + block);
    if (!r->of->finish) return;
    const pysim_rounding *to = &r->of->rounding;
    last_scales(to->factors, to->factor_step, at, left, r->factors + block);
    memset(r->shifts + block, 0, LAST_BYTES * sizeof *r->shifts);
    if (to->shifts) last_ordered(to->shifts + at, left, r->shifts + block);
}

#if WIDTH == 256 && !defined PRODUCTS
/* Whether no two taps of any lane saturate sums of 16 bits, so that vpmaddubsw is exact. */
static int last_fits(const last_run *r) {
    WORDS beyond = _mm256_setzero_si256();
    for (int64_t i = 0; i < pysim_ceil_div(r->groups, LAST_BYTES) * r->block_words; i += LANES) {
        if (i % r->block_words >= r->block_words - LAST_BYTES) continue; /* sums */
        const WORDS w = w_load(r->weights + i), most = _mm256_set1_epi16(LAST_MOST);
        const WORDS size = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_set1_epi8(1)); /* of both taps, whatever their signs */
        beyond = _mm256_or_si256(beyond, _mm256_cmpgt_epi16(size, most));
    }
    return _mm256_testz_si256(beyond, beyond);
}
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

/* Interleaves the channels from `at` on of columns [x, x + count) of the image, rows from y on. */
INLINE void last_columns(const int whole, const last_run *r, int64_t at, int64_t y, int64_t x, int64_t count) {
    const pysim_conv *c = r->of->conv;
    const int64_t some = whole ? LAST_BYTES : r->groups - at, before = pysim_max(0, pysim_min(count, -x)),
                  end = pysim_max(before, pysim_min(count, c->width - x));
    const int64_t pitch = r->quads * LAST_BYTES, rows_read = c->kernel_h + (r->shared - 1) * c->stride_h;
    for (int64_t quad = 0; quad < r->quads; quad++) {
        const uint8_t *rows[TAPS_OF_WORD];
        int64_t steps[TAPS_OF_WORD];
        for (int64_t i = 0; i < TAPS_OF_WORD; i++) {
            const int64_t row = TAPS_OF_WORD * quad + i, at_row = y + row * c->dilation_h;
            const int inside = row < rows_read && at_row >= 0 && at_row < c->height;
            rows[i] = inside ? r->image + (at_row * c->width + x + before) * r->groups + at : r->zeros;
            steps[i] = inside ? r->groups : 0;
        }
        uint32_t *to = r->columns + quad * LAST_BYTES;
        const WORDS outside = I(set1_epi8)((char)r->of->zero);
        for (int64_t i = 0; i < count; i++, to += pitch) {
            WORDS v[TAPS_OF_WORD];
            if (i < before || i >= end) {
                for (int j = 0; j < 4; j++) w_store(to + j * LANES, outside);
                continue;
            }
#pragma GCC unroll 4
            for (int j = 0; j < TAPS_OF_WORD; j++) v[j] = FLIPPED(last_load(rows[j], some), r->flip), rows[j] += steps[j];
            const WORDS ab = I(unpacklo_epi8)(v[0], v[1]), ab_high = I(unpackhi_epi8)(v[0], v[1]);
            const WORDS cd = I(unpacklo_epi8)(v[2], v[3]), cd_high = I(unpackhi_epi8)(v[2], v[3]);
            w_store(to, I(unpacklo_epi16)(ab, cd)), w_store(to + LANES, I(unpackhi_epi16)(ab, cd));
            w_store(to + 2 * LANES, I(unpacklo_epi16)(ab_high, cd_high)), w_store(to + 3 * LANES, I(unpackhi_epi16)(ab_high, cd_high));
        }
    }
}

INLINE SUMS last_dot(const int fits, SUMS sum, WORDS x, WORDS w) {
#if WIDTH == 256 && !defined PRODUCTS
    if (fits) return s_add(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(x, w), _mm256_set1_epi16(1)));
#endif
    (void)fits;
    return s_dot(sum, unsigned_of(x), signed_of(w));
}

/* Bounding bytes in place of four vectors of numbers suffices if these fit 32 bits. */
INLINE WORDS last_rounded(const int near, const last_finish *f, SUMS sum, const float *scales) {
    const FLOATS y = I(mul_ps)(I(cvtepi32_ps)(sum), I(loadu_ps)(scales));
    return I(cvtps_epi32)(near ? y : I(min_ps)(y, f->high));
}

INLINE void last_packed(const int whole, const last_finish *f, const WORDS y[4], int64_t some, uint8_t *pixel) {
    const WORDS a = I(packs_epi32)(y[0], y[1]), b = I(packs_epi32)(y[2], y[3]);
    const WORDS bytes = I(packus_epi16)(I(adds_epi16)(a, f->zero), I(adds_epi16)(b, f->zero));
    last_store(pixel, FLIPPED(I(min_epu8)(I(max_epu8)(bytes, f->lowest), f->highest), f->flip), whole ? LAST_BYTES : some);
}

INLINE void last_bytes(const int whole, const int near, const last_finish *f, const SUMS acc[4], const float *scales, int64_t some,
                       uint8_t *pixel) {
    WORDS y[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) y[i] = last_rounded(near, f, acc[i], scales + i * LANES);
    last_packed(whole, f, y, some, pixel);
}

/* Numbers of outputs, in the order of lanes, become bytes. Sums that wait in memory are not contracted with the products that made the numbers. */
static __attribute__((noinline)) void last_activated(const last_finish *f, float (*numbers)[LAST_BYTES], const float *shifts,
                                                     const float *factors, int64_t outputs, int64_t some, int64_t pitch, uint8_t *pixel) {
    for (int64_t t = 0; t < outputs; t++)
        for (int i = 0; i < LAST_BYTES; i++) numbers[t][i] += shifts[i];
    f->activation->loops->finish(f->activation, numbers, LAST_BYTES, outputs, LAST_BYTES);
    for (int64_t t = 0; t < outputs; t++, pixel += pitch) {
        WORDS y[4];
        for (int i = 0; i < 4; i++)
            y[i] = I(cvtps_epi32)(I(min_ps)(I(mul_ps)(I(loadu_ps)(numbers[t] + i * LANES), I(loadu_ps)(factors + i * LANES)), f->high));
        last_packed(some >= LAST_BYTES, f, y, some, pixel);
    }
}

INLINE void last_results(const last_finish *f, const SUMS acc[4], const float *scales, int64_t some, char *pixel) {
    uint32_t words[LAST_BYTES];
    for (int i = 0; i < 4; i++) {
        if (f->result == PYSIM_S32) s_store((T *)(void *)words + i * LANES, acc[i]);
        else I(storeu_ps)((float *)(void *)words + i * LANES, f_scaled(acc[i], I(loadu_ps)(scales + i * LANES), f->low, f->high));
    }
    for (int64_t i = 0; i < pysim_min(some, LAST_BYTES); i++) memcpy(pixel + i * 4, words + pysim_last_place(i, LAST_BYTES), 4);
}

/* What is constant of a tile: outputs together; columns, quads of each and stride, or 0; products of 16 bits are exact; all lanes are channels;
 * results are bytes. */
typedef struct {
    int together, width, quads, stride, fits, whole, bytes;
} last_kind;

/* Outputs of a row whose first taps begin at `x`, a block of channels from `at` on, by weights `w`. */
INLINE void last_tile(const last_kind kind, const last_run *r, const last_finish *f, int64_t block, int64_t at, const uint32_t *x,
                      const uint32_t *w, char *out) {
    const pysim_conv *c = r->of->conv;
    const int64_t width = kind.width ? kind.width : c->kernel_w, quads = kind.width ? kind.quads : r->quads;
    const int64_t each = quads * LAST_BYTES, next = (kind.width ? kind.stride : c->stride_w) * each;
    const int64_t column = (kind.width ? 1 : c->dilation_w) * each;
    SUMS acc[LAST_TOGETHER][4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
#pragma GCC unroll 4
        for (int t = 0; t < kind.together; t++) acc[t][i] = s_load(r->start + block + i * LANES);
#pragma GCC unroll 5
        for (int64_t s = 0; s < width; s++)
#pragma GCC unroll 2
            for (int64_t quad = 0; quad < quads; quad++) {
                const int64_t place = quad * LAST_BYTES + i * LANES;
                const WORDS weights = w_load(w + s * each + place);
#pragma GCC unroll 4
                for (int t = 0; t < kind.together; t++)
                    acc[t][i] = last_dot(kind.fits, acc[t][i], w_load(x + t * next + s * column + place), weights);
            }
        if (f->bounded)
            for (int t = 0; t < kind.together; t++) acc[t][i] = s_between(f->least, f->most, acc[t][i]);
    }
    if (kind.bytes && f->activation) {
        float numbers[LAST_TOGETHER][LAST_BYTES];
#pragma GCC unroll 4
        for (int t = 0; t < kind.together; t++)
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++)
                I(storeu_ps)(numbers[t] + i * LANES, I(mul_ps)(I(cvtepi32_ps)(acc[t][i]), I(loadu_ps)(r->scales + block + i * LANES)));
        last_activated(f, numbers, r->shifts + block, r->factors + block, kind.together, r->groups - at, r->groups, (uint8_t *)out);
        return;
    }
#pragma GCC unroll 4
    for (int t = 0; t < kind.together; t++) {
        char *pixel = out + t * r->groups * (kind.bytes ? 1 : 4);
        if (!kind.bytes) last_results(f, acc[t], r->scales + block, r->groups - at, pixel);
        else if (f->near) last_bytes(kind.whole, 1, f, acc[t], r->scales + block, r->groups - at, (uint8_t *)pixel);
        else last_bytes(kind.whole, 0, f, acc[t], r->scales + block, r->groups - at, (uint8_t *)pixel);
    }
}

/* `count` outputs of a row. */
INLINE void last_outputs(last_kind kind, const last_run *r, const last_finish *f, int64_t block, int64_t at, const uint32_t *w,
                         int64_t count, char *out) {
    const int64_t next = r->of->conv->stride_w * r->quads * LAST_BYTES, pixel = r->groups * (kind.bytes ? 1 : 4);
    int64_t q = 0;
    for (kind.together = LAST_TOGETHER; q + LAST_TOGETHER <= count; q += LAST_TOGETHER)
        last_tile(kind, r, f, block, at, r->columns + q * next, w, out + q * pixel);
    for (kind.together = 2; LAST_TOGETHER > 2 && q + 2 <= count; q += 2)
        last_tile(kind, r, f, block, at, r->columns + q * next, w, out + q * pixel);
    for (kind.together = 1; q < count; q++) last_tile(kind, r, f, block, at, r->columns + q * next, w, out + q * pixel);
}

/* Rows [begin, end) of outputs. */
INLINE void last_rows(const last_kind kind, const last_run *run, int64_t begin, int64_t end, char *out) {
    const last_run own = *run, *r = &own; /* stores of bytes may change what pointers point to */
    const pysim_conv *c = r->of->conv;
    const int64_t row = r->of->q * r->groups * (kind.bytes ? 1 : 4), set = c->kernel_w * r->quads * LAST_BYTES;
    for (int64_t p = begin; p < end; p += r->shared)
        for (int64_t q = 0; q < r->of->q; q += PYSIM_LAST_OUTPUTS)
            for (int64_t block = 0; block < r->groups; block += LAST_BYTES) {
                const int64_t at = last_first(block, r->groups), count = pysim_min(PYSIM_LAST_OUTPUTS, r->of->q - q);
                const int64_t y = p * c->stride_h - c->pad_top, x = q * c->stride_w - c->pad_left;
                char *to = out + p * row + (q * r->groups + at) * (kind.bytes ? 1 : 4);
                last_columns(kind.whole, r, at, y, x, pysim_last_columns(c, count));
                for (int64_t i = 0; i < pysim_min(r->shared, end - p); i++)
                    last_outputs(kind, r, &own.finish, block, at, r->weights + block / LAST_BYTES * r->block_words + i * set, count,
                                 to + i * row);
            }
}

#define LAST_ROWS(name, ...)                                                     \
    static void name(const last_run *r, int64_t begin, int64_t end, char *out) { \
        last_rows((last_kind){.together = 0, __VA_ARGS__}, r, begin, end, out);  \
    }
LAST_ROWS(last_any, .bytes = 1)
LAST_ROWS(last_numbers, .bytes = 0)
#if WIDTH == 256 && !defined PRODUCTS
LAST_ROWS(last_fits_any, .bytes = 1, .fits = 1)
#define LAST_SIZE(name, ...) LAST_ROWS(name, __VA_ARGS__) LAST_ROWS(name##_fits, .fits = 1, __VA_ARGS__)
#else
#define LAST_SIZE(name, ...) LAST_ROWS(name, __VA_ARGS__)
#endif
LAST_SIZE(last_3x3_1, .width = 3, .quads = 1, .stride = 1, .whole = 1, .bytes = 1)
LAST_SIZE(last_3x3_2, .width = 3, .quads = 1, .stride = 2, .whole = 1, .bytes = 1)
LAST_SIZE(last_5x5_1, .width = 5, .quads = 2, .stride = 1, .whole = 1, .bytes = 1)
LAST_SIZE(last_5x5_2, .width = 5, .quads = 2, .stride = 2, .whole = 1, .bytes = 1)
LAST_SIZE(last_some_3x3_1, .width = 3, .quads = 1, .stride = 1, .whole = 0, .bytes = 1)
LAST_SIZE(last_some_3x3_2, .width = 3, .quads = 1, .stride = 2, .whole = 0, .bytes = 1)

/* Kernels with constant loops, and for any size. */
static void last_run_rows(const last_run *r, int64_t begin, int64_t end, char *out) {
    const pysim_conv *c = r->of->conv;
    typedef void (*rows)(const last_run *, int64_t, int64_t, char *);
    const int whole = r->groups >= LAST_BYTES, size = c->kernel_w == 3 && r->quads == 1 ? (whole ? 0 : 4) : 2;
    const int known = (size != 2 || (whole && c->kernel_w == 5 && r->quads == 2)) && c->stride_w <= 2 && c->dilation_w == 1;
    static const rows of_size[] = {last_3x3_1, last_3x3_2, last_5x5_1, last_5x5_2, last_some_3x3_1, last_some_3x3_2};
    rows found = known ? of_size[size + c->stride_w - 1] : last_any;
#if WIDTH == 256 && !defined PRODUCTS
    static const rows fitting[] = {last_3x3_1_fits, last_3x3_2_fits,      last_5x5_1_fits,
                                   last_5x5_2_fits, last_some_3x3_1_fits, last_some_3x3_2_fits};
    if (last_fits(r)) found = known ? fitting[size + c->stride_w - 1] : last_fits_any;
#endif
    if (r->finish.result != PYSIM_U8 && r->finish.result != PYSIM_S8) found = last_numbers;
    found(r, begin, end, out);
}

/* The least byte without its zero point. */
static int32_t least_of(const pysim_rounding *r) { return (r->result == PYSIM_S8 ? INT8_MIN : 0) - r->zero; }

/* Whether no sum times its scale exceeds 32 bits. */
static int last_near(const pysim_rescale *by, int64_t groups) {
    int near = 1;
    for (int64_t i = 0; by->scales && i < (by->filter_step ? groups : 1); i++) near &= by->scales[i] < 1;
    return near;
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
    const pysim_rescale *given = &of->rescale;
    const float least = (float)least_of(&of->rounding);
    const pysim_rescale bytes = {.scales = given->scales,
                                 .filter_step = given->filter_step,
                                 .result = of->rounding.result,
                                 .zero = of->rounding.zero,
                                 .low = least,
                                 .high = least + UINT8_MAX};
    const pysim_rescale *by = of->finish ? &bytes : given;
    const int64_t channels = pysim_ceil_div(groups, PYSIM_LAST_CHANNELS) * PYSIM_LAST_CHANNELS;
    const int64_t quads = pysim_ceil_div(of->conv->kernel_h, TAPS_OF_WORD), shared = pysim_last_shared(of->conv);
    const int32_t flip = by->result == PYSIM_S8 ? 0x80 : 0, zero = by->zero + flip;
    int32_t *words = workspace;
    const last_run run = {.of = of,
                          .image = input,
                          .weights = filters,
                          .groups = groups,
                          .quads = quads,
                          .shared = shared,
                          .block_words = (shared * of->conv->kernel_w * quads + 1) * LAST_BYTES,
                          .start = words,
                          .scales = (float *)(void *)(words + channels),
                          .factors = (float *)(void *)(words + 2 * channels),
                          .shifts = (float *)(void *)(words + 3 * channels),
                          .zeros = (uint8_t *)(words + 4 * channels),
                          .columns = (uint32_t *)words + 4 * channels + PYSIM_LAST_CHANNELS,
                          .flip = I(set1_epi8)((char)of->flip),
                          .finish = {.least = s_set1((T)of->bounds.low),
                                     .most = s_set1((T)of->bounds.high),
                                     .low = I(set1_ps)(by->low),
                                     .high = I(set1_ps)(by->high),
                                     .zero = I(set1_epi16)((int16_t)zero),
                                     .lowest = I(set1_epi8)((char)((int32_t)by->low + zero)),
                                     .highest = I(set1_epi8)((char)((int32_t)by->high + zero)),
                                     .flip = I(set1_epi8)((char)flip),
                                     .bounded = !UNBOUNDED(of->bounds.low, of->bounds.high),
                                     .near = last_near(by, groups),
                                     .result = by->scales ? by->result : PYSIM_S32,
                                     .activation = of->finish}};
    memset(run.zeros, of->zero ^ of->flip, LAST_BYTES);
    for (int64_t block = 0; block < groups; block += LAST_BYTES) last_begin(&run, block, bias);
    last_run_rows(&run, begin, end, out);
}
