/* SPDX-License-Identifier: Apache-2.0
 * Pointwise convolution (1 x 1, stride 1, one group) of channels-last tensors on mma.sync, for few channels or filters, where memory is the bound:
 *
 *     out[window][filter] = sum over channels c of in[window][c] weights[filter][c]
 *
 * A block keeps its filters in shared memory. Each warp processes tiles of 32 windows, one after another, without a barrier of the block: their channels
 * are contiguous in memory, and cp.async loads the next tiles meanwhile. For each group of filters a warp multiplies its 32 windows and stores the
 * accumulators from registers.
 *
 * Filters are the rows of an instruction and windows its columns, and k, filters and windows are permuted, so that no word changes lanes: a lane loads 16
 * bytes of neighbouring channels of a window, its words of two instructions, and its accumulators of a window are RUN neighbouring results. Eight lanes
 * store the 128 bytes (or 64) of a group's results of a window, a warp those of four neighbouring windows.
 *
 * Filters lie in shared memory in the order in which lanes load them, two filters interleaved as the instruction's registers are. A tile lies there as in
 * memory, but that bit 6 of an address is exclusive-or'ed with a higher bit, so that lanes that load together, from windows w and w + 4, read different
 * banks.
 *
 * Worked number: 24 -> 144 channels at 56 x 56, batch 32, f16: 3,136 tiles of 1,536 bytes that become 9,216; in a tile 3 groups of 32 mma.sync. */
#ifndef PYSIM_CUDA_CONV_POINTWISE_KERNEL_CUH
#define PYSIM_CUDA_CONV_POINTWISE_KERNEL_CUH
#include "conv/pointwise/tiles.h"
#include "core/epilogue.cuh"
#include "core/ptx.cuh"
#include "mainloop/mma/pipeline.cuh"

namespace pysim::pointwise {

/* A kernel's arguments. */
struct Pointwise {
    Conv c;
    Tiling t;
    int row; /* bytes of a window's channels */
    int mask, shift;
    Divisor by_part, by_k;
    __device__ int swizzled(int at) const { return at ^ (at >> shift & mask); }
};

/* A group of filters: RUN neighbouring results of a window for each of eight lanes. Row r of instruction i along the filters is filter r RUN + 2 i, row
 * r + 8 the next filter. */
template <class T, int RUN> struct Group {
    enum { TILES = RUN / 2, PIECES = WINDOWS / 8, FILTERS = 8 * RUN, BYTES = FILTERS * BLOCK_BYTES /* of a block of channels */ };
    enum { ROWS = 2 * PIECES /* windows of a lane */ };
    using Sum = float[TILES][PIECES][4];

    /* Columns 2 t and 2 t + 1 of an instruction, which lane t has, are windows t and t + 4. */
    __device__ static int window_of_column(int column) { return column / 2 + column % 2 * 4; }
    __device__ static int window(int i) { return i / 2 * 8 + i % 2 * 4; }
    __device__ static float result(const Sum &sum, int i, int e) { return sum[e / 2][i / 2][e % 2 * 2 + i % 2]; }
};

template <class T> __device__ inline uint4 rounded(uint4 words) {
    if constexpr (sizeof(T) == 4) words = {round_tf32(words.x), round_tf32(words.y), round_tf32(words.z), round_tf32(words.w)};
    return words;
}

/* Loads a block's filters, [group][block of channels][filter of a lane][lane], zeros beyond the last filter and channel. A thread loads pairs of filters,
 * which prepare_filters interleaves. */
template <class T, int RUN> __device__ inline void load_filters(const Pointwise &g, int part, char *to) {
    using G = Group<T, RUN>;
    for (int i = (int)threadIdx.x; i < g.t.filters / VECTOR / 2; i += (int)blockDim.x) {
        int block;
        const int lane = i % 32, group = g.by_k.of(i / (G::BYTES / VECTOR / 2), block), at = block * BLOCK_BYTES + lane % 4 * VECTOR;
        const int first = (part * g.t.groups + group) * G::FILTERS + lane / 4 * RUN + i / 32 % G::TILES * 2;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const bool exists = first + j < g.c.filters && at < g.row;
            const char *const from = (const char *)g.c.weights + (exists ? (int64_t)(first + j) * g.row + at : 0);
            copy_async<VECTOR>(to + (i / 32 * 64 + j * 32 + lane) * VECTOR, from, exists ? VECTOR : 0);
        }
    }
}
/* Puts the pairs that this thread loaded into the order of an instruction's registers, once for all tiles, and rounds TF32. */
template <class T> __device__ inline void prepare_filters(const Pointwise &g, char *filters) {
    for (int i = (int)threadIdx.x; i < g.t.filters / VECTOR / 2; i += (int)blockDim.x) {
        uint4 *const at = (uint4 *)filters + i / 32 * 64 + i % 32;
        const uint4 even = rounded<T>(at[0]), odd = rounded<T>(at[32]);
        at[0] = {even.x, odd.x, even.y, odd.y}, at[32] = {even.z, odd.z, even.w, odd.w};
    }
}

