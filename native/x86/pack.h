/* SPDX-License-Identifier: Apache-2.0
 * Vector-based packing (contract and layouts: native/kernel.h); included once per vector type.
 *
 * Stride 1: element (window j, tap s+1) is element (window j+1, tap s), so each row is loaded once and the chain of registers is
 * shifted down by one lane per tap: ceil((count + taps - 1)/LANES) loads instead of taps * ceil(count/LANES). The limit is the stores:
 * taps * ceil(count/LANES) of them, at 32 bytes a cycle on Zen 4.
 * Stride 2 to PHASES: `stride` vectors hold LANES windows of every phase (column mod stride); permutes separate the phases that have
 * taps, and each is a stride-1 chain of its own. Other strides and dilations gather each tap by itself.
 * Masks stand for the padding and keep every read inside the row. */

enum { MASK_TABLE = 128, CHAIN = 9, PHASES = 4 };

/* Prefetch distance in channels while rows are copied or separated by phase: rows are a plane or a matrix row apart, and a channel takes
 * little longer than its loads. Zen 5, 256 -> 512 channels, 56x56, 1x1 stride 2: 1.21 -> 0.98 ms; 256 -> 256, 28x28, 3x3 stride 2: 1.13
 * -> 1.05 (8 channels: 1.10 and 1.14). Columns of a 1024x1024 matrix from L3: 26 -> 15 cycles a vector. */
enum { CHANNELS_AHEAD = 16 };

/* Lanes of the vector at `column` that are inside the row and below `needed`. */
INLINE MASK lanes_in_row(int64_t column, int64_t width, int64_t needed) { return v_lanes(-column, pysim_min(width - column, needed)); }

static void pack_zero(const pysim_segment *s, T *dst) {
    for (int64_t c = 0; c < s->channels; c++, dst += s->dst_channel)
        for (int64_t tap = 0; tap < s->taps; tap++)
            for (int64_t j = 0; j < s->count; j += LANES) v_store_mask(dst + tap * s->pitch + j, v_zero(), v_lanes(0, s->count - j));
}

/* Any stride, one element at a time. */
static void pack_scalar(const pysim_segment *s, T *dst) {
    const T *row = s->row;
    for (int64_t c = 0; c < s->channels; c++, dst += s->dst_channel, row += s->row_channel)
        for (int64_t tap = 0; tap < s->taps; tap++)
            for (int64_t j = 0; j < s->count; j++) {
                const int64_t column = s->first + j * s->stride + tap * s->dilation;
                dst[tap * s->pitch + j] = column >= 0 && column < s->width ? row[column] : (T)0;
            }
}

/* One tap, stride 1, whole vectors inside the row: no masks. */
static void pack_whole_rows(const pysim_segment *s, T *dst, int64_t chunks, int64_t ahead) {
    const T *row = (const T *)s->row + s->first;
    for (int64_t c = 0; c < s->channels; c++, dst += s->dst_channel, row += s->row_channel)
        for (int64_t i = 0; i < chunks; i++) {
            __builtin_prefetch(row + ahead + i * LANES);
            v_store(dst + i * LANES, v_load(row + i * LANES));
        }
}

/* One tap, stride 1: copies runs of rows. */
static void pack_rows(const pysim_segment *s, T *dst) {
    const int64_t chunks = pysim_ceil_div(s->count, LANES);
    const int64_t ahead = s->channels > CHANNELS_AHEAD ? CHANNELS_AHEAD * s->row_channel : 0;
    if (s->first >= 0 && s->first + s->count <= s->width && s->count % LANES == 0) {
        pack_whole_rows(s, dst, chunks, ahead);
        return;
    }
    MASK load[CHAIN], keep[CHAIN];
    for (int64_t i = 0; i < chunks; i++) {
        load[i] = lanes_in_row(s->first + i * LANES, s->width, s->count - i * LANES);
        keep[i] = v_lanes(0, s->count - i * LANES);
    }
    const T *row = (const T *)s->row + s->first;
    for (int64_t c = 0; c < s->channels; c++, dst += s->dst_channel, row += s->row_channel)
        for (int64_t i = 0; i < chunks; i++) {
            __builtin_prefetch(row + ahead + i * LANES);
            v_store_mask(dst + i * LANES, v_load_mask(row + i * LANES, load[i]), keep[i]);
        }
}

