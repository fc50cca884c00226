/* SPDX-License-Identifier: Apache-2.0
 * ABI entry points of operators along an axis, of halves and of samples: arguments are checked here; loops_along.h and loops_sample.h compute. */
#include "operators.h"
#include "abi/status.h"

/* Whether x, of `read` elements, and y, of `written` ones, are there, aligned and apart. */
static pysim_status check_both(const void *x, const int64_t *read, int32_t read_count, int32_t dtype, const void *y, const int64_t *written,
                               int32_t written_count, int32_t result, pysim_span other) {
    int64_t elements[2] = {0}, bytes[2] = {0};
    pysim_status status = pysim_product("the elements of x", read_count, read, &elements[0]);
    if (status == PYSIM_OK) status = pysim_product("the elements of y", written_count, written, &elements[1]);
    for (int i = 0; i < 2 && status == PYSIM_OK; i++) {
        const int64_t all[] = {elements[i], pysim_dtype_bytes(i ? result : dtype)};
        status = pysim_product(i ? "the bytes of y" : "the bytes of x", 2, all, &bytes[i]);
    }
    if (status == PYSIM_OK) status = pysim_check_operand("x", x, dtype);
    if (status == PYSIM_OK) status = pysim_check_operand("y", y, result);
    const pysim_span spans[] = {{"y", y, bytes[1], 1}, {"x", x, bytes[0], 0}, other};
    return status == PYSIM_OK ? pysim_check_apart(spans, 3) : status;
}

static const pysim_span NO_OTHER = {"nothing", NULL, 0, 0};

pysim_status pysim_run_fold(const pysim_fold *f, const void *x, void *y) {
    const pysim_loops *loops;
    if (!f) return pysim_fail(PYSIM_BAD_ARGUMENT, "the fold is NULL");
    if (f->kind < PYSIM_FOLD_SUM || f->kind > PYSIM_FOLD_RUNNING)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "a fold's kind is %d; expected 0 (sum) to 7 (running)", (int)f->kind);
    const int64_t read[] = {f->outer, f->size, f->inner}, written[] = {f->outer, f->kind == PYSIM_FOLD_RUNNING ? f->size : 1, f->inner};
    const int at = f->kind == PYSIM_FOLD_LARGEST_AT || f->kind == PYSIM_FOLD_SMALLEST_AT;
    pysim_status status = pysim_loops_of(f->dtype, &loops);
    if (status == PYSIM_OK) status = pysim_check_positive("a fold's outer, size and inner", read, 3);
    if (status == PYSIM_OK && at && f->size > INT32_MAX)
        status = pysim_fail(PYSIM_UNSUPPORTED, "a fold finds places of %lld elements; at most %d", (long long)f->size, INT32_MAX);
    if (status == PYSIM_OK) status = check_both(x, read, 3, f->dtype, y, written, 3, at ? PYSIM_F64 : f->dtype, NO_OTHER);
    if (status == PYSIM_OK) loops->fold(f, x, y);
    return status;
}

pysim_status pysim_run_best(const pysim_best *b, const void *x, void *y, int64_t *places) {
    const pysim_loops *loops;
    if (!b) return pysim_fail(PYSIM_BAD_ARGUMENT, "best is NULL");
    const int64_t read[] = {b->rows, b->size, b->count}, written[] = {b->rows, b->count}, bytes[] = {b->rows, b->count, 8};
    int64_t all = 0;
    pysim_status status = pysim_loops_of(b->dtype, &loops);
    if (status == PYSIM_OK) status = pysim_check_positive("best's rows, size and count", read, 3);
    if (status == PYSIM_OK && b->count > b->size)
        status = pysim_fail(PYSIM_BAD_ARGUMENT, "best has a count of %lld in rows of %lld", (long long)b->count, (long long)b->size);
    if (status == PYSIM_OK) status = pysim_product("the bytes of places", 3, bytes, &all);
    if (status == PYSIM_OK) status = pysim_check_operand("places", places, PYSIM_F64); /* int64 has 8 bytes, too */
    if (status == PYSIM_OK) status = check_both(x, read, 2, b->dtype, y, written, 2, b->dtype, (pysim_span){"places", places, all, 1});
    if (status == PYSIM_OK) loops->best(b, x, y, places);
    return status;
}

pysim_status pysim_run_halves(const pysim_halves *h, const void *x, void *y) {
    const pysim_loops *loops;
    if (!h) return pysim_fail(PYSIM_BAD_ARGUMENT, "halves is NULL");
    const int32_t from = h->to_halves ? PYSIM_F32 : h->dtype, to = h->to_halves ? h->dtype : PYSIM_F32;
    if (h->dtype != PYSIM_F16 && h->dtype != PYSIM_BF16)
        return pysim_fail(PYSIM_UNSUPPORTED, "halves are of dtype %d; expected 2 (f16) or 3 (bf16)", (int)h->dtype);
    pysim_status status = pysim_loops_of_values(h->dtype == PYSIM_F16 ? PYSIM_F32 : PYSIM_BF16, &loops);
    if (status == PYSIM_OK) status = pysim_check_positive("a count of halves", &h->count, 1);
    if (status == PYSIM_OK) status = check_both(x, &h->count, 1, from, y, &h->count, 1, to, NO_OTHER);
    if (status == PYSIM_OK) (h->to_halves ? loops->narrow : loops->widen)(x, h->count, y);
    return status;
}

pysim_status pysim_run_sample(const pysim_sample *s, const void *x, const void *grid, void *y) {
    const pysim_loops *loops;
    if (!s) return pysim_fail(PYSIM_BAD_ARGUMENT, "the sample is NULL");
    const int64_t read[] = {s->images, s->channels, s->height, s->width, s->points}, written[] = {s->images, s->channels, s->points};
    const int64_t bytes[] = {s->images, s->points, 2, pysim_dtype_bytes(s->dtype)};
    int64_t all = 0;
    if (s->padding < PYSIM_PAD_ZEROS || s->padding > PYSIM_PAD_REFLECTION)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "a sample's padding is %d; expected 0 (zeros), 1 (border) or 2 (reflection)",
                          (int)s->padding);
    pysim_status status = pysim_loops_of(s->dtype, &loops);
    if (status == PYSIM_OK) status = pysim_check_positive("a sample's images, channels, height, width and points", read, 5);
    if (status == PYSIM_OK) status = pysim_product("the bytes of a grid", 4, bytes, &all);
    if (status == PYSIM_OK) status = pysim_check_operand("grid", grid, s->dtype);
    if (status == PYSIM_OK) status = check_both(x, read, 4, s->dtype, y, written, 3, s->dtype, (pysim_span){"grid", grid, all, 0});
    if (status == PYSIM_OK) loops->sample(s, x, grid, y);
    return status;
}
