/* SPDX-License-Identifier: Apache-2.0
 * The micro-kernel and packing in plain C: they run everywhere and are what the compiler makes of them. */
#include <string.h>

#include "kernel.h"

/* Every access to an operand or a panel goes through these; a test puts in others, which write down what is executed. */
#ifdef PYSIM_RECORD
#include "test/record.h"
#else
#define LOAD(p) (*(p))
#define STORE(p, value) (*(p) = (value))
#define LOAD_RUN(line, p, bytes) memcpy(line, p, bytes)
#define STORE_RUN(p, line, bytes) memcpy(p, line, bytes)
#endif

enum { WINDOWS = 8, FILTERS = 4 };

#define DEFINE_PORTABLE(T, dtype)                                                                                      \
    void dtype##_win_8x4__portable(int64_t k, const void *filters, const void *windows, int64_t window_pitch, void *out, \
                                   int64_t out_pitch, int64_t nw, int64_t nf, const pysim_store *s) {                  \
        const T *f = filters, *w = windows, *bias_f = s->bias_filters, *bias_w = s->bias_windows;                      \
        T acc[FILTERS][WINDOWS] = {{0}};                                                                               \
        if (nw == WINDOWS) {                                                                                           \
            for (int64_t p = 0; p < k; p++, f += FILTERS, w += window_pitch) {                                         \
                T x[WINDOWS], y[FILTERS];                                                                              \
                for (int i = 0; i < WINDOWS; i++) x[i] = LOAD(w + i);                                                  \
                for (int j = 0; j < FILTERS; j++) y[j] = LOAD(f + j);                                                  \
                for (int j = 0; j < FILTERS; j++)                                                                      \
                    for (int i = 0; i < WINDOWS; i++) acc[j][i] += y[j] * x[i];                                        \
            }                                                                                                          \
        } else {                                                                                                       \
            for (int64_t p = 0; p < k; p++, f += FILTERS, w += window_pitch)                                           \
                for (int j = 0; j < FILTERS; j++) {                                                                    \
                    const T y = LOAD(f + j);                                                                           \
                    for (int64_t i = 0; i < nw; i++) acc[j][i] += y * LOAD(w + i);                                     \
                }                                                                                                      \
        }                                                                                                              \
        for (int64_t j = 0; j < nf; j++)                                                                               \
            for (int64_t i = 0; i < nw; i++) {                                                                         \
                T *to = (T *)out + j * out_pitch + i;                                                                  \
                T value = acc[j][i] * (T)s->alpha;                                                                     \
                if (s->beta != 0) value += LOAD(to) * (T)s->beta;                                                      \
                value += (bias_f ? bias_f[j] : (T)0) + (bias_w ? bias_w[i] : (T)0);                                    \
                STORE(to, s->relu && value < 0 ? (T)0 : value);                                                        \
            }                                                                                                          \
    }                                                                                                                  \
                                                                                                                       \
    /* Stride 1 in C: the row's padded columns once into a line, then one copy per tap, each a lane further. */        \
    static void dtype##_chain(const pysim_segment *s, T *dst) {                                                        \
        enum { LINE = 512 };                                                                                           \
        const int64_t block = pysim_min(s->count, LINE - s->taps + 1);                                                 \
        const T *row = s->row;                                                                                         \
        T line[LINE];                                                                                                  \
        for (int64_t c = 0; c < s->channels; c++, row += s->row_channel, dst += s->dst_channel)                        \
            for (int64_t j = 0; j < s->count; j += block) {                                                            \
                const int64_t n = pysim_min(block, s->count - j), first = s->first + j, length = n + s->taps - 1;      \
                const int64_t lo = pysim_min(length, pysim_max(0, -first));                                            \
                const int64_t hi = pysim_max(lo, pysim_min(length, s->width - first));                                 \
                memset(line, 0, (size_t)length * sizeof(T));                                                           \
                if (hi > lo) LOAD_RUN(line + lo, row + first + lo, (size_t)(hi - lo) * sizeof(T));                     \
                for (int64_t tap = 0; tap < s->taps; tap++)                                                            \
                    STORE_RUN(dst + tap * s->pitch + j, line + tap, (size_t)n * sizeof(T));                            \
            }                                                                                                          \
    }                                                                                                                  \
                                                                                                                       \
    void pack_##dtype##__portable_segment(const pysim_segment *s, void *to) {                                          \
        if (s->row && s->stride == 1 && s->dilation == 1 && s->taps <= 256) {                                          \
            dtype##_chain(s, to);                                                                                      \
            return;                                                                                                    \
        }                                                                                                              \
        const T *row = s->row;                                                                                         \
        T *dst = to;                                                                                                   \
        for (int64_t c = 0; c < s->channels; c++, dst += s->dst_channel)                                               \
            for (int64_t tap = 0; tap < s->taps; tap++)                                                                \
                for (int64_t j = 0; j < s->count; j++) {                                                               \
                    const int64_t column = s->first + j * s->stride + tap * s->dilation;                               \
                    const int inside = row && column >= 0 && column < s->width;                                        \
                    STORE(dst + tap * s->pitch + j, inside ? LOAD(row + c * s->row_channel + column) : (T)0);          \
                }                                                                                                      \
    }                                                                                                                  \
                                                                                                                       \
    void pack_##dtype##__portable_transposed(const void *from, int64_t ld, int64_t rows, int64_t k, int64_t pitch,     \
                                             void *to) {                                                               \
        const T *src = from;                                                                                           \
        T *dst = to;                                                                                                   \
        for (int64_t p = 0; p < k; p++)                                                                                \
            for (int64_t i = 0; i < pitch; i++) STORE(dst + p * pitch + i, i < rows ? LOAD(src + i * ld + p) : (T)0);  \
    }
DEFINE_PORTABLE(float, f32)
DEFINE_PORTABLE(double, f64)
