/* SPDX-License-Identifier: Apache-2.0
 * Loops over quantised elements (operators/integers.h) in plain C that the compiler vectorises. Each formula rounds after each operation, as
 * ONNX's operators one by one do: no product and sum is contracted to a multiply-add. */
#include <string.h>

#include "instance.h"
#include "operators/integers.h"
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

#ifndef DOUBLE

/* A NaN becomes low. */
INLINE float bounded(float v, float low, float high) {
    v = v > low ? v : low;
    return v < high ? v : high;
}

/* To the nearest integer, halves to the even one; |v| <= 2^22. */
INLINE int32_t rounded(float v) {
    const float magic = 12582912.0f;
    return (int32_t)((v + magic) - magic);
}

static void quantize(int64_t count, pysim_byte to, const float *restrict x, uint8_t *restrict y) {
    const float low = (float)-to.zero, high = (float)(255 - to.zero);
    for (int64_t i = 0; i < count; i++) y[i] = (uint8_t)(rounded(bounded(x[i] / to.scale, low, high)) + to.zero) ^ to.flip;
}

static void dequantize(int64_t count, pysim_byte from, const uint8_t *restrict x, float *restrict y) {
    for (int64_t i = 0; i < count; i++) y[i] = (float)((int32_t)(uint8_t)(x[i] ^ from.flip) - from.zero) * from.scale;
}

enum { BESIDE = 128, PAIRED = 256 }; /* planes whose sums are made at once; bytes whose sum fits 16 bits */

/* Sums of `count` planes. */
INLINE void sums_beside(const int64_t count, int64_t channels, int64_t size, uint8_t flip, const uint8_t *restrict x,
                        int32_t *restrict to) {
    for (int64_t i = 0; i < size; i += PAIRED) {
        uint16_t few[BESIDE] = {0};
        for (int64_t j = i; j < size && j < i + PAIRED; j++)
            for (int64_t k = 0; k < count; k++) few[k] = (uint16_t)(few[k] + (x[j * channels + k] ^ flip));
        for (int64_t k = 0; k < count; k++) to[k] += few[k];
    }
}

static void means(int64_t channels, int64_t size, pysim_byte from, const uint8_t *restrict x, float *restrict y) {
    for (int64_t c = 0; c < channels; c += BESIDE) {
        const int64_t at =
            channels < BESIDE || c + BESIDE <= channels ? c : channels - BESIDE; /* the last ones together with some before them */
        const int64_t some = channels < BESIDE ? channels : BESIDE;
        int32_t sums[BESIDE] = {0};
        if (channels == 1)
            for (int64_t i = 0; i < size; i++) sums[0] += x[i] ^ from.flip;
        else if (some == BESIDE) sums_beside(BESIDE, channels, size, from.flip, x + at, sums);
        else sums_beside(some, channels, size, from.flip, x + at, sums);
        for (int64_t k = 0; k < some; k++) y[at + k] = (float)(sums[k] - (int32_t)size * from.zero) * from.scale / (float)size;
    }
}

static void range(int64_t count, const float *x, float *low, float *high) {
    enum { WIDE = 64 };
    float least[WIDE] = {0}, most[WIDE] = {0};
    int64_t i = 0;
    for (; i + WIDE <= count; i += WIDE)
        for (int j = 0; j < WIDE; j++) {
            least[j] = x[i + j] < least[j] ? x[i + j] : least[j];
            most[j] = x[i + j] > most[j] ? x[i + j] : most[j];
        }
    for (; i < count; i++) {
        least[0] = x[i] < least[0] ? x[i] : least[0];
        most[0] = x[i] > most[0] ? x[i] : most[0];
    }
    for (int j = 1; j < WIDE; j++) {
        least[0] = least[j] < least[0] ? least[j] : least[0];
        most[0] = most[j] > most[0] ? most[j] : most[0];
    }
    *low = least[0];
    *high = most[0];
}

