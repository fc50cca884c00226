/* SPDX-License-Identifier: Apache-2.0
 * ABI entry points for operators on arrays of any shape and for batches of products: arguments are checked here, the loops of loops_arrays.h
 * compute. */
#include "algorithms/algorithm.h"
#include "loops.h"
#include "operators.h"
#include "abi/status.h"

enum { PAIR_AXES = 6, PRODUCT_AXES = 4, LINE = 64, ROWS_TOGETHER = 8 /* of loops_arrays.h */ };

/* Elements from the first to the last of an operand with the given steps. */
static pysim_status spanned(const char *what, const int64_t *sizes, const int64_t *steps, int32_t axes, int64_t *elements) {
    int64_t last = 0;
    for (int32_t i = 0; i < axes; i++) {
        int64_t along;
        if (steps[i] < 0)
            return pysim_fail(PYSIM_BAD_ARGUMENT, "%s: step %d is %lld; expected at least 0", what, (int)i, (long long)steps[i]);
        if (__builtin_mul_overflow(sizes[i] - 1, steps[i], &along) || __builtin_add_overflow(last, along, &last) || last == INT64_MAX)
            return pysim_fail(PYSIM_OVERFLOW, "%s exceeds int64", what);
    }
    *elements = last + 1;
    return PYSIM_OK;
}

/* Whether the elements are contiguous in row-major order, as a result's are. */
static int is_dense(const int64_t *sizes, const int64_t *steps, int32_t axes) {
    int64_t apart = 1;
    for (int32_t i = axes - 1; i >= 0; i--) {
        if (sizes[i] > 1 && steps[i] != apart) return 0;
        apart *= sizes[i];
    }
    return 1;
}

static pysim_status check_pair(const pysim_pair *p, const pysim_epilogue *e, const void *a, const void *b, const void *y) {
    int64_t elements = 0, a_elements = 0, b_elements = 0, bytes[3] = {0};
    if (p->axes < 1 || p->axes > PAIR_AXES)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "a pair has %d axes; expected 1 to %d", (int)p->axes, PAIR_AXES);
    if (p->kind < PYSIM_ADD || p->kind > PYSIM_CHOOSE)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "a pair's kind is %d; expected 0 (add), 1 (subtract), 2 (multiply), 3 (divide) or 4 (choose)",
                          (int)p->kind);
    const int32_t second = p->kind == PYSIM_CHOOSE ? PYSIM_S8 : p->dtype;
    pysim_status status = pysim_check_positive("a pair's sizes", p->sizes, p->axes);
    if (status == PYSIM_OK) status = pysim_product("a pair's result", p->axes, p->sizes, &elements);
    if (status == PYSIM_OK) status = spanned("a pair's a", p->sizes, p->a_steps, p->axes, &a_elements);
    if (status == PYSIM_OK) status = spanned("a pair's b", p->sizes, p->b_steps, p->axes, &b_elements);
    const int64_t counts[] = {elements, a_elements, b_elements};
    for (int i = 0; i < 3 && status == PYSIM_OK; i++) {
        const int64_t of[] = {counts[i], pysim_dtype_bytes(i == 2 ? second : p->dtype)};
        status = pysim_product("a pair's bytes", 2, of, &bytes[i]);
    }
    if (status == PYSIM_OK) status = pysim_check_activation(e);
    if (status == PYSIM_OK && e->residual) status = pysim_fail(PYSIM_BAD_ARGUMENT, "a pair has no residual");
    if (status == PYSIM_OK) status = pysim_check_operand("a", a, p->dtype);
    if (status == PYSIM_OK) status = pysim_check_operand("b", b, second);
    if (status == PYSIM_OK) status = pysim_check_operand("y", y, p->dtype);
    if (status != PYSIM_OK) return status;
    const int over_a = a == y && is_dense(p->sizes, p->a_steps, p->axes),
              over_b = b == y && second == p->dtype && is_dense(p->sizes, p->b_steps, p->axes);
    const pysim_span spans[] = {{"y", y, bytes[0], 1}, {"a", over_a ? NULL : a, bytes[1], 0}, {"b", over_b ? NULL : b, bytes[2], 0}};
    return pysim_check_apart(spans, 3);
}

typedef struct {
    const pysim_pair *of;
    pysim_finish finish;
    const pysim_loops *loops;
    const char *a, *b;
    char *y;
    int32_t axis;
} pair_run;

