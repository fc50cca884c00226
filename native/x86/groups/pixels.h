/* SPDX-License-Identifier: Apache-2.0
 * Form `pixels` (contract: native/kernel.h): lanes hold weights of COLUMNS filters, bounded as in bounded.h, and 4 bytes of a pixel are broadcast from
 * where it lies. So nothing of 1x1 layers is packed in a run, and results of a pixel are stored beside each other.
 *
 *   panel    [groups][COLUMNS] words of 4 weights, bounded
 *   entries  their number, then (group, COLUMNS words): what has been taken off these weights, whose bytes are multiplied once more
 *
 * At most three entries bound two groups: the first one twice has all of its weights, the second one once leaves MOST of a half and sign. */
enum { COLUMNS = 16, PIXELS = 4, ORDERS = 4, MOST_ENTRIES = 3 };

typedef struct {
    uint32_t group, weights[COLUMNS];
} entry;

typedef struct {
    uint32_t count;
    entry entries[];
} entry_list;

INLINE entry_list *entries_of(const void *panel, int64_t groups) {
    return (entry_list *)(void *)((uintptr_t)panel + (uintptr_t)(groups * COLUMNS * GROUP));
}

INLINE uint32_t word_at(const uint8_t *bytes) {
    uint32_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
}

/* Two groups of a pixel at x times weights: a and b += x w[0] + x' next[0], x w[1] + x' next[1]. */
#define LOAD_PIXEL "vpbroadcastd %[x], %%ymm12\n\tvpbroadcastd %[x2], %%ymm13\n\t"
#define ADD_WEIGHTS(sum, w, next)                  \
    "vpmaddubsw %[" w "], %%ymm12, %%ymm14\n\t"    \
    "vpmaddubsw %[" next "], %%ymm13, %%ymm15\n\t" \
    "vpaddw %%ymm15, %%ymm14, %%ymm14\n\t"         \
    "vpmaddwd %[ones], %%ymm14, %%ymm14\n\t"       \
    "vpaddd %%ymm14, %[" sum "], %[" sum "]\n\t"
INLINE void add_two_of_pixel(const int nv, const uint8_t *pixel, const WORDS w[VECTORS], const WORDS next[VECTORS], SUMS *a, SUMS *b) {
    const uint8_t (*x)[GROUP] = (const void *)pixel;
    if (nv == VECTORS)
        __asm__(LOAD_PIXEL ADD_WEIGHTS("a", "w0", "n0") ADD_WEIGHTS("b", "w1", "n1")
                : [a] "+x"(*a), [b] "+x"(*b)
                : [x] "m"(x[0]), [x2] "m"(x[1]), [w0] "x"(w[0]), [w1] "x"(w[1]), [n0] "x"(next[0]), [n1] "x"(next[1]), [ones] "m"(ones)
                : "xmm12", "xmm13", "xmm14", "xmm15");
    else
        __asm__(LOAD_PIXEL ADD_WEIGHTS("a", "w0", "n0")
                : [a] "+x"(*a)
                : [x] "m"(x[0]), [x2] "m"(x[1]), [w0] "x"(w[0]), [n0] "x"(next[0]), [ones] "m"(ones)
                : "xmm12", "xmm13", "xmm14", "xmm15");
}

/* SOME: a constant number of pixels, `pitch` bytes apart. */
INLINE void add_group(const int nv, const int SOME, const uint8_t *pixel, int64_t pitch, const uint32_t *weights,
                      SUMS acc[PIXELS][MAX_VECTORS]) {
    WORDS w[VECTORS];
#pragma GCC unroll 2
    for (int v = 0; v < nv; v++) w[v] = w_load(weights + v * LANES);
#pragma GCC unroll 4
    for (int j = 0; j < SOME; j++)
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++) acc[j][v] = s_one_group(acc[j][v], w_set1(word_at(pixel + j * pitch)), w[v]);
}

