/* SPDX-License-Identifier: Apache-2.0
 * Depthwise convolutions of volumes: a thread computes ROWS rows of some columns of outputs of one slice, and passes through the slices of the input
 * that the kernel's slices meet, as kept_kernel and paired_kernel (kernel.cuh) pass through an image. Slices in the padding are skipped. Neighbouring
 * slices of outputs read the same input, which caches serve: a volume's threads lie slice behind slice. */
#ifndef PYSIM_CUDA_CONV_VOLUME_CUH
#define PYSIM_CUDA_CONV_VOLUME_CUH
#include "conv/depthwise/kernel.cuh"

namespace pysim {
namespace {

/* body(slice, number) for each slice of the input that meets a slice of the kernel, with the latter's number. */
template <class Body> __device__ inline void for_slices(const Conv &c, int slice_of_outputs, Body body) {
    const int first = slice_of_outputs * c.stride_d - c.pad_front;
    for (int t = 0; t < c.kernel_d; t++)
        if (const int slice = first + t * c.dilation_d; (unsigned)slice < (unsigned)c.depth) body(slice, t);
}

/* KERNEL x KERNEL taps of a slice with stride STRIDE in both directions: weights of a slice and one row of the input are in registers. */
template <class T, int KERNEL, int STRIDE, int WIDE>
__global__ void __launch_bounds__(THREADS) volume_kernel(const __grid_constant__ Conv c, const __grid_constant__ Places places) {
    enum { LINE = (WIDE - 1) * STRIDE + KERNEL, HIGH = (ROWS - 1) * STRIDE + KERNEL };
    wait_for_previous();
    const int index = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (index >= places.count) return;
    const Outputs<T, 1, ROWS, IN_SLICE> of(c, places, index);
    const Strides in(c.nhwc, c.groups, c.rows(), c.width);
    const int h0 = of.top * STRIDE - c.pad_top, w0 = of.at.q * WIDE * STRIDE - c.pad_left;
    const T *const image = (const T *)c.in + of.at.n * in.image + of.group * in.channel + w0 * in.column;
    unsigned inside = 0; /* bit s: column s */
#pragma unroll
    for (int s = 0; s < LINE; s++) inside |= (unsigned)((unsigned)(w0 + s) < (unsigned)c.width) << s;
    float sum[1][ROWS][WIDE] = {};
    for_slices(c, of.slice, [&](int slice, int t) {
        const T *const weights = (const T *)c.weights + (of.first * c.kernel_d + t) * KERNEL * KERNEL;
        float by[KERNEL][KERNEL];
#pragma unroll
        for (int i = 0; i < KERNEL * KERNEL; i++) by[i / KERNEL][i % KERNEL] = float(weights[i]);
#pragma unroll
        for (int h = 0; h < HIGH; h++) {
            const unsigned there = (unsigned)(h0 + h) < (unsigned)c.height ? inside : 0;
            const T *const from = image + (slice * c.height + h0 + h) * in.row;
            float line[LINE];
#pragma unroll
            for (int s = 0; s < LINE; s++) line[s] = there >> s & 1 ? float(from[s * in.column]) : 0.f;
#pragma unroll
            for (int i = 0; i < ROWS; i++)
                if (h - i * STRIDE >= 0 && h - i * STRIDE < KERNEL)
#pragma unroll
                    for (int q = 0; q < WIDE; q++)
#pragma unroll
                        for (int s = 0; s < KERNEL; s++) sum[0][i][q] = fmaf(line[q * STRIDE + s], by[h - i * STRIDE][s], sum[0][i][q]);
        }
    });
    of.template store<WIDE, 1>(c, sum);
}

/* Any kernel, strides and dilations: a thread has one column, and reads the input of each tap of its outputs. */
template <class T>
__global__ void __launch_bounds__(THREADS) any_volume_kernel(const __grid_constant__ Conv c, const __grid_constant__ Places places) {
    wait_for_previous();
    const int index = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (index >= places.count) return;
    const Outputs<T, 1, ROWS, IN_SLICE> of(c, places, index);
    const Strides in(c.nhwc, c.groups, c.rows(), c.width);
    const int h0 = of.top * c.stride_h - c.pad_top, w0 = of.at.q * c.stride_w - c.pad_left;
    const T *const image = (const T *)c.in + of.at.n * in.image + of.group * in.channel;
    float sum[1][ROWS][1] = {};
    for_slices(c, of.slice, [&](int slice, int t) {
        const T *weights = (const T *)c.weights + (of.first * c.kernel_d + t) * c.kernel_h * c.kernel_w;
        for (int r = 0; r < c.kernel_h; r++)
            for (int s = 0; s < c.kernel_w; s++, weights++) {
                const int w = w0 + s * c.dilation_w;
                if ((unsigned)w >= (unsigned)c.width) continue;
                const float by = float(*weights);
#pragma unroll
                for (int i = 0; i < ROWS; i++) {
                    const int h = h0 + i * c.stride_h + r * c.dilation_h;
                    if ((unsigned)h < (unsigned)c.height)
                        sum[0][i][0] = fmaf(float(image[(slice * c.height + h) * in.row + w * in.column]), by, sum[0][i][0]);
                }
            }
    });
    of.template store<1, 1>(c, sum);
}

enum { VOLUME_PITCH = 2 * MOST_LANES + 2 /* as of paired_kernel */ };
/* Bytes of the weights that a block of volume_pairs_kernel holds in shared memory. */
int pairs_bytes(const Conv &c) { return c.taps() * VOLUME_PITCH * (int)sizeof(float); }

/* volume_kernel for one filter a group and NHWC: a thread has two neighbouring channels, and a block their weights, as in paired_kernel. */
template <class T, int KERNEL, int STRIDE, int WIDE>
__global__ void __launch_bounds__(THREADS, 2) volume_pairs_kernel(const __grid_constant__ Conv c, const __grid_constant__ Places places) {
    enum { LINE = (WIDE - 1) * STRIDE + KERNEL, HIGH = (ROWS - 1) * STRIDE + KERNEL };
    PYSIM_DYNAMIC_SHARED(shared);
    float *const weights = (float *)shared;
    wait_for_previous();
    int chunk, top, index = places.filters.of((int)blockIdx.x, chunk);
    const int first = 2 * chunk * places.lanes, slot = (int)threadIdx.x & (places.lanes - 1), channel = first + 2 * slot;
    Place at;
    index = index * (THREADS / places.lanes) + (int)threadIdx.x / places.lanes;
    index = places.wide.of(index, at.q), at.n = places.high.of(index, at.p);
    const int slice_of_outputs = places.apart.of(at.p, top);
    top *= ROWS;
    for (int i = (int)threadIdx.x; i < 2 * places.lanes * c.taps(); i += THREADS) {
        const int of = i / c.taps(), tap = i % c.taps();
        weights[tap * VOLUME_PITCH + of] = first + of < c.groups ? float(((const T *)c.weights)[first * c.taps() + i]) : 0.f;
    }
    __syncthreads();
    if (channel >= c.groups || at.n >= c.batch) return;
    const int h0 = top * STRIDE - c.pad_top, w0 = at.q * WIDE * STRIDE - c.pad_left;
    const T *const image = (const T *)c.in + ((int64_t)at.n * c.rows() * c.width + w0) * c.groups + channel;
    unsigned inside = 0; /* bit s: column s */
#pragma unroll
    for (int s = 0; s < LINE; s++) inside |= (unsigned)((unsigned)(w0 + s) < (unsigned)c.width) << s;
    float sum[ROWS][2 * WIDE] = {};
    for_slices(c, slice_of_outputs, [&](int slice, int t) {
        const T *const from = image + (int64_t)slice * c.height * c.width * c.groups;
        Pack<T, 2> lines[2][LINE]; /* a row's loads are in flight while the row before is multiplied */
        read_pairs(c, from, h0, inside, lines[0]);
#pragma unroll
        for (int h = 0; h < HIGH; h++) {
            if (h + 1 < HIGH) read_pairs(c, from, h0 + h + 1, inside, lines[(h + 1) % 2]);
            if ((unsigned)(h0 + h) >= (unsigned)c.height) continue;
            const auto &line = lines[h % 2];
#pragma unroll
            for (int i = 0; i < ROWS; i++)
                if (h - i * STRIDE >= 0 && h - i * STRIDE < KERNEL)
#pragma unroll
                    for (int s = 0; s < KERNEL; s++) {
                        const int tap = (t * KERNEL + h - i * STRIDE) * KERNEL + s;
                        const auto by = *(const Pack<float, 2> *)(weights + tap * VOLUME_PITCH + 2 * slot);
#pragma unroll
                        for (int q = 0; q < WIDE; q++)
#pragma unroll
                            for (int f = 0; f < 2; f++)
                                sum[i][2 * q + f] = fmaf(float(line[q * STRIDE + s].value[f]), by.value[f], sum[i][2 * q + f]);
                    }
        }
    });
    const int above = slice_of_outputs * c.slice_rows;
    store_pairs<T, WIDE>(c, at, channel, sum, above + top, above + c.slice_rows);
}

const char *not_volume(const Conv &c) {
    if (!c.volumes) return "it takes volumes";
    return c.channels == 1 ? nullptr : "it takes one channel a group";
}
}
}
#endif