INLINE int32_t moved(int32_t sum, int32_t factor, int32_t offset) { return (int32_t)((uint32_t)sum + (uint32_t)factor * (uint32_t)offset); }

enum { WHOLE_FLOATS = 1, NUMBERS = 2 }; /* what else than INT32 is rescaled: pysim_sums.from_float */

/* A row of one channel, or of as many channels as elements. */
INLINE void sums_row(const pysim_sums *s, const int each, const int floats, int64_t count, int32_t factor, float by, const float *scale,
                     const float *shift, const int32_t *offset, const void *restrict from, void *restrict y) {
    const int32_t *restrict whole = from;
    const float *restrict numbers = from;
    const pysim_byte to = pysim_byte_of(&s->to);
    const float low = (float)(s->low - s->to.zero), high = (float)(s->high - s->to.zero);
    if (s->to_float) {
        float *restrict out = y;
        for (int64_t i = 0; i < count; i++) {
            const int64_t c = each ? i : 0;
            const int32_t x = floats == NUMBERS ? 0 : floats ? (int32_t)numbers[i] : whole[i];
            const float sum = floats == NUMBERS ? numbers[i] : (float)moved(x, factor, offset[c]);
            out[i] = sum * (by * scale[c]) + shift[c];
        }
        return;
    }
    uint8_t *restrict out = y;
    for (int64_t i = 0; i < count; i++) {
        const int64_t c = each ? i : 0;
        const int32_t x = floats == NUMBERS ? 0 : floats ? (int32_t)numbers[i] : whole[i];
        const float sum = floats == NUMBERS ? numbers[i] : (float)moved(x, factor, offset[c]);
        const float v = sum * (by * scale[c]) + shift[c];
        out[i] = (uint8_t)(rounded(bounded(v, low, high)) + to.zero) ^ to.flip;
    }
}

INLINE void sums_rows(const pysim_sums *s, const int floats, int64_t begin, int64_t end, const char *x, char *out) {
    const int64_t row = s->channels * s->inner, bytes = s->to_float ? 4 : 1;
    const int32_t factor = s->input_zero ? *s->input_zero : 1;
    const float by = s->input_scale ? *s->input_scale : 1.0f;
    for (int64_t o = begin; o < end; o++) {
        if (s->inner == 1)
            sums_row(s, 1, floats, s->channels, factor, by, s->scale, s->shift, s->offset, x + o * row * 4, out + o * row * bytes);
        for (int64_t c = 0; s->inner > 1 && c < s->channels; c++) {
            const int64_t at = o * row + c * s->inner;
            sums_row(s, 0, floats, s->inner, factor, by, s->scale + c, s->shift + c, s->offset + c, x + at * 4, out + at * bytes);
        }
    }
}

static void sums(const pysim_sums *s, int64_t begin, int64_t end, const void *x, void *y) {
    if (s->from_float == NUMBERS) sums_rows(s, NUMBERS, begin, end, x, y);
    else if (s->from_float) sums_rows(s, WHOLE_FLOATS, begin, end, x, y);
    else sums_rows(s, 0, begin, end, x, y);
}

INLINE void pair_run(const pysim_byte_pair *p, const int multiply, int64_t count, int64_t a_step, int64_t b_step, const uint8_t *a,
                     const uint8_t *b, uint8_t *y) {
    const pysim_byte first = pysim_byte_of(&p->a), second = pysim_byte_of(&p->b), to = pysim_byte_of(&p->y);
    const float low = (float)(p->low - p->y.zero), high = (float)(p->high - p->y.zero);
    for (int64_t i = 0; i < count; i++) {
        const float left = (float)((int32_t)(uint8_t)(a[i * a_step] ^ first.flip) - first.zero) * first.scale;
        const float right = (float)((int32_t)(uint8_t)(b[i * b_step] ^ second.flip) - second.zero) * second.scale;
        const float v = (multiply ? left * right : left + right) / to.scale;
        y[i] = (uint8_t)(rounded(bounded(v, low, high)) + to.zero) ^ to.flip;
    }
}

