/* SPDX-License-Identifier: Apache-2.0
 * The CUDA runtime of the emulated device: memory between inaccessible pages, and checks of launches. All calls are synchronous. */
#include "cuda_runtime.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <map>

#include "memory.h"

namespace pysim::emulated {
namespace {
enum { ALIGN = 256, DEFAULT_SHARED = 48 * 1024, MOST_SHARED = 227 * 1024 };

size_t page() {
    static const size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
    return bytes;
}
size_t whole_pages(size_t bytes) { return (bytes + page() - 1) / page() * page(); }

std::map<char *, size_t> &allocations() {
    static std::map<char *, size_t> all;
    return all;
}
std::map<const void *, int> &allowances() {
    static std::map<const void *, int> all;
    return all;
}
/* The pages that begin before `data`, an allocation of `bytes` bytes, and end behind it. */
char *pages_of(char *data, size_t bytes) { return data + (bytes + ALIGN - 1) / ALIGN * ALIGN - whole_pages(bytes + ALIGN); }
bool is_open = true;
cudaError_t last;

cudaError_t note(cudaError_t error) {
    if (error != cudaSuccess) last = error;
    return error;
}
}

char *map_pages(size_t bytes) {
    const size_t inside = whole_pages(bytes);
    char *all = (char *)mmap(nullptr, inside + 2 * page(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == (char *)MAP_FAILED) return nullptr;
    if (mprotect(all + page(), inside, PROT_READ | PROT_WRITE) != 0) return munmap(all, inside + 2 * page()), nullptr;
    return all + page();
}

void unmap_pages(char *pages, size_t bytes) { munmap(pages - page(), whole_pages(bytes) + 2 * page()); }

void open_memory(bool open) {
    if (open == is_open) return;
    for (const auto &[data, bytes] : allocations())
        if (mprotect(pages_of(data, bytes), whole_pages(bytes + ALIGN), open ? PROT_READ | PROT_WRITE : PROT_NONE) != 0)
            fault("the memory of the device cannot be %s", open ? "opened" : "closed");
    is_open = open;
}

void describe(const void *address, char *text, size_t size) {
    const char *const at = (const char *)address;
    snprintf(text, size, "%p, which is near no memory of the device (a null pointer, or a stack that overflowed?)", address);
    for (const auto &[data, bytes] : allocations()) {
        if (at >= data + bytes && at < data + bytes + ALIGN + page())
            snprintf(text, size, "a byte %zu behind the end of an allocation of %zu bytes", (size_t)(at - data - bytes), bytes);
        else if (at >= data && at < data + bytes)
            snprintf(text, size, "byte %zu of an allocation of %zu bytes before wait_for_previous()", (size_t)(at - data), bytes);
        else if (at < data && at + page() >= data)
            snprintf(text, size, "a byte %zu before the start of an allocation of %zu bytes", (size_t)(data - at), bytes);
    }
    const char *const first = dynamic_shared();
    if (at > first && at < first + MOST_SHARED + page()) snprintf(text, size, "byte %zu of dynamic shared memory", (size_t)(at - first));
}

cudaError_t allow_shared(const void *kernel, int bytes) {
    if (bytes < 0 || bytes > MOST_SHARED) return note(cudaErrorInvalidValue);
    allowances()[kernel] = bytes;
    return cudaSuccess;
}

cudaError_t launch(const void *kernel, const Launch &launch) {
    const auto allowance = allowances().find(kernel);
    const size_t allowed = allowance == allowances().end() ? (size_t)DEFAULT_SHARED : (size_t)max((int)DEFAULT_SHARED, allowance->second);
    if (launch.shared > allowed) return note(cudaErrorInvalidValue);
    const unsigned *const g = launch.grid, *const t = launch.threads;
    if (!g[0] || !g[1] || !g[2] || g[0] > 0x7fffffffu || g[1] > 65535 || g[2] > 65535) return note(cudaErrorInvalidConfiguration);
    if (!t[0] || !t[1] || !t[2] || t[0] > 1024 || t[1] > 1024 || t[2] > 64 || t[0] * t[1] * t[2] > 1024)
        return note(cudaErrorInvalidConfiguration);
    return note(run(launch) ? cudaSuccess : cudaErrorLaunchFailure);
}
}

using namespace pysim::emulated;

const char *cudaGetErrorString(cudaError_t error) {
    switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorLaunchFailure: return failure();
    case cudaErrorNotSupported: return "the emulated device cannot do this";
    }
    return "unknown error";
}
cudaError_t cudaGetLastError() {
    const cudaError_t error = last;
    last = cudaSuccess;
    return error;
}
cudaError_t cudaGetDeviceCount(int *count) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int *device) { return *device = 0, cudaSuccess; }

