/* SPDX-License-Identifier: Apache-2.0
 * An exported plan on a GPU: its test, its benchmark, and runs on files.
 *
 *     plan test                            against plain loops in double (plain.h), with and without a bias
 *     plan benchmark [SAMPLES]             median device time, beside the predicted one
 *     plan run FIRST SECOND RESULT [BIAS]  raw elements: input, filters and output of a convolution; A, B and C of a product
 *
 * To use the plan in a program: call pysim_cuda_run on device memory and a stream (native/pysim_cuda.h). */
#include "standalone/plain.h"

namespace {

void check(pysim_status status) {
    if (status == PYSIM_OK) return;
    fprintf(stderr, "%s\n", pysim_cuda_last_error());
    exit(3);
}

/* Device memory. */
template <class T> T *on_device(int64_t count) {
    void *memory = nullptr;
    check(pysim_cuda_allocate((count > 0 ? count : 1) * (int64_t)sizeof(T), &memory));
    return (T *)memory;
}
template <class T> T *copied(const T *from, int64_t count) {
    T *to = on_device<T>(count);
    check(pysim_cuda_copy(to, from, count * (int64_t)sizeof(T), PYSIM_TO_DEVICE, nullptr));
    return to;
}

struct Plan {
    plan_element *first, *second;
    plan_result *bias, *result;
    void *workspace;
    int64_t workspace_bytes;
    Plan(const plan_element *a, const plan_element *b, const plan_result *c) {
        const plain_sizes sizes = plain_sizes_of();
        first = copied(a, sizes.first), second = copied(b, sizes.second), bias = copied(c, sizes.bias);
        result = on_device<plan_result>(sizes.result);
        check(pysim_cuda_workspace_bytes(&PLAN_PROBLEM, &PLAN_SCHEDULE, first, second, &workspace_bytes));
        workspace = on_device<char>(workspace_bytes);
    }
    static pysim_cuda_epilogue epilogue(int activation, const void *bias) {
        pysim_cuda_epilogue e = {};
        e.alpha = 1, e.bias = bias, e.activation = activation;
        return e;
    }
    /* Copies the result to `to`, which holds its contents before the run. */
    void run(int activation, bool with_bias, plan_result *to) const {
        const int64_t bytes = plain_sizes_of().result * (int64_t)sizeof *to;
        const pysim_cuda_epilogue e = epilogue(activation, with_bias ? bias : nullptr);
        check(pysim_cuda_copy(result, to, bytes, PYSIM_TO_DEVICE, nullptr));
        check(pysim_cuda_run(&PLAN_PROBLEM, &PLAN_SCHEDULE, &e, first, second, result, workspace, workspace_bytes, nullptr));
        check(pysim_cuda_copy(to, result, bytes, PYSIM_TO_HOST, nullptr));
        check(pysim_cuda_synchronize(nullptr));
    }
};

int64_t test(const Plan &plan, const plan_element *first, const plan_element *second, const plan_result *bias, plan_result *result) {
    const size_t bytes = (size_t)plain_sizes_of().result * sizeof *result;
    int64_t wrong = 0;
    for (const bool with_bias : {false, true}) {
        memset((void *)result, 0xff, bytes); /* NaN */
        plan.run(PYSIM_IDENTITY, with_bias, result);
        wrong += plain_check(first, second, with_bias ? bias : nullptr, result);
    }
#ifdef PLAN_EPILOGUE
    plan_result *before = (plan_result *)plain_memory((int64_t)bytes);
    memcpy((void *)before, (const void *)result, bytes);
    plan.run(PLAN_ACTIVATION, true, result);
    wrong += plain_check_epilogue(before, result);
#endif
    return wrong;
}
}

int main(int count, char **words) {
    const char *what = count > 1 ? words[1] : "";
    const plain_sizes sizes = plain_sizes_of();
    const int64_t first_bytes = sizes.first * (int64_t)sizeof(plan_element), second_bytes = sizes.second * (int64_t)sizeof(plan_element),
                  result_bytes = sizes.result * (int64_t)sizeof(plan_result), bias_bytes = sizes.bias * (int64_t)sizeof(plan_result);
    plan_result *result = (plan_result *)plain_memory(result_bytes);
    if (!strcmp(what, "run") && (count == 5 || count == 6)) {
        const auto *first = (plan_element *)plain_read(words[2], first_bytes), *second = (plan_element *)plain_read(words[3], second_bytes);
        const auto *bias = (plan_result *)(count == 6 ? plain_read(words[5], bias_bytes) : plain_memory(bias_bytes));
        Plan(first, second, bias).run(PLAN_ACTIVATION, count == 6, result);
        plain_write(words[4], result, result_bytes);
        return 0;
    }
    if ((!strcmp(what, "test") && count == 2) || (!strcmp(what, "benchmark") && count <= 3)) {
        auto *first = (plan_element *)plain_memory(first_bytes), *second = (plan_element *)plain_memory(second_bytes);
        auto *bias = (plan_result *)plain_memory(bias_bytes);
        plain_fill(first, sizes.first, 1), plain_fill(second, sizes.second, 2);
        for (int64_t i = 0; i < sizes.bias; i++) bias[i] = (plan_result)(float)(i % 7 - 3);
        const Plan plan(first, second, bias);
        if (what[0] == 't') return test(plan, first, second, bias, result) != 0;
        const int samples = count == 3 ? atoi(words[2]) : 100;
        double *seconds = (double *)plain_memory((samples > 0 ? samples : 1) * (int64_t)sizeof *seconds);
        const pysim_cuda_epilogue e = Plan::epilogue(PLAN_ACTIVATION, nullptr);
        check(pysim_cuda_time(&PLAN_PROBLEM, &PLAN_SCHEDULE, &e, plan.first, plan.second, plan.result, plan.workspace, plan.workspace_bytes,
                              nullptr, 10, samples, seconds));
        plain_report(seconds, samples);
        return 0;
    }
    fprintf(stderr, "usage: %s test | benchmark [SAMPLES] | run FIRST SECOND RESULT [BIAS]\n", words[0]);
    return 2;
}
