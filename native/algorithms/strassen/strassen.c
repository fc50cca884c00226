/* SPDX-License-Identifier: Apache-2.0
 * Matrix products, and 1x1 convolutions of channel blocks, by seven products of half their sides (Strassen's, in Winograd's form: Higham, Accuracy and Stability of
 * Numerical Algorithms, 2nd ed., section 23.2). C = A B, A cut in halves of rows (pixels) and of channels, B of channels and of columns (filters):
 *
 *   s1 = a21 + a22, s2 = s1 - a11          t1 = b12 - b11, t2 = b22 - t1
 *   p1 = a11 b11                           p2 = a12 b21                  p3 = (a12 - s2) b22           p4 = a22 (t2 - b21)
 *   p5 = s1 t1                             p6 = s2 t2                    p7 = (a11 - a21) (b22 - b12)
 *   c11 = p1 + p2                          c12 = p1 + p6 + p5 + p3
 *   c21 = p1 + p6 + p7 - p4                c22 = p1 + p6 + p7 + p5
 *
 * Weights are B: the seven operands on its side are prepared. A run cuts A into blocks of 2 `outputs` (of the schedule) rows or pixels, whose quarters
 * stay in caches. Of each block it sums A's operands in one pass (loops: sums_of_quarters), multiplies by another algorithm, and joins the products in one
 * pass, which also applies the epilogue. Rows that the second half of the last block lacks are zeros; nothing reads the results of others that it lacks.
 *
 * An element that is not finite would spoil results that do not depend on it, and sums may overflow where no product does. So results that are not finite
 * are computed again, from the definition, with the weights themselves, which lie behind the prepared operands.
 *
 * Threads divide the blocks: what one core has summed another one would get from its cache. One thread sums a result in a fixed order. */
#include <string.h>

#include "algorithms/algorithm.h"

enum { ALIGN = 64, CHUNK = 512 }; /* elements of a row that are joined, and checked, at a time */

extern const pysim_algorithm pysim_algorithm_panels, pysim_algorithm_direct_nchwc;

static const pysim_algorithm *inner_of(const pysim_problem *p) {
    return p->kind == PYSIM_GEMM ? &pysim_algorithm_panels : &pysim_algorithm_direct_nchwc;
}

/* A matrix in memory, cut into [0, rows) and [rows, row_end), [0, columns) and [columns, column_end). Its rows are those of a product, or channels: then
 * its columns are pixels, `block` channels of each. */
typedef struct {
    char *first;
    int64_t rows, columns, row_end, column_end, pitch, block, slab; /* slab: bytes of a dense quarter in the workspace */
    int by_channel;
} matrix;

/* Quarters lie an odd number of lines apart: at powers of two they would share the sets of a cache. */
static int64_t slab_bytes(int64_t rows, int64_t columns) {
    return (pysim_ceil_div(rows * columns * (int64_t)sizeof(float), ALIGN) | 1) * ALIGN;
}

/* The first block of rows, or of pixels; `half`: of one half. */
static matrix of_rows(const char *first, int64_t rows, int64_t columns, int64_t pitch, int64_t half) {
    return (matrix){(char *)first, half, columns / 2, rows, columns, pitch, 1, slab_bytes(half, columns / 2), 0};
}

static matrix of_planes(const char *first, int64_t channels, int64_t pixels, int64_t block, int64_t half) {
    const int64_t rows = channels / block, columns = half * block;
    return (matrix){(char *)first, rows / 2, columns, rows, pixels * block, pixels * block, block, slab_bytes(rows / 2, columns), 1};
}

/* From the first block of the first image to another; images are those of a convolution. */
static void go_to(matrix *m, int64_t image, int64_t block) {
    const int64_t step = 2 * block * (m->by_channel ? m->columns : m->rows);
    m->first += (image * m->row_end * m->pitch + step * (m->by_channel ? 1 : m->pitch)) * (int64_t)sizeof(float);
    if (m->by_channel) m->column_end -= step;
    else m->row_end -= step;
}

/* Pixels or rows of a half of a block. */
static int64_t half_rows(const pysim_problem *part) { return part->kind == PYSIM_GEMM ? part->gemm.m : part->conv.width; }

