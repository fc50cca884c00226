/* SPDX-License-Identifier: Apache-2.0
 * Form `taps` of depthwise.inc on AVX2, which has no instruction for four taps: vpmaddwd multiplies and adds two neighbouring taps of an output,
 * exactly, so a lane of 32 bits holds two words of the input. Nothing is shuffled before the results:
 *
 *   a group's rows, padded, lie in the workspace as words
 *   stride 1   a load where a block of 16 outputs of a row begins has the taps of its even outputs, one a word further those of its odd ones
 *   stride 2   a load has the taps of 8 neighbouring outputs
 *   others, and results of 4 bytes: lanes are loaded one by one
 *
 * Rows of up to 8 outputs take half a block: with a pitch of 8 words, which the padding of neighbouring rows shares, a block is two rows. Padding is
 * stored once, since it lies in the same place in all groups. The next group's rows are stored before this one is multiplied: loads across several
 * stores wait until these have left the store queue. */
enum { BLOCK = 2 * LANES, HALF_ROW = 8, WEIGHTS = 256, KEPT = 15 }; /* WEIGHTS: pairs of taps; kernels with more run on the portable row */
enum { ANY_STRIDE, STRIDE_1, STRIDE_2 };

typedef struct {
    const pysim_direct *of;
    int64_t rows, pitch;        /* of the input, in words */
    int64_t step, chunks, taps; /* words between chunks of a row of taps, their number, and the taps of each, one or two */
    int64_t p, together;        /* rows of outputs, and of them in a block */
} shape;

typedef struct {
    SUMS start, least, most;
    FLOATS scale, low;
    BYTE_ROW bytes;
    const uint32_t *weights; /* [kernel row][chunk] */
    int32_t result, bounded; /* S32: sums */
} group;

static shape shape_of(const pysim_direct *of, int64_t begin, int64_t end, int64_t bytes) {
    const pysim_conv *c = of->conv;
    const int64_t columns = pysim_direct_columns(of), taps = c->dilation_w == 1 ? 2 : 1;
    const int together = bytes == 1 && c->stride_h == 1 && c->stride_w == 1 && of->q <= HALF_ROW && columns > HALF_ROW &&
                         c->pad_left + c->width <= HALF_ROW && columns - HALF_ROW <= c->pad_left;
    return (shape){of,
                   (end - begin - 1) * c->stride_h + c->dilation_h * (c->kernel_h - 1) + 1,
                   together ? HALF_ROW : columns,
                   taps * c->dilation_w,
                   pysim_ceil_div(c->kernel_w, taps),
                   taps,
                   end - begin,
                   together ? 2 : 1};
}

INLINE void store_eight(uint16_t *to, uint64_t bytes, __m128i flip, __m128i inside, __m128i fill) {
    const __m128i words = _mm_xor_si128(_mm_cvtepu8_epi16(_mm_cvtsi64_si128((int64_t)bytes)), flip);
    _mm_storeu_si128((__m128i *)(void *)to, _mm_blendv_epi8(fill, words, inside));
}
INLINE void store_sixteen(uint16_t *to, const uint8_t *from, __m256i flip) {
    const __m256i words = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)from));
    _mm256_storeu_si256((__m256i *)(void *)to, _mm256_xor_si256(words, flip));
}

