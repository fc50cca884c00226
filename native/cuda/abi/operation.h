/* SPDX-License-Identifier: Apache-2.0
 * The interface that products (abi/gemm.cu) and convolutions (abi/conv.cu) implement for the ABI's entries (abi/run.cu). */
#ifndef PYSIM_CUDA_OPERATION_H
#define PYSIM_CUDA_OPERATION_H
#include <cuda_runtime.h>

#include "pysim_cuda.h"

namespace pysim {

/* The arguments of a run. */
struct Call {
    const pysim_cuda_problem *problem;
    const pysim_cuda_schedule *schedule;
    const pysim_cuda_epilogue *epilogue;
    const void *first, *second;
    void *result, *workspace;
    int64_t workspace_bytes;
    cudaStream_t stream;
};

struct Operation {
    pysim_status (*available)(int32_t kernel);
    pysim_status (*attributes)(const pysim_cuda_problem *p, int32_t kernel, pysim_cuda_attributes *out);
    pysim_status (*workspace_bytes)(const Call &call, int64_t *bytes);
    pysim_status (*run)(const Call &call);
    pysim_status (*reference)(const Call &call); /* ignores schedule and workspace */
};
extern const Operation products, convolutions;

inline pysim_cuda_problem problem_of(const pysim_cuda_gemm &g) {
    pysim_cuda_problem p = {PYSIM_GEMM, {}};
    p.gemm = g;
    return p;
}
inline pysim_cuda_problem problem_of(const pysim_cuda_conv &c) {
    pysim_cuda_problem p = {PYSIM_CONV, {}};
    p.conv = c;
    return p;
}
}
#endif