/* Stride 1, dilation 1, chunks of at most (CHAIN - 1)*LANES windows: the shifted register chain. */
static void pack_chain(const pysim_segment *s, T *dst) {
    const int64_t chunks = pysim_ceil_div(s->count, LANES), needed = s->count + s->taps - 1;
    MASK load[CHAIN], keep[CHAIN];
    for (int64_t i = 0; i <= chunks; i++) {
        load[i] = lanes_in_row(s->first + i * LANES, s->width, needed - i * LANES);
        keep[i] = v_lanes(0, s->count - i * LANES);
    }
    const T *row = (const T *)s->row + s->first;
    for (int64_t c = 0; c < s->channels; c++, dst += s->dst_channel, row += s->row_channel) {
        VEC next = v_load_mask(row, load[0]);
        for (int64_t i = 0; i < chunks; i++) {
            VEC low = next, high = v_load_mask(row + (i + 1) * LANES, load[i + 1]);
            T *out = dst + i * LANES;
            next = high;
            v_store_mask(out, low, keep[i]);
            for (int64_t tap = 1; tap < s->taps; tap++) {
                low = v_shift1(low, high);
                high = v_shift1(high, v_zero());
                out += s->pitch;
                v_store_mask(out, low, keep[i]);
            }
        }
    }
}

/* A vector of windows of each of the first `phases` phases: permuted from `stride` vectors of the row, prefetched `ahead` elements on. */
INLINE void separate_phases(const int stride, int phases, const T *row, int64_t ahead, const MASK *load, const GATHER *plan, VEC *of) {
    VEC source[PHASES];
#pragma GCC unroll 4
    for (int v = 0; v < stride; v++) {
        __builtin_prefetch(row + ahead + v * LANES);
        source[v] = v_load_mask(row + v * LANES, load[v]);
    }
#pragma GCC unroll 4
    for (int p = 0; p < stride; p++) {
        if (p >= phases) break;
        of[p] = v_zero();
#pragma GCC unroll 4
        for (int v = 0; v < stride; v++) of[p] = v_gather_from(of[p], source[v], &plan[p], v);
    }
}

/* One chain per phase that has taps. `chained`: the first phase has several, and a vector of windows needs the next one; otherwise phase p
 * is tap p. Both are constants, so that plans and chains stay in registers. */
INLINE void phases_body(const int stride, const int chained, const pysim_segment *s, T *dst) {
    const int64_t chunks = pysim_ceil_div(s->count, LANES), needed = (s->count - 1) * stride + s->taps;
    const int64_t sources = pysim_ceil_div(needed, stride * LANES); /* vectors of each phase: `chunks`, or one more */
    const int phases = chained ? stride : (int)s->taps;
    MASK load[CHAIN * PHASES], keep[CHAIN];
    GATHER plan[PHASES];
    for (int p = 0; p < stride; p++) plan[p] = v_gather_plan(stride, p);
    for (int64_t v = 0; v < sources * stride; v++) load[v] = lanes_in_row(s->first + v * LANES, s->width, needed - v * LANES);
    for (int64_t i = 0; i < chunks; i++) keep[i] = v_lanes(0, s->count - i * LANES);
    const int64_t ahead = s->channels > CHANNELS_AHEAD ? CHANNELS_AHEAD * s->row_channel : 0;
    const T *row = (const T *)s->row + s->first;
    for (int64_t c = 0; c < s->channels; c++, dst += s->dst_channel, row += s->row_channel) {
        VEC now[PHASES], next[PHASES] = {v_zero()};
        if (chained) separate_phases(stride, phases, row, ahead, load, plan, next);
        for (int64_t i = 0; i < chunks; i++) {
            const int64_t source = i + chained, at = source * stride;
#pragma GCC unroll 4
            for (int p = 0; p < stride; p++) now[p] = next[p], next[p] = v_zero();
            if (source < sources) separate_phases(stride, phases, row + at * LANES, ahead, load + at, plan, next);
#pragma GCC unroll 4
            for (int p = 0; p < stride; p++) {
                if (p >= phases) break;
                T *out = dst + p * s->pitch + i * LANES;
                VEC low = chained ? now[p] : next[p], high = next[p];
                v_store_mask(out, low, keep[i]);
                for (int64_t tap = p + stride; chained && tap < s->taps; tap += stride) {
                    low = v_shift1(low, high);
                    high = v_shift1(high, v_zero());
                    out += stride * s->pitch;
                    v_store_mask(out, low, keep[i]);
                }
            }
        }
    }
}

