/* SPDX-License-Identifier: Apache-2.0
 * The interface between the ABI's entry (abi/network/pool.cu) and the pool kernels (pool/pool.cu). */
#ifndef PYSIM_CUDA_POOL_H
#define PYSIM_CUDA_POOL_H
#include "core/divisor.h"
#include "pysim_cuda.h"

namespace pysim {

/* A kernel's arguments, passed by value; the fields are those of pysim_cuda_pool. A thread has `vector` channels of a result. */
struct Pool {
    const void *from;
    void *to;
    int height, width, channels;
    int windows[2], strides[2], pads[2], dilations[2];
    int threads;
    Divisor by_vectors, by_out_w, by_out_h;
};

cudaError_t max_pool(const Pool &p, int32_t dtype, int vector, cudaStream_t stream);
}
#endif
