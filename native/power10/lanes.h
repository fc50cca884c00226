/* SPDX-License-Identifier: Apache-2.0
 * Micro-kernels on POWER10's matrix unit; included once per type (f32.c, f64.c, ...), after vsx.h and these names:
 *
 *   T, VEC, LANES    result element, its vector and their number in one (16 bytes); no value lies below LOWEST or above HIGHEST
 *   ORDERED          vector type that compares as T's values do; FACTOR(x) is alpha or beta as a T
 *   E                element of the panels
 *   RANK             values of k per multiply instruction; a k-iteration covers as many
 *   SHIFT            what load_step adds to every window; unless it is 0, the epilogue subtracts SHIFT times tile->sums
 *   STEP             the operands of a k-iteration
 *   load_step(gf, gw, whole, x, f, w, w_pitch, nw)         loads them for gf x gw groups; `whole`: all WINDOWS windows of a row
 *                    may be read (and gw is 4), otherwise only the first nw
 *   multiply_step(gf, gw, whole, tile, first, x)           adds their product to the accumulators first + i*gw + j
 *
 * An accumulator is the outer product of a group of 4 filters and a group of LANES windows; its 4 rows are LANES consecutive windows
 * of one filter, so they are stored as they are. 2 x 4 groups use all eight accumulators: 8 multiplies per k-iteration take two units
 * 4 cycles, which is also the time between two updates of an accumulator (LLVM's PPCScheduleP10.td).
 *
 * Loop: operands are loaded `ahead` iterations before their use, so that no multiply waits in the reorder buffer for a load (llvm-mca:
 * 1.2 multiplies per cycle with 0, 1.7 with 1, 1.96 with 2). Edges have fewer accumulators, each of which takes a multiply only every
 * 4 cycles, so they divide k among `chains` sets of accumulators, which are added at the end. */

enum { GROUPS_W = 4, GROUPS_F = 2, WINDOWS = GROUPS_W * LANES, FILTERS = 4 * GROUPS_F };

/* ---- epilogue ---- */

INLINE VEC v_set1(T x) { return vec_splats(x); }

typedef struct {
    VEC alpha, beta, low, high;
    int reads_old;
} SCALE;

INLINE SCALE scale_of(const pysim_store *s) {
    return (SCALE){v_set1(FACTOR(s->alpha)), v_set1(FACTOR(s->beta)), v_set1(FACTOR(s->bounds.low)), v_set1(FACTOR(s->bounds.high)),
                   s->old != NULL};
}

/* Rows of group i, j: the sum over the chains. */
INLINE void rows_of(VEC row[4], const int groups, const int chains, TILE *tile, const int at) {
    __builtin_mma_disassemble_acc(row, &tile->at[at]);
#pragma GCC unroll 4
    for (int c = 1; c < chains; c++) {
        VEC more[4];
        __builtin_mma_disassemble_acc(more, &tile->at[c * groups + at]);
#pragma GCC unroll 4
        for (int r = 0; r < 4; r++) row[r] += more[r];
    }
}

INLINE void finish_row(T *out, const T *old, VEC acc, VEC bias, const int whole, int64_t bytes, const SCALE *s) {
    VEC value = acc * s->alpha + bias;
    if (s->reads_old) value += (whole ? (VEC)v_load(old) : (VEC)v_load_first(old, bytes)) * s->beta;
    value = (VEC)vec_sel((BYTES)value, (BYTES)s->low, (BYTES)vec_cmpgt((ORDERED)s->low, (ORDERED)value)); /* a NaN stays one */
    value = (VEC)vec_sel((BYTES)value, (BYTES)s->high, (BYTES)vec_cmpgt((ORDERED)value, (ORDERED)s->high));
    if (whole) v_store(out, (BYTES)value);
    else v_store_first(out, (BYTES)value, bytes);
}

/* Stores a tile of [FILTERS][WINDOWS] accumulators with the full epilogue. */
static __attribute__((noinline)) void finish_rows(const T *tile, T *out, int64_t out_pitch, int64_t nw, int64_t nf,
                                                  const pysim_store *store) {
    const SCALE scale = scale_of(store);
    const T *bias_f = store->bias_filters, *bias_w = store->bias_windows, *old = store->old ? store->old : out;
    for (int64_t w = 0; w < nw; w += LANES) {
        const int whole = nw - w >= LANES;
        const int64_t bytes = (nw - w) * (int64_t)sizeof(T);
        const VEC bw = !bias_w ? v_set1((T)0) : whole ? (VEC)v_load(bias_w + w) : (VEC)v_load_first(bias_w + w, bytes);
        for (int64_t f = 0; f < nf; f++)
            finish_row(out + f * out_pitch + w, old + f * out_pitch + w, (VEC)v_load(tile + f * WINDOWS + w),
                       bw + v_set1(bias_f ? bias_f[f] : (T)0), whole, bytes, &scale);
    }
}

