/* SPDX-License-Identifier: Apache-2.0
 * Convolution of few channels a group on mma.sync: m is windows, n filters, k taps and channels of one group alone, so nothing of another group
 * is multiplied.
 *
 * A block (tiles.h) brings the pixels that its windows touch to shared memory once, whatever the number of taps, and its filters. A lane's words of
 * an instruction's k may be any, so long as they are the same of both operands: 8 bytes, two words, of neighbouring channels of one tap. Four lanes
 * have four such units, of one tap or of several: 16 (tf32: 8) of k, of which none is wasted but in the last step. A warp takes 32 windows x 8 or 16
 * filters of a group at a time. Sums pass through shared memory, so that outputs leave it side by side.
 *
 * Filters lie as they do in memory under NHWC, [filter][tap][channel]; what does not lie so, or not in whole units, is gathered by elements, or by
 * neighbours of a row of an image (NCHW), with zeros to whole units. Outside the image there are zeros.
 *
 * Worked number: 3 x 3 taps of 16 channels of f16: 9 steps of two loads of windows and two of filters, 8 bytes a lane each, and four of mma.sync. */
#ifndef PYSIM_CUDA_CONV_GROUPED_KERNEL_CUH
#define PYSIM_CUDA_CONV_GROUPED_KERNEL_CUH
#include "conv/grouped/tiles.h"
#include "core/epilogue.cuh"
#include "core/ptx.cuh"
#include "mainloop/tensor/pipeline.cuh"

