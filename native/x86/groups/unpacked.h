/* SPDX-License-Identifier: Apache-2.0
 * Form `unpacked` (contract: native/kernel.h): lanes hold groups of weights, in panels made beforehand, and a group of a pixel is broadcast from where
 * it lies. So nothing of 1x1 layers is packed in a run. Unlike form pixels, products of a group are added in the accumulator's 32 bits.
 *
 * A call takes its pixels some at a time, as many as leave a register for each vector of weights and one for the pixel. */
#define MOST_OF(nv) ((nv) == 4 ? 6 : (nv) == 3 ? 9 : 14)

INLINE uint32_t word_of(const uint8_t *bytes) {
    uint32_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
}

/* Rows `pitch` bytes apart. Addresses are made of few registers: GCC would keep one for each row. */
INLINE void add_rows(const int nv, const int some, int64_t groups, const uint8_t *row, int64_t pitch, const uint32_t *w, int64_t w_pitch,
                     SUMS acc[MAX_FILTERS][MAX_VECTORS]) {
    int64_t three = 3 * pitch, five = 5 * pitch;
    __asm__("" : "+r"(three), "+r"(five));
    for (int64_t p = 0; p < groups; p++, row += sizeof *w, w += w_pitch) {
        FACTORS x[MAX_VECTORS];
        const uint8_t *base = row;
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) x[v] = OPERAND_OF(w_load(w + v * LANES), 0);
#pragma GCC unroll 14
        for (int j = 0; j < some; j++) {
            if (j > 0 && j % 6 == 0) {
                base += 2 * three;
                __asm__("" : "+r"(base));
            }
            const int64_t at[] = {0, pitch, 2 * pitch, three, 4 * pitch, five};
            const FACTORS y = OPERAND_OF(w_set1(word_of(base + at[j % 6])), 1);
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++) acc[j][v] = MULTIPLIED(acc[j][v], y, x[v]);
        }
    }
}

/* Blocks of pixels of about the same size. */
static void all_rows(int64_t k, const void *filters, const void *windows, int64_t w_pitch, void *out, int64_t out_pitch, int64_t nw,
                     int64_t nf, const pysim_store *s) {
    const int64_t each = s->rescale.scales && s->rescale.result != PYSIM_F32 ? 1 : (int64_t)sizeof(T);
    const int64_t nv = (nw + LANES - 1) / LANES, parts = pysim_ceil_div(nf, MOST_OF(nv)), some = nf / parts, longer = nf % parts;
    for (int64_t part = 0, first = 0; part < parts; part++) {
        const int64_t count = some + (part < longer);
        sizes[nv][count](first, k, (const char *)filters + first * s->filter_pitch, s->filter_pitch, windows, w_pitch,
                         (char *)out + first * out_pitch * each, out_pitch, nw, s);
        first += count;
    }
}

#define UNPACKED3(dtype, w, f, target) dtype##_unpacked_##w##x##f##__##target
#define UNPACKED2(dtype, w, f, target) UNPACKED3(dtype, w, f, target)
#define UNPACKED(w, f)                              \
    void UNPACKED2(DTYPE, w, f, TARGET)(ARGUMENTS); \
    void UNPACKED2(DTYPE, w, f, TARGET)(ARGUMENTS) { all_rows(k, filters, windows, window_pitch, out, out_pitch, nw, nf, store); }
UNPACKED(64, 54)
