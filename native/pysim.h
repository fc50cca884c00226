/* SPDX-License-Identifier: Apache-2.0
 * The C ABI of pysim on a CPU, and what pysim_cuda.h, that of GPUs, shares with it. Compilers read this file; cffi reads the part between
 * the two "cdef" marks.
 *
 * Rules. Every function returns a pysim_status and leaves a sentence for people in pysim_last_error() (thread-local). Nothing
 * aborts, prints or keeps memory: the caller owns every buffer and asks for sizes first. Dimensions are int64_t in elements,
 * sizes end in _bytes. No function reads or writes one byte outside its operands.
 *
 * Numbers that are not finite go where IEEE 754's multiply-adds take them, with three exceptions: padding contributes nothing (a tap that
 * lies in it is not multiplied, whatever the weight), alpha == 0 reads neither A nor B, and beta == 0 does not read C. relu keeps a NaN.
 * Some algorithms of a convolution need finite operands for the first of these: pysim_needs_finite on a GPU, native/algorithms.inc. */
#ifndef PYSIM_H
#define PYSIM_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default) /* all else in the library is hidden */
/* cdef begin */
enum { PYSIM_ABI_VERSION = 5 };
/* The first digits of SHA-256 of these declarations (tests/native/test_abi.py says which): a library of others is refused as it is opened. */
#define PYSIM_DECLARATIONS 0x82541425

typedef enum {
    PYSIM_OK = 0,
    PYSIM_BAD_ARGUMENT = 1, /* an invalid value; the message names it */
    PYSIM_UNSUPPORTED = 2,  /* valid, but not for this kernel, dtype or CPU */
    PYSIM_OVERFLOW = 3,     /* a product of dimensions exceeds int64_t */
    PYSIM_OUT_OF_MEMORY = 4,
    PYSIM_DEVICE = 5, /* the CUDA driver or runtime refused; the message has its words */
} pysim_status;

/* Elements. Input and filters, A and B, have the problem's dtype. On a CPU output and bias, C, have its result type: f32 -> f32, f64 ->
 * f64, bf16 -> f32, s8 -> s32; on a GPU see pysim_cuda_gemm. A bf16 convolution whose output is in blocks has bf16 in blocks alone: its output, a residual, and an
 * input in blocks; filters, bias and an input in planes are f32. Operators on bf16 likewise have scales and shifts of f32. An s8 result is exact modulo 2^32. */
typedef enum {
    PYSIM_F32 = 0,
    PYSIM_F64 = 1,
    PYSIM_F16 = 2,  /* on a GPU; functions of the CPU answer PYSIM_UNSUPPORTED */
    PYSIM_BF16 = 3, /* the upper half of an f32 */
    PYSIM_S8 = 4,
    PYSIM_S32 = 5,    /* a result only */
    PYSIM_TF32 = 6,   /* on a GPU: f32 in memory, multiplied as 10-bit mantissas */
    PYSIM_F8 = 7,     /* on a GPU: e4m3 */
    PYSIM_U8 = 9,     /* a result, and the first operand of an s8 problem (pysim_epilogue); no problem's dtype */
    PYSIM_TF32X3 = 8, /* on a GPU: f32 in memory, multiplied as three products of tf32 halves */
} pysim_dtype;
typedef enum { PYSIM_INPUT_STATIONARY = 0, PYSIM_WEIGHT_STATIONARY = 1 } pysim_stationary;
typedef enum {
    PYSIM_PACK_NONE = 0,  /* the micro-kernel reads the operand in place: unit-stride 1x1 convolution, or B not transposed */
    PYSIM_PACK_TILES = 1, /* input tiles are packed on demand (IS) or K2 at a time (WS) */
} pysim_pack;
/* relu(x) is 0 for x < 0, else x, NaN included; all: native/epilogues.inc */
typedef enum { PYSIM_IDENTITY = 0, PYSIM_RELU = 1 } pysim_activation;

/* Convolution, input [batch][channels][height][width], filters [filters][channels/groups][kernel_h][kernel_w],
 * output [batch][filters][P][Q] with P = (height + pad_top + pad_bottom - dilation_h*(kernel_h-1) - 1)/stride_h + 1.
 * dilation is 1 for a dense kernel. With channels in blocks of c (NCHWc) the input is [batch][channels/c][height][width][c]; filters of the
 * output likewise. Blocks divide the channels and filters of a group, or the groups where these have one of each.
 * Volumes have a depth before the height: input [batch][channels][depth][height][width], filters [..][kernel_d][kernel_h][kernel_w], output
 * [batch][filters][O][P][Q]. Of images its six numbers are 0. */
