/* SPDX-License-Identifier: Apache-2.0
 * Micro-kernels with one operand along the vector lanes; included once per vector type (names: vec_*.h).
 *
 * win_body: x[v] = windows (NV vectors), one broadcast filter value at a time: NV*NF accumulators, NV loads + NF broadcasts for
 *           NV*NF multiply-adds per k-iteration. Rows of accumulators are rows of the output.
 * fil_body: the mirror image, filters along the lanes; the tile is stored to the stack and transposed from there.
 *
 * To keep the FMA units busy, latency x units accumulators are needed (4 x 1 on Zen 4 and one-unit Intel parts in 512 bit, 4 x 2 on
 * two-unit parts). With the 24-28 used here, the load ports and not the latency are the next limit. */

#include <float.h>

/* Constant array bounds: GCC keeps accumulators in memory if the bounds are variable. */
enum { MAX_BROADCASTS = 14, MAX_VECTORS = 4 };

typedef struct {
    VEC alpha, beta, low, high;
    int reads_old;
} SCALE;

INLINE SCALE scale_of(const pysim_store *s) {
    return (SCALE){v_set1((T)s->alpha), v_set1((T)s->beta), v_set1((T)s->bounds.low), v_set1((T)s->bounds.high), s->old != NULL};
}

/* Whether results are the plain sums, or sums added to C: every channel set of a product but the last. */
INLINE int is_plain(const pysim_store *s) {
    return !s->bias_filters && !s->bias_windows && s->alpha >= 1 && s->alpha <= 1 && (!s->old || (s->beta >= 1 && s->beta <= 1)) &&
           s->bounds.low < -DBL_MAX && s->bounds.high > DBL_MAX;
}

INLINE void finish_row(T *out, const T *old, VEC acc, VEC bias, const int whole, MASK mask, const SCALE *s) {
    VEC value = v_fma(acc, s->alpha, bias);
    if (s->reads_old) value = v_fma(whole ? v_load(old) : v_load_mask(old, mask), s->beta, value);
    value = v_between(s->low, s->high, value);
    if (whole) v_store(out, value);
    else v_store_mask(out, value, mask);
}

/* Prefetch distance, in rows of the operand along the lanes. Panels stream from any cache level at up to 24 bytes a cycle, and hardware
 * prefetchers stop at page ends. Winograd's filters, milliseconds on one core of Zen 5, 8 -> 96 rows ahead: 512 -> 512, 7x7, F(2x2):
 * 0.99 -> 0.67; 256 -> 512, 10x10, F(4x4): 0.69 -> 0.46; 32 rows: 0.70, 0.50. Rows read in place are a plane apart: no hardware
 * prefetcher follows them, and the core's reorder window holds about ten. GFLOP/s of 1x1 layers in place, 0 -> 8 rows ahead, 256 -> 64
 * channels, 56x56: 115 -> 160 on a Xeon server (2 MiB of L2, 300 of L3), 218 -> 221 on Zen 5; 256 -> 128: 140 -> 159 and 188 -> 206. The
 * prefetched address is the end of each vector: a row that begins within a line has one line more than vectors, and the tile before has
 * read the first. 575x1420x1515, rows of 5,680 bytes: 13.0 ms, and 12.1 so (Zen 5). Of two vectors to a line it is the start of one and the end of the other, since
 * rows that share sets of L1 have lost that first line: 256 -> 1024, 4x14x14, 1x1, 4.82 -> 4.62 ms (Zen 3). */
enum { PANEL_ROWS_AHEAD = 96, PLANES_AHEAD = 8, LINE_VECTORS = 64 / (int)sizeof(VEC) };
/* Tiles of fewer filters do not prefetch panels: up to one broadcast a line leaves enough loads of a panel in the core's reorder window,
 * and prefetches only occupy L1's miss buffers. 1, 2, 3 and 4 rows x 4096 x 4096, panels of 64 or 48 columns from memory, 96 -> 0 rows
 * ahead: 1.73 -> 1.58, 1.86 -> 1.58, 1.85 -> 1.69, 1.95 -> 1.73 ms; 6 and 8 rows: 2.16 -> 2.01, 2.68 -> 3.01 (Zen 4). */
