/* SPDX-License-Identifier: Apache-2.0
 * The plain loops that an exported plan is tested against, in double, and the test's operands and tolerances:
 * |got - want| <= gamma_k(unit) growth |A||B| + rounding of the result, or rms times the results' root mean square (pysim/check/bounds.py). */
#ifndef PLAN_PLAIN_H
#define PLAN_PLAIN_H
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <plan.h>

/* Elements of the operands; `sums`: products of a result. */
typedef struct {
    int64_t first, second, result, bias, sums;
} plain_sizes;

/* A result and the sum of its products' absolute values. */
typedef struct {
    double sum, scale;
} plain_result;

#if PLAN_IS_CONV
static inline int64_t plain_rows(void) {
    const pysim_conv *c = &PLAN_CONV;
    return (c->height + c->pad_top + c->pad_bottom - c->dilation_h * (c->kernel_h - 1) - 1) / c->stride_h + 1;
}
static inline int64_t plain_columns(void) {
    const pysim_conv *c = &PLAN_CONV;
    return (c->width + c->pad_left + c->pad_right - c->dilation_w * (c->kernel_w - 1) - 1) / c->stride_w + 1;
}
static inline plain_sizes plain_sizes_of(void) {
    const pysim_conv *c = &PLAN_CONV;
    const int64_t taps = c->channels / c->groups * c->kernel_h * c->kernel_w;
    const plain_sizes sizes = {c->batch * c->channels * c->height * c->width, c->filters * taps,
                               c->batch * c->filters * plain_rows() * plain_columns(), c->filters, taps};
    return sizes;
}
/* Result i; *line is its filter. Channels lie in blocks: [batch][channels / block][height][width][block]. */
static inline plain_result plain_at(int64_t i, const plan_element *x, const plan_element *w, int64_t *line) {
    const pysim_conv *c = &PLAN_CONV;
    const int64_t in = c->input_block > 1 ? c->input_block : 1, out = c->output_block > 1 ? c->output_block : 1, rows = plain_rows(),
                  columns = plain_columns(), channels = c->channels / c->groups, pixel = i / out;
    const int64_t q = pixel % columns, p = pixel / columns % rows, block = pixel / columns / rows;
    const int64_t f = block % (c->filters / out) * out + i % out, n = block / (c->filters / out),
                  first = f / (c->filters / c->groups) * channels;
    plain_result result = {0, 0};
    for (int64_t k = 0; k < channels; k++)
        for (int64_t r = 0; r < c->kernel_h; r++)
            for (int64_t s = 0; s < c->kernel_w; s++) {
                const int64_t y = p * c->stride_h - c->pad_top + r * c->dilation_h, at = q * c->stride_w - c->pad_left + s * c->dilation_w;
                const int64_t from = (n * c->channels + (first + k) / in * in) * c->height;
                if (y < 0 || y >= c->height || at < 0 || at >= c->width) continue;
                const double product = plan_value(x[(from + y * in) * c->width + at * in + (first + k) % in]) *
                                       plan_value(w[PLAN_FILTER(f, k, r, s, channels, c->kernel_h, c->kernel_w)]);
                result.sum += product, result.scale += fabs(product);
            }
    *line = f;
    return result;
}
#else
static inline plain_sizes plain_sizes_of(void) {
    const plain_sizes sizes = {PLAN_GEMM.m * PLAN_GEMM.k, PLAN_GEMM.k * PLAN_GEMM.n, PLAN_GEMM.m * PLAN_GEMM.n, PLAN_GEMM.n, PLAN_GEMM.k};
    return sizes;
}
/* Result i; *line is its column. */
static inline plain_result plain_at(int64_t i, const plan_element *a, const plan_element *b, int64_t *line) {
    const pysim_gemm *g = &PLAN_GEMM;
    const int64_t row = i / g->n, column = i % g->n;
    plain_result result = {0, 0};
    for (int64_t k = 0; k < g->k; k++) {
        const double product = plan_value(a[g->trans_a ? k * g->lda + row : row * g->lda + k]) *
                               plan_value(b[g->trans_b ? column * g->ldb + k : k * g->ldb + column]);
        result.sum += product, result.scale += fabs(product);
    }
    *line = column;
    return result;
}
#endif

static inline void *plain_memory(int64_t bytes) {
    void *memory = NULL;
    if (posix_memalign(&memory, 64, (size_t)(bytes > 0 ? bytes : 1))) {
        fprintf(stderr, "no memory for %lld bytes\n", (long long)bytes);
        exit(3);
    }
    return memory;
}

