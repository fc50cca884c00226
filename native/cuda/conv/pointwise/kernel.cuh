/* SPDX-License-Identifier: Apache-2.0
 * Pointwise convolution (1 x 1, stride 1, one group) of channels-last tensors on mma.sync, for few channels or filters, where memory is the bound:
 *
 *     out[window][filter] = sum over channels c of in[window][c] weights[filter][c]
 *
 * A block keeps its filters in shared memory. Each warp processes tiles of 32 windows, one after another, without a barrier of the block: their channels
 * are contiguous in memory, and cp.async loads the next tiles meanwhile. For each group of filters a warp multiplies its 32 windows and stores the
 * accumulators from registers.
 *
 * Both k and the filters may be permuted. A lane has 16 bytes of neighbouring channels of a window and of a filter, which are its words of two
 * instructions; no word is exchanged. The filters of a group are assigned to the columns of its instructions such that a lane has 16 bytes of
 * neighbouring results, and four lanes have 64.
 *
 * Buffers: [window][16 bytes of channels], where the halves of 128 bytes are exchanged in every second row if rows are multiples of 128 bytes, so that
 * the lanes that load together read different banks. Filters lie in the order in which lanes load them.
 *
 * Worked number: 24 -> 144 channels at 56 x 56, batch 32, f16: 3,136 tiles of 1,536 bytes that become 9,216; in a tile 5 groups of 16 mma.sync. */
#ifndef PYSIM_CUDA_CONV_POINTWISE_KERNEL_CUH
#define PYSIM_CUDA_CONV_POINTWISE_KERNEL_CUH
#include "conv/pointwise/tiles.h"
#include "core/epilogue.cuh"
#include "core/ptx.cuh"
#include "mainloop/tensor/pipeline.cuh"

namespace pysim {
namespace pointwise {

/* A kernel's arguments. */
struct Pointwise {
    Conv c;
    Tiling t;
    int row;           /* bytes of a window's channels */
    int swap;          /* in every second row of a buffer the number of a vector is exclusive-or'ed with it */
    int at_once;       /* windows that a warp copies by one instruction */
    Divisor by_row;    /* vectors of a window */
    Divisor by_part, by_k;
};

template <class T> struct Of {
    enum { FILTERS = BLOCK_BYTES / sizeof(T), TILES = FILTERS / 8, RUN = VECTOR / sizeof(T) /* results of a lane in a row */ };
};

/* Loads a block's filters, [group][block of k][tile of eight][lane], zeros beyond the last filter and channel. */
template <class T> __device__ inline void load_filters(const Pointwise &g, int part, char *to) {
    enum { FILTERS = Of<T>::FILTERS, TILES = Of<T>::TILES, RUN = Of<T>::RUN };
    for (int i = (int)threadIdx.x; i < g.t.filters / VECTOR; i += (int)blockDim.x) {
        int block;
        const int lane = i % 32, tile = i / 32 % TILES, group = g.by_k.of(i / 32 / TILES, block), column = lane / 4;
        const int filter = (part * g.t.groups + group) * FILTERS + column / 2 * RUN + tile * 2 + column % 2;
        const int at = block * BLOCK_BYTES + lane % 4 * VECTOR;
        const bool exists = filter < g.c.filters && at < g.row;
        copy_async<VECTOR>(to + i * VECTOR, (const char *)g.c.weights + (exists ? (int64_t)filter * g.row + at : 0), exists ? VECTOR : 0);
    }
}

/* A warp's buffers, and the vector that a lane copies of every `at_once`-th window from `begin` on. */
struct Buffers {
    const Pointwise &g;
    char *const first;
    const int lane;
    int begin, vector;

