/* SPDX-License-Identifier: Apache-2.0
 * The kernels of polyphase.inc, of which a target and dtype have one:
 *
 *   out[f][i] = clamp((sum over p < k of filters[p][f] x[offsets[p] + i]) + bias[f])
 *
 * A tile is up to 3 neighbouring vectors of an output row x all filters of a panel: each tap loads the vectors in place and multiplies them by
 * one broadcast value per filter. 3 vectors x filters accumulators fill the registers. The vectors of a row are divided evenly among tiles, because a
 * tile of one vector has one load per multiply-add. */
#include "instance.h"

#define FILTERS_ARE(filters) enum { PHASES_FILTERS = filters };
#define PYSIM_PHASES_ROW(target, dtype, form, windows, filters, lane_windows, lane_filters) MINE(target, dtype, FILTERS_ARE)(filters)
#include "polyphase.inc"
#undef PYSIM_PHASES_ROW

enum { TILE = 3 };

INLINE void phases_tile(const int vectors, const int filters, const pysim_phases *of, const T *x, T *out, int64_t windows) {
    const T *w = of->filters, *bias = of->bias;
    VEC acc[TILE][PHASES_FILTERS];
#pragma GCC unroll 8
    for (int f = 0; f < filters; f++)
#pragma GCC unroll 3
        for (int v = 0; v < vectors; v++) acc[v][f] = v_zero();
    for (int64_t p = 0; p < of->k; p++, w += filters) {
        const T *at = x + of->offsets[p];
        VEC in[TILE];
#pragma GCC unroll 3
        for (int v = 0; v < vectors; v++) in[v] = v_load(at + v * LANES);
#pragma GCC unroll 8
        for (int f = 0; f < filters; f++) {
            const VEC one = v_set1(w[f]);
#pragma GCC unroll 3
            for (int v = 0; v < vectors; v++) acc[v][f] = v_fma(in[v], one, acc[v][f]);
        }
    }
    const VEC low = v_set1((T)of->bounds.low), high = v_set1((T)of->bounds.high);
    const MASK last = v_lanes(0, windows - (vectors - 1) * LANES);
    const int whole = windows == vectors * LANES;
#pragma GCC unroll 8
    for (int f = 0; f < filters; f++) {
        if (f >= of->count) break;
        const VEC own = bias ? v_set1(bias[f]) : v_zero();
        T *to = out + f * of->out_pitch;
#pragma GCC unroll 3
        for (int v = 0; v < vectors; v++) {
            const VEC y = v_between(low, high, v_add(acc[v][f], own));
            if (v < vectors - 1 || whole) v_store(to + v * LANES, y);
            else v_store_mask(to + v * LANES, y, last);
        }
    }
}

static void phases_row(const pysim_phases *of, const void *input, void *result, int64_t windows) {
    const T *x = input;
    T *out = result;
    int64_t left = pysim_ceil_div(windows, LANES);
    for (int64_t tiles = pysim_ceil_div(left, TILE); tiles > 0; tiles--) {
        const int64_t vectors = pysim_ceil_div(left, tiles), count = pysim_min(windows, vectors * LANES);
        switch (vectors) {
        case 1: phases_tile(1, PHASES_FILTERS, of, x, out, count); break;
        case 2: phases_tile(2, PHASES_FILTERS, of, x, out, count); break;
        default: phases_tile(TILE, PHASES_FILTERS, of, x, out, count); break;
        }
        x += count, out += count, windows -= count, left -= vectors;
    }
}

#define DEFINE_PHASES(name) \
    void name(const pysim_phases *of, const void *x, void *out, int64_t windows) { phases_row(of, x, out, windows); }

/* The rows of polyphase.inc for these vectors */
#define DEFINED(target, dtype, form, windows, filters, lanes) DEFINE_PHASES(dtype##_##form##_##windows##x##filters##__##target)
#define PYSIM_PHASES_ROW(target, dtype, form, windows, filters, lane_windows, lane_filters) \
    MINE(target, dtype, DEFINED)(target, dtype, form, windows, filters, lane_filters)
#include "polyphase.inc"
