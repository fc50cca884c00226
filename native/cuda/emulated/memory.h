/* SPDX-License-Identifier: Apache-2.0
 * Memory between inaccessible pages, with its poisoning for AddressSanitizer. */
#ifndef PYSIM_CUDA_EMULATED_MEMORY_H
#define PYSIM_CUDA_EMULATED_MEMORY_H
#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define PYSIM_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define PYSIM_ASAN 1
#endif
#endif
#ifdef PYSIM_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#endif

namespace pysim::emulated {
/* Maps whole pages, at least `bytes`, between two inaccessible ones; null on failure. */
char *map_pages(size_t bytes);
void unmap_pages(char *pages, size_t bytes);
/* Makes all allocations of the device accessible, or none. */
void open_memory(bool open);
/* Writes to `text` which allocation `address` is in or next to. */
void describe(const void *address, char *text, size_t size);
}
#endif