/* The sums begin as they are. */
INLINE void add_pixels(const int nv, const int SOME, int64_t groups, const uint8_t *pixel, int64_t pitch, const uint32_t *w,
                       SUMS acc[PIXELS][MAX_VECTORS]) {
    if (!groups) return;
    const entry_list *list = entries_of(w, groups);
    const uint8_t *first = pixel;
    for (; groups >= 2; groups -= 2, w += 2 * COLUMNS, pixel += 2 * GROUP) {
        WORDS x[VECTORS], next[VECTORS];
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++) x[v] = w_load(w + v * LANES), next[v] = w_load(w + COLUMNS + v * LANES);
#pragma GCC unroll 4
        for (int j = 0; j < SOME; j++) add_two_of_pixel(nv, pixel + j * pitch, x, next, &acc[j][0], &acc[j][nv - 1]);
    }
    if (groups) add_group(nv, SOME, pixel, pitch, w, acc);
    for (uint32_t i = 0; i < list->count; i++)
        add_group(nv, SOME, first + list->entries[i].group * GROUP, pitch, list->entries[i].weights, acc);
}

/* What the pixels of a call have in common. `plain`: sums begin at `start`, and become bytes by their scales alone. */
typedef struct {
    SUMS start[VECTORS];
    FLOATS by[VECTORS];
    BYTE_ROW bytes;
    int plain;
} pixel_store;

INLINE pixel_store pixel_store_of(const int nv, int64_t nw, const pysim_store *s) {
    const MASK tail = m_first(nw - (nv - 1) * LANES);
    const pysim_rescale *r = &s->rescale;
    pixel_store of = {.start = {s_zero(), s_zero()}};
    of.plain = r->scales && r->result != PYSIM_F32 && s->alpha >= 1 && s->alpha <= 1 && !s->old && !s->bias_filters && !r->filter_step &&
               UNBOUNDED(s->bounds.low, s->bounds.high);
    if (!of.plain) return of;
    of.bytes = byte_row(r);
#pragma GCC unroll 2
    for (int v = 0; v < nv; v++) {
        const MASK some = v < nv - 1 ? m_first(LANES) : tail;
        if (s->bias_windows) of.start[v] = s_load_mask((const T *)s->bias_windows + v * LANES, some);
        of.by[v] = r->window_step ? f_load_mask(r->scales + v * LANES, some) : _mm256_set1_ps(*r->scales);
    }
    return of;
}

/* The last `rows` of the pixels that have sums. */
INLINE void finish_pixels(const int nv, const int SOME, const int rows, int64_t first, SUMS sums[PIXELS][MAX_VECTORS], char *out,
                          int64_t out_pitch, int64_t nw, const pysim_store *s) {
    const int64_t bytes = s->rescale.scales && s->rescale.result != PYSIM_F32 ? 1 : (int64_t)sizeof(T);
    SUMS acc[MAX_FILTERS][MAX_VECTORS];
#pragma GCC unroll 4
    for (int j = 0; j < rows; j++)
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++) acc[j][v] = sums[SOME - rows + j][v];
    finish(nv, rows, first, 0, acc, (T *)(void *)(out + first * out_pitch * bytes), out_pitch, nw, s);
}

/* SOME pixels of which the last `rows` are stored, `first` the first of these. */
INLINE void some_pixels(const int nv, const int SOME, int64_t rows, int64_t first, int64_t groups, const uint8_t *pixels, const uint32_t *w,
                        char *out, int64_t out_pitch, int64_t nw, const pixel_store *of, const pysim_store *s) {
    const int64_t pitch = s->filter_pitch;
    SUMS acc[PIXELS][MAX_VECTORS];
#pragma GCC unroll 4
    for (int j = 0; j < SOME; j++)
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++) acc[j][v] = of->start[v];
    add_pixels(nv, SOME, groups, pixels + (first + rows - SOME) * pitch, pitch, w, acc);
    if (of->plain) {
        uint8_t *to = (uint8_t *)out + (first + rows - SOME) * out_pitch;
#pragma GCC unroll 4
        for (int j = 0; j < SOME; j++, to += out_pitch) /* those before are the same bytes again */
            b_store_row(&of->bytes, nv, acc[j], of->by, to, nw);
    } else if (SOME == 1 || rows == SOME) finish_pixels(nv, SOME, SOME, first, acc, out, out_pitch, nw, s);
    else if (rows == 3) finish_pixels(nv, SOME, 3, first, acc, out, out_pitch, nw, s);
    else if (rows == 2) finish_pixels(nv, SOME, 2, first, acc, out, out_pitch, nw, s);
    else finish_pixels(nv, SOME, 1, first, acc, out, out_pitch, nw, s);
}

