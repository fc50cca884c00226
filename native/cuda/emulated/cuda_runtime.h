/* SPDX-License-Identifier: Apache-2.0
 * Stands in for CUDA's header of this name when kernels are compiled for the CPU: the keywords, vector types, the intrinsics that the
 * kernels use, and the runtime functions that the library calls. Semantics: CUDA C++ Programming Guide, "C++ Language Extensions", and
 * CUDA Runtime API. Anything else does not compile: add it when a kernel needs it.
 *
 * __shared__ is thread_local: each launch runs in its own OS thread, and blocks run one at a time, so its copy is the running block's. */
#ifndef PYSIM_CUDA_EMULATED_RUNTIME_H
#define PYSIM_CUDA_EMULATED_RUNTIME_H
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <type_traits>

#include "block.h"

#define __global__
#define __device__
#define __host__
#define __shared__ thread_local
#define __constant__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) alignas(bytes)

#define PYSIM_VECTORS(T, name, two, four)                              \
    struct alignas(two) name##2 { T x, y; };                           \
    struct name##3 { T x, y, z; };                                     \
    struct alignas(four) name##4 { T x, y, z, w; };                    \
    inline name##2 make_##name##2(T x, T y) { return {x, y}; }         \
    inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; } \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
PYSIM_VECTORS(float, float, 8, 16)
PYSIM_VECTORS(double, double, 16, 16)
PYSIM_VECTORS(int, int, 8, 16)
PYSIM_VECTORS(unsigned, uint, 8, 16)
PYSIM_VECTORS(short, short, 4, 8)
PYSIM_VECTORS(unsigned short, ushort, 4, 8)
PYSIM_VECTORS(signed char, char, 2, 4)
PYSIM_VECTORS(unsigned char, uchar, 2, 4)
PYSIM_VECTORS(long long, longlong, 16, 16)
PYSIM_VECTORS(unsigned long long, ulonglong, 16, 16)
#undef PYSIM_VECTORS

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;
constexpr int warpSize = 32;

/* ---- the runtime (runtime.cpp) ---- */
enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorLaunchFailure = 719,
    cudaErrorNotSupported = 801
};
enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault };
enum cudaDeviceAttr {
    cudaDevAttrClockRate = 13,
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrMemoryClockRate = 36,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76,
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8, cudaFuncAttributePreferredSharedMemoryCarveout = 9 };
using cudaStream_t = struct CUstream_st *;
using cudaEvent_t = struct CUevent_st *;
struct cudaDeviceProp {
    char name[256];
    int major, minor, multiProcessorCount, l2CacheSize, regsPerMultiprocessor, maxThreadsPerMultiProcessor, maxBlocksPerMultiProcessor;
    size_t totalGlobalMem, sharedMemPerMultiprocessor, sharedMemPerBlockOptin;
};
struct cudaFuncAttributes {
    size_t sharedSizeBytes, localSizeBytes;
    int numRegs;
};

const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *out, int device);
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaRuntimeGetVersion(int *version);
/* Aligned to 256 bytes. The end, rounded up to 256, is at an inaccessible page; under ASan the bytes in between are poisoned. */
cudaError_t cudaMalloc(void **out, size_t bytes);
template <class T> cudaError_t cudaMalloc(T **out, size_t bytes) { return cudaMalloc((void **)out, bytes); }
cudaError_t cudaFree(void *memory);
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream = nullptr);
cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, cudaMemcpyKind kind);
cudaError_t cudaMemset(void *to, int byte, size_t bytes);
cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t stream = nullptr);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaDeviceSynchronize();
/* Events have no clock: cudaErrorNotSupported. */
cudaError_t cudaEventCreate(cudaEvent_t *event);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t begin, cudaEvent_t end);

namespace pysim::emulated {
cudaError_t allow_shared(const void *kernel, int bytes);
/* Checks the limits that a device checks, then runs `launch`. */
cudaError_t launch(const void *kernel, const Launch &launch);
}
template <class F> cudaError_t cudaFuncSetAttribute(F *kernel, cudaFuncAttribute attribute, int value) {
    return attribute == cudaFuncAttributeMaxDynamicSharedMemorySize ? pysim::emulated::allow_shared((const void *)kernel, value)
                                                                    : cudaSuccess;
}
/* Registers and the like of device code are unknown here. */
template <class F> cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *, F *) { return cudaErrorNotSupported; }
template <class F> cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *, F *, int, size_t) { return cudaErrorNotSupported; }

