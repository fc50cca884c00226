/* SPDX-License-Identifier: Apache-2.0
 * The stages of fused F(4x4) (fused4.cuh), their barriers, and the two loaders of filters. */
#ifndef PYSIM_CUDA_WINOGRAD_STAGES4_CUH
#define PYSIM_CUDA_WINOGRAD_STAGES4_CUH
#include "core/decomposition.cuh"
#include "core/ptx.cuh"
#include "conv/winograd/unfused4.cuh"

#if defined(PYSIM_EMULATED) || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900)
#define PYSIM_COPIES_BY_THREADS
#else
#include "core/hopper.cuh"
#endif

namespace pysim::winograd::fused4 {

enum {
    SIDE = 32, /* filters, and tiles, of a block */
    THREADS = 512,
    ROW = SIDE + 4, PITCH = STEP * ROW + 8, /* words of the tiles of a channel, of a plane */
    TILE_BYTES = LARGE * PITCH * 4, /* the tiles of a stage; filters follow */
    PLANE = SIDE * SIDE, /* accumulators */
};
static_assert(PITCH % 16 == 8 && PITCH % 4 == 0, "see PITCH");

/* x, opaque to the compiler, so that it recomputes values derived from x where they are used and does not keep them in registers through the loop. */
__device__ inline int forget(int x) {
#ifndef PYSIM_EMULATED
    asm volatile("" : "+r"(x));
#endif
    return x;
}

/* threadIdx.x, reread at each use. */
__device__ inline unsigned thread_again() {
    unsigned x = threadIdx.x;
#ifndef PYSIM_EMULATED
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
#endif
    return x;
}

/* Synchronises the two stages. A stage is full when all threads and the copy of the filters have arrived, and free when all threads have read it. Two
 * mbarriers, so that a warp waits only for what it needs; before compute capability 9.0 one __syncthreads() per k-iteration. */
class Stages {
#ifdef PYSIM_COPIES_BY_THREADS
  public:
    __device__ explicit Stages(uint64_t *) {}
    __device__ static void begin(uint64_t *, int) {}
    __device__ static void end(uint64_t *) {}
    __device__ static void written() {}
    __device__ void full() const {}
    __device__ void read() const {}
    __device__ void wait_free(int) const {}
    __device__ void wait_full(int) const {
        wait_async<0>();
        __syncthreads();
    }
    __device__ void copy(char *to, const char *from, int bytes, int) const {
        for (int at = (int)threadIdx.x * 16; at < bytes; at += THREADS * 16) copy_async<16>(to + at, from + at, 16);
        commit_async();
    }
#else
    const uint32_t filled, freed;

  public:
    __device__ explicit Stages(uint64_t *arrivals) : filled(shared_address(arrivals)), freed(filled + 8) {}
    /* begin: one thread, before a barrier of the block; end: one thread, after one. `copies`: arrivals per k-iteration besides the threads'. */
    __device__ static void begin(uint64_t *arrivals, int copies) {
        hopper::barrier_init(shared_address(arrivals), THREADS + copies), hopper::barrier_init(shared_address(arrivals + 1), THREADS);
        hopper::barrier_init_done();
    }
    __device__ static void end(uint64_t *arrivals) {
        hopper::barrier_end(shared_address(arrivals)), hopper::barrier_end(shared_address(arrivals + 1));
    }
    /* All threads, before the barrier after which bulk copies overwrite stages that ordinary stores wrote. */
    __device__ static void written() { hopper::async_after_writes(); }
    /* Each thread: full() after it has stored its part of the next step, read() after it has read this step's stage, which will be refilled for the
     * step after the next. Its loads are complete by then, since the last channel's multiply-adds waited for them. */
    __device__ void full() const { hopper::barrier_arrive(filled); }
    __device__ void read() const { hopper::barrier_arrive(freed); }
    __device__ void wait_full(int step) const { hopper::barrier_wait(filled, step % 2); }
    /* Until all threads have read the previous step; at step 0 there is none. */
    __device__ void wait_free(int step) const { hopper::barrier_wait(freed, (step + 1) % 2); }
    /* One thread starts the copy and arrives for it, expecting `bytes` bytes. */
    __device__ void copy(char *to, const char *from, int bytes, int warp) const {
        if (warp != 0) return;
        __syncwarp(); /* keeps this a branch, so that other warps skip the rest */
        if (thread_again() != 0) return;
        hopper::barrier_arrive_expect(filled, bytes);
        hopper::bulk_load(shared_address(to), from, bytes, filled);
    }
#endif
};

/* Loads filters that an earlier kernel transformed: per k-iteration one bulk copy to its stage, or copies by all threads. */
class Transformed {
    const char *from; /* filters of the next k-iteration */

