/* SPDX-License-Identifier: Apache-2.0
 * Gathers convolution windows from device memory into shared memory, as Copy (mainloop/simt/copy.cuh) copies a matrix. Element (k, window) is at
 *
 *     base + origin + image i + group g + row p + column q  +  offset(k)        (i, p, q) = window; offset(k): tap k = (channel, r, s) in some order
 *
 * and is zero if the tap of the window is outside the input. The first sum is the window's Place, the second the Tap. Sums are modulo 2^32, and correct
 * wherever the element exists. Two representations of taps:
 *
 *   Divided  k is divided into channel, r and s on the fly; a Place has the window's row and column of the input, and both are compared with its
 *            edges. No table, any kernel.
 *   Listed   each block makes a table in shared memory with the offset of each (r, s) and two `bits`, one for r and one for s. A Place has the bits
 *            of the rows and columns that are outside the input, so one AND tells whether an element exists. A thread visits k in order and so
 *            knows (channel, tap) without dividing. kernel_h + kernel_w <= 31. Of volumes, a third bit for the slice: with kernel_d <= 31.
 *
 * and two assignments of threads:
 *
 *   AcrossWindows  lanes along windows, a warp at one k: neighbouring windows of an image are contiguous (NCHW)
 *   AlongTaps      lanes along k as in Copy with k contiguous, 16 bytes at once if four taps are contiguous (NHWC; windows stored one after another)
 *
 * AcrossWindows with Listed: per element a thread loads its tap (one address for the warp, so one wavefront), ANDs, computes the address (IMAD.WIDE),
 * loads and stores; every second element also zeroes a register. 32 lanes store 32 neighbouring words: one wavefront a store without a swizzle. */
#ifndef PYSIM_CUDA_CONV_GATHER_CUH
#define PYSIM_CUDA_CONV_GATHER_CUH
#include "conv/output.cuh"
#include "core/limits.h"
#include "mainloop/simt/kernel.cuh"

