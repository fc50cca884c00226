/* SPDX-License-Identifier: Apache-2.0
 * Matrix products at the edges of a kernel's block: all transpositions, slack after the rows, alpha, beta, bias and ReLU, run
 * as every kind of schedule. Slack between the rows of A and B holds NaN; slack of C holds a pattern that must survive. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "operators/loops.h"
#include "check.h"
#include "cover.h"

/* Axes of the covering array, see cover_settings. */
enum { N, M, STATIONARY, K2, K3, K, SET, TRANSPOSED, SLACK, ALPHA, BETA, BIAS, RELU, PACK, ALGORITHM, AXES };
static const int32_t algorithms[] = {CHECK_gemm, CHECK_unpacked,
                                     CHECK_panels}; /* of a row of form win; groups have the first and last, others the first */
static const int64_t k_levels[] = {1, 2, 3, 5, 17, 40};
enum { TO_PAGE = -1, PAGE = 4096 }; /* rows of whole pages: all of them begin in one set of L1 */
static const int64_t slacks[][3] = {{0, 0, 0}, {3, 0, 1}, {0, 5, 0}, {1, 2, 19}, {TO_PAGE, TO_PAGE, 0}};
static const double alphas[] = {1, 2, -0.5}, betas[] = {0, 1, 0.5}, whole_alphas[] = {1, 2, -3}, whole_betas[] = {0, 1, 5};
static const int32_t levels[AXES] = {EDGES, EDGES, 2, PLAN_K, PLAN_K, 6, PLAN_SETS, 4, 5, 3, 3, 2, 2, 2, 3};
enum { SLACK_BYTE = 0xA5, FAMILY = 2 };

typedef struct {
    char id[32];
    pysim_gemm g;
    pysim_schedule s;
    pysim_epilogue e;
    int bias;
    int32_t index, threads, result; /* result: dtype of C and the bias */
    check_random random;
    int64_t a, b, c; /* elements from the first to the last */
} gemm_case;

typedef struct {
    guard_arena a, b, bias, prepared, workspace, c;
} operands;
static operands at;
static guard_arena before; /* C as it is before a run */

/* The kernel's form says how the matrix lies, the few lie as they did; blocks of k are whole steps where it asks for such. */
static void make_skinny(gemm_case *k, const check_plan *plan, int32_t kernel, const pysim_kernel_info *row) {
    const int dot = strcmp(row->form, "dot") == 0;
    pysim_gemm *g = &k->g;
    if (g->m <= g->n) g->trans_b = dot;
    else g->trans_a = !dot;
    k->s = check_schedule(kernel, row, plan, g->k, &k->random);
    const int64_t block = dot && k->s.channels < g->k ? (k->s.channels + 15) / 16 * 16 : k->s.channels;
    k->s = (pysim_schedule){
        CHECK_skinny,     kernel, PYSIM_INPUT_STATIONARY, PYSIM_PACK_NONE, row->windows, row->filters, block < g->k ? block : g->k, k->s.k2,
        1 + k->index % 2, 0};
}

static int64_t pitch(int64_t columns, int64_t slack, int64_t bytes) {
    return slack == TO_PAGE ? (columns * bytes + PAGE - 1) / PAGE * PAGE / bytes : columns + slack;
}

