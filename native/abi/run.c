/* SPDX-License-Identifier: Apache-2.0
 * ABI entry points for sizes, preparation and runs, common to all problems and algorithms. All arguments are checked here. */
#include <string.h>

#include "algorithms/algorithm.h"

#define PYSIM_ALGORITHM(name, problem) extern const pysim_algorithm pysim_algorithm_##name;
#include "algorithms.inc"
#undef PYSIM_ALGORITHM

static const struct {
    const char *name;
    int32_t problem;
    const pysim_algorithm *of;
} algorithms[] = {
#define PYSIM_ALGORITHM(name, problem) {#name, PYSIM_##problem, &pysim_algorithm_##name},
#include "algorithms.inc"
#undef PYSIM_ALGORITHM
};
enum { ALGORITHMS = sizeof algorithms / sizeof *algorithms };

static pysim_status open_job(const pysim_problem *p, const pysim_schedule *s, pysim_row_lookup row, pysim_job *job) {
    job->algorithm = NULL;
    job->prepared_bytes = job->thread_bytes = job->shared_bytes = job->sums_at = 0;
    pysim_status status = pysim_check_problem(p, &job->operands);
    if (status != PYSIM_OK) return status;
    job->problem = *p;
    if (!s) return pysim_fail(PYSIM_BAD_ARGUMENT, "schedule is NULL");
    if (s->algorithm < 0 || s->algorithm >= ALGORITHMS)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "schedule.algorithm is %d; native/algorithms.inc has %d lines", (int)s->algorithm,
                          (int)ALGORITHMS);
    if (algorithms[s->algorithm].problem != p->kind)
        return pysim_fail(PYSIM_UNSUPPORTED, "algorithm %s computes %s, and the problem is a %s", algorithms[s->algorithm].name,
                          p->kind == PYSIM_CONV ? "matrix products" : "convolutions",
                          p->kind == PYSIM_CONV ? "convolution" : "matrix product");
    const pysim_algorithm *algorithm = algorithms[s->algorithm].of;
    if (p->kind == PYSIM_CONV && !algorithm->blocks && (p->conv.input_block > 1 || p->conv.output_block > 1))
        return pysim_fail(PYSIM_UNSUPPORTED, "input_block is %d and output_block %d; algorithm %s reads and writes planes",
                          (int)p->conv.input_block, (int)p->conv.output_block, algorithms[s->algorithm].name);
    if (p->kind == PYSIM_CONV && algorithm->blocks == 1 && (status = pysim_check_whole_blocks(&p->conv)) != PYSIM_OK) return status;
    if (p->kind == PYSIM_CONV && p->conv.depth && !algorithm->volumes)
        return pysim_fail(PYSIM_UNSUPPORTED, "depth is %lld; algorithm %s computes images", (long long)p->conv.depth,
                          algorithms[s->algorithm].name);
    if (p->kind == PYSIM_CONV) job->problem.conv = pysim_as_volume(&p->conv);
    status = algorithm->open(&job->problem, s, row, job);
    if (status == PYSIM_OK && pysim_reads_rows(&job->nest.row) && !job->nest.windows_packed)
        return pysim_fail(PYSIM_UNSUPPORTED, "kernel %s reads panels of weights that were made beforehand; algorithm %s makes none",
                          job->nest.row.info.name, algorithms[s->algorithm].name);
    if (status == PYSIM_OK) job->algorithm = algorithm;
    return status;
}

static pysim_status job_workspace(const pysim_job *job, int32_t threads, int64_t *bytes) {
    const int64_t each = job->thread_bytes;
    const pysim_status status = each ? pysim_threads_workspace(each, threads, bytes) : pysim_nest_workspace(&job->nest, threads, bytes);
    if (status == PYSIM_OK && __builtin_add_overflow(*bytes, job->shared_bytes, bytes))
        return pysim_fail(PYSIM_OVERFLOW, "the workspace exceeds int64 bytes");
    return status;
}

