/* SPDX-License-Identifier: Apache-2.0
 * ABI entry points of products of two values of bytes and of softmax of bytes: arguments are checked here. Products run by a micro-kernel of form unpacked, whose panels
 * of b are made for each product, and which reads rows of a where they lie if these are unsigned and whole words; without one in plain C. */
#include <string.h>

#include "algorithms/nest.h"
#include "integers.h"
#include "operators.h"
#include "abi/status.h"

enum { WORD = 4, LINE = 64, MOST_ROWS = 64 };

typedef struct {
    const pysim_byte_products *of;
    pysim_micro_kernel run; /* or NULL */
    int64_t filters, windows;
    const uint8_t *a, *b;
    uint8_t *y;
    char *workspace;
    int64_t each; /* bytes of a thread */
    pysim_byte a_of, b_of;
} products_run;

static int64_t words_of(const pysim_byte_products *p) { return pysim_ceil_div(p->k, WORD); }
static int64_t rounded_up(int64_t bytes) { return pysim_ceil_div(bytes, LINE) * LINE; }
static int64_t wide(const pysim_byte_products *p) { return pysim_ceil_div(p->columns, LINE) * LINE; }
/* The panels of b, sums of columns, terms of rows, and some rows of a. */
static int64_t thread_bytes(const pysim_byte_products *p) {
    return wide(p) * (words_of(p) + 1) * WORD + MOST_ROWS * WORD + rounded_up(MOST_ROWS * words_of(p) * WORD);
}

static pysim_status check_quantity(const char *what, const pysim_quantity *q) {
    const int32_t low = q->is_signed ? -128 : 0;
    if (!(q->scale > 0) || q->scale - q->scale != 0 || q->zero < low || q->zero > low + 255)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "%s has scale %g and zero %d; expected a positive number, and %d to %d", what,
                          (double)q->scale, (int)q->zero, (int)low, (int)low + 255);
    return PYSIM_OK;
}

pysim_status pysim_byte_products_workspace_bytes(const pysim_byte_products *p, int32_t threads, int64_t *bytes) {
    if (!p || !bytes) return pysim_fail(PYSIM_BAD_ARGUMENT, "%s is NULL", p ? "bytes" : "the products");
    const int64_t sizes[] = {p->count, p->rows, p->columns, p->k};
    int64_t unused;
    pysim_status status = pysim_check_positive("count, rows, columns and k of products of bytes", sizes, 4);
    if (status == PYSIM_OK && p->k > PYSIM_MOST_PRODUCTS)
        status = pysim_fail(PYSIM_UNSUPPORTED, "k of products of bytes is %lld; expected at most %d", (long long)p->k, PYSIM_MOST_PRODUCTS);
    const int64_t largest[] = {p->columns, PYSIM_MOST_PRODUCTS, 2 * LINE};
    if (status == PYSIM_OK) status = pysim_product("the workspace of products of bytes", 3, largest, &unused);
    if (status == PYSIM_OK) status = pysim_threads_workspace(thread_bytes(p), pysim_max(1, threads), bytes);
    return status;
}

/* Scalar sums, where no micro-kernel runs. */
static void plain_products(const products_run *r, const uint8_t *a, const uint8_t *b, uint8_t *y) {
    const pysim_byte_products *p = r->of;
    const float low = p->y.is_signed ? -128 : 0;
    for (int64_t i = 0; i < p->rows; i++)
        for (int64_t j = 0; j < p->columns; j++) {
            int32_t sum = 0;
            for (int64_t k = 0; k < p->k; k++)
                sum += ((int32_t)(a[i * p->k + k] ^ r->a_of.flip) - r->a_of.zero) *
                       ((int32_t)(b[k * p->columns + j] ^ r->b_of.flip) - r->b_of.zero);
            const float t = (float)sum * p->scale, least = low - (float)p->y.zero, most = least + 255;
            y[i * p->columns + j] = (uint8_t)((int32_t)__builtin_rintf(t < least ? least : t > most ? most : t) + p->y.zero);
        }
}

