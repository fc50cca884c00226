/* SPDX-License-Identifier: Apache-2.0
 * Form `taps` of depthwise.inc: depthwise convolutions of bytes. A lane holds 4 neighbouring taps of a row for one output, so one instruction
 * multiplies and adds 4 taps of LANES outputs:
 *
 *   a group's rows, padded, lie in the workspace as unsigned bytes; vectors are loaded where their first output's taps begin, and two shuffles
 *   (of dwords, then of the bytes within 16) bring each output's taps into its lane
 *
 * Outputs are taken in row-major order and vectors may go over the end of a row, so that rows shorter than a vector fill it. Which bytes a vector
 * takes depends on the rows' pitch alone: a table has one entry for each vector of a few rows of outputs, and all groups use it. The next group
 * is padded before this one is multiplied: loads across several stores wait until these have left the store queue.
 */
enum { READ = 4 * LANES, MOST = 64, TAPS = 4, FILL_BYTES = 64, KEPT = 10 };

typedef struct {
    int64_t first, count, at; /* outputs of the block; where loads begin in its rows */
    uint32_t words[LANES];
    uint8_t bytes[READ];
} gather;

/* `rows` of outputs in a block; of one row, gather 0 is used all along it, and blocks are not divided. */
typedef struct {
    int64_t rows, gathers;
    int far; /* outputs' taps lie within: 0: half a vector, 1: a vector, 2: two */
    gather of[MOST];
} gathers;

typedef struct {
    int64_t pitch, q, stride_w, row_stride, taps, dilation;
} geometry;

/* Takes the taps of an output, `offset` bytes behind the load, into lane `lane`. 0: they need more dwords than 16 bytes have, or lie too far. */
static int take(gather *v, const geometry *of, int64_t offset, int64_t lane, int *used, int most_far) {
    uint32_t *words = v->words + lane / TAPS * TAPS;
    int count = *used;
    uint8_t bytes[TAPS] = {0};
    if (offset < 0 || offset + (of->taps - 1) * of->dilation >= READ * (most_far + 1)) return 0;
    for (int64_t s = 0; s < of->taps; s++) {
        const uint32_t word = (uint32_t)((offset + s * of->dilation) / 4);
        int i = 0;
        while (i < count && words[i] != word) i++;
        if (i == TAPS) return 0;
        if (i == count) words[count++] = word;
        bytes[s] = (uint8_t)(4 * i + (offset + s * of->dilation) % 4);
    }
    memcpy(v->bytes + lane * TAPS, bytes, TAPS);
    *used = count;
    return 1;
}

/* Fills in the gather of outputs from `first` on, at most `end`; as many as fit. */
static void fill_gather(gather *v, const geometry *of, int64_t first, int64_t end, int *far) {
    int used = 0;
    memset(v, 0, sizeof *v);
    v->first = first, v->at = first / of->q * of->row_stride + first % of->q * of->stride_w;
    for (; v->count < LANES && first + v->count < end; v->count++) {
        const int64_t i = first + v->count, offset = i / of->q * of->row_stride + i % of->q * of->stride_w - v->at;
        if (v->count % TAPS == 0) used = 0;
        if (!take(v, of, offset, v->count, &used, WIDTH == 512)) break;
        const int64_t last = offset + (of->taps - 1) * of->dilation;
        *far = (int)pysim_max(*far, last >= READ ? 2 : last >= READ / 2);
    }
}

static void make_gathers(gathers *t, const geometry *of, int64_t p) {
    int64_t common = LANES, rest = of->q % LANES;
    while (rest) {
        const int64_t next = common % rest;
        common = rest, rest = next;
    }
    t->rows = pysim_min(p, LANES / common), t->gathers = 0, t->far = 0;
    for (int64_t i = 0; t->rows > 1 && i < t->rows * of->q; i += t->of[t->gathers++].count) {
        if (t->gathers == MOST) t->rows = 1;
        else fill_gather(&t->of[t->gathers], of, i, t->rows * of->q, &t->far);
        if (t->rows == 1) break;
    }
    if (t->rows > 1) return;
    t->gathers = 1, t->far = 0;
    fill_gather(t->of, of, 0, of->q, &t->far);
}