static void table(const uint8_t *table, int64_t count, const uint8_t *x, uint8_t *y) {
    int64_t i = 0;
#ifdef V_TABLES
    i = v_tables(table, count, x, y);
#endif
    for (; i < count; i++) y[i] = table[x[i]];
}

static void add(const pysim_byte_sum *s, pysim_byte of, int64_t count, const uint8_t *x, const uint8_t *residual, uint8_t *y) {
    const pysim_byte_sum own = *s; /* stores of bytes may change what pointers point to */
    const uint8_t flip = (uint8_t)own.flip;
    for (int64_t i = 0; i < count; i++) {
        const float q = (float)((int32_t)(uint8_t)(x[i] ^ of.flip) - of.zero), b = (float)(uint8_t)(residual[i] ^ flip);
        const float t = __builtin_fmaf(own.first, q, __builtin_fmaf(own.second, b, own.shift));
        y[i] = (uint8_t)(rounded(bounded(t, own.low, own.high)) + own.zero);
    }
}

#ifdef V_BYTE_SUMS
/* Sums of neighbouring elements, without a division. What the operators one by one give and a block's t are both within 9 u m of the real number:
 * two numbers, their sum and its quotient round (3 u m), as do two factors, their shift and two multiply-adds (6 u m), where u = 2^-24, and
 * m = 255 (f + g) bounds the terms. So both are rounded to one integer unless t is that near to a half; such blocks are computed again. */
static int64_t pair_blocks(const pysim_byte_pair *p, int64_t count, const uint8_t *a, const uint8_t *b, uint8_t *y) {
    const pysim_byte first = pysim_byte_of(&p->a), second = pysim_byte_of(&p->b), to = pysim_byte_of(&p->y);
    const double f = (double)first.scale / (double)to.scale, g = (double)second.scale / (double)to.scale, m = 255 * (f + g);
    const float shift = (float)-(first.zero * f + second.zero * g), far = (float)(0.5 - 10 * m / (1 << 24));
    const int32_t least = to.zero - p->y.zero;
    const BYTE_SUMS sums = {(float)f, (float)g, shift, far, to.zero, p->low + least, p->high + least, first.flip, second.flip, to.flip};
    int64_t i = 0;
    if (f < 0x1p-20 || g < 0x1p-20 || m > 0x1p17 || to.scale < 0x1p-100f || to.scale > 0x1p100f) return 0;
    for (; i + V_BYTE_SUMS <= count; i += V_BYTE_SUMS)
        if (v_byte_sums(&sums, a + i, b + i, y + i)) pair_run(p, 0, V_BYTE_SUMS, 1, 1, a + i, b + i, y + i);
    return i;
}
#else
static int64_t pair_blocks(const pysim_byte_pair *p, int64_t count, const uint8_t *a, const uint8_t *b, uint8_t *y) {
    (void)p, (void)count, (void)a, (void)b, (void)y;
    return 0;
}
#endif

enum { BYTES_AT_ALL = 256 };

/* With one b a run of twice as many elements as there are bytes, or more, is a table. */
static void pair(const pysim_byte_pair *p, int64_t count, int64_t a_step, int64_t b_step, const uint8_t *a, const uint8_t *b, uint8_t *y) {
    if (a_step == 1 && b_step == 1) {
        if (p->multiply) pair_run(p, 1, count, 1, 1, a, b, y);
        else {
            const int64_t done = pair_blocks(p, count, a, b, y);
            pair_run(p, 0, count - done, 1, 1, a + done, b + done, y + done);
        }
    } else if (a_step == 1 && b_step == 0) {
        if (count >= 2 * BYTES_AT_ALL) {
            uint8_t every[BYTES_AT_ALL], results[BYTES_AT_ALL];
            for (int i = 0; i < BYTES_AT_ALL; i++) every[i] = (uint8_t)i;
            if (p->multiply) pair_run(p, 1, BYTES_AT_ALL, 1, 0, every, b, results);
            else pair_run(p, 0, BYTES_AT_ALL, 1, 0, every, b, results);
            table(results, count, a, y);
        } else if (p->multiply) pair_run(p, 1, count, 1, 0, a, b, y);
        else pair_run(p, 0, count, 1, 0, a, b, y);
    } else pair_run(p, p->multiply, count, a_step, b_step, a, b, y);
}

