/* SPDX-License-Identifier: Apache-2.0
 * What the table of the convolutions on wgmma (conv_wgmma.cu) and their kernels (conv_wgmma.cuh) share. */
#ifndef PYSIM_CUDA_CONV_WGMMA_H
#define PYSIM_CUDA_CONV_WGMMA_H
#include "conv.h"
#include "wgmma.h"

namespace pysim {
namespace hopper {

/* A convolution whose input and filters lie as the copy engine takes them: filters[filter][tap][channels], and images[image][row][pixel], of
 * which each pixel has `depth` channels and begins `pitch` elements after the one before, a row `row` elements; all pitches are multiples
 * of 16 bytes. A group's windows begin `group_images` images and `group_channels` channels after those of the group before. */
struct Windows : Conv {
    int images, depth, pitch, row, group_images, group_channels;
};

template <class S> cudaError_t launch_windows(const Windows &c, int sms, cudaStream_t stream);
template <class S> cudaError_t attributes_of_windows(const Conv &c, pysim_cuda_attributes *out);

/* A line of convs.inc as a Shape: windows are rows of the product, filters its columns. Forms are clusters, filters x windows. */
#define PYSIM_CLUSTER_full 1, 1
#define PYSIM_CLUSTER_c1x2 2, 1
#define PYSIM_CLUSTER_c2x1 1, 2
#define PYSIM_WGMMA_CONV_SHAPE(dtype, form, bf, bw, wf, ww, stages)                                                                   \
    hopper::Shape<PYSIM_WGMMA_##dtype, bw, bf, ww, wf, stages, PYSIM_CLUSTER_##form>
}

/* A copy of conv_channels_last.cu: to[group][image][row][before + x][padded] = from[image][group channels][row][x] (or, `last`,
 * [image][row][x][group channels]), zeros elsewhere in rows of `wide` places and `padded` channels; the bytes of these are a multiple of 16,
 * as `to` is. */
struct ChannelsLast {
    void *to; /* NULL: nothing is copied */
    const void *from;
    int images, groups, rows, width, before, wide, channels, padded;
    bool last;
};
/* Both at once. */
cudaError_t channels_last(const ChannelsLast &one, const ChannelsLast &other, int element_bytes, cudaStream_t stream);
}
#endif
