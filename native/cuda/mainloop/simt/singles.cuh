/* SPDX-License-Identifier: Apache-2.0
 * How a k step of an operand whose rows begin anywhere gets into shared memory: element by element, neighbouring lanes neighbouring elements.
 *
 * Lanes a vector apart, as those that could take vectors are, would have every load touch as many lines of L1 as a load of vectors, four times as
 * often. Here a warp's load touches
 *   k contiguous         4 rows, 8 elements of k in each; a thread's next elements of a row are 8 away
 *   outputs contiguous   1 row, 32 outputs; its next ones are 32 away
 * so that those of a row share an address, and what follows is part of the instruction. In shared memory a line is 16 bytes longer than its
 * elements,
 *     byte(k, x) = (k (EXTENT + PAD) + x) sizeof(Unit),   PAD sizeof(Unit) = 16,
 * as 4 x's of 8 k's then lie in all 32 banks: no conflict, and no xor where fragments are read. */
#ifndef PYSIM_CUDA_SIMT_SINGLES_CUH
#define PYSIM_CUDA_SIMT_SINGLES_CUH
#include "mainloop/simt/types.cuh"

namespace pysim {
namespace simt {

/* An operand of EXTENT outputs by STEP elements of k, moved by THREADS threads. K_INNER: k is contiguous in device memory. */
template <class T, int EXTENT, int STEP, int THREADS, bool K_INNER> class Singles {
    using In = typename T::In;

  public:
    enum { PITCH = EXTENT + 16 / (int)sizeof(In) };

  private:
    enum {
        SIZE = (int)sizeof(In),
        LONG = K_INNER ? STEP : EXTENT,
        LANES = K_INNER ? 8 : EXTENT < 32 ? EXTENT : 32, /* along a row, as it lies in device memory */
        EACH = LONG / LANES,                             /* a thread's elements of a row */
        ROWS = K_INNER ? EXTENT : STEP,
        DOWN = THREADS / LANES, /* rows from one turn to the next */
        TURNS = (ROWS + DOWN - 1) / DOWN,
        NEXT = (K_INNER ? LANES * PITCH : LANES) * SIZE,    /* bytes of shared memory to a thread's next element of a row */
        BELOW = (K_INNER ? DOWN : DOWN * PITCH) * SIZE, /* and to its next row */
    };
    static_assert(LONG % LANES == 0 && THREADS % LANES == 0, "a thread keeps its place in a row");

    const In *at; /* this thread's first element of the step that is loaded next */
    const int64_t ld, step;
    const int outputs; /* from the block's first one */
    int left;          /* elements of k from the step's first one */
    const bool inside;

    static __device__ int row_of(int thread) { return thread / LANES; }
    static __device__ int inner_of(int thread) { return thread % LANES; }
    static __device__ bool idle(int thread, int turn) { return ROWS % DOWN && turn * DOWN + row_of(thread) >= ROWS; }
    static __device__ char *place_of(char *shared, int thread) {
        return shared + (K_INNER ? inner_of(thread) * PITCH + row_of(thread) : row_of(thread) * PITCH + inner_of(thread)) * SIZE;
    }

  public:
    using Staged = In[TURNS][EACH];
    static __device__ constexpr int swizzle(int) { return 0; }

    /* `limit` outputs in all, `first` the block's first one; k from `begin` to `end`. */
    __device__ Singles(const void *data, int64_t pitch, int first, int limit, int begin, int end, int thread)
        : at((const In *)data + (row_of(thread) + (K_INNER ? first : begin)) * pitch + inner_of(thread) + (K_INNER ? begin : first)), ld(pitch),
          step(K_INNER ? STEP : STEP * pitch), outputs(limit - first), left(end - begin), inside(first + EXTENT <= limit) {}

    /* As of Copy. */
    __device__ bool fits() const { return inside; }
    __device__ bool has_rest() const { return left % STEP != 0; }
    __device__ Singles rest(int steps) const {
        Singles last = *this;
        last.at += (steps - 1) * step, last.left -= (steps - 1) * STEP;
        return last;
    }

    /* The next step into registers, zeros outside the operand. */
    template <bool EDGE> __device__ void load(Staged &to, int thread) {
        if (!EDGE || (inside && left >= STEP))
            each<true>(thread, [&](int turn, int i, const In *from, bool) { to[turn][i] = *from; });
        else
            each<false>(hide(thread), [&](int turn, int i, const In *from, bool exists) { to[turn][i] = exists ? *from : In(0); });
        at += step, left -= STEP;
    }
    __device__ void store(char *shared, const Staged &from, int thread) const {
        char *const to = place_of(shared, thread);
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++)
#pragma unroll
            for (int i = 0; i < EACH; i++)
                if (!idle(thread, turn)) *(In *)(to + turn * BELOW + i * NEXT) = from[turn][i];
    }

  private:
    /* body(turn, i, element, whether it exists), all of them existing where INSIDE. */
    template <bool INSIDE, class Body> __device__ void each(int thread, Body body) const {
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            if (idle(thread, turn)) continue;
            const In *const from = at + (int64_t)(turn * DOWN) * ld;
            const int row = row_of(thread) + turn * DOWN, rest = (K_INNER ? left : outputs) - inner_of(thread);
            const bool exists = INSIDE || row < (K_INNER ? outputs : left);
#pragma unroll
            for (int i = 0; i < EACH; i++) body(turn, i, from + i * LANES, exists && (INSIDE || i * LANES < rest));
        }
    }
};
}
}
#endif
