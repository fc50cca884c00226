/* SPDX-License-Identifier: Apache-2.0
 * The CUDA library's last sentence, and how a CUDA error becomes a status. */
#ifndef PYSIM_CUDA_STATUS_H
#define PYSIM_CUDA_STATUS_H
#include <cuda_runtime.h>

#include "pysim_cuda.h"

namespace pysim {
/* Keeps the sentence for this thread and returns status. */
__attribute__((format(printf, 2, 3))) pysim_status fail(pysim_status status, const char *format, ...);
/* PYSIM_OK, or PYSIM_DEVICE (PYSIM_OUT_OF_MEMORY) with `what` and CUDA's own words; clears CUDA's sticky last error. */
pysim_status check(cudaError_t error, const char *what);
}
#endif