/* Operand and result, of the first image. */
static void matrices_of(const pysim_job *job, const char *first, const char *result, matrix *a, matrix *c) {
    const pysim_problem *p = &job->problem;
    const int64_t half = half_rows(&job->part);
    if (p->kind == PYSIM_GEMM) {
        *a = of_rows(first, p->gemm.m, p->gemm.k, p->gemm.lda, half);
        *c = of_rows(result, p->gemm.m, p->gemm.n, p->gemm.ldc, half);
        return;
    }
    const pysim_conv *w = &p->conv;
    *a = of_planes(first, w->channels, w->height * w->width, w->input_block, half);
    *c = of_planes(result, w->filters, w->height * w->width, w->output_block, half);
}

/* The quarters 11, 12, 21, 22 (row or pixel, channel) at row i, column j of the first; NULL: behind the end. */
static void quarters_of(const matrix *m, int64_t i, int64_t j, char *to[4]) {
    for (int q = 0; q < 4; q++) {
        const int64_t row = i + ((m->by_channel ? q & 1 : q >> 1) ? m->rows : 0);
        const int64_t column = j + ((m->by_channel ? q >> 1 : q & 1) ? m->columns : 0);
        to[q] = row < m->row_end && column < m->column_end ? m->first + (row * m->pitch + column) * (int64_t)sizeof(float) : NULL;
    }
}

/* Rows and columns of the first quarter that are there; elements from column j on that have the same quarters. */
static int64_t rows_of(const matrix *m) { return pysim_min(m->rows, m->row_end); }
static int64_t columns_of(const matrix *m) { return pysim_min(m->columns, m->column_end); }
static int64_t run_at(const matrix *m, int64_t j) {
    const int64_t both = m->column_end - m->columns;
    return (j < both ? pysim_min(both, m->columns) : columns_of(m)) - j;
}

/* ---- opening ---- */

static pysim_status check_sizes(const pysim_problem *p) {
    const pysim_gemm *g = &p->gemm;
    const pysim_conv *c = &p->conv;
    if ((p->kind == PYSIM_GEMM ? g->dtype : c->dtype) != PYSIM_F32)
        return pysim_fail(PYSIM_UNSUPPORTED, "this algorithm multiplies f32 alone");
    if (p->kind == PYSIM_GEMM) {
        if (!g->trans_a && g->m > 1 && g->n % 2 == 0 && g->k % 2 == 0) return PYSIM_OK;
        return pysim_fail(PYSIM_UNSUPPORTED,
                          "this algorithm halves m, n and k: it takes n and k that are even, m of 2 or more, and A as it is");
    }
    const int64_t in = 2 * c->input_block, out = 2 * c->output_block;
    if (c->groups != 1 || c->kernel_d * c->kernel_h * c->kernel_w != 1 || c->stride_d * c->stride_h * c->stride_w != 1 || c->depth != 1 ||
        c->pad_top || c->pad_left || c->pad_bottom || c->pad_right || c->pad_front || c->pad_back)
        return pysim_fail(PYSIM_UNSUPPORTED, "this algorithm computes 1x1 convolutions of images without groups, strides and padding");
    if (in <= 2 || out <= 2) return pysim_fail(PYSIM_UNSUPPORTED, "this algorithm reads and writes channel blocks, not planes");
    if (c->channels % in || c->filters % out || c->height * c->width < 2)
        return pysim_fail(PYSIM_UNSUPPORTED,
                          "this algorithm halves channels, filters and pixels: it takes multiples of %lld channels and "
                          "of %lld filters, and 2 pixels or more",
                          (long long)in, (long long)out);
    return PYSIM_OK;
}

/* Channels and filters of the whole. */
static void sizes_of(const pysim_problem *p, int64_t *channels, int64_t *filters) {
    *channels = p->kind == PYSIM_GEMM ? p->gemm.k : p->conv.channels;
    *filters = p->kind == PYSIM_GEMM ? p->gemm.n : p->conv.filters;
}

static pysim_problem half_of(const pysim_problem *p, int64_t rows) {
    pysim_problem half = *p;
    if (p->kind == PYSIM_GEMM) {
        pysim_gemm *g = &half.gemm;
        g->m = rows, g->n /= 2, g->k /= 2, g->trans_b = 0;
        g->lda = g->k, g->ldb = g->ldc = g->n;
        return half;
    }
    pysim_conv *c = &half.conv;
    c->width = rows, c->height = c->batch = 1, c->channels /= 2, c->filters /= 2;
    return half;
}

