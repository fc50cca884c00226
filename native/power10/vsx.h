/* SPDX-License-Identifier: Apache-2.0
 * Shared by the POWER10 kernels and packing: VSX loads and stores of full and partial vectors, and MMA accumulators.
 *
 * Register order is the compiler's: lane 0 of a vector, row 0 of an accumulator and half 0 of a pair are the lowest addresses. */
#ifndef PYSIM_POWER10_VSX_H
#define PYSIM_POWER10_VSX_H
#ifndef __clang__
/* GCC's scheduler before register allocation extends the lives of accumulators until some are moved, and GCC 12 then lost the xxmtacc
 * after a move: a multiply into an accumulator that is not primed, which QEMU forgives and the ISA does not. */
#pragma GCC optimize("no-schedule-insns")
#endif
#include <altivec.h>
#include <string.h>

#include "kernel.h"
#undef bool
#undef pixel

#define INLINE static inline __attribute__((always_inline))

typedef vector unsigned char BYTES; /* operand type of the MMA and pair instructions, whatever the elements are */

/* Neither needs alignment. The first `bytes` (0..16) of a vector: lxvl and stxvl touch nothing beyond, the other lanes are zero. */
INLINE BYTES v_load(const void *p) { return vec_xl(0, (const unsigned char *)p); }
INLINE void v_store(void *p, BYTES v) { vec_xst(v, 0, (unsigned char *)p); }
INLINE BYTES v_load_first(const void *p, int64_t bytes) { return vec_xl_len((unsigned char *)p, (size_t)bytes); }
INLINE void v_store_first(void *p, BYTES v, int64_t bytes) { vec_xst_len(v, (unsigned char *)p, (size_t)bytes); }

/* Operands of types whose rows of k an instruction takes merged: a group of 4 filters or windows in each register. */
typedef struct {
    BYTES f[2], w[4];
} MERGED_OPERANDS;

/* Interleaves pairs of bytes: a0 b0 a1 b1 .. */
INLINE void merge_pairs(BYTES to[2], BYTES a, BYTES b) {
    to[0] = (BYTES)vec_mergeh((vector unsigned short)a, (vector unsigned short)b);
    to[1] = (BYTES)vec_mergel((vector unsigned short)a, (vector unsigned short)b);
}

/* lxvp: 32 bytes in one instruction. A macro, because MMA types can be neither arguments nor results. */
#define v_load_pair(p) __builtin_vsx_lxvp(0L, (const __vector_pair *)(const void *)(p))

/* acc += half i of pair a times half j of pair b; and acc += pair a times half j of pair b. GCC 12 would copy halves of a pair into
 * registers of their own and sink loads to their first use (1.4 instead of 1.96 multiplies a cycle), so it gets the instruction with
 * the pairs as operands, in the order of the source; half 0 is the second register of a little-endian pair. */
#ifdef __clang__
#define MULTIPLY_HALVES(instruction, acc, a, i, b, j)              \
    do {                                                           \
        BYTES a_half[2], b_half[2];                                \
        __builtin_vsx_disassemble_pair(a_half, &(a));              \
        __builtin_vsx_disassemble_pair(b_half, &(b));              \
        __builtin_mma_##instruction(&(acc), a_half[i], b_half[j]); \
    } while (0)
#define MULTIPLY_PAIR_HALF(instruction, acc, a, b, j)      \
    do {                                                   \
        BYTES b_half[2];                                   \
        __builtin_vsx_disassemble_pair(b_half, &(b));      \
        __builtin_mma_##instruction(&(acc), a, b_half[j]); \
    } while (0)
#else
#define MULTIPLY_HALVES(instruction, acc, a, i, b, j) \
    __asm__ volatile(#instruction " %A0,%x1+%3,%x2+%4" : "+d"(acc) : "v"(a), "v"(b), "n"(1 - (i)), "n"(1 - (j)))
#define MULTIPLY_PAIR_HALF(instruction, acc, a, b, j) \
    __asm__ volatile(#instruction " %A0,%x1,%x2+%3" : "+d"(acc) : "v"(a), "v"(b), "n"(1 - (j)))
#endif

/* At the end of a k-iteration of many instructions. Otherwise GCC moves the loads and merges of all unrolled iterations before their
 * multiplies, and these alone fill the window of instructions in flight (llvm-mca: bf16 1.28 multiplies per cycle, 1.41 with this). */
#define KEEP_STEPS_APART __asm__ volatile("")

/* All of the matrix unit: 8 accumulators of 512 bits; VSR 32 to 63 stay free for operands. */
enum { ACCUMULATORS = 8 };
typedef struct {
    __vector_quad at[ACCUMULATORS];
    vector unsigned int sums[2]; /* s8: the sum of each filter's elements, a group in each */
} TILE;
#endif
