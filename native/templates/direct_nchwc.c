/* SPDX-License-Identifier: Apache-2.0
 * The kernels of direct_nchwc.inc. Lanes hold the filters of a block; a tile
 * is P neighbouring pixels of an output row x F vectors of filters, all accumulators in registers:
 *
 *   out[f][p] += sum over channel blocks b, kernel rows r, taps s, i < inner  filters[b][r][s][i][f] input[b][r][s][p][i]
 *
 * If DEPTH is 2 (bf16), two neighbouring input elements are, and meet two weights of each filter, [i / 2][f][2].
 * Each input element is broadcast for F multiply-adds and each vector of filters is loaded once for P of them: P + F loads for P F multiply-adds.
 * Nothing is packed. */
#define BLOCKS_OF_FOUR /* at least */
#include "instance.h"

enum { MAX_PIXELS = 28, MAX_FILTER_VECTORS = 4 };
enum { FARTHEST = sizeof(VEC) <= 32 ? 2 : 0 }; /* blocks between pixels up to which they are constants of a loop of their own (add_block) */

/* Prefetches the output lines of the next tile but one: memory is further away than a tile of few channels takes. Pixels of a block are
 * contiguous in memory, and so are rows. */
enum { TILES_AHEAD = 2, ROWS_AHEAD = 96, LINE = 64 / sizeof(T), LINE_VECTORS = 64 / (LANES * sizeof(T)), WIDE = LANES * DEPTH };
INLINE void fetch_tile(const int P, const int F, const T *at, int64_t vector, int64_t vectors) {
    for (int f = 0; f < F && f < vectors; f++)
#pragma GCC unroll 1
        for (int p = 0; p < P; p += LINE_VECTORS) __builtin_prefetch(at + f * vector + (TILES_AHEAD * P + p) * LANES, 1);
}

/* Adds the products of one element and F vectors of filters to pixel p. */
INLINE void multiply_pixel(const int F, const VEC filter[MAX_FILTER_VECTORS], const void *element, VEC acc[MAX_FILTER_VECTORS][MAX_PIXELS],
                           int p) {
    const VEC v = v_element(element);
#pragma GCC unroll 4
    for (int f = 0; f < F; f++) acc[f][p] = v_products(filter[f], v, acc[f][p]);
}

/* Bytes between pixels: x86 addressing scales an index register by 1, 2, 4 or 8, so these three and one pointer reach seven pixels. */
enum { REACH = 7 };
typedef struct {
    int64_t one, three, five;
} PITCHES;
INLINE PITCHES pitches_of(const pysim_nchwc_tile *t) {
    PITCHES by = {t->pixel * (int64_t)sizeof(T), 3 * t->pixel * (int64_t)sizeof(T), 5 * t->pixel * (int64_t)sizeof(T)};
    __asm__("" : "+r"(by.one), "+r"(by.three), "+r"(by.five)); /* otherwise GCC takes a register for each pixel */
    return by;
}
INLINE const char *pixel_at(const char *const from[MAX_PIXELS / REACH], const PITCHES *by, const int p) {
    const int rest = p % REACH;
    const int64_t odd = rest % 3 ? rest == 5 ? by->five : by->one : by->three;
    return from[p / REACH] + (rest == 5 ? odd : rest % 3 ? rest * odd : rest / 3 * odd);
}

/* Adds one tap of a kernel row, `inner` channels. x: the first pixel's elements; w: filters. `next`: lines of the next kernel row, one of which is
 * prefetched per channel. With EDGES the first and the last pixel are left out if their flags are 0. */
