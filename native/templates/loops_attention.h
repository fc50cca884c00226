/* SPDX-License-Identifier: Apache-2.0
 * Attention of some rows of one head, block by block of keys, without a matrix of scores. Included by loops.c after loops_arrays.h.
 *
 *     s = alpha q k' + mask,  y = sum of exp(s - m) v / sum of exp(s - m),  m = the row's maximum
 *
 * A block of keys is packed as columns, its values as rows, both of whole vectors. For each group of rows, scores of the block lie in L1;
 * sums and their maxima are kept from block to block, and are multiplied by exp(old maximum - new maximum) where a block raises it (Milakov
 * and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al., "FlashAttention", 2022). A result is of its row, and in an order
 * of the number of keys alone.
 *
 * Operands and results are of NUMBERs. If DEPTH is 2 (bf16), queries, keys, values and shares are rounded to T before they are multiplied, and lie in
 * pairs, [k / 2][columns][2]; sums, scores and what they are divided by are not. */

#ifndef STORED_NARROW
#define v_store_numbers v_store
#define v_store_numbers_mask v_store_mask
#if !DOUBLE
#define ATTENTION_OF_BYTES
#endif
#endif

/* FEW_KEYS: of one block in networks of windows (Swin: 49); loops of constant length are 4 % faster there. */
enum { FEW_KEYS = 64, KEYS = PYSIM_ATTENTION_KEYS, GROUP = PYSIM_ATTENTION_GROUP, WIDE = LANES * sizeof(NUMBER) == 64 ? 4 : 2 };

INLINE int64_t attention_whole(int64_t count, int64_t of) { return (count + of - 1) / of * of; }

/* c[r] = c[r] + a[r] b, or factor a[r] b (a[r] b if DEPTH is 1), for `rows` rows of `vectors` vectors, both constants; k and b_row count DEPTH elements. */
INLINE void attention_tile(const int rows, const int vectors, const int adds, NUMBER factor, const T *a, int64_t a_row, const T *b,
                           int64_t b_row, int64_t k, NUMBER *c, int64_t c_row) {
    VEC sum[GROUP][WIDE];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int n = 0; n < vectors; n++) sum[r][n] = adds ? v_load_numbers(c + r * c_row + n * LANES) : v_zero();
    for (int64_t i = 0; i < k; i++, b += b_row * DEPTH) {
        VEC columns[WIDE];
#pragma GCC unroll 4
        for (int n = 0; n < vectors; n++) columns[n] = v_filters(b + n * LANES * DEPTH);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            const VEC one = v_element(a + r * a_row + i * DEPTH);
#pragma GCC unroll 4
            for (int n = 0; n < vectors; n++)
                sum[r][n] = DEPTH > 1 ? v_products(columns[n], one, sum[r][n]) : v_fused(one, columns[n], sum[r][n]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int n = 0; n < vectors; n++) {
            if (DEPTH > 1 && !adds) sum[r][n] *= v_set1(factor);
            v_store_numbers(c + r * c_row + n * LANES, sum[r][n]);
        }
}

/* The product of GROUP rows and `columns` columns, a multiple of LANES. */
INLINE void attention_product(const int adds, NUMBER factor, const T *a, int64_t a_row, const T *b, int64_t b_row, int64_t k, NUMBER *c,
                              int64_t c_row, int64_t columns) {
    const T *const end = b + columns * DEPTH;
    for (; end - b >= WIDE * LANES * DEPTH; b += WIDE * LANES * DEPTH, c += WIDE * LANES)
        attention_tile(GROUP, WIDE, adds, factor, a, a_row, b, b_row, k, c, c_row);
    for (; WIDE > 2 && end - b >= 2 * LANES * DEPTH; b += 2 * LANES * DEPTH, c += 2 * LANES)
        attention_tile(GROUP, 2, adds, factor, a, a_row, b, b_row, k, c, c_row);
    for (; b < end; b += LANES * DEPTH, c += LANES) attention_tile(GROUP, 1, adds, factor, a, a_row, b, b_row, k, c, c_row);
}

