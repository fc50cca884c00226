/* SPDX-License-Identifier: Apache-2.0
 * Norms of groups of channels of each image, each element read once and written once (pysim_cuda.h, pysim_cuda_group_norm).
 *
 *     a block      some whole groups' channels of some pixels, held in shared memory: mean, then sum of squares of the differences from it
 *     a cluster    all pixels of these channels: each block gives its means and sums to all others, which merge them in the same order
 *     then         (x - mean) / sqrt(variance + epsilon) scale + shift + residual, from shared memory
 *
 * Sums of squares are of differences from the block's own mean (Chan, Golub, LeVeque 1983: those of parts are merged exactly), so a mean that is large
 * beside the deviation cancels nothing. Blocks read whole lines: as many groups as have 128 bytes of a pixel, where their pixels fit and enough blocks
 * are left (with 32 bytes 25.7 MB and a residual took 42 us on an H200, 1.8 TB/s).
 *
 * Worked number: 16 images of 56x56 pixels of 256 channels in f16, 32 groups, are 25.7 MB; a cluster of 4 blocks has 8 groups of 3136 pixels, 100 KB a block. Reading
 * and writing take 10.7 us at the 4.8 TB/s of an H200's memory. */
#include "norm/group.h"

#include <algorithm>
#include <numeric>

#include "core/epilogue.cuh"
#include "core/launch.h"
#include "core/limits.h"
#ifndef PYSIM_EMULATED
#include "core/hopper.cuh"
#endif

