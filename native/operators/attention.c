/* SPDX-License-Identifier: Apache-2.0
 * ABI entry point of attention: arguments are checked here, and heads and rows divided among threads; loops_attention.h computes. */
#include <string.h>

#include "algorithms/nest.h"
#include "operators.h"
#include "abi/status.h"

enum { AXES = 4, SIDES = 5, FEWEST = 48, MOST_BYTES = 1 << 15, PAIRS = 2 * PYSIM_ATTENTION_LANES };

/* That of operands and results, but for queries and keys of bytes. */
static int32_t dtype_of(const pysim_attention *a) { return a->dtype == PYSIM_BF16 ? PYSIM_F32 : a->dtype; }

/* Bytes from the first to the last element of one operand: its steps along the batch, then its own two axes. */
static pysim_status bytes_of(const char *what, const pysim_attention *a, int64_t element, const int64_t *steps, const int64_t *own,
                             const int64_t *sizes, int64_t *bytes) {
    int64_t last = 0;
    for (int32_t i = 0; i < a->axes + 2; i++) {
        const int64_t step = i < a->axes ? steps[i] : own[i - a->axes], size = i < a->axes ? a->counts[i] : sizes[i - a->axes];
        int64_t along;
        if (step < 0) return pysim_fail(PYSIM_BAD_ARGUMENT, "%s has a step of %lld; expected at least 0", what, (long long)step);
        if (__builtin_mul_overflow(size - 1, step, &along) || __builtin_add_overflow(last, along, &last) || last == INT64_MAX)
            return pysim_fail(PYSIM_OVERFLOW, "%s exceeds int64", what);
    }
    const int64_t all[] = {last + 1, element};
    return pysim_product(what, 2, all, bytes);
}

static int of_bytes(const pysim_attention *a) { return a->q_of.scale != 0 || a->k_of.scale != 0; }

/* Of queries and keys of bytes; sums of as many products stay within 32 bits. */
static pysim_status check_bytes(const pysim_attention *a) {
    const pysim_quantity *sides[] = {&a->q_of, &a->k_of};
    if (a->dtype != PYSIM_F32 || a->size > MOST_BYTES)
        return pysim_fail(PYSIM_UNSUPPORTED, "attention of bytes has dtype %s and %lld elements a query; expected f32 and at most %d",
                          pysim_dtype_name(a->dtype), (long long)a->size, (int)MOST_BYTES);
    for (int i = 0; i < 2; i++) {
        const int32_t low = sides[i]->is_signed ? -128 : 0;
        if (!(sides[i]->scale > 0) || sides[i]->scale - sides[i]->scale != 0 || sides[i]->zero < low || sides[i]->zero > low + 255)
            return pysim_fail(PYSIM_BAD_ARGUMENT, "attention's %s have scale %g and zero %d; expected a positive number, and %d to %d",
                              i ? "keys" : "queries", (double)sides[i]->scale, (int)sides[i]->zero, (int)low, (int)low + 255);
    }
    return PYSIM_OK;
}

/* How scores of bytes are made: by the first row of form groups whose tiles are those of attention. */
static pysim_byte_scores scores_of(const pysim_attention *a) {
    const pysim_quantity *q = &a->q_of, *k = &a->k_of;
    pysim_byte_scores of = {.scale = (float)(a->alpha * (double)q->scale * (double)k->scale),
                            .q_zero = q->is_signed ? q->zero + 128 : q->zero,
                            .k_zero = k->is_signed ? k->zero : k->zero - 128,
                            .q_flip = q->is_signed ? 0x80 : 0,
                            .k_flip = k->is_signed ? 0 : 0x80};
    for (int32_t i = 0; i < pysim_kernel_count(); i++) {
        pysim_kernel_info info;
        pysim_row row;
        if (pysim_kernel_at(i, &info) != PYSIM_OK || info.dtype != PYSIM_S8 || strcmp(info.form, "groups") != 0 || !info.available)
            continue;
        if (info.filters != PYSIM_ATTENTION_GROUP || PYSIM_ATTENTION_KEYS % info.windows != 0 || info.windows <= of.windows) continue;
        const pysim_schedule s = {.kernel = i, .windows = info.windows, .filters = info.filters};
        if (pysim_row_for(&s, PYSIM_S8, &row) == PYSIM_OK && row.rescales) of.run = row.run, of.windows = info.windows;
    }
    return of;
}

