/* SPDX-License-Identifier: Apache-2.0
 * Device properties, device memory, and error messages. */
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "abi/status.h"

namespace pysim {
static thread_local char last_error[512];

pysim_status fail(pysim_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return status;
}

pysim_status check(cudaError_t error, const char *what) {
    if (error == cudaSuccess) return PYSIM_OK;
    cudaGetLastError();
    return fail(error == cudaErrorMemoryAllocation ? PYSIM_OUT_OF_MEMORY : PYSIM_DEVICE, "%s: %s", what, cudaGetErrorString(error));
}
}

using pysim::check;
using pysim::fail;

const char *pysim_cuda_last_error(void) { return pysim::last_error; }

pysim_status pysim_cuda_device_count(int32_t *count) {
    if (!count) return fail(PYSIM_BAD_ARGUMENT, "pysim_cuda_device_count: count is NULL");
    int found = 0;
    const pysim_status status = check(cudaGetDeviceCount(&found), "CUDA devices");
    *count = status == PYSIM_OK ? found : 0;
    return status;
}

pysim_status pysim_cuda_device_at(int32_t index, pysim_cuda_device *out) {
    int32_t count;
    if (!out) return fail(PYSIM_BAD_ARGUMENT, "pysim_cuda_device_at: out is NULL");
    pysim_status status = pysim_cuda_device_count(&count);
    if (status != PYSIM_OK) return status;
    if (index < 0 || index >= count) return fail(PYSIM_BAD_ARGUMENT, "device %d is not one of the %d that CUDA sees", index, count);
    cudaDeviceProp p;
    int clock = 0, memory_clock = 0, driver = 0, runtime = 0;
    status = check(cudaGetDeviceProperties(&p, index), "device properties");
    if (status == PYSIM_OK) status = check(cudaDeviceGetAttribute(&clock, cudaDevAttrClockRate, index), "device clock");
    if (status == PYSIM_OK) status = check(cudaDeviceGetAttribute(&memory_clock, cudaDevAttrMemoryClockRate, index), "memory clock");
    if (status == PYSIM_OK) status = check(cudaDriverGetVersion(&driver), "driver version");
    if (status == PYSIM_OK) status = check(cudaRuntimeGetVersion(&runtime), "runtime version");
    if (status != PYSIM_OK) return status;
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "%s", p.name);
    out->major = p.major, out->minor = p.minor, out->sms = p.multiProcessorCount;
    out->memory_bytes = (int64_t)p.totalGlobalMem, out->l2_bytes = p.l2CacheSize;
    out->shared_bytes_per_sm = (int64_t)p.sharedMemPerMultiprocessor, out->shared_bytes_per_block = (int64_t)p.sharedMemPerBlockOptin;
    out->registers_per_sm = p.regsPerMultiprocessor;
    out->threads_per_sm = p.maxThreadsPerMultiProcessor, out->blocks_per_sm = p.maxBlocksPerMultiProcessor;
    out->clock_khz = clock, out->memory_clock_khz = memory_clock, out->driver = driver, out->runtime = runtime;
    return PYSIM_OK;
}

pysim_status pysim_cuda_allocate(int64_t bytes, void **out) {
    if (!out) return fail(PYSIM_BAD_ARGUMENT, "pysim_cuda_allocate: out is NULL");
    if (bytes < 0) return fail(PYSIM_BAD_ARGUMENT, "pysim_cuda_allocate: bytes is %lld", (long long)bytes);
    *out = nullptr;
    return check(cudaMalloc(out, bytes ? (size_t)bytes : 1), "device memory");
}

pysim_status pysim_cuda_release(void *memory) { return check(cudaFree(memory), "device memory"); }

pysim_status pysim_cuda_copy(void *to, const void *from, int64_t bytes, int32_t direction, void *stream) {
    const cudaMemcpyKind kinds[] = {cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice};
    if (direction < PYSIM_TO_DEVICE || direction > PYSIM_ON_DEVICE)
        return fail(PYSIM_BAD_ARGUMENT, "direction is %d; expected 1 (to the device), 2 (to the host) or 3 (on the device)", direction);
    if (bytes < 0 || (bytes && (!to || !from)))
        return fail(PYSIM_BAD_ARGUMENT, "a copy of %lld bytes between %p and %p", (long long)bytes, from, to);
    const cudaStream_t on = (cudaStream_t)stream;
    const pysim_status status = check(cudaMemcpyAsync(to, from, (size_t)bytes, kinds[direction - 1], on), "copy");
    return status == PYSIM_OK ? check(cudaStreamSynchronize(on), "copy") : status;
}

pysim_status pysim_cuda_synchronize(void *stream) { return check(cudaStreamSynchronize((cudaStream_t)stream), "the device's work"); }
