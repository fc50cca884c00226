/* SPDX-License-Identifier: Apache-2.0
 * The contract between the loops of Winograd's F(4x4, 3x3) of bytes (winograd.c) and its transforms on one target (x86/groups/winograd.h).
 *
 * Tiles of 4 x 4 outputs come in quads, 4 neighbours of a row of tiles, and up to 4 quads are a panel. A lane is a tile. Layouts:
 *
 *   patches   [plane][pair of channels][lane][2], 16 bits; planes are plane_bytes apart
 *   products  [filter][plane][lane], of some channels
 *   sums      [filter][row and column of a tile][lane] */
#ifndef PYSIM_INTEGERS_WINOGRAD_H
#define PYSIM_INTEGERS_WINOGRAD_H
#include "kernel.h"

enum {
    PYSIM_QUAD = 4,
    PYSIM_QUADS = 4, /* of a panel */
    PYSIM_QUAD_LANES = PYSIM_QUAD * PYSIM_QUADS,
    PYSIM_QUAD_PLANES = 36,
    PYSIM_QUAD_OUTPUTS = 16,                    /* of a tile */
    PYSIM_QUAD_COLUMNS = 20,                    /* columns of the padded input that a quad reads, from its first on: */
    PYSIM_QUAD_PITCH = PYSIM_QUAD * PYSIM_QUAD, /* the next quad's first column lies as far behind */
};

/* Rows of the padded input, unsigned bytes: row i of quad q in channel c is rows[q] + i*pitch + c*channel. */
typedef struct {
    const uint8_t *rows[PYSIM_QUADS];
    int64_t pitch, channel, channels, quads;
    int32_t zero; /* what stands for 0, also in the padding */
} pysim_quads;

/* Where results of a quad go: rows of outputs `pitch` bytes apart. */
typedef struct {
    uint8_t *out[PYSIM_QUADS];
    int64_t rows[PYSIM_QUADS], columns[PYSIM_QUADS];
    int64_t pitch, quads;
} pysim_quad_results;

typedef struct pysim_quad_transforms {
    /* V = B^T (d - zero) B of all patches. */
    void (*patches)(const pysim_quads *of, int64_t plane_bytes, void *to);
    /* sums (+)= A^T products A / 576 of a filter, exactly, if the result is within 2^25. */
    void (*inverse)(const int32_t *products, int64_t quads, int adds, int32_t *sums);
    /* Results of bytes of a filter: its sums + bias within the bounds, rescaled. */
    void (*store)(const pysim_rescale *r, const int32_t *sums, int32_t bias, const pysim_bounds *bounds, const pysim_quad_results *to);
    int64_t vector_quads; /* quads whose tiles fill a vector */
} pysim_quad_transforms;

#endif