#if WIDTH == 512
INLINE __mmask64 bytes_between(int64_t begin, int64_t end) {
    const int64_t lo = pysim_max(0, pysim_min(FILL_BYTES, begin)), hi = pysim_max(lo, pysim_min(FILL_BYTES, end));
    return hi > lo ? ~0ull >> (FILL_BYTES - (hi - lo)) << lo : 0;
}

/* A padded row, or 64 bytes of one; elements outside `mask` are `filled`. */
INLINE void pad_row(int64_t pitch, const uint8_t *from, __mmask64 mask, __m512i filled, __m512i flipped, uint8_t *to) {
    if (pitch <= 16)
        _mm_storeu_si128((__m128i *)(void *)to, _mm_xor_si128(_mm_mask_loadu_epi8(_mm512_castsi512_si128(filled), (__mmask16)mask, from),
                                                              _mm512_castsi512_si128(flipped)));
    else if (pitch <= 32)
        _mm256_storeu_si256((__m256i *)(void *)to,
                            _mm256_xor_si256(_mm256_mask_loadu_epi8(_mm512_castsi512_si256(filled), (__mmask32)mask, from),
                                             _mm512_castsi512_si256(flipped)));
    else _mm512_storeu_si512(to, _mm512_xor_si512(_mm512_mask_loadu_epi8(filled, mask, from), flipped));
}
#else
/* In whole vectors, also beyond the end. */
INLINE void fill_bytes(uint8_t *to, uint8_t byte, int64_t count) {
    for (int64_t j = 0; j < count; j += 32) _mm256_storeu_si256((__m256i *)(void *)(to + j), _mm256_set1_epi8((char)byte));
}

/* A row of a group, flipped; the last bytes again with those before them, where they fill no vector. */
INLINE void copy_bytes(uint8_t *to, const uint8_t *from, int64_t count, uint8_t flip) {
    const __m128i flips = _mm_set1_epi8((char)flip);
    int64_t j = 0;
    if (count < 8) {
        for (; j < count; j++) to[j] = from[j] ^ flip;
        return;
    }
    for (; j + 16 <= count; j += 16)
        _mm_storeu_si128((__m128i *)(void *)(to + j), _mm_xor_si128(_mm_loadu_si128((const __m128i *)(const void *)(from + j)), flips));
    for (; j < count; j += 8) {
        const int64_t at = pysim_min(j, count - 8);
        _mm_storel_epi64((__m128i *)(void *)(to + at), _mm_xor_si128(_mm_loadl_epi64((const __m128i *)(const void *)(from + at)), flips));
    }
}
#endif

/* The rows of a group's input that outputs [begin, end) read, padded by the zero point. Whole vectors are stored, each row over what the one
 * before left behind its end. */
static void pad_rows(const pysim_direct *of, const uint8_t *image, int64_t begin, int64_t end, int64_t pitch, uint8_t *to) {
    const pysim_conv *c = of->conv;
    const int64_t rows = (end - begin - 1) * c->stride_h + c->dilation_h * (c->kernel_h - 1) + 1;
    const int64_t left = pysim_min(pitch, c->pad_left), kept = pysim_min(c->width, pitch - left);
    const uint8_t fill = (uint8_t)of->zero, flip = (uint8_t)of->flip;
#if WIDTH == 512
    const __m512i filled = _mm512_set1_epi8((char)(fill ^ flip)), flipped = _mm512_set1_epi8((char)flip);
    const __mmask64 first = bytes_between(left, left + kept);
    for (int64_t i = 0, y = begin * c->stride_h - c->pad_top; i < rows; i++, y++, to += pitch)
        for (int64_t j = 0; j < pitch; j += FILL_BYTES) {
            const __mmask64 mask = y < 0 || y >= c->height ? 0 : j ? bytes_between(left - j, left + kept - j) : first;
            pad_row(pitch, mask ? image + y * c->width + j - left : image, mask, filled, flipped, to + j);
        }
#else
    for (int64_t i = 0; i < rows; i++, to += pitch) {
        const int64_t y = begin * c->stride_h - c->pad_top + i, count = y >= 0 && y < c->height ? kept : 0;
        fill_bytes(to, fill, left);
        if (count) copy_bytes(to + left, image + y * c->width, count, flip);
        fill_bytes(to + left + count, fill, pitch - left - count);
    }
#endif
}

/* What a group's outputs have in common. */
typedef struct {
    const uint32_t *weights; /* [kernel rows][chunks of 4 taps] */
    int64_t row, chunk;      /* bytes between rows and between chunks */
    SUMS start, least, most, zero;
    FLOATS scale, low, high;
    int32_t result; /* S32: sums */
} group;

