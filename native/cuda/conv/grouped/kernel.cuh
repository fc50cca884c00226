/* SPDX-License-Identifier: Apache-2.0
 * Convolution of few channels a group on mma.sync. m is windows, n is filters, k is taps and channels of one group only, so nothing of another group is
 * multiplied.
 *
 * A block (tiles.h) loads the pixels of its windows to shared memory once for all taps, and its filters. The assignment of k to a lane's words is free
 * if A and B agree: a lane has a unit of 8 bytes, two words, of neighbouring channels of one tap. Four lanes have four units, of one tap or of several:
 * 16 (tf32: 8) of k, of which only the last k-iteration wastes some. A warp computes 32 windows x 8 or 16 filters of a group at a time; its
 * accumulators pass through shared memory, so that stores are contiguous. With `single` it computes up to 32 filters of the only group and stores from
 * registers: windows (NCHW) or filters (NHWC) are permuted along an instruction's m and n so that a lane has neighbours. Under NHWC up to 16 filters are
 * too few for that: four lanes exchange windows.
 *
 * Filters in the NHWC order [filter][tap][channel] with whole units are copied; others are gathered by elements, or by neighbours of an image row (NCHW), and
 * padded with zeros to whole units. Pixels outside the image are zeros.
 *
 * Worked number: 3 x 3 taps of 16 channels of f16: 9 k-iterations of two loads of windows and two of filters, 8 bytes a lane each, and four mma.sync. */
#ifndef PYSIM_CUDA_CONV_GROUPED_KERNEL_CUH
#define PYSIM_CUDA_CONV_GROUPED_KERNEL_CUH
#include "conv/grouped/block.cuh"
#include "core/epilogue.cuh"
#include "core/ptx.cuh"
#include "mainloop/mma/pipeline.cuh"

