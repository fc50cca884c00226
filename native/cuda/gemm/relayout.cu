/* SPDX-License-Identifier: Apache-2.0
 * Copies an operand into the form that a kernel can take: transposed, or with a pitch and base that its loads need. Tiles pass through
 * shared memory, so that both sides are touched in whole rows; bytes read and written are the operand's, once each. Elements of 1 and 2
 * bytes are transposed four and two rows at a time in registers, so that every access is a word. */
#include <cstdint>

#include "gemm/gemm.h"
#include "core/launch.h"
#include "core/limits.h"
#include "core/split.cuh"

namespace pysim {
namespace {

enum { EDGE = 64, ROWS = 8 }; /* 32 x 8 threads */

/* Where an element goes: `source` is the column of `from` that comes to lie in a column of `to`. */
template <class T> struct Copy {
    T *to;
    int64_t pitch;
    __device__ int64_t source(int64_t column) const { return column; }
    __device__ void put(int64_t row, int64_t column, T value) const { to[row * pitch + column] = value; }
};
/* Its halves, lo `rows` rows below hi. */
template <bool INTERLEAVED> struct Halves {
    unsigned *to;
    int64_t pitch, rows;
    __device__ int64_t source(int64_t column) const { return INTERLEAVED ? (column & ~7) + interleaved((int)column & 7) : column; }
    __device__ void put(int64_t row, int64_t column, unsigned value) const { split_tf32(value, to[row * pitch + column], to[(rows + row) * pitch + column]); }
};

template <class T, bool TRANSPOSE, class To>
__global__ void __launch_bounds__(256) relayout_kernel(To to, const T *from, int64_t from_pitch, int64_t rows, int64_t columns) {
    /* a row of odd length in words keeps the transposed reads off each other's banks */
    __shared__ T tile[EDGE][EDGE + (sizeof(T) < 4 ? 4 / sizeof(T) : 1)];
    const int x = threadIdx.x, y = threadIdx.y;
    const int64_t row0 = (int64_t)blockIdx.y * EDGE, column0 = (int64_t)blockIdx.x * EDGE; /* of `to` */
    if (TRANSPOSE) {
        for (int r = y; r < EDGE; r += ROWS)
            for (int c = x; c < EDGE; c += 32)
                if (column0 + r < columns && row0 + c < rows) tile[r][c] = from[(column0 + r) * from_pitch + row0 + c];
        __syncthreads();
    }
    for (int r = y; r < EDGE; r += ROWS)
        for (int c = x; c < EDGE; c += 32) {
            const int64_t row = row0 + r, column = column0 + c, source = to.source(column);
            if (row >= rows || column >= to.pitch) continue;
            T value = T(0);
            if (source < columns) value = TRANSPOSE ? tile[source - column0][r] : from[row * from_pitch + source];
            to.put(row, column, value);
        }
}

/* N elements of one row as a word; those beyond `left` are zero, and not read. */
template <class T> __device__ unsigned word_of(const T *from, int64_t left) {
    constexpr int N = 4 / sizeof(T);
    if (left >= N) return *(const unsigned *)from;
    unsigned word = 0;
    for (int i = 0; i < N; i++)
        if (i < left) word |= (unsigned)from[i] << (8 * (int)sizeof(T) * i);
    return word;
}

/* word[i] element j <-> word[j] element i */
__device__ void transpose(unsigned (&w)[2]) {
    const unsigned a = w[0], b = w[1];
    w[0] = __byte_perm(a, b, 0x5410), w[1] = __byte_perm(a, b, 0x7632);
}
__device__ void transpose(unsigned (&w)[4]) {
    const unsigned a = __byte_perm(w[0], w[1], 0x5140), b = __byte_perm(w[2], w[3], 0x5140); /* bytes 0 and 1 of two rows each */
    const unsigned c = __byte_perm(w[0], w[1], 0x7362), d = __byte_perm(w[2], w[3], 0x7362);
    w[0] = __byte_perm(a, b, 0x5410), w[1] = __byte_perm(a, b, 0x7632);
    w[2] = __byte_perm(c, d, 0x5410), w[3] = __byte_perm(c, d, 0x7632);
}

/* Transposes elements of 1 or 2 bytes, N to a word: a thread takes N words below one another, a block 32 x 32 of such squares. */
template <class T>
__global__ void __launch_bounds__(256) transpose_words(T *to, int64_t to_pitch, const T *from, int64_t from_pitch, int64_t rows, int64_t columns) {
    constexpr int N = 4 / sizeof(T);
    __shared__ unsigned tile[N][32][33];
    const int x = threadIdx.x, y = threadIdx.y;
    const int64_t row0 = (int64_t)blockIdx.y * 32 * N, column0 = (int64_t)blockIdx.x * 32 * N; /* of `to` */
#pragma unroll
    for (int square = y; square < 32; square += ROWS) {
        unsigned word[N];
        const int64_t row = row0 + x * N;
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int64_t column = column0 + square * N + i;
            word[i] = column < columns ? word_of(from + column * from_pitch + row, rows - row) : 0u;
        }
        transpose(word);
#pragma unroll
        for (int i = 0; i < N; i++) tile[i][x][square] = word[i];
    }
    __syncthreads();
#pragma unroll
    for (int r = y; r < 32 * N; r += ROWS) {
        const int64_t row = row0 + r, column = column0 + x * N;
        if (row < rows && column < to_pitch) *(unsigned *)(to + row * to_pitch + column) = tile[r % N][r / N][x];
    }
}

template <class T, class To>
cudaError_t start(To to, const void *from, int64_t from_pitch, int64_t rows, int64_t columns, bool transpose, cudaStream_t stream) {
    const int64_t wide = (to.pitch + EDGE - 1) / EDGE, high = (rows + EDGE - 1) / EDGE;
    static_assert(most::RELAYOUT_ROWS == (int64_t)EDGE * 65535, "blocks along y of the largest grid"); /* abi/gemm.cu refuses more */
    const auto kernel = transpose ? relayout_kernel<T, true, To> : relayout_kernel<T, false, To>;
    return launch(kernel, dim3((unsigned)wide, (unsigned)high), dim3(32, ROWS), 0, stream, to, (const T *)from, from_pitch, rows, columns);
}

template <class T>
cudaError_t copy(void *to, int64_t to_pitch, const void *from, int64_t from_pitch, int64_t rows, int64_t columns, bool transpose, cudaStream_t stream) {
    if constexpr (sizeof(T) < 4)
        if (transpose && ((uintptr_t)from | (uintptr_t)(from_pitch * (int64_t)sizeof(T))) % 4 == 0) {
            constexpr int edge = 128 / sizeof(T);
            const dim3 words((unsigned)((to_pitch + edge - 1) / edge), (unsigned)((rows + edge - 1) / edge));
            return launch(transpose_words<T>, words, dim3(32, ROWS), 0, stream, (T *)to, to_pitch, (const T *)from, from_pitch, rows, columns);
        }
    return start<T>(Copy<T>{(T *)to, to_pitch}, from, from_pitch, rows, columns, transpose, stream);
}
}

cudaError_t relayout(void *to, int64_t to_pitch, const void *from, int64_t from_pitch, int64_t rows, int64_t columns, int element_bytes,
                     bool transpose, cudaStream_t stream) {
    switch (element_bytes) {
    case 1: return copy<unsigned char>(to, to_pitch, from, from_pitch, rows, columns, transpose, stream);
    case 2: return copy<unsigned short>(to, to_pitch, from, from_pitch, rows, columns, transpose, stream);
    case 4: return copy<unsigned>(to, to_pitch, from, from_pitch, rows, columns, transpose, stream);
    default: return copy<unsigned long long>(to, to_pitch, from, from_pitch, rows, columns, transpose, stream);
    }
}

cudaError_t split(void *to, int64_t to_pitch, const void *from, int64_t from_pitch, int64_t rows, int64_t columns, bool transpose, bool interleave,
                  cudaStream_t stream) {
    if (interleave) return start<unsigned>(Halves<true>{(unsigned *)to, to_pitch, rows}, from, from_pitch, rows, columns, transpose, stream);
    return start<unsigned>(Halves<false>{(unsigned *)to, to_pitch, rows}, from, from_pitch, rows, columns, transpose, stream);
}
}
