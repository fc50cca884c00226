/* SPDX-License-Identifier: Apache-2.0
 * Products with weights of four bits (contract: pysim_few_bits, native/abi/operators.h). Included by loops.c for floats.
 *
 * Lanes hold the columns of a panel. A word of 32 bits has eight neighbouring k of its column; one shift and one look-up make numbers of the words of a
 * vector. The sums of a block are multiplied by its scales once. One row and two have several sums of each column, of every fourth or second k, since they
 * would wait for each other. Tiles have few rows: those of x are often multiples of 4 KiB apart, and more of them than a set of L1 has ways evict each other
 * (12 x 4096 x 4096 by 12 rows of one panel 41 G multiply-adds a second, by 6 of two panels 47; Zen 4). */

enum {
    BITS_OF_PANEL = PYSIM_PANEL / LANES, /* vectors */
    BITS_VECTORS = BITS_OF_PANEL == 1 ? PYSIM_FEW_BITS_PANELS : BITS_OF_PANEL,
    BITS_PANELS = BITS_VECTORS / BITS_OF_PANEL,
    BITS_ROWS = LANES == 16 ? 6 : 3,
    BITS_SUMS = 4,    /* that do not wait for each other */
    BITS_AHEAD = 4096 /* bytes. 1 x 4096 x 11008, 0, 1024, 2048, 4096 and 8192: 1,562, 1,620, 1,473, 1,375 and 1,377 us (Zen 4) */
};

#ifndef V_NIBBLES
typedef int32_t NIBBLES __attribute__((vector_size(sizeof(VEC))));
INLINE NIBBLES v_nibbles(const uint32_t *p) {
    NIBBLES v;
    memcpy(&v, p, sizeof v);
    return v;
}
/* Nibble i of each word, less 8. */
INLINE VEC v_nibble(NIBBLES v, const int i) { return (VEC) __builtin_convertvector(((v >> 4 * i) & 15) - 8, VEC); }
#endif

/* The weights of one vector: where its words begin, and of its block the scales and what is beyond 8 of its zeros. */
typedef struct {
    const uint32_t *words;
    VEC scale, zero;
} bits_vector;

/* A block of `k`: `sum` more. */
INLINE void bits_block(const int rows, const int vectors, const int has_zeros, int64_t k, int64_t pitch, const T *x,
                       const bits_vector of[BITS_VECTORS], VEC sum[BITS_ROWS][BITS_VECTORS]) {
    const int parts = rows * vectors >= BITS_SUMS ? 1 : BITS_SUMS / (rows * vectors);
    VEC own[BITS_ROWS][BITS_VECTORS][BITS_SUMS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
#pragma GCC unroll 4
            for (int s = 0; s < parts; s++) own[r][v][s] = v_zero();
    for (int64_t j = 0; j < k; j += PYSIM_NIBBLES) {
        NIBBLES word[BITS_VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            const uint32_t *at = of[v].words + j / PYSIM_NIBBLES * PYSIM_PANEL;
            word[v] = v_nibbles(at);
            if (v % BITS_OF_PANEL == 0) __builtin_prefetch((const char *)at + BITS_AHEAD);
        }
#pragma GCC unroll 8
        for (int i = 0; i < PYSIM_NIBBLES; i++) {
            VEC w[BITS_VECTORS];
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) {
                w[v] = v_nibble(word[v], i);
                if (has_zeros) w[v] = w[v] - of[v].zero;
            }
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                const VEC b = v_set1(x[r * pitch + j + i]);
#pragma GCC unroll 4
                for (int v = 0; v < vectors; v++) own[r][v][i % parts] = v_fma(b, w[v], own[r][v][i % parts]);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
#pragma GCC unroll 2
            for (int s = parts / 2; s > 0; s /= 2)
#pragma GCC unroll 2
                for (int p = 0; p < s; p++) own[r][v][p] = v_add(own[r][v][p], own[r][v][p + s]);
            sum[r][v] = v_fma(of[v].scale, own[r][v][0], sum[r][v]);
        }
}

/* `rows` rows of `panels` panels, the first of which begins at column n. */
ONE_OF_MANY void bits_tile(const int rows, const int panels, const int has_zeros, const pysim_few_bits *b, int64_t n, const T *x,
                           const char *panel, T *y) {
    const int vectors = panels * BITS_OF_PANEL;
    const int64_t each = pysim_few_bits_block_bytes(b), next = each * pysim_ceil_div(b->k, b->block);
    VEC sum[BITS_ROWS][BITS_VECTORS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            sum[r][v] = b->bias ? v_load_mask((const T *)b->bias + n + v * LANES, v_lanes(0, b->columns - n - v * LANES)) : v_zero();
    for (int64_t k = 0; k < b->k; k += b->block, panel += each) {
        bits_vector of[BITS_VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            const T *at = (const T *)(const void *)(panel + v / BITS_OF_PANEL * next) + v % BITS_OF_PANEL * LANES;
            of[v].scale = v_load(at), at += PYSIM_PANEL;
            of[v].zero = has_zeros ? v_load(at) : v_zero();
            of[v].words = (const uint32_t *)(const void *)(at + (has_zeros ? PYSIM_PANEL : 0));
        }
        bits_block(rows, vectors, has_zeros, pysim_min(b->block, b->k - k), b->k, x + k, of, sum);
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            const int64_t left = b->columns - n - v * LANES;
            T *to = y + r * b->columns + n + v * LANES;
            if (left >= LANES) v_store(to, sum[r][v]);
            else if (left > 0) v_store_mask(to, sum[r][v], v_lanes(0, left));
        }
}

#define BITS_TILES(count, panels)                                                                     \
    for (; r + (count) <= b->rows; r += (count))                                                      \
        if (b->has_zeros) bits_tile(count, panels, 1, b, n, x + r * b->k, panel, y + r * b->columns); \
        else bits_tile(count, panels, 0, b, n, x + r * b->k, panel, y + r * b->columns)

/* Panels begin..end of all rows. */
static void few_bits_panels(const pysim_few_bits *b, int64_t begin, int64_t end, const void *from, const void *weights, void *to) {
    const int64_t bytes = pysim_few_bits_block_bytes(b) * pysim_ceil_div(b->k, b->block);
    const T *x = from;
    T *y = to;
    for (int64_t p = begin; p < end; p += BITS_PANELS) {
        const char *panel = (const char *)weights + p * bytes;
        int64_t n = p * PYSIM_PANEL, r = 0;
        if (p + BITS_PANELS <= end) { BITS_TILES(BITS_ROWS, BITS_PANELS); }
        const int64_t whole = r;
        for (int64_t q = p; q < pysim_min(p + BITS_PANELS, end); q++, n += PYSIM_PANEL, panel += bytes) {
            r = whole;
            BITS_TILES(LANES == 16 ? 4 : BITS_ROWS, 1);
            BITS_TILES(2, 1);
            BITS_TILES(1, 1);
        }
    }
}