/* Pseudo-random numbers in [-1, 1), the same in every run. */
static inline void plain_fill(plan_element *x, int64_t count, uint64_t seed) {
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        x[i] = plan_rounded((double)(seed >> 40) / (1 << 23) - 1);
    }
}

/* Number of results that are further off than allowed; the first is reported. NaN, which the test writes to all results beforehand, is off. */
static inline int64_t plain_check(const plan_element *first, const plan_element *second, const plan_result *bias, const plan_result *got) {
    const plain_sizes sizes = plain_sizes_of();
    const double u = (double)sizes.sums * PLAN_GROWTH * PLAN_UNIT, gamma = u < 0.5 ? u / (1 - u) : 2 * u;
    plain_result *want = (plain_result *)plain_memory(sizes.result * (int64_t)sizeof *want);
    double squares = 0, worst = 0;
    int64_t wrong = 0;
    for (int64_t i = 0; i < sizes.result; i++) {
        int64_t line;
        want[i] = plain_at(i, first, second, &line);
        if (bias) want[i].sum += plan_result_value(bias[line]), want[i].scale += fabs(plan_result_value(bias[line]));
        squares += want[i].sum * want[i].sum / (double)sizes.result;
    }
    for (int64_t i = 0; i < sizes.result; i++) {
        const double value = plan_result_value(got[i]), off = fabs(value - want[i].sum);
        const double allowed = fmax(gamma * want[i].scale + PLAN_RESULT_UNIT * fabs(want[i].sum), PLAN_RMS * sqrt(squares));
        if (!(off <= allowed) && !wrong++)
            printf("result %lld is %.9g, expected %.9g within %.1e\n", (long long)i, value, want[i].sum, allowed);
        worst = fmax(worst, off);
    }
    printf("%s: %lld of %lld results wrong, largest error %.1e of the results' root mean square\n", wrong ? "FAILED" : "passed",
           (long long)wrong, (long long)sizes.result, squares > 0 ? worst / sqrt(squares) : worst);
    free(want);
    return wrong;
}

#ifdef PLAN_EPILOGUE
/* The same for the epilogue alone: f of the results without it, within 1e-5 of the largest. */
static inline int64_t plain_check_epilogue(const plan_result *before, const plan_result *got) {
    const int64_t count = plain_sizes_of().result;
    double largest = 0;
    int64_t wrong = 0;
    for (int64_t i = 0; i < count; i++) largest = fmax(largest, fabs(plan_epilogue(plan_result_value(before[i]))));
    for (int64_t i = 0; i < count; i++) {
        const double want = plan_epilogue(plan_result_value(before[i])), value = plan_result_value(got[i]);
        if (!(fabs(value - want) <= PLAN_EPILOGUE_UNIT * largest) && !wrong++)
            printf("%s of result %lld is %.9g, expected %.9g\n", PLAN_EPILOGUE, (long long)i, value, want);
    }
    printf("%s: %lld of %lld epilogues wrong\n", wrong ? "FAILED" : "passed", (long long)wrong, (long long)count);
    return wrong;
}
#endif

static inline int plain_order(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

/* Sorts the seconds of `count` runs, and prints their median beside the prediction. */
static inline void plain_report(double *seconds, int count) {
    qsort(seconds, (size_t)count, sizeof *seconds, plain_order);
    const double median = seconds[count / 2];
    printf("%.6g seconds (median of %d; quartiles %.4g, %.4g), %.1f GFLOP/s; predicted %.4g, %.2f of it\n", median, count,
           seconds[count / 4], seconds[count * 3 / 4], PLAN_FLOPS / median / 1e9, PLAN_SECONDS, PLAN_SECONDS / median);
}

/* A whole file of `bytes` bytes. */
static inline void *plain_read(const char *name, int64_t bytes) {
    void *memory = plain_memory(bytes + 1);
    FILE *file = fopen(name, "rb");
    const size_t got = file ? fread(memory, 1, (size_t)bytes + 1, file) : 0;
    if (file) fclose(file);
    if ((int64_t)got != bytes) {
        fprintf(stderr, "%s should be a file of %lld bytes\n", name, (long long)bytes);
        exit(2);
    }
    return memory;
}
static inline void plain_write(const char *name, const void *memory, int64_t bytes) {
    FILE *file = fopen(name, "wb");
    if (!file || fwrite(memory, 1, (size_t)bytes, file) != (size_t)bytes || fclose(file)) {
        fprintf(stderr, "%s cannot be written\n", name);
        exit(2);
    }
}
#endif
