/* SPDX-License-Identifier: Apache-2.0
 * The store path of most tiles whose rows are contiguous in C (epilogue.cuh). */
#ifndef PYSIM_CUDA_WGMMA_ROWS_CUH
#define PYSIM_CUDA_WGMMA_ROWS_CUH
#include "mainloop/wgmma/pairs.cuh"
#include "mainloop/wgmma/staging.cuh"

namespace pysim::hopper {

/* A warp's staging buffer of 16 rows of 128 bytes of C, or 64 if the tile's rows are no multiple of 128. Its vectors of 16 bytes are swizzled so that no
 * access has bank conflicts: two-byte results are written by stmatrix, 8 rows of a vector at a time, four-byte results in pairs, 4 rows of two vectors
 * at a time, and both are read row by row. */
template <int WARP_N, class Out> struct RowBuffer {
    static constexpr bool NARROW = sizeof(Out) == 2;
    static constexpr int COLUMNS = NARROW && WARP_N % 64 == 0 ? 64 : 32, BYTES = COLUMNS * sizeof(Out), VECTORS = BYTES / 16;
    static constexpr int ROWS = 32 / VECTORS, STORES = 16 / ROWS; /* rows that a warp stores at a time; stores of a buffer */
    static __device__ int swizzle(int row) { return !NARROW ? row % 4 * 2 : BYTES == 128 ? row % 8 : row / 2 % 4; }
    static __device__ int offset(int row, int vector) { return row * BYTES + (vector ^ swizzle(row)) * 16; }
};

/* Stores rows of C of the usual type, in aligned vectors of 16 bytes, with a scale and a bias per column, ReLU, clamp and leaky ReLU. Results change threads so that a warp
 * stores whole lines of 128 bytes: a kernel that does nothing else writes 2.85 TB/s by lines on an H100, and 2.4 by 32 bytes of eight rows, as the
 * accumulators of four-byte results lie. Addresses are kept in registers, because the compiler would compute them again for each buffer. */
template <class S, class Out, class Acc, class T, class Place, class Pitch>
__device__ __forceinline__ void store_rows(const EpilogueTerms<T> &e, const Target<Place, Pitch> &c, int row, int column, int columns,
                                           const Acc (&acc)[S::PARTS][S::ACCUMULATORS]) {
    using Buffer = RowBuffer<S::WARP_N, Out>;
    constexpr bool NARROW = Buffer::NARROW;
    constexpr int BUFFERS = S::WARP_N / Buffer::COLUMNS, VALUES = Buffer::COLUMNS / 2, VECTOR = 16 / sizeof(Out);
    static_assert(16 * Buffer::BYTES <= 2 * Staging<S>::ROWS_BUFFER, "a warp's share of the staging memory");
    /* opaque: what depends on the lane would be computed before the loop over tiles and be kept in registers, or spilled, while products need them */
    const int lane = opaque(threadIdx.x % 32), warp = threadIdx.x % 128 / 32;
    const bool arithmetic = e.bias || e.alpha != T(1), bounded = e.function == positive || e.function == clamped,
               capped = e.function == clamped;
    const T low = e.function == positive ? T(0) : e.low;

    PYSIM_DYNAMIC_SHARED(memory);
    const int own = (int)(Staging<S>::own(true) - memory);
    /* where this lane writes: NARROW its row of a matrix in the first and second 32 columns, else its pairs, 8 columns apart */
    constexpr int PLACES = NARROW ? Buffer::COLUMNS / 32 : 4;
    int to[PLACES];
#pragma unroll
    for (int i = 0; i < PLACES; i++)
        to[i] = opaque(
            own + (NARROW ? Buffer::offset(lane % 8, 4 * i + lane / 8) : Buffer::offset(lane / 4, 2 * i + lane % 4 / 2) + lane % 2 * 8));
    /* where it reads: the swizzle repeats after two stores */
    int from[2];
#pragma unroll
    for (int i = 0; i < 2; i++) from[i] = opaque(own + Buffer::offset(lane / Buffer::VECTORS + i * Buffer::ROWS, lane % Buffer::VECTORS));

    using Word = typename pysim::Word<2 * sizeof(Out)>::type; /* two values of the bias, packed */
    const auto value = [](const Word &word, int i) { return T(((const Pack<Out, 2> *)&word)->value[i]); };
    const int first_column = column + lane % 4 * 2, biased = e.bias ? columns - first_column : 0,
              scaled = e.scale ? columns - first_column : 0;
    const Out *const bias = (const Out *)e.bias + first_column;
    const T *const scale = e.scale + first_column;

    const int at = column + lane % Buffer::VECTORS * VECTOR, length = c.length - at;
    bool here;
    const int64_t place = c.place(at, here), step = c.GAPPED ? 0 : c.offset(Buffer::ROWS);
#pragma unroll
    for (int part = 0; part < S::PARTS; part++) {
        const int line = row + 64 * part + 16 * warp + lane / Buffer::VECTORS, lines = c.lines - line;
        Out *const lies = kept((Out *)e.c + place + (c.GAPPED ? 0 : c.offset(line)));
#pragma unroll
        for (int buffer = 0; buffer < BUFFERS; buffer++) {
            if constexpr (S::NARROWS)
                if (column + Buffer::COLUMNS * buffer >= columns) break;
            T x[VALUES];
#pragma unroll
            for (int i = 0; i < VALUES; i++) x[i] = T(acc[part][VALUES * buffer + i]);
            if (opaque(scaled != 0))
#pragma unroll
                for (int j = 0; j < VALUES / 4; j++) {
                    const int along = Buffer::COLUMNS * buffer + 8 * j;
                    scale_columns(&x[4 * j], scale + along, along < scaled);
                }
            if (opaque(arithmetic)) {
#pragma unroll
                for (int j = 0; j < VALUES / 4; j++) {
                    const int along = Buffer::COLUMNS * buffer + 8 * j;
                    const Word pair = Access<sizeof(Word)>::load(bias + along, along < biased);
#pragma unroll
                    for (int i = 0; i < 4; i++) x[4 * j + i] = e.alpha * x[4 * j + i] + value(pair, i % 2);
                }
            }
            slope(x, opaque(e.function == sloped), low, e.high);
            if constexpr (NARROW) {
                using Two = typename Pair<Out>::type;
                Two two[VALUES / 2]; /* 2j + h: columns 8j on, rows 8h on */
#pragma unroll
                for (int i = 0; i < VALUES / 2; i++) two[i] = Pair<Out>::of(x[2 * i], x[2 * i + 1]);
                bound(two, opaque(bounded), opaque(capped), Pair<Out>::of(low, low), Pair<Out>::of(e.high, e.high));
#pragma unroll
                for (int i = 0; i < VALUES / 8; i++) {
                    const Two *const first = &two[i / 2 * 8 + i % 2];
                    const unsigned of[4] = {*(unsigned *)&first[0], *(unsigned *)&first[2], *(unsigned *)&first[4], *(unsigned *)&first[6]};
                    store_matrices<false>(memory + to[i / 2] + i % 2 * 8 * Buffer::BYTES, of);
                }
            } else {
                bound(x, opaque(bounded), opaque(capped), low, e.high);
#pragma unroll
                for (int i = 0; i < VALUES / 2; i++)
                    *(Pack<Out, 2> *)(memory + to[i / 2] + i % 2 * 8 * Buffer::BYTES) = {{Out(x[2 * i]), Out(x[2 * i + 1])}};
            }
            __syncwarp();
#pragma unroll
            for (int i = 0; i < Buffer::STORES; i++) {
                int64_t at_line = i * step;
                bool there = here && Buffer::ROWS * i < lines;
                if constexpr (Target<Place, Pitch>::GAPPED) there = c.pitch.at(line + Buffer::ROWS * i, at_line) && there;
                Access<16>::store(lies + Buffer::COLUMNS * buffer + at_line,
                                  *(const uint4 *)(memory + from[i % 2] + i / 2 * 2 * Buffer::ROWS * Buffer::BYTES),
                                  there && Buffer::COLUMNS * buffer < length);
            }
            __syncwarp();
        }
    }
}
}
#endif
