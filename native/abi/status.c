/* SPDX-License-Identifier: Apache-2.0
 * The thread's last error message, and the checks that every entry point makes before it touches an operand.
 *
 * Sizes are exact: the bytes of an operand reach from its first to its last element, so a matrix of m rows with leading dimension ld
 * spans ((m-1) ld + columns) elements; the slack after its last row is not part of it.
 *
 * Worked number: 1x64x56x56 with 64 3x3 filters, padding 1, f32: P = (56+1+1-2-1)/1+1 = 56, input 802,816 bytes. */
#include "status.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include "operators/loops.h"

static _Thread_local char last_error[512];

const char *pysim_last_error(void) { return last_error; }

int32_t pysim_abi_version(void) { return PYSIM_ABI_VERSION; }

pysim_status pysim_fail(pysim_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return status;
}

static const struct {
    const char *name;
    int32_t bytes, result;
} dtypes[] = {
    [PYSIM_F32] = {"f32", 4, PYSIM_F32},   [PYSIM_F64] = {"f64", 8, PYSIM_F64}, [PYSIM_F16] = {"f16", 2, PYSIM_F32},
    [PYSIM_BF16] = {"bf16", 2, PYSIM_F32}, [PYSIM_S8] = {"s8", 1, PYSIM_S32},   [PYSIM_S32] = {"s32", 4, PYSIM_S32},
    [PYSIM_U8] = {"u8", 1, PYSIM_S32},
};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

static int known(int32_t dtype) { return dtype >= 0 && dtype < DTYPES && dtypes[dtype].name; }

int64_t pysim_dtype_bytes(int32_t dtype) { return known(dtype) ? dtypes[dtype].bytes : 0; }

const char *pysim_dtype_name(int32_t dtype) { return known(dtype) ? dtypes[dtype].name : "?"; }

int32_t pysim_result_dtype(int32_t dtype) { return known(dtype) ? dtypes[dtype].result : dtype; }

pysim_status pysim_check_dtype(int32_t dtype) {
    if (!known(dtype)) return pysim_fail(PYSIM_BAD_ARGUMENT, "dtype is %d; 0 (f32), 1 (f64), 3 (bf16) and 4 (s8) exist", dtype);
    if (dtype == PYSIM_F16 || dtype == PYSIM_S32 || dtype == PYSIM_U8)
        return pysim_fail(PYSIM_UNSUPPORTED, "dtype is %d (%s), %s; a CPU computes in f32, f64, bf16 and s8", dtype, dtypes[dtype].name,
                          dtype == PYSIM_F16  ? "which is for GPUs"
                          : dtype == PYSIM_U8 ? "which is s8's first operand and a result only"
                                              : "which is a result only");
    return PYSIM_OK;
}

pysim_status pysim_product(const char *what, int32_t count, const int64_t *factors, int64_t *product) {
    int64_t value = 1;
    for (int32_t i = 0; i < count; i++) {
        if (__builtin_mul_overflow(value, factors[i], &value)) {
            char list[160];
            int used = 0;
            for (int32_t j = 0; j < count && used >= 0 && (size_t)used < sizeof list; j++)
                used += snprintf(list + used, sizeof list - (size_t)used, "%s%lld", j ? " x " : "", (long long)factors[j]);
            return pysim_fail(PYSIM_OVERFLOW, "%s: %s exceeds int64", what, list);
        }
    }
    *product = value;
    return PYSIM_OK;
}

typedef struct {
    const char *name;
    int64_t value;
} named;

static pysim_status check_least(const named *values, int32_t count, int64_t least) {
    for (int32_t i = 0; i < count; i++)
        if (values[i].value < least)
            return pysim_fail(PYSIM_BAD_ARGUMENT, "%s is %lld; expected at least %lld", values[i].name, (long long)values[i].value,
                              (long long)least);
    return PYSIM_OK;
}

