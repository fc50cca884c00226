/* SPDX-License-Identifier: Apache-2.0
 * What the ways from wgmma's accumulators to C share (epilogue.cuh): what follows sums, where C lies under a tile, and where results change threads. */
#ifndef PYSIM_CUDA_WGMMA_PASSAGE_CUH
#define PYSIM_CUDA_WGMMA_PASSAGE_CUH
#include "core/epilogue.cuh"
#include "core/ptx.cuh"

namespace pysim {
namespace hopper {

/* A condition, or type, that the compiler does not know to be that of the strip before: it would make a program for each combination of them. */
__device__ inline int anew(int now) {
    asm volatile("" : "+r"(now));
    return now;
}

/* Which way results run. EITHER: told at run time, and anew each time, so that there is one program of both, but of FULL kernels, which would spill. */
enum Runs { BY_ROWS, BY_COLUMNS, EITHER };
template <Runs RUNS> struct As {
    static constexpr Runs runs = RUNS;
    bool told = true;
    __device__ bool rows() const {
        if constexpr (RUNS == EITHER) return anew(told);
        else return RUNS == BY_ROWS;
    }
};

enum { STRIP = 8 }; /* registers */

/* A strip in shared memory: lines of `length` neighbours, by so many threads. */
struct Strip {
    bool rows;
    static constexpr int ROWS_PITCH = 40, COLUMNS_PITCH = 68; /* neither side meets in a bank */
    static constexpr int ROWS_WORDS = 8 * ROWS_PITCH, COLUMNS_WORDS = 16 * COLUMNS_PITCH;
    __device__ int threads() const { return rows ? 32 : 128; }
    __device__ int length() const { return rows ? 32 : 64; }
    __device__ int pitch() const { return rows ? ROWS_PITCH : COLUMNS_PITCH; }