/* Starts a warp's copies of a tile. */
__device__ inline void load_windows(const Pointwise &g, int tile, char *to, int lane) {
    const int bytes = min((int)WINDOWS, g.c.windows - tile * WINDOWS) * g.row;
    const char *from = (const char *)g.c.in + (int64_t)tile * WINDOWS * g.row + lane * VECTOR;
#pragma unroll 4
    for (int at = lane * VECTOR; at < bytes; at += 32 * VECTOR, from += 32 * VECTOR) copy_async<VECTOR>(to + g.swizzled(at), from, VECTOR);
}

/* sum = the products of a group of filters and a warp's windows */
template <class T, int RUN>
__device__ inline void multiply(const Pointwise &g, const char *filters, const char *windows, const char *zeros, int lane,
                                typename Group<T, RUN>::Sum &sum) {
    using G = Group<T, RUN>;
    filters += lane * VECTOR;
    int channel = lane % 4 * VECTOR;
    const int row = G::window_of_column(lane / 4) * g.row;
#pragma unroll 1
    for (int k = 0; k < g.t.blocks_k; k++, filters += G::BYTES, channel += BLOCK_BYTES) {
        const bool exists = channel < g.row;
        const char *const at = exists ? windows + g.swizzled(row + channel) : zeros;
        const int down = exists ? 8 * g.row : 0;
        uint4 window[G::PIECES];
#pragma unroll
        for (int i = 0; i < G::PIECES; i++) window[i] = rounded<T>(*(const uint4 *)(at + i * down));
#pragma unroll
        for (int j = 0; j < 2 * G::TILES; j++) {
            const uint4 filter = *(const uint4 *)(filters + j * 32 * VECTOR);
            const unsigned left[4] = {filter.x, filter.y, filter.z, filter.w};
#pragma unroll
            for (int i = 0; i < G::PIECES; i++) {
                const unsigned right[2] = {j % 2 ? window[i].z : window[i].x, j % 2 ? window[i].w : window[i].y};
                mma(sum[j / 2][i], left, right, T());
            }
        }
    }
}

/* The epilogue of a warp: each lane stores RUN results of each of its windows. Where results, factors and bias are aligned it has unrolled code, `direct`,
 * but not for smooth activations of four bytes; all else is a loop. */