namespace pysim::grouped {

template <class T> struct alignas(UNIT) Unit {
    T value[UNIT / sizeof(T)];
};

/* The filter of element `e` (0 or 1) of tile `j` in the lanes with lane % 4 == `unit`. Under NHWC a lane gets 16 bytes of contiguous outputs. */
template <class T, bool NHWC> __device__ constexpr int filter_at(int j, int unit, int e) {
    constexpr int WIDE = 16 / sizeof(T), TILES = WIDE / 2;
    return NHWC ? j / TILES * 4 * WIDE + WIDE * unit + j % TILES * 2 + e : j * 8 + unit * 2 + e;
}

/* Loads the filters of a block, [filter][tap][channels in whole units], padded with zeros to whole k-iterations. */
template <class T, int TILES, bool SINGLE> __device__ inline void stage_filters(const Grouped &g, const Block &b, char *to) {
    enum { OF = UNIT / sizeof(T) };
    const Conv &c = g.c;
    const int real = g.t.taps * g.t.units, count = (SINGLE ? g.t.slots : b.groups * b.filters) * (int)g.by_steps.divisor;
    const T *const from = (const T *)c.weights + (int64_t)b.filter * c.k;
    for (int i = (int)threadIdx.x; i < count; i += THREADS) {
        int at;
        const int slot = g.by_steps.of(i, at), in_turn = slot % ACROSS;
        int filter = slot;
        if constexpr (SINGLE) { /* in the order in which its lanes have them */
            const int j = in_turn / 8, unit = in_turn % 8 / 2, e = in_turn % 2;
            const bool permuted = c.nhwc && TILES * 8 == ACROSS;
            filter = min(slot - in_turn + (permuted ? filter_at<T, true>(j, unit, e) : in_turn), b.filters - 1);
        }
        if (g.whole) {
            const int first = at * g.whole, some = first < real * UNIT ? g.whole : 0;
            const char *const source = (const char *)(from + filter * c.k) + (some ? first : 0);
            char *const place = to + slot * g.t.filter_pitch + first;
            if (g.whole == 16) copy_async<16>(place, source, some);
            else copy_async<UNIT>(place, source, some);
            continue;
        }
        int tap, s; /* lanes run along the taps of a channel, which are contiguous under NCHW */
        const int unit = g.by_taps.of(at, tap), r = g.by_across.of(tap, s);
        Unit<T> word = {};
        if (at < real) {
            at = tap * g.t.units + unit;
#pragma unroll
            for (int e = 0; e < OF; e++) {
                const int apart = SINGLE && g.t.fold > 1 ? e / c.channels : 0, column = s * g.t.fold + apart,
                          channel = unit * OF + e - apart * c.channels;
                if (channel < c.channels && apart < g.t.fold && column < c.kernel_w) {
                    const int of_tap = r * c.kernel_w + column;
                    word.value[e] = from[filter * c.k + (c.nhwc ? of_tap * c.channels + channel : channel * c.taps() + of_tap)];
                }
            }
        }
        *(Unit<T> *)(to + slot * g.t.filter_pitch + at * UNIT) = word;
    }
}

/* The offset of each unit of k from a window's first unit. The top byte has the number of its bytes to mask: units past the last tap, and elements of
 * a fold past the kernel. They must be masked because the image may have infinities or NaN there, which times zero are NaN. */
template <class T> __device__ inline void list_units(const Grouped &g, int *to) {
    const Conv &c = g.c;
    for (int i = (int)threadIdx.x; i < g.t.steps * STEP_UNITS; i += THREADS) {
        int tap, unit, s;
        tap = g.by_units.of(i, unit);
        const int line = g.by_across.of(tap, s), t = c.volumes ? line / c.kernel_h : 0, left = c.kernel_w - s * g.t.fold;
        const int row = t * g.t.down + (line - t * c.kernel_h) * c.dilation_h;
        const int offset = (row * g.t.columns + s * g.t.fold * c.dilation_w) * g.t.pitch + unit * UNIT;
        const int none = left < g.t.fold ? UNIT - left * c.channels * (int)sizeof(T) : 0;
        to[i] = tap < g.t.taps ? offset | none << 24 : UNIT << 24;
    }
}

/* Loads the pixels that a block's windows read, [row][column][group][channels in whole units], in vectors of neighbouring channels. */
template <class T> __device__ inline void stage_vectors(const Grouped &g, const Block &b, char *to) {
    const Conv &c = g.c;
    const int w0 = b.q * c.stride_w - c.pad_left, pitch = c.groups * c.channels;
    const int bytes = b.groups * c.channels * (int)sizeof(T), count = g.t.rows * g.t.columns * (int)g.by_vectors.divisor;
    const T *const from = (const T *)c.in + (int64_t)b.image * c.rows() * c.width * pitch + b.group * c.channels;
    for (int i = (int)threadIdx.x; i < count; i += THREADS) {
        int at, w, h;
        const int pixel = g.by_vectors.of(i, at), left = bytes - at * g.vector;
        const bool there = row_of(g, b, g.by_columns.of(pixel, w), h);
        w += w0;
        const bool inside = there && (unsigned)w < (unsigned)c.width;
        const int some = inside ? max(0, min(left, g.vector)) : 0;
        const void *source = some ? (const char *)(from + (h * c.width + w) * pitch) + at * g.vector : (const char *)c.in;
        char *const place = to + pixel * g.t.pitch + at * g.vector;
        if (g.vector == 16) copy_async<16>(place, source, some);
        else copy_async<8>(place, source, some);
    }
}

/* The same, element by element (FOLD: a unit has elements of several columns), or PIECE neighbours of a row at a time (NCHW), from which PIECE units
 * are made. Pieces are aligned, so one is entirely inside or entirely outside the image; the first and last of a tile's row may reach beyond the
 * tile. */
template <class T, int PIECE, bool FOLD = false> __device__ inline void gather_windows(const Grouped &g, const Block &b, char *to) {
    enum { OF = UNIT / sizeof(T), AT_ONCE = PIECE == 4 ? 2 : 4 }; /* loads of a thread that are in flight together */
    const Conv &c = g.c;
    const int w0 = b.q * c.stride_w - c.pad_left, before = w0 & (PIECE - 1);
    const int plane = c.nhwc ? 1 : c.rows() * c.width, column = c.nhwc ? c.groups * c.channels : 1;
    const T *const from = (const T *)c.in + ((int64_t)b.image * c.groups * c.rows() * c.width + (int64_t)b.group * plane) * c.channels;
    const int count = g.t.rows * (int)g.by_columns.divisor * (int)g.by_places.divisor;
    /* The loop is uniform in a warp. Lanes run along pixels; with PIECE > 1 along the units of a pixel first, to avoid bank conflicts between lanes
     * that store several pixels each. */
    for (int first = (int)threadIdx.x / 32 * 32 * AT_ONCE + (int)threadIdx.x % 32; first < count; first += AT_ONCE * THREADS) {
        Pack<T, PIECE> found[AT_ONCE][OF] = {};
        int places[AT_ONCE], columns[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            int pixel, place, unit, w, h;
            if constexpr (PIECE > 1) pixel = g.by_places.of(first + i * 32, place);
            else place = g.by_pixels.of(first + i * 32, pixel);
            const int group = g.by_units.of(place, unit), row = g.by_columns.of(pixel, w);
            const bool in_row = row_of(g, b, row, h);
            columns[i] = first + i * 32 < count ? w * PIECE - before : -PIECE;
            places[i] = (row * g.t.columns + columns[i]) * g.t.pitch + place * UNIT;
            w = w0 + columns[i];
            const bool there = first + i * 32 < count && group < b.groups && in_row && (FOLD || (unsigned)w < (unsigned)c.width);
            const T *const at = from + (group * c.channels + unit * OF) * plane + (h * c.width + w) * column;
#pragma unroll
            for (int e = 0; e < OF; e++)
                if constexpr (FOLD) {
                    const int apart = e / c.channels, channel = e - apart * c.channels, x = apart * c.dilation_w;
                    if (there && apart < g.t.fold && (unsigned)(w + x) < (unsigned)c.width)
                        found[i][e].value[0] = at[channel * plane + x * column];
                } else if (there && unit * OF + e < c.channels) found[i][e] = *(const Pack<T, PIECE> *)(at + e * plane);
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

template <class T, bool NHWC, bool SINGLE> __device__ inline void stage_windows(const Grouped &g, const Block &b, char *to) {
    if constexpr (SINGLE)
        if (g.t.fold > 1) return gather_windows<T, 1, true>(g, b, to);
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

/* Index of an accumulator in shared memory: filters, or windows under NCHW, are contiguous. */
template <bool NHWC> __device__ inline int sum_at(const Grouped &g, int window, int filter) {
    return NHWC ? window * SUM_PITCH + filter : filter * g.t.sum_row + window;
}

/* Masks a unit's last bytes: they could be infinite, and zero times infinity is NaN. */
__device__ inline uint2 masked(uint2 words, int none) {
    const unsigned long long mask = none < UNIT ? ~0ull >> 8 * none : 0;
    return {words.x & (unsigned)mask, words.y & (unsigned)(mask >> 32)};
}

/* Multiplies a warp's 32 windows by TILES x 8 filters at a time, over its share of groups; calls store(group, first window, first filter, sums). */
template <class T, int TILES, bool NHWC, bool SINGLE, class Store>
__device__ inline void multiply(const Grouped &g, const Block &b, const char *shared, const char *pixels, Store store) {
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
        const int window = first + (SINGLE && !NHWC ? row * 4 + i : i * 8 + row), p = g.by_wide.of(min(window, windows - 1), q);
        base[i / 2][i % 2] = (p * g.c.stride_h * g.t.columns + q * g.c.stride_w) * g.t.pitch;
    }
    const int across = ceil_div(b.filters, 8 * TILES);
    for (int item = share; item < b.groups * across; item += g.shares) {
        const int group = item / across, n = item % across * 8 * TILES;
        const char *const windows_at = pixels + group * g.t.units * UNIT;
        int filters[TILES];
#pragma unroll
        for (int j = 0; j < TILES; j++) {
            const int slot = SINGLE ? n + j * 8 + row : group * b.filters + min(n + j * 8 + row, b.filters - 1);
            filters[j] = g.t.at_filters + slot * g.t.filter_pitch + unit * UNIT;
        }
        float sum[2][TILES][4] = {};
        const auto step = [&](int s, auto masks) {
            constexpr bool MASKS = decltype(masks)::value;
            const int listed = offsets[s * STEP_UNITS], offset = MASKS ? listed & 0xffffff : listed;
            uint2 right[TILES];
#pragma unroll
            for (int j = 0; j < TILES; j++) right[j] = operand<T>(shared + filters[j] + s * STEP_UNITS * UNIT);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint2 left[2];
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    left[half] = operand<T>(windows_at + base[i][half] + offset);
                    if constexpr (MASKS) left[half] = masked(left[half], listed >> 24);
                }
                const unsigned a[4] = {left[0].x, left[1].x, left[0].y, left[1].y};
#pragma unroll
                for (int j = 0; j < TILES; j++) {
                    const unsigned words[2] = {right[j].x, right[j].y};
                    mma(sum[i][j], a, words, T());
                }
            }
        };
#pragma unroll SINGLE ? 1 : 3
        for (int s = 0; s < g.whole_steps; s++) step(s, std::false_type());
#pragma unroll 1
        for (int s = g.whole_steps; s < g.t.steps; s++) step(s, std::true_type());
        store(group, first, n, sum);
    }
}

/* Stores a warp's accumulators to shared memory. */
template <int TILES, bool NHWC> __device__ inline void keep(const Grouped &g, const Block &b, float *sums, int group, int first, int n,
                                                            const float (&sum)[2][TILES][4]) {
    const int lane = (int)threadIdx.x % 32, row = lane / 4, unit = lane % 4;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < TILES; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int filter = n + j * 8 + unit * 2 + e % 2;
                if (filter < b.filters) sums[sum_at<NHWC>(g, first + i * 16 + e / 2 * 8 + row, group * b.filters + filter)] = sum[i][j][e];
            }
}

/* Reorders a lane's accumulators into runs of eight that are stored together: of one window (NHWC), or of four windows and two filters (NCHW). */
template <int TILES, bool NHWC> __device__ inline void in_turns(const float (&sum)[2][TILES][4], float (&of)[TILES * 8]) {
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int e = 0; e < 8; e++) of[t * 8 + e] = NHWC ? sum[t / 2][e / 2][t % 2 * 2 + e % 2] : sum[e % 4 / 2][t][e % 2 * 2 + e / 4];
}

