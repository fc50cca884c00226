/* SPDX-License-Identifier: Apache-2.0
 * Probe loops in 256-bit and 512-bit vectors. They are compiled with the default flags, each function for its own target, and
 * chosen on the running CPU.
 *
 * Streams: eight independent accumulators, so that loads and not the chain of ORs are the limit.
 * Multiply-adds: acc = acc*1/2 + 1/2 stays finite for ever. A unit of latency L and throughput T is full from L*T chains on:
 * 4 cycles x 2 a cycle = 8 on every x86 core with AVX2 so far (Haswell: 5 x 2 = 10); 12 and 16 chains leave room and
 * fit the 16 and 32 registers. */
#include "abi/probe.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <stddef.h>
#include <string.h>

#include "pysim.h"
#include "abi/amx_permission.h"

#define AVX2 __attribute__((target("avx2,fma")))
#define AVX512 __attribute__((target("avx512f")))

/* An empty asm makes a value unknown to the compiler, which then can neither fold a chain nor merge equal ones nor drop them.
 * "x" is any of the first 16 vector registers, "v" any of the 32 that AVX-512 has. */
#define UNKNOWN(constraint, value) __asm__ volatile("" : constraint(value));

/* The accumulators are variables of their own, not an array: only then do they stay in registers at every optimisation level. */
#define EIGHT(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)
#define TWELVE(DO) EIGHT(DO) DO(8) DO(9) DO(10) DO(11)
#define SIXTEEN(DO) TWELVE(DO) DO(12) DO(13) DO(14) DO(15)

