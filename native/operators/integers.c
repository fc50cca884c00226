/* SPDX-License-Identifier: Apache-2.0
 * ABI entry points for operators on quantised elements: arguments are checked here, the loops of integers.h compute. */
#include <string.h>

#include "integers.h"
#include "abi/status.h"
#include "operators.h"

static pysim_status check_quantity(const char *what, const pysim_quantity *q) {
    const int32_t low = q->is_signed ? -128 : 0;
    if (!(q->scale > 0) || q->scale - q->scale != 0)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "the scale of %s is %g; expected a positive number", what, (double)q->scale);
    if (q->zero < low || q->zero > low + 255)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "the zero of %s is %d; expected %d to %d", what, (int)q->zero, (int)low, (int)low + 255);
    return PYSIM_OK;
}

/* Checks two operands of `count` elements of these types; y may be x where they are of one size. */
static pysim_status check_both(int64_t count, const void *x, int32_t from, const void *y, int32_t to) {
    int64_t read = 0, written = 0;
    const int64_t reads[] = {count, pysim_dtype_bytes(from)}, writes[] = {count, pysim_dtype_bytes(to)};
    pysim_status status = pysim_check_positive("the number of elements", &count, 1);
    if (status == PYSIM_OK) status = pysim_product("x, elements x bytes", 2, reads, &read);
    if (status == PYSIM_OK) status = pysim_product("y, elements x bytes", 2, writes, &written);
    if (status == PYSIM_OK) status = pysim_check_operand("x", x, from);
    if (status == PYSIM_OK) status = pysim_check_operand("y", y, to);
    const pysim_span spans[] = {{"y", y, written, 1}, {"x", x == y && from == to ? NULL : x, read, 0}};
    return status == PYSIM_OK ? pysim_check_apart(spans, 2) : status;
}

pysim_status pysim_run_quantize(const pysim_quantized *q, const void *x, void *y) {
    if (!q) return pysim_fail(PYSIM_BAD_ARGUMENT, "the quantisation is NULL");
    pysim_status status = check_quantity("y", &q->of);
    if (status == PYSIM_OK) status = check_both(q->count, x, PYSIM_F32, y, PYSIM_S8);
    if (status == PYSIM_OK) pysim_integers_here()->quantize(q->count, pysim_byte_of(&q->of), x, y);
    return status;
}

pysim_status pysim_run_dequantize(const pysim_quantized *q, const void *x, void *y) {
    if (!q) return pysim_fail(PYSIM_BAD_ARGUMENT, "the quantisation is NULL");
    pysim_status status = check_quantity("x", &q->of);
    if (status == PYSIM_OK) status = check_both(q->count, x, PYSIM_S8, y, PYSIM_F32);
    if (status != PYSIM_OK) return status;
    pysim_byte from = pysim_byte_of(&q->of);
    if (q->zero_of && !q->of.is_signed) from.zero = *q->zero_of;
    pysim_integers_here()->dequantize(q->count, from, x, y);
    return status;
}

pysim_status pysim_run_quantize_range(int64_t count, const void *x, void *y, float *scale, uint8_t *zero) {
    pysim_status status = check_both(count, x, PYSIM_F32, y, PYSIM_S8);
    if (status == PYSIM_OK) status = pysim_check_operand("scale", scale, PYSIM_F32);
    if (status == PYSIM_OK) status = pysim_check_operand("zero", zero, PYSIM_S8);
    if (status != PYSIM_OK) return status;
    float low, high;
    const pysim_integers *loops = pysim_integers_here();
    loops->range(count, x, &low, &high);
    const float step = (high - low) / 255.0f, by = step > 0 ? step : 1.0f, at = -low / by;
    const float whole = __builtin_rintf(at < 0 ? 0 : at > 255 ? 255 : at);
    *scale = by;
    *zero = (uint8_t)whole;
    loops->quantize(count, (pysim_byte){by, *zero, 0}, x, y);
    return PYSIM_OK;
}

