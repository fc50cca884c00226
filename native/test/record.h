/* SPDX-License-Identifier: Apache-2.0
 * Records the accesses that kernels execute. portable.c includes this instead of its plain loads and stores if PYSIM_RECORD is defined;
 * record_vector.h uses it for the vector kernels. */
#ifndef PYSIM_TEST_RECORD_H
#define PYSIM_TEST_RECORD_H
#include <stdint.h>
#include <string.h>

/* The caller's arrays; accesses beyond `room` are counted, not kept. One for the whole library: the linker keeps one of the weak ones. */
__attribute__((weak, visibility("default"))) struct {
    int64_t room, n;
    int64_t *addresses;
    int32_t *sizes;
    uint8_t *is_write;
} pysim_recorded;

static inline void record(const void *p, size_t bytes, int is_write) {
    const int64_t n = pysim_recorded.n++;
    if (n >= pysim_recorded.room) return;
    pysim_recorded.addresses[n] = (int64_t)(intptr_t)p;
    pysim_recorded.sizes[n] = (int32_t)bytes;
    pysim_recorded.is_write[n] = (uint8_t)is_write;
}

#define LOAD(p) (record(p, sizeof *(p), 0), *(p))
#define STORE(p, value)               \
    do {                              \
        __typeof__(*(p)) put = value; \
        record(p, sizeof put, 1);     \
        *(p) = put;                   \
    } while (0)
#define LOAD_RUN(line, p, bytes) (record(p, bytes, 0), memcpy(line, p, bytes))
#define STORE_RUN(p, line, bytes) (record(p, bytes, 1), memcpy(p, line, bytes))
#endif
