/* SPDX-License-Identifier: Apache-2.0
 * How results reach memory: past the caches, or into lines that are fetched before. */
#ifndef PYSIM_NEST_RESULTS_H
#define PYSIM_NEST_RESULTS_H
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "algorithms/nest/data.h"

/* Bytes of the last cache, as Linux reports it; 0 if it does not. sysconf says 320 MiB of a Zen 4's 32. */
static int64_t last_cache_bytes(void) {
    static _Atomic int64_t known = -1;
    if (known >= 0) return known;
    char text[32] = {0};
    const int file = open("/sys/devices/system/cpu/cpu0/cache/index3/size", O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        if (read(file, text, sizeof text - 1) < 0) text[0] = 0;
        (void)close(file);
    }
    const long kib = strtol(text, NULL, 10); /* followed by K */
    return known = kib > 0 ? (int64_t)kib << 10 : 0;
}

/* Results of all images that fill more than this part of the last cache, in whole lines, go past the caches: to store one there reads its line first.
 * Zen 4, 32 MiB, one core, 1x1 layers, times past the caches over times in them, and with a pass that reads the results: 3.2 MB 0.98 and 1.01, 0.90 and
 * 1.09; 6.4 MB 0.92 and 0.94; 12.8 MB 0.93 and 0.97, 0.97 and 0.96, 0.94 and 0.96; 25.7 MB 0.87 and 0.92, 0.95 and 0.96; 51.4 MB 0.82 and 0.86. */
enum { STREAMED_PART = 4 };

static inline int pysim_wants_streams(const pysim_nest *n, int64_t images) {
    const int64_t line = 64, tile = n->schedule.windows * n->out_bytes, pitch = n->output_pitch * n->out_bytes;
    if (!n->row.streams || n->traced || tile % line || pitch % line) return 0;
    if (n->schedule.channels < n->channels || n->beta != 0 || n->finish_rows.loops) return 0; /* results are read again at once */
    const int64_t last = last_cache_bytes();
    return last && images * n->windows * n->filters * n->out_bytes > last / STREAMED_PART;
}

/* Outputs of all images larger than the first come mostly from beyond the caches of a core, larger than the second from beyond L2. With few
 * k-iterations between the stores of two tiles, prefetching a tile's lines beats waiting in the stores; with very few only if they come from afar. Times
 * with over times without, output just used and not used for long, on one core. Zen 5: 3000x3000x16 0.73 and 0.73, 2048x2048x64 0.89 and 0.60, 1200x1200x16
 * 1.21 and 0.71; 96 -> 576, 56x56, 1x1, 1.04 and 1.04. Zen 4, 1x1: 16 -> 64, 32x784, 1.05 and 0.83, four of them 0.77 and 0.80; 32 -> 128, 32x196, 1.04
 * and 0.84, four 0.89 and 0.87; 16 -> 32, 24,000, 1.06 and 0.74; eight of 32 -> 64, 12,000, 0.81 and 0.81. Zen 3 beside other virtual machines, 56x56, 1x1:
 * 64 -> 256 0.72 and 0.82, 96 -> 256 0.77 (just used); quieter, 48, 128, 256 -> 256 1.06, 0.97, 0.96; 32 -> 256 1.15. */
enum { FAR_OUTPUT_BYTES = 2 << 20, OUTPUT_BYTES = 1 << 20, SHORT_K = 64, LONG_K = 256 };

static inline int pysim_wants_output_prefetch(const pysim_nest *n, int64_t images) {
    const int64_t bytes = images * n->windows * n->filters * n->out_bytes, k = n->channels * n->rows * n->taps;
    return k <= LONG_K && bytes > (k < SHORT_K ? FAR_OUTPUT_BYTES : OUTPUT_BYTES);
}
#endif
