/* SPDX-License-Identifier: Apache-2.0
 * A part of pysim.h: operators of networks on bytes, along an axis, and of sequences. Only pysim.h includes it, between its "cdef" marks. */
/* Quantised elements, of 8 bits: q stands for scale (q - zero). */
typedef struct {
    float scale;
    int32_t zero, is_signed;
} pysim_quantity;
/* y = saturate(round(x / scale) + zero), halves to the even number, a NaN to the smallest, for f32 x; or back, y = scale (x - zero), where
 * `zero_of` is NULL or where the zero of unsigned bytes is. */
typedef struct {
    int64_t count;
    pysim_quantity of;
    const uint8_t *zero_of;
} pysim_quantized;
pysim_status pysim_run_quantize(const pysim_quantized *q, const void *x, void *y);
pysim_status pysim_run_dequantize(const pysim_quantized *q, const void *x, void *y);
/* DynamicQuantizeLinear of f32 to unsigned bytes: the range of x and 0 is that of the result; also its scale (f32) and zero (a byte). */
pysim_status pysim_run_quantize_range(int64_t count, const void *x, void *y, float *scale, uint8_t *zero);
/* y = saturate(round(t) + zero) within low..high, or y = t in f32, of sums x[outer][channels][inner], s32 or whole numbers in f32, where
 * t = (x + input_zero offset[c]) (input_scale scale[c]) + shift[c]. An input's scale or zero that is NULL is 1. from_float 2: any numbers. */
typedef struct {
    int64_t outer, channels, inner;
    const float *scale, *shift;
    const int32_t *offset;
    const float *input_scale;
    const uint8_t *input_zero;
    pysim_quantity to; /* its scale is not read */
    int32_t low, high, to_float, from_float;
} pysim_sums;
pysim_status pysim_run_sums(const pysim_sums *s, const void *x, void *y);
/* y[i] = table[x[i]] of bytes; the table has 256. y may be x. */
pysim_status pysim_run_table(int64_t count, const void *table, const void *x, void *y);
/* y = a + b or a b of quantised elements, within low..high; axes as in pysim_pair. y is dense, and apart from both. */
typedef struct {
    int64_t sizes[6], a_steps[6], b_steps[6];
    int32_t axes, multiply;
    pysim_quantity a, b, y;
    int32_t low, high;
} pysim_byte_pair;
pysim_status pysim_run_byte_pair(const pysim_byte_pair *p, const void *a, const void *b, void *y);
/* The same sum of one a and one b by multiply-adds, if some factors give the same y for all 65,536 pairs; *found is 0 if none do. */
pysim_status pysim_byte_sum_of(const pysim_byte_pair *p, pysim_byte_sum *sum, int32_t *found);
/* pysim_pool of quantised elements in planes. A largest element keeps its quantity: `to` is not read. */
typedef struct {
    pysim_pool window; /* its dtype is PYSIM_S8, its block 0 */
    pysim_quantity from, to;
} pysim_byte_pool;
pysim_status pysim_run_byte_pool(const pysim_byte_pool *p, const void *x, void *y);
/* The mean of each plane of `size` quantised elements, as a float: scale (sum - size zero) / size, of an exact sum. `block`: 1, or so many planes lie element by
 * element beside each other. */
typedef struct {
    int64_t planes, size, block;
    pysim_quantity from;
} pysim_byte_means;
pysim_status pysim_run_byte_means(const pysim_byte_means *m, const void *x, float *y);
/* Planes of bytes with `value` around each, or with the byte at `zero` if that is not NULL; the bits of `flip` are flipped in all of these,
 * but not in `value`. */
typedef struct {
    int64_t planes, height, width;
    int64_t top, left, bottom, right;
    const uint8_t *zero;
    int32_t value, flip;
} pysim_byte_pad;
pysim_status pysim_run_byte_pad(const pysim_byte_pad *p, const void *x, void *y);

/* A batch of equal products along up to 4 axes, with strides in elements for each; stride 0 of A or B repeats the matrix. No two results
 * share an element. */
typedef struct {
    const pysim_problem *of; /* a product */
    int64_t counts[4], a_steps[4], b_steps[4], c_steps[4];
    int32_t axes;
} pysim_products;
pysim_status pysim_run_products(const pysim_products *p, const pysim_schedule *s, const pysim_epilogue *e, int32_t threads, const void *a,
                                const void *b, void *c, void *workspace, int64_t workspace_bytes);

