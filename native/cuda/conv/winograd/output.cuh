/* SPDX-License-Identifier: Apache-2.0
 * The epilogue of the fused F(2x2) kernel. A warp has two of the 16 planes of 64 filters x 32 tiles, but an output needs all 16. The accumulators are
 * therefore exchanged through shared memory, 16 filters at a time in 4 rounds. In each round a thread reads all planes of one tile and filter, twice,
 * and computes A^T M A. Shared memory is [kslot][plane][row]. The table gives a lane's address in the row of one plane and kslot, where lane
 * l = b + 2 t + 8 q + 16 h, e = 1 for the second vector of a lane's tiles, d = 1 for a vector's upper half, and cell = b + 2 h + 4 e + 8 q:
 *
 *   form        a lane stores           at                                      row        rounds
 *   reference   16 bytes, half of them  float4 10 t + b + 2 h + 4 e             40 float4  lanes of one q; 4 kslots: filters k of their vectors; g = round mod 2
 *   sts64       8 bytes                 float2 34 t + cell + 16 d               138 float2 2 kslots; filters k = 2 (round mod 2) + kslot, g = round / 2
 *   compact     8 bytes                 float2 32 t + (cell + 2 t) mod 16 + 16 d 128 float2 the same, in two buffers: one barrier a round
 *
 * (reference: Yan, Wang and Chu, PPoPP 2020; the other two: openCNN, Mathematics 2021, 9(17), 2033.) Padding, or the rotation by 2 t, puts the four
 * rows t in different banks. Accesses have no bank conflicts: a store takes 2 wavefronts, and each 4-byte load of a plane takes 1:
 *   NCHW   lanes are 16 tiles of two filters (reference: 32 tiles of one): stores of 128 bytes along rows of outputs
 *   NHWC   lanes are 8 neighbouring filters (reference: 4) of 4 tiles: whole sectors */
#ifndef PYSIM_CUDA_WINOGRAD_OUTPUT_CUH
#define PYSIM_CUDA_WINOGRAD_OUTPUT_CUH
#include "conv/winograd/winograd.h"
#include "core/epilogue.cuh"

