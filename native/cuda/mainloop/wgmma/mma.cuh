/* SPDX-License-Identifier: Apache-2.0
 * wgmma.mma_async: D[64][N] += A[64][k] B[k][N] for one warpgroup, A and B in shared memory, D in registers. PTX ISA 8.0, section
 * "Asynchronous Warpgroup Level Matrix Instructions".
 *
 * D: thread t of the warpgroup (warp w = t/32, lane l = t%32) holds d[4j + 2h + i] = D[16w + l/4 + 8h][8j + 2(l%4) + i].
 * Shared memory is swizzled in atoms of 8 rows x 128 bytes, as TMA's SWIZZLE_128B writes them:
 *   K-major   a row is one m (or n), 128 bytes of k; 8-row groups 1024 bytes apart
 *   MN-major  a row is one k, 64 two-byte elements of m (or n); 8-row groups 1024 bytes apart, the next 64 elements `stride` bytes on */
#ifndef PYSIM_CUDA_WGMMA_MMA_CUH
#define PYSIM_CUDA_WGMMA_MMA_CUH
#include <type_traits>

#include "core/hopper.cuh"
#include "mainloop/wgmma/shape.h"

namespace pysim::hopper {

/* Bits 0-13 address/16, 16-29 leading offset/16, 32-45 stride offset/16, 62-63 swizzle (1: 128 bytes). */
__device__ inline uint64_t matrix(uint32_t address, uint32_t stride) {
    return (uint64_t)((address & 0x3FFFF) >> 4) | (uint64_t)(stride >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* The same for K-major rows of ROW bytes with a swizzle of ROW bytes; atoms of 8 rows. */
template <int ROW> __device__ inline uint64_t matrix_of_rows(uint32_t address) {
    static_assert(ROW == 128 || ROW == 64, "a swizzle of TMA");
    return (uint64_t)((address & 0x3FFFF) >> 4) | (uint64_t)1 << 16 | (uint64_t)(8 * ROW >> 4) << 32 | (uint64_t)(ROW == 128 ? 1 : 2) << 62;
}

#define PYSIM_D8(c, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3]), c(d[i + 4]), c(d[i + 5]), c(d[i + 6]), c(d[i + 7])
#define PYSIM_D32(c, i) PYSIM_D8(c, i), PYSIM_D8(c, i + 8), PYSIM_D8(c, i + 16), PYSIM_D8(c, i + 24)
#define PYSIM_D16(c, i) PYSIM_D8(c, i), PYSIM_D8(c, i + 8)
#define PYSIM_D24(c, i) PYSIM_D16(c, i), PYSIM_D8(c, i + 16)
#define PYSIM_D40(c, i) PYSIM_D32(c, i), PYSIM_D8(c, i + 32)
#define PYSIM_D48(c, i) PYSIM_D32(c, i), PYSIM_D16(c, i + 32)
#define PYSIM_D56(c, i) PYSIM_D48(c, i), PYSIM_D8(c, i + 48)
#define PYSIM_D64(c, i) PYSIM_D32(c, i), PYSIM_D32(c, i + 32)
#define PYSIM_D72(c, i) PYSIM_D64(c, i), PYSIM_D8(c, i + 64)
#define PYSIM_D80(c, i) PYSIM_D64(c, i), PYSIM_D16(c, i + 64)
#define PYSIM_D88(c, i) PYSIM_D80(c, i), PYSIM_D8(c, i + 80)
#define PYSIM_D96(c, i) PYSIM_D64(c, i), PYSIM_D32(c, i + 64)
#define PYSIM_D104(c, i) PYSIM_D96(c, i), PYSIM_D8(c, i + 96)
#define PYSIM_D112(c, i) PYSIM_D96(c, i), PYSIM_D16(c, i + 96)
#define PYSIM_D120(c, i) PYSIM_D112(c, i), PYSIM_D8(c, i + 112)
#define PYSIM_D128(c, i) PYSIM_D64(c, i), PYSIM_D64(c, i + 64)
#define PYSIM_N16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define PYSIM_N24 PYSIM_N16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define PYSIM_N32 PYSIM_N24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define PYSIM_N40 PYSIM_N32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define PYSIM_N48 PYSIM_N40 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define PYSIM_N56 PYSIM_N48 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define PYSIM_N64 PYSIM_N56 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define PYSIM_N72 PYSIM_N64 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define PYSIM_N80 PYSIM_N72 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define PYSIM_N88 PYSIM_N80 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define PYSIM_N96 PYSIM_N88 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define PYSIM_N104 PYSIM_N96 ",%96,%97,%98,%99,%100,%101,%102,%103"
#define PYSIM_N112 PYSIM_N104 ",%104,%105,%106,%107,%108,%109,%110,%111"
#define PYSIM_N120 PYSIM_N112 ",%112,%113,%114,%115,%116,%117,%118,%119"
#define PYSIM_N128 PYSIM_N120 ",%120,%121,%122,%123,%124,%125,%126,%127"
#define PYSIM_F(x) "+f"(x)
#define PYSIM_R(x) "+r"(x)

/* The product of 32 bytes of k. TA, TB: 1 = MN-major. Unless `kept`, D starts from zeros. */
template <int DTYPE> struct Product;

#define PYSIM_MMA(N, TYPES, REGISTERS, C, A, B, KEPT, TAIL, ...)                                                              \
    template <int TA, int TB> __device__ static inline void add(Acc(&d)[REGISTERS], uint64_t a, uint64_t b, int kept) {       \
        asm volatile("{\n.reg .pred kept;\nsetp.ne.b32 kept, " KEPT ", 0;\n"                                                  \
                     "wgmma.mma_async.sync.aligned.m64n" #N TYPES " {" PYSIM_N##REGISTERS "}, " A ", " B ", kept" TAIL ";\n}" \
                     : PYSIM_D##REGISTERS(C, 0)                                                                               \
                     : "l"(a), "l"(b), "r"(kept)__VA_ARGS__);                                                                 \
    }
/* operands are not negated; TAIL(layout of A, of B): numbers of the operands that give the layouts */
#define PYSIM_MMAS(SHAPE, C, TAIL, ...)                                                      \
    PYSIM_MMA(32, SHAPE, 16, C, "%16", "%17", "%18", TAIL("%19", "%20"), __VA_ARGS__)        \
    PYSIM_MMA(48, SHAPE, 24, C, "%24", "%25", "%26", TAIL("%27", "%28"), __VA_ARGS__)        \
    PYSIM_MMA(64, SHAPE, 32, C, "%32", "%33", "%34", TAIL("%35", "%36"), __VA_ARGS__)        \
    PYSIM_MMA(80, SHAPE, 40, C, "%40", "%41", "%42", TAIL("%43", "%44"), __VA_ARGS__)        \
    PYSIM_MMA(96, SHAPE, 48, C, "%48", "%49", "%50", TAIL("%51", "%52"), __VA_ARGS__)        \
    PYSIM_MMA(112, SHAPE, 56, C, "%56", "%57", "%58", TAIL("%59", "%60"), __VA_ARGS__)       \
    PYSIM_MMA(128, SHAPE, 64, C, "%64", "%65", "%66", TAIL("%67", "%68"), __VA_ARGS__)       \
    PYSIM_MMA(144, SHAPE, 72, C, "%72", "%73", "%74", TAIL("%75", "%76"), __VA_ARGS__)       \
    PYSIM_MMA(160, SHAPE, 80, C, "%80", "%81", "%82", TAIL("%83", "%84"), __VA_ARGS__)       \
    PYSIM_MMA(176, SHAPE, 88, C, "%88", "%89", "%90", TAIL("%91", "%92"), __VA_ARGS__)       \
    PYSIM_MMA(192, SHAPE, 96, C, "%96", "%97", "%98", TAIL("%99", "%100"), __VA_ARGS__)      \
    PYSIM_MMA(208, SHAPE, 104, C, "%104", "%105", "%106", TAIL("%107", "%108"), __VA_ARGS__) \
    PYSIM_MMA(224, SHAPE, 112, C, "%112", "%113", "%114", TAIL("%115", "%116"), __VA_ARGS__) \
    PYSIM_MMA(240, SHAPE, 120, C, "%120", "%121", "%122", TAIL("%123", "%124"), __VA_ARGS__) \
    PYSIM_MMA(256, SHAPE, 128, C, "%128", "%129", "%130", TAIL("%131", "%132"), __VA_ARGS__)
#define PYSIM_IN_ANY_LAYOUT(A, B) ", 1, 1, " A ", " B
#define PYSIM_AS_FLOATS(A, B) ", 1, 1"
#define PYSIM_AS_INTEGERS(A, B) ""

template <> struct Product<PYSIM_F16> {
    using Acc = float;
    PYSIM_MMAS("k16.f32.f16.f16", PYSIM_F, PYSIM_IN_ANY_LAYOUT, , "n"(TA), "n"(TB))
};
template <> struct Product<PYSIM_BF16> {
    using Acc = float;
    PYSIM_MMAS("k16.f32.bf16.bf16", PYSIM_F, PYSIM_IN_ANY_LAYOUT, , "n"(TA), "n"(TB))
};
template <> struct Product<PYSIM_TF32> {
    using Acc = float;
    PYSIM_MMAS("k8.f32.tf32.tf32", PYSIM_F, PYSIM_AS_FLOATS)
};
template <> struct Product<PYSIM_S8> {
    using Acc = int;
    PYSIM_MMAS("k32.s32.s8.s8", PYSIM_R, PYSIM_AS_INTEGERS)
};
template <> struct Product<PYSIM_F8> {
    using Acc = float;
    PYSIM_MMAS("k32.f32.e4m3.e4m3", PYSIM_F, PYSIM_AS_FLOATS)
};

/* A in registers: lane l of warp w holds rows r = 16 w + l / 4 and r + 8: a[0], a[1] at position l % 4 of k, a[2], a[3] at l % 4 + 4. Of two-byte types a
 * register holds two elements, at positions 2 (l % 4), + 1, and the same + 8. Unless `kept`, D starts from zeros. */
#define PYSIM_MMA_A(N, TYPES, REGISTERS, A, B, KEPT, TAIL)                                                                          \
    __device__ static inline void add(Acc(&d)[REGISTERS], const unsigned (&a)[4], uint64_t b, int kept) {                           \
        asm volatile("{\n.reg .pred kept;\nsetp.ne.b32 kept, " KEPT ", 0;\n"                                                        \
                     "wgmma.mma_async.sync.aligned.m64n" #N TYPES " {" PYSIM_N##REGISTERS "}, " A ", " B ", kept, 1, 1" TAIL ";\n}" \
                     : PYSIM_D##REGISTERS(PYSIM_F, 0)                                                                               \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(kept));                                              \
    }
template <> struct Product<PYSIM_TF32X3> {
    using Acc = float;
    PYSIM_MMA_A(32, "k8.f32.tf32.tf32", 16, "{%16, %17, %18, %19}", "%20", "%21", "")
    PYSIM_MMA_A(64, "k8.f32.tf32.tf32", 32, "{%32, %33, %34, %35}", "%36", "%37", "")
    PYSIM_MMA_A(96, "k8.f32.tf32.tf32", 48, "{%48, %49, %50, %51}", "%52", "%53", "")
    PYSIM_MMA_A(128, "k8.f32.tf32.tf32", 64, "{%64, %65, %66, %67}", "%68", "%69", "")
    PYSIM_MMA_A(192, "k8.f32.tf32.tf32", 96, "{%96, %97, %98, %99}", "%100", "%101", "")
    PYSIM_MMA_A(256, "k8.f32.tf32.tf32", 128, "{%128, %129, %130, %131}", "%132", "%133", "")
};
template <> struct Product<BF16X6> {
    using Acc = float;
    PYSIM_MMA_A(64, "k16.f32.bf16.bf16", 32, "{%32, %33, %34, %35}", "%36", "%37", ", 0")
    PYSIM_MMA_A(128, "k16.f32.bf16.bf16", 64, "{%64, %65, %66, %67}", "%68", "%69", ", 0")
};
#undef PYSIM_MMA_A
#undef PYSIM_IN_ANY_LAYOUT
#undef PYSIM_AS_FLOATS
#undef PYSIM_AS_INTEGERS
#undef PYSIM_MMAS
#undef PYSIM_MMA

template <int COUNT, class T, int ALL> __device__ __forceinline__ T (&first_of(T (&all)[ALL]))[COUNT] { return *(T(*)[COUNT]) & all; }

/* The matrix descriptor of an operand in a stage. Rows of an MN-major operand have 128 bytes of m (or n) for any ROW. */
template <class S, int MN_MAJOR> __device__ inline uint64_t matrix_of(uint32_t address) {
    if constexpr (MN_MAJOR || S::ROW == 128) return matrix(address, 8192);
    else return matrix_of_rows<S::ROW>(address);
}

/* Issues the products of one stage as one wgmma group. a(bytes), b(bytes): descriptors at an offset from the start of this warpgroup's rows. FIRST: the
 * accumulators start from zeros. N: columns. The swizzle depends on the address alone, so A may begin at any row (seen on an H200). */
template <class S, int TA, int TB, bool FIRST, int N, class OfA, class OfB>
__device__ __forceinline__ void multiply(typename S::Acc (&acc)[S::PARTS][S::ACCUMULATORS], OfA a, OfB b) {
    /* bytes to the next 32 bytes of k: along a K-major row, or 16 rows of an MN-major operand */
    constexpr int NEXT_A = TA ? 2048 : 32, NEXT_B = TB ? 2048 : 32;
    mma_fence();
#pragma unroll
    for (int tap = 0; tap < S::TAPS; tap++)
#pragma unroll
        for (int k = 0; k < S::ROW / 32; k++)
#pragma unroll
            for (int part = 0; part < S::PARTS; part++)
                Product<S::DTYPE>::template add<TA, TB>(first_of<N / 2>(acc[part]), a((part * 64 + tap) * S::ROW + k * NEXT_A),
                                                        b(tap * S::TAP_BYTES + k * NEXT_B), !FIRST || tap || k);
    mma_commit();
}

/* Calls use(N) for a tile of `columns` of N on, multiples of 16, of an MN-major B of 32. */
template <class S, int TB, int N = (S::NARROWEST + 31) / 32 * 32 - (TB || S::NARROWEST % 32 == 0 ? 0 : 16), class Use>
__device__ __forceinline__ void with_columns(int columns, Use use) {
    if constexpr (!S::NARROWS || N >= S::WARP_N) use(std::integral_constant<int, S::WARP_N>());
    else if (columns == N) use(std::integral_constant<int, N>());
    else with_columns<S, TB, N + (TB ? 32 : 16)>(columns, use);
}
}
#endif
