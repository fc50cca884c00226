/* SPDX-License-Identifier: Apache-2.0
 * The interface between the ABI's entry (abi/network/phases.cu) and the kernels that interleave phases (conv/phases.cu). */
#ifndef PYSIM_CUDA_PHASES_H
#define PYSIM_CUDA_PHASES_H
#include <cuda_runtime.h>

#include "core/divisor.h"

namespace pysim {

/* A kernel's arguments, passed by value; axes are slices, rows and columns. Phases are numbered with the last axis the fastest. */
struct Phases {
    const void *from;
    void *to;
    int nhwc, filters, phases; /* filters: of the result */
    int strides[3], starts[3], windows[3], out[3];
    int64_t elements; /* of the result */
    int vectors;      /* 0: element by element; else vectors of filters that a thread takes of each phase of a window */
    Divisor by_filters, by_vectors, by_windows[3], by_out[3], by_strides[3];
};

/* `bytes`: of an element: 2, 4 or 8. */
cudaError_t interleave(const Phases &p, int bytes, int64_t batch, cudaStream_t stream);
}
#endif
