/* SPDX-License-Identifier: Apache-2.0
 * Internal: argument checks, the first thing every ABI function does, and their error messages. A check returns PYSIM_OK, or a status whose
 * message is then in pysim_last_error(). Checks only read their arguments; nothing is written before all checks have passed. */
#ifndef PYSIM_STATUS_H
#define PYSIM_STATUS_H
#include "pysim.h"

/* Stores the message for this thread (cut after 511 bytes) and returns the status, so that a caller can `return pysim_fail(…)`. */
__attribute__((format(printf, 2, 3))) pysim_status pysim_fail(pysim_status status, const char *format, ...);

/* 1, 2, 4 or 8; 0 for a dtype that the ABI does not have. */
int64_t pysim_dtype_bytes(int32_t dtype);
/* "f32", ...; "?" for a dtype that the ABI does not have. */
const char *pysim_dtype_name(int32_t dtype);
/* Type of the output, C and the bias of a problem of this dtype. */
int32_t pysim_result_dtype(int32_t dtype);
/* Checks that the CPU computes this dtype. */
pysim_status pysim_check_dtype(int32_t dtype);

/* *product = the factors' product, or PYSIM_OVERFLOW naming `what` and the factors. Factors are not negative. */
pysim_status pysim_product(const char *what, int32_t count, const int64_t *factors, int64_t *product);

/* An operand: `name`, element type, and `bytes` from its first to its last element. */
typedef struct {
    const char *name;
    int32_t dtype;
    int64_t bytes;
} pysim_operand;
typedef struct {
    pysim_operand first, second, result;
    int64_t bias_bytes;
} pysim_operands;

/* Checks a problem. Convolution: positive sizes, padding not negative, groups divide channels and filters, P and Q at least 1. Product:
 * positive sizes, flags 0 or 1, leading dimensions not shorter than a row. Fills in the operands' bytes, in int64_t; operands may be
 * NULL. */
pysim_status pysim_check_problem(const pysim_problem *p, pysim_operands *operands);
/* A block holds channels of one group, or groups of one channel and one filter each. */
pysim_status pysim_check_whole_blocks(const pysim_conv *c);
pysim_status pysim_check_conv(const pysim_conv *c, int64_t *p, int64_t *q, pysim_operands *operands); /* p, q, operands may be NULL */
/* A checked convolution with an image as a volume of depth 1. */
pysim_conv pysim_as_volume(const pysim_conv *c);
/* Slices of the output of a checked convolution. */
int64_t pysim_out_slices(const pysim_conv *c);

/* Checks an epilogue for the problem's dtype: a known activation, an aligned bias, and alpha and beta that the result can represent (1
 * and 0 for a convolution). Checks operands: not NULL, aligned to their elements, written ones not overlapping any other. */
pysim_status pysim_check_call(const pysim_problem *p, const pysim_operands *operands, const pysim_epilogue *e, const void *first,
                              const void *second, const void *result, const void *workspace, int64_t workspace_bytes);

/* Whether the epilogue describes quantised operands. */
static inline int pysim_is_quantised(const pysim_epilogue *e) {
    return e->scales || e->first_unsigned || e->first_zero || e->result || e->result_zero;
}

/* Checks the activation and its bounds. */
pysim_status pysim_check_activation(const pysim_epilogue *e);

/* Checks that the operand is not NULL and is aligned to its element. */
pysim_status pysim_check_operand(const char *name, const void *operand, int32_t dtype);

/* 1 when the two byte ranges share a byte. */
int32_t pysim_overlap(const void *a, int64_t a_bytes, const void *b, int64_t b_bytes);
/* Checks that no written operand of a call overlaps another operand; NULL operands overlap nothing. */
typedef struct {
    const char *name;
    const void *data;
    int64_t bytes;
    int32_t written;
} pysim_span;
pysim_status pysim_check_apart(const pysim_span *spans, int32_t count);
#endif