/* The same of NHWC with 8 or 16 filters: a lane has two filters of four windows, and gets eight filters of the window of its number among its four lanes. */
template <int TILES> __device__ inline void exchanged(const float (&sum)[2][TILES][4], float (&of)[TILES * 8]) {
    const int lane = (int)threadIdx.x % 4;
#pragma unroll
    for (int t = 0; t < TILES; t++) {
#pragma unroll
        for (int e = 0; e < 8; e++) of[t * 8 + e] = sum[e / 4][t][e % 4]; /* filters 0 and 1 of window 0, of window 1 ... */
#pragma unroll
        for (int bit = 1; bit < 4; bit *= 2)
#pragma unroll
            for (int e = 0; e < 8; e++)
                if (!(e / 2 & bit)) {
                    float &low = of[t * 8 + e], &high = of[t * 8 + e + 2 * bit];
                    const float got = __shfl_xor_sync(~0u, lane & bit ? low : high, bit);
                    (lane & bit ? low : high) = got;
                }
    }
}

/* The epilogue from registers: stores 16 bytes of a window's filters at a time (NHWC; 32 for f32 results of a 16-bit type), or four windows of a row.
 * The loop over tiles is rolled and shifts the accumulators down, since unrolled activation functions made compilation ten times as long. */
template <class T, class Out, int TILES, bool NHWC> __device__ inline void store_single(const Grouped &g, const Block &b, int first, int n,
                                                                                        const float (&sum)[2][TILES][4]) {
    const Conv &c = g.c;
    const int lane = (int)threadIdx.x % 32, row = lane / 4, unit = lane % 4, windows = g.t.high * g.t.wide, plane = c.out_h * c.out_w;
    Problem p = c.product;
    p.c = c.out, p.m = c.windows, p.n = b.filter + b.filters;
    const Epilogue<float, Out> to(p);
    const bool fours = !NHWC && g.t.wide % 4 == 0 && c.out_w % 4 == 0 && (uintptr_t)c.out % (4 * sizeof(Out)) == 0;
    /* whether a window exists; `position`: its output's index in a plane */
    const auto place_of = [&](int window, int &position) {
        int x;
        const int y = b.p + g.by_wide.of(window, x);
        x += b.q, position = (b.slice * c.slice_rows + y) * c.out_w + x;
        return window < windows && y < c.slice_rows && x < c.out_w;
    };
    constexpr bool FEW = NHWC && TILES < 4; /* an iteration per tile of filters; else per window of a lane */
    float of[TILES * 8];
    if constexpr (FEW) exchanged<TILES>(sum, of);
    else in_turns<TILES, NHWC>(sum, of);
#pragma unroll 1
    for (int tile = 0; tile < TILES; tile++) {
        int position;
        if constexpr (NHWC) {
            enum { WIDE = 16 / sizeof(T) };
            if (place_of(first + (FEW ? unit : tile) * 8 + row, position)) {
#pragma unroll
                for (int v = 0; v < 8; v += WIDE) {
                    float acc[WIDE];
#pragma unroll
                    for (int e = 0; e < WIDE; e++) acc[e] = of[v + e];
                    const int filter = FEW ? tile * 8 + v : filter_at<T, true>(v / 2, unit, 0);
                    to.store(b.image * plane + position, b.filter + n + filter, acc);
                }
            }
        } else { /* the braces are needed: nvcc 13 drops the code after an untaken statement that has a pragma */
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int filter = n + filter_at<T, false>(tile, unit, half), line = b.filter + filter, window = first + row * 4;
                if (filter >= b.filters || window >= windows) continue;
                Out *const of_filter = to.c + ((int64_t)b.image * c.groups * c.filters + line) * plane;
                using Vector = Pack<Out, 4>;
                Vector result = {};
                const auto each = [&](auto apply) {
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        if (place_of(window + i, position)) apply(of_filter[position], result.value[i]);
                };
                const bool inside = place_of(window, position);
                Vector *const place = (Vector *)(of_filter + position);
                if (fours && !inside) continue;
                if (to.beta != 0) {
                    if (fours) result = *place;
                    else each([](Out &there, Out &here) { here = there; });
                }
                float acc[4];
#pragma unroll
                for (int i = 0; i < 4; i++) acc[i] = of[half * 4 + i];
                to.finish(acc, result.value, [&](int) { return line; });
                if (fours) *place = result;
                else each([](Out &there, Out &here) { there = here; });
            }
        }
#pragma unroll
        for (int i = 0; i < TILES * 8 - 8; i++) of[i] = of[i + 8];
    }
}