/* One axis: out = (size + before + after - dilation (kernel-1) - 1) / stride + 1. */
static pysim_status output_axis(const char *axis, int64_t size, int64_t before, int64_t after, int64_t kernel, int64_t stride,
                                int64_t dilation, int64_t *out) {
    int64_t padded, extent;
    if (__builtin_add_overflow(size, before, &padded) || __builtin_add_overflow(padded, after, &padded))
        return pysim_fail(PYSIM_OVERFLOW, "%s %lld with padding %lld and %lld exceeds int64", axis, (long long)size, (long long)before,
                          (long long)after);
    if (__builtin_mul_overflow(dilation, kernel - 1, &extent) || __builtin_add_overflow(extent, 1, &extent))
        return pysim_fail(PYSIM_OVERFLOW, "a kernel of %lld with dilation %lld along the %s exceeds int64", (long long)kernel,
                          (long long)dilation, axis);
    if (padded < extent)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "the kernel spans %lld elements along the %s, but the padded input has %lld",
                          (long long)extent, axis, (long long)padded);
    *out = (padded - extent) / stride + 1;
    return PYSIM_OK;
}

static pysim_status check_block(const char *name, int32_t block, const char *of, int64_t count) {
    if (block >= 0 && (block <= 1 || count % block == 0)) return PYSIM_OK;
    return pysim_fail(PYSIM_BAD_ARGUMENT, "%s is %d; expected 0 (planes) or a divisor of the %lld %s", name, (int)block, (long long)count,
                      of);
}

static pysim_status check_blocks(const pysim_conv *c) {
    const pysim_status status = check_block("input_block", c->input_block, "channels", c->channels);
    return status == PYSIM_OK ? check_block("output_block", c->output_block, "filters", c->filters) : status;
}

pysim_status pysim_check_whole_blocks(const pysim_conv *c) {
    const int depthwise = c->groups > 1 && c->groups == c->channels && c->groups == c->filters;
    const int64_t groups = depthwise ? 1 : c->groups;
    const pysim_status status =
        check_block("input_block", c->input_block, depthwise ? "groups" : "channels of a group", c->channels / groups);
    if (status != PYSIM_OK) return status;
    return check_block("output_block", c->output_block, depthwise ? "groups" : "filters of a group", c->filters / groups);
}

static pysim_status depth_fields(const pysim_conv *c) {
    const named of_images[] = {{"kernel_d", c->kernel_d},
                               {"stride_d", c->stride_d},
                               {"dilation_d", c->dilation_d},
                               {"pad_front", c->pad_front},
                               {"pad_back", c->pad_back}};
    const named positive[] = {{"depth", c->depth}, {"kernel_d", c->kernel_d}, {"stride_d", c->stride_d}, {"dilation_d", c->dilation_d}};
    const named padding[] = {{"pad_front", c->pad_front}, {"pad_back", c->pad_back}};
    for (size_t i = 0; !c->depth && i < sizeof of_images / sizeof *of_images; i++)
        if (of_images[i].value)
            return pysim_fail(PYSIM_BAD_ARGUMENT, "depth is 0, so of an image, and %s is %lld; expected 0", of_images[i].name,
                              (long long)of_images[i].value);
    if (!c->depth) return PYSIM_OK;
    const pysim_status status = check_least(positive, 4, 1);
    return status == PYSIM_OK ? check_least(padding, 2, 0) : status;
}

pysim_conv pysim_as_volume(const pysim_conv *c) {
    pysim_conv of = *c;
    if (!of.depth) of.depth = of.kernel_d = of.stride_d = of.dilation_d = 1;
    return of;
}

int64_t pysim_out_slices(const pysim_conv *c) {
    return c->depth ? (c->depth + c->pad_front + c->pad_back - c->dilation_d * (c->kernel_d - 1) - 1) / c->stride_d + 1 : 1;
}

static pysim_status conv_fields(const pysim_conv *c) {
    const named positive[] = {
        {"batch", c->batch},       {"groups", c->groups},     {"channels", c->channels},     {"height", c->height},
        {"width", c->width},       {"filters", c->filters},   {"kernel_h", c->kernel_h},     {"kernel_w", c->kernel_w},
        {"stride_h", c->stride_h}, {"stride_w", c->stride_w}, {"dilation_h", c->dilation_h}, {"dilation_w", c->dilation_w},
    };
    const named padding[] = {
        {"pad_top", c->pad_top},
        {"pad_left", c->pad_left},
        {"pad_bottom", c->pad_bottom},
        {"pad_right", c->pad_right},
    };
    pysim_status status = check_least(positive, (int32_t)(sizeof positive / sizeof *positive), 1);
    if (status == PYSIM_OK) status = check_least(padding, (int32_t)(sizeof padding / sizeof *padding), 0);
    if (status == PYSIM_OK) status = depth_fields(c);
    if (status == PYSIM_OK) status = pysim_check_dtype(c->dtype);
    if (status != PYSIM_OK) return status;
    if (c->channels % c->groups)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "channels %lld do not divide into groups of equal size: groups is %lld",
                          (long long)c->channels, (long long)c->groups);
    if (c->filters % c->groups)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "filters %lld do not divide into groups of equal size: groups is %lld", (long long)c->filters,
                          (long long)c->groups);
    return check_blocks(c);
}

