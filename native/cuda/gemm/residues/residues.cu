/* SPDX-License-Identifier: Apache-2.0
 * The rows of gemm/residues/rows.inc. A launch has four kernels: residues of A, of B, their products, C. The last sets flag 2 if the operands are outside
 * the bound, and then it and the one before end at once: abi/gemm.cu runs another row behind them, which does nothing otherwise. So no result
 * is off by more than the bound of the type's own sums, and the host does not wait to know. */
#include <algorithm>

#include "abi/arguments.h"
#include "gemm/residues/operands.cuh"
#include "gemm/residues/results.cuh"
#include "gemm/rows.h"
#ifdef PYSIM_HOPPER
#include "gemm/residues/product.cuh"
#endif
#ifdef PYSIM_EMULATED
#include "gemm/residues/emulated.cuh"
#endif

#include "gemm/residues/rows.inc"

namespace pysim {
namespace residues {
namespace {

enum { BLOCK_M = 2 * 128, COLUMNS = 64, LINE = 128 }; /* rows of a cluster's tile; columns that are permuted; bytes of an L2 line */

/* The parts of the workspace. A's rows are whole tiles of each modulus. */
struct Parts {
    int64_t pitch, rows, columns, a, b, c, exponents_a, exponents_b, squares_a, squares_b, total;
    Parts(int moduli, int m, int n, int k) : pitch(round_up(k, LINE)), rows(round_up(m, BLOCK_M)), columns(round_up(n, COLUMNS)) {
        int64_t at = 0;
        const auto take = [&](int64_t bytes) {
            const int64_t from = at;
            at += round_up(bytes, ALIGN);
            return from;
        };
        a = take(moduli * rows * pitch), b = take((int64_t)moduli * n * pitch), c = take(moduli * rows * columns);
        exponents_a = take((int64_t)m * sizeof(int)), exponents_b = take((int64_t)n * sizeof(int));
        squares_a = take((chunks_of(k) + 1) * (int64_t)m * sizeof(double)),
        squares_b = take((chunks_of(k) + 1) * (int64_t)n * sizeof(double));
        total = at;
    }
};

/* The rounded operands are off by at most 2 sqrt(k) / LARGEST |a| |b|, and |A||B| is at least (k - deficits) |a| |b| / (SMALL k), |a| and |b| the norms of a row
 * and a column: the error is at most u k |A||B|, the bound of the type's own sums, if k - deficits is at least this (docs/accuracy.md). */
template <class T> double least_large(int k) {
    using S = Scheme<T>;
    const double by_bound = 2.001 * S::SMALL * std::sqrt((double)k) * std::ldexp(1., S::UNIT_BITS) / CONSTANTS<T>.largest;
    return std::ceil(std::max(by_bound, S::SHARE / 16. * k));
}

template <class T> [[maybe_unused]] cudaError_t launch_product(const Problem &p, int sms, cudaStream_t stream) {
    enum { MODULI = Scheme<T>::MODULI };
    const double least = least_large<T>(p.k);
    if (least > p.k) return cudaMemsetAsync(p.flags + 2, 1, 1, stream);
    const Parts parts(MODULI, p.m, p.n, p.k);
    char *const work = (char *)p.partials;
    int8_t *const a = (int8_t *)(work + parts.a), *const b = (int8_t *)(work + parts.b);
    int *const exponents_a = (int *)(work + parts.exponents_a), *const exponents_b = (int *)(work + parts.exponents_b);
    const Residues c = {(uint8_t *)(work + parts.c), parts.columns, parts.rows * parts.columns};
    const Verdict verdict = {p.flags, (unsigned)(p.k - (int)least)};
    const auto operand = [&](const void *data, int64_t ld, int rows, int8_t *to, int64_t plane, int *exponents, int side, int64_t squares) {
        double *const sums = (double *)(work + squares);
        return Operand<T>{(const T *)data,
                          ld,
                          rows,
                          p.k,
                          to,
                          parts.pitch,
                          plane,
                          exponents,
                          verdict.deficits + side,
                          sums,
                          (unsigned long long *)(sums + (int64_t)chunks_of(p.k) * rows)};
    };
    const Operand<T> left = operand(p.a, p.lda, p.m, a, parts.rows * parts.pitch, exponents_a, 0, parts.squares_a),
                     right = operand(p.b, p.ldb, p.n, b, p.n * parts.pitch, exponents_b, 1, parts.squares_b);
    cudaError_t error = make_residues(left, p.trans_a != 0, stream);
    if (error == cudaSuccess) error = make_residues(right, !p.trans_b, stream);
#if defined(PYSIM_HOPPER) || defined(PYSIM_EMULATED)
    if (error == cudaSuccess) error = multiply(p, MODULI, a, b, parts.pitch, (int)parts.rows, c, verdict, sms, stream);
#endif
    return error == cudaSuccess ? reconstruct<T>(p, c, exponents_a, exponents_b, verdict, stream) : error;
}

#ifdef PYSIM_HOPPER
cudaError_t attributes(const Problem &, pysim_cuda_attributes *out) {
    return hopper::attributes_of<Tiles>(hopper::wgmma_kernel<Tiles, Stacked>, out);
}
#elif defined(PYSIM_EMULATED)
cudaError_t attributes(const Problem &, pysim_cuda_attributes *) { return cudaErrorNotSupported; }
#endif
}
}

Rows<GemmRow> gemm_residues::all() {
    return table_of<GemmRow>(rows::lines, [](auto line, auto add) {
        constexpr rows::GemmColumns c = rows::lines[line];
        using T = std::conditional_t<c.dtype == PYSIM_F64, double, float>;
        static_assert(c.block.m * c.cluster.m == residues::BLOCK_M && c.residues == residues::Scheme<T>::MODULI,
                      "rows of a modulus are whole tiles");
#if defined(PYSIM_HOPPER) || defined(PYSIM_EMULATED)
        GemmRow row = row_of(c, residues::launch_product<T>, residues::attributes);
#else
        GemmRow row = row_of(c, nullptr, nullptr);
#endif
        row.residues = c.residues;
        row.scratch = [](int m, int n, int k) { return residues::Parts(residues::Scheme<T>::MODULI, m, n, k).total; };
        add(row);
    });
}
}