static pysim_status check_sizes(const pysim_attention *a) {
    const int64_t sizes[] = {a->rows, a->keys, a->size, a->width};
    if (a->axes < 0 || a->axes > AXES)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "attention has %d axes of heads; expected 0 to %d", (int)a->axes, AXES);
    pysim_status status = pysim_check_positive("attention's rows, keys, size and width", sizes, 4);
    if (status == PYSIM_OK) status = pysim_check_positive("attention's counts of heads", a->counts, a->axes);
    int64_t elements;
    const int64_t scratch[] = {PYSIM_ATTENTION_ROWS + PYSIM_ATTENTION_KEYS, a->size, 32}, more[] = {scratch[0], a->width, 32};
    if (status == PYSIM_OK) status = pysim_product("attention's workspace", 3, scratch, &elements);
    if (status == PYSIM_OK) status = pysim_product("attention's workspace", 3, more, &elements);
    if (status == PYSIM_OK && of_bytes(a)) status = check_bytes(a);
    if (status == PYSIM_OK && a->k_step != 1 && a->k_row != 1)
        status = pysim_fail(PYSIM_UNSUPPORTED, "attention's keys have elements %lld and rows %lld apart; one of them is 1",
                            (long long)a->k_step, (long long)a->k_row);
    return status;
}

static int64_t heads_of(const pysim_attention *a) {
    int64_t heads = 1;
    for (int32_t i = 0; i < a->axes; i++) heads *= a->counts[i];
    return heads;
}

static int64_t thread_bytes(const pysim_attention *a) {
    const int64_t size = a->dtype == PYSIM_BF16 ? (a->size + PAIRS - 1) / PAIRS * PAIRS : a->size;
    return (pysim_attention_elements(size, a->width) * pysim_dtype_bytes(dtype_of(a)) + 63) / 64 * 64;
}

pysim_status pysim_attention_workspace_bytes(const pysim_attention *a, int32_t threads, int64_t *bytes) {
    const pysim_loops *loops;
    int64_t unused;
    if (!a || !bytes) return pysim_fail(PYSIM_BAD_ARGUMENT, "%s is NULL", a ? "bytes" : "attention");
    pysim_status status = pysim_loops_of_values(a->dtype, &loops);
    if (status == PYSIM_OK) status = check_sizes(a);
    if (status == PYSIM_OK && threads) status = pysim_threads_workspace(0, threads, &unused);
    if (status == PYSIM_OK) *bytes = pysim_max(1, threads) * thread_bytes(a);
    return status;
}

typedef struct {
    const pysim_attention *of;
    const pysim_loops *loops;
    const char *q, *k, *v, *mask;
    char *y, *workspace;
    int64_t pieces, piece; /* of a head's rows; rows of one, whole groups */
    const pysim_byte_scores *scores;
} attention_run;

static void run_piece(int64_t part, int64_t thread, const void *context) {
    const attention_run *r = context;
    const pysim_attention *a = r->of;
    const int64_t bytes = pysim_dtype_bytes(dtype_of(a)), each = r->scores ? 1 : bytes, first = part % r->pieces * r->piece;
    int64_t head = part / r->pieces, q = first * a->q_row, k = 0, v = 0, m = first * a->m_row, y = first * a->y_row;
    for (int32_t i = a->axes - 1; i >= 0; head /= a->counts[i], i--) {
        const int64_t at = head % a->counts[i];
        q += at * a->q_steps[i], k += at * a->k_steps[i], v += at * a->v_steps[i], m += at * a->m_steps[i], y += at * a->y_steps[i];
    }
    r->loops->attention(a, pysim_min(r->piece, a->rows - first), r->q + q * each, r->k + k * each, r->v + v * bytes,
                        r->mask ? r->mask + m * bytes : NULL, r->y + y * bytes, r->workspace + thread * thread_bytes(a), r->scores);
}