/* Elements begin..end of the shared axis. The axes before it have one element, since y is dense. */
static void pair_range(const void *operator, int64_t begin, int64_t end) {
    const pair_run *r = operator;
    const int64_t bytes = pysim_dtype_bytes(r->of->dtype), second = r->of->kind == PYSIM_CHOOSE ? 1 : bytes;
    int64_t apart = 1;
    pysim_pair some = *r->of;
    some.sizes[r->axis] = end - begin;
    for (int32_t i = r->axis + 1; i < some.axes; i++) apart *= some.sizes[i];
    r->loops->pair(&some, &r->finish, r->a + begin * some.a_steps[r->axis] * bytes, r->b + begin * some.b_steps[r->axis] * second,
                   r->y + begin * apart * bytes);
}

pysim_status pysim_share_pair(const pysim_pair *p, const pysim_epilogue *e, const void *a, const void *b, void *y, int32_t threads) {
    pair_run r = {.of = p, .a = a, .b = b, .y = y};
    if (!p || !e) return pysim_fail(PYSIM_BAD_ARGUMENT, "the %s is NULL", p ? "epilogue" : "pair");
    pysim_status status = pysim_loops_of_values(p->dtype, &r.loops);
    if (status == PYSIM_OK) status = check_pair(p, e, a, b, y);
    if (status != PYSIM_OK) return status;
    r.finish = (pysim_finish){e->activation == PYSIM_IDENTITY ? NULL : r.loops, y, NULL, e->activation, e->low, e->high};
    int64_t each = pysim_dtype_bytes(p->dtype);
    while (r.axis + 1 < p->axes && p->sizes[r.axis] == 1) r.axis++;
    for (int32_t i = r.axis + 1; i < p->axes; i++) each *= p->sizes[i];
    pysim_share_items(p->sizes[r.axis], pysim_ceil_div(LINE, each), each, threads, pair_range, &r);
    return PYSIM_OK;
}

pysim_status pysim_run_pair(const pysim_pair *p, const pysim_epilogue *e, const void *a, const void *b, void *y) {
    return pysim_share_pair(p, e, a, b, y, 1);
}

/* A caller selects a kind by the number of its line in rows.inc. */
enum {
#define PYSIM_ROWS_OF(number, name, operations, reductions) ROWS_##name = number,
#include "rows.inc"
#undef PYSIM_ROWS_OF
    ROWS_KINDS
};
_Static_assert((int)ROWS_softmax == (int)PYSIM_ROWS_SOFTMAX && (int)ROWS_standard == (int)PYSIM_ROWS_STANDARD &&
                   (int)ROWS_length == (int)PYSIM_ROWS_LENGTH && (int)ROWS_local == (int)PYSIM_ROWS_LOCAL &&
                   (int)ROWS_log_softmax == (int)PYSIM_ROWS_LOG_SOFTMAX && (int)ROWS_KINDS == (int)PYSIM_ROWS_LOG_SOFTMAX + 1,
               "rows.inc has the numbers of pysim_rows_kind");