template <class T, class Out, int RUN, bool PLAIN> struct Results {
    using G = Group<T, RUN>;
    using Vector = Pack<Out, RUN>;
    enum { BYTES = alignof(Vector) /* of a store */, AT_ONCE = PLAIN ? 4 : 2 /* windows */, NARROW = sizeof(Out) == 2 };
    using Rows = float[AT_ONCE][RUN];
    using To = Epilogue<float, Out, false>;
    const Problem &p;
    const bool direct;
    __device__ explicit Results(const Problem &of)
        : p(of), direct(PLAIN || (!p.by_row && (NARROW || !is_smooth(function_of(p.activation))) && To(p).aligned % BYTES == 0 &&
                                  (uintptr_t)p.bias % BYTES == 0 && (uintptr_t)p.scale % VECTOR == 0)) {}

    __device__ void store(int window, int filter, const typename G::Sum &sum) const {
        if (!direct) return store_slowly(window, filter, sum);
        if (filter >= p.n) return;
        Vector bias = {}; /* packed: registers are few */
        Pack<float, RUN> scale;
        if constexpr (!PLAIN) load_terms(filter, bias, scale);
#pragma unroll
        for (int first = 0; first < G::ROWS; first += AT_ONCE) {
            Rows rows;
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
#pragma unroll
                for (int e = 0; e < RUN; e++) rows[i][e] = G::result(sum, first + i, e);
            /* an output has fewer than 2^31 elements */
            const int pitch = (int)p.ldc, begin = window + G::window(first), rest = p.m - begin;
            Out *const to = (Out *)p.c + (begin * pitch + filter);
            if constexpr (!PLAIN) finish(to, rest, bias, scale, rows);
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                Vector result;
#pragma unroll
                for (int e = 0; e < RUN; e++) result.value[e] = Out(rows[i][e]);
                using Stored = typename Word<BYTES>::type;
#pragma unroll
                for (int v = 0; v < (int)(sizeof(Vector) / BYTES); v++)
                    Access<BYTES>::store((Stored *)(to + G::window(i) * pitch) + v, ((const Stored *)&result)[v], G::window(i) < rest);
            }
        }
    }

    /* Prefetches the results that a group of filters adds to, for beta C, into L2: each lane a line of one window. */
    __device__ void fetch_before(int first, int filter) const {
        if constexpr (!PLAIN) {
            const int lane = (int)threadIdx.x % 32, window = first + lane % 4 + G::window(lane / 4);
            if (p.beta != 0 && window < p.m && filter < p.n) fetch_line((const Out *)p.c + (window * (int)p.ldc + filter));
        }
    }

private:
    __device__ void load_terms(int filter, Vector &bias, Pack<float, RUN> &scale) const {
        const To to(p);
        if (to.bias) bias = *(const Vector *)(to.bias + filter);
        if (to.scale) scale = *(const Pack<float, RUN> *)(to.scale + filter);
#pragma unroll
        for (int e = 0; e < RUN; e++) scale.value[e] = to.scale ? to.alpha * scale.value[e] : to.alpha;
    }
    __device__ void finish(const Out *old_results, int rest, const Vector &bias, const Pack<float, RUN> &scale, Rows &rows) const {
        const To to(p);
        const Function function = function_of(p.activation);
        Vector old[AT_ONCE]; /* loaded together, before their use */
        if (to.beta != 0)
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
                old[i] = G::window(i) < rest ? *(const Vector *)(old_results + G::window(i) * (int)p.ldc) : Vector{};
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
#pragma unroll
            for (int e = 0; e < RUN; e++) rows[i][e] = fmaf(rows[i][e], scale.value[e], float(bias.value[e]));
            if (to.beta != 0)
#pragma unroll
                for (int e = 0; e < RUN; e++) rows[i][e] = fmaf(to.beta, float(old[i].value[e]), rows[i][e]);
            if constexpr (NARROW) activate<true>(function, p.activation, rows[i], to.low, to.high);
            else bound(function, rows[i], to.low, to.high);
        }
    }
    __device__ void store_slowly(int window, int filter, const typename G::Sum &sum) const {
        const Epilogue<float, Out> to(p);
        float rows[G::ROWS][RUN];
#pragma unroll
        for (int i = 0; i < G::ROWS; i++)
#pragma unroll
            for (int e = 0; e < RUN; e++) rows[i][e] = G::result(sum, i, e);
#pragma unroll 1
        for (int i = 0; i < G::ROWS; i++) { /* registers have no run-time index, so it shifts the rows */
            to.store(window + G::window(i), filter, rows[0]);
#pragma unroll
            for (int j = 0; j < G::ROWS - 1; j++)
#pragma unroll
                for (int e = 0; e < RUN; e++) rows[j][e] = rows[j + 1][e];
        }
    }
};

