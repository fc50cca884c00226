/* SPDX-License-Identifier: Apache-2.0
 * What the parts of the check program share: random numbers, fills, comparison, and the case that is being checked. */
#ifndef PYSIM_TEST_CHECK_H
#define PYSIM_TEST_CHECK_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "pysim.h"
#include "guard.h"

/* ---- random numbers (splitmix64) ---- */
typedef struct {
    uint64_t state;
} check_random;
uint64_t check_next(check_random *random);
int64_t check_below(check_random *random, int64_t n);                          /* 0 .. n-1 */
check_random check_case_random(int32_t kernel, int32_t family, int32_t index); /* the same for the same case and seed */

/* ---- options and the current case ---- */
typedef struct {
    uint64_t seed;
    int quick;
    int64_t every;      /* of the cases of a section, the first and every so many */
    const char *single; /* "conv/17": only this case, or NULL */
} check_options;
extern check_options check_given;

/* A case is one problem with one schedule, or one bad call. It passes unless check_fail is called before check_end.
 * `id` repeats it with --case; 0 is returned for a case that --case or --every leaves out. */
__attribute__((format(printf, 2, 3))) int check_begin(const char *id, const char *description, ...);
__attribute__((format(printf, 1, 2))) void check_fail(const char *format, ...);
void check_end(void);
int check_failed(void); /* the current case has failed already */

/* Counts results that had to be non-zero: a fill that gives nothing but zeros would let a kernel pass that computes nothing. */
void check_count_nonzero(int64_t nonzero, int64_t of);

/* ---- elements of any dtype ---- */
size_t check_size(int32_t dtype);
const char *check_name(int32_t dtype);
int32_t check_result(int32_t dtype); /* of the output of a problem of this dtype */
int check_is_exact(int32_t dtype);   /* whole numbers: nothing is rounded, and there is no NaN */
double check_get(const void *array, int32_t dtype, int64_t index);
/* The nearest value that the dtype has. */
void check_set(void *array, int32_t dtype, int64_t index, double value);

/* EXACT: small integers, so that sums are exact in any order. RANDOM: 24, 53 or 8 random bits, never zero; any s8 or s32. Three of
 * four values are positive in both, but for a random s8 or s32, so that sums rarely vanish. */
typedef enum { FILL_EXACT = 0, FILL_RANDOM = 1 } check_fill_kind;
void check_fill(void *array, int32_t dtype, int64_t count, check_fill_kind kind, check_random *random);
/* For a bound or to see what is zero: s8 stays within 127 and s32 within 2^30, so that a sum of them does not wrap. */
void check_absolute(void *to, const void *from, int32_t dtype, int64_t count);

/* gamma_n = n u / (1 - n u), the factor of the error bound of a sum of n rounded operations (Higham, ch. 3), in a result's dtype. */
double check_gamma(int32_t dtype, int64_t n);

/* The first index where `got` is wrong, or -1. bound == NULL: the bits must be equal (0 and -0 may stand for each other); else
 * |got - want| <= factor * bound[i]. A NaN or an infinity is right only where `want` has it. */
int64_t check_compare(int32_t dtype, int64_t count, const void *got, const void *want, const void *bound, double factor);

/* A hash of the bytes, to see that an operand has not changed. */
uint64_t check_hash(const void *bytes, size_t count);

/* Memory that is kept and reused under a small number; contents are arbitrary. */
enum { SCRATCH_WANT, SCRATCH_BOUND, SCRATCH_A, SCRATCH_B, SCRATCH_BIAS, SCRATCH_RESIDUAL, SCRATCH_FIRST, SCRATCH_COUNT };
void *check_scratch(int32_t which, size_t bytes);

/* Runs the library with a workspace of exactly the size that it asks for, filled with `garbage`: flush against the guard, or, in every third case, 8
 * bytes off any alignment with a pattern in the 8 bytes between. Odd cases are profiled. Checks that the run wrote nothing outside the workspace and
 * that its profile makes sense; 0 if it could not run. */
int check_run(const pysim_problem *problem, const pysim_schedule *schedule, const pysim_epilogue *epilogue, int32_t threads,
              const void *first, const void *second, void *result, guard_arena *workspace, guard_side side, int64_t index, int garbage);

/* ---- schedules ---- */
typedef struct {
    int32_t stationary, pack, set, k2, k3; /* levels: set 1, 2, half, all; k2 and k3 1, 2, all */
} check_plan;
enum { PLAN_SETS = 4, PLAN_K = 3 };
pysim_schedule check_schedule(int32_t kernel, const pysim_kernel_info *row, const check_plan *plan, int64_t channels, check_random *random);
void check_schedule_text(const pysim_schedule *s, char *text, size_t size);

/* Lines of native/algorithms.inc; a schedule has the first, unless said otherwise. */
enum {
#define PYSIM_ALGORITHM(name, problem) CHECK_##name,
#include "algorithms.inc"
#undef PYSIM_ALGORITHM
    CHECK_ALGORITHMS,
};
/* The kind of problem that each computes. */
static const int32_t check_computes[] = {
#define PYSIM_ALGORITHM(name, problem) PYSIM_##problem,
#include "algorithms.inc"
#undef PYSIM_ALGORITHM
};

