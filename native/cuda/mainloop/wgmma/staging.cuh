/* SPDX-License-Identifier: Apache-2.0
 * What the store paths of wgmma's epilogue share (epilogue.cuh): the epilogue's arguments, the addresses of C under a tile, and the staging buffers in
 * shared memory. */
#ifndef PYSIM_CUDA_WGMMA_STAGING_CUH
#define PYSIM_CUDA_WGMMA_STAGING_CUH
#include "core/divisor.h"
#include "core/epilogue.cuh"
#include "core/ptx.cuh"

namespace pysim::hopper {

/* Hides from the compiler that a condition is loop-invariant: it would make one copy of the loop per combination of conditions. */
__device__ inline int opaque(int now) {
    asm volatile("" : "+r"(now));
    return now;
}

/* Keeps a pointer in registers: the compiler would compute it again wherever it is used. */
template <class Pointer> __device__ inline Pointer kept(Pointer now) {
#ifndef PYSIM_EMULATED
    asm volatile("" : "+l"(now));
#endif
    return now;
}

/* Whether rows or columns of the tile are contiguous in C. EITHER: known at run time, re-read in each iteration, so that one instance serves both; but
 * not in kernels with FEW_REGISTERS, which would spill. */
enum ResultOrder { BY_ROWS, BY_COLUMNS, EITHER };
template <ResultOrder ORDER> struct Order {
    static constexpr ResultOrder runs = ORDER;
    bool value = true;
    __device__ bool by_rows() const {
        if constexpr (ORDER == EITHER) return opaque(value);
        else return ORDER == BY_ROWS;
    }
};

enum { STRIP = 8 }; /* accumulators of a thread */

/* The layout of a strip in shared memory: lines of `length` neighbouring results, shared by `threads` threads. */
struct Strip {
    bool rows;
    static constexpr int ROWS_PITCH = 40, COLUMNS_PITCH = 68; /* no bank conflicts when written or read */
    static constexpr int ROWS_WORDS = 8 * ROWS_PITCH, COLUMNS_WORDS = 16 * COLUMNS_PITCH;
    __device__ int threads() const { return rows ? 32 : 128; }
    __device__ int length() const { return rows ? 32 : 64; }
    __device__ int pitch() const { return rows ? ROWS_PITCH : COLUMNS_PITCH; }

    /* Writes this thread's accumulators of a strip. */
    template <class Acc> __device__ void put(Acc *to, const Acc (&v)[STRIP]) const {
        const int lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;
        if (rows)
#pragma unroll
            for (int i = 0; i < STRIP; i += 2) *(Pack<Acc, 2> *)(to + row * ROWS_PITCH + column + 4 * i) = {{v[i], v[i + 1]}};
        else
#pragma unroll
            for (int i = 0; i < STRIP; i++)
                to[(column + i / 4 * 8 + i % 2) * COLUMNS_PITCH + threadIdx.x % 128 / 32 * 16 + row + i % 4 / 2 * 8] = v[i];
    }
    /* Reads what put() wrote, by columns. */
    template <class Acc> static __device__ void get(Acc (&v)[STRIP], const Acc *from) {
        const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4, column = lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < STRIP; i++) v[i] = from[(column + i / 4 * 8 + i % 2) * COLUMNS_PITCH + row + i % 4 / 2 * 8];
    }
    __device__ void sync() const {
        if (rows) __syncwarp();
        else sync_threads(3 + threadIdx.x / 128, 128); /* barriers 1 and 2 belong to the sets (kernel.cuh) */
    }
};

/* The epilogue's arguments, for any type of C. */
template <class T> struct EpilogueTerms {
    void *c;
    const void *bias;
    const T *scale;
    T alpha, beta, low, high;
    int activation, c_dtype;
    Function function;
    __device__ explicit EpilogueTerms(const Problem &p)
        : c(p.c), bias(p.bias), scale((const T *)p.scale), alpha((T)p.alpha), beta((T)p.beta), low((T)p.low), high((T)p.high),
          activation(p.activation), c_dtype(p.c_dtype), function(function_of(p.activation)) {}
};

/* Multiplies a thread's values in two rows of two neighbouring columns by the columns' factors, if they exist. */
template <class T> __device__ __forceinline__ void scale_columns(T *x, const T *factors, bool here) {
    using Two = Pack<T, 2>;
    const auto word = Access<sizeof(Two)>::load(factors, here);
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] *= ((const Two *)&word)->value[i % 2];
}

