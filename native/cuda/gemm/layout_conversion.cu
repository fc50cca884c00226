/* SPDX-License-Identifier: Apache-2.0
 * Layout conversion: copies operands transposed, with the pitch and alignment that a kernel needs, or split into halves or thirds. Tiles pass through shared
 * memory, so that reads and writes are coalesced; each byte is read and written once. Elements of 1 and 2 bytes are transposed four and two rows at
 * a time in registers, so that every access is a word. Elements of rows that are copied as they lie move several at a time where all rows begin at multiples
 * of their bytes. One launch copies both operands and clears the flags of partial sums, because a launch costs
 * more than copying a small operand. The product's kernel may start meanwhile (core/launch.h). */
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "gemm/gemm.h"
#include "core/launch.h"
#include "core/limits.h"
#include "core/split.cuh"

namespace pysim {
namespace {

enum { EDGE = 64, ROWS = 8 /* 32 x 8 threads */, MOST_BYTES = 8 /* that a thread moves at once */ };

/* Stores an element; source(column) is the column of `from` that `to` has there. */
template <class T> struct Copy {
    T *to;
    int64_t pitch;
    __device__ int64_t source(int64_t column) const { return column; }
    __device__ void put(int64_t row, int64_t column, T value) const { to[row * pitch + column] = value; }
};
/* Stores its halves, lo `rows` rows below hi. */
struct Halves {
    unsigned *to;
    int64_t pitch, rows;
    __device__ int64_t source(int64_t column) const { return column; }
    __device__ void put(int64_t row, int64_t column, unsigned value) const {
        split_tf32(value, to[row * pitch + column], to[(rows + row) * pitch + column]);
    }
};
/* Stores its thirds, each kind `rows` rows below the one before. */
template <bool INTERLEAVED> struct Thirds {
    unsigned short *to;
    int64_t pitch, rows;
    __device__ int64_t source(int64_t column) const { return INTERLEAVED ? (column & ~7) + interleaved((int)column & 7) : column; }
    __device__ void put(int64_t row, int64_t column, unsigned value) const {
        unsigned short third[3];
        split_bf16(__uint_as_float(value), third);
        for (int i = 0; i < 3; i++) to[(i * rows + row) * pitch + column] = third[i];
    }
};

/* A block copies a square of `to` that begins at (row0, column0). */
template <class T, class To>
__device__ void copy_square(const To &to, const T *from, int64_t from_pitch, int64_t rows, int64_t columns, bool transpose, int64_t row0,
                            int64_t column0) {
    /* rows of an odd number of words: transposed reads have no bank conflicts */
    __shared__ T tile[EDGE][EDGE + (sizeof(T) < 4 ? 4 / sizeof(T) : 1)];
    const int x = threadIdx.x, y = threadIdx.y;
    T value[EDGE / ROWS][EDGE / 32]; /* all loads are in flight before the first store */
#pragma unroll
    for (int r = 0; r < EDGE / ROWS; r++)
#pragma unroll
        for (int c = 0; c < EDGE / 32; c++) {
            const int64_t high = (transpose ? column0 : row0) + y + r * ROWS,
                          wide = transpose ? row0 + x + c * 32 : to.source(column0 + x + c * 32);
            value[r][c] =
                high < (transpose ? columns : rows) && wide < (transpose ? rows : columns) ? from[high * from_pitch + wide] : T(0);
        }
    if (transpose) {
#pragma unroll
        for (int r = 0; r < EDGE / ROWS; r++)
#pragma unroll
            for (int c = 0; c < EDGE / 32; c++) tile[y + r * ROWS][x + c * 32] = value[r][c];
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < EDGE / ROWS; r++)
#pragma unroll
        for (int c = 0; c < EDGE / 32; c++) {
            const int64_t row = row0 + y + r * ROWS, column = column0 + x + c * 32;
            if (row < rows && column < to.pitch)
                to.put(row, column, transpose ? tile[to.source(column) - column0][y + r * ROWS] : value[r][c]);
        }
}

/* N elements of a row as a word; elements from `left` on are zeros and are not read. */
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
__device__ void transpose_square(T *to, int64_t to_pitch, const T *from, int64_t from_pitch, int64_t rows, int64_t columns, int64_t row0,
                                 int64_t column0) {
    constexpr int N = 4 / sizeof(T), SQUARES = 32 / ROWS;
    __shared__ unsigned tile[N][32][33];
    const int x = threadIdx.x, y = threadIdx.y;
    const int64_t row = row0 + x * N, left = rows - row;
    const auto from_column = [&](int square, int i) { return column0 + (y + square * ROWS) * N + i; };
    unsigned word[SQUARES][N]; /* all loads are in flight before the first store */
#pragma unroll
    for (int square = 0; square < SQUARES; square++)
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int64_t column = from_column(square, i);
            word[square][i] = column < columns && left >= N ? *(const unsigned *)(from + column * from_pitch + row) : 0u;
        }
    if (left > 0 && left < N)
#pragma unroll
        for (int square = 0; square < SQUARES; square++)
#pragma unroll
            for (int i = 0; i < N; i++) {
                const int64_t column = from_column(square, i);
                if (column < columns) word[square][i] = word_of(from + column * from_pitch + row, left);
            }
#pragma unroll
    for (int square = 0; square < SQUARES; square++) {
        transpose(word[square]);
#pragma unroll
        for (int i = 0; i < N; i++) tile[i][x][y + square * ROWS] = word[square][i];
    }
    __syncthreads();
#pragma unroll
    for (int r = y; r < 32 * N; r += ROWS) {
        const int64_t row = row0 + r, column = column0 + x * N;
        if (row < rows && column < to_pitch) *(unsigned *)(to + row * to_pitch + column) = tile[r % N][r / N][x];
    }
}

/* An operand's part of a launch: squares of edge x edge elements, `wide` of them across. */
template <class T, class To> struct Piece {
    To to;
    const T *from;
    int64_t from_pitch, rows, columns;
    int edge, wide, blocks;
    bool transpose;
    explicit Piece(const LayoutConversion &r)
        : from((const T *)r.from), from_pitch(r.from_pitch), rows(r.rows), columns(r.columns), edge(EDGE), transpose(r.transpose) {
        to.to = (decltype(to.to))r.to, to.pitch = r.to_pitch;
        if constexpr (!std::is_same<To, Copy<T>>::value) to.rows = r.rows;
        else if (sizeof(T) < 4 && transpose && ((uintptr_t)from | (uintptr_t)(from_pitch * (int64_t)sizeof(T))) % 4 == 0)
            edge = 128 / sizeof(T);
        wide = (int)((to.pitch + edge - 1) / edge), blocks = wide * (int)((rows + edge - 1) / edge);
    }
    __device__ void copy(int block) const {
        const int64_t row0 = (int64_t)(block / wide) * edge, column0 = (int64_t)(block % wide) * edge; /* of `to` */
        if constexpr (sizeof(T) < 4)
            if (edge != EDGE) return transpose_square(to.to, to.pitch, from, from_pitch, rows, columns, row0, column0);
        copy_square(to, from, from_pitch, rows, columns, transpose, row0, column0);
    }
};

template <class A, class B> __global__ void __launch_bounds__(256)
    layout_conversion_kernel(A a, B b, unsigned *flags, int count, const unsigned *only_if) {
    wait_for_previous(); /* before the product may start, some of which rely on it (mainloop/mma/mma_f64.cuh) */
    launch_dependents();
    if (only_if && !*only_if) return;
    const int block = (int)blockIdx.x;
    if (block == 0)
        for (int i = threadIdx.y * 32 + threadIdx.x; i < count; i += 256) flags[i] = 0;
    if (block < a.blocks) a.copy(block);
    else if (block < a.blocks + b.blocks) b.copy(block - a.blocks);
}

template <class T, class ToB> cudaError_t start(const LayoutConversion &a, const LayoutConversion &b, unsigned *flags, int count,
                                                const unsigned *only_if, cudaStream_t stream) {
    const Piece<T, Copy<T>> first(a);
    const Piece<T, ToB> second(b);
    /* GEMM kernels use all of shared memory; with another carveout an SM would first drain to repartition */
    static const cudaError_t divided = cudaFuncSetAttribute(layout_conversion_kernel<Piece<T, Copy<T>>, Piece<T, ToB>>,
                                                            cudaFuncAttributePreferredSharedMemoryCarveout, 100);
    if (divided != cudaSuccess) return divided;
    return launch_with({1, has_dependent_launch()}, layout_conversion_kernel<Piece<T, Copy<T>>, Piece<T, ToB>>,
                       dim3((unsigned)std::max(1, first.blocks + second.blocks)), dim3(32, ROWS), 0, stream, first, second, flags, count,
                       only_if);
}
}

