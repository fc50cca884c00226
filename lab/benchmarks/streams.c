/* SPDX-License-Identifier: Apache-2.0
 * How fast one core reads a matrix of 4096 rows of 16 KiB, which lies in memory: in what order, and with what beside each line.
 *
 *     gcc -O2 -march=native lab/benchmarks/streams.c -o streams && taskset -c 1 ./streams
 *
 * A strip of `run` columns of all rows is read before the next one; of `rows` rows at a time, `lines` lines of each in turn. With each line go
 * 8 multiply-adds of it and `loads` loads from L1, as those of what multiplies it; `ahead` lines of each row are asked for ahead. The least of 15
 * rounds in which all take turns, in huge pages. Prefetches alone, 64 lines ahead: those that find no place for a miss are dropped. */
#define _GNU_SOURCE
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

enum { ROWS = 4096, COLUMNS = 4096, LINE = 16, HUGE = 2 << 20, ROUNDS = 15 };
static const size_t BYTES = (size_t)ROWS * COLUMNS * sizeof(float);
static float beside[8 * LINE] __attribute__((aligned(64)));

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static inline __attribute__((always_inline)) float take(int rows, int lines, int run, int loads, int ahead, const float *matrix) {
    __m512 sums[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) sums[i] = _mm512_setzero_ps();
    for (int strip = 0; strip < COLUMNS; strip += run)
        for (int row = 0; row < ROWS; row += rows)
            for (int at = strip; at < strip + run; at += lines * LINE) {
                const float *from = matrix + (size_t)row * COLUMNS + at;
                const float *next = from + ahead * LINE + (at + ahead * LINE < strip + run ? 0 : (size_t)rows * COLUMNS - run);
#pragma GCC unroll 16
                for (int r = 0; r < rows; r++, from += COLUMNS, next += COLUMNS)
#pragma GCC unroll 8
                    for (int line = 0; line < lines; line++) {
                        if (ahead) __builtin_prefetch(next + line * LINE);
                        const __m512 x = _mm512_loadu_ps(from + line * LINE);
#pragma GCC unroll 8
                        for (int i = 0; i < loads; i++) {
                            __m512 other;
                            __asm__ volatile("vmovaps %1, %0" : "=v"(other) : "m"(*(const __m512 *)(beside + i * LINE)));
                        }
#pragma GCC unroll 8
                        for (int i = 0; i < 8; i++) sums[i + line % 2 * 8] = _mm512_fmadd_ps(x, x, sums[i + line % 2 * 8]);
                    }
            }
#pragma GCC unroll 16
    for (int i = 1; i < 16; i++) sums[0] = _mm512_add_ps(sums[0], sums[i]);
    return _mm512_reduce_add_ps(sums[0]);
}

static float prefetch_alone(const float *matrix) {
    for (size_t i = 0; i < BYTES / sizeof(float); i += LINE) __builtin_prefetch(matrix + i + 64 * LINE);
    return 0;
}

#define CASES                                                                                                                        \
    CASE(1, 4, 4096, 0, 0) CASE(4, 4, 4096, 0, 0) CASE(8, 4, 4096, 0, 0) CASE(16, 4, 4096, 0, 0) CASE(4, 1, 4096, 0, 0)               \
    CASE(8, 1, 4096, 0, 0) CASE(1, 4, 2048, 0, 0) CASE(1, 4, 1024, 0, 0) CASE(1, 4, 512, 0, 0) CASE(1, 4, 768, 0, 0)                   \
    CASE(1, 4, 4096, 1, 0) CASE(1, 4, 4096, 2, 0) CASE(1, 4, 4096, 4, 0) CASE(1, 4, 4096, 8, 0) CASE(1, 4, 4096, 2, 32)                \
    CASE(1, 4, 4096, 4, 32) CASE(1, 4, 4096, 8, 32) CASE(4, 4, 4096, 4, 0) CASE(4, 4, 4096, 4, 32) CASE(8, 4, 4096, 4, 0)              \
    CASE(8, 4, 4096, 8, 0) CASE(8, 4, 4096, 4, 32)
#define CASE(rows, lines, run, loads, ahead)                                                    \
    static float take_##rows##_##lines##_##run##_##loads##_##ahead(const float *matrix) {       \
        return take(rows, lines, run, loads, ahead, matrix);                                    \
    }
CASES
#undef CASE
#define CASE(rows, lines, run, loads, ahead) \
    {"rows " #rows ", lines " #lines ", run " #run ", loads " #loads ", ahead " #ahead, take_##rows##_##lines##_##run##_##loads##_##ahead},

int main(void) {
    static const struct {
        const char *name;
        float (*run)(const float *);
    } cases[] = {CASES{"prefetches alone", prefetch_alone}};
    enum { COUNT = sizeof cases / sizeof *cases };
    double least[COUNT];
    float sum = 0, *matrix = aligned_alloc(HUGE, BYTES);
    if (!matrix) return 1;
    madvise(matrix, BYTES, MADV_HUGEPAGE);
    for (size_t i = 0; i < BYTES / sizeof(float); i++) matrix[i] = 1e-6f * (float)(i % 1024);
    for (int i = 0; i < COUNT; i++) least[i] = 1e9;
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < COUNT; i++) {
            const double start = now();
            sum += cases[i].run(matrix);
            const double taken = now() - start;
            if (taken < least[i]) least[i] = taken;
        }
    for (int i = 0; i < COUNT; i++)
        printf("%-48s %6.3f ms %6.1f GB/s\n", cases[i].name, least[i] * 1e3, (double)BYTES / least[i] * 1e-9);
    return sum == 12345.0f;
}
