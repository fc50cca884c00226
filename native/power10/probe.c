/* SPDX-License-Identifier: Apache-2.0
 * Probe loops of the matrix unit: eight chains of multiplies, one per accumulator, which is what two units of 4 cycles need. */
#include "abi/probe.h"

#include "pysim.h"
#include "vsx.h"

#define EIGHT(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)
#define DECLARE(j) __vector_quad acc##j;
#define CLEAR(j) __builtin_mma_xxsetaccz(&acc##j);
#define KEEP(j)                                  \
    __builtin_mma_disassemble_acc(row, &acc##j); \
    __asm__ volatile("" : : "m"(row));

/* Operands are zeros, which the compiler must not know, so that no sum ever grows. */
#define DEFINE_PROBE(name, instruction, first)                      \
    static int64_t name(int64_t instructions) {                     \
        const int64_t rounds = instructions / 8 + 1;                \
        const BYTES zero[2] = {{0}, {0}}, *zeros = zero;            \
        __asm__("" : "+r"(zeros) : "m"(zero));                      \
        BYTES row[4], y = *zeros;                                   \
        first;                                                      \
        EIGHT(DECLARE)                                              \
        EIGHT(CLEAR)                                                \
        for (int64_t i = 0; i < rounds; i++) { EIGHT(instruction) } \
        EIGHT(KEEP)                                                 \
        return 8 * rounds;                                          \
    }
#define F32(j) __builtin_mma_xvf32gerpp(&acc##j, y, y);
#define F64(j) __builtin_mma_xvf64gerpp(&acc##j, x, y);
#define BF16(j) __builtin_mma_xvbf16ger2pp(&acc##j, y, y);
#define S8(j) __builtin_mma_xvi8ger4pp(&acc##j, y, y);
DEFINE_PROBE(issue_f32, F32, )
DEFINE_PROBE(issue_f64, F64, __vector_pair x = v_load_pair(zeros))
DEFINE_PROBE(issue_bf16, BF16, )
DEFINE_PROBE(issue_s8, S8, )

pysim_issue_fma pysim_power10_issue_fma(int32_t dtype) {
    switch (dtype) {
    case PYSIM_F32: return issue_f32;
    case PYSIM_F64: return issue_f64;
    case PYSIM_BF16: return issue_bf16;
    case PYSIM_S8: return issue_s8;
    default: return NULL;
    }
}
