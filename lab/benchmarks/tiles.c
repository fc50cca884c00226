/* SPDX-License-Identifier: Apache-2.0
 * What packing and a micro-kernel call cost alone, in cycles, everything in L1 or L2. Built with -Dtests=true:
 *
 *   taskset -c 1 build-native/tiles
 *
 * packing: cycles a packed vector of one run of windows; call: cycles beyond the arithmetic of a full tile at k = 64. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernel.h"

#define PYSIM_ROW(target, dtype, form, windows, filters, lw, lf) RUN_##target(dtype, form, windows, filters)
#define RUN_portable(dtype, form, windows, filters)
#define RUN_mma(dtype, form, windows, filters)
#define RUN_avx2(dtype, form, windows, filters) DECLARE(dtype##_##form##_##windows##x##filters##__avx2)
#define RUN_avx512(dtype, form, windows, filters) DECLARE(dtype##_##form##_##windows##x##filters##__avx512)
#define RUN_avxvnni(dtype, form, windows, filters)
#define RUN_avx512vnni(dtype, form, windows, filters)
#define RUN_avx512bf16(dtype, form, windows, filters)
#define DECLARE(name) void name(int64_t, const void *, const void *, int64_t, void *, int64_t, int64_t, int64_t, const pysim_store *);
#include "kernels.inc"
#undef DECLARE
void pack_f32__avx512_segment(const pysim_segment *s, void *dst);

enum { BYTES = 1 << 22, PLANE = 3136 };
static char *filters, *windows, *output;
static double hertz;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double cycles(pysim_micro_kernel run, int64_t k, int64_t nw, int64_t nf) {
    enum { CALLS = 2000 };
    const pysim_store store = {.alpha = 1};
    double best = 1e9;
    for (int repeat = 0; repeat < 30; repeat++) {
        const double start = now();
        for (int i = 0; i < CALLS; i++) run(k, filters, windows, nw, output, PLANE, nw, nf, &store);
        const double each = (now() - start) / CALLS;
        best = each < best ? each : best;
    }
    return best * hertz;
}

static void call(const char *name, pysim_micro_kernel run, int64_t nw, int64_t nf) {
    /* the arithmetic is what further steps cost: the slope, not a datasheet */
    const double at64 = cycles(run, 64, nw, nf), step = (cycles(run, 192, nw, nf) - at64) / 128;
    printf("call     %-24s %6.2f cycles a step, %4.0f beyond the arithmetic of 64\n", name, step, at64 - 64 * step);
}

static void packing(int64_t taps, int64_t stride, int64_t channels, int64_t count) {
    enum { PITCH = 64, WIDTH = 200 };
    const pysim_segment s = {windows, 4 * WIDTH, WIDTH, 0, stride, 1, taps, channels, count, taps * PITCH, PITCH, 0, 0};
    const int64_t calls = 20000 / channels;
    double best = 1e9;
    for (int repeat = 0; repeat < 20; repeat++) {
        const double start = now();
        for (int64_t i = 0; i < calls; i++) pack_f32__avx512_segment(&s, output);
        const double each = (now() - start) / (double)calls;
        best = each < best ? each : best;
    }
    printf("packing  %2d taps, stride %d, %2d channels, %2d windows: %5.2f cycles a packed vector\n", (int)taps, (int)stride,
           (int)channels, (int)count, best * hertz / (double)(channels * taps * ((count + 15) / 16)));
}

int main(void) {
    if (pysim_probe_clock(&hertz) != PYSIM_OK) return 1;
    filters = aligned_alloc(64, BYTES), windows = aligned_alloc(64, BYTES), output = aligned_alloc(64, BYTES);
    if (!filters || !windows || !output) return 1;
    memset(filters, 0, BYTES), memset(windows, 0, BYTES), memset(output, 0, BYTES);
    if (__builtin_cpu_supports("avx512f")) {
        packing(3, 1, 16, 64), packing(3, 1, 16, 16), packing(7, 2, 3, 64), packing(7, 2, 16, 64), packing(11, 4, 3, 55);
    }
    pysim_kernel_info info;
    int32_t index = 0;
#define DECLARE(name) \
    if (pysim_kernel_at(index++, &info) == PYSIM_OK && info.available) call(#name, name, info.windows, info.filters);
#undef RUN_portable
#undef RUN_mma
#undef RUN_avxvnni
#undef RUN_avx512vnni
#undef RUN_avx512bf16
#define RUN_portable(dtype, form, windows, filters) index++;
#define RUN_mma(dtype, form, windows, filters) index++;
#define RUN_avxvnni(dtype, form, windows, filters) index++;
#define RUN_avx512vnni(dtype, form, windows, filters) index++;
#define RUN_avx512bf16(dtype, form, windows, filters) index++;
#include "kernels.inc"
    return 0;
}