/* Panels of b as words, and what the zero of a takes off the sums of each column; b is signed. */
static void pack(const products_run *r, const uint8_t *b, uint32_t *panels, int32_t *terms) {
    const pysim_byte_products *p = r->of;
    const pysim_integers *loops = pysim_integers_here();
    const uint8_t flip = p->b.is_signed ? 0 : 0x80;
    memset(terms, 0, (size_t)wide(p) * sizeof *terms);
    for (int64_t w = 0; w < words_of(p); w++)
        loops->words(pysim_min(WORD, p->k - w * WORD), p->columns, flip, b + w * WORD * p->columns, panels + w * wide(p), terms);
    for (int64_t j = 0; j < p->columns; j++) terms[j] *= -r->a_of.zero;
}

/* What the zero of b takes off the sums of some rows of a. */
static void row_terms(const products_run *r, const uint8_t *a, int64_t rows, int32_t b_zero, int32_t *terms) {
    const pysim_byte_products *p = r->of;
    if (b_zero) pysim_integers_here()->totals(rows, p->k, r->a_of.flip, a, terms);
    for (int64_t i = 0; i < rows; i++) terms[i] = b_zero ? -b_zero * (terms[i] - (int32_t)p->k * r->a_of.zero) : 0;
}

static void one_product(int64_t item, int64_t thread, const void *context) {
    const products_run *r = context;
    const pysim_byte_products *p = r->of;
    const uint8_t *a = r->a + item * p->rows * p->k, *b = r->b + item * p->k * p->columns;
    uint8_t *y = r->y + item * p->rows * p->columns;
    if (!r->run) {
        plain_products(r, a, b, y);
        return;
    }
    uint32_t *panels = (uint32_t *)(void *)(r->workspace + thread * r->each);
    int32_t *columns = (int32_t *)(panels + words_of(p) * wide(p)), *rows = columns + wide(p);
    uint8_t *copy = (uint8_t *)(rows + MOST_ROWS);
    const int in_place = !r->a_of.flip && p->k % WORD == 0;
    const int32_t b_zero = p->b.is_signed ? p->b.zero : p->b.zero - 128, low = p->y.is_signed ? -128 : 0;
    pysim_store store = {.alpha = 1, .bounds = pysim_unbounded(PYSIM_S8), .bias_filters = rows, .swapped = 1};
    store.rescale = (pysim_rescale){.scales = &p->scale, .result = p->y.is_signed ? PYSIM_S8 : PYSIM_U8, .zero = p->y.zero};
    store.rescale.low = (float)(low - p->y.zero), store.rescale.high = (float)(low + 255 - p->y.zero);
    store.filter_pitch = words_of(p) * WORD;
    pack(r, b, panels, columns);
    for (int64_t i = 0; i < p->rows; i += r->filters, a += r->filters * p->k) {
        const int64_t some = pysim_min(r->filters, p->rows - i);
        row_terms(r, a, some, b_zero, rows);
        for (int64_t f = 0; f < some && !in_place; f++) {
            uint8_t *to = copy + f * store.filter_pitch;
            memcpy(to, a + f * p->k, (size_t)p->k);
            for (int64_t k = 0; k < p->k && r->a_of.flip; k++) to[k] ^= r->a_of.flip;
            memset(to + p->k, 0, (size_t)(store.filter_pitch - p->k));
        }
        for (int64_t j = 0; j < p->columns; j += r->windows) {
            store.bias_windows = columns + j;
            r->run(store.filter_pitch, in_place ? a : copy, panels + j, wide(p), y + i * p->columns + j, p->columns,
                   pysim_min(r->windows, p->columns - j), some, &store);
        }
    }
}

/* The first row of form unpacked that runs here. */
static void choose(products_run *r) {
    for (int32_t i = 0; i < pysim_kernel_count() && !r->run; i++) {
        pysim_kernel_info info;
        pysim_row row;
        if (pysim_kernel_at(i, &info) != PYSIM_OK || info.dtype != PYSIM_S8 || strcmp(info.form, "unpacked") != 0 || !info.available)
            continue;
        const pysim_schedule s = {.kernel = i, .windows = info.windows, .filters = info.filters};
        if (info.filters <= MOST_ROWS && info.windows <= LINE && pysim_row_for(&s, PYSIM_S8, &row) == PYSIM_OK && row.rescales)
            r->run = row.run, r->filters = info.filters, r->windows = info.windows;
    }
}