static pysim_status check_rows(const pysim_rows *r, const void *x, const void *scale, const void *shift, const void *y) {
    const int64_t sizes[] = {r->rows, r->size, r->inner}, all[] = {r->rows, r->size, r->inner, pysim_dtype_bytes(r->dtype)};
    const int is_length = r->kind == PYSIM_ROWS_LENGTH, is_local = r->kind == PYSIM_ROWS_LOCAL, element = pysim_dtype_bytes(r->dtype);
    int64_t bytes = 0;
    if (r->kind < PYSIM_ROWS_SOFTMAX || r->kind > PYSIM_ROWS_LOG_SOFTMAX)
        return pysim_fail(PYSIM_BAD_ARGUMENT,
                          "the kind of rows is %d; expected 0 (softmax), 1 (standard), 2 (length), 3 (local) or 4 (log_softmax)",
                          (int)r->kind);
    if (!(r->epsilon >= 0)) return pysim_fail(PYSIM_BAD_ARGUMENT, "the epsilon of rows is %g; expected at least 0", r->epsilon);
    if (is_local && !(r->epsilon > 0 && r->alpha >= 0 && r->beta == r->beta && r->window >= 1))
        return pysim_fail(PYSIM_BAD_ARGUMENT,
                          "local rows have window %lld, epsilon %g, alpha %g and beta %g; window is at least 1, epsilon above 0, "
                          "alpha at least 0, beta a number",
                          (long long)r->window, r->epsilon, r->alpha, r->beta);
    pysim_status status = pysim_check_positive("rows, their size and inner", sizes, 3);
    if (status == PYSIM_OK && r->inner > 1 && is_length)
        status = pysim_fail(PYSIM_UNSUPPORTED, "rows of kind %d have elements %lld apart; they have them one by one", (int)r->kind,
                            (long long)r->inner);
    if (status == PYSIM_OK) status = pysim_product("the bytes of rows, rows x size x inner x element", 4, all, &bytes);
    if (status == PYSIM_OK) status = pysim_check_operand("x", x, r->dtype);
    if (status == PYSIM_OK) status = pysim_check_operand("y", y, r->dtype);
    if (status == PYSIM_OK && scale) status = pysim_check_operand("scale", scale, r->dtype);
    if (status == PYSIM_OK && shift) status = pysim_check_operand("shift", shift, r->dtype);
    if (status != PYSIM_OK) return status;
    const pysim_span spans[] = {
        {"y", y, is_length ? r->rows * element : bytes, 1},
        {"x", x == y && !is_length && !is_local ? NULL : x, bytes, 0},
        {"scale", scale, r->size * element, 0},
        {"shift", shift, r->size * element, 0},
    };
    return pysim_check_apart(spans, 4);
}

typedef struct {
    const pysim_rows *of;
    const pysim_loops *loops;
    const char *x;
    const void *scale, *shift;
    char *y;
} rows_run;

static void rows_range(const void *operator, int64_t begin, int64_t end) {
    const rows_run *r = operator;
    const int64_t bytes = pysim_dtype_bytes(r->of->dtype), row = r->of->size * r->of->inner * bytes;
    pysim_rows some = *r->of;
    some.rows = end - begin;
    r->loops->rows(&some, r->x + begin * row, r->scale, r->shift, r->y + begin * (some.kind == PYSIM_ROWS_LENGTH ? bytes : row));
}

pysim_status pysim_share_rows(const pysim_rows *r, const void *x, const void *scale, const void *shift, void *y, int32_t threads) {
    rows_run run = {.of = r, .x = x, .scale = scale, .shift = shift, .y = y};
    if (!r) return pysim_fail(PYSIM_BAD_ARGUMENT, "rows is NULL");
    pysim_status status = pysim_loops_of(r->dtype, &run.loops);
    if (status == PYSIM_OK) status = check_rows(r, x, scale, shift, y);
    if (status != PYSIM_OK) return status;
    pysim_share_items(r->rows, ROWS_TOGETHER, r->size * r->inner * pysim_dtype_bytes(r->dtype), threads, rows_range, &run);
    return PYSIM_OK;
}

pysim_status pysim_run_rows(const pysim_rows *r, const void *x, const void *scale, const void *shift, void *y) {
    return pysim_share_rows(r, x, scale, shift, y, 1);
}

static pysim_status check_take(const pysim_take *t, const void *x, const int64_t *at, const void *shares, const void *y) {
    const int each = t->taps == 0 && !shares; /* an index for each element */
    const int64_t sizes[] = {t->outer, t->size, t->inner, t->count, each ? 1 : t->taps}, element = pysim_dtype_bytes(t->dtype);
    const int64_t read[] = {t->outer, t->size, t->inner, element}, written[] = {t->outer, t->count, t->inner, element};
    const int64_t indices[] = {each ? t->outer : 1, t->count, each ? t->inner : t->taps, (int64_t)sizeof *at};
    int64_t in_bytes = 0, out_bytes = 0, index_bytes = 0, outside = 0;
    pysim_status status = pysim_check_positive("a table's outer, size, inner, count and taps", sizes, 5);
    if (status == PYSIM_OK && !shares && t->taps > 1)
        status = pysim_fail(PYSIM_BAD_ARGUMENT, "a table has %lld taps and no shares; without shares it has 1", (long long)t->taps);
    if (status == PYSIM_OK) status = pysim_product("a table's bytes", 4, read, &in_bytes);
    if (status == PYSIM_OK) status = pysim_product("the bytes of what is taken", 4, written, &out_bytes);
    if (status == PYSIM_OK) status = pysim_product("the bytes of indices", 4, indices, &index_bytes);
    if (status == PYSIM_OK) status = pysim_check_operand("x", x, t->dtype);
    if (status == PYSIM_OK) status = pysim_check_operand("at", at, PYSIM_F64); /* int64 has 8 bytes, too */
    if (status == PYSIM_OK) status = pysim_check_operand("y", y, t->dtype);
    if (status == PYSIM_OK && shares) status = pysim_check_operand("shares", shares, t->dtype);
    if (status != PYSIM_OK) return status;
    const pysim_span spans[] = {
        {"y", y, out_bytes, 1}, {"x", x, in_bytes, 0}, {"at", at, index_bytes, 0}, {"shares", shares, t->count * t->taps * element, 0}};
    status = pysim_check_apart(spans, 4);
    const int64_t index_count = index_bytes / (int64_t)sizeof *at;
    for (int64_t i = 0; i < index_count; i++) outside |= (at[i] < -t->size) | (at[i] >= t->size);
    for (int64_t i = 0; outside && i < index_count && status == PYSIM_OK; i++)
        if (at[i] < -t->size || at[i] >= t->size)
            status = pysim_fail(PYSIM_BAD_ARGUMENT, "index %lld is %lld; there are %lld rows", (long long)i, (long long)at[i],
                                (long long)t->size);
    return status;
}