  public:
    enum { ROW = SIDE, BYTES = LARGE * STEP * ROW * 4, SHARED_BYTES = 0, COPIES = 1, CLUSTER_SPLIT = 0, DRAINS = 0, CAPABILITY = 80 };
    __device__ Transformed(const Conv &c, int group, int block, int begin, int)
        : from((const char *)c.own + (((int64_t)group * ceil_div(c.filters, SIDE) + block) * ceil_div(c.channels, STEP) + begin) * BYTES) {}
    __device__ void begin(const Stages &stages, char *shared, int, int warp) { fetch(stages, shared, 0, 0, warp); }
    __device__ void with_prologue(char *, int) const {}
    __device__ void fetch(const Stages &stages, char *shared, int step, int, int warp) {
        stages.copy(shared + step % 2 * (int)(TILE_BYTES + BYTES) + TILE_BYTES, from, BYTES, warp);
        from += BYTES;
    }
    __device__ void fill(char *, int, int) const {}
};

/* The same with drained accumulators (Totals). */
struct Drained : Transformed {
    enum { SHARED_BYTES = 64 * THREADS * 2, DRAINS = 1, CAPABILITY = 90 };
    using Transformed::Transformed;
};

/* Totals into which a thread's accumulators are drained every few k-iterations. Rounding errors are relative to the accumulator's size; sums over a
 * quarter of the channels are half as large. The totals of the main plane's 64 accumulators keep their upper 16 bits, in shared memory after the
 * stages. The remainder stays in the accumulator, so nothing is lost. The totals of the other 8 do not fit there and are kept in full in local
 * memory. */
class Totals {
    uint4 *const at; /* this thread's totals: 8 per uint4, THREADS apart */
    volatile float rest[8];

    static __device__ float upper(float x) { return __uint_as_float(__float_as_uint(x) & 0xffff0000u); }

  public:
    /* Whether to drain after this step: sums of 8 steps or more get at least four parts. */
    static __device__ bool after(int step, int steps) { return (step + 1) % (steps >= 64 ? 16 : steps >= 32 ? 8 : steps >= 16 ? 4 : 2) == 0; }
    __device__ explicit Totals(char *shared) : at((uint4 *)shared + threadIdx.x) {
#pragma unroll
        for (int i = 0; i < 8; i++) at[i * THREADS] = uint4{0, 0, 0, 0}, rest[i] = 0;
    }
    __device__ void drain(float (&sum)[8][8], float (&others)[4][2]) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint4 v = at[i * THREADS];
            unsigned *const pairs = &v.x;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float low = __uint_as_float(pairs[j] << 16), high = __uint_as_float(pairs[j] & 0xffff0000u);
                float &a = sum[i][2 * j], &b = sum[i][2 * j + 1];
                const float a_total = upper(low + a), b_total = upper(high + b);
                a += low - a_total, b += high - b_total;
                pairs[j] = __float_as_uint(a_total) >> 16 | __float_as_uint(b_total);
            }
            at[i * THREADS] = v;
        }
#pragma unroll
        for (int i = 0; i < 8; i++) rest[i] = rest[i] + others[i / 2][i % 2], others[i / 2][i % 2] = 0;
    }
    __device__ void add_to(float (&sum)[8][8], float (&others)[4][2]) const {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint4 v = at[i * THREADS];
            const unsigned *const pairs = &v.x;
#pragma unroll
            for (int j = 0; j < 4; j++)
                sum[i][2 * j] += __uint_as_float(pairs[j] << 16), sum[i][2 * j + 1] += __uint_as_float(pairs[j] & 0xffff0000u);
        }
#pragma unroll
        for (int i = 0; i < 8; i++) others[i / 2][i % 2] += rest[i];
    }
};

/* Without draining. */
struct NoTotals {
    __device__ explicit NoTotals(char *) {}
    static __device__ bool after(int, int) { return false; }
    template <class... Sums> __device__ void drain(Sums &...) {}
    template <class... Sums> __device__ void add_to(Sums &...) const {}
};

/* Loads untransformed filters: weights are copied one k-iteration ahead, [filter][channel][tap] (NHWC: [filter][tap][channel]), and transformed into
 * the stage. As in Halves, a warp computes three rows of G g G^T, here of 4 filters and 8 channels, which ROW puts 4 banks apart. */
