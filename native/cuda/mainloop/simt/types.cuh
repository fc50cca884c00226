/* SPDX-License-Identifier: Apache-2.0
 * The types of the SIMT kernels: the unit that one multiply takes along k, the conversion of a 16-byte chunk of device memory into units, and the
 * multiply.
 *
 *   dtype  unit             one multiply                    chunk, k contiguous     chunk, rows or columns contiguous
 *   f32    1 element        FFMA  f32 += f32 f32            1 row  x 4 k            1 k x 4
 *   f64    1 element        DFMA  f64 += f64 f64            1 row  x 2 k            1 k x 2
 *   f16    1 element        HFMA2 2 f16 += f16 (2 f16)      2 rows x 4 k, paired    1 k x 8
 *   s8     4 elements of k  dp4a  s32 += 4 s8 . 4 s8        1 row  x 16 k           4 k x 4, bytes transposed
 *
 * f16 accumulators stay f16, as in the HGEMM of CUTLASS's blog: the fast rate, and an error of up to k 2^-11 |A||B|. */
#ifndef PYSIM_CUDA_SIMT_TYPES_CUH
#define PYSIM_CUDA_SIMT_TYPES_CUH
#include <cstring>

#include "core/epilogue.cuh"
#include "core/ptx.cuh"

namespace pysim::simt {

/* Members of a type:
 *   In, Unit, Acc (PACK neighbouring columns), Value (an accumulator in the epilogue)
 *   DEPTH     elements of k in a unit
 *   K_PIECES, OUT_PIECES  lines that a chunk spans, 16/PIECES bytes of each, if k (K) or outputs (OUT) are contiguous
 *   K_UNITS   units along k of a chunk with k contiguous; each is stored separately
 *   units()   converts a chunk into the words that are stored; multiply() is one multiply */
struct OneUnit {
    enum { DEPTH = 1, PACK = 1, K_PIECES = 1, OUT_PIECES = 1 };
    template <bool K_INNER> static __device__ void units(unsigned (&)[4]) {}
};

struct F32 : OneUnit {
    using In = float;
    using Unit = float;
    using Acc = float;
    using Value = float;
    enum { K_UNITS = 4, DTYPE = PYSIM_F32 };
    static __device__ void multiply(Acc &acc, Unit a, Acc b) { acc = fmaf(a, b, acc); }
    static __device__ Value value(Acc acc, int) { return acc; }
    static __device__ Acc acc_of(const Value *value) { return *value; }
};

struct F64 : OneUnit {
    using In = double;
    using Unit = double;
    using Acc = double;
    using Value = double;
    enum { K_UNITS = 2, DTYPE = PYSIM_F64 };
    static __device__ void multiply(Acc &acc, Unit a, Acc b) { acc = fma(a, b, acc); }
    static __device__ Value value(Acc acc, int) { return acc; }
    static __device__ Acc acc_of(const Value *value) { return *value; }
};

struct F16 {
    using In = __half;
    using Unit = __half;
    using Acc = __half2;
    using Value = float;
    enum { DEPTH = 1, PACK = 2, K_PIECES = 2, OUT_PIECES = 1, K_UNITS = 4, DTYPE = PYSIM_F16 };
    template <bool K_INNER> static __device__ void units(unsigned (&w)[4]) {
        if (!K_INNER) return; /* rows r, r + 1 of 4 k each -> for each k, a pair of rows */
        const unsigned a = w[0], b = w[1], c = w[2], d = w[3];
        w[0] = __byte_perm(a, c, 0x5410), w[1] = __byte_perm(a, c, 0x7632);
        w[2] = __byte_perm(b, d, 0x5410), w[3] = __byte_perm(b, d, 0x7632);
    }
    static __device__ void multiply(Acc &acc, Unit a, Acc b) { acc = __hfma2(__half2half2(a), b, acc); }
    static __device__ Value value(Acc acc, int i) { return i ? __high2float(acc) : __low2float(acc); }
    static __device__ Acc acc_of(const Value *value) { return __floats2half2_rn(value[0], value[1]); }
};

struct S8 {
    using In = signed char;
    using Unit = int;
    using Acc = int;
    using Value = int;
    enum { DEPTH = 4, PACK = 1, K_PIECES = 1, OUT_PIECES = 4, K_UNITS = 4, DTYPE = PYSIM_S8 };
    template <bool K_INNER> static __device__ void units(unsigned (&w)[4]) {
        if (K_INNER) return; /* 4 k of 4 outputs each -> for each output, its 4 k: a transpose of 4 x 4 bytes */
        const unsigned a = __byte_perm(w[0], w[1], 0x5140), b = __byte_perm(w[2], w[3], 0x5140);
        const unsigned c = __byte_perm(w[0], w[1], 0x7362), d = __byte_perm(w[2], w[3], 0x7362);
        w[0] = __byte_perm(a, b, 0x5410), w[1] = __byte_perm(a, b, 0x7632);
        w[2] = __byte_perm(c, d, 0x5410), w[3] = __byte_perm(c, d, 0x7632);
    }
    static __device__ void multiply(Acc &acc, Unit a, Acc b) { acc = __dp4a(a, b, acc); }
    static __device__ Value value(Acc acc, int) { return acc; }
    static __device__ Acc acc_of(const Value *value) { return *value; }
};

/* Hides a value from the compiler, so that expressions of it are recomputed where they are used instead of held in registers. */
__device__ inline int hide(int thread) {
    asm volatile("" : "+r"(thread));
    return thread;
}

/* Loads or stores BYTES of shared memory as one vector, or unit by unit in kernels without vector accesses; volatile keeps ptxas from merging those. */
template <int BYTES, bool VECTOR, int UNIT> __device__ inline void from_shared(void *to, const void *from) {
    if constexpr (VECTOR) {
        *(typename Word<BYTES>::type *)to = *(const typename Word<BYTES>::type *)from;
    } else {
        load_volatile<BYTES, UNIT>(to, from);
    }
}
template <int BYTES, bool VECTOR> __device__ inline void to_shared(void *to, const unsigned *words) {
    if constexpr (VECTOR) {
        if constexpr (BYTES == 16) *(uint4 *)to = make_uint4(words[0], words[1], words[2], words[3]);
        else if constexpr (BYTES == 8) *(uint2 *)to = make_uint2(words[0], words[1]);
        else *(unsigned *)to = words[0];
    } else {
        store_volatile<BYTES>(to, words);
    }
}
}
#endif
