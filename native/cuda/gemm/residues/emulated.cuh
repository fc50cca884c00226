/* SPDX-License-Identifier: Apache-2.0
 * The s8 products of all moduli where the CPU runs them in place of a GPU, which has no wgmma there: plain loops, and the store of product.cuh. */
#ifndef PYSIM_CUDA_RESIDUES_EMULATED_CUH
#define PYSIM_CUDA_RESIDUES_EMULATED_CUH
#include "core/launch.h"
#include "core/problem.h"
#include "gemm/residues/scheme.h"

namespace pysim::residues {

/* A thread computes the residues of a row. */
__attribute__((optimize("O3"))) void products_kernel(const int8_t *a, const int8_t *b, int64_t pitch, int m, int rows, const Residues to,
                                                     const Verdict verdict, int n, int k) {
    if (refuses(verdict)) return;
    const int index = (int)blockIdx.x / m, row = (int)blockIdx.x % m;
    const Modulus of = modulus_of(index);
    a += (index * (int64_t)rows + row) * pitch, b += index * (int64_t)n * pitch;
    for (int column = 0; column < n; column++, b += pitch) {
        int sum = 0;
        for (int i = 0; i < k; i++) sum += a[i] * b[i];
        const int within = column % 64, place = column - within + within % 8 / 2 * 16 + within / 8 * 2 + within % 2;
        to.data[index * to.plane + row * to.pitch + place] = (uint8_t)(residue(sum, of) ^ FROM_ZERO);
    }
}

inline cudaError_t multiply(const Problem &p, int moduli, const int8_t *a, const int8_t *b, int64_t pitch, int rows, const Residues &to,
                            const Verdict &verdict, int, cudaStream_t stream) {
    return launch(products_kernel, dim3((unsigned)(moduli * p.m)), 1, 0, stream, a, b, pitch, p.m, rows, to, verdict, p.n, p.k);
}
}
#endif