namespace pysim {
namespace {

enum {
    LEAST_THREADS = 128,
    MOST_THREADS = 512,
    TOGETHER = 4 /* loads of a thread in flight */,
    ADDED = 2 /* the same of a residual, beside parameters */,
    SECTOR = 32,
    LINE = 128,
    LANES = 32,
    EACH = 4 /* vectors of a thread, at least */
};

/* Floats behind the held elements: sums of threads; of each group (mean, squares) of all blocks, pairs; its block's sum, factor and mean. */
template <int N> constexpr int64_t scratch_floats(int threads, int groups, int parts) {
    return (int64_t)threads * N + (3 + 2 * (int64_t)parts) * groups;
}

template <class T, int N> class Block {
public:
    __device__ Block(const GroupNorm &n, char *shared)
        : n(n), part(blockIdx.x % n.parts), slice_channels(n.vectors * N), groups(slice_channels / n.group), high(n.threads / n.vectors),
          down(threadIdx.x / n.vectors), column(threadIdx.x % n.vectors), works(down < high), first_group(column * N / n.group),
          within(column * N - first_group * n.group) {
        const int slices = n.channels / slice_channels, of = blockIdx.x / n.parts;
        rows = max(0, min(n.rows, n.pixels - part * n.rows));
        channel = of % slices * slice_channels + column * N;
        first = ((int64_t)(of / slices) * n.pixels + (int64_t)part * n.rows) * n.channels + channel;
        held = (Pack<T, N> *)shared;
        sums = (float *)(held + (int64_t)n.rows * n.vectors);
        of_parts = sums + n.threads * N, of_group = of_parts + 2 * n.parts * groups, factor = of_group + groups, mean = factor + groups;
    }

    __device__ void run() {
        float value[N];
        load(value);
        sum_groups(value);
        const float count = (float)rows * (float)n.group;
        for (int g = threadIdx.x; g < groups; g += n.threads) mean[g] = rows ? of_group[g] / count : 0.f;
        __syncthreads();
        squares(value);
        sum_groups(value);
        merge();
        store();
    }

private:
    /* Calls use(j, g) for the channels j of a thread's vector, which are in group g. */
    template <class Use> __device__ void each_group(Use use) const {
        int g = first_group, at = within;
#pragma unroll
        for (int j = 0; j < N; j++) {
            use(j, g);
            if (++at == n.group) g++, at = 0;
        }
    }
    /* The channels of the same group that a thread's vector has, if those are all: their sums become one. */
    __device__ bool one_group() const { return n.group % N == 0; }

    __device__ void load(float (&sum)[N]) {
#pragma unroll
        for (int j = 0; j < N; j++) sum[j] = 0;
        if (!works) return;
        for (int row = down; row < rows; row += TOGETHER * high) {
            Pack<T, N> x[TOGETHER];
#pragma unroll
            for (int i = 0; i < TOGETHER; i++)
                if (row + i * high < rows) x[i] = *(const Pack<T, N> *)((const T *)n.x + first + (int64_t)(row + i * high) * n.channels);
#pragma unroll
            for (int i = 0; i < TOGETHER; i++)
                if (row + i * high < rows) {
                    held[(row + i * high) * n.vectors + column] = x[i];
#pragma unroll
                    for (int j = 0; j < N; j++) sum[j] += (float)x[i].value[j];
                }
        }
    }
    /* Of the differences from the block's means. */
    __device__ void squares(float (&sum)[N]) {
        float center[N];
        each_group([&](int j, int g) { sum[j] = 0, center[j] = works ? mean[g] : 0.f; });
        if (!works) return;
        for (int row = down; row < rows; row += high) {
            const Pack<T, N> x = held[row * n.vectors + column];
#pragma unroll
            for (int j = 0; j < N; j++) {
                const float from = (float)x.value[j] - center[j];
                sum[j] = fmaf(from, from, sum[j]);
            }
        }
    }
    /* of_group[g] = the sum over all threads of what they have of the channels of group g, always in the same order: first over the rows of a warp, if
     * its lanes are whole rows. */
    __device__ void sum_groups(const float (&value)[N]) {
        const int each = one_group() ? 1 : N, pitch = n.vectors * each,
                  wide = n.group * each / N; /* values of a vector, a row, a group of a row */
        const bool folded = LANES % n.vectors == 0;
        const int deep = folded ? n.threads / LANES : high, row = folded ? threadIdx.x / LANES : down;
        const bool stores = folded ? threadIdx.x % LANES < n.vectors : works;
        const auto over_rows = [&](float x) {
            for (int bits = folded ? n.vectors : LANES; bits < LANES; bits *= 2) x += __shfl_xor_sync(0xffffffffu, x, bits);
            return x;
        };
        if (one_group()) {
            float all = 0;
#pragma unroll
            for (int j = 0; j < N; j++) all += value[j];
            all = over_rows(all);
            if (stores) sums[row * pitch + column] = all;
        } else
#pragma unroll
            for (int j = 0; j < N; j++) {
                const float all = over_rows(value[j]);
                if (stores) sums[row * pitch + column * N + j] = all;
            }
        __syncthreads();
        const int lane = threadIdx.x % LANES, warps = n.threads / LANES;
        for (int g = threadIdx.x / LANES; g < groups; g += warps) {
            float all = 0;
            for (int i = lane; i < deep * wide; i += LANES) all += sums[i / wide * pitch + g * wide + i % wide];
#pragma unroll
            for (int bits = LANES / 2; bits; bits /= 2) all += __shfl_xor_sync(0xffffffffu, all, bits);
            if (lane == 0) of_group[g] = all;
        }
        __syncthreads();
    }
    /* mean[g], factor[g]: of all blocks of the cluster. */
    __device__ void merge() {
        for (int g = threadIdx.x; g < groups; g += n.threads) {
            const float mine[2] = {mean[g], of_group[g]};
            for (int to = 0; to < n.parts; to++) give(of_parts + 2 * (part * groups + g), to, mine);
        }
        meet();
        for (int g = threadIdx.x; g < groups; g += n.threads) {
            float all = 0, center = 0, square = 0;
            for (int from = 0; from < n.parts; from++) {
                const float count = (float)max(0, min(n.rows, n.pixels - from * n.rows)) * (float)n.group, both = all + count;
                if (count == 0) continue;
                const float *const its = of_parts + 2 * (from * groups + g), apart = its[0] - center;
                square += its[1] + apart * apart * (all * (count / both)), center = fmaf(apart, count / both, center), all = both;
            }
            mean[g] = center, factor[g] = 1.f / sqrtf(square / all + n.epsilon);
        }
        __syncthreads();
    }
    __device__ float parameter(const void *from, int j, float otherwise) const {
        if (!from) return otherwise;
        return n.narrow_parameters ? (float)((const T *)from)[channel + j] : ((const float *)from)[channel + j];
    }
    __device__ void store() {
        if (!works) return;
        float center[N], scale[N], shift[N];
        each_group([&](int j, int g) {
            center[j] = mean[g], scale[j] = factor[g] * parameter(n.scale, j, 1.f), shift[j] = parameter(n.shift, j, 0.f);
        });
        const Function function = function_of(n.activation);
        for (int row = down; row < rows; row += ADDED * high) {
            Pack<T, N> more[ADDED];
            const auto place = [&](int i) { return first + (int64_t)(row + i * high) * n.channels; };
            if (n.residual)
#pragma unroll
                for (int i = 0; i < ADDED; i++)
                    if (row + i * high < rows) more[i] = *(const Pack<T, N> *)((const T *)n.residual + place(i));
#pragma unroll
            for (int i = 0; i < ADDED; i++)
                if (row + i * high < rows) {
                    const Pack<T, N> x = held[(row + i * high) * n.vectors + column];
                    float y[N];
#pragma unroll
                    for (int j = 0; j < N; j++) {
                        y[j] = fmaf((float)x.value[j] - center[j], scale[j], shift[j]);
                        if (n.residual) y[j] += (float)more[i].value[j];
                    }
                    activate<sizeof(T) == 2>(function, n.activation, y, n.low, n.high);
                    Pack<T, N> out;
#pragma unroll
                    for (int j = 0; j < N; j++) out.value[j] = T(y[j]);
                    *(Pack<T, N> *)((T *)n.result + place(i)) = out;
                }
        }
    }
    /* Two numbers, into the same place of block `to` of the cluster. */
    __device__ void give(float *at, int to, const float (&two)[2]) {
#ifdef __CUDA_ARCH__
        if constexpr (CODE_CAPABILITY >= 90)
            if (n.parts > 1) {
                const uint32_t there = hopper::address_at((uint32_t)__cvta_generic_to_shared(at), to);
                asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(there), "f"(two[0]), "f"(two[1]) : "memory");
                return;
            }
#endif
        (void)to;
        at[0] = two[0], at[1] = two[1];
    }
    __device__ void meet() {
#ifdef __CUDA_ARCH__
        if constexpr (CODE_CAPABILITY >= 90)
            if (n.parts > 1) return hopper::cluster_sync();
#endif
        __syncthreads();
    }