#ifdef STORED_NARROW
/* `columns` columns of `rows` rows in pairs of rows, a zero behind the last of an odd number. */
static void attention_pairs(const NUMBER *x, int64_t row, int64_t rows, int64_t columns, T *to, int64_t pitch) {
    for (int64_t i = 0; i < rows; i += 2, x += 2 * row, to += 2 * pitch)
        for (int64_t c = 0; c < columns; c += LANES) {
            const MASK in = v_lanes(0, columns - c);
            v_store_pairs(to + 2 * c, v_load_numbers_mask(x + c, in), i + 1 < rows ? v_load_numbers_mask(x + row + c, in) : v_zero());
        }
}

/* Rows of `count` numbers, rounded, zeros behind each up to `padded`. */
static void attention_rounded(const NUMBER *x, int64_t row, int64_t rows, int64_t count, T *to, int64_t padded) {
    for (int64_t r = 0; r < rows; r++, x += row, to += padded)
        for (int64_t c = 0; c < padded; c += LANES)
            v_store_mask(to + c, v_load_numbers_mask(x + c, v_lanes(0, count - c)), v_lanes(0, padded - c));
}

/* `count` keys as columns in pairs, [size / 2][KEYS][2], zeros behind them. `rows` is room for the keys of a block, of whole vectors of pairs. */
static void attention_keys(const pysim_attention *of, const NUMBER *k, int64_t count, T *to, T *rows) {
    const int64_t padded = attention_whole(count, LANES), whole = attention_whole(of->size, 2 * LANES);
    if (of->k_step != 1) {
        attention_pairs(k, of->k_step, of->size, count, to, KEYS);
        return;
    }
    attention_rounded(k, of->k_row, count, of->size, rows, whole);
    memset(rows + count * whole, 0, (size_t)((padded - count) * whole) * sizeof(T));
    int64_t apart[LANES];
    for (int l = 0; l < LANES; l++) apart[l] = l * whole / 2;
    for (int64_t i = 0; i < (of->size + 1) / 2; i += LANES)
        for (int64_t c = 0; c < padded; c += LANES) {
            VEC r[LANES];
            v_load_columns(r, (const NUMBER *)(const void *)(rows + c * whole + 2 * i), apart);
#pragma GCC unroll 16
            for (int l = 0; l < LANES; l++)
                if (i + l < (of->size + 1) / 2) v_store_numbers((NUMBER *)(void *)(to + 2 * ((i + l) * KEYS + c)), r[l]);
        }
}

static void attention_values(const pysim_attention *of, const NUMBER *v, int64_t count, T *to, int64_t width) {
    attention_pairs(v, of->v_row, count, of->width, to, width);
}

/* Scores are multiplied by alpha: queries would be rounded twice. */
static void attention_queries(const pysim_attention *of, const NUMBER *q, int64_t rows, T *to) {
    attention_rounded(q, of->q_row, rows, of->size, to, attention_whole(of->size, 2));
}
#else
/* `count` keys as columns [size][KEYS] of whole vectors, zeros behind them. */
static void attention_keys(const pysim_attention *of, const T *k, int64_t count, T *to, T *unused) {
    const int64_t padded = attention_whole(count, SUMS);
    (void)unused;
    if (of->k_step == 1) transpose_rows(k, of->k_row, of->size, count, to, KEYS);
    else
        for (int64_t d = 0; d < of->size; d++) memcpy(to + d * KEYS, k + d * of->k_step, (size_t)count * sizeof(T));
    for (int64_t d = 0; d < of->size && padded > count; d++) memset(to + d * KEYS + count, 0, (size_t)(padded - count) * sizeof(T));
}

static void attention_values(const pysim_attention *of, const T *v, int64_t count, T *to, int64_t width) {
    for (int64_t j = 0; j < count; j++) {
        memset(to + (j + 1) * width - LANES, 0, LANES * sizeof(T)); /* behind the values */
        memcpy(to + j * width, v + j * of->v_row, (size_t)of->width * sizeof(T));
    }
}