INLINE void add_tap(const int P, const int F, const int EDGES, int with_first, int with_last, const PITCHES *by, int64_t inner,
                    const char *x, const T *w, const T **next, const T *next_end, VEC acc[MAX_FILTER_VECTORS][MAX_PIXELS]) {
    const char *from[MAX_PIXELS / REACH];
#pragma GCC unroll 4
    for (int p = 0; p < P; p += REACH) from[p / REACH] = x + p * by->one;
#pragma GCC unroll 2
    for (int64_t i = 0; i < inner; i += DEPTH, w += F * WIDE) {
        VEC filter[MAX_FILTER_VECTORS];
#pragma GCC unroll 4
        for (int f = 0; f < F; f++) __builtin_prefetch(w + (ROWS_AHEAD * F + f) * WIDE);
#pragma GCC unroll 4
        for (int f = 0; f < F; f++) filter[f] = v_filters(w + f * WIDE);
        __builtin_prefetch(*next);
        *next += *next < next_end ? LINE : 0;
        if (EDGES) __asm__("" : "+r"(with_first), "+r"(with_last)); /* otherwise GCC compiles the loop four times */
#pragma GCC unroll 28
        for (int p = 0; p < P; p++)
            if (!EDGES || (p == 0 ? with_first : p < P - 1 || with_last)) multiply_pixel(F, filter, pixel_at(from, by, p), acc, p);
#pragma GCC unroll 4
        for (int p = 0; p < P; p += REACH) from[p / REACH] += DEPTH * sizeof(T);
    }
}

/* Adds one tap of a whole block for pixels [lo, hi), STEP blocks apart, the first at x: each element has a constant place, and one prefetch a line
 * suffices. `next`: from x to what is prefetched. The barriers keep GCC from loading elements early, for which it would spill accumulators. */
INLINE void add_block(int lo, int hi, const int F, const int STEP, const T *x, int64_t next, const T *w,
                      VEC acc[MAX_FILTER_VECTORS][MAX_PIXELS]) {
#pragma GCC unroll 28
    for (int p = lo; p < hi; p += STEP > 1 ? 1 : LINE_VECTORS) __builtin_prefetch(x + next + p * STEP * LANES);
#pragma GCC unroll 8
    for (int i = 0; i < LANES; i += DEPTH) {
        VEC filter[MAX_FILTER_VECTORS];
        __asm__("" : "+r"(x), "+r"(w));
#pragma GCC unroll 4
        for (int f = 0; f < F; f++)
            if ((i * F + f) % LINE_VECTORS == 0) __builtin_prefetch(w + ((ROWS_AHEAD + i) * F + f) * LANES);
#pragma GCC unroll 4
        for (int f = 0; f < F; f++) filter[f] = v_filters(w + i * F * LANES + f * WIDE);
#pragma GCC unroll 28
        for (int p = lo; p < hi; p++) multiply_pixel(F, filter, x + p * STEP * LANES + i, acc, p);
    }
}

/* Adds all blocks of a 1x1 kernel: a loop of its own, since registers do not suffice for three nested ones. */
INLINE const char *add_pointwise(const int P, const int F, const int STEP, const pysim_nchwc_tile *t, const T *x, const char *ahead,
                                 VEC acc[MAX_FILTER_VECTORS][MAX_PIXELS]) {
    const int64_t blocks = t->blocks, block = t->block, lines = t->ahead_lines;
    const T *w = t->filters;
    for (int64_t b = 0; b < blocks; b++, x += block, w += t->filter_block) {
        for (int64_t l = 0; l < lines; l++, ahead += 64) __builtin_prefetch(ahead, 0, 2);
        add_block(0, P, F, STEP, x, block, w, acc);
    }
    return ahead;
}

