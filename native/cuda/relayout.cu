/* SPDX-License-Identifier: Apache-2.0
 * Copies an operand into the form that a kernel can take: transposed, or with a pitch and base that its loads need. Tiles of 64 x 64
 * elements pass through shared memory, so that both sides are touched in whole rows of 64 elements; bytes read and written are the
 * operand's, once each. */
#include "gemm.h"

namespace pysim {
namespace {

enum { EDGE = 64, ROWS = 8 }; /* threads: 64 x 8 would be 512; 32 x 8 each move 2 columns */

template <class T, bool TRANSPOSE>
__global__ void __launch_bounds__(256) relayout_kernel(T *to, int64_t to_pitch, const T *from, int64_t from_pitch, int64_t rows,
                                                       int64_t columns) {
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
            const int64_t row = row0 + r, column = column0 + c;
            if (row >= rows || column >= to_pitch) continue;
            T value = T(0);
            if (column < columns) value = TRANSPOSE ? tile[c][r] : from[row * from_pitch + column];
            to[row * to_pitch + column] = value;
        }
}

template <class T>
cudaError_t start(void *to, int64_t to_pitch, const void *from, int64_t from_pitch, int64_t rows, int64_t columns, bool transpose,
                  cudaStream_t stream) {
    const int64_t wide = (to_pitch + EDGE - 1) / EDGE, high = (rows + EDGE - 1) / EDGE;
    if (high > 65535) return cudaErrorInvalidValue; /* 4 million rows: gemm.cu refuses such operands */
    const dim3 grid((unsigned)wide, (unsigned)high), block(32, ROWS);
    if (transpose)
        relayout_kernel<T, true><<<grid, block, 0, stream>>>((T *)to, to_pitch, (const T *)from, from_pitch, rows, columns);
    else
        relayout_kernel<T, false><<<grid, block, 0, stream>>>((T *)to, to_pitch, (const T *)from, from_pitch, rows, columns);
    return cudaGetLastError();
}
}

cudaError_t relayout(void *to, int64_t to_pitch, const void *from, int64_t from_pitch, int64_t rows, int64_t columns, int element_bytes,
                     bool transpose, cudaStream_t stream) {
    switch (element_bytes) {
    case 1: return start<unsigned char>(to, to_pitch, from, from_pitch, rows, columns, transpose, stream);
    case 2: return start<unsigned short>(to, to_pitch, from, from_pitch, rows, columns, transpose, stream);
    case 4: return start<unsigned>(to, to_pitch, from, from_pitch, rows, columns, transpose, stream);
    default: return start<unsigned long long>(to, to_pitch, from, from_pitch, rows, columns, transpose, stream);
    }
}
}