static void attention_queries(const pysim_attention *of, const T *q, int64_t rows, T *to) {
    const T alpha = (T)of->alpha;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t d = 0; d < of->size; d++) to[r * of->size + d] = alpha * q[r * of->q_row + d];
}
#endif

#ifdef ATTENTION_OF_BYTES
enum { WORD = 4 }; /* bytes whose products a kernel adds at once */

/* Rows of queries as panels [group][word][GROUP], zeros behind them; terms[r]: what the zero of keys takes off row r's sums. */
static void byte_queries(const pysim_byte_scores *by, const pysim_attention *of, const uint8_t *q, int64_t rows, uint8_t *to,
                         int32_t *terms) {
    const int64_t words = (of->size + WORD - 1) / WORD, groups = (rows + GROUP - 1) / GROUP;
    memset(to, 0, (size_t)(groups * words * GROUP * WORD));
    for (int64_t r = 0; r < groups * GROUP; r++) terms[r] = 0;
    for (int64_t r = 0; r < rows; r++) {
        uint8_t *row = to + (r / GROUP * words * GROUP + r % GROUP) * WORD;
        int32_t sum = 0;
        for (int64_t d = 0; d < of->size; d++) {
            const uint8_t x = q[r * of->q_row + d] ^ by->q_flip;
            row[d / WORD * GROUP * WORD + d % WORD] = x;
            sum += x - by->q_zero;
        }
        terms[r] = -by->k_zero * sum;
    }
}

/* `count` keys as words [word][KEYS], zeros behind their elements; terms[j]: what the zero of queries takes off the sums of key j. */
static void byte_keys(const pysim_byte_scores *by, const pysim_attention *of, const uint8_t *k, int64_t count, uint32_t *to,
                      int32_t *terms) {
    const int64_t words = (of->size + WORD - 1) / WORD;
    for (int64_t j = 0; j < KEYS; j++) terms[j] = 0;
    for (int64_t w = 0; w < words; w++, to += KEYS) {
        const int64_t some = pysim_min(WORD, of->size - w * WORD);
        memset(to, 0, KEYS * sizeof *to);
        for (int64_t i = 0; i < some; i++) {
            const uint8_t *from = k + (w * WORD + i) * of->k_step;
            const int64_t next = of->k_row, left = 8 * i;
            if (next == 1)
                for (int64_t j = 0; j < count; j++) to[j] |= (uint32_t)(from[j] ^ by->k_flip) << left;
            else
                for (int64_t j = 0; j < count; j++) to[j] |= (uint32_t)(from[j * next] ^ by->k_flip) << left;
            for (int64_t j = 0; j < count; j++) terms[j] -= by->q_zero * (int8_t)(to[j] >> left);
        }
    }
}

/* Scores of a group of rows, of `count` keys. */
static void byte_scores(const pysim_byte_scores *by, int64_t size, const uint8_t *q, const uint32_t *k, const int32_t *row_terms,
                        const int32_t *key_terms, int64_t count, T *scores) {
    const int64_t words = (size + WORD - 1) / WORD;
    pysim_store store = {.alpha = 1,
                         .bounds = pysim_unbounded(PYSIM_S8),
                         .bias_filters = row_terms,
                         .swapped = 1,
                         .rescale = {.scales = &by->scale, .low = -__builtin_inff(), .high = __builtin_inff()}};
    for (int64_t j = 0; by->run && j < count; j += by->windows) {
        store.bias_windows = key_terms + j;
        by->run(words * WORD, q, k + j, KEYS, scores + j, KEYS, pysim_min(by->windows, count - j), GROUP, &store);
    }
    for (int64_t r = 0; !by->run && r < GROUP; r++)
        for (int64_t j = 0; j < count; j++) {
            int32_t sum = row_terms[r] + key_terms[j];
            for (int64_t i = 0; i < words * WORD; i++)
                sum += q[(i / WORD * GROUP + r) * WORD + i % WORD] * (int8_t)(k[i / WORD * KEYS + j] >> (8 * (i % WORD)));
            scores[r * KEYS + j] = (float)sum * by->scale;
        }
}
#endif