typedef struct {
    int64_t batch, groups;
    int64_t channels, height, width;
    int64_t filters, kernel_h, kernel_w;
    int64_t stride_h, stride_w, dilation_h, dilation_w;
    int64_t pad_top, pad_left, pad_bottom, pad_right;
    int32_t dtype;
    /* channels per block of the input; filters per block of the output (and a residual); 0 and 1: planes */
    int32_t input_block, output_block;
    int64_t depth, kernel_d, stride_d, dilation_d, pad_front, pad_back; /* of volumes */
} pysim_conv;

/* C[m][n] = alpha op(A)[m][k] op(B)[k][n] + beta C (+ bias[n], activation), row-major; ld* in elements. */
typedef struct {
    int64_t m, n, k;
    int64_t lda, ldb, ldc;
    int32_t trans_a, trans_b;
    int32_t dtype;
} pysim_gemm;

typedef enum { PYSIM_CONV = 0, PYSIM_GEMM = 1 } pysim_problem_kind;
typedef struct {
    int32_t kind; /* pysim_problem_kind: which of the two is used */
    union {
        pysim_conv conv;
        pysim_gemm gemm;
    };
} pysim_problem;

/* The schedule of a run, obeyed field by field. A GEMM is the 1x1 case: windows = columns of C, filters = rows, channels = k. */
typedef struct {
    int32_t algorithm;  /* line of native/algorithms.inc */
    int32_t kernel;     /* registry index */
    int32_t stationary; /* pysim_stationary */
    int32_t pack;       /* pysim_pack */
    int64_t windows;    /* N_win of a tile; equals the registry row */
    int64_t filters;    /* N_f of a tile; equals the registry row */
    int64_t channels;   /* N_c of a channel set, 1..C/groups */
    int64_t k2;         /* streamed tiles of one L2 set */
    int64_t k3;         /* stationary tiles of one L3 set */
    int64_t outputs;    /* m of F(m x m, r x r); only winograd reads it */
} pysim_schedule;

/* What becomes of a rescaled result q, without its zero point, and a byte b of a residual: round(first q + (second (b ^ flip) + shift)), two
 * multiply-adds, within low..high, + zero. pysim_byte_sum_of finds factors for which that is what operators give one by one. */
typedef struct {
    float first, second, shift, low, high;
    int32_t flip, result, zero; /* flip: 0x80 of signed residuals; result: dtype, s8 or u8 */
} pysim_byte_sum;

typedef struct {
    double alpha, beta; /* convolution: 1 and 0; s8: whole numbers within int32. 0: the term is left out and its operand is not read */
    const void *bias;   /* NULL, or one value of the result's dtype per filter (convolution) or column of C (GEMM) */
    int32_t activation; /* pysim_activation; s8 has those two */
    const void *
        residual; /* convolution: NULL, or added before the activation (of s8: by `sum`); in the output's layout, not overlapping it (form tiles of s8: or itself) */
    double low, high; /* of the activation clamp: low <= high */
    /* Quantised operands of an s8 problem; all zero: sums of s8 are the result. Run by the algorithms sconv, gemm and panels.
     *   sum = (first - first_zero) (second), summed, + bias; relu is max(sum, 0); padding of the input is first_zero
     *   y = sum * scales[i] as f32, or saturate(round(sum * scales[i]) + result_zero), ties to even; clamp bounds y
     * With scales, the schedule has one channel set, alpha is 1 and beta 0. */
    const float *scales;    /* NULL, or positive: one, or one per filter (convolution) or column (product) */
    int32_t scale_count;    /* 1, or filters or n */
    int32_t first_unsigned; /* 1: elements of the first operand are u8 */
    int32_t first_zero;
    int32_t result; /* dtype with scales: f32, s8 or u8 */
    int32_t result_zero;
    /* NULL, or with scales and bytes as results positive: one, or one per filter or column. Any activation is then of real numbers:
     *   y = saturate(round(activation(sum * scales[i] + shifts[i]) * result_scales[i]) + result_zero) */
    const float *result_scales;
    int32_t result_scale_count; /* 1, or filters or n */
    const float *
        shifts; /* NULL, or with scales one per filter or column; of results f32, which are then numbers without bounds, by products on the nest */
    const pysim_byte_sum *sum; /* NULL, or of a convolution with bytes as results: what is made of these and the residual's. Run by sconv */
} pysim_epilogue;

