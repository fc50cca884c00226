/* SPDX-License-Identifier: Apache-2.0
 * GEMM on the loop nest, with one kernel row and one tap: columns of C are windows, rows of C are filters, k is channels.
 *
 *   gemm      packs A in the run; packs B in the run or reads it in place
 *   unpacked  reads A in place; B as in gemm
 *   panels    reads A in place, or packs it, as the schedule says; B was packed beforehand
 *   split_panels   packs A; B was packed beforehand; of rows that split operands, form tiles in FP32 */
#include <string.h>

#include "algorithm.h"

static void no_rows(const pysim_nest *n, int64_t t0, int64_t nw, int64_t *r0, int64_t *r1) {
    (void)n, (void)t0, (void)nw;
    *r0 = *r1 = 0;
}

/* alpha = 0, as in BLAS: every tile has k = 0, and neither A nor B is read. */
static void skip_product(pysim_nest *n) {
    n->channels = n->schedule.channels; /* one set, so that C is scaled once */
    n->live_rows = no_rows;
    n->pack_filters = NULL;
    n->schedule.pack = PYSIM_PACK_NONE; /* no panel is needed */
}

/* Copies columns [first, first+count) of rows [k0, k0+nk) of a row-major matrix; columns from `width` on become zeros. */
static void copy_rows(const pysim_nest *n, const char *matrix, int64_t ld, int64_t k0, int64_t nk, int64_t first, int64_t count,
                      int64_t width, int64_t pitch, int32_t flip, const pysim_packer *pack, void *dst) {
    const pysim_segment segment = {
        .row = matrix + k0 * ld * n->bytes,
        .row_channel = ld,
        .width = width,
        .first = first,
        .stride = 1,
        .dilation = 1,
        .taps = 1,
        .channels = nk,
        .count = count,
        .dst_channel = pitch,
        .pitch = pitch,
        .flip = flip,
    };
    pack->segment(&segment, dst);
    if (n->row.group == 1 && flip) pysim_fill_segment(&segment, dst);
}

static void gemm_pack_windows(const pysim_nest *n, int64_t c0, int64_t nc, int64_t t0, int64_t nw, int64_t r0, int64_t r1, void *dst) {
    const pysim_gemm *g = n->problem;
    (void)r0, (void)r1;
    if (g->trans_b) n->row.pack.transposed(n->input + (t0 * g->ldb + c0) * n->bytes, g->ldb, nw, nc, n->schedule.windows, dst, NULL);
    else copy_rows(n, n->input, g->ldb, c0, nc, t0, nw, g->n, n->schedule.windows, 0, &n->row.pack, dst);
}

/* Rows of a transposed A that are packed into all panels before the next rows. A line of such a row belongs to several panels; this way
 * it is fetched from a far cache once instead of once per panel. 2048x64x2048:tn (Zen 5), all rows, 128, 64, 32, 16: 5.5, 4.6, 4.2, 3.9,
 * 3.9 ms; packing alone (Zen 4), 32, 16, 8: 2.71, 2.27, 2.30 ms, 700x100x3000:tn 1.40, 1.17, 1.06. */
enum { ROWS_AT_ONCE = 16 };

static void gemm_pack_filters(const pysim_nest *n, int64_t c0, int64_t nc, int64_t f0, int64_t nf, void *dst) {
    const pysim_gemm *g = n->problem;
    if (n->row_panel)
        for (int64_t i = 0; i < nf; i++) {
            char *row = (char *)dst + i * n->row_panel;
            memcpy(row, n->filter_data + ((f0 + i) * g->lda + c0) * n->bytes, (size_t)(nc * n->bytes));
            memset(row + nc * n->bytes, 0, (size_t)((pysim_nest_depth(n, nc) - nc) * n->bytes)); /* zero weights times NaN are none */
        }
    else if (g->trans_a)
        copy_rows(n, n->filter_data, g->lda, c0, nc, f0, n->schedule.filters, f0 + nf, n->schedule.filters, n->flip, &n->row.pack_filters,
                  dst);
    else n->row.pack_filters.transposed(n->filter_data + (f0 * g->lda + c0) * n->bytes, g->lda, nf, nc, n->schedule.filters, dst, NULL);
    if (n->flip && !g->trans_a) pysim_flip_filters(n, nc, dst);
}