/* first..last: the taps of a window at `at` that lie inside the image. */
INLINE void inside(int64_t at, int64_t size, int64_t kernel, int64_t dilation, int64_t *first, int64_t *last) {
    *first = at < 0 ? (-at + dilation - 1) / dilation : 0;
    *last = at >= size ? 0 : pysim_min(kernel, (size - 1 - at) / dilation + 1);
    *first = pysim_min(*first, kernel);
    *last = pysim_max(*first, *last);
}

enum { COLUMNS = 4096 }; /* longest padded row whose columns are combined at once */

/* Columns of a padded row; the last windows may reach beyond the padding. */
INLINE int64_t span_of(const pysim_pool *w) {
    return pysim_max(w->pad_left + w->width + w->pad_right, (w->out_w - 1) * w->stride_w + (w->kernel_w - 1) * w->dilation_w + 1);
}

INLINE uint8_t mean_of(const pysim_byte_pool *p, int32_t sum, float count) {
    const pysim_byte from = pysim_byte_of(&p->from), to = pysim_byte_of(&p->to);
    const float mean = (float)sum * from.scale / count;
    return (uint8_t)(rounded(bounded(mean / to.scale, (float)-to.zero, (float)(255 - to.zero))) + to.zero) ^ to.flip;
}

static int64_t counted(const pysim_pool *w, int64_t at, int64_t size, int64_t kernel, int64_t dilation, int64_t pad, int64_t taps) {
    if (!w->count_padding) return taps;
    int64_t first, last; /* of the padded image */
    inside(at + pad, size, kernel, dilation, &first, &last);
    return last - first;
}

/* What a window of `rows` taps in height and of those at column `left` divides by; how many of its taps are inside. */
INLINE int64_t divisor_of(const pysim_pool *w, int64_t high, int64_t left, int64_t *taps) {
    int64_t s0, s1;
    inside(left, w->width, w->kernel_w, w->dilation_w, &s0, &s1);
    *taps = s1 - s0;
    const int64_t wide = counted(w, left, w->width + w->pad_left + w->pad_right, w->kernel_w, w->dilation_w, w->pad_left, s1 - s0);
    return pysim_max(1, high * wide);
}

/* Taps r0..r1 of a column, whose first tap is at `from`: the largest byte, or the sum without zero points. Columns lie behind those of padding. */
INLINE void columns_largest(const pysim_pool *w, uint8_t flip, const uint8_t *restrict from, int64_t taps, uint8_t *restrict to) {
    memset(to, 0, (size_t)span_of(w));
    for (to += w->pad_left; taps > 0; taps--, from += w->dilation_h * w->width)
        for (int64_t i = 0; i < w->width; i++) {
            const uint8_t one = from[i] ^ flip;
            to[i] = one > to[i] ? one : to[i];
        }
}

INLINE void columns_sum(const pysim_pool *w, pysim_byte of, const uint8_t *restrict from, int64_t taps, int32_t *restrict to) {
    memset(to, 0, (size_t)span_of(w) * sizeof *to);
    for (to += w->pad_left; taps > 0; taps--, from += w->dilation_h * w->width)
        for (int64_t i = 0; i < w->width; i++) to[i] += (int32_t)(uint8_t)(from[i] ^ of.flip) - of.zero;
}

