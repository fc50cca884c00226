/* SPDX-License-Identifier: Apache-2.0
 * One convolution by the portable row, for tools that watch a whole program: 4 channels of 9x11, 6 filters of 3x3, weight stationary. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pysim.h"

static int fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, pysim_last_error());
    return 1;
}

static int32_t kernel_named(const char *name) {
    pysim_kernel_info info;
    for (int32_t i = 0; i < pysim_kernel_count(); i++)
        if (pysim_kernel_at(i, &info) == PYSIM_OK && strcmp(info.name, name) == 0) return i;
    return -1;
}

int main(void) {
    const pysim_problem c = {PYSIM_CONV, .conv = {1, 1, 4, 9, 11, 6, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, PYSIM_F32}};
    const pysim_schedule s = {0, kernel_named("f32_win_8x4__portable"), PYSIM_WEIGHT_STATIONARY, PYSIM_PACK_TILES, 8, 4, 3, 3, 1, 0};
    const pysim_epilogue e = {1, 0, NULL, PYSIM_RELU};
    int64_t packed, work;
    if (pysim_prepared_bytes(&c, &s, &packed) || pysim_workspace_bytes(&c, &s, 1, &work)) return fail("sizes");
    const size_t image = 4 * 9 * 11 * sizeof(float), filters = 6 * 4 * 9 * sizeof(float), output = 6 * 9 * 11 * sizeof(float);
    const size_t all = 4096 * 8 + image + filters + output + (size_t)packed + (size_t)work;
    char *memory = aligned_alloc(4096, all / 4096 * 4096), *at = memory;
    if (!memory) return fail("memory");
    memset(memory, 0, all / 4096 * 4096);
    void *in = at, *from = at += (image | 4095) + 1, *panels = at += (filters | 4095) + 1, *out = at += ((size_t)packed | 4095) + 1;
    void *scratch = at += (output | 4095) + 1;
    if (pysim_prepare(&c, &s, from, panels, packed)) return fail("pack");
    if (pysim_run(&c, &s, &e, 1, in, panels, out, scratch, work, NULL)) return fail("run");
    free(memory);
    return 0;
}