pysim_status pysim_workspace_bytes(const pysim_problem *p, const pysim_schedule *s, int32_t threads, int64_t *bytes) {
    pysim_job job;
    const pysim_status status = open_job(p, s, pysim_row_of, &job);
    if (status != PYSIM_OK) return status;
    if (!bytes) return pysim_fail(PYSIM_BAD_ARGUMENT, "pysim_workspace_bytes: bytes is NULL");
    return job_workspace(&job, threads, bytes);
}

pysim_status pysim_prepared_bytes(const pysim_problem *p, const pysim_schedule *s, int64_t *bytes) {
    pysim_job job;
    const pysim_status status = open_job(p, s, pysim_row_of, &job);
    if (status != PYSIM_OK) return status;
    if (!bytes) return pysim_fail(PYSIM_BAD_ARGUMENT, "pysim_prepared_bytes: bytes is NULL");
    *bytes = job.prepared_bytes;
    return PYSIM_OK;
}

pysim_status pysim_prepare(const pysim_problem *p, const pysim_schedule *s, const void *weights, void *prepared, int64_t prepared_bytes) {
    pysim_job job;
    pysim_operands operands;
    pysim_status status = open_job(p, s, pysim_row_for, &job);
    if (status == PYSIM_OK) status = pysim_check_problem(p, &operands);
    if (status != PYSIM_OK) return status;
    const pysim_operand *from = &operands.second;
    if (job.prepared_bytes == 0)
        return pysim_fail(PYSIM_UNSUPPORTED, "nothing is prepared for this schedule: a run reads %s as it is", from->name);
    status = pysim_check_operand(from->name, weights, from->dtype);
    if (status == PYSIM_OK) status = pysim_check_operand("prepared", prepared, from->dtype);
    if (status != PYSIM_OK) return status;
    if (prepared_bytes < job.prepared_bytes)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "prepared has %lld bytes; this schedule needs %lld", (long long)prepared_bytes,
                          (long long)job.prepared_bytes);
    const pysim_span spans[] = {{"prepared", prepared, job.prepared_bytes, 1}, {from->name, weights, from->bytes, 0}};
    status = pysim_check_apart(spans, 2);
    if (status == PYSIM_OK) job.algorithm->prepare(&job, weights, prepared);
    return status;
}

/* Splits the epilogue into the part that kernels' stores apply and the part left to `finish`. */
static void divide_epilogue(const pysim_job *job, pysim_call *call) {
    const pysim_epilogue *e = call->epilogue;
    const void *residual = e->sum ? NULL : e->residual; /* bytes are added where sums are rescaled */
    const int adds = residual && job->algorithm->adds, added = !residual || adds;
    call->residual = adds ? residual : NULL;
    call->bounds = pysim_unbounded(job->operands.first.dtype);
    if (e->result_scales) {
        call->finish = (pysim_finish){pysim_loops_for(PYSIM_F32), NULL, NULL, e->activation, e->low, e->high};
        return;
    }
    if (added && e->activation == PYSIM_RELU) call->bounds.low = 0;
    if (added && e->activation == PYSIM_EPILOGUE_clamp && !e->scales) call->bounds = (pysim_bounds){e->low, e->high};
    if (added && (e->activation == PYSIM_IDENTITY || e->activation == PYSIM_RELU || e->activation == PYSIM_EPILOGUE_clamp)) return;
    call->finish =
        (pysim_finish){pysim_loops_for(job->operands.result.dtype), call->result, added ? NULL : residual, e->activation, e->low, e->high};
}

/* The algorithm itself applies `finish`, or a pass after it does. */
static void run_checked(const pysim_job *job, const pysim_call *given) {
    const pysim_problem *p = &job->problem;
    const int32_t result = job->operands.result.dtype;
    pysim_call call = *given;
    divide_epilogue(job, &call);
    const int finishes = job->algorithm->finishes || call.epilogue->result_scales;
    const pysim_finish left = finishes ? (pysim_finish){0} : call.finish;
    if (!finishes) call.finish.loops = NULL;
    job->algorithm->run(job, &call);
    if (p->kind == PYSIM_GEMM) pysim_finish_rows(&left, call.result, p->gemm.ldc, p->gemm.m, p->gemm.n);
    else pysim_finish_rows(&left, call.result, 0, 1, job->operands.result.bytes / pysim_dtype_bytes(result));
}

