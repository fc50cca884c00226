/* SPDX-License-Identifier: Apache-2.0
 * Vector-based packing on VSX (contracts: native/kernel.h), for elements of 1, 2, 4 and 8 bytes: packing only moves them.
 *
 * Stride 1: element (window j, tap s + 1) is element (window j + 1, tap s), so a row is loaded once for up to 4 taps (or as many as
 * lanes) and each of them is two neighbouring registers, shifted (vsldoi): ceil((count + taps - 1)/lanes) loads instead of
 * taps * ceil(count/lanes), so 5 instead of 12 for 16 windows of 4 bytes and 3 taps.
 * Stride t > 1: the columns of one phase (column modulo t) are such a chain, of every t-th tap; a dilated tap is a chain of its own.
 * Where columns leave the image, lxvl reads what exists and vslo moves it to its lanes. */
#include "vsx.h"

enum { BYTES_IN = 16, RAW = 64, CHUNKS = RAW / 2 };

/* Shifts down by `count` lanes, at most one vector: lane i of the result is lane i + count of the concatenation of low and high. */
INLINE BYTES shift_lanes(const int size, const int count, BYTES low, BYTES high) {
    switch (count * size) {
#define SHIFT(bytes) \
    case bytes: return vec_sld(high, low, 16 - bytes);
        SHIFT(1) SHIFT(2) SHIFT(3) SHIFT(4) SHIFT(6) SHIFT(8) SHIFT(12) default : return low;
    }
}

INLINE BYTES merge_high(const int size, BYTES a, BYTES b) {
    switch (size) {
    case 1: return vec_mergeh(a, b);
    case 2: return (BYTES)vec_mergeh((vector unsigned short)a, (vector unsigned short)b);
    case 4: return (BYTES)vec_mergeh((vector unsigned int)a, (vector unsigned int)b);
    default: return (BYTES)vec_mergeh((vector unsigned long long)a, (vector unsigned long long)b);
    }
}

INLINE BYTES merge_low(const int size, BYTES a, BYTES b) {
    switch (size) {
    case 1: return vec_mergel(a, b);
    case 2: return (BYTES)vec_mergel((vector unsigned short)a, (vector unsigned short)b);
    case 4: return (BYTES)vec_mergel((vector unsigned int)a, (vector unsigned int)b);
    default: return (BYTES)vec_mergel((vector unsigned long long)a, (vector unsigned long long)b);
    }
}

/* Lanes 0, 2, 4, ... of both. */
INLINE BYTES even_lanes(const int size, BYTES low, BYTES high) {
    static const unsigned char order[4][BYTES_IN] __attribute__((aligned(16))) = {
        {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30},
        {0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29},
        {0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27},
        {0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23},
    };
    return vec_perm(low, high, v_load(order[__builtin_ctz((unsigned)size)]));
}

/* A chain: virtual element e is column first + e*stride of a row, and window j of tap s is element j + s. */
typedef struct {
    const char *row;                         /* of channel 0 */
    char *dst;                               /* of channel 0, tap 0, window 0 */
    int64_t row_channel, dst_channel, pitch; /* bytes */
    int64_t channels, width, first, stride, taps, count;
} chain;

/* How to load a vector of adjacent columns of which some are outside [0, width). */
typedef struct {
    int64_t offset, bytes; /* what exists, from the row's start */
    BYTES shift;           /* shift in bits, as vslo takes it */
} place;

INLINE int64_t clamp(int64_t x, int64_t most) { return pysim_max(0, pysim_min(x, most)); }

INLINE place place_of(const int size, int64_t column, int64_t width) {
    const int64_t lanes = BYTES_IN / size, lo = clamp(-column, lanes), hi = clamp(width - column, lanes);
    const unsigned char up = (unsigned char)(lo < lanes ? 8 * size * lo : 0);
    return (place){hi > lo ? (column + lo) * size : 0, pysim_max(0, hi - lo) * size, vec_splats(up)};
}

/* Elements one by one: strides above 2. */
INLINE BYTES gather(const int size, const chain *c, const char *row, int64_t e) {
    BYTES v = {0};
    for (int64_t l = 0; l < BYTES_IN / size; l++) {
        const int64_t column = c->first + (e + l) * c->stride;
        if (column >= 0 && column < c->width) memcpy((char *)&v + l * size, row + column * size, (size_t)size);
    }
    return v;
}

