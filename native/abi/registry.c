/* SPDX-License-Identifier: Apache-2.0
 * The kernel table, expanded from kernels.inc and the other tables beside it, and the test which rows this CPU and this build can run. */
#include <stdlib.h>
#include <string.h>

#include "operators/integers.h"
#include "operators/operators.h"
#include "status.h"
#if defined(__x86_64__)
#include <cpuid.h>

#include "abi/amx_permission.h"
#endif
#if defined(__powerpc64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

#define PYSIM_LOOPS(target, dtype) extern __attribute__((weak)) const pysim_loops pysim_loops_##dtype##__##target;
#include "loops.inc"
#undef PYSIM_LOOPS
extern __attribute__((weak)) const pysim_loops pysim_loops_rounded_once;

#if defined(__x86_64__)
/* PYSIM_MAX_TARGET, read once: with "portable" or "avx2" no wider vectors are used, with "avx512" no tiles. */
enum { PORTABLE_ALONE = 1, UP_TO_AVX2, UP_TO_AVX512, ALL };
static int widest(void) {
    static int found;
    int known = __atomic_load_n(&found, __ATOMIC_RELAXED);
    if (known) return known;
    const char *most = getenv("PYSIM_MAX_TARGET");
    known = !most                           ? ALL
            : strcmp(most, "portable") == 0 ? PORTABLE_ALONE
            : strcmp(most, "avx2") == 0     ? UP_TO_AVX2
            : strcmp(most, "avx512") == 0   ? UP_TO_AVX512
                                            : ALL;
    __atomic_store_n(&found, known, __ATOMIC_RELAXED);
    return known;
}
/* PYSIM_LACKS_OPERATORS; an exported plan lists the loops of its own target alone */
extern __attribute__((weak)) const pysim_loops pysim_loops_f32__portable, pysim_loops_f32__avx2;
static int lacks_operators(void) {
    return widest() <= UP_TO_AVX2 && !&pysim_loops_f32__portable && (widest() == PORTABLE_ALONE || !&pysim_loops_f32__avx2);
}
/* A bit of EAX or ECX of a leaf of CPUID, read once into `found`: every run asks, and in a virtual machine the instruction leaves to the
 * hypervisor (5 us on a virtual Zen 3, as long as a small layer). */
enum { IN_EAX, IN_ECX, NOT_SET = 1, SET };
static int has_bit(int *found, unsigned leaf, unsigned subleaf, int where, int bit) {
    int known = __atomic_load_n(found, __ATOMIC_RELAXED);
    if (!known) {
        unsigned a = 0, b = 0, c = 0, d = 0;
        const int is_read = __get_cpuid_count(leaf, subleaf, &a, &b, &c, &d);
        known = is_read && (where == IN_EAX ? a : c) >> bit & 1 ? SET : NOT_SET;
        __atomic_store_n(found, known, __ATOMIC_RELAXED);
    }
    return known == SET;
}
/* Compilers know the name of half numbers, f16c, late: bit 29 of ECX of leaf 1. Every CPU with AVX2 has them. */
static int cpu_runs_avx2(void) {
    static int has_halves;
    return widest() >= UP_TO_AVX2 && !lacks_operators() && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           has_bit(&has_halves, 1, 0, IN_ECX, 29);
}
static int cpu_runs_avx512(void) {
    return widest() >= UP_TO_AVX512 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
}
static int cpu_runs_avx512vnni(void) { return cpu_runs_avx512() && __builtin_cpu_supports("avx512vnni"); }
static int cpu_runs_avx512bf16(void) { return cpu_runs_avx512() && __builtin_cpu_supports("avx512bf16"); }
/* Compilers know this name since GCC 13 only: bit 4 of EAX of leaf 7.1 (Intel, Software Developer's Manual, CPUID). */
static int cpu_runs_avxvnni(void) {
    static int has_vnni;
    return cpu_runs_avx2() && has_bit(&has_vnni, 7, 1, IN_EAX, 4);
}
static int cpu_runs_amx(void) { return widest() >= ALL && cpu_runs_avx512() && pysim_amx_missing() == NULL; }
/* In place of amx on other CPUs, in builds for tests, where PYSIM_EMULATED is set. */
static int cpu_runs_amx_emulated(void) { return !cpu_runs_amx() && cpu_runs_avx2() && getenv("PYSIM_EMULATED"); }
#else
static int lacks_operators(void) { return 0; }
static const char *pysim_amx_missing(void) { return "is an instruction set of another architecture"; }
static int cpu_runs_amx(void) { return 0; }
static int cpu_runs_amx_emulated(void) { return 0; }
static int cpu_runs_avx2(void) { return 0; }
static int cpu_runs_avx512(void) { return 0; }
static int cpu_runs_avx512vnni(void) { return 0; }
static int cpu_runs_avx512bf16(void) { return 0; }
static int cpu_runs_avxvnni(void) { return 0; }
#endif
static int cpu_runs_portable(void) { return !lacks_operators(); }
#if defined(__powerpc64__) && defined(__LITTLE_ENDIAN__) && defined(__linux__)
/* Power ISA 3.1 and its matrix unit, as the kernel grants them (a hypervisor may withhold either). Bits: linux, asm/cputable.h. */
static int cpu_runs_mma(void) {
    const unsigned long arch_3_1 = 0x00040000, mma = 0x00020000;
    return (getauxval(AT_HWCAP2) & (arch_3_1 | mma)) == (arch_3_1 | mma);
}
#else
static int cpu_runs_mma(void) { return 0; }
#endif

