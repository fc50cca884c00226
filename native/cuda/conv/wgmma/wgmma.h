/* SPDX-License-Identifier: Apache-2.0
 * The operands of wgmma convolutions (operands.cu, channels_last.cu), beside their kernels (kernel.cuh). */
#ifndef PYSIM_CUDA_CONV_WGMMA_H
#define PYSIM_CUDA_CONV_WGMMA_H
#include "conv/conv.h"
#include "mainloop/hopper/shape.h"

namespace pysim {
namespace hopper {

/* A convolution whose input and filters lie as TMA takes them: filters[filter][tap][channels], and images[image][row][pixel], of
 * which each pixel has `depth` channels and begins `pitch` elements after the one before, a row `row` elements; all pitches are multiples
 * of 16 bytes. A group's windows begin `group_images` images and `group_channels` channels after those of the group before. pitch 0: planes. */
struct Windows : Conv {
    int images, depth, pitch, row, group_images, group_channels;
};

/* k-iterations. */
int64_t steps_of(const Conv &c);
/* Whether windows are read in place from planes; and the windows of an image, rounded up to whole TMA boxes. */
bool planes(const Conv &c);
int windows_of_plane(const Conv &c);
/* The reason why TMA refuses a problem; the bytes of the copies; the copies. */
const char *refuses(const Conv &c);
pysim_status own_bytes(const Conv &c, int64_t *bytes);
/* The arguments of pysim_cuda_run in the layout that the kernels need; enqueues copies of operands that need them. */
pysim_status prepare(const Conv &c, Windows &to, cudaStream_t stream);
}

/* A square of high x wide pixels as the channels of one, channel (c high + i) wide + j being channel c of the pixel i down and j across; `rows` of
 * such squares, of which the first begins `top` rows before the input. */
struct Fold { int high, wide, rows, top; };
/* Of a copy that leaves pixels out: every `high`th row and `wide`th column, of planes that are `width` wide and have `plane` pixels. */
struct Every { int high, wide, width, plane; };
/* A copy of channels_last.cu: to[group][image][row][before + x][padded] = from[image][group channels][row][x] (or, `last`,
 * [image][row][x][group channels]), zeros elsewhere in rows of `wide` places and `padded` channels; the bytes of these are a multiple of 16,
 * as `to` is. */
struct ChannelsLast {
    void *to; /* NULL: nothing is copied */
    const void *from;
    int images, groups, rows, width, before, wide, channels, padded;
    bool last;
    Every every = {}; /* no plane: pixels as they lie */
    Fold fold = {}; /* no rows: none. Of one group; `before` pixels before the first square, `wide` squares a row */
    Prologue prologue = {}; /* of f32 */
};
/* Both copies in one launch. */
cudaError_t channels_last(const ChannelsLast &one, const ChannelsLast &other, int element_bytes, cudaStream_t stream);

/* Fails unless both operands of a convolution `on` such instructions begin at multiples of 16 bytes. */
pysim_status aligned(const char *on, const void *input, const void *filters);
}
#endif
