/* SPDX-License-Identifier: Apache-2.0
 * Compares every row of gemm/ with the reference on the device: edge shapes, layouts, result types, pitches, alignments, epilogues and
 * decompositions. C starts as NaN. The gaps between its rows and both its ends have a pattern that must survive. The gaps of A and B are
 * NaN, and each begins or ends where its allocation does. Results of small integers must be equal bit for bit, those of random
 * numbers within the bound of their type.
 *
 *   check [--kernel SUBSTRING] [--every N] [--part I/P]    N: run one in N cases (5: 100 cases a kernel); P: run the kernels whose number
 *   modulo P is I. The last line has the counts. Exit status 1 if a case failed, 77 if there is no device.
 *
 * Built for the CPU (emulated/), it runs the same kernels except those that the CPU cannot launch, which it lists. */
#include <string>

#include "check.h"

namespace {

struct Case {
    pysim_cuda_gemm g;
    pysim_cuda_schedule s;
    pysim_cuda_epilogue e;
    int offset_a, offset_b, offset_c; /* misalignment of the base, in elements */
    bool exact, bias, scale, poisoned;
};

Buffer buffer_a, buffer_b, buffer_c, buffer_want, buffer_sums, buffer_scale, buffer_bias, buffer_factors, buffer_work, buffer_abs_a,
    buffer_abs_b;
long long cases, failures, refused;

double bound_of(const pysim_cuda_gemm &g, const pysim_cuda_gemm_info &row) {
    const double terms = (double)g.k + 8;
    switch (g.dtype) {
    case PYSIM_F64: return 2 * terms * 0x1p-53;
    case PYSIM_TF32: return 0x1p-9 + terms * 0x1p-24;
    case PYSIM_TF32X3: return 0x1p-19 + terms * 0x1p-23;
    case PYSIM_F16: return terms * (!strcmp(row.family, "simt") || !strcmp(row.form, "half") ? 0x1p-11 : 0x1p-24);
    case PYSIM_F8: return 0x1p-11 + terms * 0x1p-22; /* Hopper adds e4m3 products in fewer bits than f32 has */
    default: return terms * 0x1p-24;
    }
}

void report(const Case &c, const pysim_cuda_gemm_info &row, const char *what) {
    if (++failures > 40) return;
    printf(
        "FAIL %s %lldx%lldx%lld %c%c %s->%s ld %lld %lld %lld offsets %d %d %d alpha %g beta %g bias %d scale %d by_row %d f %d kind %d splits %d along_n %d group %d %s: %s\n",
        row.name, (long long)c.g.m, (long long)c.g.n, (long long)c.g.k, c.g.trans_a ? 't' : 'n', c.g.trans_b ? 't' : 'n',
        name_of[c.g.dtype], name_of[c.g.c_dtype], (long long)c.g.lda, (long long)c.g.ldb, (long long)c.g.ldc, c.offset_a, c.offset_b,
        c.offset_c, c.e.alpha, c.e.beta, (int)c.bias, (int)c.scale, c.e.by_row, c.e.activation, c.s.decomposition, c.s.splits, c.s.along_n,
        c.s.group,
        c.poisoned ? "poisoned"
        : c.exact  ? "exact"
                   : "random",
        what);
}

/* False if the row does not compute this problem. */
bool run(Case c, const pysim_cuda_gemm_info &row, unsigned seed) {
    enum { HEAD = 1024 };
    const pysim_cuda_gemm &g = c.g;
    const int element = bytes_of[g.dtype], result = bytes_of[g.c_dtype];
    const long long rows_a = g.trans_a ? g.k : g.m, rows_b = g.trans_b ? g.n : g.k;
    const long long columns_a = g.trans_a ? g.m : g.k, columns_b = g.trans_b ? g.k : g.n;
    const size_t count_a = (size_t)((rows_a - 1) * g.lda + columns_a), count_b = (size_t)((rows_b - 1) * g.ldb + columns_b); /* with gaps */
    const size_t span_c = (size_t)(g.m * g.ldc + c.offset_c) * result;
    char *a = buffer_a.place(count_a * element, c.offset_a * element, seed & 1);
    char *b = buffer_b.place(count_b * element, c.offset_b * element, seed & 2);
    const size_t total = span_c + 2 * HEAD, head = HEAD + (size_t)c.offset_c * result;
    char *block = (char *)buffer_c.at(total), *out = block + head;
    char *want = (char *)buffer_want.at(total) + head;
    need(cudaMemset(a, 0xff, count_a * element), "memset");
    need(cudaMemset(b, 0xff, count_b * element), "memset");
    each(rows_a * columns_a, fill, a, g.dtype, rows_a, columns_a, g.lda, seed, 2 * c.exact);
    each(rows_b * columns_b, fill, b, g.dtype, rows_b, columns_b, g.ldb, seed + 77, 2 * c.exact);
    if (c.poisoned) { /* one row of op(A) is infinite, one column of op(B) is NaN */
        const long long i = seed % g.m, j = seed % g.n;
        each(g.k, poison, a, g.dtype, g.trans_a ? i : i * g.lda, g.trans_a ? g.lda : 1, g.k, INFINITY);
        each(g.k, poison, b, g.dtype, g.trans_b ? j * g.ldb : j, g.trans_b ? 1 : g.ldb, g.k, NAN);
    }
    need(cudaMemset(block, 0xff, total), "memset");
    if (c.e.beta != 0) { /* C's rows have previous values; the rest has the pattern */
        void *plain = buffer_scale.at((size_t)(g.m * g.n) * 8);
        each(g.m * g.n, fill, plain, g.c_dtype, g.m, g.n, g.n, seed + 5, 2 * c.exact);
        need(cudaMemcpy2D(out, (size_t)g.ldc * result, plain, (size_t)g.n * result, (size_t)g.n * result, (size_t)g.m,
                          cudaMemcpyDeviceToDevice),
             "copy");
    }
    need(cudaMemcpy(want - head, block, total, cudaMemcpyDeviceToDevice), "copy");
    const long long lines = c.e.by_row ? g.m : g.n;
    if (c.bias) c.e.bias = filled(buffer_bias, lines, g.c_dtype, seed + 9, 2 * c.exact);
    if (c.scale) c.e.scale = filled(buffer_factors, lines, scale_of(g.c_dtype), seed + 11, 2 * c.exact);
    cases++;
    int64_t bytes = 0;
    const pysim_cuda_problem problem = pysim::problem_of(g);
    pysim_status status = pysim_cuda_workspace_bytes(&problem, &c.s, a, b, &bytes);
    if (status == PYSIM_UNSUPPORTED) return refused++, false;
    void *work = buffer_work.place((size_t)bytes, 0, true);
    need(cudaMemset(work, 0xff, (size_t)bytes), "memset");
    if (status == PYSIM_OK) status = pysim_cuda_run(&problem, &c.s, &c.e, a, b, out, bytes ? work : nullptr, bytes, nullptr);
    if (status != PYSIM_OK) return report(c, row, pysim_cuda_last_error()), true;
    if (pysim_cuda_reference(&problem, &c.e, a, b, want, nullptr) != PYSIM_OK) return report(c, row, pysim_cuda_last_error()), true;
    double *scale = nullptr;
    if (!c.exact) { /* |A||B|, in f32 */
        char *abs_a = (char *)buffer_abs_a.at(count_a * element), *abs_b = (char *)buffer_abs_b.at(count_b * element);
        each((long long)count_a, magnitude, abs_a, a, g.dtype, (long long)count_a);
        each((long long)count_b, magnitude, abs_b, b, g.dtype, (long long)count_b);
        pysim_cuda_problem all = problem;
        all.gemm.ldc = g.n;
        all.gemm.c_dtype = g.dtype == PYSIM_F64 ? PYSIM_F64 : g.dtype == PYSIM_S8 ? PYSIM_S32 : PYSIM_F32;
        const pysim_cuda_epilogue plain = {1, 0, nullptr, 0, 0, 0, nullptr, 0, nullptr};
        char *sums = (char *)buffer_sums.at((size_t)(g.m * g.n) * 8);
        if (pysim_cuda_reference(&all, &plain, abs_a, abs_b, sums, nullptr) != PYSIM_OK)
            return report(c, row, pysim_cuda_last_error()), true;
        scale = (double *)buffer_scale.at((size_t)(g.m * g.n) * 8);
        each(g.m * g.n, widen, scale, sums, all.gemm.c_dtype, g.m * g.n);
    }
    const Verdict v =
        verdict_of(block, total, head, out, want, scale, g.c_dtype, g.m, g.n, g.ldc, bound_of(g, row) * (1 + fabs(c.e.alpha)), row.name);
    char text[160];
    if (v.wrong) {
        snprintf(text, sizeof text, "%llu of %lld are wrong, the first at row %lld column %lld", v.wrong, (long long)(g.m * g.n),
                 v.first / (long long)g.n, v.first % (long long)g.n);
        report(c, row, text);
    } else if (v.gaps) {
        snprintf(text, sizeof text, "%llu bytes outside C were written", v.gaps);
        report(c, row, text);
    }
    return true;
}

/* More tiles than SMs, so that persistent blocks have several tiles each, with one k-iteration or with more than there are stages. */
void check_several(int index, const pysim_cuda_gemm_info &row) {
    const int kinds[] = {PYSIM_DATA_PARALLEL, PYSIM_SPLIT_K, PYSIM_DATA_PARALLEL, PYSIM_STREAM_K},
              steps[] = {2 * row.stages + 1, 2 * row.stages + 1, 1, 3};
    const int parts[] = {1, row.stages, 1, 132 / (row.cluster_m * row.cluster_n)};
    for (int layout = 0; layout < 4; layout++) {
        Case c = {};
        int types[3];
        results(row.dtype, types);
        pysim_cuda_gemm &g = c.g;
        g = {17 * row.block_m - 3,
             12 * row.block_n - 5,
             (steps[layout] - 1) * row.block_k + 8,
             0,
             0,
             0,
             layout & 1,
             layout >> 1,
             row.dtype,
             types[0]};
        const auto pitch = [](int64_t columns) { return (columns + 15) / 16 * 16; };
        g.lda = pitch(g.trans_a ? g.m : g.k), g.ldb = pitch(g.trans_b ? g.k : g.n), g.ldc = g.n;
        c.s = {index, kinds[layout], parts[layout], layout & 1, 1 + layout, -1};
        c.e = {1, 0, nullptr, 0, -1, 1, nullptr, 0, nullptr};
        c.exact = true;
        run(c, row, mix(777u + (unsigned)(index + layout)));
    }
}

void check_row(int index, int every) {
    pysim_cuda_gemm_info row;
    pysim_cuda_gemm_at(index, &row);
    const int bm = row.block_m, bn = row.block_n, bk = row.block_k;
    const int ms[] = {1, bm - 1, bm, bm + 1, 2 * bm + 1}, ns[] = {1, bn - 1, bn, bn + 1, 2 * bn + 1};
    const int ks[] = {1, bk - 1, bk, bk + 1, row.stages * bk + bk / 2 + 1};
    int types[3];
    const int type_count = results(row.dtype, types);
    unsigned seed = 12345u + (unsigned)index;
    for (int layout = 0; layout < 4; layout++)
        for (int i = 0; i < 125; i++) {
            if ((i + i / 25 + layout) % every) continue;
            const int m = ms[i / 25], n = ns[i / 5 % 5], k = ks[i % 5];
            if (m < 1 || n < 1 || k < 1) continue;
            const unsigned r = mix(seed += 101);
            Case c = {};
            c.exact = r & 1;
            const int element = bytes_of[row.dtype], wide = 16 / element;
            const int pads[] = {0, 1, 3, wide};
            pysim_cuda_gemm &g = c.g;
            g = {m, n, k, 0, 0, 0, layout & 1, layout >> 1, row.dtype, types[r / 2 % type_count]};
            const auto pitch = [&](int64_t columns, unsigned choice) {
                return choice % 2 ? (columns + wide - 1) / wide * wide + pads[choice / 2 % 2 ? 0 : 3] : columns + pads[choice / 2 % 4];
            };
            g.lda = pitch(g.trans_a ? m : k, r >> 3), g.ldb = pitch(g.trans_b ? k : n, r >> 7), g.ldc = pitch(n, r >> 11);
            c.offset_a = r >> 14 & 1 ? (int)(r >> 15) % 3 : 0, c.offset_b = r >> 17 & 1 ? (int)(r >> 18) % 3 : 0,
            c.offset_c = r >> 20 & 1 ? 1 : 0;
            const int steps = (k + bk - 1) / bk, tiles = (int)tiles_of(g, row);
            const int kind = (int)(r >> 21) % 3; /* of residues: of the kernel in its place */
            c.s = {index, PYSIM_DATA_PARALLEL, 1, (int)(r >> 23 & 1), 1 + (int)(r >> 24) % 3, -1};
            if (kind == PYSIM_SPLIT_K && steps >= 2) c.s.decomposition = kind, c.s.splits = 2 + (int)(r >> 26) % (steps - 1);
            if (kind == PYSIM_STREAM_K && tiles * steps >= 2)
                c.s.decomposition = kind, c.s.splits = 2 + (int)(r >> 26) % (tiles * steps - 1);
            const unsigned q = mix(r + 17);
            c.e = {1, 0, nullptr, 0, -1, 1, nullptr, 0, nullptr};
            if (q & 1) c.e.alpha = q >> 8 & 7 ? -2 : 0, c.e.beta = q & 2 ? 1 : 0, c.bias = q & 4, c.scale = q & 8 && g.c_dtype != PYSIM_S32;
            if (g.c_dtype == PYSIM_S32) c.exact = true;
            if (q & 1) c.e.by_row = q >> 4 & 1, c.e.activation = activation_of(q >> 16, c.exact);
            c.poisoned = q >> 12 & 1 && element > 1; /* s8 and f8 have no infinity */
            if (run(c, row, r)) continue;
            /* once more with whole vectors along n and k, which leave the numbers of tiles and steps */
            g.n = (n + wide - 1) / wide * wide, g.k = (k + wide - 1) / wide * wide;
            g.lda = pitch(g.trans_a ? m : g.k, r >> 3), g.ldb = pitch(g.trans_b ? g.k : g.n, r >> 7), g.ldc = pitch(g.n, r >> 11);
            run(c, row, r);
        }
    if (!strcmp(row.family, "wgmma")) check_several(index, row);
}
}