/* The epilogue from shared memory: COUNT neighbouring filters (NHWC) or windows of a row (NCHW) at a time; neighbouring lanes store neighbours. */
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
        int y = b.p + g.by_wide.of(window, x);
        x += b.q;
        if (y >= c.slice_rows || x >= c.out_w) continue;
        y += b.slice * c.slice_rows;
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

/* Computes a block's rectangle by TILES of 8 filters. Loads of its pixels have been issued. */
template <class T, class Out, int TILES, bool NHWC> __device__ inline void do_one(const Grouped &g, const Block &b, char *shared) {
    float *const sums = (float *)(shared + g.t.at_sums);
    wait_async<0>();
    launch_dependents();
    __syncthreads();
    multiply<T, TILES, NHWC, false>(g, b, shared, shared + g.t.at_windows, [&](int group, int first, int n, const auto &sum) {
        keep<TILES, NHWC>(g, b, sums, group, first, n, sum);
    });
    __syncthreads();
    if constexpr (NHWC) store<true, 16 / sizeof(Out), Out>(g, b, sums);
    else if (g.t.wide % 4 == 0 && g.c.out_w % 4 == 0 && (uintptr_t)g.c.out % (4 * sizeof(Out)) == 0) store<false, 4, Out>(g, b, sums);
    else store<false, 1, Out>(g, b, sums);
}