static int64_t weight_bytes(const pysim_problem *p) {
    int64_t channels, filters;
    sizes_of(p, &channels, &filters);
    return channels * filters * (int64_t)sizeof(float);
}

/* Bytes of each of the prepared operands. */
static int64_t operand_bytes(const pysim_job *job) { return (job->prepared_bytes - weight_bytes(&job->problem)) / PYSIM_PRODUCTS; }

static pysim_status open_strassen(const pysim_problem *p, const pysim_schedule *s, pysim_row_lookup row, pysim_job *job) {
    matrix a, c;
    pysim_status status = check_sizes(p);
    if (status != PYSIM_OK) return status;
    const int64_t most = pysim_ceil_div(p->kind == PYSIM_GEMM ? p->gemm.m : p->conv.height * p->conv.width, 2);
    if (!s || s->outputs < 1 || s->outputs > most)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "schedule.outputs is %lld; expected 1..%lld, the rows or pixels of half a block",
                          (long long)(s ? s->outputs : 0), (long long)most);
    job->part = half_of(p, s->outputs);
    status = inner_of(p)->open(&job->part, s, row, job);
    if (status == PYSIM_OK && !job->thread_bytes) status = pysim_nest_workspace(&job->nest, 1, &job->thread_bytes);
    if (status != PYSIM_OK) return status;
    if (job->nest.row.panel_bytes)
        return pysim_fail(PYSIM_UNSUPPORTED, "kernel %s splits operands; this algorithm runs rows that multiply f32",
                          job->nest.row.info.name);
    matrices_of(job, NULL, NULL, &a, &c);
    const int64_t each = pysim_ceil_div(job->prepared_bytes, ALIGN) * ALIGN;
    if (each > INT64_MAX / 16 || a.slab > INT64_MAX / 64 || c.slab > INT64_MAX / 64)
        return pysim_fail(PYSIM_OVERFLOW, "seven products of halves exceed int64 bytes");
    job->thread_bytes = pysim_max(job->thread_bytes, ALIGN) + PYSIM_PRODUCTS * (a.slab + c.slab) + ALIGN; /* to align to a line */
    job->prepared_bytes = PYSIM_PRODUCTS * each + weight_bytes(p);
    job->operands.second = (pysim_operand){"prepared halves", PYSIM_F32, job->prepared_bytes};
    return PYSIM_OK;
}

/* ---- weights ---- */

/* What each product's operand has of the weights' quarters 11, 12, 21, 22 (channel, filter). */
static const double of_quarters[PYSIM_PRODUCTS][4] = {
    {1, 0, 0, 0}, {0, 0, 1, 0}, {0, 0, 0, 1}, {1, -1, -1, 1}, {-1, 1, 0, 0}, {1, -1, 0, 1}, {0, -1, 0, 1},
};

/* A row of an operand, of quarters whose neighbours are `step` apart. */
static void combine_row(const double of[4], const float *const b[4], int64_t step, int64_t count, float *to) {
    for (int64_t e = 0; e < count; e++)
        to[e] = (float)(of[0] * (double)b[0][e * step] + of[1] * (double)b[1][e * step] + of[2] * (double)b[2][e * step] +
                        of[3] * (double)b[3][e * step]);
}

static void prepare_strassen(const pysim_job *job, const char *weights, char *prepared) {
    const pysim_problem *p = &job->problem;
    const int in_rows = p->kind == PYSIM_CONV || p->gemm.trans_b; /* [filter][channel] */
    const int64_t each = operand_bytes(job), pitch = p->kind == PYSIM_CONV ? p->conv.channels : p->gemm.ldb;
    const float *w = (const float *)(const void *)weights;
    float *room = (float *)(void *)(prepared + PYSIM_PRODUCTS * each); /* of a quarter first, of all weights then */
    int64_t channels, filters;
    sizes_of(p, &channels, &filters);
    const int64_t of_channel = in_rows ? 1 : pitch, of_filter = in_rows ? pitch : 1, half_c = channels / 2, half_f = filters / 2;
    const int by_filter = p->kind == PYSIM_CONV; /* operands are filters x channels, else channels x filters */
    const int64_t rows = by_filter ? half_f : half_c, columns = by_filter ? half_c : half_f;
    const int64_t of_row = by_filter ? of_filter : of_channel, of_column = by_filter ? of_channel : of_filter;
    pysim_job one = *job;
    one.prepared_bytes = each;
    for (int product = 0; product < PYSIM_PRODUCTS; product++) {
        for (int64_t i = 0; i < rows; i++) {
            const float *at = w + i * of_row, *const b[] = {at, at + half_f * of_filter, at + half_c * of_channel,
                                                            at + half_f * of_filter + half_c * of_channel};
            combine_row(of_quarters[product], b, of_column, columns, room + i * columns);
        }
        inner_of(p)->prepare(&one, (const char *)room, prepared + product * each);
    }
    for (int64_t f = 0; f < filters; f++)
        for (int64_t c = 0; c < channels; c++) room[f * channels + c] = w[c * of_channel + f * of_filter];
}