/* Calls body(Type<T>) for C's type: f32 (s32), or a two-byte type that the dtype allows (abi/arguments.cu). DefaultResult: the usual type. */
template <class T> struct Type {
    using type = T;
};
template <int DTYPE, class Acc, class Body> __device__ inline void with_result(int c_dtype, Body body) {
    constexpr bool HALF = DTYPE == PYSIM_F16 || DTYPE == PYSIM_F8, BFLOAT = DTYPE == PYSIM_BF16 || DTYPE == PYSIM_F8;
    if constexpr (HALF)
        if (c_dtype == PYSIM_F16) return body(Type<__half>());
    if constexpr (BFLOAT)
        if (c_dtype == PYSIM_BF16) return body(Type<__nv_bfloat16>());
    body(Type<Acc>());
}
template <int DTYPE, class Acc> struct DefaultResult {
    using type = Acc;
    static constexpr int DTYPE_OF_C = DTYPE == PYSIM_S8 ? PYSIM_S32 : PYSIM_F32;
};
template <class Acc> struct DefaultResult<PYSIM_F16, Acc> {
    using type = __half;
    static constexpr int DTYPE_OF_C = PYSIM_F16;
};
template <class Acc> struct DefaultResult<PYSIM_BF16, Acc> {
    using type = __nv_bfloat16;
    static constexpr int DTYPE_OF_C = PYSIM_BF16;
};
template <class Acc> struct DefaultResult<PYSIM_F8, Acc> : DefaultResult<PYSIM_F16, Acc> {};

/* Whether accumulators leave few registers for results of 4 bytes. */
template <class S> constexpr bool FEW_REGISTERS =
    sizeof(typename DefaultResult<S::DTYPE, typename S::Acc>::type) == 4 && S::PARTS * S::ACCUMULATORS >= 96;

/* The pitch of lines of which the last `none` of every `per` consecutive ones are none of C. */
struct Gapped {
    int64_t pitch;
    Divisor per;
    int none;
    /* Where a line begins; false: it is none. */
    __device__ bool at(int line, int64_t &offset) const {
        int place;
        offset = (line - (int64_t)per.of(line, place) * none) * pitch;
        return place < (int)per.divisor - none;
    }
};

/* C under a tile, as `lines` lines of `length` elements: element `along` of line l is C[place(along, here) + offset(l)], and exists if `here` and has(l). Bias and
 * scale have one value per line (`by_line`) or per element. `vectors`: C is made of aligned vectors of four elements; `direct`: of 16 bytes. */
template <class Place, class Pitch> struct Target {
    Place place;
    Pitch pitch;
    int lines, length;
    bool by_line, vectors, direct;
    static constexpr bool GAPPED = std::is_same_v<Pitch, Gapped>;
    __device__ int64_t offset(int line) const {
        int64_t at;
        if constexpr (GAPPED) pitch.at(line, at);
        else at = (int64_t)line * pitch;
        return at;
    }
    __device__ bool has(int line) const {
        int64_t at;
        if constexpr (GAPPED) return line < lines && pitch.at(line, at);
        else return line < lines;
    }
};
template <class Place, class Pitch> __device__ Target(Place, Pitch, int, int, bool, bool, bool) -> Target<Place, Pitch>;

/* The two staging buffers of a warp (BY_ROWS) or warpgroup (BY_COLUMNS), behind stages and barriers: results change threads there. Pieces alternate between
 * them, so one barrier per piece is enough: it separates the writes of a piece from its reads, and the reads of the piece before from the next
 * writes. A tile has an even number of pieces, or one more barrier at its end. */
template <class S> struct Staging {
    static constexpr int ROWS_BUFFER = S::STAGING_BYTES / 8, COLUMNS_BUFFER = S::STAGING_BYTES / 2;
    static_assert(4 * Strip::ROWS_WORDS <= ROWS_BUFFER && 4 * Strip::COLUMNS_WORDS <= COLUMNS_BUFFER, "a strip");
    static __device__ int buffer_bytes(bool rows) { return rows ? ROWS_BUFFER : COLUMNS_BUFFER; }
    static __device__ char *own(bool rows) {
        PYSIM_DYNAMIC_SHARED(memory);
        const uint32_t first = shared_address(memory), data = (first + 1023) / 1024 * 1024;
        return memory + (data - first) + S::STAGING_OFFSET + threadIdx.x / (rows ? 32 : 128) * (2 * buffer_bytes(rows));
    }
};

/* Calls body(integral_constant) for a run-time `number`: lets a rolled loop index registers. */
template <int COUNT, class Body> __device__ __forceinline__ void with_number(int number, Body body) {
    static_assert(COUNT <= 16, "the cases below");
#define PYSIM_CASE(N)                                                    \
    case N:                                                              \
        if constexpr (N < COUNT) body(std::integral_constant<int, N>()); \
        break;
    switch (number) {
        /* clang-format off */
        PYSIM_CASE(0) PYSIM_CASE(1) PYSIM_CASE(2) PYSIM_CASE(3) PYSIM_CASE(4) PYSIM_CASE(5) PYSIM_CASE(6) PYSIM_CASE(7)
        PYSIM_CASE(8) PYSIM_CASE(9) PYSIM_CASE(10) PYSIM_CASE(11) PYSIM_CASE(12) PYSIM_CASE(13) PYSIM_CASE(14) PYSIM_CASE(15)
        /* clang-format on */
    }
#undef PYSIM_CASE
}
}
#endif
