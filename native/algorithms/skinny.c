/* SPDX-License-Identifier: Apache-2.0
 * Products whose C has few rows or few columns (GEMV and its neighbours). The large operand, the matrix, is read once, in place, in any layout;
 * the small operand is a few vectors of length k (kernels: skinny.inc).
 *
 *   few rows (m <= n)  vectors: rows of op(A);     matrix: op(B); results run along n
 *   few columns        vectors: columns of op(B);  matrix: op(A); results run along m
 *
 * Each run first copies the vectors into the kernel's layout. In the schedule, `channels` is a block of k, and `k2` the strip of results, in windows of
 * the row, whose accumulators a thread keeps; `k3` is the cache level, 1 or 2, into which the matrix is prefetched. Threads divide the results. The
 * order of a sum depends on its place and the schedule alone. */
#include <string.h>

#include "algorithm.h"

enum { ALIGN = 64 };

typedef struct {
    pysim_skinny of;
    int few_rows, dot;             /* C has few rows, not few columns; rows of the matrix run along k */
    int64_t results, strip, pitch; /* in elements; strip: results of a strip; pitch: between the partial sums of two vectors */
    int64_t bytes;                 /* per element */
    int64_t vector_step, p_step;   /* element p of vector f is at f*vector_step + p*p_step */
    int64_t c_vector, c_result;    /* elements of C between vectors and between results */
} shape;

static int64_t round_to_lines(int64_t bytes) { return pysim_ceil_div(bytes, ALIGN) * ALIGN; }

static shape shape_of(const pysim_gemm *g, const pysim_schedule *s) {
    const int few_rows = g->m <= g->n;
    shape x = {.few_rows = few_rows, .bytes = pysim_dtype_bytes(g->dtype), .results = few_rows ? g->n : g->m};
    x.of = (pysim_skinny){
        .k = g->k, .n_vectors = few_rows ? g->m : g->n, .ld = few_rows ? g->ldb : g->lda, .block = s->channels, .prefetch_level = s->k3};
    x.dot = few_rows ? g->trans_b : !g->trans_a;
    const int along_k = few_rows ? !g->trans_a : g->trans_b; /* do the vectors run along k */
    const int64_t ld = few_rows ? g->lda : g->ldb;
    x.vector_step = along_k ? ld : 1;
    x.p_step = along_k ? 1 : ld;
    x.c_vector = few_rows ? g->ldc : 1;
    x.c_result = few_rows ? 1 : g->ldc;
    const int64_t line = ALIGN / x.bytes;
    x.strip = pysim_min(pysim_ceil_div(x.results, s->windows), s->k2) * s->windows;
    x.pitch = pysim_ceil_div(x.strip, line) * line + line; /* one more line: the partial sums of a result fall on different sets of L1 */
    return x;
}

static pysim_status check_schedule(const pysim_schedule *s, const shape *x, const pysim_row *row) {
    if (row->family != PYSIM_FAMILY_SKINNY)
        return pysim_fail(PYSIM_UNSUPPORTED, "kernel %s reads no matrix in place; this algorithm runs the rows of native/skinny.inc",
                          row->info.name);
    if (strcmp(row->info.form, x->dot ? "dot" : "axpy") != 0)
        return pysim_fail(PYSIM_UNSUPPORTED, "kernel %s reads a matrix whose rows lie along %s, and these lie along %s", row->info.name,
                          x->dot ? "results" : "k", x->dot ? "k" : "results");
    if (s->channels < 1 || s->channels > x->of.k || (x->dot && s->channels < x->of.k && s->channels % PYSIM_VECTOR_STEP))
        return pysim_fail(PYSIM_BAD_ARGUMENT, "schedule.channels is %lld; expected %lld, or less%s", (long long)s->channels,
                          (long long)x->of.k, x->dot ? " and a multiple of 16" : "");
    if (s->stationary != PYSIM_INPUT_STATIONARY || s->pack != PYSIM_PACK_NONE || s->k2 < 1 || s->k3 < 1 || s->k3 > 2)
        return pysim_fail(PYSIM_BAD_ARGUMENT,
                          "schedule has stationary %d, pack %d, k2 %lld, k3 %lld; expected 0, 0, at least 1, and 1 or 2",
                          (int)s->stationary, (int)s->pack, (long long)s->k2, (long long)s->k3);
    return PYSIM_OK;
}

/* Block of k in the copied vectors' layout. */
static int64_t step_of(const shape *x) { return x->dot ? PYSIM_VECTOR_STEP : 1; }

static pysim_status open_skinny(const pysim_problem *p, const pysim_schedule *s, pysim_row_lookup row, pysim_job *job) {
    pysim_nest *n = &job->nest;
    *n = (pysim_nest){.bytes = pysim_dtype_bytes(p->gemm.dtype)};
    pysim_status status = row(s, p->gemm.dtype, &n->row);
    if (status != PYSIM_OK) return status;
    const shape x = shape_of(&p->gemm, s);
    status = check_schedule(s, &x, &n->row);
    if (status != PYSIM_OK) return status;
    n->schedule = *s;
    /* twice: with rounding to lines */
    const int64_t copy[] = {pysim_ceil_div(x.of.k, step_of(&x)) * step_of(&x), x.of.n_vectors, 2 * x.bytes};
    const int64_t partial[] = {x.pitch, x.of.n_vectors, 2 * x.bytes};
    status = pysim_product("the copy of the vectors rows or columns, k x vectors x bytes", 3, copy, &job->shared_bytes);
    if (status == PYSIM_OK)
        status = pysim_product("the partial sums of a strip, results x vectors x bytes", 3, partial, &job->thread_bytes);
    job->shared_bytes = round_to_lines(job->shared_bytes / 2) + ALIGN;
    job->thread_bytes = round_to_lines(job->thread_bytes / 2);
    return status;
}