/* ---- running ---- */

typedef struct {
    const pysim_job *job;
    const pysim_call *call;
    matrix a, c;
    char *operands, *products; /* quarters in the workspace */
    const pysim_loops *loops;
    int64_t blocks;      /* of an image */
    int64_t from_result; /* bytes from the result to the residual */
} running;

static void sum_row(const running *r, int64_t i) {
    for (int64_t j = 0, count; j < columns_of(&r->a); j += count) {
        char *x[4];
        quarters_of(&r->a, i, j, x);
        count = run_at(&r->a, j);
        r->loops->sums_of_quarters((const void *const *)x, count, r->operands + (i * r->a.columns + j) * (int64_t)sizeof(float),
                                   r->a.slab / (int64_t)sizeof(float));
    }
}

/* Result e of quarter q of row i, column j: its row or pixel, and its filter. */
static void place_of(const matrix *c, int64_t i, int64_t j, int q, int64_t e, int64_t *pixel, int64_t *filter) {
    const int64_t second = q & 1, column = j + e;
    *pixel = c->by_channel ? ((q >> 1) * c->columns + column) / c->block : i + (q >> 1) * c->rows;
    *filter = c->by_channel ? (i + second * c->rows) * c->block + column % c->block : column + second * c->columns;
}

static double sum_of_definition(const running *r, int64_t pixel, int64_t filter) {
    const pysim_job *job = r->job;
    const matrix *a = &r->a;
    int64_t channels, filters;
    sizes_of(&job->problem, &channels, &filters);
    const float *w = (const float *)(const void *)(r->call->second + PYSIM_PRODUCTS * operand_bytes(job)) + filter * channels;
    const float *x = (const float *)(const void *)a->first;
    double sum = 0;
    for (int64_t c = 0; c < channels; c++) {
        const int64_t at = a->by_channel ? c / a->block * a->pitch + pixel * a->block + c % a->block : pixel * a->pitch + c;
        sum += (double)x[at] * (double)w[c];
    }
    return sum;
}

/* Results of a chunk again, from the definition. */
static void compute_again(const running *r, const pysim_join *with, int64_t i, int64_t j, int64_t count, void *const y[4]) {
    for (int q = 0; q < 4; q++)
        for (int64_t e = 0; y[q] && e < count; e++) {
            int64_t pixel, filter;
            place_of(&r->c, i, j, q, e, &pixel, &filter);
            const double added = with->added[q] ? ((const float *)with->added[q])[e] * with->factor : 0;
            const double sum = with->alpha * sum_of_definition(r, pixel, filter) + ((const float *)with->bias[q & 1])[e] + added;
            ((float *)y[q])[e] = (float)(sum < with->bounds.low ? with->bounds.low : sum > with->bounds.high ? with->bounds.high : sum);
        }
}

/* The biases of row i of channels in both quarters, as often as they are in a chunk. */
static void repeat_biases(const matrix *c, const float *bias, int64_t i, int64_t count, float to[2][CHUNK]) {
    for (int half = 0; half < 2; half++)
        for (int64_t e = 0; e < count; e += c->block)
            memcpy(to[half] + e, bias + (i + half * c->rows) * c->block, (size_t)(pysim_min(c->block, count - e)) * sizeof(float));
}