pysim_status pysim_run_sums(const pysim_sums *s, const void *x, void *y) {
    if (!s) return pysim_fail(PYSIM_BAD_ARGUMENT, "the sums are NULL");
    const int64_t sizes[] = {s->outer, s->channels, s->inner}, least = s->to.is_signed ? -128 : 0;
    int64_t count = 0;
    pysim_status status = pysim_check_positive("the sums' outer, channels and inner", sizes, 3);
    if (status == PYSIM_OK) status = pysim_product("the sums, outer x channels x inner", 3, sizes, &count);
    if (status == PYSIM_OK) status = check_both(count, x, PYSIM_F32, y, s->to_float ? PYSIM_F32 : PYSIM_S8);
    if (status == PYSIM_OK) status = pysim_check_operand("scale", s->scale, PYSIM_F32);
    if (status == PYSIM_OK) status = pysim_check_operand("shift", s->shift, PYSIM_F32);
    if (status == PYSIM_OK) status = pysim_check_operand("offset", s->offset, PYSIM_F32);
    const int32_t in_range =
        s->low >= least && s->high <= least + 255 && s->low <= s->high && s->to.zero >= least && s->to.zero <= least + 255;
    if (status == PYSIM_OK && !s->to_float && !in_range)
        status = pysim_fail(PYSIM_BAD_ARGUMENT, "zero is %d, and results are within %d to %d; expected numbers of %d to %d",
                            (int)s->to.zero, (int)s->low, (int)s->high, (int)least, (int)least + 255);
    if (status == PYSIM_OK) pysim_integers_here()->sums(s, 0, s->outer, x, y);
    return status;
}

pysim_status pysim_run_table(int64_t count, const void *table, const void *x, void *y) {
    pysim_status status = check_both(count, x, PYSIM_S8, y, PYSIM_S8);
    if (status == PYSIM_OK) status = pysim_check_operand("table", table, PYSIM_S8);
    if (status != PYSIM_OK) return status;
    pysim_integers_here()->table(table, count, x, y);
    return PYSIM_OK;
}

enum { MAX_AXES = 6 };

static pysim_status check_bounds(const pysim_byte_pair *p) {
    const int32_t least = p->y.is_signed ? -128 : 0;
    if (p->low >= least && p->low <= p->high && p->high <= least + 255) return PYSIM_OK;
    return pysim_fail(PYSIM_BAD_ARGUMENT, "results are within %d to %d; expected numbers of %d to %d", (int)p->low, (int)p->high,
                      (int)least, (int)least + 255);
}

static pysim_status check_pair(const pysim_byte_pair *p, const void *a, const void *b, const void *y) {
    int64_t reaches[2] = {1, 1}, count = 0;
    if (p->axes < 1 || p->axes > MAX_AXES)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "a pair has %d axes; expected 1 to %d", (int)p->axes, MAX_AXES);
    pysim_status status = pysim_check_positive("a pair's sizes", p->sizes, p->axes);
    if (status == PYSIM_OK) status = pysim_product("a pair's elements", p->axes, p->sizes, &count);
    for (int32_t i = 0; i < 2 * p->axes && status == PYSIM_OK; i++) {
        const int64_t step = i % 2 ? p->b_steps[i / 2] : p->a_steps[i / 2];
        int64_t along;
        if (step < 0) status = pysim_fail(PYSIM_BAD_ARGUMENT, "a pair's step is %lld; expected at least 0", (long long)step);
        else if (__builtin_mul_overflow(p->sizes[i / 2] - 1, step, &along) ||
                 __builtin_add_overflow(reaches[i % 2], along, &reaches[i % 2]))
            status = pysim_fail(PYSIM_OVERFLOW, "a pair's operands exceed int64");
    }
    if (status == PYSIM_OK) status = check_quantity("a", &p->a);
    if (status == PYSIM_OK) status = check_quantity("b", &p->b);
    if (status == PYSIM_OK) status = check_quantity("y", &p->y);
    if (status == PYSIM_OK) status = check_bounds(p);
    if (status == PYSIM_OK) status = pysim_check_operand("a", a, PYSIM_S8);
    if (status == PYSIM_OK) status = pysim_check_operand("b", b, PYSIM_S8);
    if (status == PYSIM_OK) status = pysim_check_operand("y", y, PYSIM_S8);
    const pysim_span spans[] = {{"y", y, count, 1}, {"a", a, reaches[0], 0}, {"b", b, reaches[1], 0}};
    return status == PYSIM_OK ? pysim_check_apart(spans, 3) : status;
}

