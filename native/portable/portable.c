/* SPDX-License-Identifier: Apache-2.0
 * The micro-kernel and packing in plain C, for any CPU; their speed depends on the compiler. */
#include <string.h>

#include "elements.h"
#include "kernel.h"

/* Every access to an operand or a panel goes through these macros; a test replaces them to record the accesses. */
#ifdef PYSIM_RECORD
#include "test/record.h"
#else
#define LOAD(p) (*(p))
#define STORE(p, value) (*(p) = (value))
#define LOAD_RUN(line, p, bytes) memcpy(line, p, bytes)
#define STORE_RUN(p, line, bytes) memcpy(p, line, bytes)
#endif

enum { WINDOWS = 8, FILTERS = 4 };

/* T: elements, SUM: sums, R: results, VALUE(x): an element as a summand, FACTOR(x): alpha or beta. */
#define DEFINE_KERNEL(dtype, T, SUM, R, VALUE, FACTOR)                                                                                \
    static inline __attribute__((always_inline)) void dtype##_body(int64_t k, const void *filters, int64_t f_pitch, int64_t f_step,   \
                                                                   int width, const void *windows, int64_t window_pitch, void *out,   \
                                                                   int64_t out_pitch, int64_t nw, int64_t nf, const pysim_store *s) { \
        const T *f = filters, *w = windows;                                                                                           \
        const R *bias_f = s->bias_filters, *bias_w = s->bias_windows, *old = s->old;                                                  \
        const R low = (R)s->bounds.low, high = (R)s->bounds.high;                                                                     \
        SUM acc[FILTERS][WINDOWS] = {{0}};                                                                                            \
        if (nw == WINDOWS && width == FILTERS) {                                                                                      \
            for (int64_t p = 0; p < k; p++, f += f_pitch, w += window_pitch) {                                                        \
                SUM x[WINDOWS], y[FILTERS];                                                                                           \
                for (int i = 0; i < WINDOWS; i++) x[i] = VALUE(LOAD(w + i));                                                          \
                for (int j = 0; j < FILTERS; j++) y[j] = VALUE(LOAD(f + j * f_step));                                                 \
                for (int j = 0; j < FILTERS; j++)                                                                                     \
                    for (int i = 0; i < WINDOWS; i++) acc[j][i] += y[j] * x[i];                                                       \
            }                                                                                                                         \
        } else {                                                                                                                      \
            for (int64_t p = 0; p < k; p++, f += f_pitch, w += window_pitch)                                                          \
                for (int j = 0; j < width; j++) {                                                                                     \
                    const SUM y = VALUE(LOAD(f + j * f_step));                                                                        \
                    for (int64_t i = 0; i < nw; i++) acc[j][i] += y * VALUE(LOAD(w + i));                                             \
                }                                                                                                                     \
        }                                                                                                                             \
        for (int64_t j = 0; j < nf; j++)                                                                                              \
            for (int64_t i = 0; i < nw; i++) {                                                                                        \
                R *to = (R *)out + j * out_pitch + i;                                                                                 \
                SUM sum = acc[j][i] * (SUM)FACTOR(s->alpha);                                                                          \
                sum += (bias_f ? (SUM)bias_f[j] : 0) + (bias_w ? (SUM)bias_w[i] : 0);                                                 \
                if (old) sum += (SUM)LOAD(old + j * out_pitch + i) * (SUM)FACTOR(s->beta);                                            \
                const R value = (R)sum;                                                                                               \
                STORE(to, value < low ? low : value > high ? high : value);                                                           \
            }                                                                                                                         \
    }                                                                                                                                 \
                                                                                                                                      \
    void dtype##_win_8x4__portable(int64_t k, const void *filters, const void *windows, int64_t window_pitch, void *out,              \
                                   int64_t out_pitch, int64_t nw, int64_t nf, const pysim_store *s) {                                 \
        dtype##_body(k, filters, FILTERS, 1, FILTERS, windows, window_pitch, out, out_pitch, nw, nf, s);                              \
    }                                                                                                                                 \
    void strided_##dtype##_win_8x4__portable(int64_t k, const void *filters, int64_t filter_pitch, int64_t filter_step,               \
                                             const void *windows, int64_t window_pitch, void *out, int64_t out_pitch, int64_t nw,     \
                                             int64_t nf, const pysim_store *s) {                                                      \
        dtype##_body(k, filters, filter_pitch, filter_step, (int)nf, windows, window_pitch, out, out_pitch, nw, nf, s);               \
    }
DEFINE_KERNEL(f32, float, float, float, PYSIM_SAME, PYSIM_SAME)
DEFINE_KERNEL(f64, double, double, double, PYSIM_SAME, PYSIM_SAME)
DEFINE_KERNEL(bf16, uint16_t, float, float, pysim_bf16_value, PYSIM_SAME)
DEFINE_KERNEL(s8, int8_t, uint32_t, int32_t, PYSIM_RESIDUE_32, PYSIM_RESIDUE_32)