INLINE WORDS gathered(const gather *v, const int far, const uint8_t *x) {
    const WORDS words = w_load(v->words), bytes = w_load((const uint32_t *)(const void *)v->bytes);
    const uint32_t *from = (const uint32_t *)(const void *)x;
#if WIDTH == 512
    if (far == 2) return _mm512_shuffle_epi8(_mm512_permutex2var_epi32(w_load(from), words, w_load(from + LANES)), bytes);
    const WORDS found = far ? w_load(from) : _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)x));
    return _mm512_shuffle_epi8(_mm512_permutexvar_epi32(words, found), bytes);
#else
    (void)far;
    return _mm256_shuffle_epi8(_mm256_permutevar8x32_epi32(w_load(from), words), bytes);
#endif
}

/* Sums of a vector of outputs. KH, CHUNKS: constants, or 0. far: how far taps lie (gathers). */
INLINE SUMS summed(const int KH, const int CHUNKS, const int far, const group *g, const OPERAND *kept, const gather *v, int64_t kernel_h,
                   int64_t chunks, const uint8_t *x) {
    SUMS sum = g->start;
    const uint32_t *w = g->weights;
    const int64_t rows = KH ? KH : kernel_h, parts = CHUNKS ? CHUNKS : chunks;
#pragma GCC unroll 5
    for (int64_t r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int64_t t = 0; t < parts; t++)
            sum = s_dot(sum, gathered(v, far, x + r * g->row + t * g->chunk), KH ? kept[r * parts + t] : w_set1(w[r * parts + t]));
    return s_between(g->least, g->most, sum);
}

INLINE void store_outputs(const group *g, SUMS sum, int64_t count, char *out) {
    const MASK mask = m_first(count);
    if (g->result == PYSIM_S32) {
        s_store_mask((T *)(void *)out, sum, mask);
        return;
    }
    const FLOATS scaled = f_scaled(sum, g->scale, g->low, g->high);
    if (g->result == PYSIM_F32) f_store_mask((float *)(void *)out, scaled, mask);
    else if (count == LANES) b_store((uint8_t *)out, scaled, g->zero, mask, 1, LANES);
    else b_store((uint8_t *)out, scaled, g->zero, mask, 0, count);
}

/* Rows [0, p) of a group's outputs. Copies, because stores of bytes may change what pointers point to. */
INLINE void plane(const int KH, const int CHUNKS, const int far, const gathers *t, const group *of_group, const pysim_direct *of,
                  const geometry *shape, const uint8_t *x, int64_t p, int64_t bytes, char *out) {
    const group own = *of_group, *g = &own;
    OPERAND kept[KEPT];
#pragma GCC unroll 10
    for (int i = 0; i < KH * CHUNKS; i++) kept[i] = w_set1(own.weights[i]);
    const int64_t kernel_h = of->conv->kernel_h, chunks = pysim_ceil_div(of->conv->kernel_w, TAPS);
    for (int64_t row = 0; row < p; row += t->rows, x += t->rows * shape->row_stride, out += t->rows * of->q * bytes) {
        const int64_t left = pysim_min(t->rows, p - row) * of->q, step = t->of[0].count;
        for (int64_t i = 0; t->rows > 1 && i < t->gathers && t->of[i].first < left; i++)
            store_outputs(g, summed(KH, CHUNKS, far, g, kept, &t->of[i], kernel_h, chunks, x + t->of[i].at),
                          pysim_min(t->of[i].count, left - t->of[i].first), out + t->of[i].first * bytes);
        for (int64_t q = 0; t->rows == 1 && q < left; q += step)
            store_outputs(g, summed(KH, CHUNKS, far, g, kept, t->of, kernel_h, chunks, x + q * shape->stride_w), pysim_min(step, left - q),
                          out + q * bytes);
    }
}

/* Packs a group's weights, and returns their sum. */
static int32_t pack_weights(const pysim_conv *c, const int8_t *from, uint32_t *to) {
    int32_t sum = 0;
    for (int64_t r = 0; r < c->kernel_h; r++)
        for (int64_t s = 0; s < c->kernel_w; s += TAPS, to++) {
            *to = 0;
            for (int64_t i = s; i < pysim_min(c->kernel_w, s + TAPS); i++, from++)
                sum += *from, *to |= (uint32_t)(uint8_t)*from << (8 * (i - s));
        }
    return sum;
}

