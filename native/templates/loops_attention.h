/* SPDX-License-Identifier: Apache-2.0
 * Attention of some rows of one head, block by block of keys, without a matrix of scores. Included by loops.c after loops_arrays.h.
 *
 *     s = alpha q k' + mask,  y = sum of exp(s - m) v / sum of exp(s - m),  m = the row's maximum
 *
 * A block of keys is packed as columns, its values as rows, both of whole vectors. For each group of rows, scores of the block lie in L1;
 * sums and their maxima are kept from block to block, and are multiplied by exp(old maximum - new maximum) where a block raises it (Milakov
 * and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al., "FlashAttention", 2022). A result is of its row, and in an order
 * of the number of keys alone. */

enum { KEYS = PYSIM_ATTENTION_KEYS, GROUP = PYSIM_ATTENTION_GROUP, WIDE = LANES * sizeof(T) == 64 ? 4 : 2 };

/* c[r] (+)= a[r] b for `rows` rows of `vectors` vectors, both constants. */
INLINE void attention_tile(const int rows, const int vectors, const int adds, const T *a, int64_t a_row, const T *b, int64_t b_row,
                           int64_t k, T *c, int64_t c_row) {
    VEC sum[GROUP][WIDE];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int n = 0; n < vectors; n++) sum[r][n] = adds ? v_load(c + r * c_row + n * LANES) : v_zero();
    for (int64_t i = 0; i < k; i++, b += b_row) {
        VEC columns[WIDE];
#pragma GCC unroll 4
        for (int n = 0; n < vectors; n++) columns[n] = v_load(b + n * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            const VEC one = v_set1(a[r * a_row + i]);
#pragma GCC unroll 4
            for (int n = 0; n < vectors; n++) sum[r][n] = v_fused(one, columns[n], sum[r][n]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int n = 0; n < vectors; n++) v_store(c + r * c_row + n * LANES, sum[r][n]);
}

/* The product of GROUP rows and `columns` columns, a multiple of LANES. */
INLINE void attention_product(const int adds, const T *a, int64_t a_row, const T *b, int64_t b_row, int64_t k, T *c, int64_t c_row,
                              int64_t columns) {
    int64_t n = 0;
    for (; n + WIDE * LANES <= columns; n += WIDE * LANES) attention_tile(GROUP, WIDE, adds, a, a_row, b + n, b_row, k, c + n, c_row);
    for (; WIDE > 2 && n + 2 * LANES <= columns; n += 2 * LANES) attention_tile(GROUP, 2, adds, a, a_row, b + n, b_row, k, c + n, c_row);
    for (; n < columns; n += LANES) attention_tile(GROUP, 1, adds, a, a_row, b + n, b_row, k, c + n, c_row);
}

/* `count` keys as columns [size][KEYS] of whole vectors, zeros behind them. */
static void attention_keys(const pysim_attention *of, const T *k, int64_t count, T *to) {
    const int64_t padded = (count + SUMS - 1) / SUMS * SUMS;
    if (of->k_step == 1) transpose_rows(k, of->k_row, of->size, count, to, KEYS);
    else
        for (int64_t d = 0; d < of->size; d++) memcpy(to + d * KEYS, k + d * of->k_step, (size_t)count * sizeof(T));
    for (int64_t d = 0; d < of->size && padded > count; d++) memset(to + d * KEYS + count, 0, (size_t)(padded - count) * sizeof(T));
}

#if !DOUBLE
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
INLINE void shares_of(const int n, T *scores, T most) {
    VEC x[TOGETHER];
#pragma GCC unroll 4
    for (int v = 0; v < n; v++) x[v] = v_load(scores + v * LANES) - v_set1(most);
    exponentials(n, x);
#pragma GCC unroll 4
    for (int v = 0; v < n; v++) v_store(scores + v * LANES, x[v]);
}

/* across_parts of each of GROUP rows, in its order. Rows share shuffles, eight of them where a vector has as many lanes; the places of a row's
 * results are the bits of its number, reversed. */
INLINE void across_group(const int largest, VEC part[GROUP][PARTS], T *to) {
    const int rows = 8, lanes = LANES;
    static const int places[] = {0, 4, 2, 6, 1, 5, 3, 7};
    VEC v[8];
    T out[LANES];
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
    v_store(out, v[0]);
    for (int r = 0; r < GROUP; r++) to[r] = out[places[r] * lanes / rows];
}

/* Scores of a group of rows, [GROUP][KEYS], become shares exp(s - m). `most` and `total` are those of the rows so far; `factor` is what their
 * earlier sums are to be multiplied by. Each step is done for all rows, since a row's own steps wait for each other. `padded`: count in
 * whole sets of partial sums, a constant where all keys are there. */
INLINE void attention_shares(T *scores, int64_t count, int64_t padded, T *most, T *total, T *factor) {
    const T least = -(T)__builtin_inf();
    VEC part[GROUP][PARTS];
    T from[GROUP], highest[GROUP], sums[GROUP];
    for (int64_t r = 0; r < GROUP; r++)
        for (int64_t j = count; j < padded; j++) scores[r * KEYS + j] = least;
    for (int64_t r = 0; r < GROUP; r++) {
#pragma GCC unroll 8
        for (int p = 0; p < PARTS; p++) part[r][p] = v_set1(most[r]);
        for (int64_t j = 0; j < padded; j += SUMS)
#pragma GCC unroll 8
            for (int p = 0; p < PARTS; p++) part[r][p] = v_larger(part[r][p], v_load(scores + r * KEYS + j + p * LANES));
    }
    across_group(1, part, highest);
    for (int64_t r = 0; r < GROUP; r++) {
        from[r] = highest[r] == least ? 0 : highest[r];
        factor[r] = most[r] == from[r] ? 0 : most[r] - from[r];
        most[r] = highest[r];
    }
    for (int64_t r = 0; r < GROUP; r += LANES) v_store(factor + r, exponential(v_load(factor + r)));
    for (int64_t r = 0; r < GROUP; r++) {
#pragma GCC unroll 8
        for (int p = 0; p < PARTS; p++) part[r][p] = v_zero();
        int64_t j = 0;
        for (; j + TOGETHER * LANES <= padded; j += TOGETHER * LANES) shares_of(TOGETHER, scores + r * KEYS + j, from[r]);
        for (; j < padded; j += LANES) shares_of(1, scores + r * KEYS + j, from[r]);
        for (j = 0; j < padded; j += SUMS)
#pragma GCC unroll 8
            for (int p = 0; p < PARTS; p++) part[r][p] += v_load(scores + r * KEYS + j + p * LANES);
    }
    across_group(0, part, sums);
    for (int64_t r = 0; r < GROUP; r++) total[r] = total[r] * factor[r] + sums[r];
}

/* Of scores without their mask. */
static void attention_group(const pysim_attention *of, int64_t rows, int64_t keys, const T *values, const T *mask, T *scores, T *sums,
                            T *most, T *total) {
    const int64_t width = (of->width + LANES - 1) / LANES * LANES, padded = (keys + SUMS - 1) / SUMS * SUMS;
    T factor[(GROUP + LANES - 1) / LANES * LANES] = {0};
    for (int64_t r = 0; mask && r < rows; r++)
        for (int64_t j = 0; j < keys; j++) scores[r * KEYS + j] += mask[r * of->m_row + j * of->m_step];
    if (padded == KEYS) attention_shares(scores, keys, KEYS, most, total, factor);
    else attention_shares(scores, keys, padded, most, total, factor);
    for (int64_t r = 0; r < GROUP; r++)
        for (int64_t n = 0; factor[r] != 1 && n < width; n += LANES)
            v_store(sums + r * width + n, v_load(sums + r * width + n) * factor[r]);
    attention_product(1, scores, KEYS, values, width, keys, sums, width, width);
}

/* y = sums / total. A row whose keys are all masked has the total 0, and its shares are 0 / 0. */
static void attention_result(const pysim_attention *of, int64_t rows, const T *sums, const T *total, T *y) {
    const int64_t width = (of->width + LANES - 1) / LANES * LANES;
    for (int64_t r = 0; r < rows; r++) {
        const int is_number = total[r] == total[r], kept = of->zero_rows && total[r] == 0;
        const VEC divisor = v_set1(kept ? 1 : total[r]);
        for (int64_t n = 0; n < of->width; n += LANES) {
            VEC v = v_zero();
            if (is_number || !of->zero_rows) v = v_load(sums + r * width + n) / divisor;
            v_store_mask(y + r * of->y_row + n, v, v_lanes(0, of->width - n));
        }
    }
}

/* Packed queries, and block by block packed keys, from which scores of a group of rows are made. */
typedef struct {
    const pysim_attention *of;
    const pysim_byte_scores *bytes;
    T *queries, *columns;
    int32_t row_terms[PYSIM_ATTENTION_ROWS + GROUP], key_terms[KEYS];
} attention_operands;

static void attention_queries(attention_operands *x, const void *queries, int64_t rows, int64_t groups) {
    const T *q = queries, alpha = (T)x->of->alpha;
    const int64_t size = x->of->size;
#if !DOUBLE
    if (x->bytes) {
        byte_queries(x->bytes, x->of, queries, rows, (uint8_t *)x->queries, x->row_terms);
        return;
    }
#endif
    memset(x->queries, 0, (size_t)(groups * GROUP * size) * sizeof(T));
    for (int64_t r = 0; r < rows; r++)
        for (int64_t d = 0; d < size; d++) x->queries[r * size + d] = alpha * q[r * x->of->q_row + d];
}

static void attention_block(attention_operands *x, const void *keys, int64_t first, int64_t count) {
#if !DOUBLE
    if (x->bytes) {
        byte_keys(x->bytes, x->of, (const uint8_t *)keys + first * x->of->k_row, count, (uint32_t *)(void *)x->columns, x->key_terms);
        return;
    }
#endif
    attention_keys(x->of, (const T *)keys + first * x->of->k_row, count, x->columns);
}

static void attention_scores(const attention_operands *x, int64_t group, int64_t count, T *scores) {
    const int64_t size = x->of->size, padded = (count + SUMS - 1) / SUMS * SUMS;
#if !DOUBLE
    if (x->bytes) {
        const int64_t bytes = (size + WORD - 1) / WORD * GROUP * WORD;
        byte_scores(x->bytes, size, (const uint8_t *)x->queries + group * bytes, (const uint32_t *)(const void *)x->columns,
                    x->row_terms + group * GROUP, x->key_terms, count, scores);
        return;
    }
#endif
    attention_product(0, x->queries + group * GROUP * size, size, x->columns, KEYS, size, scores, KEYS, padded);
}

static void attention_rows(const pysim_attention *of, int64_t rows, const void *queries, const void *keys, const void *values,
                           const void *masks, void *to, void *workspace, const pysim_byte_scores *bytes) {
    const int64_t width = (of->width + LANES - 1) / LANES * LANES, groups = (rows + GROUP - 1) / GROUP;
    const T *v = values, *mask = masks;
    T *columns = workspace, *packed = columns + KEYS * of->size, *scores = packed + KEYS * width, *scaled = scores + GROUP * KEYS;
    T *sums = scaled + groups * GROUP * of->size, *most = sums + groups * GROUP * width, *total = most + groups * GROUP;
    attention_operands x = {.of = of, .bytes = bytes, .queries = scaled, .columns = columns};
    attention_queries(&x, queries, rows, groups);
    memset(scores, 0, GROUP * KEYS * sizeof(T));
    memset(sums, 0, (size_t)(groups * GROUP * width) * sizeof(T));
    for (int64_t r = 0; r < groups * GROUP; r++) most[r] = -(T)__builtin_inf(), total[r] = 0;
    for (int64_t first = 0; first < of->keys; first += KEYS) {
        const int64_t count = pysim_min(KEYS, of->keys - first);
        attention_block(&x, keys, first, count);
        for (int64_t j = 0; j < count; j++) {
            memset(packed + (j + 1) * width - LANES, 0, LANES * sizeof(T)); /* behind the values */
            memcpy(packed + j * width, v + (first + j) * of->v_row, (size_t)of->width * sizeof(T));
        }
        for (int64_t g = 0; g < groups; g++) {
            const int64_t r = g * GROUP;
            attention_scores(&x, g, count, scores);
            attention_group(of, pysim_min(GROUP, rows - r), count, packed, mask ? mask + r * of->m_row + first * of->m_step : NULL, scores,
                            sums + r * width, most + r, total + r);
        }
    }
    attention_result(of, rows, sums, total, to);
}
