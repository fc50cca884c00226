/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PYSIM_CUDA_DIVISOR_H
#define PYSIM_CUDA_DIVISOR_H
#include <cuda_runtime.h>
#include <stdint.h>

namespace pysim {

/* Division by a number that is known before the launch: n / divisor for 0 <= n < 2^31 (Granlund and Montgomery, 1994). */
struct Divisor {
    unsigned divisor, factor, shift;
    Divisor() = default;
    explicit Divisor(unsigned d) : divisor(d), factor(0), shift(0) {
        while (shift < 31 && (1u << shift) < d) shift++;
        factor = (unsigned)((((uint64_t)1 << 32) * (((uint64_t)1 << shift) - d)) / d + 1);
    }
    __device__ int of(int n) const { return (int)((__umulhi((unsigned)n, factor) + (unsigned)n) >> shift); }
    __device__ int of(int n, int &rest) const {
        const int quotient = of(n);
        rest = n - quotient * (int)divisor;
        return quotient;
    }
};
}
#endif
