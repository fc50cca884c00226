/* SPDX-License-Identifier: Apache-2.0
 * Norms between products, each element read once and written once (pysim_cuda.h, pysim_cuda_norm).
 *
 * By channels: a thread has one vector of channels in all of its rows, so it looks up its part of the concatenation and its parameters once, and has
 * the loads of several rows in flight. By rows: 1 to 256 threads hold a row in registers; the mean is computed first, then the mean square of
 * the differences from it, which avoids cancellation.
 *
 * Worked number: 100352 rows of 256 channels in f16 are 51.4 MB in and as many out, 21.4 us at the 4.8 TB/s of an H200's memory. */
#include "norm/norm.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/epilogue.cuh"
#include "core/launch.h"

namespace pysim {
namespace {

enum { THREADS = 256, TOGETHER = 4 /* rows of a thread whose loads are in flight together */, BLOCKS = 3 /* resident per SM */ };

template <class T, int N> __device__ Pack<T, N> loaded(const void *from, int64_t at) { return *(const Pack<T, N> *)((const T *)from + at); }

/* Loads N parameters of the channels from `c` on, as vectors if N > 1. Unless GIVEN, `from` may be NULL; they are then `otherwise`. */
template <bool GIVEN = false, int N> __device__ void take(const float *from, int c, float otherwise, float (&to)[N]) {
    using Some = typename Word < N<4 ? 4 : 16>::type;
    constexpr int WIDE = N < 4 ? 1 : 4;
#pragma unroll
    for (int i = 0; i < N; i += WIDE) {
        float some[WIDE];
#pragma unroll
        for (int j = 0; j < WIDE; j++) some[j] = otherwise;
        if (GIVEN || from) {
            const Some word = __ldg((const Some *)(from + c + i)); /* __ldg: need not wait for earlier stores */
            memcpy(some, &word, sizeof some);
        }
#pragma unroll
        for (int j = 0; j < WIDE; j++) to[i + j] = some[j];
    }
}

/* Replaces N elements x, minus the center `from`, by their results. */
template <class To, int N>
__device__ void scale_and_store(const Norm &n, int64_t at, const float (&from)[N], const float (&scale)[N], const float (&shift)[N]) {
    Pack<To, N> out;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float y = fmaf(scale[i], from[i], shift[i]);
        out.value[i] = To(n.relu && y < 0 ? 0.f : y);
    }
    *(Pack<To, N> *)((To *)n.result + at) = out;
}

__device__ int part_of(const Norm &n, int channel) {
    int part = 0;
#pragma unroll
    for (int step = PYSIM_CUDA_PARTS / 2; step; step /= 2)
        if (part + step < n.parts && channel >= n.starts[part + step]) part += step;
    return part;
}

/* A block has `wide` neighbouring vectors of channels in THREADS / wide rows at a time. */
template <class From, class To, int N> __global__ void __launch_bounds__(THREADS, BLOCKS)
    by_channels(const __grid_constant__ Norm n, int wide) {
    const int high = THREADS / wide, down = threadIdx.x / wide, c = (blockIdx.y * wide + threadIdx.x % wide) * N;
    if (down >= high || c >= n.channels) return;
    const int part = part_of(n, c);
    const void *const from = n.at[part];
    const int64_t first = n.starts[part], pitch = n.starts[part + 1] - first, step = (int64_t)gridDim.x * high;
    float center[N], scale[N], shift[N];
    take(n.center, c, 0.f, center), take(n.scale, c, 1.f, scale), take(n.shift, c, -0.f, shift); /* + -0 changes nothing */
    for (int64_t row = (int64_t)blockIdx.x * high + down; row < n.rows; row += TOGETHER * step) {
        Pack<From, N> x[TOGETHER];
#pragma unroll
        for (int i = 0; i < TOGETHER; i++)
            if (row + i * step < n.rows) x[i] = loaded<From, N>(from, (row + i * step) * pitch + (c - first));
#pragma unroll
        for (int i = 0; i < TOGETHER; i++)
            if (row + i * step < n.rows) {
                float y[N];
                if (n.image_rows)
                    take(n.scale + (int64_t)((unsigned)(row + i * step) / (unsigned)n.image_rows) * n.channels, c, 1.f, scale);
#pragma unroll
                for (int j = 0; j < N; j++) y[j] = (float)x[i].value[j] - center[j];
                scale_and_store<To>(n, (row + i * step) * n.channels + c, y, scale, shift);
            }
    }
}

/* The sum over the `group` threads of a row, a power of two; all threads of the block take part. */
__device__ float sum_of_row(float x, int group, float *of_warps) {
    for (int bits = min(group, 32) / 2; bits; bits /= 2) x += __shfl_xor_sync(0xffffffffu, x, bits);
    if (group <= 32) return x;
    __syncthreads(); /* the previous values have been read */
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = x;
    __syncthreads();
    const int warps = group / 32, first = threadIdx.x / group * warps;
    x = 0;
    for (int i = 0; i < warps; i++) x += of_warps[first + i];
    return x;
}

/* `group` threads a row, each with HELD vectors of N channels. A vector past the row's end loads the last one again and is not counted. If loads were
 * in branches, each would wait for the previous one (an H200, 1568 rows of 768 channels in f16: 11.5 us). */
template <class From, class To, int N, int HELD> __global__ void __launch_bounds__(THREADS, N == 1 ? 1 : BLOCKS)
    by_rows(const __grid_constant__ Norm n, int group) {
    __shared__ float of_warps[THREADS / 32];
    const int64_t wanted = (int64_t)blockIdx.x * (THREADS / group) + threadIdx.x / group, row = min(wanted, n.rows - 1);
    const int first = (threadIdx.x & (group - 1)) * N, last = n.channels - N;
    const auto channel = [&](int i) { return min(first + i * group * N, last); };
    const auto exists = [&](int i) { return first + i * group * N <= last; };
    Pack<From, N> read[HELD];
#pragma unroll
    for (int i = 0; i < HELD; i++) read[i] = loaded<From, N>(n.at[0], row * n.channels + channel(i));
    float x[HELD][N], sum = 0;
#pragma unroll
    for (int i = 0; i < HELD; i++)
#pragma unroll
        for (int j = 0; j < N; j++) x[i][j] = (float)read[i].value[j], sum += exists(i) ? x[i][j] : 0.f;
    const float mean = sum_of_row(sum, group, of_warps) / (float)n.channels;
    float squares = 0;
#pragma unroll
    for (int i = 0; i < HELD; i++)
#pragma unroll
        for (int j = 0; j < N; j++) x[i][j] -= mean, squares = fmaf(x[i][j], exists(i) ? x[i][j] : 0.f, squares);
    const float factor = 1.f / sqrtf(sum_of_row(squares, group, of_warps) / (float)n.channels + n.epsilon);
    const auto finish = [&](auto given) {
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            float scale[N], shift[N];
            take<given>(n.scale, channel(i), 1.f, scale), take<given>(n.shift, channel(i), -0.f, shift);
#pragma unroll
            for (int j = 0; j < N; j++) x[i][j] *= factor;
            if (exists(i) && row == wanted) scale_and_store<To>(n, row * n.channels + channel(i), x[i], scale, shift);
        }
    };
    if (n.scale && n.shift) finish(std::true_type());
    else finish(std::false_type());
}