namespace pysim::gather {

struct alignas(8) Tap {
    int offset;
    unsigned bits;
};
enum : unsigned { NO_TAP = 1u << 31 }; /* the bit of k past the end; outside every place */
enum {
    MOST_TAPS = 15 * 16, /* largest kernel_h x kernel_w if kernel_h + kernel_w <= 31; of volumes refused beyond */
    /* table entries past the last tap: the most that a thread reads in a row, or that a k-iteration has past the end */
    RUN = 32,
};

/* The order of k: that of the filters in memory, or im2win's: (channel, s, r) under NCHW, (s, r, channel) under NHWC. */
enum Order { AS_FILTERS, BY_COLUMNS };

/* Distances in elements between taps neighbouring in channel, kernel row and kernel column, of volumes kernel slice. */
struct Steps {
    int channel, high, wide, deep = 0;
};

/* Distances in elements between windows of neighbouring images, groups, output rows and output columns; origin: index of tap 0 of the first; of
 * volumes between output slices. */
struct Layout {
    int image, group, row, column, origin, slice = 0;
};

/* A kernel's arguments: passed by value. */
struct Arguments {
    Conv c;
    Layout layout;
    const void *base;    /* what windows are gathered from */
    const void *weights; /* [filter][k], `pitch` elements from one filter to the next */
    Order order;
    Steps steps;
    int pitch;
    int inside; /* 1: every tap of every window exists */
    int vector; /* 1: in every window, each four taps that start at a multiple of four are 16 contiguous, aligned bytes */
};

/* A window's start, for both representations of taps, and its slice, row and column of outputs. */
__device__ inline int start_of(const Arguments &a, int group, int window, int &o, int &p, int &q) {
    int position;
    const int image = a.c.per_image.of(window, position);
    p = a.c.per_row.of(position, q), o = 0;
    if (a.c.volumes) o = p / a.c.slice_rows, p -= o * a.c.slice_rows;
    const Layout &l = a.layout;
    return (int)((unsigned)l.origin + (unsigned)image * l.image + (unsigned)group * l.group + (unsigned)o * l.slice + (unsigned)p * l.row +
                 (unsigned)q * l.column);
}

template <bool NHWC> struct Listed {
    struct Place {
        int at;
        unsigned outside;
    };
    using Tap = gather::Tap;

    static __device__ Place place(const Arguments &a, int group, int window) {
        if (window < 0 || window >= a.c.windows) return {0, ~0u};
        const Conv &c = a.c;
        int o, p, q;
        Place to = {start_of(a, group, window, o, p, q), NO_TAP};
        if (a.inside) return to;
        const int h = p * c.stride_h - c.pad_top, w = q * c.stride_w - c.pad_left;
        for (int r = 0; r < c.kernel_h; r++) to.outside |= (unsigned)((unsigned)(h + r * c.dilation_h) >= (unsigned)c.height) << r;
        for (int s = 0; s < c.kernel_w; s++)
            to.outside |= (unsigned)((unsigned)(w + s * c.dilation_w) >= (unsigned)c.width) << (c.kernel_h + s);
        if (c.volumes)
            for (int t = 0; t < c.kernel_d; t++)
                to.outside |= (unsigned)((unsigned)(o * c.stride_d - c.pad_front + t * c.dilation_d) >= (unsigned)c.depth)
                              << (c.kernel_h + c.kernel_w + t);
        return to;
    }

    static __device__ Tap *table() {
        __shared__ Tap taps[MOST_TAPS + RUN];
        return taps;
    }
    /* Called by all threads of a block; a barrier must follow. After the last tap come the next channels' (NCHW) or none (NHWC). */
    static __device__ void prepare(const Arguments &a, int thread, int threads) {
        const Conv &c = a.c;
        const int count = c.taps();
        for (int i = thread; i < count + RUN; i += threads) {
            const int channel = i / count, tap = i % count, t = c.volumes ? tap / (c.kernel_h * c.kernel_w) : 0; /* volumes: AS_FILTERS */
            const int r = a.order == AS_FILTERS ? tap / c.kernel_w - t * c.kernel_h : tap % c.kernel_h,
                      s = a.order == AS_FILTERS ? tap % c.kernel_w : tap / c.kernel_h;
            const unsigned offset = (unsigned)channel * a.steps.channel + (unsigned)t * a.steps.deep + (unsigned)r * a.steps.high +
                                    (unsigned)s * a.steps.wide;
            const unsigned slice = c.volumes ? 1u << (c.kernel_h + c.kernel_w + t) : 0;
            const unsigned bits = a.inside ? 0 : 1u << r | 1u << (c.kernel_h + s) | slice;
            table()[i] = NHWC && channel ? Tap{0, NO_TAP} : Tap{(int)offset, bits};
        }
    }

    /* A thread's position k = outer * count + inner: inner is the tap under NCHW, the channel under NHWC. */
    class Taps {
        int inner, outer, k;
        static __device__ const Divisor &count(const Arguments &a) { return NHWC ? a.c.per_kernel_row : a.c.per_channel; }
        static __device__ Tap next(const Arguments &a, int &inner, int &outer) {
            Tap tap = table()[NHWC ? outer : inner];
            tap.offset += NHWC ? inner : outer * a.steps.channel;
            if (++inner == (int)count(a).divisor) inner = 0, outer++;
            return tap;
        }

    public:
        __device__ Taps(const Arguments &a, int from) : k(from) { outer = count(a).of(from, inner); }
        template <int STEP> __device__ void advance(const Arguments &a) {
            int rest;
            outer += count(a).of(STEP, rest), inner += rest, k += STEP;
            if (inner >= (int)count(a).divisor) inner -= (int)count(a).divisor, outer++;
        }
        template <int COUNT> __device__ void taps(const Arguments &a, Tap (&to)[COUNT]) const {
            static_assert(COUNT <= RUN, "the table goes on so far");
            int i0 = inner, o0 = outer;
#pragma unroll
            for (int i = 0; i < COUNT; i++) {
                if (NHWC) to[i] = next(a, i0, o0);
                else to[i] = table()[inner + i];
            }
            if (!NHWC && k + COUNT > a.c.k) /* the last k-iteration */
#pragma unroll
                for (int i = 0; i < COUNT; i++)
                    if (k + i >= a.c.k) to[i].bits = NO_TAP;
        }
        /* The offset of the channel, which the offsets from `taps` do not contain (NCHW). */
        __device__ int base(const Arguments &a) const { return NHWC ? 0 : (int)((unsigned)outer * a.steps.channel); }
    };
    static __device__ bool exists(const Arguments &, const Place &place, const Tap &tap) { return !(place.outside & tap.bits); }
    /* `from` is the place's address. One instruction; correct as long as neither sum exceeds 2^31. */
    template <class In> static __device__ const In *element(const In *, const In *from, const Place &, const Tap &tap) {
        return from + tap.offset;
    }
};

struct Divided {
    enum { NOWHERE = -(1 << 30), PAST = 1 << 29 };
    struct Place {
        int at, h, w;
    };
    struct Tap {
        int offset, h, w;
    };