template <bool NHWC> class Weights {
    enum { WORDS = STEP * 9 };
    enum : unsigned { PLACE = (1u << 30) - 1, RAGGED = 1u << 30, NOTHING = 1u << 31 }; /* operands have up to 2^30 elements */
    const Conv &c;
    unsigned from; /* index of a weight: the thread next copies every 16th word of a filter from there. RAGGED: the part's last step has fewer
                      channels; NOTHING: the filter does not exist */

    /* The filter whose words a thread copies. The two halves of a warp write 16 banks apart. */
    static __device__ unsigned line_of(unsigned thread) { return thread / 64 * 4 + thread / 32 % 2 + thread / 16 % 2 * 2; }
    static __device__ float *words(char *shared, int step) {
        return (float *)(shared + 2 * (int)(TILE_BYTES + BYTES) + step % 2 * (SIDE * (int)WORDS * 4));
    }
    __device__ void copy(char *shared, int step, bool last) {
        const unsigned thread = thread_again(), word = thread % 16;
        float *const to = words(shared, step) + line_of(thread) * WORDS + word;
        const float *const at = (const float *)c.weights + (from & PLACE);
        const auto copy_all = [&](auto inside) {
#pragma unroll
            for (int i = 0; i < 5; i++)
                if (i < 4 || word < WORDS - 64) copy_async<4>(to + 16 * i, at + (NHWC ? 2 * i * c.channels : 16 * i), inside(i) ? 4 : 0);
        };
        if ((from & NOTHING) || (last && from & RAGGED)) {
            const unsigned left = from & NOTHING ? 0 : c.channels % STEP;
            copy_all([&](int i) { return (NHWC ? word % 8 : word + 16 * i) < (NHWC ? left : 9 * left); });
        } else copy_all([](int) { return true; });
        commit_async();
        from += NHWC ? (unsigned)STEP : (unsigned)WORDS;
    }

  public:
    enum { ROW = SIDE + 4, BYTES = LARGE * STEP * ROW * 4, SHARED_BYTES = 2 * SIDE * WORDS * 4, COPIES = 0, CLUSTER_SPLIT = 1, DRAINS = 0, CAPABILITY = 90 };
    __device__ Weights(const Conv &conv, int group, int block, int begin, int end) : c(conv) {
        const unsigned word = threadIdx.x % 16;
        const int filter = block * SIDE + (int)line_of(threadIdx.x);
        from = (unsigned)(group * c.filters + filter) * 9 * c.channels + (NHWC ? word / 8 * c.channels + word % 8 + begin * STEP : word + begin * WORDS);
        if (end * STEP > c.channels) from |= RAGGED;
        if (filter >= c.filters) from = NOTHING;
    }
    __device__ void begin(const Stages &, char *shared, int steps, int) {
        copy(shared, 0, steps == 1);
        if (steps > 1) copy(shared, 1, steps == 2);
    }
    __device__ void with_prologue(char *shared, int warp) const {
        wait_async<0>();
        __syncthreads();
        fill(shared, 0, warp);
    }
    __device__ void fetch(const Stages &, char *shared, int step, int steps, int) {
        if (step + 1 < steps) copy(shared, step + 1, step + 2 == steps);
    }
    /* Transforms a step's weights, which must be visible to all threads, into its stage; then waits for this thread's copies of the next step's. */
    __device__ void fill(char *shared, int step, int warp) const {
        const bool odd = warp >= THREADS / 64;
        const unsigned lane = thread_again() % 32, line = warp % 8 * 4 + lane / 8, channel = lane % 8;
        const float *const g = words(shared, step) + line * WORDS + (NHWC ? channel : 9 * channel);
        enum { TAP = NHWC ? (int)STEP : 1, LINE = 6 * STEP * ROW };
        const float square = odd ? B2 : A2, point = odd ? POINT_B : POINT_A;
        float outer[3], first[3], second[3]; /* rows 0, 1, 2, or 5, 3, 4: see filter_line_4 */
#pragma unroll
        for (int s = 0; s < 3; s++) {
            const float g0 = g[s * TAP], g1 = g[(3 + s) * TAP], g2 = g[(6 + s) * TAP], ends = fmaf(square, g2, g0);
            outer[s] = odd ? g2 : g0, first[s] = fmaf(point, g1, ends), second[s] = fmaf(-point, g1, ends);
        }
        float *const to = (float *)(shared + step % 2 * (int)(TILE_BYTES + BYTES) + TILE_BYTES) + channel * ROW + line;
        const auto put = [&](float *to, const float (&half)[3]) {
            float u[6];
            filter_line_4(u, half[0], half[1], half[2]);
#pragma unroll
            for (int s = 0; s < 6; s++) to[s * (STEP * ROW)] = u[s];
        };
        put(to + (odd ? 5 * LINE : 0), outer);
        float *const inner = to + (odd ? 3 : 1) * LINE;
        put(inner, first), put(inner + LINE, second); /* these stores have consumed the weights: after full() new ones may overwrite them */
        wait_async<0>();
    }
};
}
#endif
