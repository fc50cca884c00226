/* SPDX-License-Identifier: Apache-2.0
 * What every function of the ABI does first: look at its arguments, and say in one sentence what is wrong with them.
 *
 * A check returns PYSIM_OK, or a status whose sentence is already in pysim_last_error(). Checks read their arguments only;
 * nothing is written before all of them have passed. Internal: none of these names is exported. */
#ifndef PYSIM_STATUS_H
#define PYSIM_STATUS_H
#include "pysim.h"

/* Keeps the sentence for this thread (cut after 511 bytes) and returns status, so that a caller can `return pysim_fail(…)`. */
__attribute__((format(printf, 2, 3))) pysim_status pysim_fail(pysim_status status, const char *format, ...);

/* 1, 2, 4 or 8; 0 for a dtype that the ABI does not have. */
int64_t pysim_dtype_bytes(int32_t dtype);
/* "f32", ...; "?" for a dtype that the ABI does not have. */
const char *pysim_dtype_name(int32_t dtype);
/* Of the output, C and the bias of a problem of this dtype. */
int32_t pysim_result_dtype(int32_t dtype);
/* A dtype that a CPU computes in. */
pysim_status pysim_check_dtype(int32_t dtype);

/* *product = the factors' product, or PYSIM_OVERFLOW naming `what` and the factors. Factors are not negative. */
pysim_status pysim_product(const char *what, int32_t count, const int64_t *factors, int64_t *product);

/* What a call has under `name`: elements of a dtype, `bytes` from the first to the last. */
typedef struct {
    const char *name;
    int32_t dtype;
    int64_t bytes;
} pysim_operand;
typedef struct {
    pysim_operand first, second, result;
    int64_t bias_bytes;
} pysim_operands;

/* A problem that can be computed. Of a convolution: sizes positive, padding not negative, groups divide, P and Q at least 1. Of a product:
 * sizes positive, flags 0 or 1, leading dimensions not shorter than a row. Operands' bytes in int64_t; operands may be NULL. */
pysim_status pysim_check_problem(const pysim_problem *p, pysim_operands *operands);
pysim_status pysim_check_conv(const pysim_conv *c, int64_t *p, int64_t *q, pysim_operands *operands); /* p, q, operands may be NULL */

/* Of the problem's dtype: a known activation, an aligned bias, and alpha and beta that its result can obey, 1 and 0 for a convolution.
 * Operands: not NULL, aligned to their elements, what is written apart from all else. */
pysim_status pysim_check_call(const pysim_problem *p, const pysim_operands *operands, const pysim_epilogue *e, const void *first,
                              const void *second, const void *result, const void *workspace, int64_t workspace_bytes);

/* A line of epilogues.inc with bounds that it can have. */
pysim_status pysim_check_activation(const pysim_epilogue *e);

/* Not NULL, and aligned to its element. */
pysim_status pysim_check_operand(const char *name, const void *operand, int32_t dtype);

/* 1 when the two byte ranges share a byte. */
int32_t pysim_overlap(const void *a, int64_t a_bytes, const void *b, int64_t b_bytes);
/* No written operand of a call shares a byte with another operand; NULL ones share none. */
typedef struct {
    const char *name;
    const void *data;
    int64_t bytes;
    int32_t written;
} pysim_span;
pysim_status pysim_check_apart(const pysim_span *spans, int32_t count);
#endif
