/* SPDX-License-Identifier: Apache-2.0
 * The definition of right: convolution, matrix product and im2col as loops that can be read beside their equations.
 *
 *   O[n][m][p][q] = act( bias[m] + residual[n][m][p][q] + sum_{c,r,s} I[n][c][p*stride_h + r*dilation_h - pad_top][q*stride_w + s*dilation_w - pad_left]
 *                                              F[m][c][r][s] )        an index outside the image contributes nothing
 *                                                                     (volumes: another index o before p, summed over t before r)
 *   C[i][j]       = act( alpha sum_p op(A)[i][p] op(B)[p][j] + beta C[i][j] + bias[j] )      a term whose factor is 0 contributes nothing
 *
 * Sums are kept in double for f32 and bf16 and in long double for f64 and rounded once, so the result is the nearest value to the
 * exact one for all but freak inputs (f64: where long double is wider than double). Those of s8 are exact modulo 2^64, and the result
 * is their lower 32 bits. The activation (epilogues.inc) is taken of the result; relu(x) is 0 for x < 0, else x: it keeps a NaN.
 * Worked number: a 3x3 image of ones, a 3x3 kernel of ones, padding 1, gives 4 6 4 / 6 9 6 / 4 6 4. */
#include <math.h>
#include <stddef.h>

#include "elements.h"
#include "pysim.h"
#include "abi/status.h"

/* op(X)[i][p] lies at i*row + p*column. */
typedef struct {
    int64_t row, column;
} strides;

static strides matrix_strides(int64_t ld, int32_t transposed) { return transposed ? (strides){1, ld} : (strides){ld, 1}; }

static long double activated(const pysim_epilogue *e, long double x) {
    const long double low = e->low, high = e->high;
    switch (e->activation) {
#define PYSIM_EPILOGUE(number, name, operations, function) \
    case number: return function;
#include "epilogues.inc"
#undef PYSIM_EPILOGUE
    default: return x;
    }
    (void)low, (void)high;
}

/* Offset of element i of channel k, in planes of `size` elements or in channel blocks. */
static int64_t place(int64_t k, int32_t block, int64_t size, int64_t i) {
    return block > 1 ? (k / block * size + i) * block + k % block : k * size + i;
}

/* The outputs i of `count`, first <= i < last, whose x + i*stride lies in an image of `size`. */
static void inside(int64_t x, int64_t stride, int64_t size, int64_t count, int64_t *first, int64_t *last) {
    *first = x < 0 ? (stride - 1 - x) / stride : 0;
    *last = x < size ? (size - 1 - x) / stride + 1 : 0;
    if (*last > count) *last = count;
}

/* Outputs at most that are summed side by side, each in the order of the equation: of a plane, and of filters of a group. Sums of a vector's type are of
 * all FILTERS, some of which may be missing and are of zeros. */
enum { RUN = 256, FILTERS = 4 };

/* T, W: elements of the first and second operand, SUM: sums, R: results before they are stored as O. VALUE, WEIGHT and ADDED(x): an element of the input, of
 * the filters and of a residual as a summand, OUT(x): a result as it is stored.
 * windows: `count` filters at p x q windows of one image of one group; the corner of the first is (y0, x0), which may lie in the padding.
 * planes: the P x Q outputs of filters m to m + count of an image, which begins at `at`. */
