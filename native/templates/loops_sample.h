/* SPDX-License-Identifier: Apache-2.0
 * Samples of images at points (contract: pysim_sample, native/pysim.h). Included by loops.c.
 *
 * The pixels and shares of some points are found once, then read for every channel. */

enum { POINTS = 256, TAPS = 4 };

typedef struct {
    int64_t at[2];
    T share[2];
    int inside[2];
} taps_of_axis;

/* A position in the image as `padding` says; what is outside stays outside with zeros. NaN stays NaN. */
INLINE T placed(const pysim_sample *s, T at, int64_t size) {
    const T low = s->aligned ? 0 : (T)-0.5, high = s->aligned ? (T)(size - 1) : (T)size - (T)0.5, length = high - low;
    if (s->padding == PYSIM_PAD_BORDER) return at<0 ? 0 : at>(T)(size - 1) ? (T)(size - 1) : at;
    if (s->padding != PYSIM_PAD_REFLECTION || (at >= low && at <= high)) return at;
    if (!(length > 0)) return low;
    T distance = (T)fmod(at - low, 2 * length);
    if (distance < 0) distance += 2 * length;
    return low + (distance > length ? 2 * length - distance : distance);
}

INLINE void find_taps(const pysim_sample *s, T g, int64_t size, taps_of_axis *t) {
    const T low = s->aligned ? 0 : (T)-0.5, high = s->aligned ? (T)(size - 1) : (T)size - (T)0.5;
    T point = s->aligned ? (g + 1) / 2 * (T)(size - 1) : ((g + 1) * (T)size - 1) / 2;
    if (s->nearest) point = (T)rint(point);
    if (point < low || point > high) point = placed(s, point, size);
    const T first = s->nearest ? point : (T)floor(point);
    t->share[0] = s->nearest ? 1 : first + 1 - point, t->share[1] = s->nearest ? 0 : point - first;
    for (int i = 0; i < 2; i++) {
        const T at = placed(s, first + (T)i, size);
        t->inside[i] = at >= 0 && at <= (T)(size - 1) && !(s->nearest && i);
        t->at[i] = t->inside[i] ? (int64_t)at : 0;
    }
}

/* y[channel][point] of some points; a tap outside the image is not read. */
INLINE void blend_points(const int whole, const pysim_sample *s, int64_t count, const int64_t (*at)[POINTS], const T (*share)[POINTS],
                         const T *x, T *y) {
    const int64_t plane = s->height * s->width;
    for (int64_t c = 0; c < s->channels; c++, x += plane, y += s->points)
        for (int64_t i = 0; i < count; i++) {
            T sum = 0;
#pragma GCC unroll 4
            for (int tap = 0; tap < TAPS; tap++)
                if (whole || at[tap][i] >= 0) sum += share[tap][i] * x[at[tap][i]];
            y[i] = sum;
        }
}

static void sample_images(const pysim_sample *s, const void *from, const void *points, void *to) {
    const int64_t plane = s->height * s->width;
    int64_t at[TAPS][POINTS];
    T share[TAPS][POINTS];
    for (int64_t n = 0; n < s->images; n++)
        for (int64_t p = 0; p < s->points; p += POINTS) {
            const int64_t count = pysim_min(POINTS, s->points - p);
            const T *grid = (const T *)points + (n * s->points + p) * 2;
            int whole = 1;
            for (int64_t i = 0; i < count; i++) {
                taps_of_axis along, down;
                find_taps(s, grid[2 * i], s->width, &along), find_taps(s, grid[2 * i + 1], s->height, &down);
                for (int tap = 0; tap < TAPS; tap++) {
                    const int inside = down.inside[tap / 2] && along.inside[tap % 2];
                    at[tap][i] = inside ? down.at[tap / 2] * s->width + along.at[tap % 2] : -1;
                    share[tap][i] = down.share[tap / 2] * along.share[tap % 2];
                    whole &= inside;
                }
            }
            const T *x = (const T *)from + n * s->channels * plane;
            T *y = (T *)to + n * s->channels * s->points + p;
            if (whole) blend_points(1, s, count, (const int64_t (*)[POINTS])at, (const T(*)[POINTS])share, x, y);
            else blend_points(0, s, count, (const int64_t (*)[POINTS])at, (const T(*)[POINTS])share, x, y);
        }
}