enum { MIN_PREFETCHED_FILTERS = 5 };
/* Distance of prefetched rows. None for rows that share sets of L1: they would evict rows not yet read. Cycles over the multiply-adds'
 * cycles, B in L2, tiles of 32x14, 48x9 and 64x6 (Zen 5, 12 ways), 8 -> 0 rows ahead, rows 12 KiB apart: 1.18 -> 0.99, 1.19 -> 0.99,
 * 1.42 -> 1.01; 4 KiB: 1.09 -> 0.99, 1.09 -> 1.01, 1.37 -> 1.00. */
INLINE int64_t ahead_of(int64_t pitch) {
    if (pitch <= MAX_VECTORS * LANES) return pitch * PANEL_ROWS_AHEAD;
    return pitch * (int64_t)sizeof(T) % L1_WAY == 0 ? 0 : pitch * PLANES_AHEAD;
}

/* Rows `pitch` bytes apart. x86 addresses five of them from one register: + 0, 1, 2, 4 pitches, and 3 pitches from a register of their own.
 * Left to itself, GCC keeps a register for each row's offset, and of the offsets of 14 rows it spills half. */
enum { MAX_ROW_OFFSETS = 6, ROWS_OF_BASE = 5, MAX_BASES = (MAX_BROADCASTS + ROWS_OF_BASE - 1) / ROWS_OF_BASE };
typedef struct {
    const char *base[MAX_BASES];
    int64_t pitch, three_pitches;
} ROWS;
INLINE ROWS rows_at(const void *first, int64_t pitch) {
    ROWS rows = {.pitch = pitch, .three_pitches = 3 * pitch};
#pragma GCC unroll 4
    for (int b = 0; b < MAX_BASES; b++) rows.base[b] = (const char *)first + ROWS_OF_BASE * b * pitch;
    return rows;
}
INLINE const T *row_of(const ROWS *rows, const int j) {
    const int from_base = j % ROWS_OF_BASE;
    return (const T *)(const void *)(rows->base[j / ROWS_OF_BASE] + (from_base == 3 ? rows->three_pitches : from_base * rows->pitch));
}
#define OPAQUE(x) __asm__("" : "+r"(x))
/* Moves the first `n` rows on by `bytes`, and keeps GCC from adding the pitches up outside the loop. */
INLINE void advance_rows(ROWS *rows, const int n, int64_t bytes) {
#pragma GCC unroll 4
    for (int b = 0; b * ROWS_OF_BASE < n; b++) {
        rows->base[b] += bytes;
        OPAQUE(rows->base[b]);
    }
    OPAQUE(rows->pitch);
    OPAQUE(rows->three_pitches);
}

/* The k loop of win_body. `masked`: the last vector of windows is loaded under a mask. On Intel's cores such a load also takes a
 * multiply-add's port: on a Granite Rapids loops without masks take 0.97 (32x14), 0.96 (48x9) and 1.0 (64x6) of the time, unrolled by
 * two 0.965, 0.95 and 0.94, panels in L1 or L2. `strided`: filters are f_step apart, not neighbours in a panel. */