static void join_row(const running *r, int64_t i) {
    const matrix *c = &r->c;
    const pysim_epilogue *e = r->call->epilogue;
    const double beta = r->job->problem.kind == PYSIM_GEMM ? e->beta : 0;
    const float *bias = e->bias;
    float biases[2][CHUNK], before[4][CHUNK];
    pysim_join with = {{biases[0], biases[1]}, {NULL}, e->alpha, r->call->residual ? 1 : beta, r->call->bounds};
    const int64_t most = pysim_min(CHUNK, columns_of(c));
    if (!bias) memset(biases[0], 0, (size_t)most * sizeof(float)), with.bias[1] = biases[0];
    else if (c->by_channel) repeat_biases(c, bias, i, most, biases);
    for (int64_t j = 0, count; j < columns_of(c); j += count) {
        char *y[4];
        quarters_of(c, i, j, y);
        count = pysim_min(CHUNK, run_at(c, j));
        if (bias && !c->by_channel) with.bias[0] = bias + j, with.bias[1] = bias + c->columns + j;
        for (int q = 0; q < 4; q++) {
            with.added[q] = y[q] && r->call->residual ? y[q] + r->from_result : NULL;
            if (y[q] && beta != 0) with.added[q] = memcpy(before[q], y[q], (size_t)count * sizeof(float));
        }
        const char *products = r->products + (i * c->columns + j) * (int64_t)sizeof(float);
        if (!r->loops->results_of_products(&with, products, c->slab / (int64_t)sizeof(float), count, (void *const *)y))
            compute_again(r, &with, i, j, count, (void *const *)y);
        for (int q = 0; q < 4; q++)
            if (r->call->finish.loops && y[q]) pysim_finish_rows(&r->call->finish, y[q], 0, 1, count);
    }
}

/* A block of an image, on one thread. */
static void run_block(int64_t item, int64_t thread, const void *context) {
    running r = *(const running *)context;
    const pysim_job *job = r.job;
    const pysim_epilogue plain = {.alpha = r.call->epilogue->alpha != 0}; /* 0: neither operand is read, as in BLAS */
    pysim_profile own = {0};
    char *workspace = r.call->workspace + thread * job->thread_bytes;
    r.operands = workspace + (ALIGN - (uintptr_t)workspace % ALIGN) % ALIGN;
    r.products = r.operands + PYSIM_PRODUCTS * r.a.slab;
    pysim_call one = {.epilogue = &plain, .bounds = pysim_unbounded(PYSIM_F32), .threads = 1, .profile = r.call->profile ? &own : NULL};
    one.workspace = r.products + PYSIM_PRODUCTS * r.c.slab;
    go_to(&r.a, item / r.blocks, item % r.blocks), go_to(&r.c, item / r.blocks, item % r.blocks);
    const double start = r.call->profile ? pysim_now() : 0;
    for (int64_t i = 0; i < rows_of(&r.a) && plain.alpha != 0; i++) sum_row(&r, i);
    const double summed = r.call->profile ? pysim_now() : 0;
    for (int product = 0; product < PYSIM_PRODUCTS; product++) {
        one.first = r.operands + product * r.a.slab, one.second = r.call->second + product * operand_bytes(job);
        one.result = r.products + product * r.c.slab;
        inner_of(&job->problem)->run(job, &one);
    }
    const double multiplied = r.call->profile ? pysim_now() : 0;
    for (int64_t i = 0; i < rows_of(&r.c); i++) join_row(&r, i);
    if (r.call->profile) own.pack_seconds += summed - start + (pysim_now() - multiplied);
    pysim_add_profile(r.call->profile, &own);
}

static void run_strassen(const pysim_job *job, const pysim_call *call) {
    const pysim_problem *p = &job->problem;
    const int64_t images = p->kind == PYSIM_CONV ? p->conv.batch : 1;
    const int64_t rows = p->kind == PYSIM_GEMM ? p->gemm.m : p->conv.height * p->conv.width;
    running r = {.job = job, .call = call, .loops = pysim_loops_for(PYSIM_F32)};
    r.blocks = pysim_ceil_div(rows, 2 * half_rows(&job->part));
    r.from_result = call->residual ? call->residual - call->result : 0;
    matrices_of(job, call->first, call->result, &r.a, &r.c);
    pysim_parallel_for(images * r.blocks, call->threads, run_block, &r);
}

const pysim_algorithm pysim_algorithm_strassen = {
    .open = open_strassen, .prepare = prepare_strassen, .run = run_strassen, .finishes = 1, .adds = 1, .blocks = 1};
const pysim_algorithm pysim_algorithm_strassen_1x1 = {
    .open = open_strassen, .prepare = prepare_strassen, .run = run_strassen, .finishes = 1, .adds = 1, .blocks = 1};