/* Plain accumulators are stored directly. Others go through the stack to finish_rows, so that the full epilogue exists once and not in
 * the code of every shape. */
INLINE void finish(const int gf, const int gw, const int whole, const int chains, TILE *tile, T *out, int64_t out_pitch, int64_t nw,
                   int64_t nf, const pysim_store *store) {
    const int bounded = store->bounds.low > LOWEST || store->bounds.high < HIGHEST;
    const int as_is = store->alpha == 1 && !bounded && !store->bias_filters && !store->bias_windows;
    const int adds = as_is && store->old && store->beta == 1, plain = adds || (as_is && !store->old);
    const T *old = store->old;
    const int64_t last = (nw - (gw - 1) * LANES) * (int64_t)sizeof(T), pitch = plain ? out_pitch : WINDOWS;
    T sums[FILTERS * WINDOWS], *to = plain ? out : sums;
#pragma GCC unroll 2
    for (int i = 0; i < gf; i++)
#pragma GCC unroll 4
        for (int j = 0; j < gw; j++) {
            VEC row[4];
            rows_of(row, gf * gw, chains, tile, i * gw + j);
#pragma GCC unroll 4
            for (int r = 0; SHIFT != 0 && r < 4; r++) row[r] -= v_set1((T)SHIFT * (T)tile->sums[i][r]);
            if (adds)
#pragma GCC unroll 4
                for (int r = 0; r < 4; r++) {
                    const T *at = old + (4 * i + r) * pitch + j * LANES;
                    if (i == gf - 1 && r > 0 && 4 * i + r >= nf) break;
                    row[r] += whole || j < gw - 1 ? (VEC)v_load(at) : (VEC)v_load_first(at, last);
                }
#pragma GCC unroll 4
            for (int r = 0; r < 4; r++) {
                T *at = to + (4 * i + r) * pitch + j * LANES;
                if (i == gf - 1 && r > 0 && 4 * i + r >= nf) break;
                if (whole || j < gw - 1) v_store(at, (BYTES)row[r]);
                else v_store_first(at, (BYTES)row[r], last);
            }
        }
    if (!plain) finish_rows(sums, out, out_pitch, nw, nf, store);
}

/* ---- the k loop ---- */

INLINE void clear(TILE *tile, const int begin, const int end) {
#pragma GCC unroll 8
    for (int i = begin; i < end; i++) __builtin_mma_xxsetaccz(&tile->at[i]);
}

/* Rows of both panels, padded by zeros to one k-iteration. */
INLINE void copy_rows(int64_t rows, const E *f, const E *w, int64_t w_pitch, int64_t nw, E *last_f, E *last_w) {
    memset(last_f, 0, RANK * FILTERS * sizeof(E));
    memset(last_w, 0, RANK * WINDOWS * sizeof(E));
    memcpy(last_f, f, (size_t)rows * FILTERS * sizeof(E));
    for (int64_t r = 0; r < rows; r++, w += w_pitch, last_w += WINDOWS) memcpy(last_w, w, (size_t)nw * sizeof(E));
}

/* The k-iterations from s on, `f` and `w` at the first of them, to chain 0. The last one may lie elsewhere. */
INLINE void rest(const int gf, const int gw, const int whole, TILE *tile, STEP *x, int64_t s, int64_t k, const E *f, const E *w,
                 int64_t w_pitch, int64_t nw, const E *last_f, const E *last_w) {
    const int64_t steps = k / RANK;
#pragma GCC unroll 1
    for (; s * RANK < k; s++, f += RANK * FILTERS, w += RANK * w_pitch) {
        const int last = s == steps;
        load_step(gf, gw, whole, x, last ? last_f : f, last ? last_w : w, last ? WINDOWS : w_pitch, nw);
        multiply_step(gf, gw, whole, tile, 0, x);
    }
}

/* tile = the product of k rows of both panels. Iteration s of the unrolled loop goes to chain s mod chains. The remainder of k comes first,
 * before the other chains are live (Clang 22 would spill those, and accumulators of whole tiles), or last where sums are in the order of k. */
