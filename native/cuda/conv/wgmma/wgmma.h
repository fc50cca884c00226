/* SPDX-License-Identifier: Apache-2.0
 * The operands of wgmma convolutions (operands.cu, channels_last.cu), beside their kernels (kernel.cuh). */
#ifndef PYSIM_CUDA_CONV_WGMMA_H
#define PYSIM_CUDA_CONV_WGMMA_H
#include "conv/conv.h"
#include "mainloop/wgmma/shape.h"

namespace pysim {
namespace hopper {

/* A convolution whose operands have the layout that TMA needs: filters[filter][tap][channels] and images[image][row][pixel]. A pixel has `run`
 * channels; pixels are `pitch` elements apart, rows `row` elements, both multiples of 16 bytes. From one group to the next, windows begin
 * `group_images` images and `group_channels` channels later. pitch 0: planes. */
struct Windows : Conv {
    int images, run, pitch, row, group_images, group_channels;
};

/* The number of k-iterations. */
int64_t steps_of(const Conv &c);
/* Whether windows are read in place from planes; the windows of an image, rounded up to whole TMA boxes. */
bool planes(const Conv &c);
int windows_of_plane(const Conv &c);
/* The reason why TMA cannot load a problem's windows, or NULL. */
const char *refuses(const Conv &c);
/* Bytes of the operands' copies. */
pysim_status own_bytes(const Conv &c, int64_t *bytes);
/* The arguments of pysim_cuda_run in the layout that the kernels need; enqueues copies of operands that need them. */
pysim_status prepare(const Conv &c, Windows &to, cudaStream_t stream);
}

/* Space-to-depth: a square of high x wide pixels becomes one pixel. Its channel (c high + i) wide + j is channel c of the pixel in row i and column j of
 * the square. There are `rows` rows of squares; the first begins `top` rows before the input. */
struct Fold {
    int high, wide, rows, top;
};
/* A copy of every `high`th row and every `wide`th column of planes with `plane` pixels in rows of `width`. */
struct Every {
    int high, wide, width, plane;
};
/* A copy of channels_last.cu: to[group][image][row][before + x][padded] = from[image][group channels][row][x] (or, `last`,
 * [image][row][x][group channels]). The rest of a row of `wide` pixels of `padded` channels is zeros. `to` and the bytes of a pixel are multiples
 * of 16. */
struct ChannelsLast {
    void *to; /* NULL: nothing is copied */
    const void *from;
    int images, groups, rows, width, before, wide, channels, padded;
    bool last;
    Every every = {};       /* plane 0: every pixel */
    Fold fold = {};         /* rows 0: none. One group only; `before` pixels before the first square, `wide` squares in a row */
    int slices = 1;         /* with a fold: that many of `images` are a volume */
    Prologue prologue = {}; /* f32 only */
};
/* Both copies in one launch. */
cudaError_t channels_last(const ChannelsLast &one, const ChannelsLast &other, int element_bytes, cudaStream_t stream);

/* Fails unless both operands begin at multiples of 16 bytes; `on`: the instructions that the message names. */
pysim_status aligned(const char *on, const void *input, const void *filters);
}
#endif