    static __device__ Place place(const Arguments &a, int group, int window) {
        if (window < 0 || window >= a.c.windows) return {0, NOWHERE, 0};
        int o, p, q;
        const int at = start_of(a, group, window, o, p, q);
        return {at, p * a.c.stride_h - a.c.pad_top, q * a.c.stride_w - a.c.pad_left};
    }
    static __device__ Tap tap(const Arguments &a, int k) {
        const Conv &c = a.c;
        if (k >= c.k) return {0, PAST, 0};
        int rest, channel, r, s;
        if (c.nhwc) r = c.per_channel.of(k, rest), s = c.per_kernel_row.of(rest, channel);
        else channel = c.per_channel.of(k, rest), r = c.per_kernel_row.of(rest, s);
        const int h = r * c.dilation_h, w = s * c.dilation_w, wide = c.groups * c.channels;
        return {(int)(c.nhwc ? ((unsigned)h * c.width + w) * wide + channel : ((unsigned)channel * c.height + h) * c.width + w), h, w};
    }
    static __device__ void prepare(const Arguments &, int, int) {}
    class Taps {
        int k;

    public:
        __device__ Taps(const Arguments &, int from) : k(from) {}
        template <int STEP> __device__ void advance(const Arguments &) { k += STEP; }
        template <int COUNT> __device__ void taps(const Arguments &a, Tap (&to)[COUNT]) const {
#pragma unroll
            for (int i = 0; i < COUNT; i++) to[i] = tap(a, k + i);
        }
        __device__ int base(const Arguments &) const { return 0; }
    };
    static __device__ bool exists(const Arguments &a, const Place &place, const Tap &tap) {
        return (unsigned)(place.h + tap.h) < (unsigned)a.c.height && (unsigned)(place.w + tap.w) < (unsigned)a.c.width;
    }
    template <class In> static __device__ const In *element(const In *base, const In *, const Place &place, const Tap &tap) {
        return base + (unsigned)(place.at + tap.offset);
    }
};

/* Copies EXTENT windows by STEP taps with THREADS threads. A thread has one window and EACH consecutive taps. */
template <class T, int EXTENT, int STEP, int THREADS, class Knows> class AcrossWindows {
    using In = typename T::In;
    enum { ROWS = THREADS / EXTENT, EACH = STEP / ROWS };
    static_assert(EXTENT % 32 == 0 && THREADS % EXTENT == 0 && STEP % ROWS == 0, "a warp has one k, a thread one window");
    static_assert(sizeof(In) == sizeof(typename T::Unit) && sizeof(In) >= 4, "stored as they come");

    const Arguments &a;
    const typename Knows::Place place;
    const In *const from;    /* the window's first element; may be before the tensor */
    typename Knows::Taps at; /* this thread's first tap in the k-iteration to load next */
    const bool all;

    /* The shuffle tells the compiler that the row is uniform in a warp, so that it uses uniform registers. */
    static __device__ int row_of(int thread) { return __shfl_sync(~0u, thread / EXTENT, 0); }

public:
    using Staged = In[EACH];
    enum { DEPTH = STEP, PITCH = EXTENT };
    static __device__ int inner_of(int thread) { return thread % EXTENT; }
    /* Calls each() for the elements of each k, counted from the thread's first. */
    static __device__ int first_line(int thread) { return row_of(thread) * EACH; }
    template <class Each> static __device__ void each_line(Staged &staged, Each each) {
#pragma unroll
        for (int i = 0; i < EACH; i++) each(i, staged + i, 1);
    }
    static __device__ constexpr int swizzle(int) { return 0; }

    __device__ AcrossWindows(const Arguments &of, int group, int first, int begin, int end, int thread)
        : a(of), place(Knows::place(of, group, first + thread % EXTENT)), from((const In *)of.base + place.at),
          at(of, begin + row_of(thread) * EACH), all(of.inside && first + EXTENT <= of.c.windows && (end - begin) % STEP == 0) {}
    __device__ bool whole() const { return all; }

    template <bool EDGE> __device__ void load(Staged &to, int) {
        typename Knows::Tap taps[EACH];
        at.taps(a, taps);
        const In *const here = from + at.base(a);
#pragma unroll
        for (int i = 0; i < EACH; i++)
            to[i] = !EDGE || Knows::exists(a, place, taps[i]) ? *Knows::element((const In *)a.base, here, place, taps[i]) : In(0);
        at.template advance<STEP>(a);
    }
    __device__ void store(char *shared, const Staged &from, int thread) const {
        In *to = (In *)shared + row_of(thread) * EACH * EXTENT + thread % EXTENT;
#pragma unroll
        for (int i = 0; i < EACH; i++) to[i * EXTENT] = from[i];
    }
    template <bool> __device__ void load_async(char *, int) {
        static_assert(STEP == 0, "1 or 2 stages: nothing is gathered asynchronously");
    }
};

/* The same with the thread assignment and shared-memory layout of Copy, k contiguous. */
template <class T, int EXTENT, int STEP, int THREADS, bool VECTOR, bool SWIZZLED, class Knows>
class AlongTaps : public simt::Copy<T, EXTENT, STEP, THREADS, VECTOR, SWIZZLED, true> {
    using Base = simt::Copy<T, EXTENT, STEP, THREADS, VECTOR, SWIZZLED, true>;
    using In = typename T::In;
    enum { PASSES = Base::PASSES, DOWN = Base::DOWN, INNER = Base::INNER };
    static_assert(T::K_PIECES == 1 && sizeof(In) >= 4, "a chunk is four bytes or more of one window");

