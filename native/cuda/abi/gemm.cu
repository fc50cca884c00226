/* SPDX-License-Identifier: Apache-2.0
 * Products: check the arguments, convert the layout of operands that the kernel cannot read in place, launch.
 *
 * The workspace holds, each aligned to 256 bytes: what a row of residues needs, converted A, converted B or B's thirds, the tiles' flags, the partial sums. */
#include <algorithm>
#include <utility>

#include "abi/operation.h"
#include "abi/registry.h"
#include "core/decomposition.cuh"
#include "gemm/gemm.h"

namespace pysim {
namespace {

const Registry<GemmRow> registry = {{
#define PYSIM_CUDA_CONV(...)
#define PYSIM_CUDA_GEMM(family, ...) gemm_##family::units,
#include "families.inc"
#undef PYSIM_CUDA_CONV
#undef PYSIM_CUDA_GEMM
}};

pysim_status check_gemm(const pysim_cuda_gemm *g) {
    const struct {
        const char *name;
        int64_t value;
    } sizes[] = {{"m", g->m}, {"n", g->n}, {"k", g->k}};
    for (const auto &size : sizes) {
        if (size.value < 1) return fail(PYSIM_BAD_ARGUMENT, "%s is %lld; expected at least 1", size.name, (long long)size.value);
        const int64_t largest = size.name[0] == 'k' ? limit::GEMM_K : limit::GEMM_SIDE;
        if (size.value > largest)
            return fail(PYSIM_UNSUPPORTED, "%s is %lld; the CUDA kernels take up to %lld", size.name, (long long)size.value,
                        (long long)largest);
    }
    if (((unsigned)g->trans_a | (unsigned)g->trans_b) > 1)
        return fail(PYSIM_BAD_ARGUMENT, "trans_a and trans_b are %d and %d; expected 0 or 1", g->trans_a, g->trans_b);
    const struct {
        const char *name;
        int64_t value, least;
    } pitches[] = {{"lda", g->lda, g->trans_a ? g->m : g->k}, {"ldb", g->ldb, g->trans_b ? g->k : g->n}, {"ldc", g->ldc, g->n}};
    for (const auto &pitch : pitches)
        if (pitch.value < pitch.least || pitch.value > ((int64_t)1 << 40))
            return fail(PYSIM_BAD_ARGUMENT, "%s is %lld; a row has %lld elements", pitch.name, (long long)pitch.value,
                        (long long)pitch.least);
    return check_dtypes(g->dtype, g->c_dtype);
}

enum { LINE = 128 }; /* bytes of an L2 line */

/* Pitch of a converted operand in bytes: whole L2 lines if that adds less than a quarter, because a box row that crosses a line costs two requests. */
int64_t pitch_of(int64_t bytes, int alignment) { return round_up(bytes, bytes >= 4 * LINE ? std::max(alignment, (int)LINE) : alignment); }

/* An operand as the kernel reads it. `bytes`: of its copy in the workspace; 0: read in place. */
struct Operand {
    int64_t rows, columns, pitch, bytes;
    bool transpose, thirds;
};

Operand operand_of(const void *data, int64_t ld, bool k_last, bool k_major, int64_t outer, int64_t k, int element, const Needs &needs) {
    const bool transpose = k_major && !k_last;
    const bool lies_k_last = k_last || transpose, gaps = needs.dense && ld != (k_last ? k : outer);
    const bool misaligned = gaps || (uintptr_t)data % needs.alignment || ld * element % needs.alignment;
    Operand o = {lies_k_last ? outer : k, lies_k_last ? k : outer, ld, 0, transpose, false};
    if (transpose || misaligned) {
        o.pitch = pitch_of(o.columns * element, std::max(needs.alignment, 16)) / element;
        o.bytes = round_up(o.rows * o.pitch * element, ALIGN);
    }
    return o;
}

/* B in thirds: 3 `outer` rows of k, padded to multiples of 8; the first thirds come first. */
Operand thirds_of(bool k_last, int64_t outer, int64_t k) {
    const int64_t pitch = pitch_of(2 * k, 16) / 2;
    return {outer, k, pitch, round_up(3 * outer * pitch * 2, ALIGN), !k_last, true};
}

struct Workspace {
    Operand a, b;
    int64_t residues; /* flags and scratch of a row of residues; what follows is of the row that computes in its place (`outside_of`) */
    int64_t flags, partials, total;
};

/* The product as the kernel computes it: C' = B' A' if the row needs a K-major B, and only A is K-major; or neither is, and copying A in place of B, read and
 * written, saves more elements than C has, whose rows are columns then. pysim/algorithms/gpu/gemm.py has the same rule. */
struct Computed {
    pysim_cuda_gemm g;
    const void *a, *b;
    bool transposed;
    Computed(const Call &call, const GemmRow &row)
        : g(call.problem->gemm), a(call.first), b(call.second),
          transposed(row.needs.k_major == 2 && !g.trans_b && (!g.trans_a || 2 * (g.n - g.m) * g.k >= g.m * g.n)) {
        if (!transposed) return;
        std::swap(a, b), std::swap(g.m, g.n), std::swap(g.lda, g.ldb);
        g.trans_b = !g.trans_a, g.trans_a = 1;
    }
};

/* Whether a row's kernels look at Problem::only_if, and it multiplies this type. */
bool looks_at_condition(const GemmRow &row, int dtype) {
    return dtype == PYSIM_F64 ? row.info.dtype == PYSIM_F64 && row.reduces_in_cluster : row.info.dtype == PYSIM_TF32X3 && row.needs.thirds;
}

/* What computes, in the schedule's decomposition, in place of a row of residues where operands are outside its bound: row `gemm`, or if there is none the first
 * that can. */
pysim_status outside_of(const pysim_cuda_schedule *s, int dtype, const GemmRow **row) {
    for (int32_t index = s->gemm < 0 ? 0 : s->gemm;; index++) {
        const pysim_status status = registry.find(index, row);
        if (status != PYSIM_OK || looks_at_condition(**row, dtype)) return status;
        if (s->gemm >= 0)
            return fail(PYSIM_UNSUPPORTED, "gemm is row %s; products of residues need one beside them that can wait for a condition",
                        (*row)->info.name);
    }
}

pysim_status workspace_of(const Computed &of, const pysim_cuda_schedule *s, const GemmRow &row, Workspace *w) {
    const pysim_cuda_gemm *const g = &of.g;
    const void *const a = of.a, *const b = of.b;
    const int element = dtypes[g->dtype].bytes;
    Problem p = {};
    p.m = (int)g->m, p.n = (int)g->n, p.k = (int)g->k, p.ldc = g->ldc, p.kind = s->decomposition, p.splits = s->splits;
    if (const char *const reason = row.refuses ? row.refuses(p) : nullptr)
        return fail(PYSIM_UNSUPPORTED, "kernel %s: %s", row.info.name, reason);
    const int high = row.info.block_m * row.info.cluster_m, wide = row.info.block_n * row.info.cluster_n; /* tile of a cluster */
    const Grid grid(p, high, wide, row.info.block_k);
    const int64_t tiles = (int64_t)grid.tiles_m * grid.tiles_n, blocks = row.info.cluster_m * row.info.cluster_n;
    if (row.residues) {
        if (row.residues * tiles > limit::TILES)
            return fail(PYSIM_UNSUPPORTED, "kernel %s would need %lld tiles; it runs at most %lld", row.info.name,
                        (long long)(row.residues * tiles), (long long)limit::TILES);
        if (g->k > limit::RESIDUES_K)
            return fail(PYSIM_UNSUPPORTED, "k is %lld; kernel %s takes up to %lld", (long long)g->k, row.info.name,
                        (long long)limit::RESIDUES_K);
        const GemmRow *outside = nullptr;
        pysim_status status = outside_of(s, g->dtype, &outside);
        if (status == PYSIM_OK) status = workspace_of(of, s, *outside, w);
        if (status != PYSIM_OK) return status;
        w->residues = ALIGN + row.scratch(p.m, p.n, p.k, false) + (g->prepared ? 0 : row.scratch(p.m, p.n, p.k, true));
        w->total = w->residues + std::max(w->total, (int64_t)ALIGN);
        return PYSIM_OK;
    }
    w->residues = 0;
    if (tiles > limit::TILES || (s->decomposition == PYSIM_SPLIT_K && tiles * s->splits > limit::TILES))
        return fail(PYSIM_UNSUPPORTED, "kernel %s would need %lld tiles; it runs at most %lld", row.info.name, (long long)tiles,
                    (long long)limit::TILES);
    if (s->decomposition == PYSIM_SPLIT_K && s->splits > grid.steps)
        return fail(PYSIM_BAD_ARGUMENT, "splits is %d, but k has only %d steps of %d", s->splits, grid.steps, row.info.block_k);
    if (s->decomposition == PYSIM_STREAM_K && s->splits > tiles * grid.steps)
        return fail(PYSIM_BAD_ARGUMENT, "splits is %d blocks, but there are only %lld steps in all", s->splits,
                    (long long)(tiles * grid.steps));
    w->a = operand_of(a, g->lda, !g->trans_a, row.needs.k_major == 1, g->m, g->k, element, row.needs);
    w->b = row.needs.thirds ? thirds_of(g->trans_b, g->n, g->k)
                            : operand_of(b, g->ldb, g->trans_b, row.needs.k_major != 0, g->n, g->k, element, row.needs);
    for (const Operand *o : {&w->a, &w->b})
        if (o->bytes && o->rows > limit::LAYOUT_CONVERSION_ROWS)
            return fail(PYSIM_UNSUPPORTED, "kernel %s would copy an operand of %lld rows; copies take up to %lld", row.info.name,
                        (long long)o->rows, (long long)limit::LAYOUT_CONVERSION_ROWS);
    const int64_t slots = s->decomposition == PYSIM_SPLIT_K && s->splits <= row.reduces_in_cluster ? 0 : grid.slots(p);
    w->flags = slots ? round_up(tiles * blocks * (int64_t)sizeof(unsigned), ALIGN) : 0;
    w->partials = slots * high * wide * sum_bytes(g->dtype);
    w->total = w->a.bytes + w->b.bytes + w->flags + w->partials;
    if (w->total) w->total += ALIGN;
    return PYSIM_OK;
}

pysim_status check_schedule(const pysim_cuda_gemm *g, const pysim_cuda_schedule *s, const GemmRow **row) {
    if (!s) return fail(PYSIM_BAD_ARGUMENT, "schedule is NULL");
    const pysim_status status = check_decomposition(s->decomposition, s->splits, s->along_n, s->group);
    return status == PYSIM_OK ? registry.find(s->kernel, g->dtype, row) : status;
}

/* Bytes from the first to the end of the last element. */
int64_t span(int64_t rows, int64_t columns, int64_t ld, int element) { return ((rows - 1) * ld + columns) * element; }

pysim_status check_operands(const pysim_cuda_gemm *g, const pysim_cuda_epilogue *e, const void *a, const void *b, const void *c,
                            const void *workspace, int64_t workspace_bytes) {
    const int element = dtypes[g->dtype].bytes, result = dtypes[g->c_dtype].bytes;
    const int64_t lines = e->by_row ? g->m : g->n;
    if (e->prologue) return fail(PYSIM_UNSUPPORTED, "a product takes no prologue, only a convolution does");
    return check_memory({
        {"c", c, span(g->m, g->n, g->ldc, result), result},
        {"a", a, g->trans_a ? span(g->k, g->m, g->lda, element) : span(g->m, g->k, g->lda, element), element},
        {"b", b, g->trans_b ? span(g->n, g->k, g->ldb, element) : span(g->k, g->n, g->ldb, element), element},
        {"bias", e->bias, lines * result, result},
        {"scale", e->scale, lines * scale_bytes(g->c_dtype), scale_bytes(g->c_dtype)},
        {"prepared", g->prepared, g->prepared ? 1 : 0, 1},
        {"workspace", workspace, workspace_bytes, 1},
    });
}

Problem problem_of(const pysim_cuda_gemm *g, const pysim_cuda_epilogue *e, const void *a, const void *b, void *c) {
    Problem p = {};
    p.a = a, p.b = b, p.c = c;
    p.lda = g->lda, p.ldb = g->ldb, p.ldc = g->ldc;
    p.m = (int)g->m, p.n = (int)g->n, p.k = (int)g->k;
    p.trans_a = g->trans_a, p.trans_b = g->trans_b, p.c_dtype = g->c_dtype;
    p.alpha = e->alpha, p.beta = e->beta, p.low = e->low, p.high = e->high;
    p.bias = e->bias, p.scale = e->scale, p.by_row = (short)e->by_row, p.activation = e->activation;
    p.kind = PYSIM_DATA_PARALLEL, p.splits = 1, p.group = 1;
    p.prepared = g->prepared ? (void *)round_up((int64_t)(uintptr_t)g->prepared, ALIGN) : nullptr;
    return p;
}

/* alpha = 0: the reference kernel, which then reads neither A nor B; REFERENCE_ROWS rows at a time. */
cudaError_t without_product(Problem p, int dtype, cudaStream_t stream) {
    const int m = p.m;
    cudaError_t error = cudaSuccess;
    for (int row = 0; row < m && error == cudaSuccess; row += REFERENCE_ROWS) {
        p.m = std::min(m - row, (int)REFERENCE_ROWS);
        error = reference(p, dtype, stream);
        p.c = (char *)p.c + p.m * p.ldc * dtypes[p.c_dtype].bytes;
        if (p.by_row && p.bias) p.bias = (const char *)p.bias + p.m * dtypes[p.c_dtype].bytes;
    }
    return error;
}

/* If an operand needs a copy: places it at *at in the workspace and returns the conversion. */
LayoutConversion take(const Operand &o, const void **data, int64_t *ld, char **at) {
    if (!o.bytes) return {};
    const LayoutConversion copy = {*at, o.pitch, *data, *ld, o.rows, o.columns, o.transpose};
    *data = *at;
    *ld = o.pitch;
    *at += o.bytes;
    return copy;
}

pysim_status attributes(const pysim_cuda_problem *problem, int32_t kernel, pysim_cuda_attributes *out) {
    const GemmRow *row = nullptr;
    const pysim_cuda_gemm *g = &problem->gemm;
    int sms;
    pysim_status status = check_gemm(g);
    if (status == PYSIM_OK) status = registry.find(kernel, g->dtype, &row);
    if (status == PYSIM_OK) status = sms_for(*row, &sms);
    if (status != PYSIM_OK) return status;
    const pysim_cuda_epilogue e = {1, 0, nullptr, 0, 0, 0, nullptr, 0, nullptr};
    Problem p = problem_of(g, &e, nullptr, nullptr, nullptr);
    if (row->needs.k_major) p.trans_a = row->needs.k_major == 2 && (p.trans_a || !p.trans_b), p.trans_b = 1;
    return check(row->attributes(p, out), "the kernel's attributes");
}

pysim_status workspace_bytes(const Call &call, int64_t *bytes) {
    const GemmRow *row = nullptr;
    const pysim_cuda_gemm *g = &call.problem->gemm;
    Workspace w;
    pysim_status status = check_gemm(g);
    if (status == PYSIM_OK) status = check_schedule(g, call.schedule, &row);
    if (status == PYSIM_OK) status = workspace_of(Computed(call, *row), call.schedule, *row, &w);
    if (status == PYSIM_OK) *bytes = w.total;
    return status;
}

/* Copies of operands, flags, the product; `at`: the workspace from the copies on. */
pysim_status run_row(Problem p, const Workspace &w, char *at, const GemmRow &row, int element, int sms, cudaStream_t stream) {
    if (w.a.transpose) p.trans_a = 0;
    if (w.b.transpose) p.trans_b = 1;
    const LayoutConversion a = take(w.a, &p.a, &p.lda, &at), b = take(w.b, &p.b, &p.ldb, &at);
    if (w.flags) p.flags = (unsigned *)at, p.partials = at + w.flags;
    if (a.rows || b.rows || w.flags) {
        const PartsOf parts = !w.b.thirds ? PartsOf::NONE : p.trans_a ? PartsOf::THIRDS : PartsOf::THIRDS_INTERLEAVED;
        const pysim_status status =
            check(convert_layouts(a, b, element, parts, p.flags, (int)(w.flags / sizeof(unsigned)), p.only_if, stream),
                  "layout conversion of operands, flags of partial sums");
        if (status != PYSIM_OK) return status;
        p.follows = has_dependent_launch();
    }
    return check(row.launch(p, sms, stream), row.info.name);
}

/* A row of residues, and behind it the product of `w`, which does nothing unless flag 2 says that operands were outside the bound. */
pysim_status run_residues(Problem p, const Workspace &w, char *at, const GemmRow &row, const pysim_cuda_schedule *s, int dtype, int sms,
                          cudaStream_t stream) {
    const GemmRow *outside = nullptr;
    pysim_status status = outside_of(s, dtype, &outside);
    if (status != PYSIM_OK) return status;
    p.flags = (unsigned *)at, p.partials = at + ALIGN;
    status = check(convert_layouts({}, {}, 1, PartsOf::NONE, p.flags, ALIGN / sizeof(unsigned), nullptr, stream), "flags of operands");
    if (status == PYSIM_OK) status = check(row.launch(p, sms, stream), row.info.name);
    if (status != PYSIM_OK) return status;
    p.only_if = p.flags + 2, p.flags = nullptr, p.partials = nullptr;
#ifdef PYSIM_EMULATED
    (void)w;
    return check(reference(p, dtype, stream), outside->info.name); /* rows on Hopper's own instructions do not run there */
#else
    return run_row(p, w, at + w.residues, *outside, dtypes[dtype].bytes, sms, stream);
#endif
}

pysim_status run(const Call &call) {
    const GemmRow *row = nullptr;
    const pysim_cuda_gemm *g = &call.problem->gemm;
    const pysim_cuda_schedule *s = call.schedule;
    const pysim_cuda_epilogue *e = call.epilogue;
    Workspace w;
    int sms = 0;
    pysim_status status = check_gemm(g);
    if (status == PYSIM_OK) status = check_schedule(g, s, &row);
    if (status == PYSIM_OK) status = check_epilogue(g->c_dtype, e);
    if (status == PYSIM_OK) status = workspace_of(Computed(call, *row), s, *row, &w);
    if (status == PYSIM_OK) status = check_operands(g, e, call.first, call.second, call.result, call.workspace, call.workspace_bytes);
    if (status == PYSIM_OK) status = check_workspace(w.total, call.workspace, call.workspace_bytes);
    if (status == PYSIM_OK) status = sms_for(*row, &sms);
    if (status != PYSIM_OK) return status;

    if (e->alpha == 0)
        return check(without_product(problem_of(g, e, call.first, call.second, call.result), g->dtype, call.stream), "C without a product");
    const int element = dtypes[g->dtype].bytes;
    const Computed of(call, *row);
    Problem p = problem_of(&of.g, e, of.a, of.b, call.result);
    p.transposed = of.transposed;
    p.kind = s->decomposition, p.splits = s->splits, p.along_n = s->along_n, p.group = s->group;
    char *at = (char *)round_up((int64_t)(uintptr_t)call.workspace, ALIGN);
    return row->residues ? run_residues(p, w, at, *row, s, g->dtype, sms, call.stream) : run_row(p, w, at, *row, element, sms, call.stream);
}

pysim_status plain_loops(const Call &call) {
    const pysim_cuda_gemm *g = &call.problem->gemm;
    pysim_status status = check_gemm(g);
    if (status == PYSIM_OK) status = check_epilogue(g->c_dtype, call.epilogue);
    if (status == PYSIM_OK) status = check_operands(g, call.epilogue, call.first, call.second, call.result, nullptr, 0);
    if (status != PYSIM_OK) return status;
    if (g->m > REFERENCE_ROWS)
        return fail(PYSIM_UNSUPPORTED, "m is %lld; the reference takes up to %d", (long long)g->m, (int)REFERENCE_ROWS);
    return check(reference(problem_of(g, call.epilogue, call.first, call.second, call.result), g->dtype, call.stream), "the reference");
}
}

const Operation products = {[](int32_t kernel) { return is_available(registry, kernel); }, attributes, workspace_bytes, run, plain_loops};
}