#define DEFINE_CONV(dtype, T, W, SUM, R, O, VALUE, WEIGHT, ADDED, OUT)                                                                     \
    static R finish_##dtype(SUM sum, const pysim_epilogue *e) {                                                                            \
        const R value = (R)sum;                                                                                                            \
        if (e->activation <= PYSIM_RELU) return e->activation == PYSIM_RELU && value < 0 ? 0 : value;                                      \
        return (R)activated(e, (long double)value);                                                                                        \
    }                                                                                                                                      \
                                                                                                                                           \
    static void windows_##dtype(const pysim_conv *c, const T *image, int64_t first, const W *filter, int64_t count, int64_t z0,            \
                                int64_t y0, int64_t x0, int64_t p, int64_t q, SUM *sum) {                                                  \
        const int64_t channels = c->channels / c->groups, step = c->input_block > 1 ? c->input_block : 1;                                  \
        const int64_t size = channels * c->kernel_d * c->kernel_h * c->kernel_w, filters = sizeof(SUM) <= 8 ? FILTERS : count;             \
        for (int64_t tap = 0; tap < channels * c->kernel_d; tap++) {                                                                       \
            const int64_t ch = tap / c->kernel_d, z = z0 + tap % c->kernel_d * c->dilation_d;                                              \
            if (z < 0 || z >= c->depth) continue;                                                                                          \
            const T *plane = image + place(first + ch, c->input_block, c->depth * c->height * c->width, z * c->height * c->width);         \
            for (int64_t r = 0; r < c->kernel_h; r++)                                                                                      \
                for (int64_t s = 0; s < c->kernel_w; s++) {                                                                                \
                    const int64_t y = y0 + r * c->dilation_h, x = x0 + s * c->dilation_w;                                                  \
                    SUM weight[FILTERS] = {0};                                                                                             \
                    for (int64_t f = 0; f < count; f++)                                                                                    \
                        weight[f] = (SUM)WEIGHT(filter[f * size + (tap * c->kernel_h + r) * c->kernel_w + s]);                             \
                    int64_t top, bottom, left, right;                                                                                      \
                    inside(y, c->stride_h, c->height, p, &top, &bottom);                                                                   \
                    inside(x, c->stride_w, c->width, q, &left, &right);                                                                    \
                    for (int64_t i = top; i < bottom; i++)                                                                                 \
                        for (int64_t j = left; j < right; j++) {                                                                           \
                            const SUM value = (SUM)VALUE(plane[((y + i * c->stride_h) * c->width + x + j * c->stride_w) * step]);          \
                            for (int64_t f = 0; f < filters; f++) sum[(i * q + j) * FILTERS + f] += value * weight[f];                     \
                        }                                                                                                                  \
                }                                                                                                                          \
        }                                                                                                                                  \
    }                                                                                                                                      \
                                                                                                                                           \
    static void planes_##dtype(const pysim_conv *c, int64_t slices, int64_t p, int64_t q, const void *input, int64_t image, int64_t first, \
                               const void *filters, int64_t filter, int64_t m, int64_t count, const pysim_epilogue *e, void *output,       \
                               int64_t at) {                                                                                               \
        O *out = (O *)output + at;                                                                                                         \
        const R *bias = e->bias;                                                                                                           \
        const O *residual = e->residual ? (const O *)e->residual + at : NULL;                                                              \
        const int64_t columns = q < RUN ? q : RUN, rows = p < RUN / columns ? p : RUN / columns;                                           \
        for (int64_t o = 0; o < slices; o++)                                                                                               \
            for (int64_t i = 0; i < p; i += rows)                                                                                          \
                for (int64_t j = 0; j < q; j += columns) {                                                                                 \
                    const int64_t high = p - i < rows ? p - i : rows, wide = q - j < columns ? q - j : columns;                            \
                    SUM sum[RUN * FILTERS];                                                                                                \
                    for (int64_t l = 0; l < high * wide * FILTERS; l++) sum[l] = 0;                                                        \
                    windows_##dtype(c, (const T *)input + image, first, (const W *)filters + filter, count,                                \
                                    o * c->stride_d - c->pad_front, i * c->stride_h - c->pad_top, j * c->stride_w - c->pad_left, high,     \
                                    wide, sum);                                                                                            \
                    for (int64_t f = 0; f < count; f++)                                                                                    \
                        for (int64_t l = 0; l < high * wide; l++) {                                                                        \
                            const int64_t to = place(m + f, c->output_block, slices * p * q, (o * p + i + l / wide) * q + j + l % wide);   \
                            const SUM added = (bias ? (SUM)bias[m + f] : 0) + (residual ? (SUM)ADDED(residual[to]) : 0);                   \
                            out[to] = OUT(finish_##dtype(added + sum[l * FILTERS + f], e));                                                \
                        }                                                                                                                  \
                }                                                                                                                          \
    }

