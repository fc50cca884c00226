/* SPDX-License-Identifier: Apache-2.0
 * Argument checks and timing that products (abi/gemm.cu) and convolutions (abi/conv.cu) share. */
#ifndef PYSIM_CUDA_ARGUMENTS_H
#define PYSIM_CUDA_ARGUMENTS_H
#include <initializer_list>

#include "core/limits.h"
#include "abi/status.h"

namespace pysim {

enum { ALIGN = 256 }; /* bytes, of each part of a workspace */

struct DtypeFact {
    const char *name;
    int bytes;
};
extern const DtypeFact dtypes[9]; /* by pysim_dtype */

inline int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

/* Bytes of a partial sum. */
inline int sum_bytes(int32_t dtype) { return dtype == PYSIM_F64 ? 8 : 4; }

/* Whether products of `dtype` can be stored as `result`. */
pysim_status check_dtypes(int32_t dtype, int32_t result);
pysim_status check_decomposition(int32_t decomposition, int32_t splits, int32_t along_n, int32_t group);
pysim_status check_epilogue(int32_t result, const pysim_cuda_epilogue *e);
pysim_status check_prologue(const pysim_cuda_prologue *p);
/* Bytes of one value of an epilogue's scale. */
inline int scale_bytes(int32_t result) { return result == PYSIM_F64 ? 8 : 4; }

/* The first three entries must not be NULL. The first entry (the result) and the last (the workspace) are written and must not overlap others.
 * `element`: required alignment in bytes. */
struct Memory {
    const char *name;
    const void *data;
    int64_t bytes;
    int element;
};
pysim_status check_memory(std::initializer_list<Memory> all);
pysim_status check_workspace(int64_t needed, const void *workspace, int64_t bytes);

/* Multiprocessors of the current device. Fails unless the device has the capability that `kernel` needs (`exact`: no other) and this build has its code
 * for the device (abi/code.cu). below, replaced_on: see gemm/rows.h. */
pysim_status sms_of(const char *kernel, int32_t capability, bool exact, int below, int replaced_on, int *sms);

/* Seconds of each of `samples` runs, between two events, after `warmups` untimed runs. */
template <class Run> pysim_status time_runs(Run run, cudaStream_t stream, int32_t warmups, int32_t samples, double *seconds) {
    if (warmups < 0 || samples < 1 || !seconds)
        return fail(PYSIM_BAD_ARGUMENT, "warmups is %d and samples is %d; expected at least 0 and at least 1, and seconds not NULL",
                    warmups, samples);
    cudaEvent_t begin, end;
    pysim_status status = check(cudaEventCreate(&begin), "an event");
    if (status != PYSIM_OK) return status;
    status = check(cudaEventCreate(&end), "an event");
    if (status != PYSIM_OK) {
        cudaEventDestroy(begin);
        return status;
    }
    for (int32_t i = -warmups; i < samples && status == PYSIM_OK; i++) {
        float milliseconds = 0;
        status = check(cudaEventRecord(begin, stream), "an event");
        if (status == PYSIM_OK) status = run();
        if (status == PYSIM_OK) status = check(cudaEventRecord(end, stream), "an event");
        if (status == PYSIM_OK) status = check(cudaEventSynchronize(end), "the timed work");
        if (status == PYSIM_OK) status = check(cudaEventElapsedTime(&milliseconds, begin, end), "an event");
        if (i >= 0) seconds[i] = milliseconds * 1e-3;
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return status;
}
}
#endif