/* Vector v of a chain; `edge` 0: inside the row, 1: partly outside. */
INLINE BYTES load(const int size, const int edge, const int64_t stride, const chain *c, const char *row, const place *at, int64_t v) {
    const int64_t lanes = BYTES_IN / size;
    if (stride > 2) return gather(size, c, row, v * lanes);
    BYTES raw[2];
#pragma GCC unroll 2
    for (int64_t i = 0; i < stride; i++) {
        const place *p = at + v * stride + i;
        raw[i] =
            edge ? vec_slo(v_load_first(row + p->offset, p->bytes), p->shift) : v_load(row + (c->first + (v * stride + i) * lanes) * size);
    }
    return stride == 2 ? even_lanes(size, raw[0], raw[1]) : raw[0];
}

/* `taps` of a chain, at most as many as lanes. Each vector is loaded once, and every tap's is it and the next one, shifted.
 * `whole` vectors are all that the windows fill, or it is 0: they fill the last one in part. */
INLINE void run_chain(const int size, const int edge, const int64_t stride, const int taps, const int whole, const chain *c) {
    const int64_t lanes = BYTES_IN / size, count = whole ? whole * lanes : c->count;
    const int64_t vectors = pysim_ceil_div(count + taps - 1, lanes), chunks = pysim_ceil_div(count, lanes);
    const int64_t last = (count - (chunks - 1) * lanes) * size;
    place at[RAW];
    if (edge)
        for (int64_t i = 0; i < vectors * stride; i++) at[i] = place_of(size, c->first + i * lanes, c->width);
    const char *row = c->row;
    char *dst = c->dst;
    for (int64_t channel = 0; channel < c->channels; channel++, row += c->row_channel, dst += c->dst_channel) {
        BYTES low = load(size, edge, stride, c, row, at, 0), high = low;
        char *to = dst;
#pragma GCC unroll 3
        for (int64_t v = 1; v < chunks; v++, low = high, to += BYTES_IN) {
            high = load(size, edge, stride, c, row, at, v);
#pragma GCC unroll 4
            for (int tap = 0; tap < taps; tap++) v_store(to + tap * c->pitch, shift_lanes(size, tap, low, high));
        }
        if (chunks < vectors) high = load(size, edge, stride, c, row, at, chunks);
#pragma GCC unroll 4
        for (int tap = 0; tap < taps; tap++)
            if (whole) v_store(to + tap * c->pitch, shift_lanes(size, tap, low, high));
            else v_store_first(to + tap * c->pitch, shift_lanes(size, tap, low, high), last);
    }
}

/* With constant bounds. */
INLINE void run_taps(const int size, const int edge, const int64_t stride, const int whole, const chain *c) {
    switch (c->taps) {
    case 1: run_chain(size, edge, stride, 1, whole, c); break;
    case 2: run_chain(size, edge, stride, 2, whole, c); break;
    case 3: run_chain(size, edge, stride, 3, whole, c); break;
    default: run_chain(size, edge, stride, 4, whole, c);
    }
}

INLINE void pack_chain(const int size, const chain *all) {
    const int64_t lanes = BYTES_IN / size, most = pysim_min(lanes, 4);
    chain c = *all;
    for (int64_t taps = all->taps; taps > 0; taps -= most, c.dst += most * c.pitch, c.first += most * c.stride) {
        c.taps = pysim_min(taps, most);
        const int64_t end = pysim_ceil_div(c.count + c.taps - 1, lanes) * lanes;
        if (c.stride > 2) run_taps(size, 0, 3, 0, &c);
        else if (c.stride == 2) run_taps(size, 1, 2, 0, &c);
        else if (c.first < 0 || c.first + end > c.width) run_taps(size, 1, 1, 0, &c);
        else if (c.count == 4 * lanes) run_taps(size, 0, 1, 4, &c);
        else run_taps(size, 0, 1, 0, &c);
    }
}

static void pack_zeros(const int size, const pysim_segment *s, char *dst) {
    for (int64_t c = 0; c < s->channels; c++, dst += s->dst_channel * size)
        for (int64_t tap = 0; tap < s->taps; tap++) memset(dst + tap * s->pitch * size, 0, (size_t)(s->count * size));
}

