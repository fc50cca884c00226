/* SPDX-License-Identifier: Apache-2.0
 * Records every load and store of instrumented code of any algorithm: with -fsanitize=thread compilers call these functions before each access; the
 * sanitizer's own library is not linked. memcpy and memset are renamed to functions here. */
#include <stddef.h>
#include <stdint.h>

#undef memcpy
#undef memset

#define EXPORT __attribute__((visibility("default")))

EXPORT struct {
    int64_t room, n; /* accesses; those beyond the room are counted alone */
    int64_t *addresses;
    int32_t *sizes;
    uint8_t *is_write;
} pysim_touched;

static void touch(const void *at, int64_t bytes, int is_write) {
    const int64_t n = pysim_touched.n++;
    if (n >= pysim_touched.room || !bytes) return;
    pysim_touched.addresses[n] = (int64_t)(uintptr_t)at;
    pysim_touched.sizes[n] = (int32_t)bytes;
    pysim_touched.is_write[n] = (uint8_t)is_write;
}

#define PYSIM_HOOKS(prefix, size)                                                   \
    EXPORT void __tsan_##prefix##read##size(const void *at) { touch(at, size, 0); } \
    EXPORT void __tsan_##prefix##write##size(const void *at) { touch(at, size, 1); }
PYSIM_HOOKS(, 1)
PYSIM_HOOKS(, 2)
PYSIM_HOOKS(, 4)
PYSIM_HOOKS(, 8)
PYSIM_HOOKS(, 16)
PYSIM_HOOKS(unaligned_, 2)
PYSIM_HOOKS(unaligned_, 4)
PYSIM_HOOKS(unaligned_, 8)
PYSIM_HOOKS(unaligned_, 16)
EXPORT void __tsan_read_range(const void *at, size_t bytes) { touch(at, (int64_t)bytes, 0); }
EXPORT void __tsan_write_range(const void *at, size_t bytes) { touch(at, (int64_t)bytes, 1); }
/* What is atomic is no data of an algorithm. */
EXPORT int64_t __tsan_atomic64_load(const volatile int64_t *at, int order) { return (void)order, *at; }
EXPORT void __tsan_atomic64_store(volatile int64_t *at, int64_t value, int order) { (void)order, *at = value; }
EXPORT void __tsan_atomic_thread_fence(int order) { (void)order; }
EXPORT void __tsan_init(void) {}
EXPORT void __tsan_func_entry(const void *caller) { (void)caller; }
EXPORT void __tsan_func_exit(void) {}

void *pysim_touching_memcpy(void *to, const void *from, size_t bytes);
void *pysim_touching_memcpy(void *to, const void *from, size_t bytes) {
    touch(from, (int64_t)bytes, 0);
    touch(to, (int64_t)bytes, 1);
    return __builtin_memcpy(to, from, bytes);
}

void *pysim_touching_memset(void *to, int value, size_t bytes);
void *pysim_touching_memset(void *to, int value, size_t bytes) {
    touch(to, (int64_t)bytes, 1);
    return __builtin_memset(to, value, bytes);
}
