/* SPDX-License-Identifier: Apache-2.0
 * How threads divide the tiles of an image (pysim/cachemodel/cpu/threads.py has the same rules). Part of nest.c. */
#ifndef PYSIM_NEST_PARTS_H
#define PYSIM_NEST_PARTS_H
#include "algorithms/nest/data.h"

/* Divides window tiles x filter tiles among threads so that the largest part has the fewest tiles. Among equals it takes the fewest
 * parts of filters, because each of them packs the windows again; of shared panels the squarest part, which reads the fewest of them. */
static void divide(int64_t windows, int64_t filters, int64_t parts, int shared, int64_t *window_parts, int64_t *filter_parts) {
    int64_t least = INT64_MAX, panels = INT64_MAX;
    for (int64_t f = 1; f <= pysim_min(parts, filters); f++) {
        const int64_t w = pysim_min(parts / f, windows), across = pysim_ceil_div(windows, w), down = pysim_ceil_div(filters, f);
        if (across * down < least || (shared && across * down == least && across + down < panels))
            least = across * down, panels = across + down, *window_parts = w, *filter_parts = f;
    }
}

/* Parts of shared panels: a thread takes several from the queue, as CPUs may multiply tiles at rates that differ by more than a factor of three, but a
 * part has PART_TILES tiles at least, since it reads panels from other CPUs' caches. */
enum { SHARED_ITEMS = 4, PART_TILES = 16 };

static int64_t shared_parts(int64_t tiles, int64_t threads) {
    return threads * pysim_max(1, pysim_min(SHARED_ITEMS, tiles / (PART_TILES * threads)));
}
#endif
