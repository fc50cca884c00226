/* SPDX-License-Identifier: Apache-2.0
 * Shared by the Winograd kernels. A tile of m x m outputs of a 3x3 convolution is computed from a patch of (m + 2) x (m + 2) inputs:
 *
 *     Y = A^T [ sum over channels of (G g G^T) .* (B^T d B) ] A
 *
 * (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2016), so each of the (m + 2)^2 planes of the transformed
 * patch is a matrix product of its own: filters x channels times channels x tiles. For 4 outputs F(2x2) does 16 multiplications instead of 36
 * (2.25 times fewer); for 16 outputs F(4x4) does 36 instead of 144 (4 times fewer).
 *
 * F(2x2): B^T = 1  0 -1  0    G =  1   0   0     A^T = 1  1  1  0
 *               0  1  1  0        .5  .5  .5           0  1 -1 -1
 *               0 -1  1  0        .5 -.5  .5
 *               0  1  0 -1         0   0   1
 * Small integers stay exact: G g G^T are multiples of 1/4. */
#ifndef PYSIM_CUDA_CONV_WINOGRAD_H
#define PYSIM_CUDA_CONV_WINOGRAD_H
#include "conv/conv.h"

namespace pysim::winograd {

enum Form { reference, sts64, compact }; /* of F(2x2): the layout in which accumulators are exchanged through shared memory (output.cuh) */

/* The fused kernel's tiles: fused2.cuh. */
enum { FILTERS = 64, TILES = 32, STEP = 8, THREADS = 256, PLANES = 16 };

/* Words of the transformed filters per k-iteration, in the workspace and in shared memory: [plane][channel][slot]. */
enum { FILTER_FLOATS = PLANES * STEP * FILTERS };

/* The filter of 64 in slot 32 g + 16 q + 4 t + k. With this order the epilogue handles 16 filters per round, in runs of 8 neighbours (output.cuh). */
__host__ __device__ inline int filter_of(int slot) {
    const int g = slot / 32, q = slot / 16 % 2, t = slot / 4 % 4, k = slot % 4;
    return 32 * g + 16 * (k / 2) + 8 * (k % 2) + 4 * q + t;
}

/* Output (p, q) of image n by the definition. In double precision, so that nothing overflows that the result does not. Not inlined: it is rare, and
 * the kernels need their registers. */
__device__ __noinline__ inline float direct_sum(const Conv &c, int group, int filter, int n, int p, int q) {
    const int all = c.groups * c.channels, column = c.nhwc ? all : 1, row = c.width * column, h = p - c.pad_top, w = q - c.pad_left;
    const int64_t plane = c.nhwc ? 1 : c.height * c.width, tap = c.nhwc ? c.channels : 1;
    const float *in = (const float *)c.in + (int64_t)n * all * c.height * c.width + group * c.channels * plane;
    const float *weights = (const float *)c.weights + ((int64_t)group * c.filters + filter) * 9 * c.channels;
    double sum = 0;
#pragma unroll 1
    for (int channel = 0; channel < c.channels; channel++, in += plane, weights += c.nhwc ? 1 : 9)
#pragma unroll 1
        for (int i = 0; i < 9; i++) {
            const int y = h + i / 3, x = w + i % 3;
            if (y >= 0 && y < c.height && x >= 0 && x < c.width) sum = fma((double)in[(int64_t)y * row + x * column], (double)weights[i * tap], sum);
        }
    return (float)sum;
}

/* Computes tiles again, from the definition, that have an output above 1e18 or not finite: the transforms mix the elements of a patch, so an infinity or
 * NaN reaches all outputs of its tile, sums of large elements may overflow, and their rounding hides small ones. TILE: outputs of a tile; again(i):
 * output i. */
template <int TILE, int COUNT, class Again> __device__ __forceinline__ void mend(float (&out)[COUNT], Again again) {
    unsigned tiles = 0;
#pragma unroll
    for (int tile = 0; tile < COUNT / TILE; tile++) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < TILE; i++) sum = fmaf(out[tile * TILE + i], 0x1p68f, sum); /* overflows from 2^60 on */
        if (!(fabsf(sum) < INFINITY)) tiles |= 1u << tile;
    }
    if (!tiles) return;
#pragma unroll 1
    for (int which = 0; which < COUNT; which++) {
        if (!(tiles >> which / TILE & 1)) continue;
        const float value = again(which);
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            if (i == which) out[i] = value;
    }
}

inline bool is_3x3(const Conv &c) {
    return c.kernel_h == 3 && c.kernel_w == 3 && c.stride_h == 1 && c.stride_w == 1 && c.dilation_h == 1 && c.dilation_w == 1;
}
#define PYSIM_NOT_3X3 "it takes 3x3 kernels with stride 1 and dilation 1"

/* Products of G, B^T and A^T with one line: applied to the rows and columns of a filter, patch or tile. */
template <int STRIDE> __device__ inline void filter_line(float *to, const float *g, int from_stride) {
    const float half = 0.5f * (g[0] + g[2 * from_stride]), middle = 0.5f * g[from_stride];
    to[0] = g[0], to[STRIDE] = half + middle, to[2 * STRIDE] = half - middle, to[3 * STRIDE] = g[2 * from_stride];
}
template <int STRIDE> __device__ inline void input_line(float *d) {
    const float first = d[0] - d[2 * STRIDE], last = d[STRIDE] - d[3 * STRIDE], sum = d[STRIDE] + d[2 * STRIDE], difference = d[2 * STRIDE] - d[STRIDE];
    d[0] = first, d[STRIDE] = sum, d[2 * STRIDE] = difference, d[3 * STRIDE] = last;
}
template <int STRIDE> __device__ inline void output_line(float *to, int to_stride, const float *m) {
    to[0] = m[0] + m[STRIDE] + m[2 * STRIDE];
    to[to_stride] = m[STRIDE] - m[2 * STRIDE] - m[3 * STRIDE];
}
}
#endif