INLINE void win_loop(const int nv, const int nf, const int masked, const int strided, int64_t k, const T *f, int64_t f_pitch,
                     int64_t f_step, const T *w, int64_t w_pitch, MASK tail, VEC acc[MAX_BROADCASTS][MAX_VECTORS]) {
    const int in_panel = w_pitch <= MAX_VECTORS * LANES, by_bases = strided && nf > MAX_ROW_OFFSETS;
    const int64_t f_ahead = ahead_of(f_pitch);
    /* The last rows in place fetch the first rows of the tile to the right, for which nothing else is early enough. Not beside filters in
     * place, whose rows need the registers: products take 1.05 times as long with it (Emerald Rapids). */
    int64_t ahead = nf < MIN_PREFETCHED_FILTERS && in_panel ? 0 : ahead_of(w_pitch);
    const int64_t turn = in_panel || ahead == 0 ? k : pysim_max(0, k - PLANES_AHEAD), right = nv * LANES - k * w_pitch;
    ROWS rows = rows_at(f, f_step * (int64_t)sizeof(T));
#pragma GCC unroll 2
    for (int64_t p = 0; p < k; p++) {
        VEC x[MAX_VECTORS];
        if (!strided && p == turn) ahead += right;
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) __builtin_prefetch(w + ahead + v * LANES + (v < nv - 1 && nv == LINE_VECTORS ? 0 : LANES - 1));
        if (!strided) __builtin_prefetch(f + f_ahead);
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) x[v] = masked && v == nv - 1 ? v_load_mask(w + v * LANES, tail) : v_load(w + v * LANES);
#pragma GCC unroll 16
        for (int j = 0; j < nf; j++) {
            const VEC b = v_set1(by_bases ? *row_of(&rows, j) : f[j * f_step]);
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++) acc[j][v] = v_fma(b, x[v], acc[j][v]);
        }
        if (by_bases) advance_rows(&rows, nf, f_pitch * (int64_t)sizeof(T));
        else f += f_pitch;
        w += w_pitch;
    }
}

/* A panel has filter step 1; with a constant step the addresses of the values are constant offsets. */
INLINE void win_body(const int nv, const int nf, int64_t k, const T *f, int64_t f_pitch, int64_t f_step, const T *w, int64_t w_pitch,
                     T *out, int64_t out_pitch, int64_t nw, const pysim_store *store) {
    const MASK tail = v_lanes(0, nw - (nv - 1) * LANES);
    VEC acc[MAX_BROADCASTS][MAX_VECTORS];
#pragma GCC unroll 16
    for (int j = 0; j < nf; j++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) acc[j][v] = v_zero();
    const int masked = nw < nv * LANES, streams = store->streams && !masked;
    if (f_step == 1 && masked) win_loop(nv, nf, 1, 0, k, f, f_pitch, 1, w, w_pitch, tail, acc);
    else if (f_step == 1) win_loop(nv, nf, 0, 0, k, f, f_pitch, 1, w, w_pitch, tail, acc);
    else if (masked) win_loop(nv, nf, 1, 1, k, f, f_pitch, f_step, w, w_pitch, tail, acc);
    else win_loop(nv, nf, 0, 1, k, f, f_pitch, f_step, w, w_pitch, tail, acc);
    if (is_plain(store) && store->old) {
        const T *from = store->old;
        __asm__("" : "+r"(out), "+r"(from)); /* otherwise GCC precomputes the addresses of all vectors for all branches and spills them */
#pragma GCC unroll 16
        for (int j = 0; j < nf; j++, out += out_pitch, from += out_pitch) {
#pragma GCC unroll 4
            for (int v = 0; v < nv - 1; v++) v_store(out + v * LANES, v_add(v_load(from + v * LANES), acc[j][v]));
            v_store_mask(out + (nv - 1) * LANES, v_add(v_load_mask(from + (nv - 1) * LANES, tail), acc[j][nv - 1]), tail);
        }
        return;
    }
    if (is_plain(store) && streams) {
        __asm__("" : "+r"(out));
#pragma GCC unroll 16
        for (int j = 0; j < nf; j++, out += out_pitch)
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++) v_stream(out + v * LANES, acc[j][v]);
        return;
    }
    if (is_plain(store)) {
        __asm__("" : "+r"(out));
#pragma GCC unroll 16
        for (int j = 0; j < nf; j++, out += out_pitch) {
#pragma GCC unroll 4
            for (int v = 0; v < nv - 1; v++) v_store(out + v * LANES, acc[j][v]);
            v_store_mask(out + (nv - 1) * LANES, acc[j][nv - 1], tail);
        }
        return;
    }
    static const T no_bias[MAX_BROADCASTS];
    const SCALE scale = scale_of(store);
    const T *bias_f = store->bias_filters ? store->bias_filters : no_bias, *bias_w = store->bias_windows, *old = store->old;
    VEC bw[MAX_VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < nv; v++)
        bw[v] = !bias_w ? v_zero() : v < nv - 1 ? v_load(bias_w + v * LANES) : v_load_mask(bias_w + v * LANES, tail);
    /* One step at a time for all accumulators: with a test per accumulator GCC compiles this part three times as long as the rest of a
     * tile. */