/* Windows along columns, `stride` apart. */
INLINE void along_largest(const pysim_pool *w, const int64_t stride, const uint8_t *restrict from, uint8_t *restrict y) {
    if (w->kernel_w == 3 && w->dilation_w == 1) {
        for (int64_t q = 0; q < w->out_w; q++) {
            const uint8_t a = from[q * stride], b = from[q * stride + 1], c = from[q * stride + 2], most = a > b ? a : b;
            y[q] = most > c ? most : c;
        }
        return;
    }
    memset(y, 0, (size_t)w->out_w);
    for (int64_t s = 0; s < w->kernel_w; s++, from += w->dilation_w)
        for (int64_t q = 0; q < w->out_w; q++) y[q] = from[q * stride] > y[q] ? from[q * stride] : y[q];
}

INLINE void along_sum(const pysim_pool *w, const int64_t stride, const int32_t *restrict from, int32_t *restrict y) {
    memset(y, 0, (size_t)w->out_w * sizeof *y);
    for (int64_t s = 0; s < w->kernel_w; s++, from += w->dilation_w)
        for (int64_t q = 0; q < w->out_w; q++) y[q] += from[q * stride];
}

static void largest_row(const pysim_byte_pool *p, const uint8_t *x, int64_t taps, uint8_t *y) {
    const pysim_pool *w = &p->window;
    const uint8_t flip = pysim_byte_of(&p->from).flip;
    uint8_t columns[COLUMNS];
    columns_largest(w, flip, x, taps, columns);
    if (w->stride_w == 1) along_largest(w, 1, columns, y);
    else if (w->stride_w == 2) along_largest(w, 2, columns, y);
    else along_largest(w, w->stride_w, columns, y);
    for (int64_t q = 0; flip && q < w->out_w; q++) y[q] ^= flip;
}

static void mean_row(const pysim_byte_pool *p, const uint8_t *x, int64_t taps, int64_t high, uint8_t *y) {
    const pysim_pool *w = &p->window;
    int32_t columns[COLUMNS], total[COLUMNS];
    float count[COLUMNS];
    columns_sum(w, pysim_byte_of(&p->from), x, taps, columns);
    if (w->stride_w == 1) along_sum(w, 1, columns, total);
    else if (w->stride_w == 2) along_sum(w, 2, columns, total);
    else along_sum(w, w->stride_w, columns, total);
    for (int64_t q = 0, within; q < w->out_w; q++) count[q] = (float)divisor_of(w, high, q * w->stride_w - w->pad_left, &within);
    for (int64_t q = 0; q < w->out_w; q++) y[q] = mean_of(p, total[q], count[q]);
}

/* Rows too long for the above: window by window. `top`: the row of a window's first tap. */
static void far_row(const pysim_byte_pool *p, const uint8_t *x, int64_t top, int64_t r0, int64_t r1, int64_t high, uint8_t *y) {
    const pysim_pool *w = &p->window;
    const pysim_byte of = pysim_byte_of(&p->from);
    for (int64_t q = 0; q < w->out_w; q++) {
        int64_t s0, s1, within;
        const int64_t left = q * w->stride_w - w->pad_left;
        uint8_t largest = 0;
        int32_t total = 0;
        inside(left, w->width, w->kernel_w, w->dilation_w, &s0, &s1);
        for (int64_t r = r0; r < r1; r++)
            for (int64_t s = s0; s < s1; s++) {
                const uint8_t one = x[(top + r * w->dilation_h) * w->width + left + s * w->dilation_w] ^ of.flip;
                largest = one > largest ? one : largest;
                total += (int32_t)one - of.zero;
            }
        y[q] = w->largest ? largest ^ of.flip : mean_of(p, total, (float)divisor_of(w, high, left, &within));
    }
}