typedef struct {
    double pack_seconds;   /* input packing, padding included (and A/B packing in a GEMM) */
    double kernel_seconds; /* micro-kernel calls */
    int64_t packed_tiles;
    int64_t kernel_calls;
} pysim_profile;

typedef struct {
    const char *name, *target, *form;
    int32_t dtype;
    int32_t windows, filters;           /* block of one call */
    int32_t lane_windows, lane_filters; /* windows x filters covered by one multiply-add instruction */
    int32_t available;                  /* this CPU can run it */
} pysim_kernel_info;

int32_t pysim_abi_version(void);
/* Lines of text: PYSIM_DECLARATIONS; each kernel, algorithm, activation and operator on rows that callers name by its number. */
const char *pysim_tables(void);
/* change: 1, and -1 after the calls of this thread whose floats' multiply-adds have to round once in all operators on any CPU; vector
 * instructions do so anyway. */
void pysim_round_once(int32_t change);
/* The CPUs that other processes leave to this one: its threads but the callers' are placed on these if there are enough. count 0: on any
 * that callers may use, as before the first call. */
void pysim_own_cpus(const int32_t *cpus, int32_t count);
const char *pysim_last_error(void);

int32_t pysim_kernel_count(void);
pysim_status pysim_kernel_at(int32_t index, pysim_kernel_info *out);

/* P and Q; of volumes, those of a slice. */
pysim_status pysim_conv_output(const pysim_conv *c, int64_t *p, int64_t *q);

/* The second operand of a run (filters, B) is the result of pysim_prepare under the same problem and schedule, or the weights themselves
 * if pysim_prepared_bytes says 0. Packed filters end with a mark: whether the problem is padded and any weight is not finite. */
enum { PYSIM_PACKED_MARK_BYTES = 8 };
pysim_status pysim_prepared_bytes(const pysim_problem *p, const pysim_schedule *s, int64_t *bytes);
pysim_status pysim_prepare(const pysim_problem *p, const pysim_schedule *s, const void *weights, void *prepared, int64_t prepared_bytes);
pysim_status pysim_workspace_bytes(const pysim_problem *p, const pysim_schedule *s, int32_t threads, int64_t *bytes);

/* A job is a problem under a schedule, checked once for many runs. It lies in a buffer of the caller's, of pysim_job_bytes() bytes aligned
 * to 8, which must stay where it is and needs no release. The problem and the schedule need not outlive pysim_open. Runs only read the job:
 * any number of threads may run it at the same time, each with its own workspace. */
int64_t pysim_job_bytes(void);
pysim_status pysim_open(const pysim_problem *p, const pysim_schedule *s, void *job, int64_t job_bytes);
/* first, second, result: input, filters and output of a convolution; A, B and C of a product. */
pysim_status pysim_run_job(const void *job, const pysim_epilogue *e, int32_t threads, const void *first, const void *second, void *result,
                           void *workspace, int64_t workspace_bytes, pysim_profile *profile);
/* A single run: pysim_open and pysim_run_job. */
pysim_status pysim_run(const pysim_problem *p, const pysim_schedule *s, const pysim_epilogue *e, int32_t threads, const void *first,
                       const void *second, void *result, void *workspace, int64_t workspace_bytes, pysim_profile *profile);
/* Plain loops; nothing is prepared. */
pysim_status pysim_reference(const pysim_problem *p, const pysim_epilogue *e, const void *first, const void *second, void *result);

/* Operators between convolutions, of f32 and f64, on one thread. */

/* y[k][i] = act(scale[k % period] x[k][i] + shift[k % period] + residual[k][i]) for planes k of `size` elements. scale, shift and the
 * epilogue's residual may be NULL: nothing is multiplied or added; its alpha, beta and bias are not read. y may be x, or lie apart. Planes
 * may lie in blocks, [planes/block][size][block]; blocks divide planes and period. */
