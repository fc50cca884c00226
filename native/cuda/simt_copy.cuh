/* SPDX-License-Identifier: Apache-2.0
 * How a k step of one operand gets from device memory into shared memory, whichever way it lies in device memory.
 *
 * In shared memory a unit (one element; for s8 four of k) stands at
 *     byte(k, x) = ((k EXTENT + x) sizeof(Unit)) ^ swizzle(k),   swizzle(k) = (k / K_UNITS mod LINES) 128 / LINES
 * x being its row of A or column of B. The threads take chunks of 16 bytes:
 *   k contiguous         LINES chunks fill a row's block_k, so a warp holds 32/LINES rows, and stores each k of a chunk on its own: lanes that
 *                        differ in k by K_UNITS would meet in the same banks, as EXTENT is a multiple of the banks; the swizzle parts them
 *   outputs contiguous   the chunk is stored as it is, 16 bytes; the swizzle moves 16-byte pieces within 128 bytes, which costs nothing
 * Fragments are read with the same xor, a constant for each k of the unrolled loop. pysim/cachemodel/gemm_shared.py has the same formulas.
 *
 * Worked number, f32, block 128x128x16: LINES = 4, swizzle = 0, 32, 64, 96 bytes for k = 0-3, 4-7, 8-11, 12-15. */
#ifndef PYSIM_CUDA_SIMT_COPY_CUH
#define PYSIM_CUDA_SIMT_COPY_CUH
#include "simt_types.cuh"

namespace pysim {
namespace simt {

/* An operand of EXTENT outputs by STEP elements of k, moved by THREADS threads. FULL: with vectors; SWIZZLED: without bank conflicts. */
template <class T, int EXTENT, int STEP, int THREADS, bool VECTOR, bool SWIZZLED> class Copy {
    using In = typename T::In;
    using Unit = typename T::Unit;
    enum {
        LINES = STEP / T::DEPTH / T::K_UNITS,
        CHUNKS = EXTENT * STEP * (int)sizeof(In) / 16,
        TURNS = (CHUNKS + THREADS - 1) / THREADS,
    };
    static_assert(LINES >= 1 && LINES <= 8, "block_k: 1 to 8 chunks");
    static_assert(T::K_UNITS * EXTENT * sizeof(Unit) >= 128, "the swizzle needs 128 bytes of the same k / K_UNITS");

    /* A chunk with k contiguous, or with outputs contiguous: PIECES lines of INNER elements. */
    template <bool K_INNER> struct Way {
        enum {
            PIECES = K_INNER ? T::K_PIECES : T::OUT_PIECES,
            BYTES = 16 / PIECES,
            INNER = BYTES / (int)sizeof(In),
            ACROSS = (K_INNER ? STEP : EXTENT) / INNER,
            DOWN = THREADS / ACROSS * PIECES, /* lines from one turn to the next */
        };
        static_assert(THREADS % ACROSS == 0, "a thread keeps its place along the contiguous dimension");
    };

    const In *at; /* this thread's first element of the step that is loaded next */
    const int64_t ld;
    const int64_t step;
    const int outputs; /* from the block's first one */
    int left;          /* elements of k from the step's first one */
    const bool k_inner, aligned, inside;

    template <bool K_INNER> static __device__ int inner_of(int thread) { return thread % Way<K_INNER>::ACROSS * Way<K_INNER>::INNER; }
    template <bool K_INNER> static __device__ int line_of(int thread) { return thread / Way<K_INNER>::ACROSS * Way<K_INNER>::PIECES; }
    static __device__ bool idle(int thread, int turn) { return CHUNKS % THREADS && turn * THREADS + thread >= CHUNKS; }

  public:
    enum { BYTES = EXTENT * STEP / T::DEPTH * (int)sizeof(Unit) };
    using Staged = unsigned[TURNS][4];

    static __device__ constexpr int swizzle(int k) { return SWIZZLED ? k / T::K_UNITS % LINES * (128 / LINES) : 0; }
    static __device__ int byte(int k, int x) { return ((k * EXTENT + x) * (int)sizeof(Unit)) ^ swizzle(k); }

    /* `limit` outputs in all, `first` the block's first one; k from `begin` to `end`. */
    __device__ Copy(const void *data, int64_t pitch, bool k_contiguous, int first, int limit, int begin, int end, int thread)
        : at((const In *)data), ld(pitch), step(k_contiguous ? STEP : STEP * pitch),
          outputs(limit - first), left(end - begin), k_inner(k_contiguous),
          aligned(VECTOR && ((uintptr_t)data | (uintptr_t)(pitch * (int)sizeof(In))) %
                                    (k_contiguous ? Way<true>::BYTES : Way<false>::BYTES) == 0),
          inside(first + EXTENT <= limit) {
        at += k_contiguous ? (int64_t)(first + line_of<true>(thread)) * ld + begin + inner_of<true>(thread)
                           : (int64_t)(begin + line_of<false>(thread)) * ld + first + inner_of<false>(thread);
    }

    /* The next step into registers, zeros outside the operand. */
    __device__ void load(Staged &words, int thread) {
        if (k_inner) load_way<true>(words, thread);
        else load_way<false>(words, thread);
        advance();
    }
    __device__ void store(char *shared, Staged &words, int thread) const {
        if (k_inner) store_way<true>(shared, words, thread);
        else store_way<false>(shared, words, thread);
    }
    /* The next step straight into shared memory, asynchronously. */
    __device__ void load_async(char *shared, int thread) {
        if (k_inner) async_way<true>(shared, thread);
        else async_way<false>(shared, thread);
        advance();
    }

  private:
    __device__ void advance() { at += step, left -= STEP; }
    /* The same number, of which the compiler does not know it: what follows from it is computed where it is used, not held in registers. */
    static __device__ int hide(int thread) {
        asm volatile("" : "+r"(thread));
        return thread;
    }

    /* How many elements of this thread's piece `line` exist, counted from its first: INNER or more where all do. */
    template <bool K_INNER> __device__ int there(int thread, int line) const {
        const bool exists = line_of<K_INNER>(thread) + line < (K_INNER ? outputs : left);
        return exists ? (K_INNER ? left : outputs) - inner_of<K_INNER>(thread) : 0;
    }

    template <bool K_INNER> __device__ void load_way(Staged &words, int thread) const {
        using W = Way<K_INNER>;
        using Vector = typename Word<W::BYTES>::type;
        if (aligned && inside && left >= STEP) {
#pragma unroll
            for (int turn = 0; turn < TURNS; turn++)
#pragma unroll
                for (int piece = 0; piece < W::PIECES; piece++)
                    if (!idle(thread, turn)) {
                        const Vector v = __ldg((const Vector *)(at + (int64_t)(turn * W::DOWN + piece) * ld));
                        memcpy(words[turn] + piece * W::BYTES / 4, &v, W::BYTES);
                    }
            return;
        }
        const int hidden = hide(thread);
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++)
#pragma unroll
            for (int piece = 0; piece < W::PIECES; piece++) {
                const int line = turn * W::DOWN + piece, count = idle(hidden, turn) ? 0 : there<K_INNER>(hidden, line);
                const In *from = at + (int64_t)line * ld;
                alignas(16) In part[W::INNER];
                if (aligned && count >= W::INNER) {
                    const Vector v = __ldg((const Vector *)from);
                    memcpy(part, &v, W::BYTES);
                } else {
#pragma unroll
                    for (int i = 0; i < W::INNER; i++) part[i] = i < count ? __ldg(from + i) : In(0);
                }
                memcpy(words[turn] + piece * W::BYTES / 4, part, W::BYTES);
            }
    }