static pysim_status open_product(const pysim_problem *p, const pysim_schedule *s, pysim_row_lookup row, int in_place_legal,
                                 pysim_job *job) {
    const pysim_gemm *g = &p->gemm;
    pysim_nest *n = &job->nest;
    *n = (pysim_nest){
        .windows = g->n,
        .filters = g->m,
        .channels = g->k,
        .rows = 1,
        .taps = 1,
        .bytes = pysim_dtype_bytes(g->dtype),
        .out_bytes = pysim_dtype_bytes(pysim_result_dtype(g->dtype)),
        .sum_bytes = pysim_dtype_bytes(pysim_result_dtype(g->dtype)),
        .swapped = g->dtype == PYSIM_S8,
        .pack_windows = gemm_pack_windows,
        .pack_filters = gemm_pack_filters,
        .even_filters = 1,
        .problem = g,
        .input_pitch = g->ldb,
        .output_pitch = g->ldc,
        .filter_row = g->trans_a ? 0 : g->lda,
    };
    const pysim_status status = row(s, g->dtype, &n->row);
    const int rows_of_a = pysim_reads_rows(&n->row);
    if (status == PYSIM_OK && (rows_of_a ? g->trans_a : n->row.bound != NULL))
        return pysim_fail(PYSIM_UNSUPPORTED, "kernel %s bounds weights beforehand, or reads rows of A in place", n->row.info.name);
    if (g->trans_a) n->filter_channels = pysim_max(ROWS_AT_ONCE, n->row.group);
    if (rows_of_a) n->even_filters = 0, n->row_panel = pysim_nest_depth(n, s->channels) * n->bytes;
    if (pysim_on_tiles(n)) n->even_filters = 0; /* a tile takes 16 or 32 filters, and fewer take as long */
    return status == PYSIM_OK ? pysim_nest_schedule(n, s, in_place_legal) : status;
}

static pysim_status open_gemm(const pysim_problem *p, const pysim_schedule *s, pysim_row_lookup row, pysim_job *job) {
    if (p->gemm.dtype == PYSIM_S8) job->shared_bytes = 2 * pysim_room_bytes(p->gemm.n); /* bias and sums of columns */
    return open_product(p, s, row, !p->gemm.trans_b, job);
}

static pysim_status open_in_place(const pysim_problem *p, const pysim_schedule *s, pysim_row_lookup row, int in_place_legal,
                                  pysim_job *job) {
    const pysim_gemm *g = &p->gemm;
    const pysim_status status = open_product(p, s, row, in_place_legal, job);
    pysim_nest *n = &job->nest;
    if (status != PYSIM_OK) return status;
    if (strcmp(n->row.info.form, "win") != 0)
        return pysim_fail(PYSIM_UNSUPPORTED,
                          "kernel %s reads panels of A; this algorithm runs rows of form win, which broadcast its elements",
                          n->row.info.name);
    n->pack_filters = NULL;
    n->filter_pitch = g->trans_a ? g->lda : 1;
    n->filter_step = g->trans_a ? 1 : g->lda;
    return status;
}

static pysim_status open_unpacked(const pysim_problem *p, const pysim_schedule *s, pysim_row_lookup row, pysim_job *job) {
    return open_in_place(p, s, row, !p->gemm.trans_b, job);
}

/* `grouped`: of A the run reads panels of groups or blocks of k, which are no elements. */
static pysim_status open_prepared(const pysim_problem *p, const pysim_schedule *s, pysim_row_lookup row, int grouped, pysim_job *job) {
    pysim_schedule tiles = *s;
    tiles.pack = PYSIM_PACK_TILES; /* the layout of the prepared panels; of A the schedule tells whether it is packed */
    if (s->pack != PYSIM_PACK_TILES && (grouped || s->pack != PYSIM_PACK_NONE))
        return pysim_fail(PYSIM_BAD_ARGUMENT,
                          "schedule.pack is %d; beside panels it is 1 (tiles), or 0 (none) where A has elements of 4 bytes or more",
                          (int)s->pack);
    pysim_status status = grouped ? open_product(p, &tiles, row, 1, job) : open_in_place(p, &tiles, row, 1, job);
    pysim_nest *n = &job->nest;
    if (status != PYSIM_OK) return status;
    if (s->pack == PYSIM_PACK_TILES && !grouped) n->pack_filters = gemm_pack_filters, n->filter_pitch = n->filter_step = 0;
    const int64_t size[] = {n->window_end, s->windows, pysim_nest_channels_depth(n, n->channels), pysim_panel_bytes(n)};
    status = pysim_product("the panels' bytes, tiles x windows x k x element", 4, size, &job->prepared_bytes);
    if (status == PYSIM_OK && p->gemm.dtype == PYSIM_S8) {
        const int64_t room = pysim_room_bytes(p->gemm.n);
        if (job->prepared_bytes > INT64_MAX - 2 * room) return pysim_fail(PYSIM_OVERFLOW, "the panels exceed int64 bytes");
        job->shared_bytes = room;
        job->sums_at = pysim_ceil_div(job->prepared_bytes, PYSIM_SUMS_ALIGN) * PYSIM_SUMS_ALIGN;
        job->prepared_bytes = job->sums_at + p->gemm.n * n->sum_bytes;
    }
    job->operands.second = (pysim_operand){"panels of b", p->gemm.dtype, job->prepared_bytes};
    n->windows_packed = 1;
    return status;
}