using namespace pysim;

pysim_status pysim_cuda_prepared_bytes(const pysim_cuda_problem *p, const pysim_cuda_schedule *s, int64_t *bytes) {
    if (!p || !bytes) return fail(PYSIM_BAD_ARGUMENT, "%s: %s is NULL", __func__, p ? "bytes" : "the problem");
    *bytes = 0;
    if (p->kind != PYSIM_GEMM) return PYSIM_OK;
    const GemmRow *row = nullptr;
    const pysim_cuda_gemm *g = &p->gemm;
    Workspace w;
    pysim_status status = check_gemm(g);
    if (status == PYSIM_OK) status = check_schedule(g, s, &row);
    if (status != PYSIM_OK || !row->residues) return status;
    status = workspace_of(Computed({p, s, nullptr, nullptr, nullptr, nullptr, nullptr, 0, nullptr}, *row), s, *row, &w);
    if (status == PYSIM_OK) *bytes = ALIGN + row->scratch((int)g->m, (int)g->n, (int)g->k, true);
    return status;
}

pysim_status pysim_cuda_prepare(const pysim_cuda_problem *problem, const pysim_cuda_schedule *s, const void *second, void *prepared,
                                int64_t prepared_bytes, void *stream) {
    int64_t needed = 0;
    int sms = 0;
    const GemmRow *row = nullptr;
    pysim_status status = pysim_cuda_prepared_bytes(problem, s, &needed);
    if (status != PYSIM_OK || !needed) return status;
    pysim_cuda_gemm g = problem->gemm;
    g.prepared = prepared;
    const pysim_cuda_epilogue e = {1, 0, nullptr, 0, 0, 0, nullptr, 0, nullptr};
    status = check_schedule(&g, s, &row);
    if (status == PYSIM_OK) {
        const int element = dtypes[g.dtype].bytes;
        status = check_memory({{"b", second, g.trans_b ? span(g.n, g.k, g.ldb, element) : span(g.k, g.n, g.ldb, element), element},
                               {"prepared", prepared, needed, 1}});
    }
    if (status == PYSIM_OK) status = check_workspace(needed, prepared, prepared_bytes);
    if (status == PYSIM_OK) status = sms_for(*row, &sms);
    return status == PYSIM_OK ? check(row->launch(problem_of(&g, &e, nullptr, second, nullptr), sms, (cudaStream_t)stream), row->info.name)
                              : status;
}

int32_t pysim_cuda_gemm_count(void) { return pysim::registry.count(); }

pysim_status pysim_cuda_gemm_at(int32_t index, pysim_cuda_gemm_info *out) { return pysim::registry.describe(index, out, __func__); }
