/* SPDX-License-Identifier: Apache-2.0
 * The CUDA library's last error message, and the conversion of CUDA errors to statuses. */
#ifndef PYSIM_CUDA_STATUS_H
#define PYSIM_CUDA_STATUS_H
#include <cuda_runtime.h>

#include "pysim_cuda.h"

namespace pysim {
/* Stores the message for this thread and returns status. */
__attribute__((format(printf, 2, 3))) pysim_status fail(pysim_status status, const char *format, ...);
/* PYSIM_OK, or PYSIM_DEVICE (PYSIM_OUT_OF_MEMORY) with `what` and CUDA's message; clears CUDA's sticky last error. */
pysim_status check(cudaError_t error, const char *what);
}
#endif