typedef struct {
    int64_t planes, size, period;
    int32_t dtype;
    int32_t block; /* planes in a block; 0 and 1: planes */
} pysim_map;
pysim_status pysim_run_map(const pysim_map *m, const pysim_epilogue *e, const void *x, const void *scale, const void *shift, void *y);

/* The largest element or the mean of windows of planes [height][width], out_h x out_w of them. Padding is in no window; a mean divides by the
 * elements inside the image, or, with count_padding, inside the padded one. A window may reach beyond the padding, but not begin there. */
typedef struct {
    int64_t planes, height, width, out_h, out_w;
    int64_t kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w;
    int64_t pad_top, pad_left, pad_bottom, pad_right;
    int32_t largest, count_padding;
    int32_t dtype;
    int32_t block; /* planes per block ([planes/block][height][width][block]); 0 and 1: planes */
} pysim_pool;
pysim_status pysim_run_pool(const pysim_pool *p, const void *x, void *y);

/* Layout conversion of planes of `size` elements: [planes/block][block][size] to [planes/block][size][block], or back. Of bf16 planes are f32. */
typedef struct {
    int64_t planes, size;
    int32_t block, to_planes;
    int32_t dtype;
} pysim_reorder;
pysim_status pysim_run_reorder(const pysim_reorder *r, const void *x, void *y);

/* y[i][j]... = x[i][j]... for up to 6 axes, with strides `from` in x and `to` in y: permuted axes, slices, parts of a whole. Stride 0 in
 * `from` repeats an element; no two elements may go to one place. */
typedef struct {
    int64_t sizes[6], from[6], to[6];
    int32_t axes;
    int32_t dtype;
} pysim_copy;
pysim_status pysim_run_copy(const pysim_copy *c, const void *x, void *y);

/* y = act(a op b), or of bytes b and kind choose y = b ? a : y, for up to 6 axes, with strides `a_steps` in a and `b_steps` in b; stride 0 repeats an element. y is dense, and may be
 * an operand that is dense. Of the epilogue, activation and bounds are read. */
typedef enum { PYSIM_ADD = 0, PYSIM_SUBTRACT = 1, PYSIM_MULTIPLY = 2, PYSIM_DIVIDE = 3, PYSIM_CHOOSE = 4 } pysim_pair_kind;
typedef struct {
    int64_t sizes[6], a_steps[6], b_steps[6];
    int32_t axes, kind; /* pysim_pair_kind */
    int32_t dtype;
} pysim_pair;
pysim_status pysim_run_pair(const pysim_pair *p, const pysim_epilogue *e, const void *a, const void *b, void *y);

/* Of each row of `size` elements x, `inner` apart, where all but lengths have as many rows beside each other ([rows][size][inner]):
 *   softmax    y[i] = exp(x[i] - max) / sum of those
 *   log_softmax  y[i] = x[i] - max - log(sum of exp(x[i] - max))
 *   standard   y[i] = (x[i] - mean) / sqrt(variance + epsilon) scale[i] + shift[i]; scale and shift, of `size` elements, may be NULL
 *   length     y = sqrt(sum of x[i]^2), a number a row
 *   local      y[i] = x[i] / (epsilon + alpha sum of x[j]^2)^beta, i - (window - 1) / 2 <= j <= i + window / 2
 * y may be x, but for lengths and local. */
typedef enum {
    PYSIM_ROWS_SOFTMAX = 0,
    PYSIM_ROWS_STANDARD = 1,
    PYSIM_ROWS_LENGTH = 2,
    PYSIM_ROWS_LOCAL = 3,
    PYSIM_ROWS_LOG_SOFTMAX = 4
} pysim_rows_kind;
typedef struct {
    int64_t rows, size, inner, window;
    double epsilon, alpha, beta; /* epsilon and alpha are at least 0, of local epsilon is above 0 */
    int32_t kind;                /* pysim_rows_kind */
    int32_t dtype;
} pysim_rows;
pysim_status pysim_run_rows(const pysim_rows *r, const void *x, const void *scale, const void *shift, void *y);

/* Gather: y[o][i][n] = x[o][at[i]][n] of x[outer][size][inner] and y[outer][count][inner]. If `shares` of dtype are given,
 * interpolation: the sum over `taps` of shares[t count + i] x[o][at[t count + i]][n]. at[i] < 0 counts from the end; an index outside is
 * refused before anything is written. taps 0: each element has an index, at[o][i][n]. */