namespace pysim {
namespace grouped {

enum { THREADS = 256, WARPS = THREADS / 32, BLOCKS = 4 };

/* A kernel's arguments. */
struct Grouped {
    Conv c;
    Tiling t;
    int vector, whole; /* bytes that come at once of a pixel, of a filter; 0: element by element */
    int piece;         /* NCHW: columns that come at once of a channel */
    int shares;        /* warps that go through the items of the same windows */
    Divisor by_part, by_tile_w, by_tile_h, by_wide, by_columns, by_pixels, by_places, by_units, by_vectors, by_steps, by_taps, by_chunks, by_share;
};

/* Where a block's outputs lie: rectangle, groups, filters of each of them. */
struct Block {
    int image, p, q, group, groups, filter, filters; /* filter: of all, the first */
    __device__ Block(const Grouped &g, int index) {
        const Conv &c = g.c;
        int part, chunk;
        index = g.by_part.of(index, part), index = g.by_tile_w.of(index, q);
        image = g.by_tile_h.of(index, p);
        p *= g.t.high, q *= g.t.wide;
        group = g.by_chunks.of(part, chunk) * g.t.groups;
        groups = min(g.t.groups, c.groups - group);
        filter = group * c.filters + chunk * g.t.filters, filters = min(g.t.filters, c.filters - chunk * g.t.filters);
    }
};

template <class T> struct alignas(UNIT) Unit { T value[UNIT / sizeof(T)]; };

/* Filters of a block, [filter][tap][channels in whole units], zeros to whole steps. */
template <class T> __device__ inline void stage_filters(const Grouped &g, const Block &b, char *to) {
    enum { OF = UNIT / sizeof(T) };
    const Conv &c = g.c;
    const int real = g.t.taps * g.t.units, count = b.groups * b.filters * (int)g.by_steps.divisor;
    const T *const from = (const T *)c.weights + (int64_t)b.filter * c.k;
    for (int i = (int)threadIdx.x; i < count; i += THREADS) {
        int at;
        const int filter = g.by_steps.of(i, at);
        if (g.whole) {
            const int first = at * g.whole, some = first < real * UNIT ? g.whole : 0;
            const char *const source = (const char *)(from + filter * c.k) + (some ? first : 0);
            char *const place = to + filter * g.t.filter_pitch + first;
            if (g.whole == 16) copy_async<16>(place, source, some);
            else copy_async<UNIT>(place, source, some);
            continue;
        }
        int tap; /* lanes go along the taps of a channel, as they lie under NCHW */
        const int unit = g.by_taps.of(at, tap);
        Unit<T> word = {};
        if (at < real) {
            at = tap * g.t.units + unit;
#pragma unroll
            for (int e = 0; e < OF; e++)
                if (unit * OF + e < c.channels) word.value[e] = from[filter * c.k + (c.nhwc ? tap * c.channels + unit * OF + e : (unit * OF + e) * g.t.taps + tap)];
        }
        *(Unit<T> *)(to + filter * g.t.filter_pitch + at * UNIT) = word;
    }
}

/* The pixels that a block's windows touch, [row][column][group][channels in whole units], in vectors of neighbouring channels. */
template <class T> __device__ inline void stage_vectors(const Grouped &g, const Block &b, char *to) {
    const Conv &c = g.c;
    const int h0 = b.p * c.stride_h - c.pad_top, w0 = b.q * c.stride_w - c.pad_left, pitch = c.groups * c.channels;
    const int bytes = b.groups * c.channels * (int)sizeof(T), count = g.t.rows * g.t.columns * (int)g.by_vectors.divisor;
    const T *const from = (const T *)c.in + (int64_t)b.image * c.height * c.width * pitch + b.group * c.channels;
    for (int i = (int)threadIdx.x; i < count; i += THREADS) {
        int at, w;
        const int pixel = g.by_vectors.of(i, at), left = bytes - at * g.vector, h = h0 + g.by_columns.of(pixel, w);
        w += w0;
        const bool inside = (unsigned)h < (unsigned)c.height && (unsigned)w < (unsigned)c.width;
        const int some = inside ? max(0, min(left, g.vector)) : 0;
        const void *source = some ? (const char *)(from + (h * c.width + w) * pitch) + at * g.vector : (const char *)c.in;
        char *const place = to + pixel * g.t.pitch + at * g.vector;
        if (g.vector == 16) copy_async<16>(place, source, some);
        else copy_async<8>(place, source, some);
    }
}

/* The same by elements, or PIECE neighbours of a row of each channel of a unit (NCHW), of which so many units are made. Pieces lie at multiples of
 * their size, so that one is in the image or is not; the first and last of a row of the tile may begin before it and end after it. */
template <class T, int PIECE> __device__ inline void gather_windows(const Grouped &g, const Block &b, char *to) {
    enum { OF = UNIT / sizeof(T), AT_ONCE = PIECE == 4 ? 2 : 4 }; /* units, or pieces of them, of a thread that are on their way together */
    const Conv &c = g.c;
    const int h0 = b.p * c.stride_h - c.pad_top, w0 = b.q * c.stride_w - c.pad_left, before = w0 & (PIECE - 1);
    const int plane = c.nhwc ? 1 : c.height * c.width, column = c.nhwc ? c.groups * c.channels : 1;
    const T *const from = (const T *)c.in + ((int64_t)b.image * c.groups * c.height * c.width + (int64_t)b.group * plane) * c.channels;
    const int count = g.t.rows * (int)g.by_columns.divisor * (int)g.by_places.divisor;
    /* Warps have as many as that of them or none. Lanes go along pixels; along the units of a pixel first where they store several pixels, which would
     * lie on the same banks. */
    for (int first = (int)threadIdx.x / 32 * 32 * AT_ONCE + (int)threadIdx.x % 32; first < count; first += AT_ONCE * THREADS) {
        Pack<T, PIECE> found[AT_ONCE][OF] = {};
        int places[AT_ONCE], columns[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            int pixel, place, unit, w;
            if constexpr (PIECE > 1) pixel = g.by_places.of(first + i * 32, place);
            else place = g.by_pixels.of(first + i * 32, pixel);
            const int group = g.by_units.of(place, unit), row = g.by_columns.of(pixel, w), h = h0 + row;
            columns[i] = first + i * 32 < count ? w * PIECE - before : -PIECE;
            places[i] = (row * g.t.columns + columns[i]) * g.t.pitch + place * UNIT;
            w = w0 + columns[i];
            const bool there = first + i * 32 < count && group < b.groups && (unsigned)h < (unsigned)c.height && (unsigned)w < (unsigned)c.width;
            const T *const at = from + (group * c.channels + unit * OF) * plane + (h * c.width + w) * column;
#pragma unroll
            for (int e = 0; e < OF; e++)
                if (there && unit * OF + e < c.channels) found[i][e] = *(const Pack<T, PIECE> *)(at + e * plane);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
#pragma unroll
            for (int j = 0; j < PIECE; j++) {
                Unit<T> word;
#pragma unroll
                for (int e = 0; e < OF; e++) word.value[e] = found[i][e].value[j];
                if ((unsigned)(columns[i] + j) < (unsigned)g.t.columns) *(Unit<T> *)(to + places[i] + j * g.t.pitch) = word;
            }
    }
}

template <class T, bool NHWC> __device__ inline void stage_windows(const Grouped &g, const Block &b, char *to) {
    if constexpr (NHWC) {
        if (g.vector) return stage_vectors<T>(g, b, to);
    } else {
        if (g.piece == 4) return gather_windows<T, 4>(g, b, to);
        if (g.piece == 2) return gather_windows<T, 2>(g, b, to);
    }
    gather_windows<T, 1>(g, b, to);
}

template <class T> __device__ inline uint2 operand(const void *at) {
    uint2 words = *(const uint2 *)at;
    if constexpr (sizeof(T) == 4) words.x = round_tf32(words.x), words.y = round_tf32(words.y);
    return words;
}

/* Where a sum lies: filters, or windows under NCHW, side by side, as they are stored. */
template <bool NHWC> __device__ inline int sum_at(const Grouped &g, int window, int filter) {
    return NHWC ? window * SUM_PITCH + filter : filter * g.t.sum_row + window;
}

/* A warp's 32 windows by ACROSS x 8 filters of each group that is its turn. */
template <class T, int ACROSS, bool NHWC> __device__ inline void multiply(const Grouped &g, const Block &b, const char *shared, float *sums) {
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, row = lane / 4, unit = lane % 4;
    const int windows = g.t.high * g.t.wide;
    int first;
    const int share = g.by_share.of(warp, first);
    if (share >= g.shares) return;
    first *= CHUNK;
    const int *const offsets = (const int *)shared + unit;
    int base[2][2];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int q;
        const int window = first + i * 8 + row, p = g.by_wide.of(min(window, windows - 1), q);
        base[i / 2][i % 2] = g.t.at_windows + (p * g.c.stride_h * g.t.columns + q * g.c.stride_w) * g.t.pitch;
    }
    const int across = ceil_div(b.filters, 8 * ACROSS), whole = g.t.taps * g.t.units / STEP_UNITS;
    for (int item = share; item < b.groups * across; item += g.shares) {
        const int group = item / across, n = item % across * 8 * ACROSS;
        const char *const windows_at = shared + group * g.t.units * UNIT;
        const char *filters[ACROSS];
#pragma unroll
        for (int j = 0; j < ACROSS; j++)
            filters[j] = shared + g.t.at_filters + (group * b.filters + min(n + j * 8 + row, b.filters - 1)) * g.t.filter_pitch + unit * UNIT;
        float sum[2][ACROSS][4] = {};
        const auto step = [&](int s, bool there) { /* what is there of the last step alone is multiplied: zero times infinity is NaN */
            const int offset = offsets[s * STEP_UNITS];
            uint2 right[ACROSS];
#pragma unroll
            for (int j = 0; j < ACROSS; j++) right[j] = operand<T>(filters[j] + s * STEP_UNITS * UNIT);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint2 left[2] = {};
#pragma unroll
                for (int half = 0; half < 2; half++)
                    if (there) left[half] = operand<T>(windows_at + base[i][half] + offset);
                const unsigned a[4] = {left[0].x, left[1].x, left[0].y, left[1].y};
#pragma unroll
                for (int j = 0; j < ACROSS; j++) {
                    const unsigned words[2] = {right[j].x, right[j].y};
                    mma(sum[i][j], a, words, T());
                }
            }
        };
#pragma unroll 3
        for (int s = 0; s < whole; s++) step(s, true);
        if (whole < g.t.steps) step(whole, whole * STEP_UNITS + unit < g.t.taps * g.t.units);
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int j = 0; j < ACROSS; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const int filter = n + j * 8 + unit * 2 + e % 2;
                    if (filter < b.filters) sums[sum_at<NHWC>(g, first + i * 16 + e / 2 * 8 + row, group * b.filters + filter)] = sum[i][j][e];
                }
    }
}

