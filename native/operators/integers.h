/* SPDX-License-Identifier: Apache-2.0
 * Loops over quantised elements. An element q of 8 bits stands for scale (q - zero). Loops see unsigned bytes: a signed one with its upper bit
 * flipped is q + 128, so `flip` is 0x80 for signed elements, and their zero is 128 larger. */
#ifndef PYSIM_INTEGERS_H
#define PYSIM_INTEGERS_H
#include "kernel.h"

typedef struct {
    float scale;
    int32_t zero; /* of the unsigned byte */
    uint8_t flip;
} pysim_byte;

static inline pysim_byte pysim_byte_of(const pysim_quantity *q) {
    return (pysim_byte){q->scale, q->is_signed ? q->zero + 128 : q->zero, q->is_signed ? 0x80 : 0};
}

/* The windows of a convolution of an image of bytes with channels last; `fill` stands for the padding. */
typedef struct {
    const pysim_conv *conv;
    int64_t out_w;
    const uint8_t *image;
    int32_t fill;
} pysim_byte_windows;

typedef struct {
    /* y = saturate(round(x / scale) + zero) */
    void (*quantize)(int64_t count, pysim_byte to, const float *x, uint8_t *y);
    /* y = scale (x - zero) */
    void (*dequantize)(int64_t count, pysim_byte from, const uint8_t *x, float *y);
    /* Means of `channels` planes of `size` elements that lie element by element beside each other. */
    void (*means)(int64_t channels, int64_t size, pysim_byte from, const uint8_t *x, float *y);
    void (*range)(int64_t count, const float *x, float *low, float *high); /* of x and 0 */
    /* Outer rows begin..end. */
    void (*sums)(const pysim_sums *s, int64_t begin, int64_t end, const void *x, void *y);
    /* One run of the innermost axis. */
    void (*pair)(const pysim_byte_pair *p, int64_t count, int64_t a_step, int64_t b_step, const uint8_t *a, const uint8_t *b, uint8_t *y);
    /* y = table[x]; y may be x. */
    void (*table)(const uint8_t *table, int64_t count, const uint8_t *x, uint8_t *y);
    /* y = sum of x, which has `zero`, and a residual; y may be x. */
    void (*add)(const pysim_byte_sum *s, pysim_byte of, int64_t count, const uint8_t *x, const uint8_t *residual, uint8_t *y);
    void (*pool)(const pysim_byte_pool *p, int64_t planes, const uint8_t *x, uint8_t *y);
    void (*pad)(const pysim_byte_pad *p, const uint8_t *x, uint8_t *y);
    /* Elements [k0, k1) of `count` windows, k = [kernel row][kernel column][channel], as rows `pitch` bytes apart; what lies behind a row may change. */
    void (*gather)(const pysim_byte_windows *w, int64_t first, int64_t count, int64_t k0, int64_t k1, int64_t pitch, uint8_t *to);
    /* A pool of an image with channels last, window.block of them. */
    void (*pool_channels)(const pysim_byte_pool *p, const uint8_t *x, uint8_t *y);
    /* y[column][row] = x[row][column] */
    void (*transposed)(int64_t rows, int64_t columns, const uint8_t *x, uint8_t *y);
    /* Of up to 4 rows of b ^ flip, signed: to[column] = those of a column, zeros behind them; sums[column] grows by them. */
    void (*words)(int64_t rows, int64_t columns, uint8_t flip, const uint8_t *b, uint32_t *to, int32_t *sums);
    void (*totals)(int64_t rows, int64_t k, uint8_t flip, const uint8_t *a, int32_t *sums); /* of each row of a ^ flip, unsigned */
} pysim_integers;

/* The loops of the best target that runs on this CPU. */
const pysim_integers *pysim_integers_here(void);
#endif
