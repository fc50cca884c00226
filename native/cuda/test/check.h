/* SPDX-License-Identifier: Apache-2.0
 * What the checks of products (check.cu) and of convolutions (check_conv.cu) share: fills, buffers on the device, the verdict. */
#ifndef PYSIM_CUDA_TEST_CHECK_H
#define PYSIM_CUDA_TEST_CHECK_H
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "pysim_cuda.h"
#include "abi/operation.h"
#include "core/launch.h"

namespace {

void need(cudaError_t error, const char *what) {
    if (error == cudaSuccess) return;
    printf("%s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}

__host__ __device__ unsigned mix(unsigned x) {
    x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu;
    return x ^ x >> 16;
}

enum { DTYPES = 9 };
const int bytes_of[DTYPES] = {4, 8, 2, 2, 1, 4, 4, 1, 4};
const char *const name_of[DTYPES] = {"f32", "f64", "f16", "bf16", "s8", "s32", "tf32", "f8", "tf32x3"};

/* Tiles of C, of a cluster each. If only A is K-major, the tf32 rows on wgmma compute C' = B' A'. */
inline int64_t tiles_of(const pysim_cuda_gemm &g, const pysim_cuda_gemm_info &row) {
    const bool transposed = row.dtype == PYSIM_TF32 && !strcmp(row.family, "wgmma") && !g.trans_a && !g.trans_b;
    const auto pieces = [](int64_t size, int64_t piece) { return (size + piece - 1) / piece; };
    return pieces(transposed ? g.n : g.m, row.block_m * row.cluster_m) * pieces(transposed ? g.m : g.n, row.block_n * row.cluster_n);
}

__device__ double get(const void *data, int dtype, long long i) {
    switch (dtype) {
    case PYSIM_F64: return ((const double *)data)[i];
    case PYSIM_F16: return (double)__half2float(((const __half *)data)[i]);
    case PYSIM_BF16: return (double)__bfloat162float(((const __nv_bfloat16 *)data)[i]);
    case PYSIM_S8: return ((const signed char *)data)[i];
    case PYSIM_S32: return ((const int *)data)[i];
    case PYSIM_F8: return (double)(float)((const __nv_fp8_e4m3 *)data)[i];
    default: return ((const float *)data)[i];
    }
}

__device__ void set(void *data, int dtype, long long i, double x) {
    switch (dtype) {
    case PYSIM_F64: ((double *)data)[i] = x; break;
    case PYSIM_F16: ((__half *)data)[i] = __float2half((float)x); break;
    case PYSIM_BF16: ((__nv_bfloat16 *)data)[i] = __float2bfloat16((float)x); break;
    case PYSIM_S8: ((signed char *)data)[i] = (signed char)x; break;
    case PYSIM_S32: ((int *)data)[i] = (int)x; break;
    case PYSIM_F8: ((__nv_fp8_e4m3 *)data)[i] = __nv_fp8_e4m3((float)x); break;
    default: ((float *)data)[i] = (float)x;
    }
}

/* Fills rows x columns, rows `ld` apart, with integers in -most..most; most = 0: uniform in [-1, 1). s8: any value. */
__global__ void fill(void *data, int dtype, long long rows, long long columns, long long ld, unsigned seed, int most) {
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < rows * columns; i += (long long)gridDim.x * blockDim.x) {
        const unsigned r = mix((unsigned)i * 2654435761u + seed);
        double x = most ? (double)(int)(r % (2 * most + 1)) - most : (double)(r >> 8) / 8388608.0 - 1;
        if (dtype == PYSIM_S8) x = (double)(signed char)(r >> 9);
        if (dtype == PYSIM_S32) x = (double)((int)(r >> 9) % 1000);
        set(data, dtype, i / columns * ld + i % columns, x);
    }
}
/* Sets `count` elements, `step` apart, to x. */
[[maybe_unused]] __global__ void poison(void *data, int dtype, long long first, long long step, long long count, double x) {
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count; i += (long long)gridDim.x * blockDim.x)
        set(data, dtype, first + i * step, x);
}
[[maybe_unused]] __global__ void magnitude(void *to, const void *from, int dtype, long long count) {
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count; i += (long long)gridDim.x * blockDim.x)
        set(to, dtype, i, fabs(get(from, dtype, i)));
}

/* to = from + 1 in f64; the 1 covers the terms beta C and bias. */
[[maybe_unused]] __global__ void widen(double *to, const void *from, int dtype, long long count) {
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count; i += (long long)gridDim.x * blockDim.x)
        to[i] = get(from, dtype, i) + 1;
}

struct Verdict {
    unsigned long long wrong, gaps;
    long long first;
};

/* Allowed difference: `bound` times `scale` (sums of magnitudes, f64) plus `rounding` times the right value; if both are 0, results must be equal. */
__global__ void compare(const void *got, const void *want, const double *scale, int dtype, long long m, long long n, long long ldc,
                        double bound, double rounding, Verdict *out) {
    const long long count = m * n;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count; i += (long long)gridDim.x * blockDim.x) {
        const long long at = i / n * ldc + i % n;
        const double x = get(got, dtype, at), y = get(want, dtype, at);
        const double allowed = scale ? bound * scale[i] + rounding * fabs(y) : 0;
        const bool right = y != y ? x != x : x == y || (fabs(y) < INFINITY && fabs(x - y) <= allowed); /* NaN fails */
        if (!right) {
            atomicAdd(&out->wrong, 1ull);
            atomicMin((unsigned long long *)&out->first, (unsigned long long)i);
        }
    }
}
/* Checks that the guard pattern between the rows of C and at both its ends is intact. */
__global__ void gaps(const unsigned char *block, long long total, long long head, long long m, long long n, long long ldc, int element,
                     Verdict *out) {
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < total; i += (long long)gridDim.x * blockDim.x) {
        const long long at = i - head, row = at >= 0 ? at / (ldc * element) : -1, column = at >= 0 ? at % (ldc * element) : 0;
        const bool inside = row >= 0 && row < m && column < n * element;
        if (!inside && block[i] != 0xff) atomicAdd(&out->gaps, 1ull);
    }
}

