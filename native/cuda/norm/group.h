/* SPDX-License-Identifier: Apache-2.0
 * The interface between the ABI's entry (abi/network/group.cu) and the norms of groups (norm/group.cu). */
#ifndef PYSIM_CUDA_GROUP_H
#define PYSIM_CUDA_GROUP_H
#include <cuda_runtime.h>

#include "pysim_cuda.h"

namespace pysim {

/* A kernel's arguments, passed by value; the fields are those of pysim_cuda_group_norm, and how blocks share an image. A block has `vectors` vectors
 * of whole groups' channels in `rows` pixels; `parts` blocks, a cluster, have all pixels. */
struct GroupNorm {
    const void *x, *residual, *scale, *shift;
    void *result;
    int64_t images;
    int pixels, channels, group, activation;
    bool narrow_parameters; /* of the images' type, not f32 */
    float epsilon, low, high;
    int vectors, rows, parts, threads;
};

/* Sets how blocks share an image. False: the channels are no whole vectors, or a group does not fit into shared memory. */
bool share_image(GroupNorm &n, int32_t dtype, int sms, bool clusters);
cudaError_t normalize_groups(const GroupNorm &n, int32_t dtype, cudaStream_t stream);
/* Bytes of a vector. */
enum { GROUP_VECTOR = 16 };
}
#endif
