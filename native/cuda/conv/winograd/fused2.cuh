/* SPDX-License-Identifier: Apache-2.0
 * F(2x2, 3x3) in one kernel (equation: winograd.h), after openCNN (Castro et al., Mathematics 2021, 9(17), 2033).
 *
 *   block    64 filters x 32 tiles of 2x2 outputs; 8 channels a k-iteration; accumulators of all 16 planes in registers, 128 a thread
 *   warp     w multiplies planes w and w + 8: 64 x 32 each
 *   thread   8 filters x 8 tiles of both planes
 *
 * In each k-iteration a thread loads one patch of one channel, transforms it, and stores one word to each plane. An earlier kernel transformed the
 * filters into the workspace, in the layout of shared memory, so asynchronous copies of 16 bytes load them. There are two stages. While one is
 * multiplied, the next patch is loaded into registers and the next filters into the other stage.
 *
 * Layout of a stage: filter `slot` (filter_of) of plane p and channel c is at word (p 8 + c) 64 + slot; its 32 tiles are at word
 * (p 8 + c) 32 + (place ^ turn(c)). Lane l reads two of the 16 filter vectors, (l mod 16) / 2 and that + 8, and two of the 8 tile vectors,
 * l mod 2 + 2 (l / 16) and that + 4. Two of four neighbouring lanes read the same vector, so a 16-byte load takes 2 wavefronts
 * (pysim/cachemodel/shared_memory/banks.py). Threads load the input as follows:
 *   NCHW   a warp has one channel and its lanes have neighbouring tiles of a row; turn(c) = 0
 *   NHWC   lanes have 8 channels of 4 tiles, which are whole sectors; turn(c) = 4 c avoids bank conflicts between their stores
 *
 * Tile 16 d + 2 v + j is at place 4 v + 2 d + (1 - j). The epilogue stores a lane's vector of four accumulators as two pairs, one per d, 16 words
 * apart, which puts the tiles back in order. Exchanging the tiles j = 0 and 1 keeps an accumulator and its operand in different register banks
 * (mainloop/simt/kernel.cuh, store_tile). */
#ifndef PYSIM_CUDA_CONV_WINOGRAD_CUH
#define PYSIM_CUDA_CONV_WINOGRAD_CUH
#include <new>

#include "conv/winograd/winograd.h"
#include "core/decomposition.cuh"
#include "core/launch.h"
#include "core/ptx.cuh"
#include "conv/winograd/output.cuh"

