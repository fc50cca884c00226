/* SPDX-License-Identifier: Apache-2.0
 * Numbers of layers that become bytes: shifted, activated, multiplied and rounded in one pass. Included by loops.c, of floats. */

typedef uint8_t ROUNDED __attribute__((vector_size(LANES)));

/* What all numbers have in common: bounds before the zero point is added, and what makes the byte of a whole number. */
typedef struct {
    VEC low, high;
    uint32_t zero;
} rounding_ends;

/* The byte of each number, in the lowest of each lane's; that of a NaN is the least. Adding 1.5 2^23 rounds half to even. */
INLINE BITS rounded_bits(const rounding_ends *e, VEC x) {
    const BITS above = (BITS)(x > e->low);
    const VEC y = (VEC)((above & (BITS)x) | (~above & (BITS)e->low));
    const BITS below = (BITS)(y < e->high);
    return (BITS)((VEC)((below & (BITS)y) | (~below & (BITS)e->high)) + 12582912.0f) + e->zero;
}

/* `n` vectors; shifts and factors are those of columns, or one of each. */
INLINE void round_vectors(const int activation, const int n, VEC low, VEC high, const rounding_ends *e, const float *x, const float *shifts,
                          VEC shift, const float *factors, VEC factor, uint8_t *to) {
    VEC y[TOGETHER];
#pragma GCC unroll 4
    for (int v = 0; v < n; v++) y[v] = v_load(x + v * LANES) + (shifts ? v_load(shifts + v * LANES) : shift);
    activated(activation, low, high, n, y);
#pragma GCC unroll 4
    for (int v = 0; v < n; v++) {
        const ROUNDED bytes = __builtin_convertvector(rounded_bits(e, y[v] * (factors ? v_load(factors + v * LANES) : factor)), ROUNDED);
        memcpy(to + v * LANES, &bytes, LANES);
    }
}

/* `activation` is a constant. */
INLINE void round_as(const int activation, VEC low, VEC high, const pysim_rounding *r, const float *x, int64_t pitch, int64_t rows,
                     int64_t columns, uint8_t *out, int64_t out_pitch) {
    const uint32_t flip = r->result == PYSIM_S8 ? 0x80 : 0, zero = (uint32_t)r->zero + flip;
    const rounding_ends ends = {v_set1(-(float)zero), v_set1(255.0f - (float)zero), zero + flip}; /* + 0x80 flips the upper bit */
    const float *const shifts = r->along_windows ? r->shifts : NULL, *const factors =
                                                                         r->along_windows && r->factor_step ? r->factors : NULL;
    for (int64_t f = 0; f < rows; f++, x += pitch, out += out_pitch) {
        const VEC shift = v_set1(r->shifts && !shifts ? r->shifts[f] : 0);
        const VEC factor = v_set1(r->factors[r->along_windows ? 0 : f * r->factor_step]);
        int64_t i = 0;
        for (; i + TOGETHER * LANES <= columns; i += TOGETHER * LANES)
            round_vectors(activation, TOGETHER, low, high, &ends, x + i, shifts ? shifts + i : NULL, shift, factors ? factors + i : NULL,
                          factor, out + i);
        for (; i + LANES <= columns; i += LANES)
            round_vectors(activation, 1, low, high, &ends, x + i, shifts ? shifts + i : NULL, shift, factors ? factors + i : NULL, factor,
                          out + i);
        if (i == columns) continue;
        const size_t some = (size_t)(columns - i);
        float numbers[3][LANES] = {{0}};
        uint8_t bytes[LANES];
        memcpy(numbers[0], x + i, some * sizeof *x);
        if (shifts) memcpy(numbers[1], shifts + i, some * sizeof *x);
        if (factors) memcpy(numbers[2], factors + i, some * sizeof *x);
        round_vectors(activation, 1, low, high, &ends, numbers[0], shifts ? numbers[1] : NULL, shift, factors ? numbers[2] : NULL, factor,
                      bytes);
        memcpy(out + i, bytes, some);
    }
}

/* Rows of numbers of a layer get its shifts, where they lie. */
static void shift_rows(const pysim_rounding *r, float *numbers, int64_t pitch, int64_t rows, int64_t columns) {
    for (int64_t f = 0; f < rows; f++, numbers += pitch) {
        const float *const restrict shifts = r->shifts;
        for (int64_t i = 0; i < columns && r->along_windows; i++) numbers[i] += shifts[i];
        for (int64_t i = 0; i < columns && !r->along_windows; i++) numbers[i] += shifts[f];
    }
}

static void round_rows(const pysim_finish *f, const pysim_rounding *r, const float *numbers, int64_t pitch, int64_t rows, int64_t columns,
                       uint8_t *out, int64_t out_pitch) {
    const int is_relu = f->activation == PYSIM_EPILOGUE_relu;
    const VEC low = v_set1(is_relu ? 0 : (NUMBER)f->low), high = v_set1(is_relu ? (NUMBER)__builtin_inf() : (NUMBER)f->high);
    switch (f->activation) {
#define PYSIM_EPILOGUE(number, name, operations, function) \
    case number: round_as(number, low, high, r, numbers, pitch, rows, columns, out, out_pitch); break;
#include "epilogues.inc"
#undef PYSIM_EPILOGUE
    }
}
