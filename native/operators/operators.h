/* SPDX-License-Identifier: Apache-2.0
 * Argument checks and the division among threads that operators.c, arrays.c and integers.c share. */
#ifndef PYSIM_OPERATORS_H
#define PYSIM_OPERATORS_H
#include "loops.h"

/* Why a build for one CPU refuses narrower vectors alone (meson.build): their operators are left out, and no kernel runs. */
#define PYSIM_LACKS_OPERATORS \
    "the widest vectors that PYSIM_MAX_TARGET allows have no operators in this build, which leaves them out; configure it with -Dtargets=all"

pysim_status pysim_loops_of(int32_t dtype, const pysim_loops **loops);
pysim_status pysim_loops_of_values(int32_t dtype, const pysim_loops **loops); /* also bf16's, which do not have all loops */
pysim_status pysim_check_positive(const char *what, const int64_t *values, int32_t count);
pysim_status pysim_check_pool(const pysim_pool *p, const void *x, const void *y);
/* Computes items begin..end. */
typedef void pysim_range_of_items(const void *operator, int64_t begin, int64_t end);
/* Divides items of `item_bytes` each among threads in whole blocks, in their order, as convolutions and products divide theirs: each thread
 * reads mostly what it wrote in the layer before. `block`: 0 or 1 for single items. */
void pysim_share_items(int64_t items, int64_t block, int64_t item_bytes, int32_t threads, pysim_range_of_items *compute,
                       const void *operator);
/* The operators, divided among threads. */
pysim_status pysim_share_map(const pysim_map *m, const pysim_epilogue *e, const void *x, const void *scale, const void *shift, void *y,
                             int32_t threads);
pysim_status pysim_share_pool(const pysim_pool *p, const void *x, void *y, int32_t threads);
pysim_status pysim_share_reorder(const pysim_reorder *of, const void *x, void *y, int32_t threads);
pysim_status pysim_share_copy(const pysim_copy *c, const void *x, void *y, int32_t threads);
pysim_status pysim_share_pair(const pysim_pair *p, const pysim_epilogue *e, const void *a, const void *b, void *y, int32_t threads);
pysim_status pysim_share_rows(const pysim_rows *r, const void *x, const void *scale, const void *shift, void *y, int32_t threads);
pysim_status pysim_share_byte_softmax(const pysim_byte_softmax *s, const void *x, void *y, int32_t threads);
/* A step of one of the kinds of integers.c. */
pysim_status pysim_run_integer_step(const pysim_step *s);
#endif