static void make(gemm_case *k, int32_t index, const unsigned char *level, int32_t kernel, const pysim_kernel_info *row) {
    pysim_gemm *g = &k->g;
    memset(k, 0, sizeof *k);
    snprintf(k->id, sizeof k->id, "gemm/%d", (int)index);
    k->index = index;
    k->random = check_case_random(kernel, FAMILY, index);
    k->bias = level[BIAS];
    k->threads = 2 + (index % 5 == 0);
    g->dtype = row->dtype;
    k->result = check_result(row->dtype);
    const int whole = check_is_exact(row->dtype);
    k->e = (pysim_epilogue){.alpha = (whole ? whole_alphas : alphas)[level[ALPHA]],
                            .beta = (whole ? whole_betas : betas)[level[BETA]],
                            .activation = level[RELU] ? PYSIM_RELU : PYSIM_IDENTITY};
    if (level[RELU] && !whole && index % 2) k->e.activation = PYSIM_EPILOGUE_clamp, k->e.low = -3, k->e.high = 5;
    g->m = check_edge(level[M], row->filters);
    g->n = check_edge(level[N], row->windows);
    g->k = k_levels[level[K]];
    g->trans_a = level[TRANSPOSED] & 1 && !check_is_pixels(row);
    g->trans_b = level[TRANSPOSED] >> 1;
    const check_plan plan = {level[STATIONARY], g->trans_b || check_is_groups(row) || check_is_tiles(row) ? PYSIM_PACK_TILES : level[PACK],
                             level[SET], level[K2], level[K3]};
    if (check_is_skinny(row)) {
        make_skinny(k, &plan, kernel, row);
    } else {
        k->s = check_schedule(kernel, row, &plan, g->k, &k->random);
        k->s.algorithm = strcmp(row->form, "win") == 0 || check_is_packed(row) ? algorithms[level[ALGORITHM]] : CHECK_gemm;
        if (check_is_packed(row) && k->s.algorithm == CHECK_unpacked) k->s.algorithm = CHECK_gemm;
        if (check_is_tiles(row) && row->dtype == PYSIM_F32) k->s.algorithm = level[ALGORITHM] ? CHECK_gemm : CHECK_split_panels;
        if (check_is_pixels(row)) k->s.algorithm = CHECK_panels;
        if (k->s.algorithm == CHECK_panels) k->s.pack = check_size(row->dtype) < 4 ? PYSIM_PACK_TILES : level[PACK];
    }
    const int64_t bytes = (int64_t)check_size(g->dtype), *slack = slacks[level[SLACK]];
    g->lda = pitch(g->trans_a ? g->m : g->k, slack[0], bytes);
    g->ldb = pitch(g->trans_b ? g->k : g->n, slack[1], bytes);
    g->ldc = g->n + slack[2];
    k->a = ((g->trans_a ? g->k : g->m) - 1) * g->lda + (g->trans_a ? g->m : g->k);
    k->b = ((g->trans_b ? g->n : g->k) - 1) * g->ldb + (g->trans_b ? g->k : g->n);
    k->c = (g->m - 1) * g->ldc + g->n;
}

static int begin(const gemm_case *k, const pysim_kernel_info *row) {
    const pysim_gemm *g = &k->g;
    char schedule[160];
    check_schedule_text(&k->s, schedule, sizeof schedule);
    return check_begin(k->id, "gemm:%lldx%lldx%lld:%s:%c%c lda=%lld ldb=%lld ldc=%lld alpha=%g beta=%g%s%s | %s %s threads=%d",
                       (long long)g->m, (long long)g->n, (long long)g->k, check_name(g->dtype), g->trans_a ? 't' : 'n',
                       g->trans_b ? 't' : 'n', (long long)g->lda, (long long)g->ldb, (long long)g->ldc, k->e.alpha, k->e.beta,
                       k->bias ? " bias" : "", k->e.activation == PYSIM_RELU ? " relu" : "", row->name, schedule, (int)k->threads);
}

static void describe(const gemm_case *k, const char *what, int64_t i, const void *got, const void *want) {
    check_fail("%s: C[%lld][%lld] is %.9g, the reference has %.9g", what, (long long)(i / k->g.ldc), (long long)(i % k->g.ldc),
               check_get(got, k->result, i), check_get(want, k->result, i));
}

static void set_slack(void *matrix, int32_t dtype, int64_t count, int64_t row, int64_t ld, int byte) {
    const size_t size = check_size(dtype);
    for (int64_t i = 0; i < count; i++)
        if (i % ld >= row) memset((char *)matrix + (size_t)i * size, byte, size);
}

/* Signs of op(A)'s rows, so that a ReLU cuts a third of C for either sign of alpha. */
static void negate_rows(const gemm_case *k, void *a) {
    const pysim_gemm *g = &k->g;
    for (int64_t i = 0; i < g->m; i++)
        for (int64_t p = 0; p < g->k; p++) {
            const int64_t index = g->trans_a ? p * g->lda + i : i * g->lda + p;
            if ((i % 3 == 1) != (k->e.alpha < 0)) check_set(a, g->dtype, index, -check_get(a, g->dtype, index));
        }
}

