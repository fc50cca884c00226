/* SPDX-License-Identifier: Apache-2.0
 * Buffers whose end, or start, is the edge of accessible memory: one byte further faults. The open side carries a pattern
 * (canary) that tells of a write. */
#ifndef PYSIM_TEST_GUARD_H
#define PYSIM_TEST_GUARD_H
#include <stddef.h>

typedef enum { GUARD_RIGHT = 0, GUARD_LEFT = 1 } guard_side;

/* Starts as {0}; lives until the process ends. */
typedef struct {
    unsigned char *base; /* accessible bytes between two inaccessible pages */
    size_t capacity;
    unsigned char *buffer; /* what guard_place returned */
    size_t bytes;
} guard_arena;

/* `bytes` bytes flush against the inaccessible page on the given side; the arena's previous buffer is gone. Contents are
 * arbitrary. */
void *guard_place(guard_arena *arena, size_t bytes, guard_side side);

/* 1 while nothing has written beside the buffer. */
int guard_intact(const guard_arena *arena);
#endif
