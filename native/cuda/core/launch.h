/* SPDX-License-Identifier: Apache-2.0
 * Kernel launches and dynamic shared memory, on a device or emulated on the CPU (emulated/block.cpp). */
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

/* Compute capability of the device code, 10 major + minor. A kernel that needs a higher one has an empty body there, and abi/code.cu refuses to launch it. */
#ifdef __CUDA_ARCH__
constexpr int CODE_CAPABILITY = __CUDA_ARCH__ / 10;
#else
constexpr int CODE_CAPABILITY = 1 << 20; /* the host's pass, and emulated/ */
#endif

/* Whether the build has rows that no plan uses: ablations and replaced rows (gemm/rows.h). They are a fifth of the compile time. */
#if defined(PYSIM_ABLATIONS) || defined(PYSIM_EMULATED)
constexpr bool ABLATIONS = true;
#else
constexpr bool ABLATIONS = false;
#endif

/* Whether this device code has a kernel with these columns of gemm/rows.h. */
__host__ __device__ constexpr bool has_kernel(int capability, int below, int replaced_on) {
    return CODE_CAPABILITY >= capability && (ABLATIONS || ((!below || CODE_CAPABILITY < below) && CODE_CAPABILITY != replaced_on));
}

#ifdef PYSIM_EMULATED
template <class... Parameters, class... Arguments>
cudaError_t emulate(emulated::BeforeWait before, void (*kernel)(Parameters...), dim3 grid, dim3 threads, size_t shared,
                    Arguments... arguments) {
    struct Call {
        void (*kernel)(Parameters...);
        std::tuple<Parameters...> arguments;
    } call = {kernel, {arguments...}};
    const auto run = [](void *at) { std::apply(((Call *)at)->kernel, ((Call *)at)->arguments); };
    return emulated::launch((const void *)kernel,
                            {run, &call, {grid.x, grid.y, grid.z}, {threads.x, threads.y, threads.z}, shared, before});
}
#endif

/* kernel(arguments...) on `grid` blocks of `threads` threads with `shared` bytes of dynamic shared memory. Returns what
 * cudaGetLastError() says after the launch. */
template <class... Parameters, class... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 threads, size_t shared, cudaStream_t stream, Arguments... arguments) {
#ifdef PYSIM_EMULATED
    (void)stream; /* work is done in the order of launches */
    return emulate(emulated::BeforeWait::ALL, kernel, grid, threads, shared, arguments...);
#else
    kernel<<<grid, threads, shared, stream>>>(arguments...);
    return cudaGetLastError();
#endif
}

/* Programmatic dependent launch (CUDA C++ Programming Guide): after launch_dependents() in all blocks, the next kernel of the stream may start if it
 * was launched with LaunchOptions::early; that kernel calls wait_for_previous() before it touches memory that earlier kernels wrote. */
__device__ inline void launch_dependents() {
#ifdef __CUDA_ARCH__
    if constexpr (CODE_CAPABILITY >= 90) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ inline void wait_for_previous() {
#ifdef PYSIM_EMULATED
    emulated::wait_for_previous();
#endif
#ifdef __CUDA_ARCH__
    if constexpr (CODE_CAPABILITY >= 90) asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Whether the code that the current device runs has both calls. Code below 9.0, which the driver may have compiled from PTX, has none (abi/code.cu). */
bool has_dependent_launch();

/* cluster: blocks of a cluster along x; early: the kernel may start before the previous one ends; parts: blocks of a cluster along z; elder: before it waits,
 * an early kernel touches memory that the previous one, which waited before it let this one start, does not write. Emulation has no clusters, starts all
 * kernels late, and refuses what they touch too early. */
struct LaunchOptions {
    int cluster = 1;
    bool early = false;
    int parts = 1;
    bool elder = false;
};
template <class... Parameters, class... Arguments>
cudaError_t launch_with(LaunchOptions options, void (*kernel)(Parameters...), dim3 grid, dim3 threads, size_t shared, cudaStream_t stream,
                        Arguments... arguments) {
#ifndef PYSIM_EMULATED
    /* larger clusters are not possible on every GPU with clusters, and a kernel must allow them */
    constexpr int PORTABLE_CLUSTER_BLOCKS = 8;
    if (options.cluster * options.parts > PORTABLE_CLUSTER_BLOCKS) {
        const cudaError_t error = cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
        if (error != cudaSuccess) return error;
    }
    if (options.cluster * options.parts > 1 || options.early) {
        cudaLaunchAttribute attributes[2] = {};
        unsigned count = 0;
        if (options.cluster * options.parts > 1) {
            attributes[count].id = cudaLaunchAttributeClusterDimension;
            attributes[count++].val.clusterDim = {(unsigned)options.cluster, 1, (unsigned)options.parts};
        }
        if (options.early) {
            attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
            attributes[count++].val.programmaticStreamSerializationAllowed = 1;
        }
        cudaLaunchConfig_t config = {};
        config.gridDim = grid, config.blockDim = threads, config.dynamicSmemBytes = shared, config.stream = stream,
        config.attrs = attributes, config.numAttrs = count;
        return cudaLaunchKernelEx(&config, kernel, arguments...);
    }
    return launch(kernel, grid, threads, shared, stream, arguments...);
#else
    (void)stream;
    using emulated::BeforeWait;
    const auto before = !options.early ? BeforeWait::ALL : options.elder ? BeforeWait::ELDER : BeforeWait::NOTHING;
    return emulate(before, kernel, grid, threads, shared, arguments...);
#endif
}

/* A kernel's registers and memory, and its blocks per SM with `threads` threads and `shared` bytes of dynamic shared memory. */
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