    const Arguments &a;
    typename Knows::Place place[PASSES];
    typename Knows::Taps at; /* this thread's first tap in the k-iteration to load next */
    const bool all, vector;

public:
    using Staged = typename Base::Staged;

    __device__ AlongTaps(const Arguments &of, int group, int first, int begin, int end, int thread)
        : Base(of.base, 0, first, of.c.windows, begin, end, thread), a(of), at(of, begin + Base::inner_of(thread)),
          all(of.inside && first + EXTENT <= of.c.windows && (end - begin) % STEP == 0), vector(VECTOR && of.vector) {
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++)
            place[pass] = Knows::place(of, group, Base::idle(thread, pass) ? -1 : first + Base::line_of(thread) + pass * DOWN);
    }
    __device__ bool whole() const { return all; }

    template <bool EDGE> __device__ void load(Staged &words, int thread) {
        const auto there = [&](int pass, const typename Knows::Tap &tap) {
            return EDGE ? Knows::exists(a, place[pass], tap) : !Base::idle(thread, pass);
        };
        const int base = at.base(a);
        const auto from = [&](int pass, const typename Knows::Tap &tap) {
            return (const In *)a.base + (unsigned)(place[pass].at + base + tap.offset);
        };
        if (vector) {
            typename Knows::Tap tap[1];
            at.taps(a, tap);
#pragma unroll
            for (int pass = 0; pass < PASSES; pass++) {
                uint4 v = {};
                if (there(pass, tap[0])) v = *(const uint4 *)from(pass, tap[0]);
                memcpy(words[pass], &v, 16);
            }
        } else {
            typename Knows::Tap taps[INNER];
            at.taps(a, taps);
#pragma unroll
            for (int pass = 0; pass < PASSES; pass++)
#pragma unroll
                for (int i = 0; i < INNER; i++) {
                    const In v = there(pass, taps[i]) ? *from(pass, taps[i]) : In(0);
                    memcpy((char *)words[pass] + i * sizeof(In), &v, sizeof(In));
                }
        }
        at.template advance<STEP>(a);
    }
    template <bool> __device__ void load_async(char *, int) {
        static_assert(STEP == 0, "1 or 2 stages: nothing is gathered asynchronously");
    }
};