/* FACTOR(x): alpha or beta. */
#define DEFINE_GEMM(dtype, T, SUM, R, VALUE, FACTOR)                                                                      \
    static void gemm_##dtype(const pysim_gemm *g, const pysim_epilogue *e, const T *a, const T *b, R *c) {                \
        const strides in_a = matrix_strides(g->lda, g->trans_a), in_b = matrix_strides(g->ldb, g->trans_b);               \
        const R *bias = e->bias;                                                                                          \
        const int64_t k = e->alpha != 0 ? g->k : 0;                                                                       \
        for (int64_t i = 0; i < g->m; i++)                                                                                \
            for (int64_t j = 0; j < g->n; j++) {                                                                          \
                SUM sum = 0;                                                                                              \
                for (int64_t p = 0; p < k; p++)                                                                           \
                    sum += (SUM)VALUE(a[i * in_a.row + p * in_a.column]) * (SUM)VALUE(b[p * in_b.row + j * in_b.column]); \
                sum *= (SUM)FACTOR(e->alpha);                                                                             \
                if (e->beta != 0) sum += (SUM)FACTOR(e->beta) * (SUM)c[i * g->ldc + j];                                   \
                if (bias) sum += (SUM)bias[j];                                                                            \
                c[i * g->ldc + j] = finish_##dtype(sum, e);                                                               \
            }                                                                                                             \
    }
DEFINE_CONV(f32, float, float, double, float, float, PYSIM_SAME, PYSIM_SAME, PYSIM_SAME, PYSIM_SAME)
DEFINE_CONV(f64, double, double, long double, double, double, PYSIM_SAME, PYSIM_SAME, PYSIM_SAME, PYSIM_SAME)
DEFINE_CONV(bf16, uint16_t, uint16_t, double, float, float, pysim_bf16_value, pysim_bf16_value, PYSIM_SAME, PYSIM_SAME)
DEFINE_CONV(bf16_blocks, uint16_t, float, double, float, uint16_t, pysim_bf16_value, PYSIM_SAME, pysim_bf16_value, pysim_bf16_of)
DEFINE_CONV(to_bf16, float, float, double, float, uint16_t, PYSIM_SAME, PYSIM_SAME, pysim_bf16_value, pysim_bf16_of)
DEFINE_CONV(s8, int8_t, int8_t, uint64_t, int32_t, int32_t, PYSIM_RESIDUE_64, PYSIM_RESIDUE_64, PYSIM_SAME, PYSIM_SAME)
DEFINE_GEMM(f32, float, double, float, PYSIM_SAME, PYSIM_SAME)
DEFINE_GEMM(f64, double, long double, double, PYSIM_SAME, PYSIM_SAME)
DEFINE_GEMM(bf16, uint16_t, double, float, pysim_bf16_value, PYSIM_SAME)
DEFINE_GEMM(s8, int8_t, uint64_t, int32_t, PYSIM_RESIDUE_64, PYSIM_RESIDUE_64)

static void reference_conv(const pysim_conv *given, const pysim_epilogue *e, const void *input, const void *filters, void *output) {
    const pysim_conv volume = pysim_as_volume(given), *c = &volume;
    int64_t p, q;
    pysim_conv_output(given, &p, &q);
    const int64_t channels = c->channels / c->groups, per_group = c->filters / c->groups, slices = pysim_out_slices(c);
    const int64_t filter_size = channels * c->kernel_d * c->kernel_h * c->kernel_w;
    for (int64_t n = 0; n < c->batch; n++)
        for (int64_t m = 0, count; m < c->filters; m += count) {
            count = per_group - m % per_group < FILTERS ? per_group - m % per_group : FILTERS;
            const int64_t image = n * c->channels * c->depth * c->height * c->width, first = m / per_group * channels;
            const int64_t filter = m * filter_size, out = n * c->filters * slices * p * q;
            switch (c->dtype) {
            case PYSIM_F32: planes_f32(c, slices, p, q, input, image, first, filters, filter, m, count, e, output, out); break;
            case PYSIM_F64: planes_f64(c, slices, p, q, input, image, first, filters, filter, m, count, e, output, out); break;
            case PYSIM_BF16:
                if (c->output_block <= 1) planes_bf16(c, slices, p, q, input, image, first, filters, filter, m, count, e, output, out);
                else if (c->input_block > 1)
                    planes_bf16_blocks(c, slices, p, q, input, image, first, filters, filter, m, count, e, output, out);
                else planes_to_bf16(c, slices, p, q, input, image, first, filters, filter, m, count, e, output, out);
                break;
            case PYSIM_S8: planes_s8(c, slices, p, q, input, image, first, filters, filter, m, count, e, output, out); break;
            }
        }
}

