/* SPDX-License-Identifier: Apache-2.0
 * F(4x4, 3x3) in separate kernels (equation: winograd.h), in chunks of tiles, small enough that transformed patches V and products M stay in L2:
 *
 *   once         U[plane][group] = G g G^T                                   [channels][filters]
 *   each chunk   V[plane] = B^T d B                                          NCHW: [all channels][tiles], NHWC: [tiles][all channels]
 *                M[plane][group] = U V, 36 products for each group at once   NCHW: [filters][tiles], NHWC: [tiles][filters]
 *                Y = A^T M A, with the epilogue
 *
 * with the points 0, +-a, +-b and infinity, a = 11/16 and b = 23/16. Of the pairs in sixteenths that add the least rounding, this one has the
 * smallest maximum error: 1.6 times that of a direct sum, where the usual points 0, +-1, +-2 have 9 times (lab/ablations/winograd_simulated.py). Rows 2 and 4 of
 * B^T are divided by -a and -b, so that one multiply-add each combines the even and odd parts; A^T has the inverse factors. A^T also has the
 * denominators of G: outputs are scaled once, whereas filters would be scaled in each block that transforms them:
 *
 *   B^T = a2b2    0  -a2-b2    0     1  0     G = 1  0  0     A^T = 1  1   -a  1   -b   0   columns over a2b2, 2 a2 (a2 - b2) twice,
 *           0  -ab2   -b2      a     1  0         1  a  a2          0  a   a2  b   b2   0   2 b2 (b2 - a2) twice, 1
 *           0   -b2   b2/a     1  -1/a  0         1 -a  a2          0  a2 -a3  b2 -b3   0
 *           0  -ba2   -a2      b     1  0         1  b  b2          0  a3  a4  b3  b4   1
 *           0   -a2   a2/b     1  -1/b  0         1 -b  b2
 *           0  a2b2     0  -a2-b2    0  1         0  0  1
 *
 * The products use mainloop/simt/kernel.cuh. All operands but V under NHWC have the layout of shared memory and are copied 16 bytes at a time. */
#ifndef PYSIM_CUDA_WINOGRAD_STAGED_CUH
#define PYSIM_CUDA_WINOGRAD_STAGED_CUH
#include "conv/winograd/winograd.h"
#include "mainloop/simt/kernel.cuh"