typedef struct {
    int64_t outer, size, inner, count, taps;
    int32_t dtype;
} pysim_take;
pysim_status pysim_run_take(const pysim_take *t, const void *x, const int64_t *at, const void *shares, void *y);

#include "abi/operators.h"

/* A sequence of calls of pysim_run_job, pysim_run_map and the others: the operators of a network in one call. */
typedef enum {
    PYSIM_STEP_RUN = 0,
    PYSIM_STEP_MAP = 1,
    PYSIM_STEP_POOL = 2,
    PYSIM_STEP_REORDER = 3,
    PYSIM_STEP_COPY = 4,
    PYSIM_STEP_PAIR = 5,
    PYSIM_STEP_ROWS = 6,
    PYSIM_STEP_TAKE = 7,
    PYSIM_STEP_PRODUCTS = 8,
    PYSIM_STEP_ATTENTION = 9,
    PYSIM_STEP_QUANTIZE = 10,
    PYSIM_STEP_DEQUANTIZE = 11,
    PYSIM_STEP_QUANTIZE_RANGE = 12, /* of: pysim_quantized; second and third: the scale and the zero that are written */
    PYSIM_STEP_SUMS = 13,
    PYSIM_STEP_TABLE = 14, /* of: pysim_quantized; second: the table */
    PYSIM_STEP_BYTE_PAIR = 15,
    PYSIM_STEP_BYTE_POOL = 16,
    PYSIM_STEP_BYTE_PAD = 17,
    PYSIM_STEP_FOLD = 18,
    PYSIM_STEP_BEST = 19, /* third: the places */
    PYSIM_STEP_HALVES = 20,
    PYSIM_STEP_SAMPLE = 21,
    PYSIM_STEP_RECURRENT = 22,
    PYSIM_STEP_BYTE_MEANS = 23,
    PYSIM_STEP_FEW_BITS = 24,
    PYSIM_STEP_BYTE_PRODUCTS = 25,
    PYSIM_STEP_BYTE_SOFTMAX = 26
} pysim_step_kind;
typedef struct {
    int32_t kind, threads;              /* which function; threads of RUN to REORDER, PRODUCTS, ATTENTION, and from FEW_BITS on */
    const void *of;                     /* a job, pysim_map and so on */
    const pysim_schedule *schedule;     /* PYSIM_STEP_PRODUCTS only; workspace: this, RUN, ATTENTION, RECURRENT, BYTE_PRODUCTS */
    const pysim_epilogue *epilogue;     /* of a run, products, a map and a pair */
    const void *first, *second, *third; /* the function's operands, in its order */
    void *result, *workspace;
    int64_t workspace_bytes;
} pysim_step;
/* Stops at the first call that fails, with its status and pysim_last_error(). */
pysim_status pysim_run_steps(const pysim_step *steps, int64_t count);
/* Checks the arguments of a step of kind RUN; then, as long as no field changes, the step may run without checks. */
pysim_status pysim_check_step(const pysim_step *step);
void pysim_run_checked_step(const pysim_step *step);

/* The baseline's data movement: columns[channels*kernel_h*kernel_w][P*Q] of one image of one group (channels = C/groups). */
pysim_status pysim_im2col(const pysim_conv *c, const void *image, void *columns);

/* Probes of the running CPU. target is a registry target that is available. */
pysim_status pysim_probe_clock(double *hertz);
pysim_status pysim_probe_fma(const char *target, int32_t dtype, double *instructions_per_second);
pysim_status pysim_probe_read(void *buffer, int64_t bytes, double seconds, double *bytes_per_second);
pysim_status pysim_probe_write(void *buffer, int64_t bytes, double seconds, double *bytes_per_second);
/* Load latency: a pointer chase over the buffer's lines in random order. The buffer is aligned to 8 and has two lines or more. */
pysim_status pysim_probe_latency(void *buffer, int64_t bytes, int64_t line_bytes, double seconds, double *seconds_per_load);
/* Lines that one CPU has written and another then reads and writes, between the caller's CPU and that of thread 1 of a team. The buffer is
 * aligned to 8 and has one line or more. PYSIM_UNSUPPORTED if no second thread gets a CPU of its own. */