int main(int argc, char **argv) {
    setbuf(stdout, nullptr);
    std::string only;
    int every = 1, part = 0, parts = 1;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--every") && i + 1 < argc && atoi(argv[i + 1]) > 0) every = atoi(argv[++i]);
        else if (!strcmp(argv[i], "--kernel") && i + 1 < argc) only = argv[++i];
        else if (!strcmp(argv[i], "--part") && i + 1 < argc && sscanf(argv[i + 1], "%d/%d", &part, &parts) == 2 && part >= 0 &&
                 part < parts)
            i++;
        else return printf("usage: check [--kernel SUBSTRING] [--every N] [--part I/P]\n"), 2;
    }
    if (!found_device()) return 77;
    int rows = 0, skipped = 0;
    for (int i = part; i < pysim_cuda_gemm_count(); i += parts) {
        pysim_cuda_gemm_info row;
        pysim_cuda_gemm_at(i, &row);
        if (!only.empty() && !strstr(row.name, only.c_str())) continue;
        if (pysim_cuda_available(PYSIM_GEMM, i) != PYSIM_OK) {
            printf("skip %s\n", pysim_cuda_last_error());
            skipped++;
            continue;
        }
        const long long before = failures, done = cases - refused;
        check_row(i, every);
        rows++;
        if (cases - refused == done) printf("none of its cases was computed: "), failures++;
        printf("%s %s\n", failures == before ? "ok  " : "FAIL", row.name);
    }
    printf("%lld cases on %d kernels, %lld failures; %lld cases refused, %d kernels skipped\n", cases - refused, rows, failures, refused,
           skipped);
    return failures || !rows ? 1 : 0;
}