namespace pysim::winograd {

enum { STAGING_BYTES = 64 * 1024 / 2 }; /* one buffer of `compact`, which has two; the padded forms have one buffer of up to 40 KiB */

/* What a thread reads in one round: tile and filter in the block, and the word of its plane 0. */
struct Seen { int tile, filter, word; };

template <Form FORM> struct Row { enum { WORDS = FORM == reference ? 160 : FORM == sts64 ? 276 : 256 }; };

template <Form FORM, bool NHWC> __device__ inline Seen seen(int thread, int round, int second) {
    const int warp = thread / 32, lane = thread % 32;
    Seen s;
    if constexpr (FORM == reference) {
        const int kslot = warp / 4 + 2 * second, t = NHWC ? lane % 4 : warp % 4, x = NHWC ? 8 * (warp % 4) + lane / 4 : lane;
        s.tile = 16 * (x / 2 % 2) + x / 4 * 2 + x % 2; /* x = 4 (b + 2 h + 4 e) + 2 d + j */
        s.filter = 32 * (round % 2) + 16 * (kslot / 2) + 8 * (kslot % 2) + 4 * (round / 2) + t;
        s.word = kslot * 16 * Row<FORM>::WORDS + 40 * t + x;
    } else {
        const int kslot = warp / 4, t = NHWC ? lane % 4 : warp % 4, q = NHWC ? lane / 4 % 2 : lane / 16;
        const int x = NHWC ? 4 * (warp % 4) + lane / 8 : lane % 16; /* 2 (b + 2 h + 4 e) + j */
        s.tile = 16 * second + x;
        s.filter = 16 * round + 8 * kslot + 4 * q + t;
        s.word = kslot * 16 * Row<FORM>::WORDS + (FORM == sts64 ? 68 * t + 16 * q + x : 64 * t + (16 * q + x + 4 * t) % 32) + 32 * second;
    }
    return s;
}

/* Stores a lane's accumulators of one round. Neighbouring tiles are exchanged (fused2.cuh). */
template <Form FORM> __device__ inline void put(float *to, const float (&sum)[2][8][8], int round, int thread) {
    const int warp = thread / 32, lane = thread % 32, t = lane % 8 / 2, bh = lane % 2 + lane / 16 * 2, q = lane / 8 % 2;
    if constexpr (FORM == reference) {
        if (q != round / 2) return;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const int plane = i / 8, k = i / 2 % 4, e = i % 2, m = 4 * (round % 2) + k;
            const float *s = &sum[plane][m][4 * e];
            *(float4 *)(to + (k * 16 + warp + 8 * plane) * Row<FORM>::WORDS + 4 * (10 * t + bh + 4 * e)) = make_float4(s[1], s[0], s[3], s[2]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const int plane = i / 8, kslot = i / 4 % 2, e = i / 2 % 2, d = i % 2, m = 4 * (round / 2) + 2 * (round % 2) + kslot;
            const int cell = bh + 4 * e + 8 * q, at = FORM == sts64 ? 34 * t + cell + 16 * d : 32 * t + (cell + 2 * t) % 16 + 16 * d;
            const float *s = &sum[plane][m][4 * e + 2 * d];
            *(float2 *)(to + (kslot * 16 + warp + 8 * plane) * Row<FORM>::WORDS + 2 * at) = make_float2(s[1], s[0]);
        }
    }
}

/* out[4 (2 round + second)]: the first of the 2x2 outputs of the tile and filter seen(round, second). */
template <Form FORM, bool NHWC> __device__ inline void pass(float (&out)[32], const float (&sum)[2][8][8], float *shared) {
    const int thread = threadIdx.x;
#pragma unroll
    for (int round = 0; round < 4; round++) {
        float *buffer = shared + (FORM == compact ? round % 2 * (STAGING_BYTES / 4) : 0);
        if (FORM != compact && round > 0) __syncthreads(); /* all threads have read the previous round */
        put<FORM>(buffer, sum, round, thread);
        __syncthreads();
#pragma unroll
        for (int second = 0; second < 2; second++) {
            const float *from = buffer + seen<FORM, NHWC>(thread, round, second).word;
            float m[16], half[8];
#pragma unroll
            for (int plane = 0; plane < 16; plane++) m[plane] = from[plane * Row<FORM>::WORDS];
#pragma unroll
            for (int s = 0; s < 4; s++) output_line<4>(half + s, 4, m + s);
#pragma unroll
            for (int r = 0; r < 2; r++) output_line<1>(out + 4 * (2 * round + second) + 2 * r, 1, half + 4 * r);
        }
    }
}

/* Outputs pass through shared memory, words of this thread only, so that a rolled loop has the epilogue once. */
template <Form FORM, bool NHWC>
__device__ inline void store(const Conv &c, int group, int first_tile, int first_filter, const float (&out)[32], float *own) {
    const int thread = threadIdx.x;
#pragma unroll
    for (int i = 0; i < 32; i++) own[i * THREADS + thread] = out[i];
    Epilogue<float, float> epilogue(c.product);
    float *const to = (float *)c.out;
    const int all = c.groups * c.filters, column = NHWC ? all : 1, row = NHWC ? c.out_w * all : c.out_w;
    const bool pairs = !NHWC && c.out_w % 2 == 0 && (uintptr_t)to % 8 == 0, old = epilogue.beta != 0;
#pragma unroll 2
    for (int i = 0; i < 8; i++) {
        const Seen s = seen<FORM, NHWC>(thread, i / 2, i % 2);
        const int number = first_tile + s.tile, filter = first_filter + s.filter;
        if (number >= c.windows || filter >= c.filters) continue;
        int in_image, across;
        const int n = c.per_image.of(number, in_image), p = 2 * c.per_row.of(in_image, across), q = 2 * across, f = group * c.filters + filter;
        float *const at = to + (NHWC ? (((int64_t)n * c.out_h + p) * c.out_w + q) * all + f : (((int64_t)n * all + f) * c.out_h + p) * c.out_w + q);
        for (int r = 0; r < 2 && p + r < c.out_h; r++) {
            const float *from = own + (4 * i + 2 * r) * THREADS + thread;
            float *const line = at + r * row;
            if (pairs) {
                float2 v = old ? *(const float2 *)line : make_float2(0, 0);
                v.x = epilogue.finish(from[0], v.x, f), v.y = epilogue.finish(from[THREADS], v.y, f);
                *(float2 *)line = v;
            } else {
                line[0] = epilogue.finish(from[0], old ? line[0] : 0, f);
                if (q + 1 < c.out_w) line[column] = epilogue.finish(from[THREADS], old ? line[column] : 0, f);
            }
        }
    }
}
}
#endif
