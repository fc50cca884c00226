/* SPDX-License-Identifier: Apache-2.0
 * The C ABI of pysim on NVIDIA GPUs, by the rules and with the types of pysim.h; cffi reads the part between the two "cdef" marks behind
 * that one's.
 *
 * A library of its own (libpysim_cuda) exports these functions alone. Pointers are the device's unless said otherwise,
 * `stream` is a cudaStream_t (NULL: the default stream). Nothing here waits for the device but pysim_cuda_*_time, _copy, _synchronize
 * and the probes, pysim_cuda_probe_*. docs: native/cuda/gemm/gemm.h, native/cuda/conv/conv.h, native/cuda/probe/probe.cu. */
#ifndef PYSIM_CUDA_H
#define PYSIM_CUDA_H
#include "pysim.h"
#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default) /* all else in the library is hidden */
/* cdef begin */
#define PYSIM_CUDA_DECLARATIONS 0x88f8bcb4 /* as PYSIM_DECLARATIONS, of the declarations here */
typedef struct {
    char name[256];
    int32_t major, minor, sms;
    int64_t memory_bytes, l2_bytes, shared_bytes_per_sm, shared_bytes_per_block, registers_per_sm;
    int32_t threads_per_sm, blocks_per_sm, clock_khz, memory_clock_khz, driver, runtime;
} pysim_cuda_device;

/* C[m][n] = f(alpha op(A)[m][k] op(B)[k][n] + beta C + bias[n]), row-major; ld* in elements. */
typedef struct {
    int64_t m, n, k;
    int64_t lda, ldb, ldc;
    int32_t trans_a, trans_b;
    int32_t dtype;        /* of A and B, and how they are multiplied */
    int32_t c_dtype;      /* of C and bias: f32 for f32, tf32 and tf32x3, f64, f16|f32, bf16|f32, s32 for s8, f16|bf16|f32 for f8 */
    const void *prepared; /* NULL, or what pysim_cuda_prepare made of this B under this schedule's row; a run reads B itself, too */
} pysim_cuda_gemm;

/* Convolution on a GPU. Under NCHW filters lie [filter][channel][kernel_h][kernel_w], under NHWC [filter][kernel_h][kernel_w][channel];
 * channels are those of one group. Volumes: NCDHW, filters [..][kernel_d][kernel_h][kernel_w], and NDHWC. A volume whose windows join no rows and no
 * columns is computed as the image whose rows are slices. Tensors are dense. */
typedef enum { PYSIM_NCHW = 0, PYSIM_NHWC = 1 } pysim_layout;
typedef struct {
    pysim_conv shape;  /* its dtype: of input and filters, and how they are multiplied */
    int32_t layout;    /* pysim_layout, of input and output */
    int32_t out_dtype; /* of output and bias, as c_dtype of a product */
} pysim_cuda_conv;

typedef struct {
    int32_t kind; /* pysim_problem_kind: which of the two is meant */
    union {
        pysim_cuda_conv conv;
        pysim_cuda_gemm gemm;
    };
} pysim_cuda_problem;

typedef enum { PYSIM_DATA_PARALLEL = 0, PYSIM_SPLIT_K = 1, PYSIM_STREAM_K = 2 } pysim_cuda_decomposition;

/* What a launch obeys. The decomposition is of a convolution's tiles of filters x windows, too, or of the product of an algorithm that makes
 * one; splits of a row whose form is staged, which is data parallel only: its chunks of windows, 1.. */
typedef struct {
    int32_t kernel;        /* row of native/cuda/gemm, for a convolution of native/cuda/conv */
    int32_t decomposition; /* pysim_cuda_decomposition */
    int32_t splits;        /* SPLIT_K: parts of k, 2..; STREAM_K: blocks that share all k-iterations, 2..; else 1 */
    int32_t along_n;       /* 0: neighbouring blocks go down a column of tiles (along m), 1: along n */
    int32_t group;         /* tiles of the other direction per group of the rasterisation, 1.. */
    /* row of native/cuda/gemm where a convolution's algorithm makes products; of a row of residues: the row that computes in this decomposition
     * where operands are outside the bound, or -1: the first; else -1 */
    int32_t gemm;
} pysim_cuda_schedule;

/* What becomes of a convolution's f32 input as it is read, before zeros are added around it: x(n, c, h, w) = r(scale[c] x(n, c, h, w) + shift[c]), one
 * multiply-add, r(y) = 0 for y < 0 where `relu` is 1, else y. */