pysim_status pysim_check_conv(const pysim_conv *c, int64_t *p, int64_t *q, pysim_operands *operands) {
    int64_t rows = 0, columns = 0, slices = 1;
    if (!c) return pysim_fail(PYSIM_BAD_ARGUMENT, "the convolution is NULL");
    pysim_status status = conv_fields(c);
    if (status == PYSIM_OK)
        status = output_axis("height", c->height, c->pad_top, c->pad_bottom, c->kernel_h, c->stride_h, c->dilation_h, &rows);
    if (status == PYSIM_OK)
        status = output_axis("width", c->width, c->pad_left, c->pad_right, c->kernel_w, c->stride_w, c->dilation_w, &columns);
    if (status == PYSIM_OK && c->depth)
        status = output_axis("depth", c->depth, c->pad_front, c->pad_back, c->kernel_d, c->stride_d, c->dilation_d, &slices);
    if (status != PYSIM_OK) return status;

    /* of bf16 only blocks, if there are any, have that type */
    const int32_t wide = pysim_result_dtype(c->dtype), narrow = c->dtype == PYSIM_BF16 && c->output_block > 1;
    const int32_t first = narrow && c->input_block <= 1 ? wide : c->dtype, second = narrow ? wide : c->dtype,
                  result = narrow ? c->dtype : wide;
    const pysim_conv v = pysim_as_volume(c);
    const int64_t input[] = {c->batch, c->channels, v.depth, c->height, c->width, pysim_dtype_bytes(first)};
    const int64_t filters[] = {c->filters, c->channels / c->groups, v.kernel_d, c->kernel_h, c->kernel_w, pysim_dtype_bytes(second)};
    const int64_t output[] = {c->batch, c->filters, slices, rows, columns, pysim_dtype_bytes(result)};
    pysim_operands of = {{"input", first, 0}, {"filters", second, 0}, {"output", result, 0}, 0};
    status = pysim_product("the input's bytes, batch x channels x depth x height x width x element", 6, input, &of.first.bytes);
    if (status == PYSIM_OK)
        status = pysim_product("the filters' bytes, filters x channels/groups x kernel_d x kernel_h x kernel_w x element", 6, filters,
                               &of.second.bytes);
    if (status == PYSIM_OK)
        status = pysim_product("the output's bytes, batch x filters x O x P x Q x element", 6, output, &of.result.bytes);
    if (status != PYSIM_OK) return status;
    of.bias_bytes = c->filters * pysim_dtype_bytes(wide); /* No more than the output's or the filters' bytes, which fit. */
    if (p) *p = rows;
    if (q) *q = columns;
    if (operands) *operands = of;
    return PYSIM_OK;
}

pysim_status pysim_conv_output(const pysim_conv *c, int64_t *p, int64_t *q) {
    if (!p || !q) return pysim_fail(PYSIM_BAD_ARGUMENT, "%s, which receives the output size, is NULL", p ? "q" : "p");
    return pysim_check_conv(c, p, q, NULL);
}

/* ((rows-1) ld + columns) x element bytes, with rows not longer than ld. */
static pysim_status matrix_bytes(const char *name, int64_t rows, int64_t columns, int64_t ld, int64_t element, int64_t *bytes) {
    int64_t span;
    if (ld < columns)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "ld%s is %lld; a row of %s has %lld elements", name, (long long)ld, name, (long long)columns);
    if (__builtin_mul_overflow(rows - 1, ld, &span) || __builtin_add_overflow(span, columns, &span) ||
        __builtin_mul_overflow(span, element, bytes))
        return pysim_fail(PYSIM_OVERFLOW, "matrix %s: %lld rows with ld%s %lld exceed int64 bytes", name, (long long)rows, name,
                          (long long)ld);
    return PYSIM_OK;
}

