/* SPDX-License-Identifier: Apache-2.0
 * When a launch lets the next one of its stream start (core/launch.h): when its producers have issued their last loads, or when it ends. */
#ifndef PYSIM_CUDA_WGMMA_RELEASES_H
#define PYSIM_CUDA_WGMMA_RELEASES_H
#include "core/problem.h"

namespace pysim::hopper {

/* Whether a launch of these blocks, one an SM, lets the next one start before it ends. The next one's blocks wait on idle SMs, and its others go where
 * blocks end first, so with each launch fewer GPCs do more of the work. Between a half and three quarters of the SMs a launch of many bytes loses more by
 * that than the next one gains. pysim/algorithms/gpu/gemm.py has the same rule.
 *
 * Worked number, H200, f16: 8x15360x5120 by 80 blocks takes 44.9 us, 41.0 without; 2x5120x13824 by 100 blocks 40.3, 42.2 without. */
inline bool releases(const Problem &p, int element, dim3 grid, int sms) {
    constexpr int64_t MANY_BYTES = 32 << 20;
    const int64_t blocks = (int64_t)grid.x * grid.y * grid.z;
    const bool many = ((int64_t)p.m + p.n) * p.k * element >= MANY_BYTES;
    return !(many && 2 * blocks > sms && 4 * blocks <= 3 * sms);
}
}
#endif
