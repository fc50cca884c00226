/* SPDX-License-Identifier: Apache-2.0
 * Copies one k-iteration of an operand from device memory into shared memory, for either layout in device memory.
 *
 * In shared memory a unit (one element; for s8 four of k) is at
 *     byte(k, x) = ((k EXTENT + x) sizeof(Unit)) ^ swizzle(k),   swizzle(k) = (k / K_UNITS mod LINES) 128 / LINES
 * with x its row of A or column of B. Threads copy chunks of 16 bytes:
 *   k contiguous         LINES chunks fill a row's block_k, so a warp holds 32/LINES rows and stores each k of a chunk separately. Lanes whose k differ
 *                        by K_UNITS would conflict, as EXTENT is a multiple of the banks; the swizzle separates them
 *   outputs contiguous   the chunk is stored as 16 bytes; the swizzle moves 16-byte pieces within 128 bytes, which costs nothing
 * Fragments are read with the same xor, a constant for each k of the unrolled loop. pysim/cachemodel/shared_memory/gemm_shared.py has the same formulas.
 *
 * Worked number, f32, block 128x128x16: LINES = 4, swizzle = 0, 32, 64, 96 bytes for k = 0-3, 4-7, 8-11, 12-15. */
#ifndef PYSIM_CUDA_SIMT_COPY_CUH
#define PYSIM_CUDA_SIMT_COPY_CUH
#include "mainloop/simt/types.cuh"

namespace pysim::simt {

/* An operand tile of EXTENT outputs x STEP elements of k, copied by THREADS threads. K_INNER: k is contiguous in device memory; VECTOR: vector accesses;
 * SWIZZLED: with the swizzle. */
template <class T, int EXTENT, int STEP, int THREADS, bool VECTOR, bool SWIZZLED, bool K_INNER> class Copy {
protected:
    using In = typename T::In;
    using Unit = typename T::Unit;
    enum {
        LINES = STEP / T::DEPTH / T::K_UNITS,
        CHUNKS = EXTENT * STEP * (int)sizeof(In) / 16,
        PASSES = (CHUNKS + THREADS - 1) / THREADS,
    };
    static_assert(LINES >= 1 && LINES <= 8, "block_k: 1 to 8 chunks");
    static_assert(T::K_UNITS * EXTENT * sizeof(Unit) >= 128, "the swizzle needs 128 bytes of the same k / K_UNITS");

    enum { /* a chunk is PIECES lines of INNER elements, contiguous in device memory */
           PIECES = K_INNER ? (int)T::K_PIECES : (int)T::OUT_PIECES,
           PIECE_BYTES = 16 / PIECES,
           INNER = PIECE_BYTES / (int)sizeof(In),
           ACROSS = (K_INNER ? STEP : EXTENT) / INNER,
           DOWN = THREADS / ACROSS * PIECES, /* lines from one pass to the next */
    };
    static_assert(THREADS % ACROSS == 0, "a thread keeps its place along the contiguous dimension");

    const In *at; /* this thread's first element of the next k-iteration */
    const int64_t ld;
    const int64_t step;
    const int outputs; /* remaining outputs, from the block's first */
    int left;          /* remaining k, from the next k-iteration's first */
    const bool aligned, inside;

    static __device__ int line_of(int thread) { return thread / ACROSS * PIECES; }
    static __device__ bool idle(int thread, int pass) { return CHUNKS % THREADS && pass * THREADS + thread >= CHUNKS; }

public:
    enum { BYTES = EXTENT * STEP / T::DEPTH * (int)sizeof(Unit) };
    using Staged = unsigned[PASSES][4];

    enum { DEPTH = STEP, PITCH = EXTENT };
    /* Calls each(line, elements, count) for the thread's elements; lines are relative to its first. */
    static __device__ int first_line(int thread) { return line_of(thread); }
    template <class Each> static __device__ void each_line(Staged &words, Each each) {
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++) {
            In elements[INNER];
            memcpy(elements, words[pass], sizeof elements);
            each(pass * DOWN, elements, INNER);
            memcpy(words[pass], elements, sizeof elements);
        }
    }
    /* The thread's first element along the contiguous dimension. */
    static __device__ int inner_of(int thread) { return thread % ACROSS * INNER; }
    static __device__ constexpr int swizzle(int k) { return SWIZZLED ? k / T::K_UNITS % LINES * (128 / LINES) : 0; }
    static __device__ int byte(int k, int x) { return ((k * EXTENT + x) * (int)sizeof(Unit)) ^ swizzle(k); }

    /* `limit`: outputs of the operand; `first`: the block's first output; k in [begin, end). */
    __device__ Copy(const void *data, int64_t pitch, int first, int limit, int begin, int end, int thread)
        : at((const In *)data), ld(pitch), step(K_INNER ? STEP : STEP * pitch), outputs(limit - first), left(end - begin),
          aligned(VECTOR &&
                  ((uintptr_t)data | (uintptr_t)(pitch * (int)sizeof(In)) | (K_INNER ? 0 : first * sizeof(In))) % PIECE_BYTES == 0),
          inside(first + EXTENT <= limit) {
        const int line = line_of(thread) + (K_INNER ? first : begin), inner = inner_of(thread) + (K_INNER ? begin : first);
        at += line * ld + inner;
    }

