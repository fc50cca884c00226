/* SPDX-License-Identifier: Apache-2.0
 * Guarded buffers: [PROT_NONE page][accessible pages][PROT_NONE page], the buffer at one end of the accessible part. */
#define _GNU_SOURCE
#include "guard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CANARY_BYTES = 1024, CANARY = 0xC5 };

static void grow(guard_arena *arena, size_t bytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t capacity = (2 * bytes + CANARY_BYTES + page - 1) / page * page;
    if (arena->base) munmap(arena->base - page, arena->capacity + 2 * page);
    unsigned char *map = mmap(NULL, capacity + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED || mprotect(map + page, capacity, PROT_READ | PROT_WRITE) != 0) {
        perror("check: guarded memory");
        exit(2);
    }
    arena->base = map + page;
    arena->capacity = capacity;
}

/* The open side: up to CANARY_BYTES before a right-flush buffer, after a left-flush one. */
static unsigned char *canary(const guard_arena *arena) {
    return arena->buffer == arena->base ? arena->buffer + arena->bytes : arena->buffer - CANARY_BYTES;
}

void *guard_place(guard_arena *arena, size_t bytes, guard_side side) {
    if (bytes + CANARY_BYTES > arena->capacity) grow(arena, bytes);
    arena->bytes = bytes;
    arena->buffer = side == GUARD_LEFT ? arena->base : arena->base + arena->capacity - bytes;
    memset(canary(arena), CANARY, CANARY_BYTES);
    return arena->buffer;
}

int guard_intact(const guard_arena *arena) {
    const unsigned char *byte = canary(arena);
    for (size_t i = 0; i < CANARY_BYTES; i++)
        if (byte[i] != CANARY) return 0;
    return 1;
}