/* The last pixels are computed together with those before them, or one by one if these are too few. */
INLINE void all_pixels(const int nv, int64_t k, const uint8_t *pixels, const uint32_t *w, void *out, int64_t out_pitch, int64_t nw,
                       int64_t nf, const pysim_store *s) {
    const pixel_store of = pixel_store_of(nv, nw, s);
    if (nf < PIXELS)
        for (int64_t first = 0; first < nf; first++) some_pixels(nv, 1, 1, first, k / GROUP, pixels, w, out, out_pitch, nw, &of, s);
    else
        for (int64_t first = 0; first < nf; first += PIXELS)
            some_pixels(nv, PIXELS, pysim_min(PIXELS, nf - first), first, k / GROUP, pixels, w, out, out_pitch, nw, &of, s);
}

#define PIXELS2(w, f, target) s8_pixels_##w##x##f##__##target
#define PIXELS1(w, f, target) PIXELS2(w, f, target)
void PIXELS1(16, 64, TARGET)(ARGUMENTS);
void PIXELS1(16, 64, TARGET)(ARGUMENTS) {
    (void)window_pitch;
    if (nw > LANES) all_pixels(2, k, filters, windows, out, out_pitch, nw, nf, store);
    else all_pixels(1, k, filters, windows, out, out_pitch, nw, nf, store);
}

/* ---- preparing ---- */

/* Takes what one or two groups of all filters have beyond off to entries of `count` of these groups, `order`; whether that suffices. */
static int entries_suffice(int8_t pair[2][COLUMNS * GROUP], int groups, const int *order, int count, int64_t first, entry *to) {
    for (int i = 0; i < count; i++) to[i].group = (uint32_t)(first + order[i]);
    for (int64_t f = 0; f < COLUMNS; f++) {
        int need[HALVES_OF_GROUP][SIGNS];
        int8_t *const at[2] = {pair[0] + f * GROUP, groups > 1 ? pair[1] + f * GROUP : NULL};
        int left = beyond(at, need);
        for (int i = 0; i < count; i++) {
            int8_t taken[GROUP];
            left -= take(at[order[i]], need, taken);
            memcpy(&to[i].weights[f], taken, sizeof taken);
        }
        if (left) return 0;
    }
    return 1;
}

static void bound_pair(int8_t *weights, int groups, int64_t first, entry_list *list) {
    static const int orders[ORDERS][MOST_ENTRIES] = {{0}, {1}, {0, 1}, {0, 0, 1}}, counts[ORDERS] = {1, 1, 2, 3};
    const size_t size = (size_t)groups * COLUMNS * GROUP;
    int8_t pair[2][COLUMNS * GROUP];
    entry found[MOST_ENTRIES];
    memcpy(pair, weights, size);
    if (entries_suffice(pair, groups, orders[0], 0, first, found)) return;
    for (int i = 0; i < ORDERS; i++) {
        if (groups == 1 && i > 0) break;
        memcpy(pair, weights, size);
        if (!entries_suffice(pair, groups, orders[i], counts[i], first, found)) continue;
        memcpy(weights, pair, size);
        memcpy(list->entries + list->count, found, (size_t)counts[i] * sizeof *found);
        list->count += (uint32_t)counts[i];
        return;
    }
}

#define PIXEL_BOUND2(target) bound_pixels__##target
#define PIXEL_BOUND1(target) PIXEL_BOUND2(target)
void PIXEL_BOUND1(TARGET)(int64_t k, void *panel);
void PIXEL_BOUND1(TARGET)(int64_t k, void *panel) {
    const int64_t groups = k / GROUP;
    entry_list *list = entries_of(panel, groups);
    if (!groups) return;
    list->count = 0;
    for (int64_t g = 0; g < groups; g += 2) bound_pair((int8_t *)panel + g * COLUMNS * GROUP, (int)pysim_min(2, groups - g), g, list);
}
