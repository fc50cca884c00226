/* SPDX-License-Identifier: Apache-2.0
 * Covering arrays: few combinations of settings that contain every pair of settings. */
#ifndef PYSIM_TEST_COVER_H
#define PYSIM_TEST_COVER_H
#include <stdint.h>

enum { COVER_AXES = 20, COVER_ROWS = 2048 };

typedef struct {
    int32_t count;
    unsigned char row[COVER_ROWS][COVER_AXES]; /* row[i][axis] < levels[axis] */
} cover_array;

/* Rows in which every level of an axis meets every level of every other axis. The axes come in groups of group[0], group[1] …
 * neighbours (sizes add up to `axes`); within a group, and between two groups, all combinations meet. */
void cover_make(int32_t axes, const int32_t *levels, int32_t groups, const int32_t *group, uint64_t seed, cover_array *out);

/* The settings of one family of cases: the first two axes are the edges of windows and filters, the next three stationary, k2,
 * k3. Quick: pairs. Otherwise windows x filters and stationary x k2 x k3 are groups. Family and round choose other arrays. */
void cover_settings(int32_t axes, const int32_t *levels, int32_t family, int32_t round, cover_array *out);
#endif
