/* SPDX-License-Identifier: Apache-2.0
 * Copies one k-iteration of an unaligned operand into shared memory: element by element, neighbouring lanes neighbouring elements.
 *
 * With Copy's assignment lanes would be a vector apart, so each of its four loads would touch as many lines of L1 as one vector load. Here a warp's
 * load touches
 *   k contiguous         4 rows, 8 elements of k in each; a thread's next elements of a row are 8 apart
 *   outputs contiguous   1 row, 32 outputs; a thread's next elements are 32 apart
 * so elements of one row share an address register, with constant offsets. In shared memory a line is 16 bytes longer than its elements,
 *     byte(k, x) = (k (EXTENT + PAD) + x) sizeof(Unit),   PAD sizeof(Unit) = 16,
 * so 4 x of 8 k fall into all 32 banks: no conflicts, and fragments are read without an xor. */
#ifndef PYSIM_CUDA_SIMT_SINGLES_CUH
#define PYSIM_CUDA_SIMT_SINGLES_CUH
#include "mainloop/simt/types.cuh"

namespace pysim::simt {

/* An operand tile of EXTENT outputs x STEP elements of k, copied by THREADS threads. K_INNER: k is contiguous in device memory. */
template <class T, int EXTENT, int STEP, int THREADS, bool K_INNER> class Singles {
    using In = typename T::In;

public:
    enum { PITCH = EXTENT + 16 / (int)sizeof(In) };

private:
    enum {
        SIZE = (int)sizeof(In),
        LONG = K_INNER ? STEP : EXTENT,
        LANES = K_INNER       ? 8
                : EXTENT < 32 ? EXTENT
                              : 32, /* along a row of device memory */
        EACH = LONG / LANES,        /* a thread's elements of a row */
        ROWS = K_INNER ? EXTENT : STEP,
        DOWN = THREADS / LANES, /* rows from one pass to the next */
        PASSES = (ROWS + DOWN - 1) / DOWN,
        NEXT = (K_INNER ? LANES * PITCH : LANES) * SIZE, /* bytes of shared memory between a thread's elements of a row */
        BELOW = (K_INNER ? DOWN : DOWN * PITCH) * SIZE,  /* and between its rows */
    };
    static_assert(LONG % LANES == 0 && THREADS % LANES == 0, "a thread keeps its column");

    const In *at; /* this thread's first element of the next k-iteration */
    const int64_t ld, step;
    const int outputs; /* remaining outputs, from the block's first */
    int left;          /* remaining k, from the next k-iteration's first */
    const bool inside;

    static __device__ int row_of(int thread) { return thread / LANES; }
    static __device__ int inner_of(int thread) { return thread % LANES; }
    static __device__ bool idle(int thread, int pass) { return ROWS % DOWN && pass * DOWN + row_of(thread) >= ROWS; }
    static __device__ char *place_of(char *shared, int thread) {
        return shared + (K_INNER ? inner_of(thread) * PITCH + row_of(thread) : row_of(thread) * PITCH + inner_of(thread)) * SIZE;
    }

public:
    using Staged = In[PASSES][EACH];
    static __device__ constexpr int swizzle(int) { return 0; }

    /* `limit`: outputs of the operand; `first`: the block's first output; k in [begin, end). */
    __device__ Singles(const void *data, int64_t pitch, int first, int limit, int begin, int end, int thread)
        : at((const In *)data + (row_of(thread) + (K_INNER ? first : begin)) * pitch + inner_of(thread) + (K_INNER ? begin : first)),
          ld(pitch), step(K_INNER ? STEP : STEP * pitch), outputs(limit - first), left(end - begin), inside(first + EXTENT <= limit) {}

    /* As in Copy. */
    __device__ bool fits() const { return inside; }
    __device__ bool has_rest() const { return left % STEP != 0; }
    __device__ Singles rest(int steps) const {
        Singles last = *this;
        last.at += (steps - 1) * step, last.left -= (steps - 1) * STEP;
        return last;
    }

    /* Loads the next k-iteration into registers, zeros outside the operand. */
    template <bool EDGE> __device__ void load(Staged &to, int thread) {
        if (!EDGE || (inside && left >= STEP)) each<true>(thread, [&](int pass, int i, const In *from, bool) { to[pass][i] = *from; });
        else each<false>(hide(thread), [&](int pass, int i, const In *from, bool exists) { to[pass][i] = exists ? *from : In(0); });
        at += step, left -= STEP;
    }
    __device__ void store(char *shared, const Staged &from, int thread) const {
        char *const to = place_of(shared, thread);
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++)
#pragma unroll
            for (int i = 0; i < EACH; i++)
                if (!idle(thread, pass)) *(In *)(to + pass * BELOW + i * NEXT) = from[pass][i];
    }

private:
    /* Calls body(pass, i, element, exists); INSIDE: all exist. */
    template <bool INSIDE, class Body> __device__ void each(int thread, Body body) const {
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++) {
            if (idle(thread, pass)) continue;
            const In *const from = at + (int64_t)(pass * DOWN) * ld;
            const int row = row_of(thread) + pass * DOWN, rest = (K_INNER ? left : outputs) - inner_of(thread);
            const bool exists = INSIDE || row < (K_INNER ? outputs : left);
#pragma unroll
            for (int i = 0; i < EACH; i++) body(pass, i, from + i * LANES, exists && (INSIDE || i * LANES < rest));
        }
    }
};
}
#endif