INLINE void k_loop(const int gf, const int gw, const int whole, const int chains, const int in_order, TILE *tile, int64_t k, const E *f,
                   const E *w, int64_t w_pitch, int64_t nw) {
    enum { MOST_AHEAD = 2 };
    const int groups = gf * gw, ahead = whole ? 2 : 1, unroll = whole ? 6 : 4; /* a multiple of ahead + 1 and of chains */
    const int64_t f_step = RANK * FILTERS, w_step = RANK * w_pitch, steps = k / RANK;
    int64_t rounds = steps > ahead ? (steps - ahead) / unroll : 0;
    const int64_t s = rounds ? rounds * unroll + ahead : 0;
    STEP x[MOST_AHEAD + 1];
    /* the last k-iteration, of fewer rows and zeros: copied before sums are in accumulators, which a call would move */
    E last_f[RANK * FILTERS], last_w[RANK * WINDOWS];
    if (k % RANK) copy_rows(k % RANK, f + steps * f_step, w + steps * w_step, w_pitch, nw, last_f, last_w);
    clear(tile, 0, groups);
    if (!in_order) rest(gf, gw, whole, tile, &x[0], s, k, f + s * f_step, w + s * w_step, w_pitch, nw, last_f, last_w);
    clear(tile, groups, chains * groups);
    if (rounds) {
#pragma GCC unroll 2
        for (int u = 0; u < ahead; u++, f += f_step, w += w_step) load_step(gf, gw, whole, &x[u], f, w, w_pitch, nw);
        do {
#pragma GCC unroll 6
            for (int u = 0; u < unroll; u++, f += f_step, w += w_step) {
                load_step(gf, gw, whole, &x[(u + ahead) % (ahead + 1)], f, w, w_pitch, nw);
                multiply_step(gf, gw, whole, tile, u % chains * groups, &x[u % (ahead + 1)]);
            }
            __asm__("" : "+b"(f), "+b"(w)); /* or Clang keeps copies of both */
        } while (--rounds > 0);
#pragma GCC unroll 2
        for (int u = 0; u < ahead; u++) multiply_step(gf, gw, whole, tile, u % chains * groups, &x[u]);
    }
    if (in_order) rest(gf, gw, whole, tile, &x[0], s, k, f, w, w_pitch, nw, last_f, last_w);
}

INLINE void body(const int gf, const int gw, const int whole, const int most, int64_t k, const E *f, const E *w, int64_t w_pitch, T *out,
                 int64_t out_pitch, int64_t nw, int64_t nf, const pysim_store *store) {
    const int groups = gf * gw, chains = groups == 1 || ACCUMULATORS / groups > most ? most : ACCUMULATORS / groups; /* 4, 2 or 1 */
    TILE tile;
    tile.sums[0] = tile.sums[1] = vec_splats(0u);
    k_loop(gf, gw, whole, chains, most == 1, &tile, k, f, w, w_pitch, nw);
    finish(gf, gw, whole, chains, &tile, out, out_pitch, nw, nf, store);
}

/* One switch case per shape, so that all loops have constant bounds: gw groups of windows, the last one partial; WHOLE rows of windows
 * in place; or PACKED, with constant offsets. */
enum { WHOLE = GROUPS_W + 1, PACKED };
#define MMA(gf, gw, whole, pitch, shape, most) \
    case (gf) * 8 + (shape): body(gf, gw, whole, most, k, filters, windows, pitch, out, out_pitch, nw, nf, store); break;
#define MMA_EACH(gf, most)                          \
    MMA(gf, GROUPS_W, 1, WINDOWS, PACKED, most)     \
    MMA(gf, GROUPS_W, 1, window_pitch, WHOLE, most) \
    MMA(gf, 1, 0, window_pitch, 1, most)            \
    MMA(gf, 2, 0, window_pitch, 2, most)            \
    MMA(gf, 3, 0, window_pitch, 3, most)            \
    MMA(gf, 4, 0, window_pitch, 4, most)
/* `most` chains: 4, or 1 where every sum is one chain along k. */
#define DEFINE_MMA(name, most)                                                                                                     \
    void name(int64_t k, const void *filters, const void *windows, int64_t window_pitch, void *out, int64_t out_pitch, int64_t nw, \
              int64_t nf, const pysim_store *store) {                                                                              \
        const int64_t shape = nw < WINDOWS ? (nw + LANES - 1) / LANES : window_pitch == WINDOWS ? PACKED : WHOLE;                  \
        switch ((nf + 3) / 4 * 8 + shape) { MMA_EACH(1, most) MMA_EACH(2, most) }                                                  \
    }
