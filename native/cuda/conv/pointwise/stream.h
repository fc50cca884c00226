/* SPDX-License-Identifier: Apache-2.0
 * The stream of kernel.cuh, for pointwise convolutions and for tall products (gemm/tall). Of a `Conv` it uses in, weights, out, channels, filters, windows,
 * dtype, and the product's pitch and epilogue. */
#ifndef PYSIM_CUDA_CONV_POINTWISE_STREAM_H
#define PYSIM_CUDA_CONV_POINTWISE_STREAM_H
#include "conv/pointwise/tiles.h"

namespace pysim::pointwise {

/* The tiling on the current device; PYSIM_UNSUPPORTED if a block of it has too little shared memory. */
pysim_status tiling_here(const Conv &c, int sms, Tiling *out);
/* Input and weights begin at multiples of VECTOR bytes. */
cudaError_t start(const Conv &c, const Tiling &t, cudaStream_t stream);
cudaError_t attributes(const Conv &c, pysim_cuda_attributes *out);
/* NULL, or why no GPU streams these channels and filters: "it takes ..." */
const char *refuses_sizes(const Conv &c);
}
#endif