/* `phases` chains of every phases-th tap, `spacing` columns apart, cut into blocks that CHUNKS vectors hold. */
INLINE void pack_chains(const int size, void (*pack)(const chain *), const pysim_segment *s, char *dst, int64_t phases, int64_t spacing) {
    const int64_t lanes = BYTES_IN / size;
    for (int64_t p = 0; p < phases; p++) {
        const int64_t taps = pysim_ceil_div(s->taps - p, phases), most = (CHUNKS - pysim_ceil_div(taps - 1, lanes)) * lanes;
        for (int64_t j = 0; j < s->count; j += most) {
            const chain c = {
                .row = s->row,
                .dst = dst + (p * s->pitch + j) * size,
                .row_channel = s->row_channel * size,
                .dst_channel = s->dst_channel * size,
                .pitch = phases * s->pitch * size,
                .channels = s->channels,
                .width = s->width,
                .first = s->first + j * s->stride + p * spacing,
                .stride = s->stride,
                .taps = taps,
                .count = pysim_min(most, s->count - j),
            };
            pack(&c);
        }
    }
}

INLINE void pack_segment(const int size, void (*pack)(const chain *), const pysim_segment *s, void *dst) {
    const int64_t lanes = BYTES_IN / size, most_taps = CHUNKS / 2 * lanes;
    if (!s->row) pack_zeros(size, s, dst);
    else if (s->dilation == 1 && pysim_ceil_div(s->taps, s->stride) <= most_taps)
        pack_chains(size, pack, s, dst, pysim_min(s->stride, s->taps), 1);
    else pack_chains(size, pack, s, dst, s->taps, s->dilation);
}

/* An infinite or NaN element has an exponent of ones; adding one in the last place carries into the sign. */
INLINE BYTES carry_of(const int size, BYTES v) {
    switch (size) {
    case 2: return (BYTES)(((vector unsigned short)v & 0x7F80) + 0x80);
    case 4: return (BYTES)(((vector unsigned int)v & 0x7F800000) + 0x800000);
    case 8: return (BYTES)(((vector unsigned long long)v & 0x7FF0000000000000) + 0x10000000000000);
    default: return v ^ v; /* integers */
    }
}

/* lanes x lanes blocks: after log2(lanes) perfect shuffles vector i holds column i. */
INLINE void pack_transposed(const int size, const char *src, int64_t ld, int64_t rows, int64_t k, int64_t pitch, char *dst,
                            int *not_finite) {
    const int lanes = BYTES_IN / size;
    BYTES carry = {0};
    for (int64_t p = 0; p < k; p += lanes) {
        const int64_t depth = pysim_min(lanes, k - p) * size;
        for (int64_t i = 0; i < pitch; i += lanes) {
            BYTES r[BYTES_IN], t[BYTES_IN];
            const BYTES zero = {0};
#pragma GCC unroll 16
            for (int l = 0; l < lanes; l++) r[l] = i + l < rows ? v_load_first(src + ((i + l) * ld + p) * size, depth) : zero;
#pragma GCC unroll 16
            for (int l = 0; l < lanes; l++) carry |= carry_of(size, r[l]);
#pragma GCC unroll 4
            for (int stage = 1; stage < lanes; stage *= 2) {
#pragma GCC unroll 8
                for (int l = 0; l < lanes / 2; l++) {
                    t[2 * l] = merge_high(size, r[l], r[l + lanes / 2]);
                    t[2 * l + 1] = merge_low(size, r[l], r[l + lanes / 2]);
                }
#pragma GCC unroll 16
                for (int l = 0; l < lanes; l++) r[l] = t[l];
            }
            const int64_t bytes = pysim_min(lanes, pitch - i) * size;
#pragma GCC unroll 16
            for (int l = 0; l < lanes; l++)
                if (p + l < k) v_store_first(dst + ((p + l) * pitch + i) * size, r[l], bytes);
        }
    }
    for (int i = size - 1; i < BYTES_IN; i += size)
        if (not_finite && carry[i] >> 7) *not_finite = 1;
}

#define DEFINE_PACKER(dtype, size)                                                                                                         \
    static __attribute__((noinline)) void dtype##_chain(const chain *c) { pack_chain(size, c); }                                           \
    void pack_##dtype##__mma_segment(const pysim_segment *s, void *dst) { pack_segment(size, dtype##_chain, s, dst); }                     \
    void pack_##dtype##__mma_transposed(const void *src, int64_t ld, int64_t rows, int64_t k, int64_t pitch, void *dst, int *not_finite) { \
        pack_transposed(size, src, ld, rows, k, pitch, dst, not_finite);                                                                   \
    }
DEFINE_PACKER(f32, 4)
DEFINE_PACKER(f64, 8)
DEFINE_PACKER(bf16, 2)
DEFINE_PACKER(s8, 1)
