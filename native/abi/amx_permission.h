/* SPDX-License-Identifier: Apache-2.0
 * Whether this process may use tiles: the CPU has them, the system saves them, and it has granted them, which Linux does on request. */
#ifndef PYSIM_AMX_PERMISSION_H
#define PYSIM_AMX_PERMISSION_H
#include <cpuid.h>
#include <stddef.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif

/* Intel, Software Developer's Manual: CPUID 7.0 EDX has AMX-BF16, AMX-TILE and AMX-INT8 in bits 22, 24 and 25, ECX AVX512_VBMI in bit 1; XCR0 has the tiles' configuration and
 * data in bits 17 and 18. Linux, Documentation/arch/x86/xstate.rst: ARCH_REQ_XCOMP_PERM. */
enum {
    AMX_BITS = 1 << 22 | 1 << 24 | 1 << 25,
    VBMI_BIT = 1 << 1,
    XSAVE_IN_USE = 1 << 27,
    TILES_SAVED = 3 << 17,
    REQUEST = 0x1023,
    TILE_DATA = 18
};

static inline const char *pysim_ask_for_amx(void) {
    unsigned a = 0, b = 0, c = 0, d = 0, low = 0, high = 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & AMX_BITS) != AMX_BITS || !(c & VBMI_BIT)) return "this CPU does not have";
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & XSAVE_IN_USE)) return "this system does not save at a switch of threads";
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low & TILES_SAVED) != TILES_SAVED) return "this system does not save at a switch of threads";
#if defined(__linux__)
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) ? "this system has not granted to the process (arch_prctl)" : NULL;
#else
    return "only Linux grants on request";
#endif
}

/* The reason why not, as the end of a sentence, or NULL. The system is asked once. */
static const char *pysim_amx_missing(void) {
    static const char *reason, asked[] = "";
    const char *known = __atomic_load_n(&reason, __ATOMIC_ACQUIRE);
    if (!known) {
        known = pysim_ask_for_amx();
        if (!known) known = asked;
        __atomic_store_n(&reason, known, __ATOMIC_RELEASE);
    }
    return known == asked ? NULL : known;
}
#endif