/* Attention: y[i] = sum over keys j of softmax(alpha q[i] k[j] + mask[i][j]) v[j] for each head of a batch along up to 4 axes; no matrix of
 * scores is made. A head has `rows` queries and `keys` keys of `size` elements, and values of `width` elements, all rows *_row elements
 * apart; those of q, v and y are contiguous, and of k either k_step or k_row is 1. The mask, or NULL, has steps m_row and m_step, which may
 * be 0. With zero_rows, a row whose shares are NaN is 0. Of dtype bf16 all operands are f32, and queries, keys, values and shares are rounded to bf16 before
 * they are multiplied. The workspace is aligned to 64 and the caller's. */
typedef struct {
    int64_t rows, keys, size, width;
    int64_t counts[4], q_steps[4], k_steps[4], v_steps[4], m_steps[4], y_steps[4];
    int64_t q_row, k_row, k_step, v_row, m_row, m_step, y_row;
    const void *mask;
    double alpha;
    int32_t axes, zero_rows;
    int32_t dtype;
    pysim_quantity q_of, k_of; /* scale 0: elements of the dtype; else q and k are bytes, whose products are added exactly */
} pysim_attention;
pysim_status pysim_attention_workspace_bytes(const pysim_attention *a, int32_t threads, int64_t *bytes);
pysim_status pysim_run_attention(const pysim_attention *a, int32_t threads, const void *q, const void *k, const void *v, void *y,
                                 void *workspace, int64_t workspace_bytes);

/* Along the middle axis of x[outer][size][inner]: y[outer][inner] is the sum, mean, product, largest or smallest element, or the place of that
 * as int64 (the first such, or the last with `last`); a NaN is the result, and its place. RUNNING: y has x's shape and y[i] is the sum of x up to
 * i, without x[i] if `exclusive`, from the end if `backward`. Types f32 and f64. */
typedef enum {
    PYSIM_FOLD_SUM = 0,
    PYSIM_FOLD_MEAN = 1,
    PYSIM_FOLD_PRODUCT = 2,
    PYSIM_FOLD_LARGEST = 3,
    PYSIM_FOLD_SMALLEST = 4,
    PYSIM_FOLD_LARGEST_AT = 5,
    PYSIM_FOLD_SMALLEST_AT = 6,
    PYSIM_FOLD_RUNNING = 7
} pysim_fold_kind;
typedef struct {
    int64_t outer, size, inner;
    int32_t kind; /* pysim_fold_kind */
    int32_t last, exclusive, backward;
    int32_t dtype;
} pysim_fold;
pysim_status pysim_run_fold(const pysim_fold *f, const void *x, void *y);

/* The `count` largest or smallest elements of each row in order, and their places; of equal ones the first. NaN is above all numbers. */
typedef struct {
    int64_t rows, size, count;
    int32_t smallest;
    int32_t dtype;
} pysim_best;
pysim_status pysim_run_best(const pysim_best *b, const void *x, void *y, int64_t *places);

/* Halves (f16 or bf16) as floats, or floats rounded to halves, to nearest and ties to even. */
typedef struct {
    int64_t count;
    int32_t to_halves;
    int32_t dtype;
} pysim_halves;
pysim_status pysim_run_halves(const pysim_halves *h, const void *x, void *y);

/* GridSample: y[image][channel][point] of x[image][channel][height][width] at grid[image][point] = (column, row) in -1 .. 1, the nearest pixel
 * or linear between four. `aligned`: -1 and 1 are the centres of the outer pixels, else their outer sides. A pixel outside, and one at NaN, is 0,
 * or of the place that the padding says. */
typedef enum { PYSIM_PAD_ZEROS = 0, PYSIM_PAD_BORDER = 1, PYSIM_PAD_REFLECTION = 2 } pysim_padding;
typedef struct {
    int64_t images, channels, height, width, points;
    int32_t padding; /* pysim_padding */
    int32_t nearest, aligned;
    int32_t dtype;
} pysim_sample;
pysim_status pysim_run_sample(const pysim_sample *s, const void *x, const void *grid, void *y);