template <class T, class Out, int RUN, bool PLAIN> __device__ inline void stream(const Pointwise &g, int part, int worker, char *shared) {
    using G = Group<T, RUN>;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, step = g.t.workers * g.t.warps, ahead = g.t.stages - 1;
    const int begin = part * g.t.groups, groups = min(g.t.groups, ceil_div(g.c.filters, (int)G::FILTERS) - begin);
    char *const zeros = shared + g.t.filters, *const buffers = zeros + ZEROS + warp * g.t.stages * g.t.stage;
    const Results<T, Out, RUN, PLAIN> out(g.c.product);
    int tile = worker * g.t.warps + warp, stage = 0;
    const auto load = [&](int i) { /* tile number i of this warp after `tile` */
                                   const int next = tile + i * step, to = stage + i;
                                   if (next < g.t.tiles)
                                       load_windows(g, next, buffers + (to > ahead ? to - ahead - 1 : to) * g.t.stage, lane);
                                   commit_async();
    };
    wait_for_previous();
    load_filters<T, RUN>(g, part, shared);
    load(0);
    if (threadIdx.x < ZEROS / VECTOR) ((uint4 *)zeros)[threadIdx.x] = uint4{};
    wait_async<0>();
    prepare_filters<T>(g, shared);
    __syncthreads();
    for (int i = 1; i < ahead; i++) load(i); /* not before: the first tiles of all warps arrive first */
    for (; tile < g.t.tiles; tile += step) {
        if (ahead == 3) wait_async<2>(); /* for the oldest of `ahead` groups of copies */
        else if (ahead == 2) wait_async<1>();
        else wait_async<0>();
        __syncwarp(); /* and the buffer that is loaded next has been read */
        load(ahead);
        if (tile + step >= g.t.tiles) launch_dependents(); /* this warp's last tile */
        out.fetch_before(tile * WINDOWS, begin * G::FILTERS);
#pragma unroll 1
        for (int group = 0; group < groups; group++) {
            out.fetch_before(tile * WINDOWS, (begin + group + 1) * G::FILTERS);
            typename G::Sum sum = {};
            multiply<T, RUN>(g, shared + group * g.t.blocks_k * G::BYTES, buffers + stage * g.t.stage, zeros, lane, sum);
            out.store(tile * WINDOWS + lane % 4, (begin + group) * G::FILTERS + lane / 4 * RUN, sum);
        }
        stage = stage == ahead ? 0 : stage + 1;
    }
    wait_async<0>();
}

template <class T, int RUN> __global__ void __launch_bounds__(MAX_WARPS * 32, 1) pointwise_kernel(const __grid_constant__ Pointwise g) {
    if constexpr (CODE_CAPABILITY >= 80) {
        PYSIM_DYNAMIC_SHARED(shared);
        int part;
        const int worker = g.by_part.of((int)blockIdx.x, part);
        const auto run = [&](auto out) {
            using Out = decltype(out);
            const Epilogue<float, Out, false> to(g.c.product);
            if (to.plain && to.aligned % VECTOR == 0) stream<T, Out, RUN, true>(g, part, worker, shared);
            else stream<T, Out, RUN, false>(g, part, worker, shared);
        };
        if (sizeof(T) == 2 && g.c.product.c_dtype != PYSIM_F32) run(T());
        else run(float());
    }
}

template <class T> auto kernel_of(const Tiling &t) {
    enum { RUN = VECTOR / sizeof(T) };
    return t.run == RUN ? pointwise_kernel<T, RUN> : pointwise_kernel<T, RUN / 2>;
}

template <class T> cudaError_t start_stream(const Conv &c, const Tiling &t, cudaStream_t stream) {
    Pointwise g = {};
    g.t = t, g.c = c, g.row = c.channels * (int)sizeof(T);
    g.c.product.c = c.out, g.c.product.m = c.windows, g.c.product.n = c.filters;
    /* 4 row bytes are between the windows of lanes that load together: an odd multiple of 64, or one whose lowest bit is 6 + shift */
    for (int distance = 4 * g.row / BLOCK_BYTES; distance % 2 == 0; distance /= 2) g.mask = BLOCK_BYTES, g.shift++;
    g.by_part = Divisor((unsigned)g.t.parts), g.by_k = Divisor((unsigned)g.t.blocks_k);
    return pysim::start(kernel_of<T>(g.t), g, g.t.workers * g.t.parts, g.t.warps * 32, g.t.shared, stream);
}
}
#endif