static pysim_status check_quantised(const pysim_job *job, const pysim_epilogue *e) {
    const pysim_schedule *s = &job->nest.schedule;
    if (!job->algorithm->quantised)
        return pysim_fail(PYSIM_UNSUPPORTED,
                          "the epilogue has scales, zero points or an unsigned operand, which this algorithm has not: use "
                          "sconv, gemm, panels or depthwise");
    if (e->first_unsigned && job->nest.row.group == 1 && job->nest.row.run && job->problem.kind == PYSIM_CONV && s->pack == PYSIM_PACK_NONE)
        return pysim_fail(PYSIM_UNSUPPORTED,
                          "kernel %s reads signed windows in place, and the first operand is unsigned: use pack 1 (tiles)",
                          job->nest.row.info.name);
    if (e->sum && !job->algorithm->adds)
        return pysim_fail(PYSIM_UNSUPPORTED, "the epilogue adds a residual of bytes, which this algorithm does not: use sconv");
    if (e->scales && s->channels < job->nest.channels)
        return pysim_fail(PYSIM_UNSUPPORTED, "schedule.channels is %lld; sums that are scaled have one set of all %lld channels",
                          (long long)s->channels, (long long)job->nest.channels);
    if (e->shifts && !e->result_scales && (job->nest.row.direct || !job->algorithm->finishes))
        return pysim_fail(PYSIM_UNSUPPORTED, "the epilogue has shifts of results f32, which this algorithm does not add");
    int64_t p = 0, q = 0;
    if (e->result_scales && job->problem.kind == PYSIM_CONV) (void)pysim_check_conv(&job->problem.conv, &p, &q, NULL); /* has passed */
    if (e->result_scales && (s->windows * s->filters > PYSIM_NUMBERS || (job->nest.row.direct && q > PYSIM_NUMBERS)))
        return pysim_fail(PYSIM_UNSUPPORTED, "tiles of %lld x %lld or rows of %lld are larger than those whose numbers become bytes",
                          (long long)s->windows, (long long)s->filters, (long long)q);
    if (e->scales && !job->nest.row.rescales && s->windows * s->filters > PYSIM_TILE_RESULTS)
        return pysim_fail(PYSIM_UNSUPPORTED, "tiles of %lld x %lld are larger than those whose sums are scaled", (long long)s->windows,
                          (long long)s->filters);
    return PYSIM_OK;
}

static pysim_status check_run(const pysim_job *job, const pysim_call *call, int64_t workspace_bytes) {
    int64_t needed;
    pysim_status status = pysim_check_call(&job->problem, &job->operands, call->epilogue, call->first, call->second, call->result,
                                           call->workspace, workspace_bytes);
    if (status == PYSIM_OK && pysim_is_quantised(call->epilogue)) status = check_quantised(job, call->epilogue);
    if (status == PYSIM_OK && call->epilogue->sum && call->epilogue->residual == call->result && !job->nest.row.adds)
        status = pysim_fail(PYSIM_UNSUPPORTED, "the residual is the result, which kernel %s overwrites first", job->nest.row.info.name);
    if (status == PYSIM_OK) status = job_workspace(job, call->threads, &needed);
    if (status != PYSIM_OK) return status;
    if (!call->workspace || workspace_bytes < needed)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "workspace has %lld bytes; this schedule on %d threads needs %lld",
                          (long long)(call->workspace ? workspace_bytes : 0), (int)call->threads, (long long)needed);
    return PYSIM_OK;
}

static pysim_status run(const pysim_job *job, const pysim_call *call, int64_t workspace_bytes) {
    const pysim_status status = check_run(job, call, workspace_bytes);
    if (status != PYSIM_OK) return status;
    if (call->profile) memset(call->profile, 0, sizeof *call->profile);
    run_checked(job, call);
    return PYSIM_OK;
}

int64_t pysim_job_bytes(void) { return sizeof(pysim_job); }