/* Divides each head's rows, so that threads have equal parts of few heads. A piece packs all keys, so it has at least FEWEST rows. */
static void divide_rows(attention_run *r, int32_t threads) {
    const pysim_attention *a = r->of;
    const int64_t fewest = pysim_ceil_div(a->rows, PYSIM_ATTENTION_ROWS), most = pysim_max(fewest, a->rows / FEWEST);
    const int64_t pieces = pysim_min(most, fewest * pysim_split_count(heads_of(a) * fewest, threads));
    r->piece = pysim_ceil_div(pysim_ceil_div(a->rows, pieces), PYSIM_ATTENTION_GROUP) * PYSIM_ATTENTION_GROUP;
    r->pieces = pysim_ceil_div(a->rows, r->piece);
}

static pysim_status check_operands(const pysim_attention *a, const void *q, const void *k, const void *v, const void *y) {
    const int64_t of_q[] = {a->rows, a->size}, of_k[] = {a->keys, a->size}, of_v[] = {a->keys, a->width}, of_m[] = {a->rows, a->keys};
    const int64_t of_y[] = {a->rows, a->width}, q_own[] = {a->q_row, 1}, k_own[] = {a->k_row, a->k_step}, v_own[] = {a->v_row, 1};
    const int64_t m_own[] = {a->m_row, a->m_step}, y_own[] = {a->y_row, 1};
    const int64_t *own[] = {q_own, k_own, v_own, m_own, y_own}, *sizes[] = {of_q, of_k, of_v, of_m, of_y};
    const int64_t *steps[] = {a->q_steps, a->k_steps, a->v_steps, a->m_steps, a->y_steps};
    const void *memory[] = {q, k, v, a->mask, y};
    static const char *const names[] = {"q", "k", "v", "mask", "y"};
    pysim_span spans[SIDES];
    for (int i = 0; i < SIDES; i++) {
        int64_t bytes = 0;
        if (i == 3 && !a->mask) {
            spans[i] = (pysim_span){names[i], NULL, 0, 0};
            continue;
        }
        const int32_t dtype = of_bytes(a) && i < 2 ? PYSIM_S8 : dtype_of(a);
        pysim_status status = bytes_of(names[i], a, pysim_dtype_bytes(dtype), steps[i], own[i], sizes[i], &bytes);
        if (status == PYSIM_OK) status = pysim_check_operand(names[i], memory[i], dtype);
        if (status != PYSIM_OK) return status;
        spans[i] = (pysim_span){names[i], memory[i], bytes, i == SIDES - 1};
    }
    if (a->rows > 1 && a->y_row < a->width)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "attention's results are %lld apart and %lld long", (long long)a->y_row, (long long)a->width);
    for (int32_t i = 0; i < a->axes; i++)
        if (a->counts[i] > 1 && a->y_steps[i] < a->width)
            return pysim_fail(PYSIM_BAD_ARGUMENT, "attention's heads write %lld apart, results of %lld", (long long)a->y_steps[i],
                              (long long)a->width);
    return pysim_check_apart(spans, SIDES);
}

pysim_status pysim_run_attention(const pysim_attention *a, int32_t threads, const void *q, const void *k, const void *v, void *y,
                                 void *workspace, int64_t workspace_bytes) {
    attention_run r = {.of = a, .q = q, .k = k, .v = v, .y = y, .workspace = workspace};
    int64_t needed;
    pysim_status status = pysim_attention_workspace_bytes(a, threads, &needed);
    if (status == PYSIM_OK) status = pysim_loops_of_values(a->dtype, &r.loops);
    if (status == PYSIM_OK) status = check_operands(a, q, k, v, y);
    if (status == PYSIM_OK && (!workspace || workspace_bytes < needed))
        status = pysim_fail(PYSIM_BAD_ARGUMENT, "attention's workspace has %lld bytes; it needs %lld",
                            workspace ? (long long)workspace_bytes : 0LL, (long long)needed);
    if (status != PYSIM_OK) return status;
    const pysim_byte_scores scores = of_bytes(a) ? scores_of(a) : (pysim_byte_scores){0};
    if (of_bytes(a)) r.scores = &scores;
    r.mask = a->mask;
    divide_rows(&r, threads);
    pysim_parallel_for(heads_of(a) * r.pieces, threads, run_piece, &r);
    return PYSIM_OK;
}