namespace pysim::winograd {

enum { LARGE = 36 }; /* planes */

/* One chunk's buffers and sizes. The pitch of U is a multiple of 4, and so is that of V and M if tiles are contiguous (NCHW). */
struct Chunk {
    float *u, *v, *m;
    int first, tiles;     /* the chunk's range of the tiles of a group */
    int u_pitch, pitch;   /* elements of a row of filters, of tiles */
    int blocks;           /* blocks of the product along the chunk's tiles, per plane and group */
};

/* a, b and the factors of rows and columns: exact, except reciprocals, which are rounded once. */
constexpr float POINT_A = 11.f / 16, POINT_B = 23.f / 16, A2 = POINT_A * POINT_A, B2 = POINT_B * POINT_B, A2B2 = A2 * B2, A2_B2 = A2 + B2;
constexpr float OVER_A = float(-1 / (double)POINT_A), OVER_B = float(-1 / (double)POINT_B);
constexpr double OF_A = 1 / (2. * A2 * (A2 - B2)), OF_B = 1 / (2. * B2 * (B2 - A2)); /* factors of A^T's columns */

/* The lines of G, B^T and A^T: 3 -> 6, 6 -> 6, 6 -> 4. */
__device__ inline void filter_line_4(float (&to)[6], float a, float b, float c) {
    const float near = fmaf(A2, c, a), far = fmaf(B2, c, a);
    to[0] = a, to[1] = fmaf(POINT_A, b, near), to[2] = fmaf(-POINT_A, b, near), to[3] = fmaf(POINT_B, b, far), to[4] = fmaf(-POINT_B, b, far), to[5] = c;
}
template <int STRIDE> __device__ inline void input_line_4(float *d) {
    const float d0 = d[0], d1 = d[STRIDE], d2 = d[2 * STRIDE], d3 = d[3 * STRIDE], d4 = d[4 * STRIDE], d5 = d[5 * STRIDE];
    const float near = fmaf(-B2, d2, d4), cross = fmaf(-B2, d1, d3), far = fmaf(-A2, d2, d4), across = fmaf(-A2, d1, d3);
    d[0] = fmaf(A2B2, d0, fmaf(-A2_B2, d2, d4)), d[STRIDE] = fmaf(POINT_A, cross, near), d[2 * STRIDE] = fmaf(OVER_A, near, cross);
    d[3 * STRIDE] = fmaf(POINT_B, across, far), d[4 * STRIDE] = fmaf(OVER_B, far, across), d[5 * STRIDE] = fmaf(A2B2, d1, fmaf(-A2_B2, d3, d5));
}
__device__ inline void output_line_4(float (&to)[4], const float (&m)[6]) {
    const float near = fmaf(-POINT_A, m[2], m[1]), cross = fmaf(POINT_A, m[2], m[1]), far = fmaf(-POINT_B, m[4], m[3]), across = fmaf(POINT_B, m[4], m[3]);
    constexpr float near0 = float(OF_A), near1 = float(OF_A * POINT_A), near2 = float(OF_A * A2), near3 = float(OF_A * A2 * POINT_A);
    constexpr float far0 = float(OF_B), far1 = float(OF_B * POINT_B), far2 = float(OF_B * B2), far3 = float(OF_B * B2 * POINT_B);
    to[0] = fmaf(float(1. / A2B2), m[0], fmaf(far0, far, near0 * near)), to[1] = fmaf(far1, across, near1 * cross);
    to[2] = fmaf(far2, far, near2 * near), to[3] = fmaf(far3, across, fmaf(near3, cross, m[5]));
}

/* out[4 r + s] of a tile and filter; of(p): its product in plane p. */
template <class Of> __device__ inline void transform_out(float *out, Of of) {
    float half[4][6];
#pragma unroll
    for (int s = 0; s < 6; s++) {
        float m[6], line[4];
#pragma unroll
        for (int r = 0; r < 6; r++) m[r] = of(6 * r + s);
        output_line_4(line, m);
#pragma unroll
        for (int r = 0; r < 4; r++) half[r][s] = line[r];
    }
#pragma unroll
    for (int r = 0; r < 4; r++) {
        float line[4];
        output_line_4(line, half[r]);
#pragma unroll
        for (int s = 0; s < 4; s++) out[4 * r + s] = line[s];
    }
}

/* Where a tile's patch and outputs begin. */
struct Corner { int n, p, q; };
__device__ inline Corner corner_of(const Conv &c, int tile) {
    int in_image, across;
    Corner at;
    at.n = c.per_image.of(tile, in_image), at.p = 4 * c.per_row.of(in_image, across), at.q = 4 * across;
    return at;
}

/* NCHW: whether a tile's rows of outputs are stored 16 bytes at a time. */
__device__ inline bool by_fours(const Conv &c) { return c.out_w % 4 == 0 && (uintptr_t)c.out % 16 == 0; }

/* A tile's outputs: index of the first, rows and columns that exist, filter. */
struct Outputs { int first, high, wide, filter; };
enum { ROOM = 4 * 4 * 32 }; /* words of shared memory through which a warp exchanges the outputs of its 32 tiles */

/* NCHW, if rows are not whole vectors: stores a warp's tiles, out[4 r + column] for a lane's tile. The warp exchanges them through its own shared
 * memory, so that lanes store neighbouring words of 8 tiles' rows. If each lane stored its own tile's words, lanes would be 16 bytes apart and each
 * sector would be written by four requests. */
template <bool PLAIN>
__device__ inline void store_rows(const Conv &c, const Epilogue<float, float> &epilogue, const float *out, const Outputs &of, float *room) {
    const int lane = (int)(threadIdx.x % 32);
    const auto of_lane = [](int x, int from) { return __shfl_sync(0xffffffffu, x, from); };
    __syncwarp();
#pragma unroll
    for (int r = 0; r < 4; r++) *(float4 *)(room + (32 * r + lane) * 4) = make_float4(out[4 * r], out[4 * r + 1], out[4 * r + 2], out[4 * r + 3]);
    __syncwarp();
#pragma unroll 1
    for (int eight = 0; eight < 4; eight++) {
        const int from = 8 * eight + lane / 4, high = of_lane(of.high, from), wide = of_lane(of.wide, from), filter = of_lane(of.filter, from);
        float *const at = (float *)c.out + of_lane(of.first, from) + lane % 4;
        enum { ROWS = PLAIN ? 4 : 1 }; /* how far the loop is unrolled */
#pragma unroll ROWS
        for (int r = 0; r < 4; r++)
            if (r < high && lane % 4 < wide) {
                const float x = room[128 * r + 32 * eight + lane];
                at[r * c.out_w] = PLAIN ? x : epilogue.finish(x, epilogue.beta != 0 ? at[r * c.out_w] : 0.f, filter);
            }
    }
}

/* The (tile, line) of thread `index`, where a line is a channel or filter; neighbouring threads have tiles (NCHW) or lines (NHWC). */
template <bool NHWC> __device__ inline bool part_of(int64_t index, int tiles, int lines, int &tile, int &line) {
    if (index >= (int64_t)tiles * lines) return false;
    const int fast = NHWC ? lines : tiles, slow = (int)(index / fast), rest = (int)(index - (int64_t)slow * fast);
    tile = NHWC ? slow : rest, line = NHWC ? rest : slow;
    return true;
}

template <bool NHWC> __global__ __launch_bounds__(THREADS) void stage_filters(const __grid_constant__ Conv c, const __grid_constant__ Chunk s) {
    const int64_t index = blockIdx.x * (int64_t)THREADS + threadIdx.x;
    if (index >= (int64_t)c.groups * c.channels * c.filters) return;
    const int filter = (int)(index % c.filters), channel = (int)(index / c.filters % c.channels), group = (int)(index / c.filters / c.channels);
    const int64_t f = (int64_t)group * c.filters + filter;
    const float *from = (const float *)c.weights + (NHWC ? f * 9 * c.channels + channel : (f * c.channels + channel) * 9);
    const int step = NHWC ? c.channels : 1;
    float half[3][6];
#pragma unroll
    for (int s3 = 0; s3 < 3; s3++) filter_line_4(half[s3], from[s3 * step], from[(3 + s3) * step], from[(6 + s3) * step]);
#pragma unroll
    for (int r = 0; r < 6; r++) {
        float u[6];
        filter_line_4(u, half[0][r], half[1][r], half[2][r]);
#pragma unroll
        for (int w = 0; w < 6; w++) s.u[(((int64_t)(r * 6 + w) * c.groups + group) * c.channels + channel) * s.u_pitch + filter] = u[w];
    }
}

template <bool NHWC> __global__ __launch_bounds__(THREADS) void stage_input(const __grid_constant__ Conv c, const __grid_constant__ Chunk s) {
    const int all = c.groups * c.channels;
    int tile, channel;
    if (!part_of<NHWC>(blockIdx.x * (int64_t)THREADS + threadIdx.x, s.tiles, all, tile, channel)) return;
    const Corner at = corner_of(c, s.first + tile);
    const int h = at.p - c.pad_top, w = at.q - c.pad_left, column = NHWC ? all : 1, row = c.width * column;
    const float *from = (const float *)c.in + (NHWC ? (int64_t)at.n * c.height * row + channel : ((int64_t)at.n * all + channel) * c.height * row) + (int64_t)h * row + (int64_t)w * column;
    float d[LARGE];
#pragma unroll
    for (int r = 0; r < 6; r++)
#pragma unroll
        for (int i = 0; i < 6; i++) {
            const bool inside = h + r >= 0 && h + r < c.height && w + i >= 0 && w + i < c.width;
            d[6 * r + i] = inside ? from[(int64_t)(r * row) + i * column] : 0.f;
        }
#pragma unroll
    for (int r = 0; r < 6; r++) input_line_4<1>(d + 6 * r);
#pragma unroll
    for (int i = 0; i < 6; i++) input_line_4<6>(d + i);
    const int64_t plane = (int64_t)all * s.pitch;
    float *const to = s.v + (NHWC ? (int64_t)tile * all + channel : (int64_t)channel * s.pitch + tile);
#pragma unroll
    for (int i = 0; i < LARGE; i++) to[i * plane] = d[i];
}

template <bool NHWC> __global__ __launch_bounds__(THREADS) void stage_output(const __grid_constant__ Conv c, const __grid_constant__ Chunk s) {
    __shared__ float rooms[NHWC ? 1 : THREADS / 32 * ROOM];
    const int all = c.groups * c.filters;
    const bool words = !NHWC && !by_fours(c); /* then lanes store each other's tiles, so a lane without a tile stays */
    int tile = 0, filter = 0;
    const bool exists = part_of<NHWC>(blockIdx.x * (int64_t)THREADS + threadIdx.x, s.tiles, all, tile, filter);
    if (!exists && !words) return;
    const int64_t plane = (int64_t)all * s.pitch;
    const float *from = s.m + (NHWC ? (int64_t)tile * all + filter : (int64_t)filter * s.pitch + tile);
    float m[LARGE], out[16];
#pragma unroll
    for (int i = 0; i < LARGE; i++) m[i] = exists ? from[i * plane] : 0.f;
    transform_out(out, [&](int p) { return m[p]; });
    const Corner at = corner_of(c, s.first + tile);
    if (exists)
        mend<16>(out, [&](int which) {
            const int group = filter / c.filters;
            return direct_sum(c, group, filter - group * c.filters, at.n, at.p + which / 4, at.q + which % 4);
        });
    const Epilogue<float, float> epilogue(c.product);
    const int high = exists ? c.out_h - at.p : 0, wide = c.out_w - at.q, column = NHWC ? all : 1, row = c.out_w * column;
    const int first = (NHWC ? at.n * c.out_h * row + filter : (at.n * all + filter) * c.out_h * row) + at.p * row + at.q * column; /* up to 2^30 */
    if (words) {
        float *const room = rooms + (NHWC ? 0 : threadIdx.x / 32 * ROOM);
        if (epilogue.plain) store_rows<true>(c, epilogue, out, {first, high, wide, filter}, room);
        else store_rows<false>(c, epilogue, out, {first, high, wide, filter}, room);
        return;
    }
    float *const to = (float *)c.out + first;
    const bool old = epilogue.beta != 0;
#pragma unroll
    for (int r = 0; r < 4; r++) {
        if (r >= high) break;
        float *const line = to + r * row;
        Pack<float, 4> v = {};
        if (old && !NHWC) v = *(const Pack<float, 4> *)line;
#pragma unroll
        for (int q = 0; q < 4; q++) {
            if (NHWC && q >= wide) continue;
            if (old && NHWC) v.value[q] = line[q * column];
            v.value[q] = epilogue.finish(out[4 * r + q], v.value[q], filter);
            if (NHWC) line[q * column] = v.value[q];
        }
        if (!NHWC) *(Pack<float, 4> *)line = v;
    }
}

/* Stores the product of a plane to M. `whole`: rows are whole vectors, or padded to them. */
struct Sums {
    enum { WIDE = 4, UNROLLED = 4 }; /* as of Epilogue */
    float *to;
    int pitch, m, n;
    bool whole;
    template <int N> __device__ void store(int row, int column, const float (&v)[N]) const {
        if (row >= m || column >= n) return;
        float *const at = to + (int64_t)row * pitch + column;
        if (whole) *(Pack<float, N> *)at = *(const Pack<float, N> *)v;
        else
#pragma unroll
            for (int i = 0; i < N; i++)
                if (column + i < n) at[i] = v[i];
    }
};

/* The 36 products of all groups, concatenated along the windows: a Source of mainloop/simt/kernel.cuh. */
template <class S, bool NHWC> struct Planes {
    const Conv &c;
    const Chunk &s;
    __device__ int product_of(int window, int &at) const { /* the product (plane and group) of a block of windows; at: the block's index in it */
        const int product = window / s.blocks;
        at = window - product * s.blocks;
        return product;
    }
    __device__ const float *u(int product) const { return s.u + (int64_t)product * c.channels * s.u_pitch; }
    __device__ auto a(const Tile &t, int begin, int end) const {
        if constexpr (NHWC) {
            int at;
            const int product = product_of(t.i, at), plane = product / c.groups, all = c.groups * c.channels;
            return typename S::template CopyA<true>(s.v + (int64_t)plane * all * s.pitch + (product - plane * c.groups) * c.channels, all, at * S::BM, s.tiles, begin, end, threadIdx.x);
        } else {
            int at;
            return typename S::template CopyA<false>(u(product_of(t.j, at)), s.u_pitch, t.i * S::BM, c.filters, begin, end, threadIdx.x);
        }
    }
    __device__ auto b(const Tile &t, int begin, int end) const {
        int at;
        if constexpr (NHWC) {
            return typename S::template CopyB<false>(u(product_of(t.i, at)), s.u_pitch, t.j * S::BN, c.filters, begin, end, threadIdx.x);
        } else {
            const int product = product_of(t.j, at);
            return typename S::template CopyB<false>(s.v + (int64_t)product * c.channels * s.pitch, s.pitch, at * S::BN, s.tiles, begin, end, threadIdx.x);
        }
    }
    template <class Body> __device__ void with_output(const Tile &t, Body body) const {
        int at;
        const int product = product_of(NHWC ? t.i : t.j, at);
        if constexpr (NHWC) {
            const int plane = product / c.groups, all = c.groups * c.filters, before = (t.i - at) * S::BM;
            body(Sums{s.m + (int64_t)plane * all * s.pitch + (product - plane * c.groups) * c.filters - (int64_t)before * all, all, before + s.tiles, c.filters, c.filters % 4 == 0});
        } else {
            const int before = (t.j - at) * S::BN;
            body(Sums{s.m + (int64_t)product * c.filters * s.pitch - before, s.pitch, c.filters, before + s.tiles, true});
        }
    }
};

template <class S, bool NHWC>
__global__ __launch_bounds__(S::THREADS, S::BLOCKS) void stage_products(const __grid_constant__ Problem p, const __grid_constant__ Conv c, const __grid_constant__ Chunk s) {
    simt::sum_tiles<S>(p, Planes<S, NHWC>{c, s});
}
}
#endif