pysim_status pysim_probe_line_transfer(void *buffer, int64_t bytes, int64_t line_bytes, double seconds, double *seconds_per_line);

/* Exact cache simulation. A hierarchy is `levels` caches, L1 first, seen by `cores` cores; its whole state lies in one buffer of
 * the caller (8-byte aligned, no pointers inside: a copy of the bytes is a copy of the caches). docs: native/simulator/simulate_levels.h. */
enum {
    PYSIM_CACHE_LEVELS = 8,  /* at most */
    PYSIM_CACHE_CORES = 256, /* at most */
    PYSIM_CACHE_DEGREE = 16, /* lines that one event may prefetch, at most */
    PYSIM_CACHE_SPLITS = 32, /* counters are split by tag: entry operand + 8*phase */
};

typedef enum { PYSIM_LRU = 0, PYSIM_PLRU = 1, PYSIM_FIFO = 2, PYSIM_RANDOM = 3 } pysim_cache_policy;
typedef enum { PYSIM_NON_INCLUSIVE = 0, PYSIM_INCLUSIVE = 1, PYSIM_EXCLUSIVE = 2 } pysim_cache_inclusion;
typedef enum { PYSIM_PREFETCH_NONE = 0, PYSIM_PREFETCH_NEXT_LINE = 1, PYSIM_PREFETCH_STREAM = 2 } pysim_cache_prefetch;

typedef struct {
    int64_t sets, ways, line_bytes;
    int32_t policy;             /* pysim_cache_policy; PLRU needs ways = 1, 2, 4 .. 64 */
    int32_t inclusion;          /* pysim_cache_inclusion, towards the levels inside; the first level is non-inclusive */
    int32_t write_back;         /* 0: write-through */
    int32_t write_allocate;     /* 0: a store miss does not allocate */
    int32_t fetch_on_writeback; /* 0: a write-back that covers a whole line allocates it without reading the next level */
    int32_t prefetch;           /* pysim_cache_prefetch */
    int32_t prefetch_degree;    /* lines per event, 1..PYSIM_CACHE_DEGREE; not read if prefetch is NONE */
    int32_t shared;             /* 0: each core has its own; a shared level may not lie inside a private one */
} pysim_cache_level;

typedef struct {
    int32_t levels, cores;
    uint64_t seed;              /* of the levels with random replacement */
    pysim_cache_level level[8]; /* PYSIM_CACHE_LEVELS, L1 first */
} pysim_cache_config;

typedef struct {
    int64_t loads, stores, load_misses, store_misses;
    int64_t evictions, writebacks, invalidations, victims;
    int64_t bytes_read, bytes_written; /* from and to the next level */
    int64_t prefetches, prefetch_hits;
} pysim_cache_counters;

pysim_status pysim_cache_state_bytes(const pysim_cache_config *config, int64_t *bytes);
/* Empties the caches and zeroes the counters. */
pysim_status pysim_cache_init(const pysim_cache_config *config, void *state, int64_t state_bytes);
/* n accesses in order: sizes in bytes (at least 1), is_write 0 or 1, tags operand | phase << 4 (operand 0..7, phase 0..3) or NULL
 * for 0, cores or NULL for core 0. Addresses lie in 0..2^56-1. A chunk with a bad access is refused before the first one counts. */
pysim_status pysim_cache_access(void *state, int64_t n, const int64_t *addresses, const int32_t *sizes, const uint8_t *is_write,
                                const uint8_t *tags, const uint8_t *cores);
/* Writes every dirty line back to memory; lines stay where they are, clean, and nothing is allocated on the way. */
pysim_status pysim_cache_flush(void *state);
/* out holds PYSIM_CACHE_SPLITS entries. */
pysim_status pysim_cache_read_counters(const void *state, int32_t level, pysim_cache_counters *out);
pysim_status pysim_cache_clear_counters(void *state);
/* The lines that a level (that of `core`, where it is private) holds: byte addresses and 0/1 for dirty, in set order, at most
 * sets*ways of them; both arrays have that size. */
pysim_status pysim_cache_contents(const void *state, int32_t level, int32_t core, int64_t *addresses, uint8_t *dirty, int64_t *count);