pysim_status pysim_open(const pysim_problem *p, const pysim_schedule *s, void *opened, int64_t job_bytes) {
    pysim_job *job = opened;
    if (!job || (uintptr_t)job % _Alignof(pysim_job) || job_bytes < (int64_t)sizeof *job)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "job has %lld bytes at %p; expected %lld bytes, aligned to %d", (long long)job_bytes, opened,
                          (long long)sizeof *job, (int)_Alignof(pysim_job));
    const pysim_status status = open_job(p, s, pysim_row_for, job);
    if (status == PYSIM_OK && job->nest.finish) job->operands.second.bytes += PYSIM_PACKED_MARK_BYTES; /* read only by `finish` */
    return status;
}

static pysim_status check_opened(const pysim_job *job) {
    if (job && job->algorithm) return PYSIM_OK;
    return pysim_fail(PYSIM_BAD_ARGUMENT, "job is %s; call pysim_open first", job ? "not opened" : "NULL");
}

pysim_status pysim_run_job(const void *opened, const pysim_epilogue *e, int32_t threads, const void *first, const void *second,
                           void *result, void *workspace, int64_t workspace_bytes, pysim_profile *profile) {
    const pysim_status status = check_opened(opened);
    const pysim_call call = {
        .epilogue = e, .threads = threads, .first = first, .second = second, .result = result, .workspace = workspace, .profile = profile};
    return status == PYSIM_OK ? run(opened, &call, workspace_bytes) : status;
}

static pysim_call call_of(const pysim_step *s) {
    return (pysim_call){.epilogue = s->epilogue,
                        .threads = s->threads,
                        .first = s->first,
                        .second = s->second,
                        .result = s->result,
                        .workspace = s->workspace};
}

pysim_status pysim_check_step(const pysim_step *s) {
    if (!s || s->kind != PYSIM_STEP_RUN)
        return pysim_fail(PYSIM_UNSUPPORTED, "%s; only the arguments of runs are checked beforehand",
                          s ? "the step is no run" : "step is NULL");
    const pysim_status status = check_opened(s->of);
    const pysim_call call = call_of(s);
    return status == PYSIM_OK ? check_run(s->of, &call, s->workspace_bytes) : status;
}

void pysim_run_checked_step(const pysim_step *s) {
    const pysim_call call = call_of(s);
    run_checked(s->of, &call);
}

pysim_status pysim_run(const pysim_problem *p, const pysim_schedule *s, const pysim_epilogue *e, int32_t threads, const void *first,
                       const void *second, void *result, void *workspace, int64_t workspace_bytes, pysim_profile *profile) {
    pysim_job job;
    const pysim_status status = pysim_open(p, s, &job, sizeof job);
    return status == PYSIM_OK ? pysim_run_job(&job, e, threads, first, second, result, workspace, workspace_bytes, profile) : status;
}

pysim_status pysim_dry_run(const pysim_problem *p, const pysim_schedule *s, pysim_install_stubs install_stubs, const void *first,
                           const void *second, void *result, void *workspace) {
    pysim_job job;
    int64_t workspace_bytes;
    const pysim_epilogue e = {.alpha = 1};
    pysim_status status = open_job(p, s, pysim_row_of, &job);
    if (status == PYSIM_OK) status = job_workspace(&job, 1, &workspace_bytes);
    if (status != PYSIM_OK) return status;
    if (job.thread_bytes || job.nest.row.family != PYSIM_FAMILY_NEST)
        return pysim_fail(PYSIM_UNSUPPORTED,
                          "algorithm %s is not a loop nest of micro-kernel calls alone, so its accesses cannot be traced",
                          algorithms[s->algorithm].name);
    if (job.nest.row.group > 1)
        return pysim_fail(PYSIM_UNSUPPORTED, "kernel %s packs groups of k, whose accesses cannot be traced", job.nest.row.info.name);
    job.nest.finish = NULL; /* a trace has no results to read */
    install_stubs(&job.nest);
    const pysim_call call = {.epilogue = &e, .threads = 1, .first = first, .second = second, .result = result, .workspace = workspace};
    return run(&job, &call, workspace_bytes);
}