/* `n` vectors of scores, a constant, become exp(s - m). */
INLINE void shares_of(const int n, const NUMBER *scores, NUMBER most, T *shares) {
    VEC x[TOGETHER];
#pragma GCC unroll 4
    for (int v = 0; v < n; v++) x[v] = v_load_numbers(scores + v * LANES) - v_set1(most);
    exponentials(n, x);
#pragma GCC unroll 4
    for (int v = 0; v < n; v++) v_store(shares + v * LANES, x[v]);
}

/* across_parts of each of GROUP rows, in its order. Rows share shuffles, eight of them where a vector has as many lanes; the places of a row's
 * results are the bits of its number, reversed. */
INLINE void across_group(const int largest, VEC part[GROUP][PARTS], NUMBER *to) {
    const int rows = 8, lanes = LANES;
    static const int places[] = {0, 4, 2, 6, 1, 5, 3, 7};
    VEC v[8];
    NUMBER out[LANES];
    for (int r = 0; r < GROUP && lanes < rows; r++) to[r] = across_parts(largest, part[r]);
    if (lanes < rows) return;
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        VEC *const of = part[r < GROUP ? r : 0];
#pragma GCC unroll 4
        for (int n = r < GROUP ? PARTS / 2 : 0; n > 0; n /= 2)
#pragma GCC unroll 8
            for (int p = 0; p < n; p++) of[p] = combined(largest, of[p], of[p + n]);
        v[r] = of[0];
    }
#pragma GCC unroll 3
    for (int n = rows / 2; n > 0; n /= 2)
#pragma GCC unroll 4
        for (int i = 0; i < n; i++)
            v[i] = combined(largest, v_interleave_low(v[2 * i], v[2 * i + 1]), v_interleave_high(v[2 * i], v[2 * i + 1]));
#pragma GCC unroll 2
    for (int n = lanes; n > rows; n /= 2) v[0] = combined(largest, v_interleave_low(v[0], v[0]), v_interleave_high(v[0], v[0]));
    v_store_numbers(out, v[0]);
    for (int r = 0; r < GROUP; r++) to[r] = out[places[r] * lanes / rows];
}

/* Of scores of a group of rows, [GROUP][KEYS], the shares exp(s - m), which may lie where the scores are. `most` and `total` are those of the rows so far; `factor` is what their
 * earlier sums are to be multiplied by. Each step is done for all rows, since a row's own steps wait for each other. `padded`: count in
 * whole sets of partial sums, a constant where all keys are there. */