typedef struct {
    const void *scale; /* NULL: 1; else an f32 value a channel, or `by_image` one an image and channel, [image][channel] */
    const void *shift; /* NULL: 0; else an f32 value a channel */
    int32_t by_image, relu;
} pysim_cuda_prologue;

/* Values of `activation` are the lines of native/cuda/epilogues.inc. */
typedef struct {
    double alpha, beta; /* alpha == 0: the operands are not read; beta == 0: the result is not read */
    const void *bias;   /* NULL, or one value of the result's dtype per column of C (product) or filter (convolution) */
    int32_t activation;
    double low, high; /* of clamp; of leaky_relu the factors of negative numbers and of others */
    /* NULL, or what the product is multiplied by besides alpha: as many as of the bias, of f64 for f64, else f32; not s32 */
    const void *scale;
    int32_t by_row;                      /* of a product: 1: bias and scale have a value per row of C; else 0 */
    const pysim_cuda_prologue *prologue; /* NULL, or of a convolution, in host memory: what comes first */
} pysim_cuda_epilogue;

typedef struct {
    const char *name, *family, *form;
    int32_t dtype;
    int32_t block_m, block_n, block_k; /* tile of a thread block, and its step along k */
    int32_t warp_m, warp_n;            /* tile of a warp (wgmma: of a warpgroup) */
    int32_t thread_m, thread_n;        /* tile of a thread (tensor cores: of one instruction) */
    int32_t stages;                    /* tiles of A and B in shared memory at once */
    int32_t cluster_m, cluster_n;
    int32_t capability; /* least, as 10*major + minor; 90 needs sm_90a */
} pysim_cuda_gemm_info;

typedef struct {
    int32_t threads, registers, blocks_per_sm;
    int64_t shared_bytes, local_bytes;
} pysim_cuda_attributes;

const char *pysim_cuda_last_error(void);
/* Lines of text: the two numbers of the declarations, and each activation. Rows: pysim_cuda_gemm_at and pysim_cuda_conv_at. */
const char *pysim_cuda_tables(void);
pysim_status pysim_cuda_device_count(int32_t *count);
pysim_status pysim_cuda_device_at(int32_t index, pysim_cuda_device *out);

int32_t pysim_cuda_gemm_count(void);
pysim_status pysim_cuda_gemm_at(int32_t index, pysim_cuda_gemm_info *out);

/* What must be finite, or results may be NaN where the definition has numbers. */
typedef enum {
    PYSIM_FINITE_NOTHING = 0,
    PYSIM_FINITE_FILTERS = 1, /* where the problem is padded */
    PYSIM_FINITE_OPERANDS = 2,
} pysim_needs_finite;

typedef struct {
    const char *name, *family, *form;
    int32_t dtype;
    int32_t block_filters, block_windows, block_k; /* tile of a thread block, and its step along k; 0 where it has none */
    int32_t warp_filters, warp_windows;
    int32_t thread_filters, thread_windows;
    int32_t stages;
    int32_t outputs;       /* edge of the square of outputs that a window stands for: 2 and 4 for Winograd's F(2x2) and F(4x4), else 1 */
    int32_t makes_product; /* 1: the schedule names a row of gemm/ */
    int32_t capability;
    int32_t needs_finite;   /* pysim_needs_finite */
    int32_t takes_prologue; /* 1: of some problems; of others pysim_cuda_run refuses one with PYSIM_UNSUPPORTED */
    int32_t takes_volumes;  /* 1: also volumes other than those that images stand for, see pysim_cuda_conv */
} pysim_cuda_conv_info;

int32_t pysim_cuda_conv_count(void);
pysim_status pysim_cuda_conv_at(int32_t index, pysim_cuda_conv_info *out);

/* Whether the current device runs a row of PYSIM_GEMM or PYSIM_CONV by the code that this build has for it; PYSIM_UNSUPPORTED, and why not. */
pysim_status pysim_cuda_available(int32_t kind, int32_t kernel);

/* Of the kernel that would do most of the work; needs a device. */
pysim_status pysim_cuda_attributes_of(const pysim_cuda_problem *p, int32_t kernel, pysim_cuda_attributes *out);
/* For partial sums, and for operands that the kernel cannot take as they lie; of a product's operands the alignment is looked at, of nothing
 * else. Refuses with PYSIM_UNSUPPORTED and the reason what the kernel does not compute. */
pysim_status pysim_cuda_workspace_bytes(const pysim_cuda_problem *p, const pysim_cuda_schedule *s, const void *first, const void *second,
                                        int64_t *bytes);