/* `rows` rows of `count` elements as words, the last ones again with those before them; few with padding behind. `end`: of all images. */
static void store_rows(const uint8_t *from, int64_t width, int64_t rows, int64_t count, const uint8_t *end, int32_t flip, int32_t zero,
                       int64_t pitch, uint16_t *to) {
    const __m256i flips = _mm256_set1_epi16((int16_t)flip);
    const __m128i few = _mm256_castsi256_si128(flips), fill = _mm_set1_epi16((int16_t)zero);
    const __m128i inside = _mm_cmpgt_epi16(_mm_set1_epi16((int16_t)pysim_min(count, 8)), _mm_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7));
    for (; rows > 0; rows--, from += width, to += pitch) {
        uint64_t eight = 0;
        if (count >= 16) {
            for (int64_t j = 0; j + 16 < count; j += 16) store_sixteen(to + j, from + j, flips);
            store_sixteen(to + count - 16, from + count - 16, flips);
        } else if (count >= 8) {
            memcpy(&eight, from, sizeof eight);
            store_eight(to, eight, few, inside, fill);
            memcpy(&eight, from + count - 8, sizeof eight);
            store_eight(to + count - 8, eight, few, inside, fill);
        } else {
            if (end - from >= 8) memcpy(&eight, from, sizeof eight);
            else memcpy(&eight, from, (size_t)count);
            store_eight(to, eight, few, inside, fill);
        }
    }
}

/* The rows of an image that outputs from `begin` on read. */
static void store_image(const shape *s, int64_t begin, const uint8_t *image, const uint8_t *end, uint16_t *to) {
    const pysim_conv *c = s->of->conv;
    const int64_t top = begin * c->stride_h - c->pad_top, first = pysim_max(0, top), last = pysim_min(c->height, top + s->rows);
    const int64_t left = pysim_min(s->pitch, c->pad_left), kept = pysim_min(c->width, s->pitch - left);
    if (kept > 0)
        store_rows(image + first * c->width, c->width, last - first, kept, end, s->of->flip, s->of->zero, s->pitch,
                   to + (first - top) * s->pitch + left);
}

INLINE WORDS loaded(const int stride, const uint16_t *x, int64_t step, int64_t count) {
    if (stride != ANY_STRIDE) return w_load((const uint32_t *)(const void *)x);
    uint32_t lanes[LANES] = {0};
    for (int64_t i = 0; i < pysim_min(count, LANES); i++) memcpy(lanes + i, x + i * step, sizeof *lanes);
    return w_load(lanes);
}

/* Sums of a block: of its even and of its odd outputs with stride 1, else of its halves; `count` outputs are wanted. KH, CHUNKS: constants, of
 * neighbouring taps, or 0. */
INLINE void summed(const int KH, const int CHUNKS, const int stride, const shape *s, const group *g, const SUMS *kept, const uint16_t *x,
                   int64_t row, int64_t count, SUMS *first, SUMS *last) {
    const int64_t rows = KH ? KH : s->of->conv->kernel_h, chunks = CHUNKS ? CHUNKS : s->chunks, step = KH ? 2 : s->step;
    const int64_t along = stride ? stride : s->of->conv->stride_w, second = stride == STRIDE_1 ? 1 : LANES * along;
    const int both = stride == STRIDE_1 || count > LANES;
    SUMS a = g->start, b = g->start;
#pragma GCC unroll 5
    for (int64_t r = 0; r < rows; r++, x += row)
#pragma GCC unroll 3
        for (int64_t t = 0; t < chunks; t++) {
            const SUMS w = KH ? kept[r * chunks + t] : s_set1((int32_t)g->weights[r * chunks + t]);
            a = s_add(a, I(madd_epi16)(loaded(stride, x + t * step, along, count), w));
            if (both) b = s_add(b, I(madd_epi16)(loaded(stride, x + t * step + second, along, count - LANES), w));
        }
    if (g->bounded) a = s_between(g->least, g->most, a), b = s_between(g->least, g->most, b);
    *first = a, *last = b;
}

/* `count` of the bytes; whole vectors where what lies behind them before `end` is stored later. */
INLINE void store_first(uint8_t *to, __m128i bytes, int64_t count, const uint8_t *end) {
    if (end - to >= BLOCK) _mm_storeu_si128((__m128i *)(void *)to, bytes);
    else if (end - to >= LANES && count <= LANES) _mm_storel_epi64((__m128i *)(void *)to, bytes);
    else b_store_some(to, bytes, count);
}