namespace {
/* Whether rows of this copy are whole elements of `bytes` bytes, of which an element of it has `element`. */
bool is_whole(const LayoutConversion &r, int element, int bytes) {
    const auto whole = [&](int64_t elements) { return elements * element % bytes == 0; };
    return !r.rows || (!r.transpose && (uintptr_t)r.from % bytes == 0 && whole(r.from_pitch) && whole(r.columns) && whole(r.to_pitch));
}

/* The same copy by elements that are `times` as long. */
LayoutConversion by_longer(LayoutConversion r, int times) {
    r.to_pitch /= times, r.from_pitch /= times, r.columns /= times;
    return r;
}
}

cudaError_t convert_layouts(const LayoutConversion &a, const LayoutConversion &b, int element_bytes, PartsOf parts, unsigned *flags,
                            int count, const unsigned *only_if, cudaStream_t stream) {
    switch (parts) {
    case PartsOf::HALVES: return start<unsigned, Halves>(a, b, flags, count, only_if, stream);
    case PartsOf::THIRDS: return start<unsigned, Thirds<false>>(a, b, flags, count, only_if, stream);
    case PartsOf::THIRDS_INTERLEAVED: return start<unsigned, Thirds<true>>(a, b, flags, count, only_if, stream);
    case PartsOf::NONE: break;
    }
    if (element_bytes < MOST_BYTES && a.rows + b.rows > 0 && is_whole(a, element_bytes, 2 * element_bytes) &&
        is_whole(b, element_bytes, 2 * element_bytes))
        return convert_layouts(by_longer(a, 2), by_longer(b, 2), 2 * element_bytes, parts, flags, count, only_if, stream);
    switch (element_bytes) {
    case 1: return start<unsigned char, Copy<unsigned char>>(a, b, flags, count, only_if, stream);
    case 2: return start<unsigned short, Copy<unsigned short>>(a, b, flags, count, only_if, stream);
    case 4: return start<unsigned, Copy<unsigned>>(a, b, flags, count, only_if, stream);
    default: return start<unsigned long long, Copy<unsigned long long>>(a, b, flags, count, only_if, stream);
    }
}
}