/* What a run need not make again of a B that stays: residues, of rows of residues; of other rows and of convolutions nothing, 0 bytes. Any alignment. */
pysim_status pysim_cuda_prepared_bytes(const pysim_cuda_problem *p, const pysim_cuda_schedule *s, int64_t *bytes);
pysim_status pysim_cuda_prepare(const pysim_cuda_problem *p, const pysim_cuda_schedule *s, const void *second, void *prepared,
                                int64_t prepared_bytes, void *stream);
/* first, second, result: A, B and C of a product; input, filters and output of a convolution.
 * result = f(alpha scale (product or convolution) + beta result + bias) */
pysim_status pysim_cuda_run(const pysim_cuda_problem *p, const pysim_cuda_schedule *s, const pysim_cuda_epilogue *e, const void *first,
                            const void *second, void *result, void *workspace, int64_t workspace_bytes, void *stream);

/* A norm between products as one pass over memory. Rows are pixels of tensors whose channels lie last, dense, of f32, f16 or bf16; the result is of the
 * same type or, where one of the two is f32, another. Computed in f32:
 *     y[r][c] = f(scale[c] (x[r][c] - center) + shift[c]),   f(v) = 0 for v < 0 where `relu` is 1, else v
 * PYSIM_NORM_CHANNELS: center is that of the channel, and x a concatenation along channels, whose parts are read where they lie.
 * PYSIM_NORM_ROWS: of one part, center is the row's mean, and differences from it are divided by sqrt(their mean square + epsilon). */
typedef enum { PYSIM_NORM_CHANNELS = 0, PYSIM_NORM_ROWS = 1 } pysim_norm_kind;
enum { PYSIM_CUDA_PARTS = 64 }; /* of a concatenation, at most */
typedef struct {
    int32_t kind, dtype, out_dtype, relu, parts;
    int64_t rows;
    int64_t channels[64];      /* PYSIM_CUDA_PARTS, of each part */
    const void *center;        /* an f32 value a channel, as scale and shift; NULL: 0, and of PYSIM_NORM_ROWS always */
    const void *scale, *shift; /* NULL: 1 and 0 */
    double epsilon;            /* of PYSIM_NORM_ROWS: 0 or more */
    /* 0; or of PYSIM_NORM_CHANNELS: the rows of an image, of which each has a scale of its own, [image][channel] */
    int64_t image_rows;
} pysim_cuda_norm;
/* `parts` lies in host memory. */
pysim_status pysim_cuda_normalize(const pysim_cuda_norm *n, const void *const *parts, void *result, void *stream);

/* A norm of groups of channels of each image as one pass over memory, of dense images whose channels lie last, of f32, f16 or bf16. The mean of a
 * group is that of all of its pixels and channels, and differences from it are divided by sqrt(their mean square + epsilon), computed in f32:
 *     y[i][p][c] = f(scale[c] (x[i][p][c] - mean) / sqrt(variance + epsilon) + shift[c] + residual[i][p][c])
 * f is the activation of this number, low and high as in an epilogue. A group's pixels must fit into the shared memory of the blocks that exchange sums. */
typedef struct {
    int32_t dtype, activation;
    int64_t images, pixels, channels, groups;
    int32_t parameters;        /* the dtype of scale and shift: f32 or that of the images */
    const void *scale, *shift; /* a value a channel; NULL: 1 and 0 */
    const void *residual;      /* NULL, or as large as the images and of their type */
    double epsilon;            /* 0 or more */
    double low, high;
} pysim_cuda_group_norm;
/* Whether the current device computes a norm: PYSIM_UNSUPPORTED, and why not. Looks at no memory. */
pysim_status pysim_cuda_normalizes_groups(const pysim_cuda_group_norm *n);
pysim_status pysim_cuda_normalize_groups(const pysim_cuda_group_norm *n, const void *x, void *result, void *stream);

/* The outputs of a convolution whose filters are the phases of a transposed one, filter for filter, interleaved: along each axis (slices, rows and
 * columns; of images one slice), phase r of window p becomes position p stride + r - start of the result, if it lies in its `out`. Both are dense in one layout;
 * phases are numbered with the last axis the fastest. */
typedef struct {
    int32_t layout, element_bytes; /* pysim_layout; 2, 4 or 8 */
    int64_t batch, filters;        /* of the result */
    int64_t windows[3], strides[3], starts[3], out[3];
} pysim_cuda_phases;
pysim_status pysim_cuda_interleave(const pysim_cuda_phases *p, const void *from, void *to, void *stream);

/* The largest element of each window of channels-last images of f32, f16 or bf16, along rows and columns. Padding is never larger; a window of padding
 * alone gives minus infinity, one with a NaN NaN; of zeros of both signs the first counts. */