/* As store_first, of a block or of each of its two rows, `q` outputs long. */
INLINE void store_bytes(const int stride, const group *g, SUMS a, SUMS b, int64_t count, int64_t rows, int64_t q, uint8_t *to,
                        const uint8_t *end) {
    const SUMS sums[] = {a, b};
    const FLOATS by[] = {g->scale, g->scale};
    __m128i bytes = b_row(&g->bytes, 2, sums, by);
    if (stride == STRIDE_1) bytes = _mm_unpacklo_epi8(bytes, _mm_unpackhi_epi64(bytes, bytes));
    store_first(to, bytes, count, end);
    if (rows > 1) store_first(to + q, _mm_unpackhi_epi64(bytes, bytes), count, end);
}

/* The same of INT32 and FP32. */
static void store_words(const group *g, SUMS a, SUMS b, int64_t count, int64_t rows, int64_t q, char *to) {
    int32_t all[BLOCK];
    if (g->result == PYSIM_F32) {
        _mm256_storeu_ps((float *)(void *)all, f_scaled(a, g->scale, g->low, g->bytes.high));
        _mm256_storeu_ps((float *)(void *)(all + LANES), f_scaled(b, g->scale, g->low, g->bytes.high));
    } else s_store(all, a), s_store(all + LANES, b);
    for (int64_t i = 0; i < rows; i++) memcpy(to + 4 * i * q, all + i * HALF_ROW, (size_t)count * sizeof *all);
}

INLINE void plane(const int KH, const int CHUNKS, const int stride, const int bytes, const shape *s, const group *of_group,
                  const uint16_t *x, char *out) {
    /* A copy: stores of bytes may change what pointers point to. */
    const group own = {of_group->start, of_group->least,   of_group->most,   of_group->scale,  of_group->low,
                       of_group->bytes, of_group->weights, of_group->result, of_group->bounded};
    const group *g = &own;
    const pysim_conv *c = s->of->conv;
    const int64_t q = s->of->q, p = s->p, together = s->together, next = together * c->stride_h * s->pitch, row = c->dilation_h * s->pitch;
    const int64_t along = stride ? stride : c->stride_w;
    const char *end = out + p * q * bytes;
    SUMS kept[KEPT];
#pragma GCC unroll 15
    for (int i = 0; i < KH * CHUNKS; i++) kept[i] = s_set1((int32_t)own.weights[i]);
    for (int64_t y = 0; y < p; y += together, x += next, out += together * q * bytes)
        for (int64_t i = 0; i < q; i += BLOCK) {
            const int64_t count = pysim_min(BLOCK, q - i), rows = pysim_min(together, p - y);
            SUMS a, b;
            summed(KH, CHUNKS, stride, s, g, kept, x + i * along, row, count, &a, &b);
            if (bytes > 1) store_words(g, a, b, count, rows, q, out + i * bytes);
            else store_bytes(stride, g, a, b, count, rows, q, (uint8_t *)out + i, (const uint8_t *)end);
        }
}

/* Functions of their own, whose constants have registers. */
#define PLANE(name, kh, chunks, stride, bytes)                                                                 \
    static __attribute__((noinline)) void name(const shape *s, const group *g, const uint16_t *x, char *out) { \
        plane(kh, chunks, stride, bytes, s, g, x, out);                                                        \
    }
PLANE(plane_3x3, 3, 2, STRIDE_1, 1)
PLANE(plane_3x3_by_2, 3, 2, STRIDE_2, 1)
PLANE(plane_5x5, 5, 3, STRIDE_1, 1)
PLANE(plane_5x5_by_2, 5, 3, STRIDE_2, 1)
PLANE(plane_any, 0, 0, STRIDE_1, 1)
PLANE(plane_any_by_any, 0, 0, ANY_STRIDE, 1)
PLANE(plane_to_words, 0, 0, ANY_STRIDE, 4)
typedef void (*plane_function)(const shape *, const group *, const uint16_t *, char *);

