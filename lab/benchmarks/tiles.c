/* SPDX-License-Identifier: Apache-2.0
 * What packing and a micro-kernel call cost alone, in cycles, everything in L1 or L2. Built with -Dtests=true:
 *
 *   taskset -c 1 build-native/tiles
 *
 * packing: cycles a packed vector of one run of windows; call: cycles beyond the arithmetic of a full tile at k = 64; panels: updates of 16 x 16 results
 * by one of k (bf16 two, bytes four) in a cycle, while panels of windows pass by one of filters. */
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
#define RUN_amx(dtype, form, windows, filters) DECLARE(dtype##_##form##_##windows##x##filters##__amx)
/* What is weak is NULL where the compiler does not know it or the build left it out. */
#define DECLARE(name) \
    __attribute__((weak)) void name(int64_t, const void *, const void *, int64_t, void *, int64_t, int64_t, int64_t, const pysim_store *);
#include "kernels.inc"
#undef DECLARE
__attribute__((weak)) void pack_f32__avx512_segment(const pysim_segment *s, void *dst);
__attribute__((weak)) void pack_f32__amx_segment(const pysim_segment *s, void *dst);
__attribute__((weak)) void enter_tiles__amx(void);
__attribute__((weak)) void leave_tiles__amx(void);

enum { BYTES = 1 << 24, PLANE = 3136 };
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
    printf("packing  %2d taps, stride %d, %2d channels, %2d windows: %5.2f cycles a packed vector\n", (int)taps, (int)stride, (int)channels,
           (int)count, best * hertz / (double)(channels * taps * ((count + 15) / 16)));
}

/* A call has 512 bytes of k a row of a tile; 6, 2 or 1 bytes an element. */
static void panels(const char *name, pysim_micro_kernel run, int32_t dtype) {
    enum { WIDE = 32, BLOCKS = 16, ROW = 64 };
    const int64_t parts = dtype == PYSIM_F32 ? 3 : 1, bytes = parts * WIDE * ROW * BLOCKS, group = dtype == PYSIM_S8 ? 4 : 2;
    const int64_t k = BLOCKS * ROW / 4 * group, updates = 4 * k / (dtype == PYSIM_F32 ? 1 : group);
    const pysim_store store = {.alpha = 1, .bounds = pysim_unbounded(dtype)};
    printf("panels   %-24s", name);
    for (int64_t size = bytes; size <= BYTES; size *= 8) {
        const int64_t count = size / bytes, repeats = 200 / count + 1;
        double best = 1e9;
        for (int trial = 0; trial < 20; trial++) {
            const double start = now();
            for (int64_t i = 0; i < repeats * count; i++)
                run(k, filters, windows + i % count * bytes, WIDE, output, WIDE, WIDE, WIDE, &store);
            const double each = (now() - start) / (double)(repeats * count);
            best = each < best ? each : best;
        }
        printf(" %5.3f of %lld KiB", (double)updates / (best * hertz), (long long)(size >> 10));
    }
    printf("\n");
}

static void on_tiles(const char *name, pysim_micro_kernel run, const pysim_kernel_info *row) {
    enter_tiles__amx();
    panels(name, run, row->dtype);
    leave_tiles__amx();
    if (row->dtype != PYSIM_F32) return;
    enum { WIDE = 32, CHANNELS = 512, WIDTH = 544 };
    const pysim_segment s = {windows, WIDTH, WIDTH, 0, 1, 1, 1, CHANNELS, WIDE, WIDE, WIDE, 0, 0};
    double best = 1e9;
    for (int repeat = 0; repeat < 200; repeat++) {
        const double start = now();
        pack_f32__amx_segment(&s, output);
        best = now() - start < best ? now() - start : best;
    }
    printf("packing  split in three: %5.2f cycles a packed vector\n", best * hertz / (CHANNELS * WIDE / 16));
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
#undef RUN_amx
#define RUN_amx(dtype, form, windows, filters) TILES_OF(dtype##_##form##_##windows##x##filters##__amx)
#define TILES_OF(name) \
    if (pysim_kernel_at(index++, &info) == PYSIM_OK && info.available) on_tiles(#name, name, &info);
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