/* The same with one group, for this rectangle and the following ones. */
template <class T, class Out, int TILES, bool NHWC> __device__ inline void do_all(const Grouped &g, Block b, int part, int tile,
                                                                                  char *shared) {
    for (int here = 0, next; tile < g.tiles; tile = next, here = g.t.tile - here) {
        wait_async<0>();
        __syncthreads();
        next = tile + g.step;
        const Block after(g, part, next);
        if (next < g.tiles) {
            stage_windows<T, NHWC, true>(g, after, shared + g.t.at_windows + g.t.tile - here);
            commit_async();
        } else launch_dependents();
        multiply<T, TILES, NHWC, true>(g, b, shared, shared + g.t.at_windows + here, [&](int, int first, int n, const auto &sum) {
            store_single<T, Out, TILES, NHWC>(g, b, first, n, sum);
        });
        b = after;
    }
}

/* A warp multiplies TILES x 8 filters. */
template <class T, int TILES, bool NHWC, bool SINGLE> __global__ void __launch_bounds__(THREADS, SINGLE ? SINGLE_BLOCKS : BLOCKS)
    grouped_kernel(const __grid_constant__ Grouped g) {
    if constexpr (CODE_CAPABILITY >= 80) {
        PYSIM_DYNAMIC_SHARED(shared);
        int part;
        const int tile = g.by_part.of((int)blockIdx.x, part);
        const Block b(g, part, tile);
        wait_for_previous();
        stage_filters<T, TILES, SINGLE>(g, b, shared + g.t.at_filters);
        stage_windows<T, NHWC, SINGLE>(g, b, shared + g.t.at_windows);
        commit_async();
        list_units<T>(g, (int *)shared);
        const auto as = [&](auto out) {
            if constexpr (SINGLE) do_all<T, decltype(out), TILES, NHWC>(g, b, part, tile, shared);
            else do_one<T, decltype(out), TILES, NHWC>(g, b, shared);
        };
        if (sizeof(T) == 2 && g.c.product.c_dtype != PYSIM_F32) as(T());
        else as(0.f);
    }
}