    /* Whether all k-iterations can use vectors without bounds checks (EDGE = false). */
    __device__ bool whole() const { return aligned && inside && left % STEP == 0; }
    /* Whether vectors can be used; otherwise Singles is faster. */
    __device__ bool by_vectors() const { return aligned; }
    /* Whether all its outputs exist. */
    __device__ bool fits() const { return inside; }
    /* Whether the last k-iteration is shorter; rest(steps) loads that one. */
    __device__ bool has_rest() const { return left % STEP != 0; }
    __device__ Copy rest(int steps) const {
        Copy last = *this;
        last.at += (steps - 1) * step, last.left -= (steps - 1) * STEP;
        return last;
    }

    /* Loads the next k-iteration into registers, zeros outside the operand. */
    template <bool EDGE> __device__ void load(Staged &words, int thread) {
        if (!EDGE || (aligned && inside && left >= STEP)) load_whole(words, thread);
        else load_edge(words, thread);
        advance();
    }

    __device__ void store(char *shared, Staged &words, int thread) const {
        enum { EACH = 16 / T::K_UNITS }; /* bytes of one k of a chunk with k contiguous */
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++) {
            if (idle(thread, pass)) continue;
            T::template units<K_INNER>(words[pass]);
            if constexpr (K_INNER) {
#pragma unroll
                for (int i = 0; i < T::K_UNITS; i++)
                    to_shared<EACH, VECTOR>(shared + place_of(thread, pass, i), words[pass] + i * EACH / 4);
            } else {
                to_shared<16, VECTOR>(shared + place_of(thread, pass, 0), words[pass]);
            }
        }
    }

    /* Copies the next k-iteration into shared memory asynchronously. */
    template <bool EDGE> __device__ void load_async(char *shared, int thread) {
        static_assert(sizeof(In) == sizeof(Unit) && sizeof(In) >= 4, "asynchronous copies move 4, 8 or 16 bytes and do not rearrange");
        if (EDGE) async_turns<false>(shared, hide(thread));
        else async_turns<true>(shared, thread);
        advance();
    }

private:
    __device__ void advance() { at += step, left -= STEP; }
    /* Number of existing elements of this thread's piece of `line`; INNER or more if all exist. */
    __device__ int there(int thread, int line) const {
        const bool exists = line_of(thread) + line < (K_INNER ? outputs : left);
        return exists ? (K_INNER ? left : outputs) - inner_of(thread) : 0;
    }

    /* Not __ldg: the compiler may move such a load past barriers, and sinks it to its use, too late. */
    __device__ void load_whole(Staged &words, int thread) const {
        using Vector = typename Word<PIECE_BYTES>::type;
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++)
#pragma unroll
            for (int piece = 0; piece < PIECES; piece++)
                if (!idle(thread, pass)) {
                    const Vector v = *(const Vector *)(at + (int64_t)(pass * DOWN + piece) * ld);
                    memcpy(words[pass] + piece * PIECE_BYTES / 4, &v, PIECE_BYTES);
                }
    }

    __device__ void load_edge(Staged &words, int real_thread) const {
        using Vector = typename Word<PIECE_BYTES>::type;
        const int thread = hide(real_thread);
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++)
#pragma unroll
            for (int piece = 0; piece < PIECES; piece++) {
                const int line = pass * DOWN + piece, count = idle(thread, pass) ? 0 : there(thread, line);
                const In *from = at + (int64_t)line * ld;
                alignas(16) In part[INNER];
                if (aligned && count >= INNER) {
                    const Vector v = __ldg((const Vector *)from);
                    memcpy(part, &v, PIECE_BYTES);
                } else {
#pragma unroll
                    for (int i = 0; i < INNER; i++) part[i] = i < count ? __ldg(from + i) : In(0);
                }
                memcpy(words[pass] + piece * PIECE_BYTES / 4, part, PIECE_BYTES);
            }
    }

    /* Shared offset of this thread's chunk of a pass; with k contiguous, of its unit `i` of k. */
    static __device__ int place_of(int thread, int pass, int i) {
        constexpr int pitch = EXTENT * (int)sizeof(Unit), down = DOWN * (int)sizeof(Unit);
        const int inner = inner_of(thread), line = line_of(thread);
        if constexpr (K_INNER && (down & (down - 1)) == 0 && pitch % 128 == 0) /* a line below DOWN and a pass's offset share no bits */
            return inner / T::DEPTH * pitch + ((line * (int)sizeof(Unit) ^ swizzle(inner / T::DEPTH)) ^ (pass * down & 127)) +
                   (pass * down & ~127) + i * pitch;
        else if constexpr (K_INNER) return byte(inner / T::DEPTH + i, line + pass * DOWN);
        else return byte((line + pass * DOWN) / T::DEPTH, inner);
    }

    template <int COUNT> static __device__ void fetch(char *shared, const void *from, bool exists) {
        copy_async<COUNT>(shared, from, exists ? COUNT : 0); /* the rest is zeros */
    }

    template <bool WHOLE> __device__ void async_turns(char *shared, int thread) const {
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++) {
            if (idle(thread, pass)) continue;
            const int line = pass * DOWN, count = WHOLE ? (int)INNER : there(thread, line);
            const In *from = at + (int64_t)line * ld;
            if (!K_INNER && (WHOLE || (aligned && count >= INNER))) {
                fetch<16>(shared + place_of(thread, pass, 0), from, true);
            } else {
#pragma unroll
                for (int i = 0; i < INNER; i++) {
                    const int to = K_INNER ? place_of(thread, pass, i) : place_of(thread, pass, 0) + i * (int)sizeof(In);
                    fetch<sizeof(In)>(shared + to, i < count ? from + i : at, i < count);
                }
            }
        }
    }
};
}
#endif