/* ---- intrinsics ---- */
template <class A, class B> constexpr std::common_type_t<A, B> min(A a, B b) {
    const std::common_type_t<A, B> x = a, y = b;
    return y < x ? y : x;
}
template <class A, class B> constexpr std::common_type_t<A, B> max(A a, B b) {
    const std::common_type_t<A, B> x = a, y = b;
    return x < y ? y : x;
}

inline void __syncthreads() { pysim::emulated::wait_block(0, 0); }
inline void __syncwarp(unsigned mask = 0xffffffffu) { pysim::emulated::wait_warp(mask); }
inline void __threadfence() {}
inline void __threadfence_block() {}

template <class T> T __ldg(const T *from) { return *from; }
template <class T> T __ldcg(const T *from) { return *from; }
template <class T> T __ldcs(const T *from) { return *from; }
template <class T> void __stcg(T *to, T value) { *to = value; }
template <class T> void __stcs(T *to, T value) { *to = value; }

/* Threads switch only at barriers, so plain accesses are atomic. */
template <class T> T pysim_exchange(T *at, T value) {
    const T old = *at;
    *at = value;
    return old;
}
template <class T> T atomicAdd(T *at, std::common_type_t<T> value) { return pysim_exchange(at, T(*at + value)); }
template <class T> T atomicMin(T *at, std::common_type_t<T> value) { return pysim_exchange(at, min(*at, value)); }
template <class T> T atomicMax(T *at, std::common_type_t<T> value) { return pysim_exchange(at, max(*at, value)); }
template <class T> T atomicExch(T *at, std::common_type_t<T> value) { return pysim_exchange(at, value); }
template <class T> T atomicCAS(T *at, std::common_type_t<T> expected, std::common_type_t<T> value) {
    return pysim_exchange(at, *at == expected ? value : *at);
}

/* The value of lane `source` of the warp. */
template <class T> T pysim_shuffle(unsigned mask, T value, int source) {
    pysim::emulated::exchange(mask, value, [&](auto given) { value = given(source); });
    return value;
}
/* Each segment of `width` lanes acts as a separate warp; a lane that would read outside its segment keeps its value. */
template <class T> T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
    return pysim_shuffle(mask, value, (pysim::emulated::lane() & -width) + (from & (width - 1)));
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
    const int own = pysim::emulated::lane(), from = own ^ bits; /* may be in an earlier segment, but not in a later one */
    return pysim_shuffle(mask, value, from / width > own / width ? own : from);
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
    const int own = pysim::emulated::lane();
    return pysim_shuffle(mask, value, own % width < (int)by ? own : own - (int)by);
}
template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
    const int own = pysim::emulated::lane();
    return pysim_shuffle(mask, value, own % width + (int)by >= width ? own : own + (int)by);
}

inline float __uint_as_float(unsigned x) {
    float y;
    return memcpy(&y, &x, 4), y;
}
inline unsigned __float_as_uint(float x) {
    unsigned y;
    return memcpy(&y, &x, 4), y;
}
inline float __int_as_float(int x) { return __uint_as_float((unsigned)x); }
inline int __float_as_int(float x) { return (int)__float_as_uint(x); }

/* Byte i of the result is byte (selector >> 4 i) mod 8 of b:a; the selector's sign mode is not supported. */
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const uint64_t both = (uint64_t)b << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) result |= (unsigned)(both >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return result;
}
/* Sums wrap, as on the device. */
inline int __dp4a(int a, int b, int sum) {
    unsigned total = (unsigned)sum;
    for (int i = 0; i < 4; i++) total += (unsigned)((signed char)(a >> 8 * i) * (signed char)(b >> 8 * i));
    return (int)total;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned sum) {
    for (int i = 0; i < 4; i++) sum += (a >> 8 * i & 0xff) * (b >> 8 * i & 0xff);
    return sum;
}
inline float __fdividef(float a, float b) { return a / b; } /* the device rounds differently, and returns 0 for |b| > 2^126 */
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __mulhi(int a, int b) { return (int)((int64_t)a * b >> 32); }
inline long long __double2ll_rn(double x) { return llrint(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
#endif