enum { REPEATED = 4096 }; /* bytes of a row that all rows of the other operand meet, as often as they fit */

/* Rows of a, beside each other, that all meet one row of b: many of them as one, since the loops take whole vectors. */
static void pair_repeated(const pysim_byte_pair *p, int64_t rows, int64_t size, const uint8_t *a, const uint8_t *b, uint8_t *y) {
    uint8_t row[REPEATED];
    const int64_t most = pysim_min(rows, REPEATED / size);
    for (int64_t i = 0; i < most; i++) memcpy(row + i * size, b, (size_t)size);
    for (int64_t i = 0; i < rows; i += most) {
        const int64_t count = pysim_min(most, rows - i) * size;
        pysim_integers_here()->pair(p, count, 1, 1, a + i * size, row, y + i * size);
    }
}

static uint8_t *pair_axes(const pysim_byte_pair *p, int32_t axis, const uint8_t *a, const uint8_t *b, uint8_t *y) {
    const int64_t size = p->sizes[axis], a_step = p->a_steps[axis], b_step = p->b_steps[axis];
    if (axis + 1 == p->axes) {
        pysim_integers_here()->pair(p, size, a_step, b_step, a, b, y);
        return y + size;
    }
    const int64_t inner = p->sizes[axis + 1];
    if (axis + 2 == p->axes && a_step == inner && b_step == 0 && p->a_steps[axis + 1] == 1 && p->b_steps[axis + 1] == 1 &&
        inner <= REPEATED / 2) {
        pair_repeated(p, size, inner, a, b, y);
        return y + size * inner;
    }
    for (int64_t i = 0; i < size; i++) y = pair_axes(p, axis + 1, a + i * a_step, b + i * b_step, y);
    return y;
}

pysim_status pysim_run_byte_pair(const pysim_byte_pair *p, const void *a, const void *b, void *y) {
    if (!p) return pysim_fail(PYSIM_BAD_ARGUMENT, "the pair is NULL");
    const pysim_status status = check_pair(p, a, b, y);
    if (status == PYSIM_OK) pair_axes(p, 0, a, b, y);
    return status;
}

enum { EVERY = 256 }; /* bytes */

/* Whether the sum is the pair's for all of both bytes. */
static int same_sums(const pysim_byte_pair *p, const pysim_byte_sum *sum, const uint8_t *exact) {
    uint8_t a[EVERY], b[EVERY], y[EVERY];
    for (int i = 0; i < EVERY; i++) b[i] = (uint8_t)i;
    for (int i = 0; i < EVERY; i++) {
        memset(a, i, sizeof a);
        pysim_integers_here()->add(sum, pysim_byte_of(&p->a), EVERY, a, b, y);
        if (memcmp(y, exact + i * EVERY, sizeof y) != 0) return 0;
    }
    return 1;
}

