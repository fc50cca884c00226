/* SPDX-License-Identifier: Apache-2.0
 * Calls one micro-kernel or packing routine between two empty functions, for lab/fits/static_cycles.py to trace:
 *
 *   static_calls kernel    NAME K WINDOWS FILTERS BETA
 *   static_calls segment   NAME TAPS STRIDE COUNT CHANNELS     (NAME: a kernel of that target and dtype)
 *   static_calls transpose NAME ROWS K
 *
 * Linked statically with the objects of a build, so that addresses are those of the file. The second of two calls is between the
 * marks: nothing in it happens for the first time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel.h"

enum { BYTES = 1 << 17, PLANE = 1024 };

__attribute__((noinline, noclone, used)) void trace_begin(void) { __asm__ volatile(""); }
__attribute__((noinline, noclone, used)) void trace_end(void) { __asm__ volatile(""); }

static int find(const char *name, pysim_row *row) {
    pysim_kernel_info info;
    for (int32_t i = 0; pysim_kernel_at(i, &info) == PYSIM_OK; i++)
        if (!strcmp(info.name, name)) {
            const pysim_schedule s = {.kernel = i, .windows = info.windows, .filters = info.filters};
            return pysim_row_of(&s, info.dtype, row) == PYSIM_OK && row->run;
        }
    return 0;
}

int main(int argc, char **argv) {
    pysim_row row;
    int64_t n[4] = {0};
    if (argc < 5 || argc > 7) return 2;
    if (!find(argv[2], &row)) {
        fprintf(stderr, "this build has no kernel %s\n", argv[2]);
        return 1;
    }
    for (int i = 3; i < argc; i++) n[i - 3] = atoll(argv[i]);
    char *a = aligned_alloc(128, BYTES), *b = aligned_alloc(128, BYTES), *out = aligned_alloc(128, BYTES);
    if (!a || !b || !out) return 1;
    memset(a, 0, BYTES), memset(b, 0, BYTES), memset(out, 0, BYTES);
    const pysim_store store = {.alpha = 1, .beta = argv[1][0] == 'k' ? (double)n[3] : 0};
    const int64_t pitch = row.info.windows;
    for (int call = 0; call < 2; call++) {
        if (call) trace_begin();
        if (argv[1][0] == 'k') {
            row.run(n[0], a, b, pitch, out, PLANE, n[1], n[2], &store);
        } else if (argv[1][0] == 's') {
            const pysim_segment s = {.row = a, .row_channel = PLANE, .width = PLANE, .stride = n[1], .dilation = 1, .taps = n[0],
                                     .channels = n[3], .count = n[2], .dst_channel = n[0] * pitch, .pitch = pitch};
            row.pack.segment(&s, out);
        } else {
            row.pack.transposed(a, PLANE, n[0], n[1], n[0], out);
        }
        if (call) trace_end();
    }
    return 0;
}
