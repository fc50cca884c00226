/* SPDX-License-Identifier: Apache-2.0
 * How kernels are started, and how they find the shared memory that they are started with: on a device, or on the CPU by
 * emulated/block.cpp. */
#ifndef PYSIM_CUDA_LAUNCH_H
#define PYSIM_CUDA_LAUNCH_H
#include <cuda_runtime.h>

#include "pysim_cuda.h"

#ifdef PYSIM_EMULATED
#include <tuple>

#define PYSIM_DYNAMIC_SHARED(name) char *const name = pysim::emulated::dynamic_shared()
#else
#define PYSIM_DYNAMIC_SHARED(name) extern __shared__ __align__(128) char name[]
#endif

namespace pysim {

/* 10 major + minor of what device code is compiled for. A kernel that needs more is empty there, and abi/code.cu lets nobody launch it. */
#ifdef __CUDA_ARCH__
constexpr int CODE_CAPABILITY = __CUDA_ARCH__ / 10;
#else
constexpr int CODE_CAPABILITY = 1 << 20; /* the host's pass, and emulated/ */
#endif

/* Whether rows that nothing is planned with are built, too: ablations, and those that others replace (gemm/rows.h). They take a fifth of the time. */
#if defined(PYSIM_ABLATIONS) || defined(PYSIM_EMULATED)
constexpr bool ABLATIONS = true;
#else
constexpr bool ABLATIONS = false;
#endif

/* Whether device code has a kernel that needs a capability and that others replace, from `below` on and on `replaced_on` (gemm/rows.h; 0: nowhere). */
__host__ __device__ constexpr bool has_kernel(int capability, int below, int replaced_on) {
    return CODE_CAPABILITY >= capability && (ABLATIONS || ((!below || CODE_CAPABILITY < below) && CODE_CAPABILITY != replaced_on));
}

/* kernel(arguments...) on `grid` blocks of `threads` threads with `shared` bytes of dynamic shared memory. Returns what
 * cudaGetLastError() says after the launch. */
template <class... Parameters, class... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 threads, size_t shared, cudaStream_t stream, Arguments... arguments) {
#ifdef PYSIM_EMULATED
    (void)stream; /* work is done in the order of launches */
    struct Call {
        void (*kernel)(Parameters...);
        std::tuple<Parameters...> arguments;
    } call = {kernel, {arguments...}};
    const auto run = [](void *at) { std::apply(((Call *)at)->kernel, ((Call *)at)->arguments); };
    return emulated::launch((const void *)kernel, {run, &call, {grid.x, grid.y, grid.z}, {threads.x, threads.y, threads.z}, shared});
#else
    kernel<<<grid, threads, shared, stream>>>(arguments...);
    return cudaGetLastError();
#endif
}

/* Programmatic dependent launch (CUDA C++ Programming Guide): a kernel lets the next one of its stream begin, as far as that was launched so, which
 * then waits for all that was before it, but for its own preparations. */
__device__ inline void let_next_begin() {
#ifdef __CUDA_ARCH__
    if constexpr (CODE_CAPABILITY >= 90) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ inline void wait_for_previous() {
#ifdef __CUDA_ARCH__
    if constexpr (CODE_CAPABILITY >= 90) asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Whether the code that the current device runs has these two: that of an older capability, which a driver has translated, does not wait (abi/code.cu). */
bool begins_early();

/* `cluster` neighbouring blocks are a cluster; early: the kernel begins while the one before it ends. Emulated, neither is. */
struct LaunchOptions {
    int cluster = 1;
    bool early = false;
};
template <class... Parameters, class... Arguments>
cudaError_t launch_with(LaunchOptions options, void (*kernel)(Parameters...), dim3 grid, dim3 threads, size_t shared, cudaStream_t stream, Arguments... arguments) {
#ifndef PYSIM_EMULATED
    if (options.cluster > 1 || options.early) {
        cudaLaunchAttribute attributes[2] = {};
        unsigned count = 0;
        if (options.cluster > 1) {
            attributes[count].id = cudaLaunchAttributeClusterDimension;
            attributes[count++].val.clusterDim = {(unsigned)options.cluster, 1, 1};
        }
        if (options.early) {
            attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
            attributes[count++].val.programmaticStreamSerializationAllowed = 1;
        }
        cudaLaunchConfig_t config = {};
        config.gridDim = grid, config.blockDim = threads, config.dynamicSmemBytes = shared, config.stream = stream, config.attrs = attributes, config.numAttrs = count;
        return cudaLaunchKernelEx(&config, kernel, arguments...);
    }
#else
    (void)options;
#endif
    return launch(kernel, grid, threads, shared, stream, arguments...);
}

/* What the compiler made of a kernel, and how many blocks of so many threads and bytes of dynamic shared memory an SM holds. */
template <class Kernel> cudaError_t attributes_of(Kernel kernel, int threads, int shared, pysim_cuda_attributes *out) {
    cudaFuncAttributes found;
    cudaError_t error = cudaFuncGetAttributes(&found, kernel);
    if (error == cudaSuccess) error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    int blocks = 0;
    if (error == cudaSuccess) error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, shared);
    if (error == cudaSuccess)
        *out = {threads, found.numRegs, blocks, (int64_t)found.sharedSizeBytes + shared, (int64_t)found.localSizeBytes};
    return error;
}
}
#endif