/* Adds all blocks, kernel rows and taps of a tile. STEP: blocks between pixels, 0 if unknown. Returns what is prefetched next. */
INLINE const char *add_blocks(const int P, const int F, const int STEP, const int EDGES, const pysim_nchwc_tile *t, const T *input,
                              const char *ahead, VEC acc[MAX_FILTER_VECTORS][MAX_PIXELS]) {
    const PITCHES by = pitches_of(t);
    const int64_t run = (P - 1) * t->pixel + (t->taps - 1) * t->tap + t->inner;
    for (int64_t b = 0; b < t->blocks; b++)
        for (int64_t r = 0; r < t->rows; r++) {
            const T *row = input + b * t->block + r * t->row, *next = row;
            if (r + 1 < t->rows) next = row + t->row;
            else if (b + 1 < t->blocks) next = row + t->block - r * t->row;
            const int64_t away = next - row;
            const T *next_end = next + run;
            for (int64_t s = 0; s < t->taps; s++) {
                const T *x = row + s * t->tap, *w = (const T *)t->filters + b * t->filter_block + r * t->filter_row + s * t->filter_tap;
                const int with_last = s < t->taps - t->without_last, with_first = s >= t->without_first && (P > 1 || with_last);
                for (int64_t l = 0; l < t->ahead_lines; l++, ahead += 64) __builtin_prefetch(ahead, 0, 2);
                if (STEP == 0 && (!EDGES || (with_first && with_last)))
                    add_tap(P, F, 0, 1, 1, &by, t->inner, (const char *)x, w, &next, next_end, acc);
                else if (STEP == 0) add_tap(P, F, 1, with_first, with_last, &by, t->inner, (const char *)x, w, &next, next_end, acc);
                else if (!EDGES || (with_first && with_last)) add_block(0, P, F, STEP, x, away, w, acc);
                else if (with_first) add_block(0, P - 1, F, STEP, x, away, w, acc);
                else if (with_last) add_block(1, P, F, STEP, x, away, w, acc);
                else add_block(1, P - 1, F, STEP, x, away, w, acc);
            }
        }
    return ahead;
}

#ifdef STORED_NARROW
enum { ONE_SET = 1 }; /* results are rounded once */
#else
enum { ONE_SET = 0 };
#endif

/* Adds a channel set to the results of a tile: bias, residual, bounds. `out_vector` elements between vectors of both. */
INLINE void store_tile(const int P, const int F, const pysim_nchwc_tile *t, T *out, const T *residual,
                       VEC acc[MAX_FILTER_VECTORS][MAX_PIXELS]) {
    const VEC low = v_set1((NUMBER)t->bounds.low), high = v_set1((NUMBER)t->bounds.high);
    const int bounded = t->last && (t->bounds.low > -__builtin_inf() || t->bounds.high < __builtin_inf());
    const NUMBER *bias = t->bias;
#pragma GCC unroll 4
    for (int f = 0; f < F; f++, out += t->out_vector) {
        if (f >= t->vectors) break;
        const VEC start = bias ? v_load_numbers(bias + f * LANES) : v_zero();
        const T *sums = out, *const last = residual ? residual + f * t->out_vector : NULL;
        if (t->first || ONE_SET) {
#pragma GCC unroll 28
            for (int p = 0; p < P; p++) acc[f][p] = v_add(acc[f][p], start);
            sums = last;
        }
#pragma GCC unroll 1 /* sums before, then the residual, by the same code */
        for (const T *more = sums; more; more = more == last ? NULL : last)
#pragma GCC unroll 28
            for (int p = 0; p < P; p++) acc[f][p] = v_add(acc[f][p], v_load(more + p * LANES));
        if (bounded)
#pragma GCC unroll 28
            for (int p = 0; p < P; p++) acc[f][p] = v_between(low, high, acc[f][p]);
#pragma GCC unroll 28
        for (int p = 0; p < P; p++) v_store(out + p * LANES, acc[f][p]);
    }
}

/* `tiles` neighbouring tiles of P pixels. Returns what is prefetched next. */
ONE_OF_MANY const char *direct_tiles(const int P, const int F, const int STEP, const int EDGES, const pysim_nchwc_tile *t, int64_t tiles) {
    const T *input = t->input, *residual = t->residual;
    const char *ahead = t->ahead;
    T *out = t->out;
    for (int64_t n = 0; n < tiles; n++, input += P * t->pixel, out += P * LANES, residual += residual ? P * LANES : 0) {
        VEC acc[MAX_FILTER_VECTORS][MAX_PIXELS];
#pragma GCC unroll 4
        for (int f = 0; f < F; f++)
#pragma GCC unroll 28
            for (int p = 0; p < P; p++) acc[f][p] = v_zero();
        fetch_tile(P, F, out, t->out_vector, t->vectors);
        if (residual) fetch_tile(P, F, residual, t->out_vector, t->vectors);
        if (STEP && !EDGES && t->rows == 1 && t->taps == 1) ahead = add_pointwise(P, F, STEP, t, input, ahead, acc);
        else ahead = add_blocks(P, F, STEP, EDGES, t, input, ahead, acc);
        store_tile(P, F, t, out, residual, acc);
    }
    return ahead;
}