/* Calls f with the kernel for the convolution's layout and filters. */
template <class T, bool SINGLE, class F> cudaError_t choose(const Conv &c, F f) {
    if constexpr (SINGLE)
        if (c.filters > 16) return c.nhwc ? f(grouped_kernel<T, 4, true, SINGLE>) : f(grouped_kernel<T, 4, false, SINGLE>);
    if (c.filters > 8) return c.nhwc ? f(grouped_kernel<T, 2, true, SINGLE>) : f(grouped_kernel<T, 2, false, SINGLE>);
    else return c.nhwc ? f(grouped_kernel<T, 1, true, SINGLE>) : f(grouped_kernel<T, 1, false, SINGLE>);
}

inline Grouped prepare(const Conv &c, const Tiling &t, int sms) {
    const int element = dtypes[c.dtype].bytes, part = t.groups * c.channels * element;
    const auto begins = [&](const void *at, int multiple) { return (uintptr_t)at % multiple == 0; };
    const bool units = c.nhwc && c.channels * element % UNIT == 0;
    const bool sixteen = units && c.groups * c.channels * element % 16 == 0 && part % 16 == 0 && begins(c.in, 16) && t.pitch % 16 == 0;
    Grouped g = {};
    g.c = c, g.t = t;
    g.tiles = (int)t.tiles(c), g.step = (int)t.workers(c, sms);
    g.whole_steps = c.kernel_w % t.fold ? 0 : t.taps * t.units / STEP_UNITS;
    g.vector = sixteen ? 16 : units && begins(c.in, UNIT) ? UNIT : 0;
    g.whole = !units || !begins(c.weights, UNIT) ? 0 : c.k * element % 16 == 0 && begins(c.weights, 16) ? 16 : UNIT;
    const auto pieces = [&](int of) { return !c.nhwc && c.width % of == 0 && begins(c.in, of * element); };
    g.piece = t.fold > 1 ? 1 : pieces(4) ? 4 : pieces(2) ? 2 : 1;
    const int chunks = ceil_div(t.high * t.wide, CHUNK), across = (t.columns + 2 * g.piece - 2) / g.piece;
    g.shares = WARPS / chunks, g.by_share = Divisor((unsigned)chunks);
    g.by_part = Divisor((unsigned)t.parts(c)), g.by_tile_w = Divisor((unsigned)t.tiles_w), g.by_tile_h = Divisor((unsigned)t.tiles_h);
    g.by_slices = Divisor((unsigned)(c.out_h / c.slice_rows)), g.by_down = Divisor((unsigned)t.down);
    g.by_wide = Divisor((unsigned)t.wide), g.by_columns = Divisor((unsigned)across), g.by_pixels = Divisor((unsigned)(t.rows * t.columns));
    g.by_places = Divisor((unsigned)(t.groups * t.units));
    g.by_units = Divisor((unsigned)t.units), g.by_vectors = Divisor((unsigned)(g.vector ? ceil_div(part, g.vector) : 1));
    g.by_steps = Divisor((unsigned)(t.steps * STEP_UNITS * UNIT / (g.whole ? g.whole : UNIT))), g.by_taps = Divisor((unsigned)t.taps);
    g.by_across = Divisor((unsigned)t.across), g.by_chunks = Divisor((unsigned)ceil_div(c.filters, t.filters));
    return g;
}

template <class T, bool SINGLE> pysim_status launch(const Conv &c, int sms, cudaStream_t stream) {
    const Tiling t = tiling_of(c, sms, SINGLE);
    const Grouped g = prepare(c, t, sms);
    return check(choose<T, SINGLE>(c, [&](auto kernel) { return start(kernel, g, g.step * t.parts(c), THREADS, t.shared, stream); }),
                 "a grouped convolution");
}
template <class T, bool SINGLE> cudaError_t attributes(const Conv &c, pysim_cuda_attributes *out) {
    const Tiling t = tiling_of(c, 1, SINGLE);
    return choose<T, SINGLE>(c, [&](auto kernel) { return attributes_of(kernel, THREADS, t.shared, out); });
}
}
#endif
