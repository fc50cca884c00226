/* SPDX-License-Identifier: Apache-2.0
 * Packing of form `tiles` (contract: native/kernel.h): rows of FP32 by the packing of BASE, a target of this CPU, through a buffer in L1, then
 * split. */
#define PACK3(of, target, what) pack_##of##__##target##_##what
#define PACK2(of, target, what) PACK3(of, target, what)
#define PACK(of, what) PACK2(of, TARGET, what)
#define ROWS_OF(what) PACK2(f32, BASE, what)

void ROWS_OF(segment)(const pysim_segment *s, void *dst);
void ROWS_OF(transposed)(const void *src, int64_t ld, int64_t rows, int64_t k, int64_t pitch, void *dst, int *not_finite);

enum { PART_WORDS = WIDE * PAIRS, BLOCK_WORDS = PARTS * PART_WORDS, ROWS_KEPT = 128 };
enum { AHEAD = 4 * BLOCK }; /* in rows of filters, which no prefetcher follows: there are 32 */

INLINE FLOATS w_load(const float *p, int64_t n) { return n == LANES ? f_load(p) : f_load_first(p, n); }

/* Asks for the lines of the next block that lie where a row of this one does: stores would wait for each that another CPU, or L3, has. */
INLINE void next_lines(const uint32_t *to) {
    for (int i = 0; i < PARTS; i++) __builtin_prefetch(to + BLOCK_WORDS + i * PART_WORDS, 1);
}

/* 32 rows of k, `ld` apart, as a block of windows. The `next` 32 rows, which no prefetcher follows, are fetched if there are any. */
INLINE void split_rows(const float *rows, const int64_t ld, int64_t count, int64_t next, uint32_t *to) {
    for (int64_t j = 0; j < count; j += LANES, rows += LANES, to += LANES) {
        const int64_t n = pysim_min(LANES, count - j);
        WORDS most = {0};
        for (int p = 0; p < PAIRS; p++) {
            if (next) {
                __builtin_prefetch(rows + (p + next) * ld), __builtin_prefetch(rows + (p + PAIRS + next) * ld);
                next_lines(to + p * WIDE);
            }
            const split low = split_of(w_load(rows + p * ld, n)), high = split_of(w_load(rows + (p + PAIRS) * ld, n));
            most = w_larger(most, w_larger((WORDS)(low.part[0] & EXPONENT), (WORDS)(high.part[0] & EXPONENT)));
            for (int i = 0; i < PARTS; i++) {
                const BITS words = joined(low.part[i], high.part[i]);
                if (n == LANES) b_store(to + i * PART_WORDS + p * WIDE, words);
                else b_store_first(to + i * PART_WORDS + p * WIDE, words, n);
            }
        }
        if (!any_from(most, (int32_t)EXPONENT, n)) continue;
        for (int p = 0; p < PAIRS; p++) {
            const split low = split_any(w_load(rows + p * ld, n)), high = split_any(w_load(rows + (p + PAIRS) * ld, n));
            for (int i = 0; i < PARTS; i++) b_store_first(to + i * PART_WORDS + p * WIDE, joined(low.part[i], high.part[i]), n);
        }
    }
}

static void split_windows(const float *rows, int64_t count, uint32_t *to) { split_rows(rows, WIDE, count, 0, to); }

/* `depth` <= 32 of k, which are neighbours in rows `ld` apart, as a block of filters; `more`: of several. */
static void split_filters(const float *from, int64_t ld, int64_t rows, int64_t depth, int more, uint32_t *to, int *not_finite) {
    const FLOATS none = {0};
    for (int64_t f = 0; f < rows; f++, from += ld, to += PAIRS) {
        __builtin_prefetch(from + AHEAD);
        __builtin_prefetch(from + AHEAD + PAIRS);
        if (more) next_lines(to);
        const FLOATS first = depth >= PAIRS ? f_load(from) : f_load_first(from, depth);
        const FLOATS second = depth == BLOCK ? f_load(from + PAIRS) : depth > PAIRS ? f_load_first(from + PAIRS, depth - PAIRS) : none;
        split low = split_of(first), high = split_of(second);
        if (any_from(w_larger((WORDS)(low.part[0] & EXPONENT), (WORDS)(high.part[0] & EXPONENT)), (int32_t)EXPONENT, LANES)) {
            const WORDS most = w_larger((WORDS)((BITS)first & EXPONENT), (WORDS)((BITS)second & EXPONENT));
            if (not_finite && any_from(most, (int32_t)EXPONENT, LANES)) *not_finite = 1;
            low = split_any(first), high = split_any(second);
        }
        for (int i = 0; i < PARTS; i++) b_store(to + i * PART_WORDS, joined(low.part[i], high.part[i]));
    }
    for (int64_t f = rows; f < WIDE; f++, to += PAIRS)
        for (int i = 0; i < PARTS; i++) b_store(to + i * PART_WORDS, (BITS)none);
}