/* One pixel of some panels. Filters are used once, so memory's speed is all that counts, and a core's prefetchers get twice as much from four
 * places at once as from one (Zen 3: 33 instead of 15 GB/s). */
INLINE void one_pixel(const int F, const pysim_nchwc_tile *t) {
    VEC acc[PYSIM_NCHWC_PANELS][MAX_FILTER_VECTORS][MAX_PIXELS];
    const T *x = t->input, *w = t->filters;
#pragma GCC unroll 4
    for (int n = 0; n < PYSIM_NCHWC_PANELS; n++)
#pragma GCC unroll 4
        for (int f = 0; f < F; f++) acc[n][f][0] = v_zero();
    for (int64_t b = 0; b < t->blocks; b++, x += t->block, w += t->filter_block)
        for (int64_t i = 0; i < t->inner; i += DEPTH) {
            const VEC v = v_element(x + i);
#pragma GCC unroll 4
            for (int n = 0; n < PYSIM_NCHWC_PANELS; n++)
#pragma GCC unroll 4
                for (int f = 0; f < F; f++)
                    acc[n][f][0] = v_products(v_filters(w + n * t->panel + i * F * LANES + f * WIDE), v, acc[n][f][0]);
        }
#pragma GCC unroll 4
    for (int n = 0; n < PYSIM_NCHWC_PANELS; n++) {
        const int64_t to = n * F * t->out_vector;
        pysim_nchwc_tile own = *t;
        if (t->bias) own.bias = (const NUMBER *)t->bias + n * F * LANES;
        store_tile(1, F, &own, (T *)t->out + to, t->residual ? (const T *)t->residual + to : NULL, acc[n]);
    }
}

#define NCHWC_CASE(P, F) \
    case P: return direct_tiles(P, F, STEP, EDGES, t, tiles);
#define NCHWC_PIXELS_3(F) NCHWC_CASE(1, F) NCHWC_CASE(2, F) NCHWC_CASE(3, F)
#define NCHWC_PIXELS_4(F) NCHWC_PIXELS_3(F) NCHWC_CASE(4, F)
#define NCHWC_PIXELS_6(F) NCHWC_PIXELS_4(F) NCHWC_CASE(5, F) NCHWC_CASE(6, F)
#define NCHWC_PIXELS_7(F) NCHWC_PIXELS_6(F) NCHWC_CASE(7, F)
#define NCHWC_PIXELS_9(F) NCHWC_PIXELS_7(F) NCHWC_CASE(8, F) NCHWC_CASE(9, F)
#define NCHWC_PIXELS_12(F) NCHWC_PIXELS_9(F) NCHWC_CASE(10, F) NCHWC_CASE(11, F) NCHWC_CASE(12, F)
#define NCHWC_PIXELS_14(F) NCHWC_PIXELS_12(F) NCHWC_CASE(13, F) NCHWC_CASE(14, F)
/* clang-format off */
#define NCHWC_PIXELS_28(F)                                                                                                       \
    NCHWC_PIXELS_14(F) NCHWC_CASE(15, F) NCHWC_CASE(16, F) NCHWC_CASE(17, F) NCHWC_CASE(18, F) NCHWC_CASE(19, F) NCHWC_CASE(20, F) \
    NCHWC_CASE(21, F) NCHWC_CASE(22, F) NCHWC_CASE(23, F) NCHWC_CASE(24, F) NCHWC_CASE(25, F) NCHWC_CASE(26, F) NCHWC_CASE(27, F)   \
    NCHWC_CASE(28, F)
/* clang-format on */