AVX2 static uint64_t read_avx2(const void *from, int64_t blocks) {
#define DECLARE(j) __m256i sum##j = _mm256_setzero_si256();
#define READ(j)                                                    \
    sum##j = _mm256_or_si256(sum##j, _mm256_load_si256(line + j)); \
    UNKNOWN("+x", sum##j)
#define JOIN(j) all = _mm256_or_si256(all, sum##j);
    const __m256i *line = from;
    __m256i all = _mm256_setzero_si256();
    uint64_t words[4];
    EIGHT(DECLARE)
    for (int64_t i = 0; i < 2 * blocks; i++, line += 8) { EIGHT(READ) }
    EIGHT(JOIN)
    memcpy(words, &all, sizeof words);
    return words[0] | words[1] | words[2] | words[3];
#undef DECLARE
#undef READ
#undef JOIN
}

AVX512 static uint64_t read_avx512(const void *from, int64_t blocks) {
#define DECLARE(j) __m512i sum##j = _mm512_setzero_si512();
#define READ(j)                                                         \
    sum##j = _mm512_or_si512(sum##j, _mm512_load_si512(line + 64 * j)); \
    UNKNOWN("+v", sum##j)
#define JOIN(j) all = _mm512_or_si512(all, sum##j);
    const char *line = from;
    __m512i all = _mm512_setzero_si512();
    EIGHT(DECLARE)
    for (int64_t i = 0; i < blocks; i++, line += PYSIM_PROBE_BLOCK) { EIGHT(READ) }
    EIGHT(JOIN)
    return (uint64_t)_mm512_reduce_or_epi64(all);
#undef DECLARE
#undef READ
#undef JOIN
}

AVX2 static void write_avx2(void *to, int64_t blocks, uint64_t value) {
#define WRITE(j) _mm256_store_si256(line + j, word);
    const __m256i word = _mm256_set1_epi64x((long long)value);
    __m256i *line = to;
    for (int64_t i = 0; i < 2 * blocks; i++, line += 8) { EIGHT(WRITE) }
#undef WRITE
}

AVX512 static void write_avx512(void *to, int64_t blocks, uint64_t value) {
#define WRITE(j) _mm512_store_si512(line + 64 * j, word);
    const __m512i word = _mm512_set1_epi64((long long)value);
    char *line = to;
    for (int64_t i = 0; i < blocks; i++, line += PYSIM_PROBE_BLOCK) { EIGHT(WRITE) }
#undef WRITE
}

/* So many chains (CHAINS of them, of `bytes` of T) of multiply-adds, which the compiler contracts. */
#define DECLARE(j)     \
    VEC acc##j = half; \
    UNKNOWN("+v", acc##j)
#define STEP(j) acc##j = acc##j * half + half;
#define KEEP(j) UNKNOWN("+v", acc##j)
#define DEFINE_FMA(name, TARGET, T, bytes, chains, CHAINS)    \
    TARGET static int64_t name(int64_t instructions) {        \
        typedef T VEC __attribute__((vector_size(bytes)));    \
        const int64_t rounds = instructions / chains + 1;     \
        VEC half = (VEC){0} + (T)0.5;                         \
        UNKNOWN("+v", half)                                   \
        CHAINS(DECLARE)                                       \
        for (int64_t i = 0; i < rounds; i++) { CHAINS(STEP) } \
        CHAINS(KEEP)                                          \
        return chains * rounds;                               \
    }
DEFINE_FMA(fma_avx2_f32, AVX2, float, 32, 12, TWELVE)
DEFINE_FMA(fma_avx2_f64, AVX2, double, 32, 12, TWELVE)
DEFINE_FMA(fma_avx512_f32, AVX512, float, 64, 16, SIXTEEN)
DEFINE_FMA(fma_avx512_f64, AVX512, double, 64, 16, SIXTEEN)

/* So many chains of products of groups, which add four products of bytes or two of halves to each lane; of zeros, as fast as any. */
#define STEP_GROUP(j)                     \
    acc##j = PRODUCT(acc##j, half, half); \
    UNKNOWN("+v", acc##j)
#define DECLARE_GROUP(j) SUMS acc##j = zero;
#define DEFINE_GROUPS(name, TARGET, SUMS_, WORDS, PRODUCT_ZERO, chains, CHAINS) \
    TARGET static int64_t name(int64_t instructions) {                          \
        typedef SUMS_ SUMS;                                                     \
        const int64_t rounds = instructions / chains + 1;                       \
        const SUMS zero = PRODUCT_ZERO;                                         \
        WORDS half = (WORDS)zero;                                               \
        UNKNOWN("+v", half)                                                     \
        CHAINS(DECLARE_GROUP)                                                   \
        for (int64_t i = 0; i < rounds; i++) { CHAINS(STEP_GROUP) }             \
        CHAINS(KEEP)                                                            \
        return chains * rounds;                                                 \
    }
#if (defined __clang__ && __clang_major__ >= 12) || (!defined __clang__ && __GNUC__ >= 11)
#define PRODUCT _mm512_dpbusd_epi32
DEFINE_GROUPS(s8_avx512vnni, __attribute__((target("avx512f,avx512vnni"))), __m512i, __m512i, _mm512_setzero_si512(), 16, SIXTEEN)
#undef PRODUCT
#define PRODUCT _mm512_dpbf16_ps
DEFINE_GROUPS(bf16_avx512bf16, __attribute__((target("avx512f,avx512bf16"))), __m512, __m512bh, _mm512_setzero_ps(), 16, SIXTEEN)
#undef PRODUCT
#define PRODUCT _mm256_dpbusd_avx_epi32
DEFINE_GROUPS(s8_avxvnni, __attribute__((target("avx2,avxvnni"))), __m256i, __m256i, _mm256_setzero_si256(), 12, TWELVE)
#undef PRODUCT
#else
#define s8_avx512vnni NULL
#define bf16_avx512bf16 NULL
#define s8_avxvnni NULL
#endif

pysim_read_blocks pysim_x86_read_blocks(void) {
    if (__builtin_cpu_supports("avx512f")) return read_avx512;
    return __builtin_cpu_supports("avx2") ? read_avx2 : NULL;
}

pysim_write_blocks pysim_x86_write_blocks(void) {
    if (__builtin_cpu_supports("avx512f")) return write_avx512;
    return __builtin_cpu_supports("avx2") ? write_avx2 : NULL;
}

__attribute__((weak)) int64_t issue_f32__amx(int64_t instructions); /* NULL if the compiler does not know AMX */

pysim_issue_fma pysim_x86_issue_fma(const char *target, int32_t dtype) {
    if (strcmp(target, "amx") == 0) return dtype == PYSIM_F32 && !pysim_amx_missing() ? issue_f32__amx : NULL; /* none of the emulation */
    if (strcmp(target, "avx512vnni") == 0) return dtype == PYSIM_S8 ? s8_avx512vnni : fma_avx512_f32;
    if (strcmp(target, "avx512bf16") == 0) return dtype == PYSIM_BF16 ? bf16_avx512bf16 : fma_avx512_f32;
    if (strcmp(target, "avxvnni") == 0) return dtype == PYSIM_S8 ? s8_avxvnni : fma_avx2_f32;
    if (strcmp(target, "avx512") == 0) return dtype == PYSIM_F32 ? fma_avx512_f32 : fma_avx512_f64;
    if (strcmp(target, "avx2") == 0) return dtype == PYSIM_F32 ? fma_avx2_f32 : fma_avx2_f64;
    return NULL;
}
#else
/* Another architecture: the portable loops serve. */
typedef int pysim_probe_x86_is_empty;
#endif