/* An ISA's files are not built on another architecture: the weak references stay NULL and the row is "not available". */
#define NAME(target, dtype, form, windows, filters) dtype##_##form##_##windows##x##filters##__##target
#define STRIDED(target, dtype, form, windows, filters) strided_##dtype##_##form##_##windows##x##filters##__##target
#define PYSIM_ROW(target, dtype, form, windows, filters, lw, lf)                                                                        \
    extern __attribute__((weak)) void NAME(target, dtype, form, windows, filters)(int64_t, const void *, const void *, int64_t, void *, \
                                                                                  int64_t, int64_t, int64_t, const pysim_store *);      \
    extern __attribute__((weak)) void STRIDED(target, dtype, form, windows, filters)(                                                   \
        int64_t, const void *, int64_t, int64_t, const void *, int64_t, void *, int64_t, int64_t, int64_t, const pysim_store *);
#define PYSIM_PACKER(target, dtype)                                                                                                   \
    extern __attribute__((weak)) void pack_##dtype##__##target##_segment(const pysim_segment *, void *);                              \
    extern __attribute__((weak)) void pack_##dtype##__##target##_transposed(const void *, int64_t, int64_t, int64_t, int64_t, void *, \
                                                                            int *);
#include "kernels.inc"
#undef PYSIM_ROW
/* What only rows of form tiles have, in the CPU's instructions and emulated. */
#define TILES_OF(target, dtype, windows, filters)                                                                                        \
    extern __attribute__((weak)) void NAME(target, dtype, tiles, windows, filters)(int64_t, const void *, const void *, int64_t, void *, \
                                                                                   int64_t, int64_t, int64_t, const pysim_store *);      \
    extern __attribute__((weak)) void enter_tiles__##target(void);                                                                       \
    extern __attribute__((weak)) void leave_tiles__##target(void);                                                                       \
    extern __attribute__((weak)) float weight_##dtype##__##target(const void *, int64_t, int64_t);                                       \
    PYSIM_PACKER(target, dtype)                                                                                                          \
    PYSIM_PACKER(target, dtype##_filters)
extern __attribute__((weak)) void bound_filters__avx2(int64_t, void *);
extern __attribute__((weak)) void bound_pixels__avx2(int64_t, void *);
PYSIM_PACKER(avx2_bounded, s8)
PYSIM_PACKER(avx512vnni_pairs, s8)
extern __attribute__((weak)) const struct pysim_quad_transforms pysim_quads_s8__avx2, pysim_quads_s8__avx512vnni;
TILES_OF(amx, f32, 32, 32)
TILES_OF(amx, bf16, 32, 32)
TILES_OF(amx, s8, 32, 32)
TILES_OF(amx_emulated, f32, 32, 32)
TILES_OF(amx_emulated, bf16, 32, 32)
TILES_OF(amx_emulated, s8, 32, 32)
#undef PYSIM_PACKER
#define PYSIM_DIRECT_ROW(target, dtype, form, windows, filters, lw, lf)            \
    extern __attribute__((weak)) void NAME(target, dtype, form, windows, filters)( \
        const pysim_direct *, const void *, const void *, const void *, void *, int64_t, int64_t, int64_t, void *);
#include "depthwise.inc"
#undef PYSIM_DIRECT_ROW
#define PYSIM_SKINNY_ROW(target, dtype, form, windows, filters, lw, lf) \
    extern __attribute__((weak)) void NAME(target, dtype, form, windows, filters)(const pysim_skinny *, int64_t, int64_t, void *, int64_t);
#include "skinny.inc"
#undef PYSIM_SKINNY_ROW
#define PYSIM_PHASES_ROW(target, dtype, form, windows, filters, lw, lf) \
    extern __attribute__((weak)) void NAME(target, dtype, form, windows, filters)(const pysim_phases *, const void *, void *, int64_t);
#include "polyphase.inc"
#undef PYSIM_PHASES_ROW
#define PYSIM_NCHWC_ROW(target, dtype, form, windows, filters, lw, lf) \
    extern __attribute__((weak)) void NAME(target, dtype, form, windows, filters)(const pysim_nchwc_tile *);
#include "direct_nchwc.inc"
#undef PYSIM_NCHWC_ROW

#define DTYPE_f32 PYSIM_F32
#define DTYPE_f64 PYSIM_F64
#define DTYPE_bf16 PYSIM_BF16
#define DTYPE_s8 PYSIM_S8
#define TEXT2(x) #x
#define TEXT(x) TEXT2(x)

typedef struct {
    pysim_row row;
    int (*cpu_runs)(void);
} entry;

/* A row of any table: its family and its functions. */
#define ENTRY(target, dtype, form, windows, filters, lw, lf, ...)                                                              \
    {{.info = {TEXT(NAME(target, dtype, form, windows, filters)), #target, #form, DTYPE_##dtype, windows, filters, lw, lf, 0}, \
      __VA_ARGS__},                                                                                                            \
     cpu_runs_##target},
#define GROUP_s8 4
#define GROUP_bf16 2
#define PACK(target, dtype) {pack_##dtype##__##target##_segment, pack_##dtype##__##target##_transposed}
#define ALIKE(target, dtype) .pack = PACK(target, dtype), .pack_filters = PACK(target, dtype)
#define PANELS_win(target, dtype) ALIKE(target, dtype), .group = 1, .streams = STREAMS_##target
#define STREAMS_avx512 1
#define STREAMS_avx2 1
#define STREAMS_portable 0
#define PANELS_fil(target, dtype) ALIKE(target, dtype), .group = 1
#define PANELS_outer(target, dtype) ALIKE(target, dtype), .group = 1
#define PANELS_chain(target, dtype) ALIKE(target, dtype), .group = 1
#define PANELS_fused(target, dtype) ALIKE(target, dtype), .group = 1
#define PANELS_groups(target, dtype) ALIKE(target, dtype), .rescales = 1, .adds = ADDS_##target, .group = GROUP_##dtype
#define ADDS_avx512vnni 1
#define ADDS_avxvnni 0
#define ADDS_avx512bf16 0
#define ADDS_avx2 0
#define PANELS_pairs(target, dtype) PAIRS_##target(dtype), .rescales = 1, .group = 2, .panel_bytes = 2, .quads = &pysim_quads_s8__##target
#define PAIRS_avx2(dtype) ALIKE(avx2, dtype)
#define PAIRS_avx512vnni(dtype) ALIKE(avx512vnni_pairs, dtype)
#define PANELS_bounded(target, dtype) \
    ALIKE(target##_bounded, dtype), .rescales = 1, .group = GROUP_##dtype, .filter_bytes = 3, .bound = bound_filters__##target
#define PANELS_pixels(target, dtype)                                                                                          \
    ALIKE(target##_bounded, dtype), .rescales = 1, .group = GROUP_##dtype, .in_rows = 1, .panel_bytes = 3, .filter_bytes = 1, \
        .bound = bound_pixels__##target
#define PANELS_unpacked(target, dtype) PANELS_groups(target, dtype), .in_rows = 1
#define PANELS_tiles(target, dtype)                                                                             \
    .pack = PACK(target, dtype), .pack_filters = PACK(target, dtype##_filters), .enter = enter_tiles__##target, \
    .leave = leave_tiles__##target, .weight = weight_##dtype##__##target, .rescales = TILE_RESCALES_##dtype,    \
    .adds = TILE_RESCALES_##dtype, .group = TILE_DEPTH_##dtype, .panel_bytes = TILE_BYTES_##dtype,              \
    .in_rows = TILE_BYTES_##dtype ? 0 : PYSIM_TILE_ROWS
#define TILE_RESCALES_f32 0
#define TILE_RESCALES_bf16 0
#define TILE_RESCALES_s8 1
#define TILE_DEPTH_f32 32
#define TILE_DEPTH_bf16 32
#define TILE_DEPTH_s8 64
#define TILE_BYTES_f32 6
#define TILE_BYTES_bf16 0
#define TILE_BYTES_s8 0

static const entry table[] = {
#define PYSIM_ROW(target, dtype, form, windows, filters, lw, lf)                                                                          \
    ENTRY(target, dtype, form, windows, filters, lw, lf, .family = PYSIM_FAMILY_NEST, .run = NAME(target, dtype, form, windows, filters), \
          .strided = STRIDED(target, dtype, form, windows, filters), PANELS_##form(target, dtype))
#include "kernels.inc"
#undef PYSIM_ROW
#define PYSIM_DIRECT_ROW(target, dtype, form, windows, filters, lw, lf)                    \
    ENTRY(target, dtype, form, windows, filters, lw, lf, .family = PYSIM_FAMILY_DEPTHWISE, \
          .direct = NAME(target, dtype, form, windows, filters))
#include "depthwise.inc"
#undef PYSIM_DIRECT_ROW
#define PYSIM_SKINNY_ROW(target, dtype, form, windows, filters, lw, lf)                 \
    ENTRY(target, dtype, form, windows, filters, lw, lf, .family = PYSIM_FAMILY_SKINNY, \
          .skinny = NAME(target, dtype, form, windows, filters))
#include "skinny.inc"
#undef PYSIM_SKINNY_ROW
#define PYSIM_PHASES_ROW(target, dtype, form, windows, filters, lw, lf)                    \
    ENTRY(target, dtype, form, windows, filters, lw, lf, .family = PYSIM_FAMILY_POLYPHASE, \
          .phases = NAME(target, dtype, form, windows, filters), .pack = PACK(target, dtype), .pack_filters = PACK(target, dtype))
#include "polyphase.inc"
#undef PYSIM_PHASES_ROW
#define PYSIM_NCHWC_ROW(target, dtype, form, windows, filters, lw, lf) \
    ENTRY(target, dtype, form, windows, filters, lw, lf, .family = PYSIM_FAMILY_NCHWC, .nchwc = NAME(target, dtype, form, windows, filters))
#include "direct_nchwc.inc"
#undef PYSIM_NCHWC_ROW
};

enum { ROWS = sizeof table / sizeof table[0] };

/* The functions of a row on this CPU: its own, or those that emulate it; NULL if there are none. */
static const pysim_row *functions_of(int32_t index) {
#define EMULATED(of) \
    { .info.dtype = DTYPE_##of, .family = PYSIM_FAMILY_NEST, .run = NAME(amx_emulated, of, tiles, 32, 32), PANELS_tiles(amx_emulated, of) }
    static const pysim_row emulated[] = {EMULATED(f32), EMULATED(bf16), EMULATED(s8)};
    const pysim_row *row = &table[index].row;
    if ((row->run || row->direct || row->skinny || row->phases || row->nchwc) && table[index].cpu_runs()) return row;
    if (strcmp(row->info.form, "tiles") != 0 || !cpu_runs_amx_emulated()) return NULL;
    for (size_t i = 0; i < sizeof emulated / sizeof *emulated; i++)
        if (emulated[i].run && emulated[i].info.dtype == row->info.dtype) return &emulated[i];
    return NULL;
}

static int available(int32_t index) { return functions_of(index) != NULL; }

int32_t pysim_kernel_count(void) { return ROWS; }

pysim_status pysim_kernel_at(int32_t index, pysim_kernel_info *out) {
    if (out == NULL) return pysim_fail(PYSIM_BAD_ARGUMENT, "pysim_kernel_at: out is NULL");
    if (index < 0 || index >= ROWS)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "kernel index %d is outside the registry of %d rows", index, (int)ROWS);
    *out = table[index].row.info;
    out->available = available(index);
    return PYSIM_OK;
}

pysim_status pysim_row_of(const pysim_schedule *s, int32_t dtype, pysim_row *row) {
    pysim_kernel_info info;
    pysim_status status = pysim_kernel_at(s->kernel, &info);
    if (status != PYSIM_OK) return status;
    if (info.dtype != dtype)
        return pysim_fail(PYSIM_UNSUPPORTED, "kernel %s computes in another dtype than the problem, %s", info.name,
                          pysim_dtype_name(dtype));
    if (s->windows != info.windows || s->filters != info.filters)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "schedule tiles are %lld windows x %lld filters, but kernel %s computes %d x %d",
                          (long long)s->windows, (long long)s->filters, info.name, info.windows, info.filters);
    *row = table[s->kernel].row;
    if (!row->group) row->group = 1;
    return PYSIM_OK;
}

pysim_status pysim_row_for(const pysim_schedule *s, int32_t dtype, pysim_row *row) {
    pysim_status status = pysim_row_of(s, dtype, row);
    if (status != PYSIM_OK) return status;
    const pysim_row *found = functions_of(s->kernel);
    if (found) {
        const pysim_kernel_info info = row->info;
        *row = *found, row->info = info;
        if (!row->group) row->group = 1;
        return status;
    }
    if (lacks_operators()) return pysim_fail(PYSIM_UNSUPPORTED, "%s", PYSIM_LACKS_OPERATORS);
    const char *why = strcmp(row->info.target, "amx") == 0 && row->run ? pysim_amx_missing() : NULL;
    if (why) return pysim_fail(PYSIM_UNSUPPORTED, "kernel %s needs amx, which %s", row->info.name, why);
    if (table[s->kernel].cpu_runs())
        return pysim_fail(PYSIM_UNSUPPORTED, "kernel %s is not in this build; configure it with -Dtargets=all and a compiler that knows %s",
                          row->info.name, row->info.target);
    return pysim_fail(PYSIM_UNSUPPORTED, "kernel %s needs %s, which this CPU or build does not have", row->info.name, row->info.target);
}

pysim_pack_transposed pysim_transposer_for(int32_t dtype) {
    for (int32_t i = 0; i < ROWS; i++)
        if (table[i].row.info.dtype == dtype && table[i].row.pack.transposed && available(i)) return table[i].row.pack.transposed;
    return NULL; /* f32 and f64 have rows wherever kernels run */
}

static _Thread_local int rounded_once; /* how many callers of this thread ask for it */
void pysim_round_once(int32_t change) { rounded_once += change; }

/* The loops in plain C, those that multiply and add replaced. Other threads read this thread's copy while it waits for them. */
static const pysim_loops *once(const pysim_loops *of) {
    static _Thread_local pysim_loops copy;
    copy = *of;
    copy.finish = pysim_loops_rounded_once.finish, copy.rounded = pysim_loops_rounded_once.rounded,
    copy.rows = pysim_loops_rounded_once.rows;
    copy.attention = pysim_loops_rounded_once.attention;
    return &copy;
}

const pysim_loops *pysim_loops_for(int32_t dtype) {
    static const struct {
        int32_t dtype;
        const pysim_loops *of; /* NULL if the target is not built */
        int (*cpu_runs)(void);
    } all[] = {
#define PYSIM_LOOPS(target, dtype) {DTYPE_##dtype, &pysim_loops_##dtype##__##target, cpu_runs_##target},
#include "loops.inc"
#undef PYSIM_LOOPS
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].of && all[i].dtype == dtype && all[i].cpu_runs()) {
            const int replaced = rounded_once && &pysim_loops_rounded_once && all[i].cpu_runs == cpu_runs_portable && dtype == PYSIM_F32;
            return replaced ? once(all[i].of) : all[i].of;
        }
    return NULL;
}

#define PYSIM_INTEGERS(target, dtype) extern __attribute__((weak)) const pysim_integers pysim_integers__##target;
#include "integers.inc"
#undef PYSIM_INTEGERS

const pysim_integers *pysim_integers_here(void) {
#define PYSIM_INTEGERS(target, dtype) \
    if (&pysim_integers__##target && cpu_runs_##target()) return &pysim_integers__##target;
#include "integers.inc"
#undef PYSIM_INTEGERS
    return &pysim_integers__portable; /* which every build has */
}
