/* SPDX-License-Identifier: Apache-2.0
 * The reference on the device: a block computes 16 x 16 outputs, multiplies and adds in f64 (s8: in s64), and rounds once at the end. It shares
 * only the functions of epilogues.inc with the kernels. TF32 operands are multiplied as f32: the kernels' rounding of them is part of the error
 * that a check allows. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "core/launch.h"
#include "core/reference.cuh"

namespace pysim {
namespace {

enum { EDGE = 16 };

template <class In, class Out> __global__ void reference_kernel(Problem p) {
    using Sum = decltype(value_of(In()));
    if (p.only_if && !*p.only_if) return;
    __shared__ Sum left[EDGE][EDGE + 1], right[EDGE][EDGE + 1];
    const int x = threadIdx.x, y = threadIdx.y;
    const int row = blockIdx.y * EDGE + y, column = blockIdx.x * EDGE + x;
    const In *a = (const In *)p.a, *b = (const In *)p.b;
    Sum sum = 0;
    for (int k0 = 0; p.alpha != 0 && k0 < p.k; k0 += EDGE) {
        left[y][x] = row < p.m && k0 + x < p.k ? value_of(p.trans_a ? a[(k0 + x) * p.lda + row] : a[row * p.lda + k0 + x]) : Sum(0);
        right[y][x] =
            column < p.n && k0 + y < p.k ? value_of(p.trans_b ? b[column * p.ldb + k0 + y] : b[(k0 + y) * p.ldb + column]) : Sum(0);
        __syncthreads();
        for (int i = 0; i < EDGE; i++) sum += left[y][i] * right[i][x];
        __syncthreads();
    }
    if (row >= p.m || column >= p.n) return;
    Out *to = (Out *)p.c + row * p.ldc + column;
    put(to, finished(p, (double)sum, to, p.by_row ? row : column));
}

template <class In, class Out> cudaError_t start(const Problem &p, cudaStream_t stream) {
    const dim3 grid((p.n + EDGE - 1) / EDGE, (p.m + EDGE - 1) / EDGE), block(EDGE, EDGE);
    return launch(reference_kernel<In, Out>, grid, block, 0, stream, p);
}
template <class In> cudaError_t start_float(const Problem &p, cudaStream_t stream) {
    switch (p.c_dtype) {
    case PYSIM_F16: return start<In, __half>(p, stream);
    case PYSIM_BF16: return start<In, __nv_bfloat16>(p, stream);
    default: return start<In, float>(p, stream);
    }
}
}

cudaError_t reference(const Problem &p, int dtype, cudaStream_t stream) {
    switch (dtype) {
    case PYSIM_F64: return start<double, double>(p, stream);
    case PYSIM_F16: return start_float<__half>(p, stream);
    case PYSIM_BF16: return start_float<__nv_bfloat16>(p, stream);
    case PYSIM_S8: return start<signed char, int>(p, stream);
    case PYSIM_F8: return start_float<__nv_fp8_e4m3>(p, stream);
    default: return start<float, float>(p, stream);
    }
}
}