enum { WEIGHTS = 256 }; /* dwords; kernels with more run on the portable row */

static void depthwise(const pysim_direct *of, const uint8_t *image, const int8_t *filters, const int32_t *bias, char *out, int64_t groups,
                      int64_t begin, int64_t end, uint8_t *const room[2], const geometry *shape) {
    const pysim_conv *c = of->conv;
    const pysim_rescale *scale = &of->rescale;
    const int64_t chunks = pysim_ceil_div(c->kernel_w, TAPS), bytes = !scale->scales || scale->result == PYSIM_F32 ? 4 : 1;
    uint32_t weights[WEIGHTS] = {0};
    gathers t;
    group g = {.weights = weights,
               .row = c->dilation_h * shape->pitch,
               .chunk = TAPS * c->dilation_w,
               .least = s_set1((T)of->bounds.low),
               .most = s_set1((T)of->bounds.high),
               .zero = s_set1(scale->zero),
               .low = I(set1_ps)(scale->low),
               .high = I(set1_ps)(scale->high),
               .result = scale->scales ? scale->result : PYSIM_S32};
    make_gathers(&t, shape, end - begin);
    pad_rows(of, image, begin, end, shape->pitch, room[0]);
    for (int64_t i = 0; i < groups; i++) {
        const int32_t sum = pack_weights(c, filters + i * c->kernel_h * c->kernel_w, weights);
        const uint8_t *rows = room[i % 2];
        if (i + 1 < groups) pad_rows(of, image + (i + 1) * c->height * c->width, begin, end, shape->pitch, room[(i + 1) % 2]);
        g.start = s_set1((int32_t)((bias ? (uint32_t)bias[i] : 0) - (uint32_t)of->zero * (uint32_t)sum));
        if (scale->scales) g.scale = I(set1_ps)(scale->scales[i * scale->filter_step]);
        char *to = out + (i * of->p + begin) * of->q * bytes;
#define PLANE_BY(kh, parts, far) plane(kh, parts, far, &t, &g, of, shape, rows, end - begin, bytes, to)
#define PLANE(kh, parts)                         \
    if (t.far == 2) PLANE_BY(kh, parts, 2);      \
    else if (t.far == 1) PLANE_BY(kh, parts, 1); \
    else PLANE_BY(kh, parts, 0)
        if (c->kernel_h == 3 && chunks == 1) {
            PLANE(3, 1);
        } else if (c->kernel_h == 5 && chunks == 2) {
            PLANE(5, 2);
        } else {
            PLANE(0, 0);
        }
    }
}

#define DEFINE_TAPS(name)                                                                                                                 \
    void name(const pysim_direct *of, const void *input, const void *filters, const void *bias, void *out, int64_t groups, int64_t begin, \
              int64_t end, void *workspace);                                                                                              \
    void name(const pysim_direct *of, const void *input, const void *filters, const void *bias, void *out, int64_t groups, int64_t begin, \
              int64_t end, void *workspace) {                                                                                             \
        const pysim_conv *c = of->conv;                                                                                                   \
        const int64_t pitch = pysim_direct_columns(of), taps = pysim_min(TAPS, c->kernel_w);                                              \
        const geometry shape = {pitch, of->q, c->stride_w, c->stride_h * pitch, taps, c->dilation_w};                                     \
        const int near = (taps - 1) * c->dilation_w < READ && c->kernel_h * pysim_ceil_div(c->kernel_w, TAPS) <= WEIGHTS;                 \
        uint8_t *const room[] = {workspace, (uint8_t *)workspace + pysim_direct_rows(of) * pitch + PYSIM_BEHIND_ROWS};                    \
        if (near) depthwise(of, input, filters, bias, out, groups, begin, end, room, &shape);                                             \
        else s8_taps_64x1__portable(of, input, filters, bias, out, groups, begin, end, workspace);                                        \
    }
#define TAPS_ROW3(windows, target) s8_taps_##windows##x1__##target
#define TAPS_ROW2(windows, target) TAPS_ROW3(windows, target)
#if WIDTH == 512
DEFINE_TAPS(TAPS_ROW2(16, TARGET))
#else
DEFINE_TAPS(TAPS_ROW2(8, TARGET))
#endif