/* The sums of a block, filters side by side (NHWC), or windows of a row: COUNT of them at once, by neighbouring lanes. */
template <bool NHWC, int COUNT, class Out> __device__ inline void store(const Grouped &g, const Block &b, const float *sums) {
    const Conv &c = g.c;
    const int count = b.groups * b.filters, windows = g.t.high * g.t.wide;
    Problem p = c.product;
    p.c = c.out, p.m = c.windows, p.n = b.filter + count;
    const Epilogue<float, Out> to(p);
    enum { LANES = NHWC ? FILTERS / COUNT : WINDOWS / COUNT };
    const int all = (NHWC ? windows : count) * LANES;
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < all; i += THREADS) {
        const int line = i / LANES, at = i % LANES * COUNT, window = NHWC ? line : at, filter = NHWC ? at : line;
        if (window >= windows || filter >= count) continue;
        int x;
        const int y = b.p + g.by_wide.of(window, x);
        x += b.q;
        if (y >= c.out_h || x >= c.out_w) continue;
        const auto found = *(const Pack<float, COUNT> *)(sums + sum_at<NHWC>(g, window, filter));
        const auto &acc = found.value;
        if constexpr (NHWC) to.store((b.image * c.out_h + y) * c.out_w + x, b.filter + filter, acc);
        else {
            using Vector = Pack<Out, COUNT>;
            Vector *const place = (Vector *)(to.c + ((b.image * c.groups * c.filters + b.filter + filter) * c.out_h + y) * c.out_w + x);
            Vector result = to.beta != 0 ? *place : Vector{};
            to.finish(acc, result.value, [&](int) { return b.filter + filter; });
            *place = result;
        }
    }
}

