/* SPDX-License-Identifier: Apache-2.0
 * The passes before the s8 products: operands to residues. */
#ifndef PYSIM_CUDA_RESIDUES_OPERANDS_CUH
#define PYSIM_CUDA_RESIDUES_OPERANDS_CUH
#include <algorithm>

#include "core/launch.h"
#include "core/limits.h"
#include "gemm/residues/scheme.h"

namespace pysim::residues {

enum { THREADS = limit::RESIDUES_THREADS, CHUNK = limit::RESIDUES_CHUNK, NOT_FINITE = 1 << 30 };
enum { RUN = 8 }; /* of held rows: elements of a thread at a time */
inline int chunks_of(int k) { return (k + CHUNK - 1) / CHUNK; }

/* 2^exponent, for normal numbers of f64. */
__device__ inline double power_of_two(int exponent) {
#ifdef PYSIM_EMULATED
    return ldexp(1., exponent);
#else
    return __hiloint2double((1023 + exponent) << 20, 0);
#endif
}
__device__ inline int exponent_of(double x) { /* floor(log2 x) */
#ifdef PYSIM_EMULATED
    return ilogb(x);
#else
    return (__double2hiint(x) >> 20) - 1023;
#endif
}

/* An operand: element (row, k) at data[row ld + k], or MAJOR data[k ld + row]. Its residues: s8, K-major, `plane` bytes per modulus. */
template <class T> struct Operand {
    const T *data;
    int64_t ld;
    int rows, k;
    int8_t *to;
    int64_t pitch, plane;
    int *exponents; /* of each row: it is multiplied by 2^exponent */
    unsigned *deficit;
    /* MAJOR: sums of squares of each chunk of k, one row of them per chunk; of each row, chunks that are converted (high half) and elements counted */
    double *squares;
    unsigned long long *counted;
};

/* A scaled element as a whole number from 0 on: its low and high bytes. */
__device__ inline void lift(double x, unsigned &low, unsigned &high) {
    const uint64_t shifted = (uint64_t)(__double2ll_rn(x) + ((int64_t)1 << Scheme<double>::LIFT));
    low = (unsigned)shifted, high = (unsigned)(shifted >> 32);
}
__device__ inline void lift(float x, unsigned &low, unsigned &) {
#ifdef PYSIM_EMULATED
    const int rounded = (int)lrintf(x);
#else
    const int rounded = __float2int_rn(x);
#endif
    low = (unsigned)(rounded + (1 << Scheme<float>::LIFT));
}

/* Writes the residues of COUNT neighbouring elements of a row. */
template <class T, int COUNT> __device__ inline void put_residues(const T (&x)[COUNT], T scale, int8_t *to, int64_t plane) {
    unsigned low[COUNT], high[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) lift(x[i] * scale, low[i], high[i]);
    each_modulus<T>([&](auto of) {
        constexpr int I = decltype(of)::value;
        constexpr Constants<T> all = CONSTANTS<T>;
        constexpr unsigned n = (unsigned)MODULUS[I], first = all.start[I];
        constexpr float reciprocal = all.reciprocal[I], bias = all.bias[I];
        constexpr unsigned near = all.powers[I][0];
        [[maybe_unused]] constexpr unsigned far = all.powers[I][1];
        unsigned word[COUNT / 4];
#pragma unroll
        for (int w = 0; w < COUNT / 4; w++) {
            unsigned r[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                unsigned sum = __dp4a(low[w * 4 + i], near, first);
                if constexpr (Scheme<T>::LIFT >= 32) sum = __dp4a(high[w * 4 + i], far, sum);
                r[i] = sum - __float_as_uint(fmaf(__uint_as_float(sum), reciprocal, bias)) * n; /* the residue in the low byte */
            }
            word[w] = __byte_perm(__byte_perm(r[0], r[1], 0x0040), __byte_perm(r[2], r[3], 0x0040), 0x5410);
        }
        memcpy(__builtin_assume_aligned(to + I * plane, COUNT), word, COUNT);
    });
}

/* The sum of a value over the threads of a row, `ROWS` rows side by side in a block; all add in the same order. `shared`: ROWS values a warp. */
template <int ROWS, class T> __device__ inline T sum_of_row(T value, T *shared) {
    for (int bits = 16; bits >= ROWS; bits /= 2) value += __shfl_xor_sync(0xffffffffu, value, bits);
    const int lane = threadIdx.x % 32;
    if (lane < ROWS) shared[threadIdx.x / 32 * ROWS + lane] = value;
    __syncthreads();
    value = 0;
    for (int warp = 0; warp < (int)blockDim.x / 32; warp++) value += shared[warp * ROWS + lane % ROWS];
    return value;
}

/* How a row is scaled and judged, from the sum of its squares. */
template <class T> struct Scaling {
    bool good, vanishes;
    int exponent;
    T scale, least;
    __device__ Scaling(double sum, int k) {
        /* outside, squares or scaled numbers may overflow, or lose what is small; NaN is outside. Rows of zeros are exact, but squares may vanish. */
        good = sum >= power_of_two(Scheme<T>::MIN_SQUARES) && sum <= power_of_two(Scheme<T>::MAX_SQUARES), vanishes = sum == 0;
        exponent = good ? exponent_of(CONSTANTS<T>.largest / sqrt(sum)) : 0;
        scale = good ? (T)power_of_two(exponent) : T(0), least = (T)(sum / ((double)Scheme<T>::SMALL * k));
    }
    /* Elements of a run that are small, or do not vanish; `in`: of the row. */
    template <int COUNT> __device__ int count(const T (&x)[COUNT], int in) const {
        int found = 0;
#pragma unroll
        for (int i = 0; i < COUNT; i++) found += vanishes ? x[i] != 0 : i < in && x[i] * x[i] < least;
        return found;
    }
    __device__ unsigned deficit(int count) const { return good || (vanishes && !count) ? (unsigned)count : (unsigned)NOT_FINITE; }
};

/* MAJOR: the squares of a chunk of k of 32 rows. */
template <class T> __global__ void __launch_bounds__(THREADS) squares_kernel(const Operand<T> o) {
    __shared__ double sums[THREADS];
    const int row = (int)blockIdx.x * 32 + (int)threadIdx.x % 32, begin = (int)blockIdx.y * CHUNK, end = min(begin + CHUNK, o.k);
    T part = 0;
    if (row < o.rows)
#pragma unroll 16
        for (int k = begin + (int)threadIdx.x / 32; k < end; k += THREADS / 32) {
            const T x = o.data[k * o.ld + row];
            part += x * x;
        }
    const double sum = sum_of_row<32>((double)part, sums);
    if (threadIdx.x >= 32 || row >= o.rows) return;
    o.squares[(int64_t)blockIdx.y * o.rows + row] = sum;
    if (blockIdx.y == 0) o.counted[row] = 0;
}

/* MAJOR: rows of a block, 64 bytes of an element of k. */
template <class T> constexpr int ROWS_ACROSS = 64 / (int)sizeof(T);
/* Blocks of an SM, so that the compiler takes 80 and 64 registers for f64 in place of 64 and 40: conversions of 67 million elements take 490
 * us instead of 569 (MAJOR, with 8 rows in place of 16) and 590 instead of 649 (1024 rows) on an H200. In f32 it gains nothing. */
template <class T, bool MAJOR> constexpr int BLOCKS = sizeof(T) == 8 ? (MAJOR ? 3 : 4) : 0;

/* A block converts one row, which it reads for its norm and again for its residues; MAJOR: a chunk of k of some rows. */
template <class T, bool MAJOR> __global__ void __launch_bounds__(THREADS, BLOCKS<T, MAJOR>) residues_kernel(const Operand<T> o) {
    enum { ROWS = MAJOR ? ROWS_ACROSS<T> : 1, PARTS = THREADS / ROWS, RUN = MAJOR ? 16 : (int)limit::RESIDUES_RUN, WARPS = THREADS / 32 };
    __shared__ double sums[WARPS * ROWS];
    __shared__ int counts[WARPS * ROWS];
    const int thread = (int)threadIdx.x, own = thread % ROWS, part = thread / ROWS, chunks = (int)gridDim.y;
    const int row = (int)blockIdx.x * ROWS + own, k = row < o.rows ? o.k : 0;
    const T *const from = o.data + (MAJOR ? (int64_t)row : row * o.ld);
    const int64_t step = MAJOR ? o.ld : 1;
    double sum = 0;
    if (!MAJOR) {
        T squares = 0;
#pragma unroll 8
        for (int i = part; i < k; i += PARTS) {
            const T x = from[i];
            squares += x * x;
        }
        sum = (double)squares;
    } else if (row < o.rows)
        for (int i = part; i < chunks; i += PARTS) sum += o.squares[(int64_t)i * o.rows + row];
    sum = sum_of_row<ROWS>(sum, sums);
    const Scaling<T> scaling(sum, o.k);
    int count = 0; /* of elements that are small, or do not vanish */
    const int begin = MAJOR ? (int)blockIdx.y * CHUNK : 0, end = MAJOR ? min(begin + CHUNK, (int)o.pitch) : (int)o.pitch;
    if (scaling.good || scaling.vanishes)
        for (int first = begin + part * RUN; first < end; first += PARTS * RUN) {
            T x[RUN];
#pragma unroll
            for (int i = 0; i < RUN; i++) x[i] = first + i < k ? from[(first + i) * step] : T(0);
            count += scaling.count(x, k - first);
            if (row < o.rows) put_residues(x, scaling.scale, o.to + row * o.pitch + first, o.plane);
        }
    count = sum_of_row<ROWS>(count, counts);
    if (part != 0 || row >= o.rows) return;
    o.exponents[row] = scaling.exponent;
    if (MAJOR) { /* the last chunk of a row has the count of all */
        const unsigned long long before = atomicAdd(o.counted + row, (1ull << 32) + (unsigned)count);
        if ((int)(before >> 32) != chunks - 1) return;
        count += (int)(unsigned)before;
    }
    const unsigned deficit = scaling.deficit(count);
    if (deficit) atomicMax(o.deficit, deficit);
}

/* K-major rows of f64 that fit shared memory: as above, but read from memory once. */
__global__ void __launch_bounds__(THREADS) held_rows_kernel(const Operand<double> o) {
    __shared__ double sums[THREADS / 32];
    __shared__ int counts[THREADS / 32];
    PYSIM_DYNAMIC_SHARED(memory);
    double *const held = (double *)memory;
    const int row = (int)blockIdx.x, k = o.k, step = (int)blockDim.x;
    const double *const from = o.data + row * o.ld;
    double squares = 0;
#pragma unroll 8
    for (int i = (int)threadIdx.x; i < k; i += step) {
        const double x = from[i];
        held[i] = x, squares += x * x;
    }
    for (int i = k + (int)threadIdx.x; i < o.pitch; i += step) held[i] = 0;
    const Scaling<double> scaling(sum_of_row<1>(squares, sums), k);
    int count = 0;
    if (scaling.good || scaling.vanishes)
        for (int first = (int)threadIdx.x * RUN; first < o.pitch; first += step * RUN) {
            double x[RUN];
            memcpy(x, __builtin_assume_aligned(held + first, 16), sizeof x);
            count += scaling.count(x, k - first);
            put_residues(x, scaling.scale, o.to + row * o.pitch + first, o.plane);
        }
    count = sum_of_row<1>(count, counts);
    if (threadIdx.x != 0) return;
    o.exponents[row] = scaling.exponent;
    const unsigned deficit = scaling.deficit(count);
    if (deficit) atomicMax(o.deficit, deficit);
}

inline cudaError_t hold_rows(const Operand<double> &o, cudaStream_t stream) {
    const cudaError_t error =
        cudaFuncSetAttribute((const void *)held_rows_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, limit::RESIDUES_HELD);
    const int threads = (int)std::min<int64_t>(THREADS, (o.pitch / RUN + 31) / 32 * 32);
    return error == cudaSuccess ? launch(held_rows_kernel, dim3((unsigned)o.rows), threads, (size_t)(o.pitch * sizeof(double)), stream, o)
                                : error;
}

template <class T> cudaError_t make_residues(const Operand<T> &o, bool major, cudaStream_t stream) {
    if constexpr (std::is_same_v<T, double>)
        if (!major && o.pitch * (int64_t)sizeof(T) <= limit::RESIDUES_HELD) return hold_rows(o, stream);
    if (!major) return launch(residues_kernel<T, false>, dim3((unsigned)o.rows), THREADS, 0, stream, o);
    const unsigned chunks = (unsigned)chunks_of(o.k);
    const cudaError_t error = launch(squares_kernel<T>, dim3((unsigned)(o.rows + 31) / 32, chunks), THREADS, 0, stream, o);
    const dim3 blocks((unsigned)(o.rows + ROWS_ACROSS<T> - 1) / ROWS_ACROSS<T>, chunks);
    return error == cudaSuccess ? launch(residues_kernel<T, true>, blocks, THREADS, 0, stream, o) : error;
}
}
#endif