static void pack_phases(const pysim_segment *s, T *dst) {
    switch (s->stride * 2 + (s->taps > s->stride)) {
    case 4: phases_body(2, 0, s, dst); break;
    case 5: phases_body(2, 1, s, dst); break;
    case 6: phases_body(3, 0, s, dst); break;
    case 7: phases_body(3, 1, s, dst); break;
    case 8: phases_body(4, 0, s, dst); break;
    default: phases_body(4, 1, s, dst); break;
    }
}

/* Any stride up to GATHER_MAX and any dilation. */
static void pack_strided(const pysim_segment *s, T *dst) {
    const GATHER plan = v_gather_plan(s->stride, 0);
    const int64_t block = MASK_TABLE / s->stride;
    MASK load[MASK_TABLE];
    for (int64_t j = 0; j < s->count; j += LANES) {
        const int64_t n = pysim_min(LANES, s->count - j), needed = (n - 1) * s->stride + 1;
        const int64_t vectors = pysim_ceil_div(needed, LANES);
        const MASK keep = v_lanes(0, n);
        for (int64_t tap0 = 0; tap0 < s->taps; tap0 += block) {
            const int64_t taps = pysim_min(block, s->taps - tap0);
            const int64_t base = s->first + j * s->stride + tap0 * s->dilation;
            for (int64_t tap = 0; tap < taps; tap++)
                for (int64_t i = 0; i < vectors; i++)
                    load[tap * vectors + i] = lanes_in_row(base + tap * s->dilation + i * LANES, s->width, needed - i * LANES);
            const T *row = (const T *)s->row + base;
            T *out = dst + tap0 * s->pitch + j;
            for (int64_t c = 0; c < s->channels; c++, row += s->row_channel, out += s->dst_channel)
                for (int64_t tap = 0; tap < taps; tap++) {
                    VEC v = v_load_mask(row + tap * s->dilation, load[tap * vectors]);
                    if (s->stride > 1) {
                        v = v_gather_from(v_zero(), v, &plan, 0);
                        for (int64_t i = 1; i < vectors; i++)
                            v = v_gather_from(v, v_load_mask(row + tap * s->dilation + i * LANES, load[tap * vectors + i]), &plan, i);
                    }
                    v_store_mask(out + tap * s->pitch, v, keep);
                }
        }
    }
}

static void pack_segment(const pysim_segment *s, T *dst) {
    if (s->row == NULL) pack_zero(s, dst);
    else if (s->stride == 1 && s->taps == 1 && s->count <= (CHAIN - 1) * LANES) pack_rows(s, dst);
    else if (s->stride == 1 && s->dilation == 1 && s->taps - 1 <= LANES && s->count <= (CHAIN - 1) * LANES) pack_chain(s, dst);
    else if (s->stride > 1 && s->stride <= PHASES && s->dilation == 1 && (s->taps - 1) / s->stride <= LANES &&
             s->count <= (CHAIN - 1) * LANES)
        pack_phases(s, dst);
    else if (s->stride <= GATHER_MAX) pack_strided(s, dst);
    else pack_scalar(s, dst);
}

#include "templates/transpose.h"

/* Bytes of an L1 way on x86, 64 sets of 64: rows a multiple of it apart map to the same sets. */
enum { L1_WAY = 4096 };

/* Prefetch distances of a transposition: LINES_AHEAD vectors along each source row, STEPS_AHEAD rows of the panel, whose lines are
 * written in parts. Panels of 14 rows of a 1024x1024 matrix from L3 (Zen 5): 37 -> 15 cycles a vector; 35 with the former alone, 18 with
 * the latter. */
