/* SPDX-License-Identifier: Apache-2.0
 * Instructions that C++ has no word for, as functions: PTX on a device (PTX ISA 8.5, by the names of the instructions), C++ where the
 * kernels are emulated on the CPU. What only Hopper has is in core/hopper.cuh. */
#ifndef PYSIM_CUDA_PTX_CUH
#define PYSIM_CUDA_PTX_CUH
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#ifdef PYSIM_EMULATED
#include <algorithm>
#include <cmath>
#endif

#include "core/launch.h"

namespace pysim {

/* cp.async: fills BYTES (4, 8, 16; 16 bypass L1) of shared memory with `bytes` (even) bytes of memory, then zeros. Below 8.0: a synchronous load and
 * store. */
template <int BYTES> __device__ inline void copy_async(void *to, const void *from, int bytes) {
#ifdef PYSIM_EMULATED
    emulated::copy_async(to, from, BYTES, bytes);
#else
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    if constexpr (CODE_CAPABILITY < 80) {
        struct alignas(BYTES) Words {
            unsigned short word[BYTES / 2];
        } words = {};
        if (bytes == BYTES) words = *(const Words *)from;
        else
#pragma unroll
            for (int i = 0; i < BYTES / 2; i++)
                if (2 * i < bytes) words.word[i] = ((const unsigned short *)from)[i];
        *(Words *)to = words;
    } else if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes) : "memory");
    else asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(at), "l"(from), "r"(bytes), "n"(BYTES) : "memory");
#endif
}
/* Closes a group of the copies since the last commit. */
__device__ inline void commit_async() {
#ifdef PYSIM_EMULATED
    emulated::commit_async();
#else
    if constexpr (CODE_CAPABILITY >= 80) asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
/* Waits until at most the last LEFT groups of this thread are pending. */
template <int LEFT> __device__ inline void wait_async() {
#ifdef PYSIM_EMULATED
    emulated::wait_async(LEFT);
#else
    if constexpr (CODE_CAPABILITY >= 80) asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}

/* Loads BYTES from shared memory in elements of UNIT (2, 4, 8) bytes; stores in words. volatile keeps ptxas from merging neighbouring accesses. */
template <int BYTES, int UNIT> __device__ inline void load_volatile(void *to, const void *shared) {
#ifdef PYSIM_EMULATED
    memcpy(to, shared, BYTES);
#else
    const unsigned at = (unsigned)__cvta_generic_to_shared(shared);
#pragma unroll
    for (int i = 0; i < BYTES / UNIT; i++)
        if constexpr (UNIT == 8) asm volatile("ld.volatile.shared.f64 %0, [%1];" : "=d"(((double *)to)[i]) : "r"(at + 8 * i));
        else if constexpr (UNIT == 4) asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(((unsigned *)to)[i]) : "r"(at + 4 * i));
        else asm volatile("ld.volatile.shared.u16 %0, [%1];" : "=h"(((unsigned short *)to)[i]) : "r"(at + 2 * i));
#endif
}
template <int BYTES> __device__ inline void store_volatile(void *shared, const unsigned *words) {
#ifdef PYSIM_EMULATED
    memcpy(shared, words, BYTES);
#else
    const unsigned at = (unsigned)__cvta_generic_to_shared(shared);
#pragma unroll
    for (int i = 0; i < BYTES / 4; i++) asm volatile("st.volatile.shared.u32 [%0], %1;" ::"r"(at + 4 * i), "r"(words[i]) : "memory");
#endif
}

/* Address in shared memory; emulated: the low bits of the address. */
__device__ inline uint32_t shared_address(const void *p) {
#ifdef PYSIM_EMULATED
    return (uint32_t)(uintptr_t)p;
#else
    return (uint32_t)__cvta_generic_to_shared(p);
#endif
}

/* ldmatrix.x4: lanes 8 i to 8 i + 7 point to the 8 rows (16 bytes each) of matrix i of four. Lane T receives word T mod 4 of row T / 4 of each matrix;
 * transposed (16-bit elements): the elements of rows 2 (T mod 4) and 2 (T mod 4) + 1 in column T / 4. */
