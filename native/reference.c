/* SPDX-License-Identifier: Apache-2.0
 * The definition of right: convolution, matrix product and im2col as loops that can be read beside their equations.
 *
 *   O[n][m][p][q] = act( bias[m] + sum_{c,r,s} I[n][c][p*stride_h + r*dilation_h - pad_top][q*stride_w + s*dilation_w - pad_left]
 *                                              F[m][c][r][s] )        an index outside the image contributes nothing
 *   C[i][j]       = act( alpha sum_p op(A)[i][p] op(B)[p][j] + beta C[i][j] + bias[j] )
 *
 * Sums are kept in double for f32 and in long double for f64 and rounded once, so the result is the nearest value to the exact
 * one for all but freak inputs (f64: where long double is wider than double). relu(x) is 0 for x < 0, else x: it keeps a NaN.
 * Worked number: a 3x3 image of ones, a 3x3 kernel of ones, padding 1, gives 4 6 4 / 6 9 6 / 4 6 4. */
#include <stddef.h>

#include "pysim.h"
#include "status.h"

static double finish_f32(double sum, int32_t activation) { return activation == PYSIM_RELU && sum < 0 ? 0 : sum; }
static long double finish_f64(long double sum, int32_t activation) { return activation == PYSIM_RELU && sum < 0 ? 0 : sum; }

/* One filter at one window of one image of one group: the corner of the window is (y0, x0), which may lie in the padding. */
static double window_f32(const pysim_conv *c, const float *image, const float *filter, int64_t y0, int64_t x0) {
    const int64_t channels = c->channels / c->groups;
    double sum = 0;
    for (int64_t ch = 0; ch < channels; ch++)
        for (int64_t r = 0; r < c->kernel_h; r++) {
            const int64_t y = y0 + r * c->dilation_h;
            if (y < 0 || y >= c->height) continue;
            for (int64_t s = 0; s < c->kernel_w; s++) {
                const int64_t x = x0 + s * c->dilation_w;
                if (x < 0 || x >= c->width) continue;
                sum += (double)image[(ch * c->height + y) * c->width + x] * filter[(ch * c->kernel_h + r) * c->kernel_w + s];
            }
        }
    return sum;
}

static long double window_f64(const pysim_conv *c, const double *image, const double *filter, int64_t y0, int64_t x0) {
    const int64_t channels = c->channels / c->groups;
    long double sum = 0;
    for (int64_t ch = 0; ch < channels; ch++)
        for (int64_t r = 0; r < c->kernel_h; r++) {
            const int64_t y = y0 + r * c->dilation_h;
            if (y < 0 || y >= c->height) continue;
            for (int64_t s = 0; s < c->kernel_w; s++) {
                const int64_t x = x0 + s * c->dilation_w;
                if (x < 0 || x >= c->width) continue;
                sum += (long double)image[(ch * c->height + y) * c->width + x] *
                       filter[(ch * c->kernel_h + r) * c->kernel_w + s];
            }
        }
    return sum;
}

/* The P x Q output plane of one filter. bias is this filter's value. */
static void plane_f32(const pysim_conv *c, int64_t p, int64_t q, const float *image, const float *filter, float bias,
                      int32_t activation, float *out) {
    for (int64_t i = 0; i < p; i++)
        for (int64_t j = 0; j < q; j++)
            out[i * q + j] = (float)finish_f32(
                bias + window_f32(c, image, filter, i * c->stride_h - c->pad_top, j * c->stride_w - c->pad_left), activation);
}

static void plane_f64(const pysim_conv *c, int64_t p, int64_t q, const double *image, const double *filter, double bias,
                      int32_t activation, double *out) {
    for (int64_t i = 0; i < p; i++)
        for (int64_t j = 0; j < q; j++)
            out[i * q + j] = (double)finish_f64(
                bias + window_f64(c, image, filter, i * c->stride_h - c->pad_top, j * c->stride_w - c->pad_left), activation);
}