/* Factors rounded to the nearest, then ones a last place or two from them: the pair's own roundings move some sums across a half. */
static int find_sum(const pysim_byte_pair *p, pysim_byte_sum *sum) {
    enum { FACTORS = 3, SHIFTS = 9 };
    const double f = (double)p->a.scale / (double)p->y.scale, g = (double)p->b.scale / (double)p->y.scale;
    const pysim_byte b = pysim_byte_of(&p->b);
    uint8_t exact[EVERY * EVERY], left[EVERY], right[EVERY];
    if (!(255 * (f + g) < 0x1p20)) return 0;
    for (int i = 0; i < EVERY; i++) right[i] = (uint8_t)i;
    for (int i = 0; i < EVERY; i++) {
        memset(left, i, sizeof left);
        pysim_integers_here()->pair(p, EVERY, 1, 1, left, right, exact + i * EVERY);
    }
    *sum = (pysim_byte_sum){.low = (float)(p->low - p->y.zero),
                            .high = (float)(p->high - p->y.zero),
                            .flip = b.flip,
                            .result = p->y.is_signed ? PYSIM_S8 : PYSIM_U8,
                            .zero = p->y.zero};
    for (int i = 0; i < FACTORS * FACTORS * SHIFTS; i++) {
        sum->first = (float)(f * (1 + (i % FACTORS - 1) * 0x1p-23));
        sum->second = (float)(g * (1 + (i / FACTORS % FACTORS - 1) * 0x1p-23));
        sum->shift = (float)(-b.zero * g + (i / (FACTORS * FACTORS) - SHIFTS / 2) * 255 * (f + g) * 0x1p-25);
        if (same_sums(p, sum, exact)) return 1;
    }
    return 0;
}

pysim_status pysim_byte_sum_of(const pysim_byte_pair *p, pysim_byte_sum *sum, int32_t *found) {
    if (!p || !sum || !found) return pysim_fail(PYSIM_BAD_ARGUMENT, "the pair, the sum or what is found is NULL");
    pysim_status status = check_quantity("a", &p->a);
    if (status == PYSIM_OK) status = check_quantity("b", &p->b);
    if (status == PYSIM_OK) status = check_quantity("y", &p->y);
    if (status == PYSIM_OK) status = check_bounds(p);
    if (status == PYSIM_OK) *found = !p->multiply && find_sum(p, sum);
    return status;
}

pysim_status pysim_run_byte_pool(const pysim_byte_pool *p, const void *x, void *y) {
    if (!p) return pysim_fail(PYSIM_BAD_ARGUMENT, "the pool is NULL");
    const pysim_pool *w = &p->window;
    if (w->dtype != PYSIM_S8)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "a pool of bytes is of dtype %s; expected s8", pysim_dtype_name(w->dtype));
    pysim_status status = pysim_check_pool(w, x, y);
    if (status == PYSIM_OK && !w->largest) status = check_quantity("x", &p->from);
    if (status == PYSIM_OK && !w->largest) status = check_quantity("y", &p->to);
    if (status != PYSIM_OK) return status;
    if (w->block <= 1) pysim_integers_here()->pool(p, w->planes, x, y);
    else /* each block is an image whose channels are last */
        for (int64_t k = 0; k < w->planes; k += w->block)
            pysim_integers_here()->pool_channels(p, (const uint8_t *)x + k * w->height * w->width, (uint8_t *)y + k * w->out_h * w->out_w);
    return status;
}

pysim_status pysim_run_byte_pad(const pysim_byte_pad *p, const void *x, void *y) {
    if (!p) return pysim_fail(PYSIM_BAD_ARGUMENT, "the padding is NULL");
    const int64_t sizes[] = {p->planes, p->height, p->width}, sides[] = {p->top, p->left, p->bottom, p->right};
    int64_t read = 0, written = 0, tall = p->height, wide = p->width;
    pysim_status status = pysim_check_positive("the padding's planes, height and width", sizes, 3);
    for (int i = 0; i < 4 && status == PYSIM_OK; i++) {
        int64_t *along = i % 2 ? &wide : &tall;
        if (sides[i] < 0) status = pysim_fail(PYSIM_BAD_ARGUMENT, "padding %d is %lld; expected at least 0", i, (long long)sides[i]);
        else if (__builtin_add_overflow(*along, sides[i], along)) status = pysim_fail(PYSIM_OVERFLOW, "padded planes exceed int64");
    }
    const int64_t padded[] = {p->planes, tall, wide};
    if (status == PYSIM_OK) status = pysim_product("x, planes x height x width", 3, sizes, &read);
    if (status == PYSIM_OK) status = pysim_product("y, planes x padded height x padded width", 3, padded, &written);
    if (status == PYSIM_OK) status = pysim_check_operand("x", x, PYSIM_S8);
    if (status == PYSIM_OK) status = pysim_check_operand("y", y, PYSIM_S8);
    const pysim_span spans[] = {{"y", y, written, 1}, {"x", x, read, 0}};
    if (status == PYSIM_OK) status = pysim_check_apart(spans, 2);
    if (status == PYSIM_OK) pysim_integers_here()->pad(p, x, y);
    return status;
}

