/* SPDX-License-Identifier: Apache-2.0
 * What an algorithm is to the ABI (run.c): a constant pysim_algorithm_<name>, which a line of native/algorithms.inc puts into the table. */
#ifndef PYSIM_ALGORITHM_H
#define PYSIM_ALGORITHM_H
#include "../loops.h"
#include "../status.h"
#include "nest.h"

typedef struct pysim_algorithm pysim_algorithm;

/* One problem under one schedule, both checked. */
typedef struct {
    const pysim_algorithm *algorithm;
    const pysim_problem *problem;
    pysim_nest nest;
    pysim_operands operands; /* as a run reads them: prepared weights in the place of weights */
    int64_t prepared_bytes;  /* 0: the weights are read as they are */
    pysim_conv own;          /* of an algorithm that turns the problem into another convolution: what the nest points to */
    int64_t thread_bytes;    /* of the workspace, for each thread, of an algorithm that is no nest; 0: the panels of a nest */
    int64_t shared_bytes;    /* of the workspace, for all threads together; the panels of each thread lie behind them */
} pysim_job;

/* A run whose arguments have passed; workspace holds the job's shared bytes and the panels of `threads` threads. */
typedef struct {
    const pysim_epilogue *epilogue; /* its alpha, beta and bias are for kernels' stores; the rest is divided: */
    const char *residual;           /* what stores add, lying as the result does, or NULL */
    pysim_bounds bounds;            /* between which stores keep results */
    pysim_finish finish;            /* what else is to be done to results that have just been stored */
    int32_t threads;
    const char *first, *second;
    char *result, *workspace;
    pysim_profile *profile;
} pysim_call;

struct pysim_algorithm {
    /* Of a problem that has passed pysim_check_problem, whose operands `job` has already: checks the schedule, fills the rest. */
    pysim_status (*open)(const pysim_problem *p, const pysim_schedule *s, pysim_row_lookup row, pysim_job *job);
    void (*prepare)(const pysim_job *job, const char *weights, char *prepared); /* NULL: nothing is prepared */
    void (*run)(pysim_job *job, const pysim_call *call);
    int finishes; /* run obeys call->finish; else all results are gone over once more, behind it */
    int adds;     /* run obeys call->residual; else `finish` adds residuals */
    int blocks;   /* open obeys a convolution's blocks of channels; else there are none */
};

/* A run on one thread with stand-ins for the functions of the job's row, so that no kernel has to run on this CPU. The checks of a run
 * hold, but nothing is read or written through these pointers. */
typedef void (*pysim_stand_in)(pysim_nest *n);
pysim_status pysim_walk(const pysim_problem *p, const pysim_schedule *s, pysim_stand_in stand_in, const void *first, const void *second,
                        void *result, void *workspace);

/* conv.c: the parts of sconv, for algorithms that turn their problem into another convolution, or have loops of their own. */
pysim_status pysim_conv_open(const pysim_conv *c, const pysim_schedule *s, pysim_row_lookup row, pysim_job *job);
void pysim_conv_prepare(const pysim_job *job, const char *filters, char *packed);
void pysim_conv_run(pysim_job *job, const pysim_call *call);
pysim_nest pysim_conv_nest(const pysim_conv *c);             /* without row and schedule */
pysim_status pysim_conv_panels(pysim_job *job);              /* what is prepared of the filters for the job's nest, and its bytes */
void pysim_conv_image(pysim_nest *n, int64_t image, const void *call); /* the operands of an image of a group */
int pysim_conv_padded(const pysim_conv *c);
int pysim_conv_marked(const pysim_job *job, const char *packed); /* whether preparation, for a padded problem, met a weight that is not finite */
#endif