template <bool TRANSPOSED> __device__ inline void load_matrices(unsigned (&r)[4], const void *row) {
#ifdef PYSIM_EMULATED
    if ((uintptr_t)row % 16) emulated::fault("a row for ldmatrix at %p, which is not aligned to 16 bytes", row);
    emulated::exchange(0xffffffffu, row, [&](auto row_of) {
        const int lane = emulated::lane();
        for (int i = 0; i < 4; i++)
            if (TRANSPOSED)
                for (int half = 0; half < 2; half++)
                    memcpy((char *)&r[i] + 2 * half, (const char *)row_of(8 * i + lane % 4 * 2 + half) + lane / 4 * 2, 2);
            else memcpy(&r[i], (const char *)row_of(8 * i + lane / 4) + lane % 4 * 4, 4);
    });
#else
    const unsigned at = (unsigned)__cvta_generic_to_shared(row);
    if constexpr (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at));
#endif
}

/* stmatrix.x4, the reverse of load_matrices: lane T stores r[i] where load_matrices would read it from (PTX ISA 7.8; sm_90). */
template <bool TRANSPOSED> __device__ inline void store_matrices(void *row, const unsigned (&r)[4]) {
#ifdef PYSIM_EMULATED
    if ((uintptr_t)row % 16) emulated::fault("a row for stmatrix at %p, which is not aligned to 16 bytes", row);
    emulated::exchange(0xffffffffu, row, [&](auto row_of) {
        const int lane = emulated::lane();
        for (int i = 0; i < 4; i++)
            if (TRANSPOSED)
                for (int half = 0; half < 2; half++)
                    memcpy((char *)row_of(8 * i + lane % 4 * 2 + half) + lane / 4 * 2, (const char *)&r[i] + 2 * half, 2);
            else memcpy((char *)row_of(8 * i + lane / 4) + lane % 4 * 4, &r[i], 4);
    });
#else
    const unsigned to = shared_address(row);
    if constexpr (CODE_CAPABILITY < 90) return; /* kernels that need it have no body there */
    else if constexpr (TRANSPOSED)
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(r[0]), "r"(r[1]), "r"(r[2]),
                     "r"(r[3])
                     : "memory");
    else
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(r[0]), "r"(r[1]), "r"(r[2]),
                     "r"(r[3])
                     : "memory");
#endif
}