/* A Hopper with 4 SMs: every kernel can run, and blocks of persistent kernels have several tiles. */
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *out, int device) {
    if (device) return note(cudaErrorInvalidValue);
    *out = {};
    snprintf(out->name, sizeof out->name, "emulated on the CPU");
    out->major = 9, out->multiProcessorCount = 4, out->l2CacheSize = 1 << 20, out->regsPerMultiprocessor = 65536;
    out->maxThreadsPerMultiProcessor = 2048, out->maxBlocksPerMultiProcessor = 32, out->totalGlobalMem = (size_t)1 << 30;
    out->sharedMemPerMultiprocessor = 228 * 1024, out->sharedMemPerBlockOptin = MOST_SHARED;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device) {
    cudaDeviceProp p;
    const cudaError_t error = cudaGetDeviceProperties(&p, device);
    if (error != cudaSuccess) return error;
    switch (attribute) {
    case cudaDevAttrMultiProcessorCount: return *value = p.multiProcessorCount, cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor: return *value = p.major, cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor: return *value = p.minor, cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return *value = (int)p.sharedMemPerBlockOptin, cudaSuccess;
    default: return *value = 0, cudaSuccess; /* clock rates: none */
    }
}
cudaError_t cudaDriverGetVersion(int *version) { return *version = 0, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) { return *version = 0, cudaSuccess; }

cudaError_t cudaMalloc(void **out, size_t bytes) {
    const size_t room = whole_pages(bytes + ALIGN);
    char *const pages = map_pages(room);
    *out = nullptr;
    if (!pages) return note(cudaErrorMemoryAllocation);
    memset(pages, 0xff, room);
    char *const data = pages + room - (bytes + ALIGN - 1) / ALIGN * ALIGN;
    ASAN_POISON_MEMORY_REGION(pages, room);
    ASAN_UNPOISON_MEMORY_REGION(data, bytes);
    allocations()[data] = bytes;
    *out = data;
    return cudaSuccess;
}
cudaError_t cudaFree(void *memory) {
    if (!memory) return cudaSuccess;
    const auto found = allocations().find((char *)memory);
    if (found == allocations().end()) return note(cudaErrorInvalidValue);
    const size_t bytes = found->second, room = whole_pages(bytes + ALIGN);
    char *const pages = pages_of((char *)memory, bytes);
    ASAN_UNPOISON_MEMORY_REGION(pages, room);
    unmap_pages(pages, room);
    allocations().erase(found);
    return cudaSuccess;
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind) { return memmove(to, from, bytes), cudaSuccess; }
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t) {
    return cudaMemcpy(to, from, bytes, kind);
}
cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, cudaMemcpyKind) {
    for (size_t row = 0; row < height; row++) memmove((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
    return cudaSuccess;
}
cudaError_t cudaMemset(void *to, int byte, size_t bytes) { return memset(to, byte, bytes), cudaSuccess; }
cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t) { return cudaMemset(to, byte, bytes); }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t *event) { return *event = nullptr, note(cudaErrorNotSupported); }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return note(cudaErrorNotSupported); }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return note(cudaErrorNotSupported); }
cudaError_t cudaEventElapsedTime(float *, cudaEvent_t, cudaEvent_t) { return note(cudaErrorNotSupported); }