/* Whether seven products of halves compute a convolution. */
static inline int check_has_halves(const pysim_conv *c) {
    const int64_t in = 2 * c->input_block, out = 2 * c->output_block;
    const int one = c->groups == 1 && c->kernel_h * c->kernel_w == 1 && c->stride_h * c->stride_w == 1 && !c->depth;
    const int64_t padded = c->pad_top + c->pad_bottom + c->pad_left + c->pad_right;
    return in > 2 && out > 2 && one && !padded && c->dtype == PYSIM_F32 && c->channels % in == 0 && c->filters % out == 0 &&
           c->height * c->width > 1;
}

/* A row of depthwise.inc, which the algorithm of that name runs or `grouped`, not the loop nest. */
static inline int check_is_blocks(const pysim_kernel_info *row) { return strcmp(row->form, "blocks") == 0; }
static inline int check_is_grouped(const pysim_kernel_info *row) { return strcmp(row->form, "grouped") == 0; }
static inline int check_is_last(const pysim_kernel_info *row) { return strcmp(row->form, "last") == 0; }
static inline int check_is_taps(const pysim_kernel_info *row) { return strcmp(row->form, "taps") == 0; }
/* It reads rows of A beside panels of B made beforehand. */
static inline int check_is_pixels(const pysim_kernel_info *row) {
    return strcmp(row->form, "pixels") == 0 || strcmp(row->form, "unpacked") == 0;
}
/* It bounds weights beforehand, and lists the rest: no product has them in A. */
static inline int check_lists(const pysim_kernel_info *row) { return strcmp(row->form, "bounded") == 0; }
static inline int check_is_groups(const pysim_kernel_info *row) {
    return strcmp(row->form, "groups") == 0 || strcmp(row->form, "pairs") == 0 || check_lists(row) || check_is_pixels(row);
}
/* Its panels of B may be made beforehand. */
static inline int check_is_packed(const pysim_kernel_info *row) {
    return check_is_groups(row) || (strcmp(row->form, "tiles") == 0 && row->dtype != PYSIM_F32);
}
static inline int check_is_tiles(const pysim_kernel_info *row) { return strcmp(row->form, "tiles") == 0; }
static inline int check_is_direct(const pysim_kernel_info *row) {
    return strcmp(row->form, "rows") == 0 || strcmp(row->form, "planes") == 0 || check_is_taps(row) || check_is_last(row) ||
           check_is_blocks(row) || check_is_grouped(row);
}

/* A row of polyphase.inc, likewise. */
static inline int check_is_phases(const pysim_kernel_info *row) { return strcmp(row->form, "phases") == 0; }

/* A row of direct_nchwc.inc, likewise. */
static inline int check_is_nchwc(const pysim_kernel_info *row) { return strcmp(row->form, "nchwc") == 0; }

/* A row of skinny.inc, likewise. */
static inline int check_is_skinny(const pysim_kernel_info *row) { return strcmp(row->form, "axpy") == 0 || strcmp(row->form, "dot") == 0; }

static inline pysim_problem check_conv_problem(const pysim_conv *c) { return (pysim_problem){PYSIM_CONV, .conv = *c}; }
static inline pysim_problem check_gemm_problem(const pysim_gemm *g) { return (pysim_problem){PYSIM_GEMM, .gemm = *g}; }
static inline pysim_status check_conv_reference(const pysim_conv *c, const pysim_epilogue *e, const void *input, const void *filters,
                                                void *output) {
    return pysim_reference(&(pysim_problem){PYSIM_CONV, .conv = *c}, e, input, filters, output);
}
static inline pysim_status check_gemm_reference(const pysim_gemm *g, const pysim_epilogue *e, const void *a, const void *b, void *c) {
    return pysim_reference(&(pysim_problem){PYSIM_GEMM, .gemm = *g}, e, a, b, c);
}

/* {1, b-1, b, b+1, 2b+1}, at least 1. */
enum { EDGES = 5 };
int64_t check_edge(int32_t level, int64_t block);
/* P x Q = n (or a little more): one row, one column, or a rectangle. */
void check_rectangle(int32_t level, int64_t n, int64_t *p, int64_t *q);
/* One axis: padding by level, then the input size that gives `out` outputs (more where the padding alone gives more). */
enum { CHECK_PADDINGS = 5 };
void check_axis(int32_t padding, int64_t out, int64_t kernel, int64_t stride, int64_t dilation, check_random *random, int64_t *before,
                int64_t *after, int64_t *size);
/* Makes a convolution of volumes of one of images; returns the slices of its outputs. The last is one of 1 x 1 x 1 whose first and last slices
 * of outputs are padding. */
int64_t check_volume(pysim_conv *c, check_random *random);
/* Makes a convolution one for a row of form grouped, with rows of q outputs: groups of half a block of filters, of one, of one and a half, or of two;
 * whole blocks of channels in all, of a group any number now and then. Returns the channels of a group. */
int64_t check_grouped(pysim_conv *c, const pysim_kernel_info *row, int32_t index, int64_t q);

/* ---- the sections ---- */
/* Round 0, 1, … takes other combinations of settings. */
void check_conv(int32_t round, int32_t kernel, const pysim_kernel_info *row);
void check_gemm(int32_t round, int32_t kernel, const pysim_kernel_info *row);
void check_arguments(void);
void check_reference(void);
void check_checks(void);
void check_registry(void);
void check_probes(void);
#endif
