/* SPDX-License-Identifier: Apache-2.0
 * The interface between the ABI's entry (abi/network/norm.cu) and the norm kernels (norm/norm.cu). */
#ifndef PYSIM_CUDA_NORM_H
#define PYSIM_CUDA_NORM_H
#include <cuda_runtime.h>

#include "pysim_cuda.h"

namespace pysim {

/* A kernel's arguments, passed by value; the fields are those of pysim_cuda_norm. Part i has the channels starts[i] to starts[i + 1]. */
struct Norm {
    const void *at[PYSIM_CUDA_PARTS];
    int starts[PYSIM_CUDA_PARTS + 1];
    int parts, channels, relu;
    int64_t rows;
    int image_rows;
    void *result;
    const float *center, *scale, *shift;
    float epsilon;
};

/* `whole`: parts, results and parameters are aligned for 16-byte vectors, none of which spans two parts. */
cudaError_t normalize(const Norm &n, int32_t kind, int32_t dtype, int32_t out_dtype, bool whole, int sms, cudaStream_t stream);
/* Elements of a vector. */
inline int norm_vector(int32_t dtype, int32_t out_dtype) { return dtype == PYSIM_F32 || out_dtype == PYSIM_F32 ? 4 : 8; }
}
#endif
