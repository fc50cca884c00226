/* SPDX-License-Identifier: Apache-2.0
 * What the reference loops of products and convolutions share: loads and stores, and the epilogue, in f64 (s8: in whole numbers). */
#ifndef PYSIM_CUDA_REFERENCE_CUH
#define PYSIM_CUDA_REFERENCE_CUH

#include "core/epilogue.cuh"

namespace pysim {

template <class In> __device__ inline double value_of(In x) { return (double)(float)x; }
__device__ inline double value_of(double x) { return x; }
__device__ inline long long value_of(signed char x) { return x; }

template <class Out> __device__ inline void put(Out *to, double x) { *to = Out((float)x); }
__device__ inline void put(double *to, double x) { *to = x; }
__device__ inline void put(int *to, double x) { *to = (int)(unsigned)(long long)x; } /* wraps as s32 sums do; exact below 2^53 */

/* The epilogue of one sum: f(alpha scale sum + beta old + bias), with bias and scale of `line`. */
template <class Out> __device__ inline double finished(const Problem &p, double sum, const Out *old, int line) {
    double x[1] = {p.alpha * sum};
    if (p.scale) x[0] *= ((const typename Arithmetic<Out>::type *)p.scale)[line];
    if (p.beta != 0) x[0] += p.beta * (double)*old;
    if (p.bias) x[0] += (double)((const Out *)p.bias)[line];
    activate<false>(function_of(p.activation), p.activation, x, p.low, p.high);
    return x[0];
}
}
#endif