/* Planes of bytes, `block` of them beside each other. */
static pysim_status check_planes(int64_t planes, int64_t size, int64_t block, int64_t *count) {
    const int64_t sizes[] = {planes, size, block};
    pysim_status status = pysim_check_positive("planes, their size and block", sizes, 3);
    if (status == PYSIM_OK) status = pysim_product("the elements, planes x size", 2, sizes, count);
    if (status == PYSIM_OK && (planes % block || size > INT32_MAX / UINT8_MAX))
        status =
            pysim_fail(PYSIM_UNSUPPORTED, "%lld planes of %lld elements in blocks of %lld; expected whole blocks, and at most %d elements",
                       (long long)planes, (long long)size, (long long)block, INT32_MAX / UINT8_MAX);
    return status;
}

pysim_status pysim_run_byte_means(const pysim_byte_means *m, const void *x, float *y) {
    int64_t count = 0;
    if (!m) return pysim_fail(PYSIM_BAD_ARGUMENT, "the means are NULL");
    pysim_status status = check_planes(m->planes, m->size, m->block, &count);
    if (status == PYSIM_OK) status = check_quantity("x", &m->from);
    if (status == PYSIM_OK) status = pysim_check_operand("x", x, PYSIM_S8);
    if (status == PYSIM_OK) status = pysim_check_operand("y", y, PYSIM_F32);
    const pysim_span spans[] = {{"y", y, m->planes * (int64_t)sizeof *y, 1}, {"x", x, count, 0}};
    if (status == PYSIM_OK) status = pysim_check_apart(spans, 2);
    if (status != PYSIM_OK) return status;
    for (int64_t p = 0; p < m->planes; p += m->block)
        pysim_integers_here()->means(m->block, m->size, pysim_byte_of(&m->from), (const uint8_t *)x + p * m->size, y + p);
    return status;
}

pysim_status pysim_run_integer_step(const pysim_step *s) {
    const pysim_quantized *q = s->of;
    if (!q) return pysim_fail(PYSIM_BAD_ARGUMENT, "a step's operator is NULL");
    switch (s->kind) {
    case PYSIM_STEP_QUANTIZE: return pysim_run_quantize(q, s->first, s->result);
    case PYSIM_STEP_DEQUANTIZE: return pysim_run_dequantize(q, s->first, s->result);
    case PYSIM_STEP_QUANTIZE_RANGE: return pysim_run_quantize_range(q->count, s->first, s->result, (float *)s->second, (uint8_t *)s->third);
    case PYSIM_STEP_SUMS: return pysim_run_sums(s->of, s->first, s->result);
    case PYSIM_STEP_TABLE: return pysim_run_table(q->count, s->second, s->first, s->result);
    case PYSIM_STEP_BYTE_PAIR: return pysim_run_byte_pair(s->of, s->first, s->second, s->result);
    case PYSIM_STEP_BYTE_POOL: return pysim_run_byte_pool(s->of, s->first, s->result);
    case PYSIM_STEP_BYTE_MEANS: return pysim_run_byte_means(s->of, s->first, s->result);
    default: return pysim_run_byte_pad(s->of, s->first, s->result);
    }
}