/* Named barrier `barrier` of the block, for `threads` threads; arrive_threads() does not wait for the others. */
__device__ inline void sync_threads(int barrier, int threads) {
#ifdef PYSIM_EMULATED
    emulated::wait_block(barrier, threads);
#else
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
#endif
}
__device__ inline void arrive_threads(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/* Prefetches the 128-byte line of an element into L2. */
__device__ inline void fetch_line(const void *at) {
#ifdef PYSIM_EMULATED
    (void)at;
#else
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
#endif
}

/* Predicated loads (zero unless `here`) and stores. From plain C++ the compiler makes branches, and splits vector stores. */
#ifdef PYSIM_EMULATED
template <int BYTES> struct Access {
    using Word = std::conditional_t<BYTES == 16, uint4,
                                    std::conditional_t<BYTES == 8, uint2, std::conditional_t<BYTES == 4, unsigned, unsigned short>>>;
    static void store(void *to, const Word &v, int here) {
        if (here && (uintptr_t)to % BYTES) emulated::fault("a store of %d bytes to %p, which is not aligned to it", BYTES, to);
        if (here) memcpy(to, &v, BYTES);
    }
    static Word load(const void *from, int here) {
        Word v = {};
        if (here && (uintptr_t)from % BYTES) emulated::fault("a load of %d bytes from %p, which is not aligned to it", BYTES, from);
        if (here) memcpy(&v, from, BYTES);
        return v;
    }
};
#else
#define PYSIM_IF(ACCESS, CONDITION) "{\n.reg .pred here;\nsetp.ne.b32 here, " CONDITION ", 0;\n@here " ACCESS ";\n}"
template <int BYTES> struct Access;
template <> struct Access<16> {
    static __device__ void store(void *to, const uint4 &v, int here) {
        asm volatile(PYSIM_IF("st.global.v4.b32 [%0], {%1, %2, %3, %4}", "%5")::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(here)
                     : "memory");
    }
    static __device__ uint4 load(const void *from, int here) {
        uint4 v = {0, 0, 0, 0};
        asm volatile(PYSIM_IF("ld.global.v4.b32 {%0, %1, %2, %3}, [%4]", "%5")
                     : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
                     : "l"(from), "r"(here)
                     : "memory");
        return v;
    }
};
template <> struct Access<8> {
    static __device__ void store(void *to, const uint2 &v, int here) {
        asm volatile(PYSIM_IF("st.global.v2.b32 [%0], {%1, %2}", "%3")::"l"(to), "r"(v.x), "r"(v.y), "r"(here) : "memory");
    }
    static __device__ uint2 load(const void *from, int here) {
        uint2 v = {0, 0};
        asm volatile(PYSIM_IF("ld.global.v2.b32 {%0, %1}, [%2]", "%3") : "+r"(v.x), "+r"(v.y) : "l"(from), "r"(here) : "memory");
        return v;
    }
};
template <> struct Access<4> {
    static __device__ void store(void *to, unsigned v, int here) {
        asm volatile(PYSIM_IF("st.global.b32 [%0], %1", "%2")::"l"(to), "r"(v), "r"(here) : "memory");
    }
    static __device__ unsigned load(const void *from, int here) {
        unsigned v = 0;
        asm volatile(PYSIM_IF("ld.global.b32 %0, [%1]", "%2") : "+r"(v) : "l"(from), "r"(here) : "memory");
        return v;
    }
};
template <> struct Access<2> {
    static __device__ void store(void *to, unsigned short v, int here) {
        asm volatile(PYSIM_IF("st.global.b16 [%0], %1", "%2")::"l"(to), "h"(v), "r"(here) : "memory");
    }
    static __device__ unsigned short load(const void *from, int here) {
        unsigned short v = 0;
        asm volatile(PYSIM_IF("ld.global.b16 %0, [%1]", "%2") : "+h"(v) : "l"(from), "r"(here) : "memory");
        return v;
    }
};
#undef PYSIM_IF
#endif

/* f32 to tf32, to nearest, ties away from zero. */
__device__ inline unsigned round_tf32(unsigned x) {
#ifdef PYSIM_EMULATED
    return (x & 0x7f800000u) == 0x7f800000u ? x : (x + 0x1000u) & ~0x1fffu;
#else
    unsigned y = 0;
    if constexpr (CODE_CAPABILITY >= 80) asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(__uint_as_float(x)));
    return y;
#endif
}