INLINE void attention_shares(NUMBER *scores, T *shares, int64_t count, int64_t padded, NUMBER *most, NUMBER *total, NUMBER *factor) {
    const NUMBER least = -(NUMBER)__builtin_inf();
    VEC part[GROUP][PARTS];
    NUMBER from[GROUP], highest[GROUP], sums[GROUP];
    if (count < padded) {
        NUMBER behind[SUMS];
        for (int64_t j = 0; j < SUMS; j++) behind[j] = j < count % SUMS ? 0 : least;
        for (int64_t r = 0; r < GROUP; r++)
#pragma GCC unroll 8
            for (int p = 0; p < PARTS; p++) {
                const VEC limit = v_load_numbers(behind + p * LANES);
                NUMBER *const at = scores + r * KEYS + padded - SUMS + p * LANES;
                v_store_numbers(at, where_negative(limit, limit, v_load_numbers(at)));
            }
    }
    for (int64_t r = 0; r < GROUP; r++) {
#pragma GCC unroll 8
        for (int p = 0; p < PARTS; p++) part[r][p] = v_set1(most[r]);
        for (int64_t j = 0; j < padded; j += SUMS)
#pragma GCC unroll 8
            for (int p = 0; p < PARTS; p++) part[r][p] = v_larger(part[r][p], v_load_numbers(scores + r * KEYS + j + p * LANES));
    }
    across_group(1, part, highest);
    for (int64_t r = 0; r < GROUP; r++) {
        from[r] = highest[r] == least ? 0 : highest[r];
        factor[r] = most[r] == from[r] ? 0 : most[r] - from[r];
        most[r] = highest[r];
    }
    for (int64_t r = 0; r < GROUP; r += LANES) v_store_numbers(factor + r, exponential(v_load_numbers(factor + r)));
    for (int64_t r = 0; r < GROUP; r++) {
#pragma GCC unroll 8
        for (int p = 0; p < PARTS; p++) part[r][p] = v_zero();
        int64_t j = 0;
        for (; j + TOGETHER * LANES <= padded; j += TOGETHER * LANES)
            shares_of(TOGETHER, scores + r * KEYS + j, from[r], shares + r * KEYS + j);
        for (; j < padded; j += LANES) shares_of(1, scores + r * KEYS + j, from[r], shares + r * KEYS + j);
        for (j = 0; j < padded; j += SUMS)
#pragma GCC unroll 8
            for (int p = 0; p < PARTS; p++) part[r][p] += v_load(shares + r * KEYS + j + p * LANES);
    }
    across_group(0, part, sums);
    for (int64_t r = 0; r < GROUP; r++) total[r] = total[r] * factor[r] + sums[r];
}

/* Of scores without their mask. */
static void attention_group(const pysim_attention *of, int64_t rows, int64_t keys, const T *values, const NUMBER *mask, NUMBER *scores,
                            T *shares, NUMBER *sums, NUMBER *most, NUMBER *total) {
    const int64_t width = attention_whole(of->width, LANES), padded = attention_whole(keys, SUMS);
    NUMBER factor[(GROUP + LANES - 1) / LANES * LANES] = {0};
    for (int64_t r = 0; mask && r < rows; r++)
        for (int64_t j = 0; j < keys; j++) scores[r * KEYS + j] += mask[r * of->m_row + j * of->m_step];
    switch (padded) {
    case KEYS: attention_shares(scores, shares, keys, KEYS, most, total, factor); break;
    case FEW_KEYS: attention_shares(scores, shares, keys, FEW_KEYS, most, total, factor); break;
    default: attention_shares(scores, shares, keys, padded, most, total, factor);
    }
    for (int64_t r = 0; r < GROUP; r++)
        for (int64_t n = 0; factor[r] != 1 && n < width; n += LANES)
            v_store_numbers(sums + r * width + n, v_load_numbers(sums + r * width + n) * factor[r]);
    attention_product(1, 1, shares, KEYS, values, width, (keys + DEPTH - 1) / DEPTH, sums, width, width);
}

/* y = sums (1 / total). A row whose keys are all masked has the total 0, and its shares are 0 / 0. */
static void attention_result(const pysim_attention *of, int64_t rows, const NUMBER *sums, const NUMBER *total, NUMBER *y) {
    const int64_t width = attention_whole(of->width, LANES);
    for (int64_t r = 0; r < rows; r++) {
        const int is_number = total[r] == total[r], kept = of->zero_rows && total[r] == 0;
        const VEC factor = v_set1(kept ? 1 : 1 / total[r]);
        for (int64_t n = 0; n < of->width; n += LANES) {
            VEC v = v_zero();
            if (is_number || !of->zero_rows) v = v_load_numbers(sums + r * width + n) * factor;
            v_store_numbers_mask(y + r * of->y_row + n, v, v_lanes(0, of->width - n));
        }
    }
}

/* Packed queries, and block by block packed keys, from which scores of a group of rows are made. */
typedef struct {
    const pysim_attention *of;
    const pysim_byte_scores *bytes;
    T *queries, *columns, *of_block;
    int32_t row_terms[PYSIM_ATTENTION_ROWS + GROUP], key_terms[KEYS];
} attention_operands;