pysim_status pysim_run_take(const pysim_take *t, const void *x, const int64_t *at, const void *shares, void *y) {
    const pysim_loops *loops;
    if (!t) return pysim_fail(PYSIM_BAD_ARGUMENT, "the table is NULL");
    pysim_status status = pysim_loops_of(t->dtype, &loops);
    if (status == PYSIM_OK) status = check_take(t, x, at, shares, y);
    if (status == PYSIM_OK) loops->take(t, x, at, shares, y);
    return status;
}

/* Checks the steps between matrices: not negative, and within int64. */
static pysim_status check_products(const pysim_products *p) {
    int64_t elements;
    if (!p->of || p->of->kind != PYSIM_GEMM)
        return pysim_fail(p->of ? PYSIM_UNSUPPORTED : PYSIM_BAD_ARGUMENT,
                          p->of ? "a batch of products needs a matrix product, and the problem is a convolution" : "the product is NULL");
    if (p->axes < 0 || p->axes > PRODUCT_AXES)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "products have %d axes; they have 0 to %d", (int)p->axes, PRODUCT_AXES);
    pysim_status status = pysim_check_positive("the counts of products", p->counts, p->axes);
    if (status == PYSIM_OK) status = spanned("the steps of a", p->counts, p->a_steps, p->axes, &elements);
    if (status == PYSIM_OK) status = spanned("the steps of b", p->counts, p->b_steps, p->axes, &elements);
    if (status == PYSIM_OK) status = pysim_check_positive("the steps of c", p->c_steps, p->axes);
    if (status == PYSIM_OK) status = spanned("the steps of c", p->counts, p->c_steps, p->axes, &elements);
    return status;
}

pysim_status pysim_run_products(const pysim_products *p, const pysim_schedule *s, const pysim_epilogue *e, int32_t threads, const void *a,
                                const void *b, void *c, void *workspace, int64_t workspace_bytes) {
    if (!p) return pysim_fail(PYSIM_BAD_ARGUMENT, "products is NULL");
    pysim_status status = check_products(p);
    if (status != PYSIM_OK) return status;
    pysim_job job;
    status = pysim_open(p->of, s, &job, sizeof job);
    if (status != PYSIM_OK) return status;
    const int64_t bytes = pysim_dtype_bytes(p->of->gemm.dtype), result = pysim_dtype_bytes(pysim_result_dtype(p->of->gemm.dtype));
    int64_t at[PRODUCT_AXES] = {0};
    for (;;) {
        int64_t a_at = 0, b_at = 0, c_at = 0;
        for (int32_t i = 0; i < p->axes; i++) a_at += at[i] * p->a_steps[i], b_at += at[i] * p->b_steps[i], c_at += at[i] * p->c_steps[i];
        status = pysim_run_job(&job, e, threads, (const char *)a + a_at * bytes, (const char *)b + b_at * bytes, (char *)c + c_at * result,
                               workspace, workspace_bytes, NULL);
        int32_t axis = p->axes - 1;
        for (; axis >= 0 && ++at[axis] == p->counts[axis]; axis--) at[axis] = 0;
        if (axis < 0 || status != PYSIM_OK) return status;
    }
}