/* Launches such a grid-stride kernel on `count` elements. */
template <class... Parameters, class... Arguments> void each(long long count, void (*kernel)(Parameters...), Arguments... arguments) {
    const long long blocks = std::min(std::max((count + 2047) / 2048, 1ll), 264ll);
    need(pysim::launch(kernel, (unsigned)blocks, 256, 0, nullptr, arguments...), "a kernel of the check");
}

struct Buffer {
    char *data = nullptr;
    size_t size = 0; /* a multiple of 256, so that the buffer ends where the allocation ends */
    void *at(size_t bytes) {
        if (bytes > size) {
            if (data) need(cudaFree(data), "free");
            need(cudaMalloc(&data, size = (bytes * 3 / 2 + 4096) / 256 * 256), "memory");
        }
        return data;
    }
    /* `bytes` bytes at the end or the start of the allocation, beginning `offset` bytes after a multiple of 16. */
    char *place(size_t bytes, int offset, bool end) {
        char *const first = (char *)at(bytes + 32);
        return (end ? first + (size - bytes - (size_t)offset) / 16 * 16 : first) + offset;
    }
};

Verdict *verdict;

double rounding_of(int dtype) {
    return dtype == PYSIM_F16 ? 0x1p-10 : dtype == PYSIM_BF16 ? 0x1p-7 : dtype == PYSIM_F32 ? 0x1p-22 : 0x1p-50;
}

/* Compares `out`, m rows of n elements, ld apart, with `want`. `out` begins `head` bytes into `block` of `total` bytes. `scale` NULL: equality. */
Verdict verdict_of(const char *block, size_t total, size_t head, const char *out, const char *want, const double *scale, int dtype,
                   long long m, long long n, long long ld, double bound, const char *kernel) {
    Verdict v = {0, 0, INT64_MAX};
    need(cudaMemcpy(verdict, &v, sizeof v, cudaMemcpyHostToDevice), "memcpy");
    each(m * n, compare, (const void *)out, (const void *)want, scale, dtype, m, n, ld, bound, rounding_of(dtype) * 2, verdict);
    each((long long)total, gaps, (const unsigned char *)block, (long long)total, (long long)head, m, n, ld, bytes_of[dtype], verdict);
    need(cudaMemcpy(&v, verdict, sizeof v, cudaMemcpyDeviceToHost), kernel);
    return v;
}

/* A random activation of epilogues.inc; `exact`: one that maps integers to integers. */
inline int activation_of(unsigned random, bool exact) {
    enum {
#define PYSIM_EPILOGUE(number, name, whole, times, function, of) LINE_##name,
#include "epilogues.inc"
#undef PYSIM_EPILOGUE
        LINES
    };
    static const struct {
        int number;
        bool whole;
    } lines[LINES] = {
#define PYSIM_EPILOGUE(number, name, whole, times, function, of) {number, whole != 0},
#include "epilogues.inc"
#undef PYSIM_EPILOGUE
    };
    int at = (int)(random % LINES);
    while (exact && !lines[at].whole) at = (at + 1) % LINES;
    return lines[at].number;
}

/* The type of an epilogue's scale. */
inline int scale_of(int result) { return result == PYSIM_F64 ? PYSIM_F64 : PYSIM_F32; }

/* `count` numbers as `fill` makes them, at the end of the buffer's memory. */
[[maybe_unused]] inline void *filled(Buffer &buffer, long long count, int dtype, unsigned seed, int most) {
    void *const data = buffer.place((size_t)count * bytes_of[dtype], 0, true);
    each(count, fill, data, dtype, 1, count, count, seed, most);
    return data;
}

/* The result types of a dtype. */
inline int results(int dtype, int *out) {
    switch (dtype) {
    case PYSIM_F64: out[0] = PYSIM_F64; return 1;
    case PYSIM_F16: out[0] = PYSIM_F16, out[1] = PYSIM_F32; return 2;
    case PYSIM_BF16: out[0] = PYSIM_BF16, out[1] = PYSIM_F32; return 2;
    case PYSIM_S8: out[0] = PYSIM_S32; return 1;
    case PYSIM_F8: out[0] = PYSIM_F32, out[1] = PYSIM_F16, out[2] = PYSIM_BF16; return 3;
    default: out[0] = PYSIM_F32; return 1;
    }
}

/* Outputs of a convolution along one axis. */
inline int outputs(int64_t size, int64_t before, int64_t after, int64_t kernel, int64_t stride, int64_t dilation) {
    return (int)((size + before + after - dilation * (kernel - 1) - 1) / stride + 1);
}

/* Whether a convolution that uses a GEMM row may use this one and still accumulate in f32. */
inline bool may_make(const pysim_cuda_gemm_info &gemm, int dtype) {
    /* accumulates in f16 */
    return gemm.dtype == dtype && !strcmp(gemm.form, "full") && !(dtype == PYSIM_F16 && !strcmp(gemm.family, "simt"));
}

/* False, with a message, if there is no device. */
bool found_device() {
    int32_t devices = 0;
    if (pysim_cuda_device_count(&devices) != PYSIM_OK || !devices) {
        printf("no device: %s\n", pysim_cuda_last_error());
        return false;
    }
    need(cudaMalloc(&verdict, sizeof *verdict), "memory");
    return true;
}
}
#endif