static pysim_status open_panels(const pysim_problem *p, const pysim_schedule *s, pysim_row_lookup row, pysim_job *job) {
    const int narrow = pysim_dtype_bytes(p->gemm.dtype) < (int64_t)sizeof(float);
    return open_prepared(p, s, row, narrow, job);
}

static pysim_status open_split_panels(const pysim_problem *p, const pysim_schedule *s, pysim_row_lookup row, pysim_job *job) {
    const pysim_status status = open_prepared(p, s, row, 1, job);
    if (status == PYSIM_OK && !job->nest.row.panel_bytes)
        return pysim_fail(PYSIM_UNSUPPORTED, "kernel %s multiplies operands as they are; this algorithm runs rows that split them",
                          job->nest.row.info.name);
    return status;
}

/* Sums of the columns of op(B). */
static void sum_columns(const pysim_gemm *g, const int8_t *b, int32_t *sums) {
    if (!g->trans_b) memset(sums, 0, (size_t)g->n * sizeof *sums);
    for (int64_t p = 0; !g->trans_b && p < g->k; p++)
        for (int64_t j = 0; j < g->n; j++) sums[j] += b[p * g->ldb + j];
    for (int64_t j = 0; g->trans_b && j < g->n; j++) {
        int32_t sum = 0;
        for (int64_t p = 0; p < g->k; p++) sum += b[j * g->ldb + p];
        sums[j] = sum;
    }
}

static void prepare_panels(const pysim_job *job, const char *b, char *panels) {
    pysim_nest n = job->nest;
    const pysim_schedule *s = &n.schedule;
    n.input = b;
    if (job->sums_at) sum_columns(n.problem, (const int8_t *)b, (int32_t *)(void *)(panels + job->sums_at));
    for (int64_t c0 = 0; c0 < n.channels; c0 += s->channels) {
        const int64_t nc = pysim_min(s->channels, n.channels - c0);
        for (int64_t tile = 0; tile < n.window_end; tile++) {
            const int64_t t0 = tile * s->windows, nw = pysim_min(s->windows, n.windows - t0);
            char *panel = panels + pysim_nest_window_offset(&n, c0, nc, tile) * pysim_panel_bytes(&n);
            gemm_pack_windows(&n, c0, nc, t0, nw, 0, 1, panel);
            if (n.row.bound) n.row.bound(pysim_nest_depth(&n, nc), panel);
        }
    }
}

static void gemm_image(pysim_nest *n, int64_t image, const void *context) { (void)n, (void)image, (void)context; }

static void run_gemm(const pysim_job *job, const pysim_call *call) {
    const pysim_epilogue *e = call->epilogue;
    const pysim_gemm *g = job->nest.problem;
    pysim_nest n = job->nest;
    pysim_epilogue without;
    int32_t zero = 0;
    if (g->dtype == PYSIM_S8) zero = pysim_nest_signs(&n, e);
    if (zero) {
        int32_t *room = pysim_room(call->workspace), *own = room + pysim_room_bytes(g->n) / (int64_t)sizeof *room;
        const int32_t *sums = job->sums_at ? (const int32_t *)(const void *)(call->second + job->sums_at) : own;
        if (!job->sums_at) sum_columns(g, (const int8_t *)call->second, own);
        without = pysim_without_zero(e, zero, sums, g->n, room);
        e = &without;
    }
    pysim_nest_rescale(&n, e, 1);
    n.input = call->second;
    n.filter_data = call->first;
    n.output = call->result;
    n.alpha = e->alpha;
    n.beta = e->beta;
    n.bias_windows = e->bias;
    n.bounds = call->bounds;
    n.finish_rows = call->finish;
    if (e->alpha == 0) skip_product(&n);
    pysim_nest_run(&n, 1, gemm_image, NULL, call->threads, call->workspace + job->shared_bytes, call->profile);
}

const pysim_algorithm pysim_algorithm_gemm = {.open = open_gemm, .run = run_gemm, .finishes = 1, .quantised = 1};
const pysim_algorithm pysim_algorithm_unpacked = {.open = open_unpacked, .run = run_gemm, .finishes = 1};
const pysim_algorithm pysim_algorithm_panels = {
    .open = open_panels, .prepare = prepare_panels, .run = run_gemm, .finishes = 1, .quantised = 1};
const pysim_algorithm pysim_algorithm_split_panels = {.open = open_split_panels, .prepare = prepare_panels, .run = run_gemm, .finishes = 1};