/* The accesses of one run on one thread, in order, as the macro-kernel's own loops make them; the schedule's kernel need not run on
 * this CPU. Addresses count from the bases; nothing is dereferenced. One access is what one vector instruction moves (masked lanes
 * left out), or one element where the kernel reads elements. Tags: operand | phase << 4 with operands input 1, filter 2, output 3,
 * packed_input 4, packed_filter 5, columns 6 and phases pack 1, compute 2, store 3. docs: native/simulator/trace.c. */
typedef struct {
    int64_t input;   /* image; B of a product */
    int64_t filters; /* packed panels; A of a product */
    int64_t output;  /* C of a product */
    int64_t workspace;
    int64_t columns; /* im2col's output, and B of a product if input is 0 */
} pysim_trace_bases;
typedef void (*pysim_trace_sink)(void *context, int64_t n, const int64_t *addresses, const int32_t *sizes, const uint8_t *is_write,
                                 const uint8_t *tags);
/* Of a product with alpha = 1, beta = 0. */
pysim_status pysim_trace(const pysim_problem *p, const pysim_schedule *s, const pysim_trace_bases *at, pysim_trace_sink sink,
                         void *context);
/* One image of one group, as pysim_im2col. */
pysim_status pysim_im2col_trace(const pysim_conv *c, const pysim_trace_bases *at, pysim_trace_sink sink, void *context);
/* Feeds the accesses into a cache state; adds their number to *accesses. */
pysim_status pysim_simulate(const pysim_problem *p, const pysim_schedule *s, const pysim_trace_bases *at, void *cache_state,
                            int64_t *accesses);
pysim_status pysim_im2col_simulate(const pysim_conv *c, const pysim_trace_bases *at, void *cache_state, int64_t *accesses);

/* Fingerprints of blocks of memory, which tell that somebody wrote to them: of all bytes of a block of at most `whole_bytes` (8 or more), of
 * 24 words of 8 bytes, evenly spaced, of a larger one. `fingerprints` holds those of the last call and gets the present ones; `changed` holds `count`
 * places and gets the indices of the *changes blocks whose fingerprint is another. */
pysim_status pysim_fingerprints(int64_t count, const void *const *memory, const int64_t *bytes, int64_t whole_bytes, uint64_t *fingerprints,
                                int64_t *changed, int64_t *changes);
/* Programs on columns: elementwise operations on doubles, as Python records them of equations on tables (pysim/cachemodel/equations.py). Each
 * writes register `to` from others: comparisons 1 or 0, PYSIM_ROW_SELECT `b` where `a` is not 0, else `c`. PYSIM_ROW_INPUT reads row `a` of the
 * inputs, PYSIM_ROW_OUTPUT writes row `to` of the outputs from register `a`. Unused numbers are register 0. */
enum { PYSIM_PROGRAM_LANES = 64 };
typedef enum {
    PYSIM_ROW_INPUT = 0,
    PYSIM_ROW_OUTPUT = 1,
    PYSIM_ROW_ADD = 2,
    PYSIM_ROW_SUBTRACT = 3,
    PYSIM_ROW_MULTIPLY = 4,
    PYSIM_ROW_DIVIDE = 5,
    PYSIM_ROW_MINIMUM = 6,
    PYSIM_ROW_MAXIMUM = 7,
    PYSIM_ROW_GREATER = 8,
    PYSIM_ROW_GREATER_EQUAL = 9,
    PYSIM_ROW_EQUAL = 10,
    PYSIM_ROW_FLOOR = 11,
    PYSIM_ROW_CEIL = 12,
    PYSIM_ROW_SQRT = 13,
    PYSIM_ROW_EXP = 14,
    PYSIM_ROW_SELECT = 15,
    PYSIM_ROW_POWER = 16,
} pysim_operation;
typedef struct {
    int32_t operation, to, a, b, c;
} pysim_instruction;
/* The first `constants` registers hold constants, and no instruction writes them. */
typedef struct {
    int64_t length;
    const pysim_instruction *instructions;
    int32_t constants, registers, inputs, outputs;
} pysim_program;
/* Rows of inputs and outputs have `columns` elements each; `work` holds PYSIM_PROGRAM_LANES for each register. */
pysim_status pysim_evaluate(const pysim_program *p, int64_t columns, const double *constants, const double *inputs, double *outputs,
                            double *work);
/* cdef end */
#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