static void reference_gemm(const pysim_gemm *g, const pysim_epilogue *e, const void *a, const void *b, void *c) {
    switch (g->dtype) {
    case PYSIM_F32: gemm_f32(g, e, a, b, c); break;
    case PYSIM_F64: gemm_f64(g, e, a, b, c); break;
    case PYSIM_BF16: gemm_bf16(g, e, a, b, c); break;
    case PYSIM_S8: gemm_s8(g, e, a, b, c); break;
    }
}

pysim_status pysim_reference(const pysim_problem *p, const pysim_epilogue *e, const void *first, const void *second, void *result) {
    pysim_operands operands;
    pysim_status status = pysim_check_problem(p, &operands);
    if (status == PYSIM_OK) status = pysim_check_call(p, &operands, e, first, second, result, NULL, 0);
    if (status != PYSIM_OK) return status;
    if (pysim_is_quantised(e)) return pysim_fail(PYSIM_UNSUPPORTED, "the reference sums s8 as it is: no scales, zero points or u8");
    if (p->kind == PYSIM_CONV) reference_conv(&p->conv, e, first, second, result);
    else reference_gemm(&p->gemm, e, first, second, result);
    return PYSIM_OK;
}

/* One row of `columns`, for one (channel, r, s): the elements that the kernel element reads, window by window. As in Caffe, a row of
 * padding is tested once, columns of padding element by element. */
#define COLUMN_ROW(T, name)                                                                                     \
    static void name(const pysim_conv *c, int64_t p, int64_t q, const T *plane, int64_t r, int64_t s, T *row) { \
        const int64_t height = c->height, width = c->width, stride = c->stride_w;                               \
        const int64_t left = s * c->dilation_w - c->pad_left;                                                   \
        int64_t y = r * c->dilation_h - c->pad_top;                                                             \
        for (int64_t i = 0; i < p; i++, y += c->stride_h, row += q) {                                           \
            if (y < 0 || y >= height) {                                                                         \
                for (int64_t j = 0; j < q; j++) row[j] = 0;                                                     \
                continue;                                                                                       \
            }                                                                                                   \
            const T *from = plane + y * width;                                                                  \
            int64_t x = left;                                                                                   \
            for (int64_t j = 0; j < q; j++, x += stride) row[j] = (uint64_t)x < (uint64_t)width ? from[x] : 0;  \
        }                                                                                                       \
    }
COLUMN_ROW(float, column_row_4)
COLUMN_ROW(double, column_row_8)
COLUMN_ROW(uint16_t, column_row_2)
COLUMN_ROW(int8_t, column_row_1)

pysim_status pysim_im2col(const pysim_conv *c, const void *image, void *columns) {
    int64_t p, q, bytes;
    pysim_status status = pysim_check_conv(c, &p, &q, NULL);
    if (status != PYSIM_OK) return status;
    if (c->depth) return pysim_fail(PYSIM_UNSUPPORTED, "depth is %lld; im2col is of images", (long long)c->depth);
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
                switch (element) {
                case 1: column_row_1(c, p, q, (const int8_t *)image + plane, r, s, (int8_t *)columns + row); break;
                case 2: column_row_2(c, p, q, (const uint16_t *)image + plane, r, s, (uint16_t *)columns + row); break;
                case 4: column_row_4(c, p, q, (const float *)image + plane, r, s, (float *)columns + row); break;
                case 8: column_row_8(c, p, q, (const double *)image + plane, r, s, (double *)columns + row); break;
                }
            }
    return PYSIM_OK;
}
