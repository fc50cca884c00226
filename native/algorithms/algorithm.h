/* SPDX-License-Identifier: Apache-2.0
 * The interface between the ABI (run.c) and an algorithm: a constant pysim_algorithm_<name>, listed in native/algorithms.inc. */
#ifndef PYSIM_ALGORITHM_H
#define PYSIM_ALGORITHM_H
#include "operators/loops.h"
#include "abi/status.h"
#include "nest.h"

typedef struct pysim_algorithm pysim_algorithm;

/* A problem with a schedule, both checked: what pysim_open fills in. Runs only read it. */
typedef struct {
    const pysim_algorithm *algorithm; /* NULL: not opened */
    pysim_problem problem;
    pysim_nest nest;         /* points into this job */
    pysim_operands operands; /* as a run reads them: prepared weights instead of weights */
    int64_t prepared_bytes;  /* 0: weights are not prepared */
    pysim_problem part;      /* one of the products of `strassen`, which the nest points to */
    pysim_conv own;          /* the convolution that the nest computes, if an algorithm reduces the problem to another one */
    int64_t thread_bytes;    /* workspace bytes per thread of an algorithm without a nest; 0: the panels of the nest */
    int64_t sums_at;         /* s8: where prepared weights have the sums of each filter's or column's elements, INT32; 0: nowhere */
    int64_t shared_bytes;    /* workspace bytes shared by all threads, in front of the threads' own */
} pysim_job;

/* A run with checked arguments; the workspace holds the job's shared bytes, then those of `threads` threads. */
typedef struct {
    const pysim_epilogue *epilogue; /* alpha, beta and bias go to the kernels' stores; the rest of it is in the next three fields */
    const char *residual;           /* added in the stores; in the result's layout, or NULL */
    pysim_bounds bounds;            /* applied in the stores */
    pysim_finish finish;            /* what remains to be done to results that were just stored */
    int32_t threads;
    const char *first, *second;
    char *result, *workspace;
    pysim_profile *profile;
} pysim_call;

struct pysim_algorithm {
    /* Checks the schedule and fills in the job, whose operands are filled in already; the problem has passed pysim_check_problem. */
    pysim_status (*open)(const pysim_problem *p, const pysim_schedule *s, pysim_row_lookup row, pysim_job *job);
    void (*prepare)(const pysim_job *job, const char *weights, char *prepared); /* NULL: weights are not prepared */
    void (*run)(const pysim_job *job, const pysim_call *call);
    int finishes;  /* run applies call->finish; if 0, a second pass over all results does */
    int adds;      /* run applies call->residual; if 0, `finish` does */
    int blocks;    /* open accepts operands in channel blocks (NCHWc), 2: also such as have channels of several groups */
    int quantised; /* run obeys the epilogue's fields of quantised operands */
    int volumes;   /* open accepts volumes, and gets images as volumes of depth 1 */
};

/* A run on one thread whose kernels are replaced by stubs, so that any CPU can trace any row. The checks of a run apply, but nothing is
 * read or written through these pointers. */
typedef void (*pysim_install_stubs)(pysim_nest *n);
pysim_status pysim_dry_run(const pysim_problem *p, const pysim_schedule *s, pysim_install_stubs install_stubs, const void *first,
                           const void *second, void *result, void *workspace);

/* conv.c: parts of sconv, for algorithms that reduce their problem to another convolution or have loops of their own. */
pysim_status pysim_conv_open(const pysim_conv *c, const pysim_schedule *s, pysim_row_lookup row, pysim_job *job);
void pysim_conv_prepare(const pysim_job *job, const char *filters, char *packed);
/* The epilogue of a run whose bias takes off what zero points of the first operand add: `sums` of the second operand's elements for each
 * filter or column, and room for as many results. */
enum { PYSIM_SUMS_ALIGN = 64 };
static inline int64_t pysim_room_bytes(int64_t count) {
    return (pysim_ceil_div(count * (int64_t)sizeof(int32_t), PYSIM_SUMS_ALIGN) + 1) * PYSIM_SUMS_ALIGN;
}
static inline int32_t *pysim_room(char *workspace) {
    return (int32_t *)(void *)(workspace + (PYSIM_SUMS_ALIGN - (uintptr_t)workspace % PYSIM_SUMS_ALIGN) % PYSIM_SUMS_ALIGN);
}
pysim_epilogue pysim_without_zero(const pysim_epilogue *e, int32_t zero, const int32_t *sums, int64_t count, int32_t *room);
void pysim_conv_run(const pysim_job *job, const pysim_call *call);
pysim_nest pysim_conv_nest(const pysim_conv *c);                       /* row and schedule are not filled in */
pysim_status pysim_conv_panels(pysim_job *job);                        /* describes the packed filters of the job's nest */
void pysim_conv_image(pysim_nest *n, int64_t image, const void *call); /* fills in the operands of one image of one group */
int pysim_conv_padded(const pysim_conv *c);
/* whether preparation of a padded problem found a weight that is not finite */
int pysim_conv_marked(const pysim_job *job, const char *packed);
#endif