/* Form fused: the same tile with multiply-adds that round once, as vector kernels have them, whatever the CPU: the bits of contract `chain`
 * (docs/reproducible.md). The C library computes them where a CPU has no such instruction, and slowly. */
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && !defined(PYSIM_RECORD)
#define FUSED_TARGETS __attribute__((target_clones("fma", "default")))
#else
#define FUSED_TARGETS
#endif
#define DEFINE_FUSED(dtype, T, FMA)                                                                                              \
    FUSED_TARGETS static void dtype##_fused(int64_t k, const void *filters, const void *windows, int64_t window_pitch, void *to, \
                                            int64_t out_pitch, int64_t nw, int64_t nf, const pysim_store *s) {                   \
        const T *f = filters, *w = windows, *bias_f = s->bias_filters, *bias_w = s->bias_windows, *old = s->old;                 \
        const T alpha = (T)s->alpha, beta = (T)s->beta, low = (T)s->bounds.low, high = (T)s->bounds.high;                        \
        T acc[FILTERS][WINDOWS] = {{0}}, *out = to;                                                                              \
        for (int64_t p = 0; p < k; p++, f += FILTERS, w += window_pitch) {                                                       \
            T x[WINDOWS] = {0};                                                                                                  \
            for (int64_t i = 0; i < nw; i++) x[i] = LOAD(w + i);                                                                 \
            for (int j = 0; j < FILTERS; j++)                                                                                    \
                for (int i = 0; i < WINDOWS; i++) acc[j][i] = FMA(LOAD(f + j), x[i], acc[j][i]);                                 \
        }                                                                                                                        \
        for (int64_t j = 0; j < nf; j++)                                                                                         \
            for (int64_t i = 0; i < nw; i++) {                                                                                   \
                const T bias = (bias_w ? bias_w[i] : 0) + (bias_f ? bias_f[j] : 0);                                              \
                T sum = FMA(acc[j][i], alpha, bias);                                                                             \
                if (old) sum = FMA(LOAD(old + j * out_pitch + i), beta, sum);                                                    \
                STORE(out + j * out_pitch + i, sum < low ? low : sum > high ? high : sum);                                       \
            }                                                                                                                    \
    }                                                                                                                            \
    void dtype##_fused_8x4__portable(int64_t k, const void *filters, const void *windows, int64_t window_pitch, void *out,       \
                                     int64_t out_pitch, int64_t nw, int64_t nf, const pysim_store *s) {                          \
        dtype##_fused(k, filters, windows, window_pitch, out, out_pitch, nw, nf, s);                                             \
    }
DEFINE_FUSED(f32, float, __builtin_fmaf)
DEFINE_FUSED(f64, double, __builtin_fma)

/* NOT_FINITE: of an element x. */
#define DEFINE_PACKER(dtype, T, NOT_FINITE)                                                                                         \
    /* Stride 1: the row's padded columns are copied into a buffer once, then once per tap, each shifted by one. */                 \
    static void dtype##_chain(const pysim_segment *s, T *dst) {                                                                     \
        enum { LINE = 512 };                                                                                                        \
        const int64_t block = pysim_min(s->count, LINE - s->taps + 1);                                                              \
        const T *row = s->row;                                                                                                      \
        T line[LINE];                                                                                                               \
        for (int64_t c = 0; c < s->channels; c++, row += s->row_channel, dst += s->dst_channel)                                     \
            for (int64_t j = 0; j < s->count; j += block) {                                                                         \
                const int64_t n = pysim_min(block, s->count - j), first = s->first + j, length = n + s->taps - 1;                   \
                const int64_t lo = pysim_min(length, pysim_max(0, -first));                                                         \
                const int64_t hi = pysim_max(lo, pysim_min(length, s->width - first));                                              \
                memset(line, 0, (size_t)length * sizeof(T));                                                                        \
                if (hi > lo) LOAD_RUN(line + lo, row + first + lo, (size_t)(hi - lo) * sizeof(T));                                  \
                for (int64_t tap = 0; tap < s->taps; tap++) STORE_RUN(dst + tap * s->pitch + j, line + tap, (size_t)n * sizeof(T)); \
            }                                                                                                                       \
    }                                                                                                                               \
                                                                                                                                    \
    void pack_##dtype##__portable_segment(const pysim_segment *s, void *to) {                                                       \
        if (s->row && s->stride == 1 && s->dilation == 1 && s->taps <= 256) {                                                       \
            dtype##_chain(s, to);                                                                                                   \
            return;                                                                                                                 \
        }                                                                                                                           \
        const T *row = s->row;                                                                                                      \
        T *dst = to;                                                                                                                \
        for (int64_t c = 0; c < s->channels; c++, dst += s->dst_channel)                                                            \
            for (int64_t tap = 0; tap < s->taps; tap++)                                                                             \
                for (int64_t j = 0; j < s->count; j++) {                                                                            \
                    const int64_t column = s->first + j * s->stride + tap * s->dilation;                                            \
                    const int inside = row && column >= 0 && column < s->width;                                                     \
                    STORE(dst + tap * s->pitch + j, inside ? LOAD(row + c * s->row_channel + column) : (T)0);                       \
                }                                                                                                                   \
    }                                                                                                                               \
                                                                                                                                    \
    void pack_##dtype##__portable_transposed(const void *from, int64_t ld, int64_t rows, int64_t k, int64_t pitch, void *to,        \
                                             int *not_finite) {                                                                     \
        const T *src = from;                                                                                                        \
        T *dst = to;                                                                                                                \
        for (int64_t p = 0; p < k; p++)                                                                                             \
            for (int64_t i = 0; i < pitch; i++) STORE(dst + p * pitch + i, i < rows ? LOAD(src + i * ld + p) : (T)0);               \
        int found = 0;                                                                                                              \
        for (int64_t i = 0; not_finite && i < k * pitch; i++) {                                                                     \
            const T x = LOAD(dst + i);                                                                                              \
            found |= NOT_FINITE;                                                                                                    \
        }                                                                                                                           \
        if (found) *not_finite = 1;                                                                                                 \
    }
DEFINE_PACKER(f32, float, x - x != 0)
DEFINE_PACKER(f64, double, x - x != 0)
DEFINE_PACKER(bf16, uint16_t, (x & 0x7F80) == 0x7F80)
DEFINE_PACKER(s8, int8_t, x - x != 0)