template <class From, class To, int N> cudaError_t start_by_channels(const Norm &n, int sms, cudaStream_t stream) {
    const int vectors = (n.channels + N - 1) / N, columns = (vectors + THREADS - 1) / THREADS, wide = (vectors + columns - 1) / columns;
    const int64_t high = THREADS / wide, needed = (n.rows + TOGETHER * high - 1) / (TOGETHER * high);
    const int64_t blocks = std::min(needed, std::max((int64_t)1, (int64_t)sms * BLOCKS / columns));
    return launch(by_channels<From, To, N>, dim3((unsigned)blocks, (unsigned)columns), dim3(THREADS), 0, stream, n, wide);
}

template <class From, class To, int N, int HELD> cudaError_t start_by_rows(const Norm &n, cudaStream_t stream) {
    int group = 1;
    while (group * HELD * N < n.channels) group *= 2;
    const int64_t rows = THREADS / group;
    return launch(by_rows<From, To, N, HELD>, dim3((unsigned)((n.rows + rows - 1) / rows)), dim3(THREADS), 0, stream, n, group);
}

template <class From, class To> cudaError_t start(const Norm &n, int32_t kind, bool whole, int sms, cudaStream_t stream) {
    constexpr int N = sizeof(From) == 4 || sizeof(To) == 4 ? 4 : 8;
    if (kind == PYSIM_NORM_CHANNELS)
        return whole ? start_by_channels<From, To, N>(n, sms, stream) : start_by_channels<From, To, 1>(n, sms, stream);
    if (!whole) return n.channels <= 128 ? start_by_rows<From, To, 1, 4>(n, stream) : start_by_rows<From, To, 1, 32>(n, stream);
    if constexpr (N == 4)
        if (n.channels > 32 * N * 4) return start_by_rows<From, To, N, 8>(n, stream);
    return start_by_rows<From, To, N, 4>(n, stream);
}

/* The result is f32 or of the input's type. */
template <class From> cudaError_t start_half(const Norm &n, int32_t kind, int32_t out_dtype, bool whole, int sms, cudaStream_t stream) {
    return out_dtype == PYSIM_F32 ? start<From, float>(n, kind, whole, sms, stream) : start<From, From>(n, kind, whole, sms, stream);
}
}

cudaError_t normalize(const Norm &n, int32_t kind, int32_t dtype, int32_t out_dtype, bool whole, int sms, cudaStream_t stream) {
    if (dtype == PYSIM_F16) return start_half<__half>(n, kind, out_dtype, whole, sms, stream);
    if (dtype == PYSIM_BF16) return start_half<__nv_bfloat16>(n, kind, out_dtype, whole, sms, stream);
    if (out_dtype == PYSIM_F16) return start<float, __half>(n, kind, whole, sms, stream);
    if (out_dtype == PYSIM_BF16) return start<float, __nv_bfloat16>(n, kind, whole, sms, stream);
    return start<float, float>(n, kind, whole, sms, stream);
}
}
