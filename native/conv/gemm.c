/* SPDX-License-Identifier: Apache-2.0
 * GEMM as a nest of one kernel row and one tap: columns of C are windows, rows are filters, k is channels. */
#include "../status.h"
#include "nest.h"

static void gemm_live_rows(const pysim_nest *n, int64_t t0, int64_t nw, int64_t *r0, int64_t *r1) {
    (void)n, (void)t0, (void)nw;
    *r0 = 0;
    *r1 = 1;
}

static void no_rows(const pysim_nest *n, int64_t t0, int64_t nw, int64_t *r0, int64_t *r1) {
    (void)n, (void)t0, (void)nw;
    *r0 = *r1 = 0;
}

/* alpha = 0, as in BLAS: tiles of no k steps, for which neither A nor B is read. */
static void leave_out_product(pysim_nest *n) {
    n->channels = n->schedule.channels; /* one set, so C is scaled once */
    n->live_rows = no_rows;
    n->pack_filters = NULL;
    n->schedule.pack = PYSIM_PACK_NONE;
}

/* Columns [first, first+count) of rows [k0, k0+nk) of a row-major matrix, as they are; zeros from column `width` on. */
static void copy_rows(const pysim_nest *n, const char *matrix, int64_t ld, int64_t k0, int64_t nk, int64_t first, int64_t count,
                      int64_t width, int64_t pitch, void *dst) {
    const pysim_segment segment = {
        .row = matrix + k0 * ld * n->bytes, .row_channel = ld, .width = width, .first = first, .stride = 1, .dilation = 1,
        .taps = 1, .channels = nk, .count = count, .dst_channel = pitch, .pitch = pitch,
    };
    n->row.pack.segment(&segment, dst);
}

static void gemm_pack_windows(const pysim_nest *n, int64_t c0, int64_t nc, int64_t t0, int64_t nw, int64_t r0, int64_t r1, void *dst) {
    const pysim_gemm *g = n->problem;
    (void)r0, (void)r1;
    if (g->trans_b)
        n->row.pack.transposed(n->input + (t0 * g->ldb + c0) * n->bytes, g->ldb, nw, nc, n->schedule.windows, dst, NULL);
    else
        copy_rows(n, n->input, g->ldb, c0, nc, t0, nw, g->n, n->schedule.windows, dst);
}

static void gemm_pack_filters(const pysim_nest *n, int64_t c0, int64_t nc, int64_t f0, int64_t nf, void *dst) {
    const pysim_gemm *g = n->problem;
    if (g->trans_a)
        copy_rows(n, n->filter_data, g->lda, c0, nc, f0, n->schedule.filters, f0 + nf, n->schedule.filters, dst);
    else
        n->row.pack.transposed(n->filter_data + (f0 * g->lda + c0) * n->bytes, g->lda, nf, nc, n->schedule.filters, dst, NULL);
}

static pysim_status gemm_nest(const pysim_gemm *g, const pysim_schedule *s, pysim_row_lookup row, pysim_nest *n, pysim_gemm_bytes *bytes) {
    pysim_status status = pysim_check_gemm_bytes(g, bytes);
    if (status != PYSIM_OK) return status;
    if (!s) return pysim_fail(PYSIM_BAD_ARGUMENT, "schedule is NULL");
    *n = (pysim_nest){
        .windows = g->n,
        .filters = g->m,
        .channels = g->k,
        .rows = 1,
        .taps = 1,
        .bytes = pysim_dtype_bytes(g->dtype),
        .out_bytes = pysim_dtype_bytes(pysim_result_dtype(g->dtype)),
        .pack_windows = gemm_pack_windows,
        .live_rows = gemm_live_rows,
        .pack_filters = gemm_pack_filters,
        .problem = g,
        .input_pitch = g->ldb,
        .output_pitch = g->ldc,
    };
    status = row(s, g->dtype, &n->row);
    if (status != PYSIM_OK) return status;
    return pysim_nest_schedule(n, s, !g->trans_b);
}

pysim_status pysim_gemm_workspace_bytes(const pysim_gemm *g, const pysim_schedule *s, int32_t threads, int64_t *bytes) {
    pysim_nest n;
    pysim_status status = gemm_nest(g, s, pysim_row_of, &n, NULL);
    if (status != PYSIM_OK) return status;
    return pysim_threaded_workspace(&n, threads, bytes);
}

static void gemm_image(pysim_nest *n, int64_t image, const void *context) {
    (void)n, (void)image, (void)context;
}

static pysim_status gemm_on(pysim_nest *n, const pysim_gemm_bytes *bytes, const pysim_epilogue *e, int32_t threads, const void *a,
                            const void *b, void *c, void *workspace, int64_t workspace_bytes, pysim_profile *profile) {
    const pysim_gemm *g = n->problem;
    pysim_status status = pysim_check_gemm_epilogue(e, g->dtype);
    if (status == PYSIM_OK) status = pysim_check_operand("a", a, g->dtype);
    if (status == PYSIM_OK) status = pysim_check_operand("b", b, g->dtype);
    if (status == PYSIM_OK) status = pysim_check_operand("c", c, pysim_result_dtype(g->dtype));
    if (status != PYSIM_OK) return status;
    const pysim_span spans[] = {
        {"c", c, bytes->c, 1},
        {"workspace", workspace, workspace_bytes, 1},
        {"a", a, bytes->a, 0},
        {"b", b, bytes->b, 0},
        {"bias", e->bias, g->n * n->out_bytes, 0},
    };
    status = pysim_check_apart(spans, 5);
    if (status != PYSIM_OK) return status;
    n->input = b;
    n->filter_data = a;
    n->output = c;
    n->alpha = e->alpha;
    n->beta = e->beta;
    n->bias_windows = e->bias;
    n->relu = e->activation == PYSIM_RELU;
    if (e->alpha == 0) leave_out_product(n);
    return pysim_nest_run(n, 1, gemm_image, NULL, threads, workspace, workspace_bytes, profile);
}

pysim_status pysim_gemm_run(const pysim_gemm *g, const pysim_schedule *s, const pysim_epilogue *e, int32_t threads, const void *a,
                            const void *b, void *c, void *workspace, int64_t workspace_bytes, pysim_profile *profile) {
    pysim_nest n;
    pysim_gemm_bytes bytes;
    pysim_status status = gemm_nest(g, s, pysim_row_for, &n, &bytes);
    return status == PYSIM_OK ? gemm_on(&n, &bytes, e, threads, a, b, c, workspace, workspace_bytes, profile) : status;
}

pysim_status pysim_gemm_walk(const pysim_gemm *g, const pysim_schedule *s, pysim_stand_in stand_in, const void *a, const void *b,
                             void *c, void *workspace) {
    pysim_nest n;
    pysim_gemm_bytes bytes;
    int64_t workspace_bytes;
    pysim_status status = gemm_nest(g, s, pysim_row_of, &n, &bytes);
    if (status == PYSIM_OK) status = pysim_threaded_workspace(&n, 1, &workspace_bytes);
    if (status != PYSIM_OK) return status;
    stand_in(&n);
    const pysim_epilogue e = {.alpha = 1};
    return gemm_on(&n, &bytes, &e, 1, a, b, c, workspace, workspace_bytes, NULL);
}
