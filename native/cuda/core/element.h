/* SPDX-License-Identifier: Apache-2.0
 * The type of an operand's elements in memory. */
#ifndef PYSIM_CUDA_ELEMENT_H
#define PYSIM_CUDA_ELEMENT_H
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "pysim_cuda.h"

namespace pysim {
namespace element {

/* By pysim_dtype. The forms of tf32 are f32 in memory. */
template <int DTYPE> struct Type;
/* clang-format off */
template <> struct Type<PYSIM_F32> { using type = float; };
template <> struct Type<PYSIM_F16> { using type = __half; };
template <> struct Type<PYSIM_BF16> { using type = __nv_bfloat16; };
template <> struct Type<PYSIM_TF32> : Type<PYSIM_F32> {};
template <> struct Type<PYSIM_TF32X3> : Type<PYSIM_F32> {};
template <> struct Type<PYSIM_S8> { using type = signed char; };
/* clang-format on */
}

template <int DTYPE> using ElementOf = typename element::Type<DTYPE>::type;
}
#endif