/* Columns or AcrossWindows with a prologue, applied between registers and shared memory. A thread's windows belong to one image. The convolution is
 * pointwise, so k is a channel. */
template <class Base> class PrologueLoader : public Base {
    const Conv &c;
    int channel, end, row; /* the thread's first channel in the k-iteration to store next; the last channel + 1; its image's first scale */

public:
    __device__ PrologueLoader(const Base &base, const Arguments &a, int group, int window, int begin, int end, int thread)
        : Base(base), c(a.c), channel(group * c.channels + begin + Base::first_line(thread)), end(group * c.channels + end),
          row(c.per_image.of(min(window, c.windows - 1)) * c.groups * c.channels) {}
    __device__ void store(char *shared, typename Base::Staged &staged, int thread) {
        Base::each_line(staged, [&](int line, float *x, int count) {
            if (channel + line < end) /* padding stays zero */
                for (int i = 0; i < count; i++) x[i] = with_prologue(c.prologue, x[i], row, channel + line);
        });
        Base::store(shared, staged, thread);
        channel += Base::DEPTH;
    }
};

/* A Source of mainloop/simt/kernel.cuh. Rows of the product are filters under NCHW, windows under NHWC. */
template <class S, bool NHWC, class Windows> struct Source {
    using Value = typename S::T::Value;
    const Arguments &g;

    __device__ auto filters(int group, int tile, int begin, int end) const {
        using Copy = std::conditional_t<NHWC, typename S::template CopyB<true>, typename S::template CopyA<true>>;
        enum { BLOCK = NHWC ? S::BN : S::BM };
        const auto *from = (const typename S::T::In *)g.weights + (int64_t)group * g.c.filters * g.pitch;
        return Copy(from, g.pitch, tile * BLOCK, g.c.filters, begin, end, threadIdx.x);
    }
    __device__ auto a(const Tile &t, int begin, int end) const {
        const int group = (NHWC ? t.i : t.j) / g.c.group_tiles;
        if constexpr (NHWC) return Windows::template of<S, S::BM>(g, group, (t.i - group * g.c.group_tiles) * S::BM, begin, end);
        else return filters(group, t.i, begin, end);
    }
    __device__ auto b(const Tile &t, int begin, int end) const {
        const int group = (NHWC ? t.i : t.j) / g.c.group_tiles;
        if constexpr (NHWC) return filters(group, t.j, begin, end);
        else return Windows::template of<S, S::BN>(g, group, (t.j - group * g.c.group_tiles) * S::BN, begin, end);
    }
    template <class Body> __device__ void with_output(const Tile &t, Body body) const {
        const int group = (NHWC ? t.i : t.j) / g.c.group_tiles;
        with_conv_output<NHWC, Value, Value>(g.c, group, group * g.c.group_tiles * (NHWC ? S::BM : S::BN), body);
    }
};

/* How a Source gathers windows. */
template <class Knows> struct Across {
    static __device__ void prepare(const Arguments &a, int threads) { Knows::prepare(a, (int)threadIdx.x, threads); }
    template <class S, int EXTENT> static __device__ auto of(const Arguments &g, int group, int first, int begin, int end) {
        return AcrossWindows<typename S::T, EXTENT, S::BK, S::THREADS, Knows>(g, group, first, begin, end, threadIdx.x);
    }
};
template <class Knows> struct Along {
    static __device__ void prepare(const Arguments &a, int threads) { Knows::prepare(a, (int)threadIdx.x, threads); }
    template <class S, int EXTENT> static __device__ auto of(const Arguments &g, int group, int first, int begin, int end) {
        return AlongTaps<typename S::T, EXTENT, S::BK, S::THREADS, S::VECTOR, S::SWIZZLED, Knows>(g, group, first, begin, end, threadIdx.x);
    }
};
/* In a pointwise convolution of stride 1 without padding, the input is the matrix of windows. NHWC: [window][channel]. */
struct Rows {
    static __device__ void prepare(const Arguments &, int) {}
    template <class S, int EXTENT> static __device__ auto of(const Arguments &g, int group, int first, int begin, int end) {
        using In = typename S::T::In;
        return simt::Copy<typename S::T, EXTENT, S::BK, S::THREADS, S::VECTOR, S::SWIZZLED, true>(
            (const In *)g.base + group * g.c.channels, g.c.groups * g.c.channels, first, g.c.windows, begin, end, threadIdx.x);
    }
};
/* NCHW: [channel][window] in each image. The image's size must be a multiple of a chunk; then a thread's chunk belongs to one image, and each thread
 * reads the matrix of its own image. */