    const GroupNorm &n;
    const int part, slice_channels, groups, high, down, column;
    const bool works;
    const int first_group, within; /* of the first channel of a thread's vector */
    int rows, channel;
    int64_t first;
    Pack<T, N> *held;
    float *sums, *of_group, *factor, *mean, *of_parts;
};

template <class T> __global__ void __launch_bounds__(MOST_THREADS, 2) normalize_groups_kernel(const __grid_constant__ GroupNorm n) {
    PYSIM_DYNAMIC_SHARED(shared);
#ifdef __CUDA_ARCH__
    if constexpr (CODE_CAPABILITY >= 90)
        if (n.parts > 1) hopper::cluster_sync_initialized(); /* a block's memory may be written once it runs */
#endif
    Block<T, GROUP_VECTOR / sizeof(T)>(n, shared).run();
}

template <int N> int64_t shared_bytes(const GroupNorm &n) {
    return (int64_t)n.rows * n.vectors * GROUP_VECTOR + 4 * scratch_floats<N>(n.threads, n.vectors * N / n.group, n.parts);
}

/* The fewest blocks of a cluster with which two of its blocks fit a multiprocessor, or else one; then as many as keep all multiprocessors busy. False: the
 * vectors of a slice fit into no cluster. */
template <int N> bool share_slice(GroupNorm &n, int sms, bool clusters) {
    const int64_t blocks = n.images * (n.channels / N / n.vectors), most = clusters ? limit::GROUPED_HELD : limit::GROUPED_SHARED;
    const auto fits = [&](int parts, int64_t bytes) {
        n.parts = parts, n.rows = (n.pixels + parts - 1) / parts;
        const int64_t wanted = (int64_t)n.rows * n.vectors / EACH, least = std::max((int)LEAST_THREADS, n.vectors);
        n.threads = (int)(std::min<int64_t>(MOST_THREADS, std::max(wanted, least)) + LANES - 1) / LANES * LANES;
        return shared_bytes<N>(n) <= bytes;
    };
    const int largest = clusters ? (int)limit::GROUP_BLOCKS : 1;
    for (const int64_t bytes : {most / 2, most})
        for (int parts = 1; parts <= largest; parts *= 2)
            if (fits(parts, bytes)) {
                while (parts < largest && blocks * parts < sms && n.rows * n.vectors >= 2 * EACH * LEAST_THREADS) fits(parts *= 2, bytes);
                return blocks * parts <= limit::TILES;
            }
    return false;
}

/* The narrowest slice of whole groups and vectors with a line of bytes; with less if that fits into no cluster, or leaves multiprocessors idle. */
template <int N> bool share(GroupNorm &n, int sms, bool clusters) {
    if (n.channels % N) return false;
    const int unit = std::lcm(n.group, N);
    bool found = false;
    for (int line = LINE; line >= SECTOR; line /= 2) {
        int slice = unit;
        while (slice < n.channels && (n.channels % slice || slice / N * GROUP_VECTOR < line)) slice += unit;
        GroupNorm tried = n;
        tried.vectors = slice / N;
        if (tried.vectors > MOST_THREADS || !share_slice<N>(tried, sms, clusters)) continue;
        n = tried, found = true;
        if (n.images * (n.channels / slice) * n.parts >= sms) break;
    }
    return found;
}

template <class T> cudaError_t start(const GroupNorm &n, cudaStream_t stream) {
    constexpr int N = GROUP_VECTOR / sizeof(T);
    const auto kernel = normalize_groups_kernel<T>;
    const int64_t shared = shared_bytes<N>(n), blocks = n.images * (n.channels / N / n.vectors) * n.parts;
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    if (error != cudaSuccess) return error;
    return launch_with({n.parts}, kernel, dim3((unsigned)blocks), dim3((unsigned)n.threads), (size_t)shared, stream, n);
}
}

bool share_image(GroupNorm &n, int32_t dtype, int sms, bool clusters) {
    return dtype == PYSIM_F32 ? share<4>(n, sms, clusters) : share<8>(n, sms, clusters);
}

cudaError_t normalize_groups(const GroupNorm &n, int32_t dtype, cudaStream_t stream) {
    if (dtype == PYSIM_F16) return start<__half>(n, stream);
    if (dtype == PYSIM_BF16) return start<__nv_bfloat16>(n, stream);
    return start<float>(n, stream);
}
}