static void attention_all_queries(attention_operands *x, const void *queries, int64_t rows, int64_t groups) {
#ifdef ATTENTION_OF_BYTES
    if (x->bytes) {
        byte_queries(x->bytes, x->of, queries, rows, (uint8_t *)x->queries, x->row_terms);
        return;
    }
#endif
    memset(x->queries, 0, (size_t)(groups * GROUP * attention_whole(x->of->size, DEPTH)) * sizeof(T));
    attention_queries(x->of, queries, rows, x->queries);
}

static void attention_block(attention_operands *x, const void *keys, int64_t first, int64_t count) {
#ifdef ATTENTION_OF_BYTES
    if (x->bytes) {
        byte_keys(x->bytes, x->of, (const uint8_t *)keys + first * x->of->k_row, count, (uint32_t *)(void *)x->columns, x->key_terms);
        return;
    }
#endif
    attention_keys(x->of, (const NUMBER *)keys + first * x->of->k_row, count, x->columns, x->of_block);
}

static void attention_scores(const attention_operands *x, int64_t group, int64_t count, NUMBER *scores) {
    const int64_t size = attention_whole(x->of->size, DEPTH);
#ifdef ATTENTION_OF_BYTES
    if (x->bytes) {
        const int64_t bytes = (size + WORD - 1) / WORD * GROUP * WORD;
        byte_scores(x->bytes, size, (const uint8_t *)x->queries + group * bytes, (const uint32_t *)(const void *)x->columns,
                    x->row_terms + group * GROUP, x->key_terms, count, scores);
        return;
    }
#endif
    attention_product(0, (NUMBER)x->of->alpha, x->queries + group * GROUP * size, size, x->columns, KEYS, size / DEPTH, scores, KEYS,
                      attention_whole(count, SUMS));
}

static void attention_rows(const pysim_attention *of, int64_t rows, const void *queries, const void *keys, const void *values,
                           const void *masks, void *to, void *workspace, const pysim_byte_scores *bytes) {
    const int64_t width = attention_whole(of->width, LANES), size = attention_whole(of->size, DEPTH), groups = (rows + GROUP - 1) / GROUP;
    const NUMBER *v = values, *mask = masks;
    T *columns = workspace, *packed = columns + KEYS * size, *of_block = packed + KEYS * width;
    NUMBER *scores = (NUMBER *)(void *)(DEPTH > 1 ? of_block + pysim_max(KEYS * attention_whole(size, 2 * LANES), GROUP * KEYS) : of_block);
    NUMBER *sums = scores + GROUP * KEYS, *most = sums + groups * GROUP * width, *total = most + groups * GROUP;
    T *scaled = (T *)(void *)(total + groups * GROUP), *shares = DEPTH > 1 ? of_block : (T *)(void *)scores;
    attention_operands x = {.of = of, .bytes = bytes, .queries = scaled, .columns = columns, .of_block = of_block};
    attention_all_queries(&x, queries, rows, groups);
    memset(scores, 0, GROUP * KEYS * sizeof(NUMBER));
    memset(sums, 0, (size_t)(groups * GROUP * width) * sizeof(NUMBER));
    for (int64_t r = 0; r < groups * GROUP; r++) most[r] = -(NUMBER)__builtin_inf(), total[r] = 0;
    for (int64_t first = 0; first < of->keys; first += KEYS) {
        const int64_t count = pysim_min(KEYS, of->keys - first);
        attention_block(&x, keys, first, count);
        attention_values(of, v + first * of->v_row, count, packed, width);
        for (int64_t g = 0; g < groups; g++) {
            const int64_t r = g * GROUP;
            attention_scores(&x, g, count, scores);
            attention_group(of, pysim_min(GROUP, rows - r), count, packed, mask ? mask + r * of->m_row + first * of->m_step : NULL, scores,
                            shares, sums + r * width, most + r, total + r);
        }
    }
    attention_result(of, rows, sums, total, to);
}