#define NCHWC_TILES(name, P, F, step, edges)                                                      \
    static __attribute__((noinline)) const char *name(const pysim_nchwc_tile *t, int64_t tiles) { \
        enum { STEP = step, EDGES = edges };                                                      \
        switch (t->pixels) { NCHWC_PIXELS_##P(F) default : return t->ahead; }                     \
    }

typedef const char *(*tiles_function)(const pysim_nchwc_tile *, int64_t);

/* Divides the pixels evenly: some tiles, and others of one pixel less. Only the first and the last tile leave out pixels. */
INLINE void each_size(const int P, const pysim_nchwc_tile *t, tiles_function compute, tiles_function compute_edge) {
    pysim_nchwc_tile some = *t;
    for (int64_t rest = t->pixels, tiles = (rest + P - 1) / P, count; tiles > 0; tiles -= count, rest -= count * some.pixels) {
        some.pixels = (rest + tiles - 1) / tiles;
        some.without_first = rest == t->pixels ? t->without_first : 0;
        count = some.without_first ? 1 : rest - (some.pixels - 1) * tiles;
        if (t->without_last && count == tiles && count > 1) count--;
        some.without_last = count == tiles ? t->without_last : 0;
        some.ahead = (some.without_first || some.without_last ? compute_edge : compute)(&some, count);
        some.input = (const T *)some.input + count * some.pixels * t->pixel;
        some.out = (T *)some.out + count * some.pixels * LANES;
        if (some.residual) some.residual = (const T *)some.residual + count * some.pixels * LANES;
    }
}

static const pysim_nchwc_kernel ROWS_OF_VECTORS[MAX_FILTER_VECTORS + 1]; /* by vectors of filters */

/* Defines a row of the registry: tiles of up to P pixels x F vectors. A last panel of fewer vectors is computed by their row. Tiles that leave out
 * pixels have functions of their own where there are 16 registers: in a common one GCC allocates them differently, and tiles that leave out
 * nothing take up to 5 % longer (Zen 4, 1x1, tiles of 12 x 8 on AVX2). With 32 registers one is as fast. */
#define DEFINE_NCHWC(name, P, F)                                                                       \
    NCHWC_TILES(name##_any, P, F, 0, 0)                                                                \
    NCHWC_TILES(name##_any_edge, P, F, 0, 1)                                                           \
    NCHWC_TILES(name##_1, P, F, 1, 0)                                                                  \
    NCHWC_TILES(name##_1_edge, P, F, 1, 1)                                                             \
    NCHWC_TILES(name##_2, P, F, 2, 0)                                                                  \
    void name(const pysim_nchwc_tile *t) {                                                             \
        const int64_t step = t->inner == LANES && t->pixel <= FARTHEST * LANES ? t->pixel / LANES : 0; \
        if (t->panels > 1) one_pixel(F, t);                                                            \
        else if (t->vectors < F) ROWS_OF_VECTORS[t->vectors](t);                                       \
        else if (!FARTHEST) each_size(P, t, name##_any_edge, name##_any_edge);                         \
        else if (FARTHEST && step == 1) each_size(P, t, name##_1, name##_1_edge);                      \
        else if (FARTHEST && step == 2) each_size(P, t, name##_2, name##_any_edge);                    \
        else each_size(P, t, name##_any, name##_any_edge);                                             \
    }

/* The rows of direct_nchwc.inc for these vectors */
#define DEFINED(target, dtype, form, windows, filters, lanes) \
    DEFINE_NCHWC(dtype##_##form##_##windows##x##filters##__##target, windows, filters / lanes)
#define PYSIM_NCHWC_ROW(target, dtype, form, windows, filters, lane_windows, lane_filters) \
    MINE(target, dtype, DEFINED)(target, dtype, form, windows, filters, lane_filters)
#include "direct_nchwc.inc"

#undef DEFINED
#undef PYSIM_NCHWC_ROW
#define DEFINED(target, dtype, form, windows, filters, lanes) [filters / lanes] = dtype##_##form##_##windows##x##filters##__##target,
#define PYSIM_NCHWC_ROW(target, dtype, form, windows, filters, lane_windows, lane_filters) \
    MINE(target, dtype, DEFINED)(target, dtype, form, windows, filters, lane_filters)
static const pysim_nchwc_kernel ROWS_OF_VECTORS[MAX_FILTER_VECTORS + 1] = {
#include "direct_nchwc.inc"
};