static pysim_status check_gemm(const pysim_gemm *g, pysim_operands *operands) {
    const named positive[] = {{"m", g->m}, {"n", g->n}, {"k", g->k}};
    pysim_status status = check_least(positive, 3, 1);
    if (status == PYSIM_OK) status = pysim_check_dtype(g->dtype);
    if (status != PYSIM_OK) return status;
    if ((g->trans_a | g->trans_b) & ~1)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "trans_a is %d and trans_b is %d; expected 0 or 1", g->trans_a, g->trans_b);

    const int32_t result = pysim_result_dtype(g->dtype);
    const int64_t element = pysim_dtype_bytes(g->dtype), wide = pysim_dtype_bytes(result);
    pysim_operands of = {{"a", g->dtype, 0}, {"b", g->dtype, 0}, {"c", result, 0}, 0};
    status = matrix_bytes("a", g->trans_a ? g->k : g->m, g->trans_a ? g->m : g->k, g->lda, element, &of.first.bytes);
    if (status == PYSIM_OK)
        status = matrix_bytes("b", g->trans_b ? g->n : g->k, g->trans_b ? g->k : g->n, g->ldb, element, &of.second.bytes);
    if (status == PYSIM_OK) status = matrix_bytes("c", g->m, g->n, g->ldc, wide, &of.result.bytes);
    if (status != PYSIM_OK) return status;
    of.bias_bytes = g->n * wide; /* No more than the bytes of c, which fit. */
    if (operands) *operands = of;
    return PYSIM_OK;
}

pysim_status pysim_check_problem(const pysim_problem *p, pysim_operands *operands) {
    if (!p) return pysim_fail(PYSIM_BAD_ARGUMENT, "the problem is NULL");
    if (p->kind == PYSIM_CONV) return pysim_check_conv(&p->conv, NULL, NULL, operands);
    if (p->kind == PYSIM_GEMM) return check_gemm(&p->gemm, operands);
    return pysim_fail(PYSIM_BAD_ARGUMENT, "problem.kind is %d; expected 0 (convolution) or 1 (matrix product)", (int)p->kind);
}

pysim_status pysim_check_operand(const char *name, const void *operand, int32_t dtype) {
    const int64_t element = pysim_dtype_bytes(dtype);
    if (!operand) return pysim_fail(PYSIM_BAD_ARGUMENT, "%s is NULL", name);
    if ((uintptr_t)operand % (uintptr_t)element)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "%s starts at %p, which is not a multiple of its element's %d bytes", name, operand,
                          (int)element);
    return PYSIM_OK;
}

static int whole_int32(double x) {
    if (!(x >= INT32_MIN && x <= INT32_MAX)) return 0;
    const double cut = (double)(int32_t)x;
    return x >= cut && x <= cut;
}

pysim_status pysim_check_activation(const pysim_epilogue *e) {
    if (e->activation < 0 || e->activation >= PYSIM_EPILOGUES)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "activation is %d; native/epilogues.inc has %d lines", e->activation, (int)PYSIM_EPILOGUES);
    if (e->activation == PYSIM_EPILOGUE_clamp && !(e->low <= e->high))
        return pysim_fail(PYSIM_BAD_ARGUMENT, "activation clamp has low %g and high %g; low must be at most high", e->low, e->high);
    return PYSIM_OK;
}