    /* Where this thread's chunk of a turn goes, and with k contiguous its unit `i` of k. */
    template <bool K_INNER> static __device__ int place_of(int thread, int turn, int i) {
        using W = Way<K_INNER>;
        constexpr int pitch = EXTENT * (int)sizeof(Unit), down = W::DOWN * (int)sizeof(Unit);
        if constexpr (K_INNER && W::DOWN * sizeof(Unit) % 128 == 0 && pitch % 128 == 0) { /* the xor is the thread's alone */
            const int inner = inner_of<true>(thread) / T::DEPTH;
            return (inner * pitch + ((line_of<true>(thread) * (int)sizeof(Unit)) ^ swizzle(inner))) + turn * down + i * pitch;
        } else {
            const int line = line_of<K_INNER>(thread) + turn * W::DOWN, inner = inner_of<K_INNER>(thread);
            return K_INNER ? byte(inner / T::DEPTH + i, line) : byte(line / T::DEPTH, inner);
        }
    }

    template <bool K_INNER> __device__ void store_way(char *shared, Staged &words, int thread) const {
        enum { EACH = 16 / T::K_UNITS }; /* bytes of one k of a chunk with k contiguous */
        const int hidden = hide(thread);
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            if (idle(thread, turn)) continue;
            T::template units<K_INNER>(words[turn]);
            if constexpr (K_INNER) {
#pragma unroll
                for (int i = 0; i < T::K_UNITS; i++) to_shared<EACH, VECTOR>(shared + place_of<true>(hidden, turn, i), words[turn] + i * EACH / 4);
            } else {
                to_shared<16, VECTOR>(shared + place_of<false>(hidden, turn, 0), words[turn]);
            }
        }
    }

    template <int COUNT> static __device__ void fetch(char *shared, const void *from, bool exists) {
        const unsigned to = (unsigned)__cvta_generic_to_shared(shared);
        const int bytes = exists ? COUNT : 0; /* the rest is zeros */
        if constexpr (COUNT == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
        else asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(to), "l"(from), "r"(bytes), "n"(COUNT) : "memory");
    }

    template <bool K_INNER> __device__ void async_way(char *shared, int thread) const {
        using W = Way<K_INNER>;
        static_assert(sizeof(In) == sizeof(Unit) && sizeof(In) >= 4, "asynchronous copies move 4, 8 or 16 bytes and do not rearrange");
        const bool whole = aligned && inside && left >= STEP;
        const int hidden = hide(thread);
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            if (idle(thread, turn)) continue;
            const int line = turn * W::DOWN, count = there<K_INNER>(hidden, line);
            const In *from = at + (int64_t)line * ld;
            if (!K_INNER && (whole || (aligned && count >= W::INNER))) {
                fetch<16>(shared + place_of<false>(hidden, turn, 0), from, true);
            } else {
#pragma unroll
                for (int i = 0; i < W::INNER; i++) {
                    const bool exists = whole || i < count;
                    fetch<sizeof(In)>(shared + place_of<K_INNER>(hidden, turn, K_INNER ? i : 0) + (K_INNER ? 0 : i * (int)sizeof(In)), exists ? from + i : at, exists);
                }
            }
        }
    }
};
}
}
#endif