pysim_status pysim_conv_reference(const pysim_conv *c, const pysim_epilogue *e, const void *input, const void *filters,
                                  void *output) {
    int64_t p, q;
    pysim_conv_bytes bytes;
    pysim_status status = pysim_check_conv_bytes(c, &p, &q, &bytes);
    if (status == PYSIM_OK) status = pysim_check_conv_epilogue(e, c->dtype);
    if (status == PYSIM_OK) status = pysim_check_operand("input", input, c->dtype);
    if (status == PYSIM_OK) status = pysim_check_operand("filters", filters, c->dtype);
    if (status == PYSIM_OK) status = pysim_check_operand("output", output, c->dtype);
    if (status != PYSIM_OK) return status;
    const pysim_span spans[] = {
        {"output", output, bytes.output, 1},
        {"input", input, bytes.input, 0},
        {"filters", filters, bytes.filters, 0},
        {"bias", e->bias, c->filters * pysim_dtype_bytes(c->dtype), 0},
    };
    status = pysim_check_apart(spans, 4);
    if (status != PYSIM_OK) return status;

    const int64_t channels = c->channels / c->groups, per_group = c->filters / c->groups;
    const int64_t filter_size = channels * c->kernel_h * c->kernel_w;
    for (int64_t n = 0; n < c->batch; n++)
        for (int64_t m = 0; m < c->filters; m++) {
            const int64_t image = (n * c->channels + m / per_group * channels) * c->height * c->width;
            const int64_t out = (n * c->filters + m) * p * q;
            if (c->dtype == PYSIM_F32) {
                const float *bias = e->bias;
                plane_f32(c, p, q, (const float *)input + image, (const float *)filters + m * filter_size, bias ? bias[m] : 0,
                          e->activation, (float *)output + out);
            } else {
                const double *bias = e->bias;
                plane_f64(c, p, q, (const double *)input + image, (const double *)filters + m * filter_size, bias ? bias[m] : 0,
                          e->activation, (double *)output + out);
            }
        }
    return PYSIM_OK;
}

/* op(X)[i][p] lies at i*row + p*column. */
typedef struct {
    int64_t row, column;
} strides;

static strides matrix_strides(int64_t ld, int32_t transposed) {
    return transposed ? (strides){1, ld} : (strides){ld, 1};
}

static void gemm_f32(const pysim_gemm *g, const pysim_epilogue *e, const float *a, const float *b, float *c) {
    const strides in_a = matrix_strides(g->lda, g->trans_a), in_b = matrix_strides(g->ldb, g->trans_b);
    const float *bias = e->bias;
    for (int64_t i = 0; i < g->m; i++)
        for (int64_t j = 0; j < g->n; j++) {
            double sum = 0;
            for (int64_t p = 0; p < g->k; p++)
                sum += (double)a[i * in_a.row + p * in_a.column] * b[p * in_b.row + j * in_b.column];
            sum *= e->alpha;
            if (e->beta < 0 || e->beta > 0) sum += e->beta * c[i * g->ldc + j];
            if (bias) sum += bias[j];
            c[i * g->ldc + j] = (float)finish_f32(sum, e->activation);
        }
}

static void gemm_f64(const pysim_gemm *g, const pysim_epilogue *e, const double *a, const double *b, double *c) {
    const strides in_a = matrix_strides(g->lda, g->trans_a), in_b = matrix_strides(g->ldb, g->trans_b);
    const double *bias = e->bias;
    for (int64_t i = 0; i < g->m; i++)
        for (int64_t j = 0; j < g->n; j++) {
            long double sum = 0;
            for (int64_t p = 0; p < g->k; p++)
                sum += (long double)a[i * in_a.row + p * in_a.column] * b[p * in_b.row + j * in_b.column];
            sum *= e->alpha;
            if (e->beta < 0 || e->beta > 0) sum += (long double)e->beta * c[i * g->ldc + j];
            if (bias) sum += bias[j];
            c[i * g->ldc + j] = (double)finish_f64(sum, e->activation);
        }
}

