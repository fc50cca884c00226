/* SPDX-License-Identifier: Apache-2.0
 * An exported plan on a CPU: its test, its benchmark, and runs on files.
 *
 *     plan test                            against plain loops in double (plain.h), with and without a bias
 *     plan benchmark [SECONDS]             median time, beside the predicted one
 *     plan run FIRST SECOND RESULT [BIAS]  raw elements: input, filters and output of a convolution; A, B and C of a product
 *
 * To use the plan in a program: prepare the weights once, open it once, and call pysim_run_job as often as needed (native/pysim.h). */
#include "standalone/plain.h"

static void check(pysim_status status) {
    if (status == PYSIM_OK) return;
    fprintf(stderr, "%s\n", pysim_last_error());
    exit(3);
}

/* A plan with its weights and memory. */
typedef struct {
    void *job, *prepared, *workspace;
    int64_t workspace_bytes;
    const void *weights; /* as runs read them */
} opened;

static opened open_plan(const plan_element *weights) {
    opened o = {.weights = weights};
    int64_t prepared_bytes;
    o.job = plain_memory(pysim_job_bytes());
    check(pysim_open(&PLAN_PROBLEM, &PLAN_SCHEDULE, o.job, pysim_job_bytes()));
    check(pysim_workspace_bytes(&PLAN_PROBLEM, &PLAN_SCHEDULE, PLAN_THREADS, &o.workspace_bytes));
    check(pysim_prepared_bytes(&PLAN_PROBLEM, &PLAN_SCHEDULE, &prepared_bytes));
    o.workspace = plain_memory(o.workspace_bytes);
    if (prepared_bytes > 0) {
        o.weights = o.prepared = plain_memory(prepared_bytes);
        check(pysim_prepare(&PLAN_PROBLEM, &PLAN_SCHEDULE, weights, o.prepared, prepared_bytes));
    }
    return o;
}

static void run_plan(const opened *o, int32_t activation, const plan_element *first, const plan_result *bias, plan_result *result) {
    const pysim_epilogue epilogue = {.alpha = 1, .bias = bias, .activation = activation};
    check(pysim_run_job(o->job, &epilogue, PLAN_THREADS, first, o->weights, result, o->workspace, o->workspace_bytes, NULL));
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int64_t test(const opened *o, const plan_element *first, const plan_element *second, plan_result *bias, plan_result *result) {
    const plain_sizes sizes = plain_sizes_of();
    int64_t wrong = 0;
    for (int with_bias = 0; with_bias < 2; with_bias++) {
        memset(result, 0xff, (size_t)sizes.result * sizeof *result); /* NaN */
        run_plan(o, PYSIM_IDENTITY, first, with_bias ? bias : NULL, result);
        wrong += plain_check(first, second, with_bias ? bias : NULL, result);
    }
#ifdef PLAN_EPILOGUE
    plan_result *before = plain_memory(sizes.result * (int64_t)sizeof *before);
    memcpy(before, result, (size_t)sizes.result * sizeof *before);
    run_plan(o, PLAN_ACTIVATION, first, bias, result);
    wrong += plain_check_epilogue(before, result);
#endif
    return wrong;
}

/* Samples of at least 0.1 ms each, for so long: short ones fit between the times that others take from this core. */
static void benchmark(const opened *o, double budget, const plan_element *first, plan_result *result) {
    enum { MOST = 10000 };
    static double seconds[MOST];
    int count = 0, runs = 1;
    run_plan(o, PLAN_ACTIVATION, first, NULL, result);
    for (const double begin = now(); count < MOST && (count < 5 || now() - begin < budget);) {
        const double start = now();
        for (int i = 0; i < runs; i++) run_plan(o, PLAN_ACTIVATION, first, NULL, result);
        const double took = now() - start;
        if (took < 1e-4) runs *= 2; /* a warm-up */
        else seconds[count++] = took / runs;
    }
    plain_report(seconds, count);
}

int main(int count, char **words) {
    const char *what = count > 1 ? words[1] : "";
    const plain_sizes sizes = plain_sizes_of();
    const int64_t first_bytes = sizes.first * (int64_t)sizeof(plan_element), second_bytes = sizes.second * (int64_t)sizeof(plan_element),
                  result_bytes = sizes.result * (int64_t)sizeof(plan_result), bias_bytes = sizes.bias * (int64_t)sizeof(plan_result);
    plan_result *result = plain_memory(result_bytes);
    if (strcmp(what, "run") == 0 && (count == 5 || count == 6)) {
        plan_element *first = plain_read(words[2], first_bytes), *second = plain_read(words[3], second_bytes);
        plan_result *bias = count == 6 ? plain_read(words[5], bias_bytes) : NULL;
        const opened o = open_plan(second);
        run_plan(&o, PLAN_ACTIVATION, first, bias, result);
        plain_write(words[4], result, result_bytes);
        return 0;
    }
    if ((strcmp(what, "test") == 0 && count == 2) || (strcmp(what, "benchmark") == 0 && count <= 3)) {
        plan_element *first = plain_memory(first_bytes), *second = plain_memory(second_bytes);
        plan_result *bias = plain_memory(bias_bytes);
        plain_fill(first, sizes.first, 1), plain_fill(second, sizes.second, 2);
        for (int64_t i = 0; i < sizes.bias; i++) bias[i] = (plan_result)(i % 7 - 3);
        const opened o = open_plan(second);
        if (what[0] == 't') return test(&o, first, second, bias, result) != 0;
        benchmark(&o, count == 3 ? atof(words[2]) : 1, first, result);
        return 0;
    }
    fprintf(stderr, "usage: %s test | benchmark [SECONDS] | run FIRST SECOND RESULT [BIAS]\n", words[0]);
    return 2;
}
