// SPDX-License-Identifier: Apache-2.0
/* A prototype: products of f32 by s8 products of residues modulo 7 numbers. Compiled and timed by f32_residues.py. The s8 products, their moduli, weights and
 * scaling by norms are those of native/cuda/gemm/f64i8, with -DPYSIM_F64I8_MODULI=7: P = 2^55.7, rows of whole numbers whose norm is up to 2^27.3. No epilogue, no
 * pitches, and nothing checks the bound: operands that are not finite or of very different size are wrong. */
#include "abi/arguments.h"
#include "gemm/f64i8/passes.cuh"
#include "gemm/f64i8/product.cuh"
using namespace pysim;
using namespace pysim::f64i8;
namespace {
struct Op {
    const float *data;
    int64_t ld;
    int rows, k;
    int8_t *to;
    int64_t pitch, plane;
    int *exponents;
    double *squares;
};
/* residues of whole numbers of 30 bits */
template <int COUNT> __device__ inline void put(const float (&x)[COUNT], float scale, int8_t *to, int64_t plane) {
    unsigned s[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) s[i] = (unsigned)(__float2int_rn(x[i] * scale) + (1 << 29));
    each_modulus([&](auto of) {
        constexpr int I = decltype(of)::value;
        constexpr Constants all = CONSTANTS;
        constexpr unsigned n = (unsigned)all.modulus[I], base = ((1u << 23) / (256 * n) + 1) * 256 * n;
        constexpr unsigned first = 0x4b000000u - (1u << 23) + base + (n - (1u << 29) % n) % n;
        constexpr float reciprocal = all.reciprocal[I], bias = all.bias[I];
        constexpr unsigned near = all.power[I][0] | all.power[I][1] << 8 | all.power[I][2] << 16 | all.power[I][3] << 24;
        unsigned word[COUNT / 4];
#pragma unroll
        for (int w = 0; w < COUNT / 4; w++) {
            unsigned r[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const unsigned sum = __dp4a(s[w * 4 + i], near, first);
                r[i] = sum - __float_as_uint(fmaf(__uint_as_float(sum), reciprocal, bias)) * n;
            }
            word[w] = __byte_perm(__byte_perm(r[0], r[1], 0x0040), __byte_perm(r[2], r[3], 0x0040), 0x5410);
        }
        memcpy(__builtin_assume_aligned(to + I * plane, COUNT), word, COUNT);
    });
}
__global__ void __launch_bounds__(THREADS) squares32(const Op o) {
    __shared__ double sums[THREADS];
    const int row = (int)blockIdx.x * 32 + (int)threadIdx.x % 32, begin = (int)blockIdx.y * CHUNK, end = min(begin + CHUNK, o.k);
    float part = 0;
    if (row < o.rows)
#pragma unroll 16
        for (int k = begin + (int)threadIdx.x / 32; k < end; k += THREADS / 32) {
            const float x = o.data[k * o.ld + row];
            part += x * x;
        }
    double sum = sum_of_row<32>((double)part, sums);
    if (threadIdx.x >= 32 || row >= o.rows) return;
    o.squares[(int64_t)blockIdx.y * o.rows + row] = sum;
}
template <bool MAJOR> __global__ void __launch_bounds__(THREADS) residues32(const Op o) {
    enum { ROWS = MAJOR ? 16 : 1, PARTS = THREADS / ROWS, RUN = MAJOR ? 16 : 4, WARPS = THREADS / 32 };
    __shared__ double sums[WARPS * ROWS];
    const int thread = (int)threadIdx.x, own = thread % ROWS, part = thread / ROWS, chunks = (int)gridDim.y;
    const int row = (int)blockIdx.x * ROWS + own, k = row < o.rows ? o.k : 0;
    const float *const from = o.data + (MAJOR ? (int64_t)row : row * o.ld);
    const int64_t step = MAJOR ? o.ld : 1;
    double sum = 0;
    if (!MAJOR) {
        float s = 0;
#pragma unroll 8
        for (int i = part; i < k; i += PARTS) {
            const float x = from[i];
            s += x * x;
        }
        sum = s;
    } else if (row < o.rows)
        for (int i = part; i < chunks; i += PARTS) sum += o.squares[(int64_t)i * o.rows + row];
    sum = sum_of_row<ROWS>(sum, sums);
    const int exponent = exponent_of(CONSTANTS.largest / sqrt(sum * 1.001));
    const float scale = (float)power_of_two(exponent);
    const int begin = MAJOR ? (int)blockIdx.y * CHUNK : 0, end = MAJOR ? min(begin + CHUNK, (int)o.pitch) : (int)o.pitch;
    for (int first = begin + part * RUN; first < end; first += PARTS * RUN) {
        float x[RUN];
#pragma unroll
        for (int i = 0; i < RUN; i++) x[i] = first + i < k ? from[(first + i) * step] : 0;
        if (row < o.rows) put(x, scale, o.to + row * o.pitch + first, o.plane);
    }
    if (part == 0 && row < o.rows) o.exponents[row] = exponent;
}
/* X < 2^54.7: low word of 40 bits and the rest */
__global__ void __launch_bounds__(THREADS) results32(const Residues from, float *out, int n, const int *re, const int *ce) {
    const int row = (int)blockIdx.x, word = (int)(blockIdx.y * THREADS + threadIdx.x);
    const int column = word / 16 * 64 + word % 4 * 16 + word % 16 / 4 * 2;
    if (column >= n) return;
    unsigned packed[MODULI];
    each_modulus([&](auto of) {
        constexpr int I = decltype(of)::value;
        packed[I] = *(const unsigned *)(from.data + I * from.plane + row * from.pitch + word * 4);
    });
    constexpr Constants all = CONSTANTS;
    constexpr double p0 = all.product[0], p1 = all.product[1], over = 1099511627776. / (all.product[1] * 1099511627776. + all.product[0]);
    const double rs = power_of_two(-re[row]);
#pragma unroll
    for (int pair = 0; pair < 2; pair++) {
        float v[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            double low = 0, high = 0;
            each_modulus([&](auto of) {
                constexpr int I = decltype(of)::value;
                constexpr double w0 = all.weight[I][0], w1 = all.weight[I][1];
                const double r = whole(packed[I] >> 8 * (pair * 2 + i) & 0xff);
                low = fma(r, w0, low), high = fma(r, w1, high);
            });
            const double q = rint(fma(low, 0x1p-40, high) * over);
            low = fma(-q, p0, low), high = fma(-q, p1, high);
            const int at = column + pair * 8 + i;
            v[i] = (float)(fma(high, 0x1p40, low) * (at < n ? power_of_two(-ce[at]) : 0) * rs);
        }
        if (column + pair * 8 + 1 < n) *(float2 *)(out + (int64_t)row * n + column + pair * 8) = {v[0], v[1]};
    }
}
}
#define API extern "C" __attribute__((visibility("default"))) int
API conv32(const float *x, long ld, int rows, int k, int8_t *to, long pitch, long plane, int *exponents, double *squares, int major,
           void *st) {
    const Op o = {x, ld, rows, k, to, pitch, plane, exponents, squares};
    cudaStream_t s = (cudaStream_t)st;
    const unsigned chunks = (unsigned)chunks_of(k);
    if (!major) residues32<false><<<rows, THREADS, 0, s>>>(o);
    else {
        squares32<<<dim3((rows + 31) / 32, chunks), THREADS, 0, s>>>(o);
        residues32<true><<<dim3((rows + 15) / 16, chunks), THREADS, 0, s>>>(o);
    }
    return (int)cudaGetLastError();
}
API prod32(const int8_t *a, const int8_t *b, uint8_t *c, int m, int n, int k, long pitch, unsigned *verdict, void *stream) {
    Problem p = {};
    p.m = m, p.n = n, p.k = k, p.kind = PYSIM_DATA_PARALLEL, p.splits = 1, p.group = 2;
    const long rows = (m + 255) / 256 * 256, columns = (n + 63) / 64 * 64;
    Residues to = {c, columns, rows * columns};
    Verdict v = {verdict, (unsigned)k};
    return (int)multiply(p, a, b, pitch, (int)rows, to, v, 132, (cudaStream_t)stream);
}
API results(const uint8_t *c, float *out, int m, int n, const int *ea, const int *eb, void *st) {
    const long rows = (m + 255) / 256 * 256, columns = (n + 63) / 64 * 64;
    Residues from = {(uint8_t *)c, columns, rows * columns};
    const int words = (n + 63) / 64 * 16;
    results32<<<dim3((unsigned)m, (unsigned)(words + THREADS - 1) / THREADS), THREADS, 0, (cudaStream_t)st>>>(from, out, n, ea, eb);
    return (int)cudaGetLastError();
}