static plane_function plane_of(const shape *s, int64_t bytes) {
    const pysim_conv *c = s->of->conv;
    const int three = c->kernel_h == 3 && s->chunks == 2 && s->taps == 2, five = c->kernel_h == 5 && s->chunks == 3 && s->taps == 2;
    if (bytes > 1) return plane_to_words;
    if (c->stride_w == 1) return three ? plane_3x3 : five ? plane_5x5 : plane_any;
    return c->stride_w == 2 && three ? plane_3x3_by_2 : c->stride_w == 2 && five ? plane_5x5_by_2 : plane_any_by_any;
}

/* Packs a group's weights as pairs of words, and returns their sum. */
static int32_t pack_weights(const shape *s, const int8_t *from, uint32_t *to) {
    const pysim_conv *c = s->of->conv;
    int32_t sum = 0;
    for (int64_t r = 0; r < c->kernel_h; r++)
        for (int64_t i = 0; i < c->kernel_w; from += pysim_min(s->taps, c->kernel_w - i), i += s->taps, to++) {
            const int two = s->taps > 1 && i + 1 < c->kernel_w;
            *to = (uint16_t)from[0] | (two ? (uint32_t)(uint16_t)from[1] << 16 : 0);
            sum += from[0] + (two ? from[1] : 0);
        }
    return sum;
}

static void depthwise(const pysim_direct *of, const uint8_t *image, const int8_t *filters, const int32_t *bias, char *out, int64_t groups,
                      int64_t begin, int64_t end, uint16_t *const room[2]) {
    const pysim_conv *c = of->conv;
    const pysim_rescale *scale = &of->rescale;
    const int64_t bytes = !scale->scales || scale->result == PYSIM_F32 ? 4 : 1, size = c->height * c->width;
    const shape s = shape_of(of, begin, end, bytes);
    const uint8_t *last = image + groups * size;
    uint32_t weights[WEIGHTS] = {0};
    group g = {.weights = weights,
               .least = s_set1((T)of->bounds.low),
               .most = s_set1((T)of->bounds.high),
               .low = I(set1_ps)(scale->low),
               .bytes = byte_row(scale),
               .result = scale->scales ? scale->result : PYSIM_S32,
               .bounded = of->bounds.low > INT32_MIN || of->bounds.high < INT32_MAX};
    const plane_function run = plane_of(&s, bytes);
    for (int i = 0; i < 2; i++)
        for (int64_t j = 0; j < s.rows * s.pitch + BLOCK; j++) room[i][j] = (uint16_t)of->zero;
    store_image(&s, begin, image, last, room[0]);
    for (int64_t i = 0; i < groups; i++) {
        const int32_t sum = pack_weights(&s, filters + i * c->kernel_h * c->kernel_w, weights);
        if (i + 1 < groups) store_image(&s, begin, image + (i + 1) * size, last, room[(i + 1) % 2]);
        g.start = s_set1((int32_t)((bias ? (uint32_t)bias[i] : 0) - (uint32_t)of->zero * (uint32_t)sum));
        if (scale->scales) g.scale = I(set1_ps)(scale->scales[i * scale->filter_step]);
        run(&s, &g, room[i % 2], out + (i * of->p + begin) * of->q * bytes);
    }
}

void s8_taps_8x1__avx2(const pysim_direct *of, const void *input, const void *filters, const void *bias, void *out, int64_t groups,
                       int64_t begin, int64_t end, void *workspace);
void s8_taps_8x1__avx2(const pysim_direct *of, const void *input, const void *filters, const void *bias, void *out, int64_t groups,
                       int64_t begin, int64_t end, void *workspace) {
    const int64_t words = pysim_direct_rows(of) * pysim_direct_columns(of) + PYSIM_BEHIND_ROWS / 2;
    uint16_t *const room[] = {workspace, (uint16_t *)workspace + words};
    if (of->conv->kernel_h * of->conv->kernel_w <= WEIGHTS) depthwise(of, input, filters, bias, out, groups, begin, end, room);
    else s8_taps_64x1__portable(of, input, filters, bias, out, groups, begin, end, workspace);
}