struct Columns {
    static __device__ void prepare(const Arguments &, int) {}
    template <class S, int EXTENT> static __device__ auto of(const Arguments &g, int group, int first, int begin, int end) {
        using In = typename S::T::In;
        using Copy = simt::Copy<typename S::T, EXTENT, S::BK, S::THREADS, S::VECTOR, S::SWIZZLED, false>;
        const int window = first + Copy::inner_of(threadIdx.x), size = (int)g.c.per_image.divisor;
        const int image = g.c.per_image.of(window); /* may be past the last image, which is then not read */
        const int64_t skipped = (int64_t)image * g.layout.image + group * g.layout.group - (int64_t)image * size;
        return Copy((const In *)g.base + skipped, size, first, g.c.windows, begin, end, threadIdx.x);
    }
};

/* Across or Columns with a prologue. */
template <class Windows> struct WithPrologue {
    static __device__ void prepare(const Arguments &a, int threads) { Windows::prepare(a, threads); }
    template <class S, int EXTENT> static __device__ auto of(const Arguments &g, int group, int first, int begin, int end) {
        const auto plain = Windows::template of<S, EXTENT>(g, group, first, begin, end);
        return PrologueLoader<std::remove_const_t<decltype(plain)>>(plain, g, group, first + plain.inner_of(threadIdx.x), begin, end,
                                                                    threadIdx.x);
    }
};

/* Places and taps need a few registers more than a Copy. */
template <class S> constexpr int blocks = simt::blocks_of(S::REGISTERS + 4, S::THREADS);

template <class S, bool NHWC, class Windows> __global__ __launch_bounds__(S::THREADS,
                                                                          blocks<S>) void kernel(const __grid_constant__ Arguments a) {
    Windows::prepare(a, S::THREADS); /* sum_tiles begins with a barrier */
    simt::sum_tiles<S>(a.c.product, Source<S, NHWC, Windows>{a});
}

/* A kernel with what its launch needs. */
struct Tiled {
    void (*run)(Arguments);
    int threads, shared, block_m, block_n, block_k;

    template <class S, bool NHWC, class Windows> static Tiled of() {
        return {kernel<S, NHWC, Windows>, S::THREADS, S::SHARED_BYTES, S::BM, S::BN, S::BK};
    }

    cudaError_t allow() const {
        return shared > 47 * 1024 ? cudaFuncSetAttribute(run, cudaFuncAttributeMaxDynamicSharedMemorySize, shared) : cudaSuccess;
    }
    cudaError_t start(const Arguments &a, cudaStream_t stream) const {
        const cudaError_t error = allow();
        if (error != cudaSuccess) return error;
        const Grid grid(a.c.product, block_m, block_n, block_k);
        return launch(run, dim3((unsigned)grid.items(a.c.product)), dim3((unsigned)threads), (size_t)shared, stream, a);
    }
    cudaError_t attributes(pysim_cuda_attributes *out) const { return attributes_of(run, threads, shared, out); }
};

/* The Shape of a row of conv/ for a layout: filters are rows under NCHW, columns under NHWC. */
template <bool NHWC, class T, simt::Form FORM, int BF, int BW, int BK, int WF, int WW, int TF, int TW, int STAGES>
using ShapeOf = std::conditional_t<NHWC, simt::Shape<T, FORM, BW, BF, BK, WW, WF, TW, TF, STAGES>,
                                   simt::Shape<T, FORM, BF, BW, BK, WF, WW, TF, TW, STAGES>>;