#pragma GCC unroll 16
    for (int j = 0; j < nf; j++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) acc[j][v] = v_fma(acc[j][v], scale.alpha, v_add(v_set1(bias_f[j]), bw[v]));
    if (old) {
        __asm__("" : "+r"(old));
#pragma GCC unroll 16
        for (int j = 0; j < nf; j++, old += out_pitch)
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++)
                acc[j][v] = v_fma(v < nv - 1 ? v_load(old + v * LANES) : v_load_mask(old + v * LANES, tail), scale.beta, acc[j][v]);
    }
    __asm__("" : "+r"(out));
    if (streams) {
#pragma GCC unroll 16
        for (int j = 0; j < nf; j++, out += out_pitch)
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++) v_stream(out + v * LANES, v_between(scale.low, scale.high, acc[j][v]));
        return;
    }
#pragma GCC unroll 16
    for (int j = 0; j < nf; j++, out += out_pitch) {
#pragma GCC unroll 4
        for (int v = 0; v < nv - 1; v++) v_store(out + v * LANES, v_between(scale.low, scale.high, acc[j][v]));
        v_store_mask(out + (nv - 1) * LANES, v_between(scale.low, scale.high, acc[j][nv - 1]), tail);
    }
}

/* Stores a fil kernel's tile, [nw][pitch] on the stack, to out[nf][nw]. */
static __attribute__((noinline)) void SUFFIX(finish_transposed)(const T *tile, int64_t pitch, T *out, int64_t out_pitch, int64_t nw,
                                                                int64_t nf, const pysim_store *store) {
    const SCALE scale = scale_of(store);
    const T *bias_f = store->bias_filters, *bias_w = store->bias_windows, *old = store->old ? store->old : out;
    for (int64_t w0 = 0; w0 < nw; w0 += LANES) {
        const MASK mask = v_lanes(0, nw - w0);
        const VEC bw = bias_w ? v_load_mask(bias_w + w0, mask) : v_zero();
        for (int64_t f0 = 0; f0 < nf; f0 += LANES) {
            VEC r[LANES];
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++) r[i] = w0 + i < nw ? v_load(tile + (w0 + i) * pitch + f0) : v_zero();
            transpose(r);
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++)
                if (f0 + i < nf)
                    finish_row(out + (f0 + i) * out_pitch + w0, old + (f0 + i) * out_pitch + w0, r[i],
                               v_add(bw, v_set1(bias_f ? bias_f[f0 + i] : (T)0)), 0, mask, &scale);
        }
    }
}