static void prepare(gemm_case *k, check_fill_kind kind, guard_side side) {
    const pysim_gemm *g = &k->g;
    const size_t size = check_size(g->dtype), result_size = check_size(k->result);
    void *a = guard_place(&at.a, (size_t)k->a * size, side), *b = guard_place(&at.b, (size_t)k->b * size, side);
    void *bias = guard_place(&at.bias, (size_t)g->n * result_size, side);
    void *c = guard_place(&before, (size_t)k->c * result_size, side);
    check_fill(a, g->dtype, k->a, kind, &k->random);
    check_fill(b, g->dtype, k->b, kind, &k->random);
    check_fill(bias, k->result, g->n, kind, &k->random);
    check_fill(c, k->result, k->c, kind, &k->random);
    negate_rows(k, a);
    if (!(k->e.beta > 0)) memset(c, 0xFF, (size_t)k->c * result_size); /* beta 0: C is not read, so NaN there is harmless */
    set_slack(a, g->dtype, k->a, g->trans_a ? g->m : g->k, g->lda, 0xFF);
    set_slack(b, g->dtype, k->b, g->trans_b ? g->k : g->n, g->ldb, 0xFF);
    set_slack(c, k->result, k->c, g->n, g->ldc, SLACK_BYTE);
    k->e.bias = k->bias ? bias : NULL;
}

static int expect(const gemm_case *k, guard_side side) {
    const size_t bytes = (size_t)k->c * check_size(k->result);
    void *c = guard_place(&at.c, bytes, side);
    memcpy(c, before.buffer, bytes);
    if (check_gemm_reference(&k->g, &k->e, at.a.buffer, at.b.buffer, c) != PYSIM_OK) {
        check_fail("pysim_reference: %s", pysim_last_error());
        return 0;
    }
    if (!guard_intact(&at.c)) check_fail("pysim_reference wrote outside C");
    memcpy(check_scratch(SCRATCH_WANT, bytes), c, bytes);
    return 1;
}

/* |alpha| |A||B| + |beta| |C| + |bias| into SCRATCH_BOUND. */
static void expect_bound(const gemm_case *k) {
    const pysim_gemm *g = &k->g;
    const size_t size = check_size(g->dtype), result_size = check_size(k->result);
    void *a = check_scratch(SCRATCH_A, (size_t)k->a * size), *b = check_scratch(SCRATCH_B, (size_t)k->b * size);
    void *bias = check_scratch(SCRATCH_BIAS, (size_t)g->n * result_size);
    void *c = check_scratch(SCRATCH_BOUND, (size_t)k->c * result_size);
    check_absolute(a, at.a.buffer, g->dtype, k->a);
    check_absolute(b, at.b.buffer, g->dtype, k->b);
    check_absolute(c, before.buffer, k->result, k->c);
    if (k->e.bias) check_absolute(bias, k->e.bias, k->result, g->n);
    const pysim_epilogue e = {.alpha = fabs(k->e.alpha), .beta = fabs(k->e.beta), .bias = k->e.bias ? bias : NULL};
    if (check_gemm_reference(g, &e, a, b, c) != PYSIM_OK) check_fail("pysim_reference: %s", pysim_last_error());
}

/* B as a run reads it, or NULL. */
static const void *second(const gemm_case *k, const pysim_problem *p, guard_side side) {
    int64_t bytes;
    if (pysim_prepared_bytes(p, &k->s, &bytes) != PYSIM_OK) {
        check_fail("pysim_prepared_bytes: %s", pysim_last_error());
        return NULL;
    }
    if (!bytes) return at.b.buffer;
    void *prepared = guard_place(&at.prepared, (size_t)bytes, side);
    memset(prepared, 0xFF, (size_t)bytes);
    if (pysim_prepare(p, &k->s, at.b.buffer, prepared, bytes) != PYSIM_OK) {
        check_fail("pysim_prepare: %s", pysim_last_error());
        return NULL;
    }
    if (!guard_intact(&at.prepared)) check_fail("pysim_prepare wrote outside the prepared B");
    return prepared;
}

static int run(const gemm_case *k, int32_t threads, guard_side side, int garbage) {
    const size_t bytes = (size_t)k->c * check_size(k->result);
    const pysim_problem p = check_gemm_problem(&k->g);
    const void *b = second(k, &p, side);
    if (!b) return 0;
    void *c = guard_place(&at.c, bytes, side);
    memcpy(c, before.buffer, bytes);
    const uint64_t hash = check_hash(at.a.buffer, at.a.bytes) ^ check_hash(at.b.buffer, at.b.bytes);
    if (!check_run(&p, &k->s, &k->e, threads, at.a.buffer, b, c, &at.workspace, side, k->index, garbage)) return 0;
    if ((check_hash(at.a.buffer, at.a.bytes) ^ check_hash(at.b.buffer, at.b.bytes)) != hash) check_fail("pysim_run changed A or B");
    if (!guard_intact(&at.c)) check_fail("pysim_run wrote outside C");
    return 1;
}