enum { LINES_AHEAD = 4, STEPS_AHEAD = 64 };

/* Transposes a block of LANES rows, at src + row[l], and `depth` of k; `whole`: all of LANES. `crowded`: the rows share sets of L1, so
 * each line is loaded once and prefetched into L2 alone; otherwise lines are lost between two loads. 512 rows 8 KiB apart into panels of
 * 32 rows: 13.3 -> 8.1 cycles a vector, of 14: 10.5 -> 9.2; rows 9 KiB apart 7.7 and 7.5 (Zen 4, from L2). Adds the elements times zero
 * to zeros[]. Not inlined: in the loop GCC would keep more row addresses than there are registers. */
static __attribute__((noinline)) void transpose_block(const int whole, const int crowded, const int looks, const T *src,
                                                      const int64_t row[LANES], int64_t rows, int64_t depth, int64_t pitch, MASK keep,
                                                      T *dst, VEC zeros[2]) {
    VEC r[LANES];
#pragma GCC unroll 16
    for (int l = 0; l < LANES; l++)
        if (crowded) __builtin_prefetch(src + row[l] + LINES_AHEAD * LANES, 0, 2);
        else __builtin_prefetch(src + row[l] + LINES_AHEAD * LANES);
#pragma GCC unroll 16
    for (int l = 0; l < LANES; l++) __builtin_prefetch(dst + (STEPS_AHEAD + l) * pitch, 1);
    if (whole && !crowded) {
        v_load_columns(r, src, row);
    } else {
        const MASK some = v_lanes(0, depth);
#pragma GCC unroll 16
        for (int l = 0; l < LANES; l++) r[l] = whole ? v_load(src + row[l]) : l < rows ? v_load_mask(src + row[l], some) : v_zero();
        transpose(r);
    }
    if (looks)
#pragma GCC unroll 16
        for (int l = 0; l < LANES; l++) zeros[l % 2] = v_fma(r[l], v_zero(), zeros[l % 2]);
#pragma GCC unroll 16
    for (int l = 0; l < LANES; l++)
        if (whole || l < depth) v_store_mask(dst + l * pitch, r[l], keep);
}

/* `looks`: report whether any element is not finite. Zero times such an element is NaN, and the sum keeps it: one multiply-add a vector.
 * If a block has fewer rows than lanes but fills the panel, the spare lanes read its last row again and are not stored. */
INLINE int pack_transposed(const int looks, const T *src, int64_t ld, int64_t rows, int64_t k, int64_t pitch, T *dst) {
    enum { MAX_PANEL = 64 };
    VEC zeros[2] = {v_zero(), v_zero()};
    int64_t row[MAX_PANEL];
    const int full = rows == pitch && pitch <= MAX_PANEL, crowded = ld * (int64_t)sizeof(T) % L1_WAY == 0;
    for (int64_t i = 0; i < MAX_PANEL; i++) row[i] = pysim_min(i, rows - 1) * ld;
    for (int64_t p = 0; p < k; p += LANES)
        for (int64_t i = 0; i < pitch; i += LANES) {
            const MASK keep = v_lanes(0, pitch - i);
            T *to = dst + p * pitch + i;
            if (full && k - p >= LANES && crowded) transpose_block(1, 1, looks, src + p, row + i, LANES, LANES, pitch, keep, to, zeros);
            else if (full && k - p >= LANES) transpose_block(1, 0, looks, src + p, row + i, LANES, LANES, pitch, keep, to, zeros);
            else transpose_block(0, 0, looks, src + i * ld + p, row, rows - i, k - p, pitch, keep, to, zeros);
        }
    return looks && v_any_nan(v_add(zeros[0], zeros[1]));
}

#define DEFINE_PACKER(name)                                                                                                   \
    void name##_segment(const pysim_segment *s, void *dst) { pack_segment(s, dst); }                                          \
    void name##_transposed(const void *src, int64_t ld, int64_t rows, int64_t k, int64_t pitch, void *dst, int *not_finite) { \
        if (not_finite) *not_finite |= pack_transposed(1, src, ld, rows, k, pitch, dst);                                      \
        else pack_transposed(0, src, ld, rows, k, pitch, dst);                                                                \
    }