pysim_status pysim_run_byte_products(const pysim_byte_products *p, int32_t threads, const void *a, const void *b, void *y, void *workspace,
                                     int64_t workspace_bytes) {
    int64_t needed, of_a = 0, of_b = 0, of_y = 0;
    pysim_status status = pysim_byte_products_workspace_bytes(p, threads, &needed);
    if (status != PYSIM_OK) return status;
    const int64_t sizes_a[] = {p->count, p->rows, p->k}, sizes_b[] = {p->count, p->k, p->columns},
                  sizes_y[] = {p->count, p->rows, p->columns};
    if (status == PYSIM_OK) status = check_quantity("a", &p->a);
    if (status == PYSIM_OK) status = check_quantity("b", &p->b);
    if (status == PYSIM_OK) status = check_quantity("y", &p->y);
    if (status == PYSIM_OK && (!(p->scale > 0) || p->scale - p->scale != 0))
        status = pysim_fail(PYSIM_BAD_ARGUMENT, "the scale of sums of bytes is %g; expected a positive number", (double)p->scale);
    if (status == PYSIM_OK) status = pysim_product("a", 3, sizes_a, &of_a);
    if (status == PYSIM_OK) status = pysim_product("b", 3, sizes_b, &of_b);
    if (status == PYSIM_OK) status = pysim_product("y", 3, sizes_y, &of_y);
    const pysim_span spans[] = {{"y", y, of_y, 1}, {"a", a, of_a, 0}, {"b", b, of_b, 0}};
    for (int i = 0; i < 3 && status == PYSIM_OK; i++) status = pysim_check_operand(spans[i].name, spans[i].data, PYSIM_S8);
    if (status == PYSIM_OK) status = pysim_check_apart(spans, 3);
    if (status == PYSIM_OK && (!workspace || workspace_bytes < needed))
        status = pysim_fail(PYSIM_BAD_ARGUMENT, "the workspace of products of bytes has %lld bytes; it needs %lld",
                            workspace ? (long long)workspace_bytes : 0LL, (long long)needed);
    if (status != PYSIM_OK) return status;
    products_run r = {.of = p, .a = a, .b = b, .y = y, .workspace = workspace, .each = thread_bytes(p)};
    r.a_of = pysim_byte_of(&p->a), r.b_of = pysim_byte_of(&p->b);
    choose(&r);
    pysim_parallel_for(p->count, pysim_max(1, threads), one_product, &r);
    return PYSIM_OK;
}

typedef struct {
    const pysim_byte_softmax *of;
    const pysim_loops *loops;
    const uint8_t *x;
    uint8_t *y;
} softmax_run;

static void some_rows(const void *operator, int64_t begin, int64_t end) {
    const softmax_run *r = operator;
    r->loops->byte_softmax(r->of, begin, end, r->x, r->y);
}

pysim_status pysim_share_byte_softmax(const pysim_byte_softmax *s, const void *x, void *y, int32_t threads) {
    softmax_run r = {.of = s, .x = x, .y = y};
    if (!s) return pysim_fail(PYSIM_BAD_ARGUMENT, "the softmax is NULL");
    const int64_t sizes[] = {s->rows, s->size};
    int64_t bytes = 0;
    pysim_status status = pysim_check_positive("rows and size of a softmax of bytes", sizes, 2);
    if (status == PYSIM_OK && s->size > PYSIM_LONGEST_ROW)
        status = pysim_fail(PYSIM_UNSUPPORTED, "rows of a softmax of bytes have %lld elements; expected at most %d", (long long)s->size,
                            PYSIM_LONGEST_ROW);
    if (status == PYSIM_OK) status = check_quantity("x", &s->from);
    if (status == PYSIM_OK) status = check_quantity("y", &s->to);
    if (status == PYSIM_OK) status = pysim_product("x", 2, sizes, &bytes);
    if (status == PYSIM_OK) status = pysim_check_operand("x", x, PYSIM_S8);
    if (status == PYSIM_OK) status = pysim_check_operand("y", y, PYSIM_S8);
    const pysim_span spans[] = {{"y", y, bytes, 1}, {"x", x == y ? NULL : x, bytes, 0}};
    if (status == PYSIM_OK) status = pysim_check_apart(spans, 2);
    if (status == PYSIM_OK) status = pysim_loops_of(PYSIM_F32, &r.loops);
    if (status == PYSIM_OK) pysim_share_items(s->rows, 1, s->size, threads, some_rows, &r);
    return status;
}

pysim_status pysim_run_byte_softmax(const pysim_byte_softmax *s, const void *x, void *y) { return pysim_share_byte_softmax(s, x, y, 1); }