namespace pysim::winograd {

enum {
    FILTER_BYTES = FILTER_FLOATS * 4,
    STAGE_BYTES = FILTER_BYTES + PLANES * STEP * TILES * 4,
    SHARED_BYTES = 2 * STAGE_BYTES,
};
static_assert(2 * (int)STAGING_BYTES + 4 * FILTERS * TILES * 4 <= SHARED_BYTES, "the epilogue reuses the stages");

/* The patches that one thread transforms: one tile, one channel per k-iteration (step). */
template <bool NHWC> class Patches {
    const float *at; /* first element of the patch to load next; it may lie outside the input: see `inside` */
    int row, step;   /* elements from one row of a patch to the next, from one step to the next */
    int left;        /* channels from this one to the last */
    unsigned inside; /* bit 4 r + s: element (r, s) is in the input */
    int to;          /* byte of plane 0 in a stage */

    __device__ int column() const { return NHWC ? pixel : 1; }
    int pixel;

  public:
    __device__ Patches(const Conv &c, int group, int first_tile, int begin, int end, int thread) {
        const int warp = thread / 32, lane = thread % 32;
        const int channel = NHWC ? lane % 8 : warp, j = lane / 8 % 2, d = lane / 16;
        const int tile = NHWC ? 16 * d + 2 * warp + j : lane;
        const int place = tile % 16 / 2 * 4 + tile / 16 * 2 + 1 - tile % 2;
        to = FILTER_BYTES + (channel * TILES + (place ^ (NHWC ? 4 * channel : 0))) * 4;
        const int all = c.groups * c.channels, area = c.height * c.width;
        int in_image, across;
        const int number = first_tile + tile, n = c.per_image.of(number, in_image), down = c.per_row.of(in_image, across);
        const int h = 2 * down - c.pad_top, w = 2 * across - c.pad_left;
        inside = 0;
        if (number < c.windows)
#pragma unroll
            for (int i = 0; i < 16; i++)
                if (h + i / 4 >= 0 && h + i / 4 < c.height && w + i % 4 >= 0 && w + i % 4 < c.width) inside |= 1u << i;
        const int from = group * c.channels + begin + channel;
        pixel = all;
        row = NHWC ? c.width * all : c.width;
        step = NHWC ? (int)STEP : STEP * area;
        left = end - begin - channel;
        const int64_t origin = NHWC ? (((int64_t)n * c.height + h) * c.width + w) * all + from : (((int64_t)n * all + from) * c.height + h) * c.width + w;
        at = (const float *)c.in + origin;
    }

    __device__ void load(float (&d)[16]) {
        const unsigned mask = left > 0 ? inside : 0;
#pragma unroll
        for (int i = 0; i < 16; i++) d[i] = mask >> i & 1 ? at[(int64_t)(i / 4 * row) + i % 4 * column()] : 0.f;
        at += step, left -= STEP;
    }

    __device__ void store(char *stage, float (&d)[16]) const {
#pragma unroll
        for (int r = 0; r < 4; r++) input_line<1>(d + 4 * r);
#pragma unroll
        for (int s = 0; s < 4; s++) input_line<4>(d + s);
#pragma unroll
        for (int p = 0; p < PLANES; p++) *(float *)(stage + to + p * (STEP * TILES * 4)) = d[p];
    }
};

__device__ inline void read_16(float *to, const char *from) {
    const float4 v = *(const float4 *)from;
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}

/* The main loop: accumulates sum[plane][filter][tile] over `steps` k-iterations. `filters`: this thread's first 16 bytes of the first step. */
template <bool NHWC>
__device__ inline void sum_planes(Patches<NHWC> patches, const char *filters, int steps, float (&sum)[2][8][8], char *shared) {
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const int base_a = warp * (STEP * FILTERS * 4) + lane % 16 / 2 * 16, base_b = warp * (STEP * TILES * 4) + (lane % 2 + lane / 16 * 2) * 16;
    const auto stage = [&](int i) { return shared + i * STAGE_BYTES; };
    const auto fetch_filters = [&](int i) {
#pragma unroll
        for (int piece = 0; piece < FILTER_BYTES; piece += THREADS * 16) copy_async<16>(stage(i) + piece + thread * 16, filters + piece, 16);
        filters += FILTER_BYTES;
    };
    float patch[16], a[2][8], b[2][8];
    const auto read = [&](int to, const char *from, int unit) { /* unit: channel, then plane */
        const int channel = unit / 2, pass = NHWC ? channel % 4 * 16 : 0, flip = NHWC ? channel / 4 : 0;
        const int line = unit % 2 * 8 * STEP + channel;
        read_16(a[to], from + base_a + line * (FILTERS * 4)), read_16(a[to] + 4, from + base_a + line * (FILTERS * 4) + 128);
        read_16(b[to], from + FILTER_BYTES + (base_b ^ pass) + line * (TILES * 4) + flip * 64);
        read_16(b[to] + 4, from + FILTER_BYTES + (base_b ^ pass) + line * (TILES * 4) + (1 - flip) * 64);
    };

    fetch_filters(0);
    commit_async();
    patches.load(patch);
    patches.store(stage(0), patch);
    wait_async<0>();
    __syncthreads();
    int at = 0;
    read(0, stage(0), 0);
#pragma unroll 1
    for (int i = 0; i < steps; i++) {
        const bool more = i + 1 < steps;
        if (more) {
            fetch_filters(1 - at); /* safe: a barrier followed the last read of that stage */
            patches.load(patch);
        }
        commit_async();
#pragma unroll
        for (int unit = 0; unit < 2 * STEP; unit++) {
            if (unit == 12 && more) patches.store(stage(1 - at), patch);
            if (unit == 2 * STEP - 1) { /* every fragment of this step has been read */
                wait_async<0>();
                at = 1 - at;
                __syncthreads();
            }
            read((unit + 1) % 2, stage(at), (unit + 1) % (2 * STEP)); /* after the last step this reads unused values, which is harmless */
            __syncwarp(); /* only stops the compiler from sinking the loads below this point (mainloop/simt/kernel.cuh) */
#pragma unroll
            for (int m = 0; m < 8; m++)
#pragma unroll
                for (int i8 = 0; i8 < 8; i8++) {
                    const int n = m % 2 ? 7 - i8 : i8;
                    sum[unit % 2][m][n] = fmaf(a[unit % 2][m], b[unit % 2][n], sum[unit % 2][m][n]);
                }
        }
    }
}

constexpr int CAPABILITY = 80; /* for asynchronous copies */

template <Form FORM, bool NHWC> __global__ __launch_bounds__(THREADS, 1) void fused_kernel(const __grid_constant__ Conv c) {
    if constexpr (CODE_CAPABILITY < CAPABILITY) return;
    PYSIM_DYNAMIC_SHARED(shared);
    __shared__ struct { Tile tile; alignas(Work) char work[sizeof(Work)]; bool valid; int last; } now; /* not in registers: the loop needs them all */
    const Problem &p = c.product;
    Work &work = *(Work *)now.work;
    if (threadIdx.x == 0) new (now.work) Work(p, Grid(p, NHWC ? TILES : FILTERS, NHWC ? FILTERS : TILES, STEP), blockIdx.x, gridDim.x);
    while (true) {
        if (threadIdx.x == 0) now.valid = work.next(now.tile);
        __syncthreads();
        if (!now.valid) return;
        const Tile &t = now.tile;
        const int tiles = NHWC ? t.i : t.j, filters = NHWC ? t.j : t.i;
        const int group = tiles / c.group_tiles, first = (tiles - group * c.group_tiles) * TILES, steps = (c.channels + STEP - 1) / STEP;
        float sum[2][8][8];
#pragma unroll
        for (int i = 0; i < 128; i++) sum[i / 64][i / 8 % 8][i % 8] = 0;
        const int64_t at = ((int64_t)group * ((c.filters + FILTERS - 1) / FILTERS) + filters) * steps + t.begin;
        sum_planes<NHWC>(Patches<NHWC>(c, group, first, t.begin * STEP, min(t.end * STEP, c.channels), threadIdx.x),
                         (const char *)c.own + at * FILTER_BYTES + threadIdx.x * 16, t.end - t.begin, sum, shared);
        __syncthreads(); /* all threads have read their fragments */
        float out[32];
        pass<FORM, NHWC>(out, sum, (float *)shared);
        if (reduce_parts(p, work, t, out, threadIdx.x, THREADS, &now.last, [] { __syncthreads(); })) {
            mend<4>(out, [&](int which) {
                const Seen s = seen<FORM, NHWC>(threadIdx.x, which / 8, which / 4 % 2);
                const int number = first + s.tile, filter = filters * FILTERS + s.filter;
                if (number >= c.windows || filter >= c.filters) return 0.f;
                int in_image, across;
                const int n = c.per_image.of(number, in_image), down = c.per_row.of(in_image, across);
                return direct_sum(c, group, filter, n, 2 * down + which / 2 % 2, 2 * across + which % 2);
            });
            store<FORM, NHWC>(c, group, first, filters * FILTERS, out, (float *)(shared + 2 * STAGING_BYTES));
        }
        __syncthreads();
    }
}
}
#endif
