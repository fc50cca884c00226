/* SPDX-License-Identifier: Apache-2.0
 * Tensor maps: what TMA is told of an operand. */
#ifndef PYSIM_CUDA_WGMMA_TENSOR_MAP_CUH
#define PYSIM_CUDA_WGMMA_TENSOR_MAP_CUH
#include <cuda.h>
#include <cuda_runtime.h>

#include "mainloop/wgmma/shape.h"

namespace pysim::hopper {

/* A driver function, looked up at run time, so that the library needs no driver to load. */
template <class Function> struct DriverFunction {
    Function call = nullptr;
    cudaError_t error;
    explicit DriverFunction(const char *name) {
        void *found = nullptr;
        cudaDriverEntryPointQueryResult result;
        error = cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result);
        if (error == cudaSuccess && !found) error = cudaErrorCallRequiresNewerDriver;
        call = (Function)found;
    }
};
using Encode = CUresult (*)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *,
                            const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                            CUtensorMapFloatOOBfill);
inline const DriverFunction<Encode> &encoder() {
    static const DriverFunction<Encode> once("cuTensorMapEncodeTiled");
    return once;
}

/* TFLOAT32 makes TMA round f32 to the nearest tf32 (seen on an H200: 1 + 5/8192 arrives as 1 + 8/8192); with FLOAT32 wgmma would truncate. */
template <class S> constexpr CUtensorMapDataType map_type() {
    return S::DTYPE == PYSIM_F16                            ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
           : S::DTYPE == PYSIM_BF16                         ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
           : S::DTYPE == PYSIM_TF32                         ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
           : S::DTYPE == PYSIM_F64                          ? CU_TENSOR_MAP_DATA_TYPE_FLOAT64
           : S::DTYPE == PYSIM_TF32X3 || S::DTYPE == BF16X6 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                                            : CU_TENSOR_MAP_DATA_TYPE_UINT8;
}

/* Encodes the tensor map of an operand: `outer` rows of `inner` elements, boxes of 128 bytes (thirds of B: 64) x `box` rows. L2 promotion is 128 bytes:
 * where a box row crosses a line, promotion to 256 bytes fetches up to four lines, and 640x6984x9296 tn of f16 takes 1.13 times as long (H200). */
template <class S>
cudaError_t describe(CUtensorMap *map, Encode encode, const void *data, int inner, int outer, int64_t pitch, int box, bool thirds = false) {
    const int bytes = thirds ? 2 : S::BYTES;
    const cuuint64_t sizes[] = {(cuuint64_t)inner, (cuuint64_t)outer}, pitches[] = {(cuuint64_t)pitch * bytes};
    const cuuint32_t boxes[] = {128 / S::BYTES, (cuuint32_t)box}, steps[] = {1, 1};
    const CUresult result =
        encode(map, thirds ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : map_type<S>(), 2, const_cast<void *>(data), sizes, pitches, boxes, steps,
               CU_TENSOR_MAP_INTERLEAVE_NONE, thirds ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}
}
#endif
