/* SPDX-License-Identifier: Apache-2.0
 * Internal: the loops that native/abi/probe.c times. Each ISA folder has its own; they are selected at run time. */
#ifndef PYSIM_PROBE_H
#define PYSIM_PROBE_H
#include <stdint.h>

/* Bytes moved per iteration of a stream loop; alignment of its pointers. */
enum { PYSIM_PROBE_BLOCK = 512, PYSIM_PROBE_VECTOR = 64 };

/* Reads `blocks` blocks once each and returns something that depends on every byte. */
typedef uint64_t (*pysim_read_blocks)(const void *from, int64_t blocks);
/* Stores to every byte of `blocks` blocks, with ordinary stores (a line is fetched before it is written). */
typedef void (*pysim_write_blocks)(void *to, int64_t blocks, uint64_t value);
/* Issues at least `instructions` independent multiply-adds and returns how many. */
typedef int64_t (*pysim_issue_fma)(int64_t instructions);

#if defined(__x86_64__)
/* The widest stream loops of this CPU, or NULL. */
pysim_read_blocks pysim_x86_read_blocks(void);
pysim_write_blocks pysim_x86_write_blocks(void);
/* The multiply-add loop of a registry target, or NULL when this file has none. */
pysim_issue_fma pysim_x86_issue_fma(const char *target, int32_t dtype);
#elif defined(__powerpc64__)
/* The matrix unit's loop for a dtype, or NULL. A compiler that does not know POWER10 leaves the function out. */
__attribute__((weak)) pysim_issue_fma pysim_power10_issue_fma(int32_t dtype);
#endif
#endif