/* Rows of k that wait until a block of them is complete. */
typedef struct {
    float row[ROWS_KEPT + 1][WIDE]; /* packing of BASE stores whole vectors */
    int64_t have;
} waiting;

/* Packs the next k of segment `s`: whole channels if they fit, else some taps of one. */
static int64_t next_rows(waiting *w, const pysim_segment *s, int64_t channel, int64_t tap) {
    const int64_t room = ROWS_KEPT - w->have;
    pysim_segment part = *s;
    if (tap == 0 && s->taps <= room) {
        part.channels = pysim_min(s->channels - channel, room / s->taps);
        if (part.channels > BLOCK) part.channels -= part.channels % BLOCK;
    } else {
        part.channels = 1;
        part.taps = pysim_min(s->taps - tap, room);
        part.first += tap * s->dilation;
    }
    if (s->row) part.row = (const float *)s->row + channel * s->row_channel;
    part.pitch = WIDE;
    part.dst_channel = part.taps * WIDE;
    ROWS_OF(segment)(&part, w->row[w->have]);
    return part.channels * part.taps;
}

/* Calls whole_block(rows, ...) for each 32 of k, with zeros behind the last. */
#define EACH_BLOCK(s, whole_block)                                                        \
    waiting w;                                                                            \
    w.have = 0;                                                                           \
    for (int64_t done = 0, end = (s)->channels * (s)->taps; done < end;) {                \
        const int64_t more = next_rows(&w, s, done / (s)->taps, done % (s)->taps);        \
        int64_t at = 0;                                                                   \
        done += more, w.have += more;                                                     \
        if (done == end)                                                                  \
            for (; w.have % BLOCK; w.have++) memset(w.row[w.have], 0, sizeof w.row[0]);   \
        for (; at + BLOCK <= w.have; at += BLOCK, to += BLOCK_WORDS) whole_block;         \
        w.have -= at;                                                                     \
        if (at && w.have) memmove(w.row[0], w.row[at], (size_t)w.have * sizeof w.row[0]); \
    }

void PACK(f32, segment)(const pysim_segment *s, void *dst);
void PACK(f32, segment)(const pysim_segment *s, void *dst) {
    uint32_t *to = dst;
    pysim_segment rest = *s;
    if (s->row && s->taps == 1 && s->stride == 1 && s->first >= 0 && s->first + s->count <= s->width) {
        const float *row = (const float *)s->row + s->first;
        for (; rest.channels >= BLOCK; rest.channels -= BLOCK, row += BLOCK * s->row_channel, to += BLOCK_WORDS)
            split_rows(row, s->row_channel, s->count, rest.channels >= 2 * BLOCK ? BLOCK : 0, to);
        rest.row = row - s->first;
    }
    EACH_BLOCK(&rest, split_windows(w.row[at], s->count, to))
}

void PACK(f32, transposed)(const void *src, int64_t ld, int64_t rows, int64_t k, int64_t pitch, void *dst, int *not_finite);
void PACK(f32, transposed)(const void *src, int64_t ld, int64_t rows, int64_t k, int64_t pitch, void *dst, int *not_finite) {
    float columns[BLOCK + 1][WIDE];
    uint32_t *to = dst;
    (void)pitch;
    for (int64_t p = 0; p < k; p += BLOCK, to += BLOCK_WORDS) {
        const int64_t depth = pysim_min(BLOCK, k - p);
        ROWS_OF(transposed)((const float *)src + p, ld, rows, depth, WIDE, columns, not_finite);
        for (int64_t i = depth; i < BLOCK; i++) memset(columns[i], 0, sizeof columns[i]);
        split_windows(columns[0], WIDE, to);
    }
}

void PACK(f32_filters, segment)(const pysim_segment *s, void *dst);
void PACK(f32_filters, segment)(const pysim_segment *s, void *dst) {
    float turned[WIDE + 1][BLOCK];
    uint32_t *to = dst;
    EACH_BLOCK(s, {
        ROWS_OF(transposed)(w.row[at], WIDE, BLOCK, WIDE, BLOCK, turned, NULL);
        split_filters(turned[0], BLOCK, WIDE, BLOCK, 0, to, NULL);
    })
}

void PACK(f32_filters, transposed)(const void *src, int64_t ld, int64_t rows, int64_t k, int64_t pitch, void *dst, int *not_finite);
void PACK(f32_filters, transposed)(const void *src, int64_t ld, int64_t rows, int64_t k, int64_t pitch, void *dst, int *not_finite) {
    uint32_t *to = dst;
    (void)pitch;
    for (int64_t p = 0; p < k; p += BLOCK, to += BLOCK_WORDS)
        split_filters((const float *)src + p, ld, rows, pysim_min(BLOCK, k - p), p + BLOCK < k, to, not_finite);
}
