/* SPDX-License-Identifier: Apache-2.0
 * The s8 products of all moduli in one launch on wgmma. A's residues lie one modulus below the other, so they are rows of one product; B's rows are those of
 * the tile's modulus. Sums become residues in registers: s32 results never go to memory. */
#ifndef PYSIM_CUDA_RESIDUES_PRODUCT_CUH
#define PYSIM_CUDA_RESIDUES_PRODUCT_CUH
#include "gemm/residues/scheme.h"
#include "mainloop/wgmma/kernel.cuh"

namespace pysim::residues {

struct Moduli {
    Problem product; /* m: rows of all moduli */
    int rows;        /* of a modulus, whole tiles */
    Residues to;
    Verdict verdict;
    Modulus modulus[MOST];
};

/* The `Operands` of these products (mainloop/wgmma/kernel.cuh). */
struct Stacked : hopper::Matrices {
    using Arguments = Moduli;
    static constexpr bool OWN_STORE = true;
    template <class> static constexpr bool CONDITIONAL = true;
    template <class> static constexpr bool EVEN = false;
    template <class S> static int rows_of_tile(const Moduli &) { return S::BLOCK_M; }
    static __device__ const Problem &product(const Moduli &of) { return of.product; }
    static __device__ bool b_is_one(const Moduli &) { return false; }
    static __device__ bool skips(const Moduli &of) { return refuses(of.verdict); }
    template <class S, class Take> static __device__ void with_majors(const Moduli &of, Take take) {
        Matrices::with_majors<S>(of.product, take);
    }
    template <class S> struct Shares : Matrices::Shares<S> {
        __device__ Shares(const Moduli &of, int m, int n, int step)
            : Matrices::Shares<S>(of.product, m, m / of.rows * of.product.n + n, step) {}
        static __device__ int bytes_a(const Moduli &, int) { return S::A_BYTES; }
        static __device__ int bytes_b(const Moduli &, int) { return S::B_BYTES; }
    };
    template <class S> static hopper::StoreTerms store_terms(const Moduli &) { return {}; }

    template <class S> static __device__ __forceinline__ void store(const Moduli &of, int row, int column,
                                                                    const int (&acc)[1][S::ACCUMULATORS]) {
        const int index = row / of.rows;
        const Modulus modulus = of.modulus[index];
        const int within = row - index * of.rows + hopper::row_of_thread();
        uint8_t *const to = of.to.data + index * of.to.plane + within * of.to.pitch + column + threadIdx.x % 4 * 16;
#pragma unroll
        for (int block = 0; block < S::WARP_N / 64; block++)
            if (column + 64 * block < of.product.n)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    unsigned r[16], word[4];
#pragma unroll
                    for (int i = 0; i < 16; i++) r[i] = residue(acc[0][(8 * block + i / 2) * 4 + 2 * h + i % 2], modulus);
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        word[i] = FROM_ZERO ^ __byte_perm(__byte_perm(r[4 * i], r[4 * i + 1], 0x0040),
                                                          __byte_perm(r[4 * i + 2], r[4 * i + 3], 0x0040), 0x5410);
                    *(uint4 *)(to + h * 8 * of.to.pitch + 64 * block) = {word[0], word[1], word[2], word[3]};
                }
    }
};

using Tiles = hopper::Shape<PYSIM_S8, 128, 256, 64, 256, 4, 2, 1>;

/* `a`, `b`: residues modulo the first `moduli`, `pitch` bytes a row, of A `rows` to a modulus. */
inline cudaError_t multiply(const Problem &p, int moduli, const int8_t *a, const int8_t *b, int64_t pitch, int rows, const Residues &to,
                            const Verdict &verdict, int sms, cudaStream_t stream) {
    const int n = p.n, k = p.k;
    Moduli of = {};
    of.product.m = moduli * rows, of.product.n = n, of.product.k = k;
    of.product.a = a, of.product.b = b, of.product.lda = of.product.ldb = pitch, of.product.trans_b = 1, of.product.c_dtype = PYSIM_S32;
    of.product.kind = PYSIM_DATA_PARALLEL, of.product.splits = 1, of.product.along_n = p.along_n, of.product.group = p.group;
    of.rows = rows, of.to = to, of.verdict = verdict;
    for (int i = 0; i < moduli; i++) of.modulus[i] = modulus_of(i);
    CUtensorMap map_a, map_b;
    const hopper::Encode encode = hopper::encoder().call;
    cudaError_t error = hopper::encoder().error;
    if (error == cudaSuccess) error = hopper::describe<Tiles>(&map_a, encode, a, k, moduli * rows, pitch, Tiles::A_SHARE);
    if (error == cudaSuccess) error = hopper::describe<Tiles>(&map_b, encode, b, k, moduli * n, pitch, Tiles::B_SHARE);
    return error == cudaSuccess ? hopper::start<Tiles, Stacked>(map_a, map_b, of, of.product, sms, stream) : error;
}
}
#endif