    __device__ Buffers(const Pointwise &of, char *at, int of_lane) : g(of), first(at), lane(of_lane) {
        begin = g.by_row.of(lane, vector);
        if (begin >= g.at_once) begin = WINDOWS; /* no vector */
    }
    __device__ int pitch() const { return g.t.blocks_k * BLOCK_BYTES; }
    /* Zeros the channels beyond the last, which no copy writes. */
    __device__ void clear() const {
        for (int i = lane; i < g.t.stages * WINDOWS; i += 32)
            for (int at = g.row / VECTOR; at < g.t.blocks_k * 4; at++) *(uint4 *)(first + i * pitch() + (at ^ (i % 2 ? g.swap : 0)) * VECTOR) = uint4{};
    }
    /* Starts the copies of a tile; windows beyond the last are the last. */
    __device__ void load(int tile, int stage) const {
        const char *const from = (const char *)g.c.in + (int64_t)tile * WINDOWS * g.row + vector * VECTOR;
        char *const to = first + stage * g.t.stage;
        const int last = g.c.windows - 1 - tile * WINDOWS, even = vector * VECTOR, odd = (vector ^ g.swap) * VECTOR;
#pragma unroll 4
        for (int window = begin; window < WINDOWS; window += g.at_once)
            copy_async<VECTOR>(to + window * pitch() + (window % 2 ? odd : even), from + min(window, last) * g.row, VECTOR);
    }
};

template <class T> __device__ inline uint4 operand(const char *at) {
    uint4 words = *(const uint4 *)at;
    if constexpr (sizeof(T) == 4) words = {round_tf32(words.x), round_tf32(words.y), round_tf32(words.z), round_tf32(words.w)};
    return words;
}

/* sum[16 windows][tile] = the products of a warp's windows and a group of filters */
template <class T> __device__ inline void multiply(const Pointwise &g, const Buffers &in, int stage, const char *filters, float (&sum)[2][Of<T>::TILES][4]) {
    enum { TILES = Of<T>::TILES };
    const int row = in.lane / 4, down = 8 * in.pitch(), odd = row % 2 ? g.swap / 4 : 0; /* in odd rows two blocks are exchanged */
    const char *const windows = in.first + stage * g.t.stage + row * in.pitch() + in.lane % 4 * VECTOR;
    filters += in.lane * VECTOR;
#pragma unroll 1
    for (int k = 0; k < g.t.blocks_k; k++, filters += TILES * 32 * VECTOR) {
        const char *const block = windows + (k ^ odd) * BLOCK_BYTES;
        uint4 left[2][2];
#pragma unroll
        for (int i = 0; i < 4; i++) left[i / 2][i % 2] = operand<T>(block + i * down);
#pragma unroll
        for (int j = 0; j < TILES; j++) {
            const uint4 right = operand<T>(filters + j * 32 * VECTOR);
            const unsigned first[2] = {right.x, right.y}, second[2] = {right.z, right.w};
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const unsigned a[4] = {left[i][0].x, left[i][1].x, left[i][0].y, left[i][1].y}, b[4] = {left[i][0].z, left[i][1].z, left[i][0].w, left[i][1].w};
                mma(sum[i][j], a, first, T());
                mma(sum[i][j], b, second, T());
            }
        }
    }
}

/* The epilogue of a warp: each lane stores 16 bytes (32 of f32 results of a 16-bit type) in four rows. Factors, bias, the addition of C, ReLU and clamp of
 * aligned results have unrolled code, `direct`; all else is a loop. */
template <class T, class Out> struct Results {
    enum { TILES = Of<T>::TILES, RUN = Of<T>::RUN };
    using To = Epilogue<float, Out>;
    const To to;
    const Function function;
    const bool direct;
    __device__ explicit Results(const Problem &p)
        : to(p), function(function_of(p.activation)), direct(!is_smooth(function) && to.aligned % VECTOR == 0) {}

    __device__ void store(int window, int filter, const float (&sum)[2][TILES][4]) const {
        float rows[4][RUN];
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int e = 0; e < RUN; e++) rows[i][e] = sum[i / 2][e / 2][i % 2 * 2 + e % 2];
        if (direct) return store_direct(window, filter, rows);
#pragma unroll 1
        for (int i = 0; i < 4; i++) { /* registers have no run-time index, so it shifts the rows */
            to.store(window + i * 8, filter, rows[0]);
#pragma unroll
            for (int j = 0; j < 3; j++)
#pragma unroll
                for (int e = 0; e < RUN; e++) rows[j][e] = rows[j + 1][e];
        }
    }

  private:
    __device__ void store_direct(int window, int filter, float (&rows)[4][RUN]) const {
        if (filter >= to.n) return;
        using Vector = Pack<Out, RUN>;
        const int pitch = (int)to.ldc, first = window * pitch + filter; /* an output has fewer than 2^31 elements */
        if (!to.plain) {
            Vector old[4]; /* loaded together, before their use */
            if (to.beta != 0)
#pragma unroll
                for (int i = 0; i < 4; i++) old[i] = window + i * 8 < to.m ? *(const Vector *)(to.c + (first + i * 8 * pitch)) : Vector{};
            float factor[RUN], shift[RUN];
#pragma unroll
            for (int e = 0; e < RUN; e++) factor[e] = to.scale ? to.alpha * to.scale[filter + e] : to.alpha, shift[e] = to.bias ? float(to.bias[filter + e]) : 0.f;
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int e = 0; e < RUN; e++) rows[i][e] = fmaf(rows[i][e], factor[e], shift[e]);
                if (to.beta != 0)
#pragma unroll
                    for (int e = 0; e < RUN; e++) rows[i][e] = fmaf(to.beta, float(old[i].value[e]), rows[i][e]);
                bound(function, rows[i], to.low, to.high);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            Vector result;
#pragma unroll
            for (int e = 0; e < RUN; e++) result.value[e] = Out(rows[i][e]);
            if (window + i * 8 < to.m) *(Vector *)(to.c + (first + i * 8 * pitch)) = result;
        }
    }
};

