// SPDX-License-Identifier: Apache-2.0
// Evaluates programs on columns: sequences of elementwise operations that Python recorded (pysim/cachemodel/equations.py). This file knows
// numbers and operations alone; what they mean stands in the equations.
//
// LANES columns pass through the whole program before the next ones do, so that its values stay in cache. Compiled without contracting
// multiplications and additions: each operation rounds as NumPy's does.
#include <math.h>
#include <string.h>

#include "pysim.h"
#include "abi/status.h"

enum { LANES = PYSIM_PROGRAM_LANES, WIDTH = 8 };

static int32_t operands_of(int32_t operation) {
    if (operation == PYSIM_ROW_INPUT) return 0;
    if (operation == PYSIM_ROW_SELECT) return 3;
    return (operation >= PYSIM_ROW_ADD && operation <= PYSIM_ROW_EQUAL) || operation == PYSIM_ROW_POWER ? 2 : 1;
}

static pysim_status check(const pysim_program *p) {
    for (int64_t i = 0; i < p->length; i++) {
        const pysim_instruction *one = p->instructions + i;
        const int32_t is_output = one->operation == PYSIM_ROW_OUTPUT, of[] = {one->a, one->b, one->c};
        const int32_t first = is_output ? 0 : p->constants, end = is_output ? p->outputs : p->registers;
        if (one->operation < 0 || one->operation > PYSIM_ROW_POWER)
            return pysim_fail(PYSIM_BAD_ARGUMENT, "instruction %lld: there is no operation %d", (long long)i, (int)one->operation);
        if (one->to < first || one->to >= end)
            return pysim_fail(PYSIM_BAD_ARGUMENT, "instruction %lld: it writes %d, not one of %d to %d", (long long)i, (int)one->to,
                              (int)first, (int)end - 1);
        if (one->operation == PYSIM_ROW_INPUT && (one->a < 0 || one->a >= p->inputs))
            return pysim_fail(PYSIM_BAD_ARGUMENT, "instruction %lld: there is no input %d", (long long)i, (int)one->a);
        for (int32_t k = 0; k < operands_of(one->operation); k++)
            if (of[k] < 0 || of[k] >= p->registers || (!is_output && of[k] == one->to))
                return pysim_fail(PYSIM_BAD_ARGUMENT, "instruction %lld: register %d does not exist or is written", (long long)i,
                                  (int)of[k]);
    }
    return PYSIM_OK;
}

#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif
#define EACH(expression)                                      \
    for (int64_t i = 0; i < width; i++) to[i] = (expression); \
    break

static inline __attribute__((always_inline)) void operate(int32_t operation, int64_t width, double *restrict to, const double *a,
                                                          const double *b, const double *c) {
    switch (operation) {
    case PYSIM_ROW_ADD: EACH(a[i] + b[i]);
    case PYSIM_ROW_SUBTRACT: EACH(a[i] - b[i]);
    case PYSIM_ROW_MULTIPLY: EACH(a[i] * b[i]);
    case PYSIM_ROW_DIVIDE: EACH(a[i] / b[i]);
    case PYSIM_ROW_MINIMUM: EACH(a[i] < b[i] ? a[i] : b[i]);
    case PYSIM_ROW_MAXIMUM: EACH(a[i] > b[i] ? a[i] : b[i]);
    case PYSIM_ROW_GREATER: EACH(a[i] > b[i] ? 1.0 : 0.0);
    case PYSIM_ROW_GREATER_EQUAL: EACH(a[i] >= b[i] ? 1.0 : 0.0);
    case PYSIM_ROW_EQUAL: EACH(a[i] == b[i] ? 1.0 : 0.0);
    case PYSIM_ROW_FLOOR: EACH(floor(a[i]));
    case PYSIM_ROW_CEIL: EACH(ceil(a[i]));
    case PYSIM_ROW_SQRT: EACH(sqrt(a[i]));
    case PYSIM_ROW_EXP: EACH(exp(a[i]));
    case PYSIM_ROW_SELECT: EACH(a[i] != 0.0 ? b[i] : c[i]);
    case PYSIM_ROW_POWER: EACH(pow(a[i], b[i]));
    default: break;
    }
}

// The columns from `start` on, `count` of them, as `width` columns: the last is repeated until whole vectors are full.
static inline __attribute__((always_inline)) void evaluate(const pysim_program *p, int64_t columns, int64_t start, int64_t count,
                                                           int64_t width, const double *inputs, double *outputs, double *work) {
    const pysim_instruction *end = p->instructions + p->length;
    for (const pysim_instruction *one = p->instructions; one < end; one++) {
        double *to = work + (int64_t)one->to * LANES;
        const double *a = work + (int64_t)one->a * LANES;
        if (one->operation == PYSIM_ROW_INPUT) {
            const double *from = inputs + (int64_t)one->a * columns + start;
            memcpy(to, from, (size_t)count * sizeof *to);
            for (int64_t i = count; i < width; i++) to[i] = from[count - 1];
        } else if (one->operation == PYSIM_ROW_OUTPUT) memcpy(outputs + (int64_t)one->to * columns + start, a, (size_t)count * sizeof *to);
        else operate(one->operation, width, to, a, work + (int64_t)one->b * LANES, work + (int64_t)one->c * LANES);
    }
}

// All columns; loops over LANES of them have a constant length.
CLONES static void evaluate_all(const pysim_program *p, int64_t columns, const double *inputs, double *outputs, double *work) {
    int64_t start = 0;
    for (; start + LANES <= columns; start += LANES) evaluate(p, columns, start, LANES, LANES, inputs, outputs, work);
    const int64_t rest = columns - start;
    if (rest) evaluate(p, columns, start, rest, (rest + WIDTH - 1) / WIDTH * WIDTH, inputs, outputs, work);
}

pysim_status pysim_evaluate(const pysim_program *p, int64_t columns, const double *constants, const double *inputs, double *outputs,
                            double *work) {
    if (!p || columns < 0 || p->length < 0 || p->constants < 0 || p->constants > p->registers)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "a program has 0 or more instructions and columns, and constants in its first registers");
    const pysim_status status = check(p);
    if (status != PYSIM_OK) return status;
    for (int32_t k = 0; k < p->constants; k++)
        for (int64_t i = 0; i < LANES; i++) work[k * LANES + i] = constants[k];
    evaluate_all(p, columns, inputs, outputs, work);
    return PYSIM_OK;
}
