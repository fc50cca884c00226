/* SPDX-License-Identifier: Apache-2.0
 * The pass behind the s8 products: residues to C. */
#ifndef PYSIM_CUDA_RESIDUES_RESULTS_CUH
#define PYSIM_CUDA_RESIDUES_RESULTS_CUH
#include "core/epilogue.cuh"
#include "gemm/residues/operands.cuh"

namespace pysim::residues {

/* 1 + r / 256 as f64, r byte `at` of `packed`: its bits without arithmetic in f64. `one`: the upper bits of 1. */
__device__ inline double one_and(unsigned one, unsigned packed, int at) {
#ifdef PYSIM_EMULATED
    return (void)one, 1 + (packed >> 8 * at & 0xff) / 256.;
#else
    return __hiloint2double((0xff000 & (at < 2 ? packed << (12 - 8 * at) : packed >> (8 * at - 12))) | one, 0);
#endif
}

/* The four X of words of residues: exact but for one rounding. `c` is an argument of the kernel because instructions read it from constant memory; literals
 * of f64 take two moves each. */
template <class T>
__device__ inline void numbers_of(const Constants<T> &c, const unsigned (&packed)[Scheme<T>::MODULI], double (&number)[4]) {
    enum { WORDS = Scheme<T>::WORDS };
    constexpr double UNIT = 0x1p40, ROUND = 0x1.8p52; /* plus and minus ROUND: the nearest whole number */
    double words[4][WORDS];                           /* exact: whole numbers below 2^53 */
#pragma unroll
    for (int i = 0; i < Scheme<T>::MODULI; i++)
#pragma unroll
        for (int at = 0; at < 4; at++) {
            const double r = one_and(c.one, packed[i], at);
#pragma unroll
            for (int w = 0; w < WORDS; w++) words[at][w] = fma(r, c.weight[i][w], i ? words[at][w] : c.before[w]);
        }
#pragma unroll
    for (int at = 0; at < 4; at++) {
        double (&x)[WORDS] = words[at];
        const double q = fma(fma(x[WORDS - 2], 1 / UNIT, x[WORDS - 1]), c.over_product, ROUND) - ROUND;
#pragma unroll
        for (int w = 0; w < WORDS; w++) x[w] = fma(-q, c.product[w], x[w]);
        if constexpr (WORDS == 2) number[at] = fma(x[1], UNIT, x[0]);
        else { /* `sum` and `rest` are 2^40 times the highest word and the middle one */
            const double sum = fma(x[WORDS - 1], UNIT, x[1]), rest = fma(x[WORDS - 1], UNIT, -sum) + x[1];
            number[at] = fma(sum, UNIT, fma(rest, UNIT, x[0]));
        }
    }
}

/* C from residues: a thread reconstructs the four columns of a word, `words` of which are a row. Blocks of 256 threads take 1.02 of the time,
 * 1.05 if L1 also keeps what is read once (H200, 8192x8192x1024). */
enum { RESULT_THREADS = 128 };
template <class T> __global__ void __launch_bounds__(RESULT_THREADS)
    reconstruct_kernel(const Problem p, const Residues from, const int *row_exponents, const int *column_exponents, const Verdict verdict,
                       const __grid_constant__ Constants<T> constants, int words) {
    const bool refused = refuses(verdict);
    if (refused || blockIdx.x == 0) {
        if (threadIdx.x == 0 && blockIdx.x == 0) verdict.flags[2] = refused;
        if (refused) return;
    }
    const int64_t first = (int64_t)blockIdx.x * RESULT_THREADS;
    const unsigned ahead = (unsigned)(first % words) + threadIdx.x; /* of the first word of the first row */
    const int row = (int)(first / words + ahead / (unsigned)words), word = (int)(ahead % (unsigned)words);
    /* of 16 words of 64 columns, word 4 t + j has columns 16 j + 2 t, 16 j + 2 t + 1, and those 8 further */
    const int column = word / 16 * 64 + word % 4 * 16 + word % 16 / 4 * 2;
    if (row >= p.m || column >= p.n) return;
    unsigned packed[Scheme<T>::MODULI];
#pragma unroll
    for (int i = 0; i < Scheme<T>::MODULI; i++)
        packed[i] = __ldcs((const unsigned *)(from.data + i * from.plane + row * from.pitch + word * 4));
    const int of_row = row_exponents[row];
    double number[4];
    numbers_of<T>(constants, packed, number);
    const Epilogue<T, T> epilogue(p);
#pragma unroll
    for (int pair = 0; pair < 2; pair++) {
        T value[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int at = column + pair * 8 + i;
            value[i] = (T)(number[pair * 2 + i] * power_of_two(at < p.n ? -of_row - column_exponents[at] : 0));
        }
        epilogue.store(row, column + pair * 8, value);
    }
}

template <class T>
cudaError_t reconstruct(const Problem &p, const Residues &from, const int *rows, const int *columns, const Verdict &verdict,
                        cudaStream_t stream) {
    const int words = (p.n + 63) / 64 * 16;
    const int64_t blocks = ((int64_t)p.m * words + RESULT_THREADS - 1) / RESULT_THREADS;
    return launch(reconstruct_kernel<T>, dim3((unsigned)blocks), RESULT_THREADS, 0, stream, p, from, rows, columns, verdict, CONSTANTS<T>,
                  words);
}
}
#endif
