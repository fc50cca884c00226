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

/* What B becomes, which may be kept: whether it is within the bound, residues, exponents, and room for its conversion. */
struct Right {
    int64_t pitch, plane, residues, exponents, squares, total;
    Right(int moduli, int n, int k)
        : pitch(round_up(k, LINE)), plane(n * pitch), residues(ALIGN), exponents(residues + round_up(moduli * plane, ALIGN)),
          squares(exponents + round_up((int64_t)n * sizeof(int), ALIGN)),
          total(squares + round_up((chunks_of(k) + 1) * (int64_t)n * sizeof(double), ALIGN)) {}
};

/* The parts of the workspace, without B's. A's rows are whole tiles of each modulus. */
struct Left {
    int64_t pitch, rows, columns, residues, results, exponents, squares, total;
    Left(int moduli, int m, int n, int k)
        : pitch(round_up(k, LINE)), rows(round_up(m, BLOCK_M)), columns(round_up(n, COLUMNS)), residues(0),
          results(round_up(moduli * rows * pitch, ALIGN)), exponents(results + round_up(moduli * rows * columns, ALIGN)),
          squares(exponents + round_up((int64_t)m * sizeof(int), ALIGN)),
          total(squares + round_up((chunks_of(k) + 1) * (int64_t)m * sizeof(double), ALIGN)) {}
};

/* The rounded operands are off by at most 2 sqrt(k) / LARGEST |a| |b|, and |A||B| is at least (k - deficits) |a| |b| / (SMALL k), |a| and |b| the norms of a row
 * and a column: the error is at most u k |A||B|, the bound of the type's own sums, if k - deficits is at least this (docs/accuracy.md). */
template <class T> double least_large(int k) {
    using S = Scheme<T>;
    const double by_bound = 2.001 * S::SMALL * std::sqrt((double)k) * std::ldexp(1., S::UNIT_BITS) / CONSTANTS<T>.largest;
    return std::ceil(std::max(by_bound, S::SHARE / 16. * k));
}

/* Residues of an operand whose parts lie at `at`. */
template <class T, class Parts>
cudaError_t convert(const Parts &parts, char *at, const void *data, int64_t ld, int rows, int k, int64_t plane, unsigned *deficit, bool major,
                    cudaStream_t stream) {
    double *const squares = (double *)(at + parts.squares);
    const Operand<T> operand = {(const T *)data, ld, rows, k, (int8_t *)(at + parts.residues), parts.pitch, plane,
                                (int *)(at + parts.exponents), deficit, squares, (unsigned long long *)(squares + (int64_t)chunks_of(k) * rows)};
    return make_residues(operand, major, stream);
}

template <class T> [[maybe_unused]] cudaError_t launch_product(const Problem &p, int sms, cudaStream_t stream) {
    enum { MODULI = Scheme<T>::MODULI };
    const Left left(MODULI, p.m, p.n, p.k);
    const Right right(MODULI, p.n, p.k);
    char *const work = (char *)p.partials, *const b = p.prepared ? (char *)p.prepared : work + left.total;
    unsigned *const of_b = p.prepared ? (unsigned *)b : p.flags + 1;
    const auto convert_b = [&] { return convert<T>(right, b, p.b, p.ldb, p.n, p.k, right.plane, of_b, !p.trans_b, stream); };
    if (!p.c) {
        const cudaError_t error = cudaMemsetAsync(of_b, 0, sizeof(unsigned), stream);
        return error == cudaSuccess ? convert_b() : error;
    }
    const double least = least_large<T>(p.k);
    if (least > p.k) return cudaMemsetAsync(p.flags + 2, 1, 1, stream);
    const Residues c = {(uint8_t *)(work + left.results), left.columns, left.rows * left.columns};
    const Verdict verdict = {p.flags, of_b, (unsigned)(p.k - (int)least)};
    cudaError_t error = convert<T>(left, work, p.a, p.lda, p.m, p.k, left.rows * left.pitch, p.flags, p.trans_a != 0, stream);
    if (error == cudaSuccess && !p.prepared) error = convert_b();
#if defined(PYSIM_HOPPER) || defined(PYSIM_EMULATED)
    if (error == cudaSuccess)
        error = multiply(p, MODULI, (int8_t *)(work + left.residues), (int8_t *)(b + right.residues), left.pitch, (int)left.rows, c, verdict,
                         sms, stream);
#endif
    return error == cudaSuccess
               ? reconstruct<T>(p, c, (int *)(work + left.exponents), (int *)(b + right.exponents), verdict, stream)
               : error;
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
        row.scratch = [](int m, int n, int k, bool of_b) {
            enum { MODULI = residues::Scheme<T>::MODULI };
            return of_b ? residues::Right(MODULI, n, k).total : residues::Left(MODULI, m, n, k).total;
        };
        add(row);
    });
}
}