template <class T, class Out> __device__ inline void stream(const Pointwise &g, int part, int worker, char *shared) {
    enum { FILTERS = Of<T>::FILTERS, TILES = Of<T>::TILES, RUN = Of<T>::RUN };
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, step = g.t.workers * g.t.warps, ahead = g.t.stages - 1;
    const int begin = part * g.t.groups, groups = min(g.t.groups, ceil_div(g.c.filters, (int)FILTERS) - begin);
    const Buffers in(g, shared + g.t.filters + warp * g.t.stages * g.t.stage, lane);
    Problem p = g.c.product;
    p.c = g.c.out, p.m = g.c.windows, p.n = g.c.filters;
    const Results<T, Out> out(p);
    int tile = worker * g.t.warps + warp, stage = 0;
    for (int i = 0; i < ahead; i++) {
        if (tile + i * step < g.t.tiles) in.load(tile + i * step, i);
        commit_async();
    }
    in.clear();
    const auto wait = [&] { /* for the oldest of `ahead` groups of copies */
        if (ahead == 3) wait_async<2>();
        else if (ahead == 2) wait_async<1>();
        else wait_async<0>();
    };
    wait();
    __syncthreads(); /* the filters, which belong to every thread's first group */
    for (; tile < g.t.tiles; tile += step) {
        wait();
        __syncwarp(); /* and the buffer that is loaded next has been read */
        if (tile + ahead * step < g.t.tiles) in.load(tile + ahead * step, stage ? stage - 1 : ahead);
        commit_async();
#pragma unroll 1
        for (int group = 0; group < groups; group++) {
            float sum[2][TILES][4] = {};
            multiply<T>(g, in, stage, shared + group * TILES * g.t.blocks_k * 32 * VECTOR, sum);
            out.store(tile * WINDOWS + lane / 4, (begin + group) * FILTERS + lane % 4 * RUN, sum);
        }
        stage = stage == ahead ? 0 : stage + 1;
    }
    wait_async<0>();
}

template <class T> __global__ void __launch_bounds__(MAX_WARPS * 32, BLOCKS) pointwise_kernel(const __grid_constant__ Pointwise g) {
    if constexpr (CODE_CAPABILITY >= 80) {
        PYSIM_DYNAMIC_SHARED(shared);
        int part;
        const int worker = g.by_part.of((int)blockIdx.x, part);
        load_filters<T>(g, part, shared);
        if (sizeof(T) == 2 && g.c.product.c_dtype != PYSIM_F32) stream<T, T>(g, part, worker, shared);
        else stream<T, float>(g, part, worker, shared);
    }
}

template <class T> pysim_status launch(const Conv &c, int sms, cudaStream_t stream) {
    if (((uintptr_t)c.in | (uintptr_t)c.weights) % VECTOR) return fail(PYSIM_UNSUPPORTED, "a pointwise convolution copies by 16 bytes; input and filters must begin at a multiple of them");
    Pointwise g = {};
    g.c = c, g.t = tiling_of(c, sms), g.row = c.channels * (int)sizeof(T), g.swap = g.t.blocks_k % 2 ? 0 : 4;
    g.at_once = 32 * VECTOR / g.row;
    g.by_row = Divisor((unsigned)(g.row / VECTOR)), g.by_part = Divisor((unsigned)g.t.parts), g.by_k = Divisor((unsigned)g.t.blocks_k);
    return check(start(pointwise_kernel<T>, g, g.t.workers * g.t.parts, g.t.warps * 32, g.t.shared, stream), "a pointwise convolution");
}
template <class T> cudaError_t attributes(const Conv &c, pysim_cuda_attributes *out) {
    const Tiling t = tiling_of(c, 1);
    return attributes_of(pointwise_kernel<T>, t.warps * 32, t.shared, out);
}
}
}
#endif
