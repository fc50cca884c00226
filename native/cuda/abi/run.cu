/* SPDX-License-Identifier: Apache-2.0
 * The ABI's entries: availability, attributes, workspace, run, reference and timing, for every kind of problem. */
#include "abi/arguments.h"
#include "abi/operation.h"

namespace pysim {
namespace {
pysim_status operation_of(int32_t kind, const Operation **of) {
    if (kind != PYSIM_CONV && kind != PYSIM_GEMM)
        return fail(PYSIM_BAD_ARGUMENT, "the problem's kind is %d; expected %d (convolution) or %d (product)", kind, PYSIM_CONV,
                    PYSIM_GEMM);
    *of = kind == PYSIM_CONV ? &convolutions : &products;
    return PYSIM_OK;
}
pysim_status operation_of(const pysim_cuda_problem *p, const Operation **of) {
    return p ? operation_of(p->kind, of) : fail(PYSIM_BAD_ARGUMENT, "the problem is NULL");
}
}
}

using namespace pysim;

pysim_status pysim_cuda_available(int32_t kind, int32_t kernel) {
    const Operation *of = nullptr;
    const pysim_status status = operation_of(kind, &of);
    return status == PYSIM_OK ? of->available(kernel) : status;
}

pysim_status pysim_cuda_attributes_of(const pysim_cuda_problem *p, int32_t kernel, pysim_cuda_attributes *out) {
    const Operation *of = nullptr;
    pysim_status status = operation_of(p, &of);
    if (status == PYSIM_OK && !out) status = fail(PYSIM_BAD_ARGUMENT, "%s: out is NULL", __func__);
    return status == PYSIM_OK ? of->attributes(p, kernel, out) : status;
}

pysim_status pysim_cuda_workspace_bytes(const pysim_cuda_problem *p, const pysim_cuda_schedule *s, const void *first, const void *second,
                                        int64_t *bytes) {
    const Operation *of = nullptr;
    pysim_status status = operation_of(p, &of);
    if (status == PYSIM_OK && !bytes) status = fail(PYSIM_BAD_ARGUMENT, "%s: bytes is NULL", __func__);
    return status == PYSIM_OK ? of->workspace_bytes({p, s, nullptr, first, second, nullptr, nullptr, 0, nullptr}, bytes) : status;
}

pysim_status pysim_cuda_run(const pysim_cuda_problem *p, const pysim_cuda_schedule *s, const pysim_cuda_epilogue *e, const void *first,
                            const void *second, void *result, void *workspace, int64_t workspace_bytes, void *stream) {
    const Operation *of = nullptr;
    const pysim_status status = operation_of(p, &of);
    return status == PYSIM_OK ? of->run({p, s, e, first, second, result, workspace, workspace_bytes, (cudaStream_t)stream}) : status;
}

pysim_status pysim_cuda_reference(const pysim_cuda_problem *p, const pysim_cuda_epilogue *e, const void *first, const void *second,
                                  void *result, void *stream) {
    const Operation *of = nullptr;
    const pysim_status status = operation_of(p, &of);
    return status == PYSIM_OK ? of->reference({p, nullptr, e, first, second, result, nullptr, 0, (cudaStream_t)stream}) : status;
}

pysim_status pysim_cuda_time(const pysim_cuda_problem *p, const pysim_cuda_schedule *s, const pysim_cuda_epilogue *e, const void *first,
                             const void *second, void *result, void *workspace, int64_t workspace_bytes, void *stream, int32_t warmups,
                             int32_t samples, double *seconds) {
    return time_runs([&] { return pysim_cuda_run(p, s, e, first, second, result, workspace, workspace_bytes, stream); },
                     (cudaStream_t)stream, warmups, samples, seconds);
}