static double tolerance(const gemm_case *k) {
    const int64_t sets = (k->g.k + k->s.channels - 1) / k->s.channels;
    /* every channel set is scaled by alpha and added to C: two roundings. Of seven products (Higham, 2nd ed., 23.2.2) the bound has no
     * absolute values: 18 times a product's of the largest elements, here of random ones of one size */
    const int halves = k->s.algorithm == CHECK_strassen;
    return (halves ? 18 : 1.0001) * check_gamma(k->result, k->g.k + 2 * sets + (halves ? 16 : 4));
}

/* Compares whole rows, slack too: there the reference left what was there. */
static void compare(const gemm_case *k, const char *what, const void *bound) {
    const void *want = check_scratch(SCRATCH_WANT, 0);
    const size_t size = check_size(k->result);
    for (int64_t row = 0; row < k->g.m && !check_failed(); row++) {
        const int64_t first = row * k->g.ldc, slack = row + 1 < k->g.m ? k->g.ldc - k->g.n : 0;
        const char *got = (const char *)at.c.buffer + (size_t)first * size, *row_want = (const char *)want + (size_t)first * size;
        const int64_t bad =
            check_compare(k->result, k->g.n, got, row_want, bound ? (const char *)bound + (size_t)first * size : NULL, tolerance(k));
        if (bad >= 0) describe(k, what, first + bad, at.c.buffer, want);
        const unsigned char *byte = (const unsigned char *)got + (size_t)k->g.n * size;
        for (size_t i = 0; i < (size_t)slack * size; i++)
            if (byte[i] != SLACK_BYTE) {
                check_fail("%s: the slack after row %lld of C was overwritten", what, (long long)row);
                break;
            }
    }
}

static void count_nonzero(const gemm_case *k) {
    const void *want = check_scratch(SCRATCH_WANT, 0);
    const int64_t all = k->g.m * k->g.n;
    int64_t nonzero = 0;
    for (int64_t i = 0; i < all; i++) nonzero += fpclassify(check_get(want, k->result, i / k->g.n * k->g.ldc + i % k->g.n)) != FP_ZERO;
    check_count_nonzero(nonzero, all);
    if (k->e.activation == PYSIM_IDENTITY && all > 64 && 10 * nonzero < 3 * all)
        check_fail("the case is too weak: %lld of %lld results differ from zero", (long long)nonzero, (long long)all);
}

static void random_inputs(gemm_case *k, guard_side side) {
    const size_t bytes = (size_t)k->c * check_size(k->result);
    if (!expect(k, side)) return;
    expect_bound(k);
    count_nonzero(k);
    if (check_failed() || !run(k, 1, side, 0xFF)) return;
    compare(k, "random values", check_is_exact(k->result) ? NULL : check_scratch(SCRATCH_BOUND, 0));
    void *first = check_scratch(SCRATCH_FIRST, bytes);
    memcpy(first, at.c.buffer, bytes);
    if (run(k, 1, side, 0x7F) && memcmp(first, at.c.buffer, bytes)) check_fail("the second run gave other bits than the first");
    if (run(k, k->threads, side, 0) && memcmp(first, at.c.buffer, bytes))
        check_fail("%d threads gave other bits than one", (int)k->threads);
}

/* An infinite row of A and a column of NaN in B reach exactly the elements of C that they reach in the reference. */
static void poisoned(gemm_case *k, guard_side side) {
    const pysim_gemm *g = &k->g;
    const int64_t i = check_below(&k->random, g->m), j = check_below(&k->random, g->n);
    for (int64_t p = 0; p < g->k; p++) {
        check_set(at.a.buffer, g->dtype, g->trans_a ? p * g->lda + i : i * g->lda + p, INFINITY);
        check_set(at.b.buffer, g->dtype, g->trans_b ? j * g->ldb + p : p * g->ldb + j, NAN);
    }
    if (expect(k, side) && run(k, 1, side, 0xFF)) compare(k, "an infinite row and a column of NaN", check_scratch(SCRATCH_BOUND, 0));
}