    /* This thread's registers of a strip. */
    template <class Acc> __device__ void put(Acc *to, const Acc (&v)[STRIP]) const {
        const int lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;
        if (rows)
#pragma unroll
            for (int i = 0; i < STRIP; i += 2) *(Pack<Acc, 2> *)(to + row * ROWS_PITCH + column + 4 * i) = {{v[i], v[i + 1]}};
        else
#pragma unroll
            for (int i = 0; i < STRIP; i++) to[(column + i / 4 * 8 + i % 2) * COLUMNS_PITCH + threadIdx.x % 128 / 32 * 16 + row + i % 4 / 2 * 8] = v[i];
    }
    /* What lies where put() would put columns; rows are read as they lie. */
    template <class Acc> static __device__ void get(Acc (&v)[STRIP], const Acc *from) {
        const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4, column = lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < STRIP; i++) v[i] = from[(column + i / 4 * 8 + i % 2) * COLUMNS_PITCH + row + i % 4 / 2 * 8];
    }
    __device__ void sync() const {
        if (rows) __syncwarp();
        else sync_threads(3 + threadIdx.x / 128, 128); /* after the barriers of two sets (kernel.cuh) */
    }
};

/* What follows the sums of a problem, of any type of results. */
template <class T> struct Behind {
    void *c;
    const void *bias;
    const T *scale;
    T alpha, beta, low, high;
    int activation, c_dtype;
    Function function;
    __device__ explicit Behind(const Problem &p)
        : c(p.c), bias(p.bias), scale((const T *)p.scale), alpha((T)p.alpha), beta((T)p.beta), low((T)p.low), high((T)p.high), activation(p.activation),
          c_dtype(p.c_dtype), function(function_of(p.activation)) {}
};

/* The result types of a dtype: f32 (s32) always, those of two bytes as abi/gemm.cu allows them; and that which most have. */
template <class T> struct Type { using type = T; };
template <int DTYPE, class Acc, class Body> __device__ inline void with_result(int c_dtype, Body body) {
    constexpr bool HALF = DTYPE == PYSIM_F16 || DTYPE == PYSIM_F8, BFLOAT = DTYPE == PYSIM_BF16 || DTYPE == PYSIM_F8;
    if constexpr (HALF)
        if (c_dtype == PYSIM_F16) return body(Type<__half>());
    if constexpr (BFLOAT)
        if (c_dtype == PYSIM_BF16) return body(Type<__nv_bfloat16>());
    body(Type<Acc>());
}
template <int DTYPE, class Acc> struct Usual { using type = Acc; static constexpr int DTYPE_OF_C = DTYPE == PYSIM_S8 ? PYSIM_S32 : PYSIM_F32; };
template <class Acc> struct Usual<PYSIM_F16, Acc> { using type = __half; static constexpr int DTYPE_OF_C = PYSIM_F16; };
template <class Acc> struct Usual<PYSIM_BF16, Acc> { using type = __nv_bfloat16; static constexpr int DTYPE_OF_C = PYSIM_BF16; };
template <class Acc> struct Usual<PYSIM_F8, Acc> : Usual<PYSIM_F16, Acc> {};

/* Whether sums leave few registers to results of 4 bytes. */
template <class S> constexpr bool FULL = sizeof(typename Usual<S::DTYPE, typename S::Acc>::type) == 4 && S::PARTS * S::SUMS >= 96;

/* C under a tile: element `along` of line 0 lies place(along, here) elements after the first, if `here`, that of line l l pitch further, and there
 * are so many lines, of so many elements. Bias and scale are of lines, or (`by_line` false) of elements. `vectors`: all lie in whole vectors of four;
 * `direct`: in those of 16 bytes. */
template <class Place, class Pitch> struct Target {
    Place place;
    Pitch pitch;
    int lines, length;
    bool by_line, vectors, direct;
};
template <class Place, class Pitch> __device__ Target(Place, Pitch, int, int, bool, bool, bool) -> Target<Place, Pitch>;

/* Where a warp's, or a warpgroup's results change threads: the first of two places, TURN bytes apart, behind stages and barriers. What is put at one
 * was asked for by a barrier, and what was read there before by the one before it; so pieces take turns from the first place on, an even number
 * of them, or one more barrier follows. */
template <class S> struct Passage {
    static constexpr int ROWS_TURN = S::PASSAGE_BYTES / 8, COLUMNS_TURN = S::PASSAGE_BYTES / 2;
    static_assert(4 * Strip::ROWS_WORDS <= ROWS_TURN && 4 * Strip::COLUMNS_WORDS <= COLUMNS_TURN, "a strip");
    static __device__ int turn(bool rows) { return rows ? ROWS_TURN : COLUMNS_TURN; }
    static __device__ char *own(bool rows) {
        PYSIM_DYNAMIC_SHARED(memory);
        const uint32_t first = shared_address(memory), data = (first + 1023) / 1024 * 1024;
        return memory + (data - first) + S::PASSAGES + threadIdx.x / (rows ? 32 : 128) * (2 * turn(rows));
    }
};

/* body(constant) for `number`, where it is none that the compiler knows: loops over registers, which have no addresses, are rolled by it. */
template <int COUNT, class Body> __device__ __forceinline__ void with_number(int number, Body body) {
    static_assert(COUNT <= 16, "the cases below");
#define PYSIM_CASE(N)                                                             \
    case N:                                                                       \
        if constexpr (N < COUNT) body(std::integral_constant<int, N>());          \
        break;
    switch (number) {
        PYSIM_CASE(0) PYSIM_CASE(1) PYSIM_CASE(2) PYSIM_CASE(3) PYSIM_CASE(4) PYSIM_CASE(5) PYSIM_CASE(6) PYSIM_CASE(7)
        PYSIM_CASE(8) PYSIM_CASE(9) PYSIM_CASE(10) PYSIM_CASE(11) PYSIM_CASE(12) PYSIM_CASE(13) PYSIM_CASE(14) PYSIM_CASE(15)
    }
#undef PYSIM_CASE
}
}
}
#endif