/* Reordered filters in a row's workspace: their bytes (0: none), and their pitch, a multiple of a vector if they are reordered. */
struct Prepared {
    int64_t filters;
    int pitch;
};
inline int vector_of(const Conv &c) { return 16 / (c.dtype == PYSIM_F64 ? 8 : 4); }
inline Prepared prepared(const Conv &c, bool filters) {
    const int vector = vector_of(c), pitch = filters ? (c.k + vector - 1) / vector * vector : c.k;
    return {filters ? ((int64_t)c.groups * c.filters * pitch * (16 / vector) + 255) / 256 * 256 : 0, pitch};
}

/* Reorders the filters of a.c into a.weights if `own` has any (conv/implicit/implicit.cu). */
pysim_status prepare(const Arguments &a, const Prepared &own, cudaStream_t stream);

/* Gathers from the input itself. Modulo 2^32, as the sums are. */
inline Steps steps_of_input(const Conv &c) {
    const unsigned column = c.nhwc ? (unsigned)(c.groups * c.channels) : 1, row = (unsigned)c.width * column;
    return {c.nhwc ? 1 : c.rows() * c.width, (int)(row * c.dilation_h), (int)(column * c.dilation_w), (int)(row * c.height * c.dilation_d)};
}
inline bool inside(const Conv &c) {
    const auto within = [](int64_t outputs, int64_t stride, int64_t kernel, int64_t dilation, int before, int64_t size) {
        return !before && (outputs - 1) * stride + (kernel - 1) * dilation < size;
    };
    return within(c.out_h / c.slice_rows, c.stride_d, c.kernel_d, c.dilation_d, c.pad_front, c.depth) &&
           within(c.slice_rows, c.stride_h, c.kernel_h, c.dilation_h, c.pad_top, c.height) &&
           within(c.out_w, c.stride_w, c.kernel_w, c.dilation_w, c.pad_left, c.width);
}
inline Arguments of_input(const Conv &c, const Prepared &own) {
    Arguments a = {};
    const unsigned column = c.nhwc ? (unsigned)(c.groups * c.channels) : 1, row = (unsigned)c.width * column;
    a.c = c, a.base = c.in, a.weights = own.filters ? c.own : c.weights, a.pitch = own.pitch, a.order = AS_FILTERS,
    a.steps = steps_of_input(c);
    a.layout = {c.groups * c.channels * c.rows() * c.width, c.nhwc ? c.channels : c.channels * c.rows() * c.width, (int)(row * c.stride_h),
                (int)(column * c.stride_w), (int)(0u - row * c.height * c.pad_front - row * c.pad_top - column * c.pad_left),
                (int)(row * c.height * c.stride_d)};
    a.inside = inside(c), a.vector = c.nhwc && c.channels % vector_of(c) == 0 && (uintptr_t)c.in % 16 == 0;
    return a;
}
/* The reason why Listed cannot gather a problem, or NULL. */
inline const char *refuses_listed(const Conv &c) {
    static_assert(limit::LISTED_TAPS == 31 && limit::LISTED_IMAGE == 1 << 29 && limit::TENSOR_TAPS == MOST_TAPS, "what the sentences say");
    if (c.volumes && c.kernel_d + c.kernel_h + c.kernel_w > limit::LISTED_TAPS)
        return "it takes kernels of up to 31 slices, rows and columns together";
    if (c.kernel_h + c.kernel_w > limit::LISTED_TAPS) return "it takes kernels of up to 31 rows and columns together";
    if (c.taps() > limit::TENSOR_TAPS) return "it takes kernels of up to 240 taps";
    const double padded = ((double)c.depth + c.pad_front + c.pad_back) * ((double)c.height + c.pad_top + c.pad_bottom) *
                          ((double)c.width + c.pad_left + c.pad_right);
    return padded * (c.nhwc ? c.groups * c.channels : 1) > limit::LISTED_IMAGE ? "it takes padded images of up to 2^29 elements" : nullptr;
}
}
#endif