pysim_status pysim_gemm_reference(const pysim_gemm *g, const pysim_epilogue *e, const void *a, const void *b, void *c) {
    pysim_gemm_bytes bytes;
    pysim_status status = pysim_check_gemm_bytes(g, &bytes);
    if (status == PYSIM_OK) status = pysim_check_gemm_epilogue(e, g->dtype);
    if (status == PYSIM_OK) status = pysim_check_operand("a", a, g->dtype);
    if (status == PYSIM_OK) status = pysim_check_operand("b", b, g->dtype);
    if (status == PYSIM_OK) status = pysim_check_operand("c", c, g->dtype);
    if (status != PYSIM_OK) return status;
    const pysim_span spans[] = {
        {"c", c, bytes.c, 1},
        {"a", a, bytes.a, 0},
        {"b", b, bytes.b, 0},
        {"bias", e->bias, g->n * pysim_dtype_bytes(g->dtype), 0},
    };
    status = pysim_check_apart(spans, 4);
    if (status != PYSIM_OK) return status;
    if (g->dtype == PYSIM_F32)
        gemm_f32(g, e, a, b, c);
    else
        gemm_f64(g, e, a, b, c);
    return PYSIM_OK;
}

/* The row of `columns` for one (channel, r, s): what the kernel element meets, window by window. As in Caffe, a row of padding is
 * seen once, a column of padding element by element. */
#define COLUMN_ROW(T, name)                                                                                              \
    static void name(const pysim_conv *c, int64_t p, int64_t q, const T *plane, int64_t r, int64_t s, T *row) {          \
        const int64_t height = c->height, width = c->width, stride = c->stride_w;                                        \
        const int64_t left = s * c->dilation_w - c->pad_left;                                                            \
        int64_t y = r * c->dilation_h - c->pad_top;                                                                      \
        for (int64_t i = 0; i < p; i++, y += c->stride_h, row += q) {                                                    \
            if (y < 0 || y >= height) {                                                                                  \
                for (int64_t j = 0; j < q; j++) row[j] = 0;                                                              \
                continue;                                                                                                \
            }                                                                                                            \
            const T *from = plane + y * width;                                                                           \
            int64_t x = left;                                                                                            \
            for (int64_t j = 0; j < q; j++, x += stride) row[j] = (uint64_t)x < (uint64_t)width ? from[x] : 0;           \
        }                                                                                                                \
    }
COLUMN_ROW(float, column_row_f32)
COLUMN_ROW(double, column_row_f64)

pysim_status pysim_im2col(const pysim_conv *c, const void *image, void *columns) {
    int64_t p, q, bytes;
    pysim_status status = pysim_check_conv(c, &p, &q);
    if (status != PYSIM_OK) return status;
    const int64_t channels = c->channels / c->groups, element = pysim_dtype_bytes(c->dtype);
    const int64_t size[] = {channels, c->kernel_h, c->kernel_w, p, q, element};
    status = pysim_product("the columns' bytes, channels/groups x kernel_h x kernel_w x P x Q x element", 6, size, &bytes);
    if (status == PYSIM_OK) status = pysim_check_operand("image", image, c->dtype);
    if (status == PYSIM_OK) status = pysim_check_operand("columns", columns, c->dtype);
    if (status != PYSIM_OK) return status;
    const pysim_span spans[] = {{"columns", columns, bytes, 1}, {"image", image, channels * c->height * c->width * element, 0}};
    status = pysim_check_apart(spans, 2);
    if (status != PYSIM_OK) return status;

    for (int64_t ch = 0; ch < channels; ch++)
        for (int64_t r = 0; r < c->kernel_h; r++)
            for (int64_t s = 0; s < c->kernel_w; s++) {
                const int64_t row = ((ch * c->kernel_h + r) * c->kernel_w + s) * p * q, plane = ch * c->height * c->width;
                if (c->dtype == PYSIM_F32)
                    column_row_f32(c, p, q, (const float *)image + plane, r, s, (float *)columns + row);
                else
                    column_row_f64(c, p, q, (const double *)image + plane, r, s, (double *)columns + row);
            }
    return PYSIM_OK;
}
