/* SPDX-License-Identifier: Apache-2.0
 * The kernels of stream.h, by type. */
#include "conv/pointwise/stream.h"

#include "conv/pointwise/kernel.cuh"
#include "core/element.h"

namespace pysim::pointwise {

pysim_status tiling_here(const Conv &c, int sms, Tiling *out) {
    int device, held;
    pysim_status status = check(cudaGetDevice(&device), "the current device");
    if (status == PYSIM_OK)
        status = check(cudaDeviceGetAttribute(&held, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "its shared memory");
    if (status != PYSIM_OK) return status;
    *out = tiling_of(c, sms, std::min<int>(held, limit::GROUPED_HELD));
    return out->shared ? PYSIM_OK
                       : fail(PYSIM_UNSUPPORTED, "a stream: filters and the windows of four warps exceed the device's shared memory");
}

cudaError_t start(const Conv &c, const Tiling &t, cudaStream_t stream) {
    switch (c.dtype) {
    case PYSIM_F16: return start_stream<ElementOf<PYSIM_F16>>(c, t, stream);
    case PYSIM_BF16: return start_stream<ElementOf<PYSIM_BF16>>(c, t, stream);
    default: return start_stream<ElementOf<PYSIM_TF32>>(c, t, stream);
    }
}

cudaError_t attributes(const Conv &c, pysim_cuda_attributes *out) {
    Tiling t;
    if (tiling_here(c, 1, &t) != PYSIM_OK) return cudaErrorInvalidConfiguration;
    const auto of = [&](auto kernel) { return attributes_of(kernel, t.warps * 32, t.shared, out); };
    switch (c.dtype) {
    case PYSIM_F16: return of(kernel_of<ElementOf<PYSIM_F16>>(t));
    case PYSIM_BF16: return of(kernel_of<ElementOf<PYSIM_BF16>>(t));
    default: return of(kernel_of<ElementOf<PYSIM_TF32>>(t));
    }
}

const char *refuses_sizes(const Conv &c) {
    const int element = dtypes[c.dtype].bytes;
    if (c.channels * element % VECTOR || c.filters * element % VECTOR) return "it takes channels and filters of whole 16 bytes";
    static_assert(limit::POINTWISE_BYTES == 512, "what the sentence says");
    if (c.channels * element > limit::POINTWISE_BYTES) return "it takes up to 512 bytes of channels";
    return tiling_of(c, 1).shared ? nullptr : "its filters and the windows of four warps exceed 224 KiB of shared memory";
}
}