/* The steps of an LSTM, GRU or RNN with the usual activations. `sums`, x W' + b of the gates [gate][hidden] (i o f g; z r n), lie sum_step and
 * sum_batch elements apart; the results y, or NULL, y_step and y_batch; initial and last states h and c, or NULL (zeros; not wanted),
 * state_batch. `backward` begins with the last step. The weights R' are packed: panels of PYSIM_PANEL columns, [panel][hidden][column], each
 * gate in whole panels, with zeros behind its end. separate: the new state of a GRU is tanh(x + r (h R' + bias)), else tanh(x + (r h) R').
 * The workspace is aligned to 64 and the caller's. */
enum { PYSIM_PANEL = 16 };
typedef enum { PYSIM_RNN = 0, PYSIM_LSTM = 1, PYSIM_GRU = 2 } pysim_recurrent_kind;
typedef struct {
    int64_t steps, batch, hidden;
    int64_t sum_step, sum_batch, y_step, y_batch, state_batch;
    const void *bias; /* `hidden` elements, or NULL */
    const void *h, *c;
    void *last_h, *last_c;
    int32_t kind; /* pysim_recurrent_kind */
    int32_t separate, backward;
    int32_t dtype;
} pysim_recurrent;
pysim_status pysim_recurrent_workspace_bytes(const pysim_recurrent *r, int64_t *bytes);
pysim_status pysim_run_recurrent(const pysim_recurrent *r, const void *sums, const void *weights, void *y, void *workspace,
                                 int64_t workspace_bytes);

/* y[row][column] = bias[column] + the sum over k of x[row][k] w[column][k], of floats, with weights w = scale (q - zero) of four bits q, where each block of
 * `block` neighbouring k of a column has a scale, and with has_zeros a zero, else 8. k and block are multiples of PYSIM_NIBBLES. Weights are panels of
 * PYSIM_PANEL columns, [panel][block]: the columns' scales; with has_zeros their zeros less 8, also floats; words of 32 bits [block / PYSIM_NIBBLES][column],
 * whose lowest four bits are the first q. Columns behind the last are any. x and y are dense. bias may be NULL. rounds: x may be rounded to signed bytes,
 * each block of a row by its largest magnitude, where a CPU multiplies bytes faster. The workspace is aligned to 64 and the caller's. */
enum { PYSIM_NIBBLES = 8 };
typedef struct {
    int64_t rows, columns, k, block;
    const void *bias;
    int32_t has_zeros, rounds;
    int32_t dtype; /* f32 */
} pysim_few_bits;
pysim_status pysim_few_bits_workspace_bytes(const pysim_few_bits *b, int32_t threads, int64_t *bytes);
pysim_status pysim_run_few_bits(const pysim_few_bits *b, int32_t threads, const void *x, const void *weights, void *y, void *workspace,
                                int64_t workspace_bytes);

/* y[product][row][column] = saturate(round(scale x sum over k of (a - a_zero) (b - b_zero)) + y_zero) of dense bytes a[product][row][k] and
 * b[product][k][column]; sums are exact, and scale is a_scale b_scale / y_scale as the caller rounds it. At most PYSIM_MOST_PRODUCTS of k. The workspace is
 * aligned to 64 and the caller's. */
enum { PYSIM_MOST_PRODUCTS = 1 << 15 };
typedef struct {
    int64_t count, rows, columns, k;
    pysim_quantity a, b, y;
    float scale;
} pysim_byte_products;
pysim_status pysim_byte_products_workspace_bytes(const pysim_byte_products *p, int32_t threads, int64_t *bytes);
pysim_status pysim_run_byte_products(const pysim_byte_products *p, int32_t threads, const void *a, const void *b, void *y, void *workspace,
                                     int64_t workspace_bytes);

/* Softmax of rows of bytes, of numbers as they stand for, quantised: y = saturate(round(exp(x - max) (1 / sum / y_scale)) + y_zero). At most PYSIM_LONGEST_ROW
 * elements a row. y may be x. */
enum { PYSIM_LONGEST_ROW = 4096 };
typedef struct {
    int64_t rows, size;
    pysim_quantity from, to;
} pysim_byte_softmax;
pysim_status pysim_run_byte_softmax(const pysim_byte_softmax *s, const void *x, void *y);