#define DEFINE_TYPE(T)                                                                                                           \
    static void copy_##T(const shape *x, const T *vectors, T *to) {                                                              \
        const int64_t k = x->of.k, by_vector = x->dot ? PYSIM_VECTOR_STEP : 1, by_p = x->dot ? 1 : x->of.n_vectors;              \
        for (int64_t p0 = 0; p0 < k; p0 += PYSIM_VECTOR_STEP, to += PYSIM_VECTOR_STEP * x->of.n_vectors)                         \
            for (int64_t f = 0; f < x->of.n_vectors; f++) {                                                                      \
                const int64_t n = pysim_min(PYSIM_VECTOR_STEP, k - p0);                                                          \
                const T *from = vectors + f * x->vector_step + p0 * x->p_step;                                                   \
                T *at = to + f * by_vector;                                                                                      \
                if (n == PYSIM_VECTOR_STEP && x->p_step == 1 && x->dot) {                                                        \
                    memcpy(at, from, PYSIM_VECTOR_STEP * sizeof(T));                                                             \
                    continue;                                                                                                    \
                }                                                                                                                \
                for (int64_t p = 0; p < n; p++) at[p * by_p] = from[p * x->p_step];                                              \
                for (int64_t p = n; x->dot && p < PYSIM_VECTOR_STEP; p++) at[p] = 0;                                             \
            }                                                                                                                    \
    }                                                                                                                            \
                                                                                                                                 \
    /* Epilogue: C of results [begin, begin + count) from their partial sums. */                                                 \
    static void store_##T(const shape *x, const pysim_call *call, const T *partial, int64_t begin, int64_t count, T *c) {        \
        const pysim_epilogue *e = call->epilogue;                                                                                \
        const T alpha = (T)e->alpha, beta = (T)e->beta, *bias = e->bias, low = (T)call->bounds.low, high = (T)call->bounds.high; \
        for (int64_t f = 0; f < x->of.n_vectors; f++, partial += x->pitch)                                                       \
            for (int64_t i = 0; i < count; i++) {                                                                                \
                T *to = c + f * x->c_vector + (begin + i) * x->c_result, value = alpha * partial[i];                             \
                if (beta != 0) value += beta * *to;                                                                              \
                if (bias) value += bias[x->few_rows ? begin + i : f];                                                            \
                *to = value < low ? low : value > high ? high : value;                                                           \
            }                                                                                                                    \
    }
DEFINE_TYPE(float)
DEFINE_TYPE(double)

typedef struct {
    shape x;
    pysim_skinny_kernel kernel;
    const pysim_call *call;
    int32_t dtype;
    int64_t parts, unit, thread_bytes;
    char *partial, *c;
} skinny_run;

/* A range of the results, one strip at a time. */
static void run_item(int64_t item, int64_t thread, const void *context) {
    const skinny_run *r = context;
    const shape *x = &r->x;
    char *partial = r->partial + thread * r->thread_bytes;
    int64_t first, last;
    pysim_split_range(pysim_ceil_div(x->results, r->unit), item, r->parts, &first, &last);
    for (int64_t i = first * r->unit, end = pysim_min(last * r->unit, x->results); i < end; i += x->strip) {
        const int64_t count = pysim_min(x->strip, end - i);
        if (r->call->epilogue->alpha == 0) memset(partial, 0, (size_t)(x->of.n_vectors * x->pitch * x->bytes));
        else r->kernel(&x->of, i, count, partial, x->pitch);
        if (r->dtype == PYSIM_F64) store_double(x, r->call, (const double *)(void *)partial, i, count, (double *)(void *)r->c);
        else store_float(x, r->call, (const float *)(void *)partial, i, count, (float *)(void *)r->c);
    }
}

static void run_skinny(const pysim_job *job, const pysim_call *call) {
    const pysim_gemm *g = &job->problem.gemm;
    skinny_run r = {.x = shape_of(g, &job->nest.schedule),
                    .kernel = job->nest.row.skinny,
                    .call = call,
                    .dtype = g->dtype,
                    .unit = job->nest.schedule.windows,
                    .thread_bytes = job->thread_bytes,
                    .c = call->result};
    const double start = call->profile ? pysim_now() : 0;
    char *copy = call->workspace + (ALIGN - (uintptr_t)call->workspace % ALIGN) % ALIGN;
    const char *vectors = r.x.few_rows ? call->first : call->second;
    r.x.of.matrix = r.x.few_rows ? call->second : call->first;
    r.x.of.vectors = copy;
    r.partial = copy + job->shared_bytes - ALIGN;
    if (call->epilogue->alpha != 0 && g->dtype == PYSIM_F64)
        copy_double(&r.x, (const double *)(const void *)vectors, (double *)(void *)copy);
    else if (call->epilogue->alpha != 0) copy_float(&r.x, (const float *)(const void *)vectors, (float *)(void *)copy);
    const double copied = call->profile ? pysim_now() : 0;
    r.parts = pysim_min(call->threads, pysim_ceil_div(r.x.results, r.unit));
    pysim_parallel_for(r.parts, call->threads, run_item, &r);
    if (call->profile)
        *call->profile = (pysim_profile){.pack_seconds = copied - start, .kernel_seconds = pysim_now() - copied, .kernel_calls = r.parts};
}

const pysim_algorithm pysim_algorithm_skinny = {open_skinny, NULL, run_skinny, 0, 0, 0, 0, 0};