/* Then whatever A and B hold reaches nothing. */
static void without_product(gemm_case *k, guard_side side) {
    k->e.alpha = 0;
    if (expect(k, side) && run(k, k->threads, side, 0xFF))
        compare(k, "alpha 0", check_is_exact(k->result) ? NULL : check_scratch(SCRATCH_BOUND, 0));
}

static void by_its_algorithm(gemm_case *k) {
    const guard_side side = k->index & 1 ? GUARD_LEFT : GUARD_RIGHT, other = k->index & 1 ? GUARD_RIGHT : GUARD_LEFT;
    prepare(k, FILL_EXACT, side);
    if (expect(k, side) && run(k, k->index & 1 ? k->threads : 1, side, 0xFF)) compare(k, "small integers", NULL);
    if (check_failed()) return;
    prepare(k, FILL_RANDOM, other);
    random_inputs(k, other);
    if (!check_failed() && !check_is_exact(k->result)) poisoned(k, other);
    if (!check_failed()) without_product(k, other);
}

/* A case of panels of f32 by seven products of halves, too, with the same kernel. */
static void check_case(gemm_case *k) {
    const pysim_gemm *g = &k->g;
    by_its_algorithm(k);
    if (check_failed() || k->s.algorithm != CHECK_panels || g->dtype != PYSIM_F32 || g->trans_a || g->m < 2 || g->n % 2 || g->k % 2) return;
    k->s.algorithm = CHECK_strassen, k->s.outputs = 1 + k->index % ((g->m + 1) / 2);
    if (k->s.channels > g->k / 2) k->s.channels = g->k / 2;
    k->e.alpha = (check_is_exact(g->dtype) ? whole_alphas : alphas)[k->index % 3];
    by_its_algorithm(k);
}

/* s8: sums of equal products that leave int32, or leave it only on the way with windows made unsigned, in one channel set. */
static void long_sums(int32_t kernel, const pysim_kernel_info *row) {
    enum { M = 5, N = 13, K = 140001, LEFT = 70001 }; /* all accumulators of a matrix unit, so none shares its sum with another */
    const int64_t k[] = {K, LEFT};
    const check_plan plan = {PYSIM_INPUT_STATIONARY, PYSIM_PACK_TILES, PLAN_SETS - 1, 0, 0};
    check_random random = check_case_random(kernel, FAMILY, -1);
    for (int i = 0; i < 2; i++) {
        char id[32];
        snprintf(id, sizeof id, "long/%d", i);
        if (!check_begin(id, "gemm:%dx%dx%lld:s8 of -128 and 127 | %s", M, N, (long long)k[i], row->name)) continue;
        gemm_case c = {.g = {M, N, k[i], k[i], N, N, 0, 0, PYSIM_S8}, .e = {.alpha = 1}, .result = PYSIM_S32};
        c.a = M * k[i], c.b = N * k[i], c.c = M * N;
        c.s = check_schedule(kernel, row, &plan, k[i], &random);
        c.s.algorithm = check_is_pixels(row) ? CHECK_panels : CHECK_gemm;
        int8_t *a = guard_place(&at.a, (size_t)c.a, GUARD_RIGHT), *b = guard_place(&at.b, (size_t)c.b, GUARD_RIGHT);
        memset(guard_place(&before, M * N * sizeof(int32_t), GUARD_RIGHT), 0xFF, M * N * sizeof(int32_t));
        for (int64_t p = 0; p < c.a; p++) a[p] = p / k[i] % 2 ? 127 : -128;
        for (int64_t p = 0; p < c.b; p++) b[p] = p % N % 3 == 0 ? -128 : p % N % 3 == 1 ? 127 : 0;
        if (expect(&c, GUARD_RIGHT) && run(&c, 1, GUARD_RIGHT, 0xFF)) compare(&c, "long sums", NULL);
        check_end();
    }
}

void check_gemm(int32_t round, int32_t kernel, const pysim_kernel_info *row) {
    static cover_array rows;
    if (row->dtype == PYSIM_S8 && round == 0) long_sums(kernel, row);
    cover_settings(AXES, levels, FAMILY, round, &rows);
    for (int32_t i = 0; i < rows.count; i++) {
        gemm_case k;
        make(&k, round * COVER_ROWS + i, rows.row[i], kernel, row);
        if (!begin(&k, row)) continue;
        check_case(&k);
        check_end();
    }
}