/* Scales, zero points and signs of quantised operands; `count`: filters or columns. */
static pysim_status check_quantised(const pysim_epilogue *e, int32_t dtype, int64_t count) {
    if (dtype != PYSIM_S8)
        return pysim_fail(PYSIM_UNSUPPORTED, "the epilogue has scales, zero points or an unsigned operand; the problem is %s, not s8",
                          pysim_dtype_name(dtype));
    if (e->first_unsigned & ~1) return pysim_fail(PYSIM_BAD_ARGUMENT, "first_unsigned is %d; expected 0 or 1", (int)e->first_unsigned);
    const int32_t least = e->first_unsigned ? 0 : INT8_MIN, most = e->first_unsigned ? UINT8_MAX : INT8_MAX;
    if (e->first_zero < least || e->first_zero > most)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "first_zero is %d; expected %d..%d", (int)e->first_zero, (int)least, (int)most);
    if (!e->scales) return PYSIM_OK;
    if (e->scale_count != 1 && e->scale_count != count)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "scale_count is %d; expected 1 or %lld", (int)e->scale_count, (long long)count);
    if (e->result != PYSIM_F32 && e->result != PYSIM_S8 && e->result != PYSIM_U8)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "result is %d; scaled sums are 0 (f32), 4 (s8) or 9 (u8)", (int)e->result);
    const int32_t low = e->result == PYSIM_S8 ? INT8_MIN : 0, high = e->result == PYSIM_S8   ? INT8_MAX
                                                                     : e->result == PYSIM_U8 ? UINT8_MAX
                                                                                             : 0;
    if (e->result_zero < low || e->result_zero > high)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "result_zero is %d; expected %d..%d", (int)e->result_zero, (int)low, (int)high);
    if (!(e->alpha >= 1 && e->alpha <= 1) || !(e->beta >= 0 && e->beta <= 0))
        return pysim_fail(PYSIM_UNSUPPORTED, "alpha is %g and beta is %g; scaled sums have alpha 1 and beta 0", e->alpha, e->beta);
    pysim_status status = pysim_check_operand("scales", e->scales, PYSIM_F32);
    if (status == PYSIM_OK && e->shifts) status = pysim_check_operand("shifts", e->shifts, PYSIM_F32);
    if (status == PYSIM_OK && e->shifts && !e->result_scales && (e->result != PYSIM_F32 || e->activation != PYSIM_IDENTITY))
        status = pysim_fail(PYSIM_BAD_ARGUMENT, "there are shifts; they are of results f32 without an activation, or with result_scales");
    if (status != PYSIM_OK || !e->result_scales) return status;
    if (e->result == PYSIM_F32 || e->sum)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "there are result_scales; they are of results s8 or u8 to which nothing is added");
    if (e->result_scale_count != 1 && e->result_scale_count != count)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "result_scale_count is %d; expected 1 or %lld", (int)e->result_scale_count, (long long)count);
    return pysim_check_operand("result_scales", e->result_scales, PYSIM_F32);
}

/* What becomes of bytes and a residual; its terms stay within what kernels round. */
static pysim_status check_sum(const pysim_epilogue *e, int32_t kind) {
    const pysim_byte_sum *s = e->sum;
    const int32_t least = s->result == PYSIM_S8 ? INT8_MIN : 0;
    if (!e->scales || e->result == PYSIM_F32 || kind != PYSIM_CONV || !e->residual)
        return pysim_fail(PYSIM_BAD_ARGUMENT,
                          "there is a sum of bytes; it is of a convolution's rescaled results s8 or u8, and a residual");
    if (s->result != PYSIM_S8 && s->result != PYSIM_U8)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "a sum's result is %d; expected 4 (s8) or 9 (u8)", (int)s->result);
    if (s->flip != 0 && s->flip != 0x80) return pysim_fail(PYSIM_BAD_ARGUMENT, "a sum's flip is %d; expected 0 or 128", (int)s->flip);
    if (s->zero < least || s->zero > least + 255)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "a sum's zero is %d; expected %d..%d", (int)s->zero, (int)least, (int)least + 255);
    const float low = (float)(least - s->zero), terms[] = {s->first, s->second, s->shift};
    for (int i = 0; i < 3; i++)
        if (!(terms[i] >= -0x1p22F && terms[i] <= 0x1p22F))
            return pysim_fail(PYSIM_BAD_ARGUMENT, "a sum has the term %g; expected at most 2^22", (double)terms[i]);
    if (!(s->low >= low && s->low <= s->high && s->high <= low + 255))
        return pysim_fail(PYSIM_BAD_ARGUMENT, "a sum is within %g to %g; expected numbers of %g to %g", (double)s->low, (double)s->high,
                          (double)low, (double)low + 255);
    return PYSIM_OK;
}

