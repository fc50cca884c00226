/* SPDX-License-Identifier: Apache-2.0
 * Max pools of channels-last images (pysim_cuda.h, pysim_cuda_pool): a thread has 16 bytes of channels of one result. Squares of 2 and 3 are known at
 * compile time, so that all loads of a thread are in flight together; neighbouring threads find what they share in L1.
 *
 * Worked number: 16 x 112x112 x 64 of f16, 3x3 of stride 2, are 25.7 MB in and 6.4 MB out, 6.7 us at the 4.8 TB/s of an H200's memory. */
#include "pool/pool.h"

#include <cmath>

#include "core/epilogue.cuh"
#include "core/launch.h"

namespace pysim {
namespace {

enum { THREADS = 256 };

/* PyTorch's rule: of zeros of both signs the first. */
template <class T, int N> __device__ void take_larger(float (&most)[N], const Pack<T, N> &x) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float value = float(x.value[i]);
        most[i] = value > most[i] || value != value ? value : most[i];
    }
}

/* EDGE: of the window, undilated; 0: any window. */
template <class T, int N, int EDGE> __global__ void __launch_bounds__(THREADS) max_kernel(const __grid_constant__ Pool p) {
    using Vector = Pack<T, N>;
    int index = (int)(blockIdx.x * THREADS + threadIdx.x), vector, q, h;
    if (index >= p.threads) return;
    const int64_t to = index;
    index = p.by_vectors.of(index, vector), index = p.by_out_w.of(index, q);
    const int image = p.by_out_h.of(index, h), row = p.width * p.channels;
    const int h0 = h * p.strides[0] - p.pads[0], w0 = q * p.strides[1] - p.pads[1];
    const T *const from = (const T *)p.from + (int64_t)image * p.height * row + vector * N;
    Vector lowest, result;
    float most[N];
#pragma unroll
    for (int i = 0; i < N; i++) most[i] = -INFINITY, lowest.value[i] = T(-INFINITY);
    const auto loaded = [&](int y, int x) {
        const bool inside = (unsigned)y < (unsigned)p.height && (unsigned)x < (unsigned)p.width;
        return inside ? *(const Vector *)(from + y * row + x * p.channels) : lowest;
    };
    if constexpr (EDGE > 0) {
        Vector found[EDGE][EDGE];
#pragma unroll
        for (int i = 0; i < EDGE * EDGE; i++) found[i / EDGE][i % EDGE] = loaded(h0 + i / EDGE, w0 + i % EDGE);
#pragma unroll
        for (int i = 0; i < EDGE * EDGE; i++) take_larger(most, found[i / EDGE][i % EDGE]);
    } else
        for (int r = 0; r < p.windows[0]; r++)
            for (int s = 0; s < p.windows[1]; s++) take_larger(most, loaded(h0 + r * p.dilations[0], w0 + s * p.dilations[1]));
#pragma unroll
    for (int i = 0; i < N; i++) result.value[i] = T(most[i]);
    ((Vector *)p.to)[to] = result;
}

template <class T> cudaError_t start(const Pool &p, int vector, cudaStream_t stream) {
    constexpr int N = 16 / sizeof(T);
    const dim3 grid((unsigned)((p.threads + THREADS - 1) / THREADS));
    const int edge = p.windows[0] == p.windows[1] && p.dilations[0] == 1 && p.dilations[1] == 1 ? p.windows[0] : 0;
    if (vector == 1) return launch(max_kernel<T, 1, 0>, grid, dim3(THREADS), 0, stream, p);
    if (edge == 2) return launch(max_kernel<T, N, 2>, grid, dim3(THREADS), 0, stream, p);
    if (edge == 3) return launch(max_kernel<T, N, 3>, grid, dim3(THREADS), 0, stream, p);
    return launch(max_kernel<T, N, 0>, grid, dim3(THREADS), 0, stream, p);
}
}

cudaError_t max_pool(const Pool &p, int32_t dtype, int vector, cudaStream_t stream) {
    if (dtype == PYSIM_F16) return start<__half>(p, vector, stream);
    return dtype == PYSIM_BF16 ? start<__nv_bfloat16>(p, vector, stream) : start<float>(p, vector, stream);
}
}