typedef struct {
    int32_t dtype;
    int64_t batch, channels;
    int64_t in[2], out[2], windows[2], strides[2], pads[2] /* before the first row and column */, dilations[2];
} pysim_cuda_pool;
pysim_status pysim_cuda_max_pool(const pysim_cuda_pool *p, const void *from, void *to, void *stream);

/* Runs one after another: layers of a network in one call. An operand lies `offset` bytes behind base number `base` of those that are given. */
typedef struct {
    int32_t base;
    int64_t offset;
} pysim_cuda_place;
typedef struct {
    const pysim_cuda_problem *problem;
    const pysim_cuda_schedule *schedule;
    const pysim_cuda_epilogue *epilogue;
    pysim_cuda_place first, second, result, workspace;
    int64_t workspace_bytes;
    /* NULL; or what becomes of `parts`: of what stands above only `result` is looked at, and, where images have scales of their own, `first`,
     * which is where these lie */
    const pysim_cuda_norm *norm;
    const pysim_cuda_place *parts;
} pysim_cuda_step;
/* Until one fails: its status, and its sentence for pysim_cuda_last_error. */
pysim_status pysim_cuda_run_steps(const pysim_cuda_step *steps, int64_t count, const uint64_t *bases, void *stream);
/* Plain loops on the device, summed in f64 (s8: in s64). */
pysim_status pysim_cuda_reference(const pysim_cuda_problem *p, const pysim_cuda_epilogue *e, const void *first, const void *second,
                                  void *result, void *stream);
/* Device seconds of each of `samples` runs after `warmups` others, between two events. */
pysim_status pysim_cuda_time(const pysim_cuda_problem *p, const pysim_cuda_schedule *s, const pysim_cuda_epilogue *e, const void *first,
                             const void *second, void *result, void *workspace, int64_t workspace_bytes, void *stream, int32_t warmups,
                             int32_t samples, double *seconds);

typedef enum { PYSIM_TO_DEVICE = 1, PYSIM_TO_HOST = 2, PYSIM_ON_DEVICE = 3 } pysim_cuda_direction;
pysim_status pysim_cuda_allocate(int64_t bytes, void **out);
pysim_status pysim_cuda_release(void *memory);
pysim_status pysim_cuda_copy(void *to, const void *from, int64_t bytes, int32_t direction, void *stream);
pysim_status pysim_cuda_synchronize(void *stream);

/* Probes of the current device. Each makes `samples` launches after one that does not count, waits for them, and writes one number of
 * each. `scratch` is PYSIM_CUDA_PROBE_BYTES of device memory, aligned to 8. docs: native/cuda/probe/probe.cu. */
enum {
    PYSIM_CUDA_PROBE_BYTES = 1024,
    PYSIM_CUDA_PROBE_WARPS = 16,    /* of a pysim_cuda_shared_probe, at most */
    PYSIM_CUDA_PROBE_REGION = 4096, /* bytes of shared memory that each of its warps has to itself */
};

/* One instruction of shared memory, which every warp of one block issues again and again. */
typedef struct {
    int32_t width_bytes; /* of a lane's access: 4, 8 or 16 */
    int32_t is_store;    /* 0: LDS, 1: STS */
    int32_t dependent;   /* 1: each load takes its address from the one before; 0 for stores */
    int32_t warps;       /* 1..PYSIM_CUDA_PROBE_WARPS */
    uint32_t active;     /* bit T: lane T takes part; one at least */
    int32_t offsets[32]; /* bytes into the region, multiples of width_bytes; those of lanes that take no part are not read */
} pysim_cuda_shared_probe;
/* Cycles of the SM for each instruction of all warps. */
pysim_status pysim_cuda_probe_shared(const pysim_cuda_shared_probe *probe, void *scratch, int32_t samples, double *cycles_per_instruction,
                                     void *stream);
/* Multiply-adds alone on all SMs, f32, f64, f16 (half2) or s8 (dp4a): those of one SM in a cycle, and of the device in a second. */
pysim_status pysim_cuda_probe_fma(int32_t dtype, void *scratch, int32_t samples, double *per_cycle, double *per_second, void *stream);
/* Overwrites the buffer (a multiple of 16 bytes, aligned to 16), then reads it `passes` times a launch, past L1. */
pysim_status pysim_cuda_probe_read(void *buffer, int64_t bytes, int32_t passes, void *scratch, int32_t samples, double *bytes_per_second,
                                   void *stream);
/* cdef end */
#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