/* The sum of neighbouring bytes. */
static int64_t bytes_sum(const uint8_t *x, uint8_t flip, int64_t count) {
    enum { WIDE = 32, MOST = 256 * WIDE }; /* 256 bytes fit into 16 bits */
    int64_t sum = 0;
    for (int64_t i = 0; i < count;) {
        const int64_t end = pysim_min(count, i + MOST);
        uint16_t part[WIDE] = {0};
        for (; i + WIDE <= end; i += WIDE)
            for (int j = 0; j < WIDE; j++) part[j] = (uint16_t)(part[j] + (uint8_t)(x[i + j] ^ flip));
        for (; i < end; i++) sum += (uint8_t)(x[i] ^ flip);
        for (int j = 0; j < WIDE; j++) sum += part[j];
    }
    return sum;
}

/* Means of whole planes. */
static void mean_planes(const pysim_byte_pool *p, int64_t planes, const uint8_t *x, uint8_t *y) {
    const pysim_byte of = pysim_byte_of(&p->from);
    const int64_t size = p->window.height * p->window.width;
    for (int64_t k = 0; k < planes; k++, x += size) y[k] = mean_of(p, (int32_t)(bytes_sum(x, of.flip, size) - size * of.zero), (float)size);
}

static void pool(const pysim_byte_pool *p, int64_t planes, const uint8_t *x, uint8_t *y) {
    const pysim_pool *w = &p->window;
    const int64_t tall = w->height + w->pad_top + w->pad_bottom;
    const int near = span_of(w) <= COLUMNS && w->out_w <= COLUMNS;
    const int whole = w->kernel_h == w->height && w->kernel_w == w->width && tall == w->height && !w->pad_left && !w->pad_right &&
                      w->dilation_h == 1 && w->dilation_w == 1;
    if (!w->largest && whole && w->out_h == 1 && w->out_w == 1) {
        mean_planes(p, planes, x, y);
        return;
    }
    for (int64_t k = 0; k < planes; k++, x += w->height * w->width)
        for (int64_t row = 0; row < w->out_h; row++, y += w->out_w) {
            int64_t r0, r1;
            const int64_t top = row * w->stride_h - w->pad_top;
            inside(top, w->height, w->kernel_h, w->dilation_h, &r0, &r1);
            const int64_t high = counted(w, top, tall, w->kernel_h, w->dilation_h, w->pad_top, r1 - r0);
            const uint8_t *from = r1 > r0 ? x + (top + r0 * w->dilation_h) * w->width : x;
            if (!near) far_row(p, x, top, r0, r1, high, y);
            else if (w->largest) largest_row(p, from, r1 - r0, y);
            else mean_row(p, from, r1 - r0, high, y);
        }
}

static void pad(const pysim_byte_pad *p, const uint8_t *restrict x, uint8_t *restrict y) {
    const uint8_t flip = (uint8_t)p->flip, value = p->zero ? *p->zero ^ flip : (uint8_t)p->value;
    const int64_t width = p->left + p->width + p->right;
    for (int64_t k = 0; k < p->planes; k++) {
        __builtin_memset(y, value, (size_t)(p->top * width));
        y += p->top * width;
        for (int64_t row = 0; row < p->height; row++, x += p->width, y += width) {
            __builtin_memset(y, value, (size_t)p->left);
            for (int64_t i = 0; i < p->width; i++) y[p->left + i] = x[i] ^ flip;
            __builtin_memset(y + p->left + p->width, value, (size_t)p->right);
        }
        __builtin_memset(y, value, (size_t)(p->bottom * width));
        y += p->bottom * width;
    }
}

#include "integers/channels_last.h"
#include "integers/products.h"

#define TABLE(target, dtype)                                                                              \
    const pysim_integers pysim_integers__##target = {                                                     \
        quantize,      dequantize,       means,         range, sums, pair, table, add, pool, pad, gather, \
        pool_channels, transposed_image, words_of_rows, totals};
#define PYSIM_INTEGERS(target, dtype) MINE(target, dtype, TABLE)(target, dtype)
#include "integers.inc"
#else
typedef int pysim_nothing; /* there are none of doubles */
#endif