static pysim_status check_epilogue(const pysim_epilogue *e, int32_t kind, int32_t dtype, int64_t count) {
    if (!e) return pysim_fail(PYSIM_BAD_ARGUMENT, "the epilogue is NULL");
    pysim_status status = pysim_check_activation(e);
    if (status != PYSIM_OK) return status;
    if (pysim_is_quantised(e)) status = check_quantised(e, dtype, count);
    if (status == PYSIM_OK && e->sum) status = check_sum(e, kind);
    if (status != PYSIM_OK) return status;
    const int bounds = e->activation == PYSIM_IDENTITY || e->activation == PYSIM_RELU ||
                       (e->scales && (e->activation == PYSIM_EPILOGUE_clamp || e->result_scales));
    if (dtype == PYSIM_S8 && ((e->residual && !e->sum) || !bounds))
        return pysim_fail(PYSIM_UNSUPPORTED, "%s; sums of s8 have activations 0 (identity) and 1 (relu), and no residual",
                          e->residual && !e->sum ? "there is a residual" : "the activation is of real numbers");
    if (kind == PYSIM_GEMM && e->residual) return pysim_fail(PYSIM_BAD_ARGUMENT, "there is a residual; a matrix product adds C, by beta");
    if (dtype == PYSIM_S8 && !(whole_int32(e->alpha) && whole_int32(e->beta)))
        return pysim_fail(PYSIM_UNSUPPORTED,
                          "alpha is %g and beta is %g; for s8, whose result is exact, both are whole numbers within int32", e->alpha,
                          e->beta);
    if (kind == PYSIM_CONV && (!(e->alpha >= 1 && e->alpha <= 1) || !(e->beta >= 0 && e->beta <= 0)))
        return pysim_fail(PYSIM_BAD_ARGUMENT, "alpha is %g and beta is %g; a convolution has alpha 1 and beta 0", e->alpha, e->beta);
    if (e->bias) status = pysim_check_operand("bias", e->bias, pysim_result_dtype(dtype));
    const int32_t added = e->sum ? PYSIM_S8 : pysim_result_dtype(dtype);
    return e->residual && status == PYSIM_OK ? pysim_check_operand("residual", e->residual, added) : status;
}

int32_t pysim_overlap(const void *a, int64_t a_bytes, const void *b, int64_t b_bytes) {
    if (!a || !b || a_bytes <= 0 || b_bytes <= 0) return 0;
    const uintptr_t first = (uintptr_t)a, second = (uintptr_t)b;
    return first < second ? second - first < (uintptr_t)a_bytes : first - second < (uintptr_t)b_bytes;
}

pysim_status pysim_check_apart(const pysim_span *spans, int32_t count) {
    for (int32_t i = 0; i < count; i++)
        for (int32_t j = 0; spans[i].written && j < count; j++) {
            const pysim_span *w = &spans[i], *o = &spans[j];
            if (i != j && pysim_overlap(w->data, w->bytes, o->data, o->bytes))
                return pysim_fail(PYSIM_BAD_ARGUMENT, "%s (%lld bytes at %p), which is written, overlaps %s (%lld bytes at %p)", w->name,
                                  (long long)w->bytes, w->data, o->name, (long long)o->bytes, o->data);
        }
    return PYSIM_OK;
}

pysim_status pysim_check_call(const pysim_problem *p, const pysim_operands *operands, const pysim_epilogue *e, const void *first,
                              const void *second, const void *result, const void *workspace, int64_t workspace_bytes) {
    pysim_operand scaled = operands->result;
    const pysim_operand *of[] = {&operands->first, &operands->second, &scaled};
    const void *at[] = {first, second, result};
    pysim_status status = check_epilogue(e, p->kind, of[0]->dtype, p->kind == PYSIM_CONV ? p->conv.filters : p->gemm.n);
    if (status == PYSIM_OK && e->scales) {
        scaled.dtype = e->result;
        scaled.bytes = scaled.bytes / (int64_t)sizeof(int32_t) * pysim_dtype_bytes(e->result);
    }
    for (int i = 0; i < 3 && status == PYSIM_OK; i++) status = pysim_check_operand(of[i]->name, at[i], of[i]->dtype);
    if (status != PYSIM_OK) return status;
    const pysim_span spans[] = {
        {of[2]->name, result, of[2]->bytes, 1},
        {"workspace", workspace, workspace_bytes, 1},
        {of[0]->name, first, of[0]->bytes, 0},
        {of[1]->name, second, of[1]->bytes, 0},
        {"bias", e->bias, operands->bias_bytes, 0},
        {"residual", e->sum && e->residual == result ? NULL : e->residual, of[2]->bytes, 0},
        {"scales", e->scales, e->scale_count * (int64_t)sizeof(float), 0},
    };
    return pysim_check_apart(spans, 7);
}