template <class T, int ACROSS, bool NHWC> __global__ void __launch_bounds__(THREADS, BLOCKS) grouped_kernel(const __grid_constant__ Grouped g) {
    if constexpr (CODE_CAPABILITY >= 80) {
        PYSIM_DYNAMIC_SHARED(shared);
        const Block b(g, (int)blockIdx.x);
        stage_windows<T, NHWC>(g, b, shared + g.t.at_windows);
        stage_filters<T>(g, b, shared + g.t.at_filters);
        commit_async();
        for (int i = (int)threadIdx.x; i < g.t.steps * STEP_UNITS; i += THREADS) {
            const int tap = i / g.t.units, r = tap / g.c.kernel_w, s = tap - r * g.c.kernel_w;
            ((int *)shared)[i] = (r * g.c.dilation_h * g.t.columns + s * g.c.dilation_w) * g.t.pitch + (i - tap * g.t.units) * UNIT;
        }
        wait_async<0>();
        __syncthreads();
        float *const sums = (float *)(shared + g.t.at_sums);
        multiply<T, ACROSS, NHWC>(g, b, shared, sums);
        __syncthreads();
        const auto as = [&](auto out) {
            using Out = decltype(out);
            if constexpr (NHWC) store<true, 16 / sizeof(Out), Out>(g, b, sums);
            else if (g.t.wide % 4 == 0 && g.c.out_w % 4 == 0 && (uintptr_t)g.c.out % (4 * sizeof(Out)) == 0) store<false, 4, Out>(g, b, sums);
            else store<false, 1, Out>(g, b, sums);
        };
        if (sizeof(T) == 2 && g.c.product.c_dtype != PYSIM_F32) as(T());
        else as(0.f);
    }
}

/* f(kernel) for a convolution's layout and filters. */
template <class T, class F> cudaError_t choose(const Conv &c, F f) {
    if (c.filters > 8) return c.nhwc ? f(grouped_kernel<T, 2, true>) : f(grouped_kernel<T, 2, false>);
    return c.nhwc ? f(grouped_kernel<T, 1, true>) : f(grouped_kernel<T, 1, false>);
}

inline Grouped prepare(const Conv &c, const Tiling &t) {
    const int element = dtypes[c.dtype].bytes, part = t.groups * c.channels * element;
    const auto begins = [&](const void *at, int multiple) { return (uintptr_t)at % multiple == 0; };
    const bool units = c.nhwc && c.channels * element % UNIT == 0;
    const bool sixteen = units && c.groups * c.channels * element % 16 == 0 && part % 16 == 0 && begins(c.in, 16);
    Grouped g = {};
    g.c = c, g.t = t;
    g.vector = sixteen ? 16 : units && begins(c.in, UNIT) ? UNIT : 0;
    g.whole = !units || !begins(c.weights, UNIT) ? 0 : c.k * element % 16 == 0 && begins(c.weights, 16) ? 16 : UNIT;
    const auto pieces = [&](int of) { return !c.nhwc && c.width % of == 0 && begins(c.in, of * element); };
    g.piece = pieces(4) ? 4 : pieces(2) ? 2 : 1;
    const int chunks = ceil_div(t.high * t.wide, CHUNK), across = (t.columns + 2 * g.piece - 2) / g.piece;
    g.shares = WARPS / chunks, g.by_share = Divisor((unsigned)chunks);
    g.by_part = Divisor((unsigned)t.parts(c)), g.by_tile_w = Divisor((unsigned)t.tiles_w), g.by_tile_h = Divisor((unsigned)t.tiles_h);
    g.by_wide = Divisor((unsigned)t.wide), g.by_columns = Divisor((unsigned)across), g.by_pixels = Divisor((unsigned)(t.rows * t.columns));
    g.by_places = Divisor((unsigned)(t.groups * t.units));
    g.by_units = Divisor((unsigned)t.units), g.by_vectors = Divisor((unsigned)(g.vector ? ceil_div(part, g.vector) : 1));
    g.by_steps = Divisor((unsigned)(t.steps * STEP_UNITS * UNIT / (g.whole ? g.whole : UNIT))), g.by_taps = Divisor((unsigned)t.taps);
    g.by_chunks = Divisor((unsigned)ceil_div(c.filters, t.filters));
    return g;
}

template <class T> pysim_status launch(const Conv &c, int sms, cudaStream_t stream) {
    const Tiling t = tiling_of(c, sms);
    return check(choose<T>(c, [&](auto kernel) { return start(kernel, prepare(c, t), (int)t.blocks(c), THREADS, t.shared, stream); }), "a grouped convolution");
}
template <class T> cudaError_t attributes(const Conv &c, pysim_cuda_attributes *out) {
    const Tiling t = tiling_of(c, 1);
    return choose<T>(c, [&](auto kernel) { return attributes_of(kernel, THREADS, t.shared, out); });
}
}
}
#endif