#ifdef PYSIM_EMULATED
namespace emulated {
/* The one or two products of a word of each operand; returns their number. */
inline int products(double (&to)[2], unsigned a, unsigned b, __half) {
    __half2 x, y;
    memcpy(&x, &a, 4), memcpy(&y, &b, 4);
    return to[0] = (double)(float)x.x * (float)y.x, to[1] = (double)(float)x.y * (float)y.y, 2;
}
inline int products(double (&to)[2], unsigned a, unsigned b, float) {
    return to[0] = (double)__uint_as_float(a & ~0x1fffu) * __uint_as_float(b & ~0x1fffu), 1;
}
inline int products(double (&to)[2], unsigned a, unsigned b, __nv_bfloat16) {
    const unsigned high = 0xffff0000u;
    return to[0] = (double)__uint_as_float(a << 16) * __uint_as_float(b << 16),
           to[1] = (double)__uint_as_float(a & high) * __uint_as_float(b & high), 2;
}

/* Addition as tensor cores do it: terms are truncated below the last bit of the largest term, and then the sum is (Fasi et al., "Numerical behavior of
 * NVIDIA tensor cores", 2021). */
struct Terms {
    double term[9];
    int count = 0;
    void add(double x) { term[count++] = x; }
    float sum() const {
        double largest = 0, all = 0;
        for (int i = 0; i < count; i++) all += term[i], largest = std::max(largest, std::fabs(term[i]));
        if (!std::isfinite(all) || largest == 0) return (float)all;
        const uint64_t exponent = exponent_of(largest);
        const double unit = power_of(exponent - 24), inverse = power_of(2 * 1023 + 24 - exponent);
        all = 0;
        for (int i = 0; i < count; i++) all += std::trunc(term[i] * inverse);
        const float nearest = (float)(all * unit);
        return std::isfinite(nearest) && std::fabs((double)nearest) > std::fabs(all * unit) ? std::nextafter(nearest, 0.f) : nearest;
    }

private: /* of products of f32 and smaller, which are normal numbers of f64; a call of libm would take most of the time */
    static uint64_t exponent_of(double x) {
        uint64_t bits;
        return memcpy(&bits, &x, 8), bits >> 52 & 0x7ff;
    }
    static double power_of(uint64_t exponent) {
        const uint64_t bits = exponent << 52;
        double x;
        return memcpy(&x, &bits, 8), x;
    }
};

/* mma.m16n8k<16, 16, 8, 32>: a word holds 1, 2 or 4 of k. With g = lane / 4 and t = lane mod 4, word i of A is row g + 8 (i mod 2), words t + 4 (i / 2)
 * of k; word i of B is column g, word t + 4 i of k; accumulator i is row g + 8 (i / 2), column 2 t + i mod 2. Four words of k are added at once. */
template <class In, class Acc> inline void mma(Acc (&c)[4], const unsigned (&a)[4], const unsigned *b) {
    struct {
        unsigned a[4], b[2];
    } gift = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
    exchange(0xffffffffu, gift, [&](auto given) {
        const int g = lane() / 4, t = lane() % 4;
        decltype(gift) lefts[4], rights[2][4];
        for (int word = 0; word < 4; word++) {
            lefts[word] = given(g * 4 + word);
            for (int i = 0; i < 2; i++) rights[i][word] = given((2 * t + i) * 4 + word);
        }
        for (int half = 0; half < 2; half++)
            for (int i = 0; i < 4; i++) {
                Terms terms;
                if constexpr (sizeof(In) > 1) terms.add(c[i]);
                for (int word = 0; word < 4; word++) {
                    const unsigned left = lefts[word].a[i / 2 + half * 2], right = rights[i % 2][word].b[half];
                    if constexpr (sizeof(In) == 1) c[i] = (int)((unsigned)c[i] + (unsigned)__dp4a((int)left, (int)right, 0)); /* wraps */
                    else {
                        double some[2];
                        for (int n = products(some, left, right, In()); n-- > 0;) terms.add(some[n]);
                    }
                }
                if constexpr (sizeof(In) > 1) c[i] = terms.sum();
            }
    });
}
}
#define PYSIM_MMA(In, Acc, letter, instruction) \
    __device__ inline void mma(Acc(&c)[4], const unsigned (&a)[4], const unsigned *b, In) { emulated::mma<In>(c, a, b); }
#else
#define PYSIM_MMA(In, Acc, letter, instruction)                                                         \
    __device__ inline void mma(Acc(&c)[4], const unsigned (&a)[4], const unsigned *b, In) {             \
        if constexpr (CODE_CAPABILITY >= 80)                                                            \
            asm volatile(instruction " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                         : "+" letter(c[0]), "+" letter(c[1]), "+" letter(c[2]), "+" letter(c[3])       \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));           \
    }
#endif
/* c += a b: 16 x 8 accumulators of a warp; the type of the last argument selects the operands' type (float: tf32). */
PYSIM_MMA(__half, float, "f", "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")
PYSIM_MMA(__nv_bfloat16, float, "f", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32")
PYSIM_MMA(float, float, "f", "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32")
PYSIM_MMA(signed char, int, "r", "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32")
#undef PYSIM_MMA
}
#endif
