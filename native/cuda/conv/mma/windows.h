/* SPDX-License-Identifier: Apache-2.0
 * The operand layouts of mma.sync convolutions (operands.cu), beside their kernels (kernel.cuh). */
#ifndef PYSIM_CUDA_CONV_MMA_WINDOWS_H
#define PYSIM_CUDA_CONV_MMA_WINDOWS_H
#include "conv/conv.h"

namespace pysim::mma_sync {

/* A convolution whose filters lie as [filter][tap][channels of a group, padded to whole 16 bytes], and whose input so, too: elements from one
 * channel of a pixel to the next 1, and from one pixel, row, slice, image and group to the next as below; or in planes, as it came. */
struct Windows {
    Conv c;
    int channels; /* of a group, padded */
    int pitch, row, slice, image, group;
    Divisor per_tap, per_row; /* of k by channels, of taps by columns of the kernel */
};

/* Whether windows are read in place from planes: pointwise convolutions under NCHW whose planes are multiples of 16 bytes. */
bool planes(const Conv &c);
int64_t steps_of_k(const Conv &c); /* the product's k, padding and all */
const char *refuses(const Conv &c);
pysim_status own_bytes(const Conv &c, int64_t *bytes);
/* The arguments of pysim_cuda_run in the layout that the kernels need; enqueues copies of operands that need them. */
pysim_status prepare(const Conv &c, Windows &to, cudaStream_t stream);
}
#endif