INLINE void fil_body(const int nv, const int nw, const int f_pitch, int64_t k, const T *f, const T *w, int64_t w_pitch, T *out,
                     int64_t out_pitch, int64_t nf, const pysim_store *store) {
    VEC acc[MAX_BROADCASTS][MAX_VECTORS];
#pragma GCC unroll 16
    for (int j = 0; j < nw; j++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) acc[j][v] = v_zero();
    for (int64_t p = 0; p < k; p++) {
        VEC x[MAX_VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) __builtin_prefetch(f + PANEL_ROWS_AHEAD * f_pitch + v * LANES);
        if (FIL_ROWS_AHEAD && w_pitch > MAX_BROADCASTS) __builtin_prefetch(w + FIL_ROWS_AHEAD * w_pitch + nw - 1);
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) x[v] = v_load(f + v * LANES);
#pragma GCC unroll 16
        for (int j = 0; j < nw; j++) {
            const VEC b = v_set1(w[j]);
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++) acc[j][v] = v_fma(b, x[v], acc[j][v]);
        }
        f += f_pitch;
        w += w_pitch;
    }
    T tile[MAX_BROADCASTS][MAX_VECTORS * LANES];
#pragma GCC unroll 16
    for (int j = 0; j < nw; j++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) v_store(&tile[j][v * LANES], acc[j][v]);
    SUFFIX(finish_transposed)(&tile[0][0], MAX_VECTORS * LANES, out, out_pitch, nw, nf, store);
}

#define BEHIND_FILTERS \
    const void *windows, int64_t window_pitch, void *out, int64_t out_pitch, int64_t nw, int64_t nf, const pysim_store *store
#define ARGUMENTS int64_t k, const void *filters, BEHIND_FILTERS
#define STRIDED_ARGUMENTS int64_t k, const void *filters, int64_t filter_pitch, int64_t filter_step, BEHIND_FILTERS

/* Every tile size, edges included, is an instance with constant bounds. For form win it is a function that all rows share: SIZES(M)
 * expands M(vectors, filters) for each size, before the rows. For form fil it is a case of the row's own switch. */
#define WIN(nv, nfc)                                                                                                \
    static void win_##nv##x##nfc(STRIDED_ARGUMENTS) {                                                               \
        (void)nf;                                                                                                   \
        win_body(nv, nfc, k, filters, filter_pitch, filter_step, windows, window_pitch, out, out_pitch, nw, store); \
    }
#define WIN_SIZE(nv, nfc) [nv][nfc] = win_##nv##x##nfc,
#define FIL(nv, nwc) \
    case (nv) * 16 + (nwc): fil_body(nv, nwc, F_, k, filters, windows, window_pitch, out, out_pitch, nf, store); break;
#define TO6(M, v) M(v, 1) M(v, 2) M(v, 3) M(v, 4) M(v, 5) M(v, 6)
#define TO7(M, v) TO6(M, v) M(v, 7)
#define TO9(M, v) TO7(M, v) M(v, 8) M(v, 9)
#define TO14(M, v) TO9(M, v) M(v, 10) M(v, 11) M(v, 12) M(v, 13) M(v, 14)
#define V2(M, TO) TO(M, 1) TO(M, 2)
#define V3(M, TO) V2(M, TO) TO(M, 3)
#define V4(M, TO) V3(M, TO) TO(M, 4)
#define DEFINE_WIN_SIZES(SIZES) \
    SIZES(WIN)                  \
    static const pysim_strided_kernel win_sizes[MAX_VECTORS + 1][MAX_BROADCASTS + 1] = {SIZES(WIN_SIZE)};
#define DEFINE_WIN(name, filters_)                                                                                                    \
    void strided_##name(STRIDED_ARGUMENTS) {                                                                                          \
        win_sizes[(nw + LANES - 1) / LANES][nf](k, filters, filter_pitch, filter_step, windows, window_pitch, out, out_pitch, nw, nf, \
                                                store);                                                                               \
    }                                                                                                                                 \
    void name(ARGUMENTS) { strided_##name(k, filters, filters_, 1, windows, window_pitch, out, out_pitch, nw, nf, store); }
#define DEFINE_FIL(name, filters_, CASES)                     \
    void name(ARGUMENTS) {                                    \
        enum { F_ = filters_ };                               \
        switch ((nf + LANES - 1) / LANES * 16 + nw) { CASES } \
    }
