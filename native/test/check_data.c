/* SPDX-License-Identifier: Apache-2.0
 * Fills, comparison and other array operations of the checks. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

uint64_t check_next(check_random *random) {
    uint64_t z = random->state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

int64_t check_below(check_random *random, int64_t n) { return (int64_t)(check_next(random) >> 1) % n; }

check_random check_case_random(int32_t kernel, int32_t family, int32_t index) {
    check_random random = {check_given.seed};
    random.state = check_next(&random) + (uint64_t)kernel;
    random.state = check_next(&random) + (uint64_t)family;
    random.state = check_next(&random) + (uint64_t)index;
    return random;
}

static const struct {
    const char *name;
    size_t size;
    int32_t result;
} dtypes[] = {
    [PYSIM_F32] = {"f32", 4, PYSIM_F32},   [PYSIM_F64] = {"f64", 8, PYSIM_F64}, [PYSIM_F16] = {"f16", 2, PYSIM_F32},
    [PYSIM_BF16] = {"bf16", 2, PYSIM_F32}, [PYSIM_S8] = {"s8", 1, PYSIM_S32},   [PYSIM_S32] = {"s32", 4, PYSIM_S32},
};

size_t check_size(int32_t dtype) { return dtypes[dtype].size; }
const char *check_name(int32_t dtype) { return dtypes[dtype].name; }
int32_t check_result(int32_t dtype) { return dtypes[dtype].result; }
int check_is_exact(int32_t dtype) { return dtype == PYSIM_S8 || dtype == PYSIM_S32; }

static float from_bf16(uint16_t x) {
    const uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* To the nearest, ties to even; a NaN keeps its upper half, which is a NaN for NAN. */
static uint16_t to_bf16(double value) {
    const float narrow = (float)value;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    return (uint16_t)((isnan(value) ? bits : bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

double check_get(const void *array, int32_t dtype, int64_t index) {
    switch (dtype) {
    case PYSIM_F64: return ((const double *)array)[index];
    case PYSIM_BF16: return from_bf16(((const uint16_t *)array)[index]);
    case PYSIM_S8: return ((const int8_t *)array)[index];
    case PYSIM_S32: return ((const int32_t *)array)[index];
    default: return ((const float *)array)[index];
    }
}

void check_set(void *array, int32_t dtype, int64_t index, double value) {
    switch (dtype) {
    case PYSIM_F64: ((double *)array)[index] = value; break;
    case PYSIM_BF16: ((uint16_t *)array)[index] = to_bf16(value); break;
    case PYSIM_S8: ((int8_t *)array)[index] = (int8_t)fmax(INT8_MIN, fmin(INT8_MAX, value)); break;
    case PYSIM_S32: ((int32_t *)array)[index] = (int32_t)fmax(INT32_MIN, fmin(INT32_MAX, value)); break;
    default: ((float *)array)[index] = (float)value; break;
    }
}

static double random_value(int32_t dtype, uint64_t bits) {
    switch (dtype) {
    case PYSIM_F64: return (double)((bits >> 11) | 1) * 0x1p-53;
    case PYSIM_BF16: return ldexp((double)((bits >> 56) | 1), -8 - (int)(bits >> 53 & 7)); /* sums of their products are rounded */
    case PYSIM_S8: return (double)(bits >> 56) - 128;
    case PYSIM_S32: return (double)(bits >> 32) - 0x1p31;
    default: return (double)((bits >> 40) | 1) * 0x1p-24;
    }
}

void check_fill(void *array, int32_t dtype, int64_t count, check_fill_kind kind, check_random *random) {
    for (int64_t i = 0; i < count; i++) {
        const uint64_t bits = check_next(random);
        const int negative = (bits & 3) == 0;
        if (kind == FILL_RANDOM && check_is_exact(dtype)) {
            check_set(array, dtype, i, random_value(dtype, bits));
            continue;
        }
        const double value = kind == FILL_EXACT ? (double)(1 + (bits >> 2) % (negative ? 2 : 4)) : random_value(dtype, bits);
        check_set(array, dtype, i, negative ? -value : value);
    }
}

void check_absolute(void *to, const void *from, int32_t dtype, int64_t count) {
    const double most = dtype == PYSIM_S32 ? 0x1p30 : INFINITY;
    for (int64_t i = 0; i < count; i++) check_set(to, dtype, i, fmin(most, fabs(check_get(from, dtype, i))));
}

double check_gamma(int32_t dtype, int64_t n) {
    const double unit = dtype == PYSIM_F64 ? 0x1p-53 : 0x1p-24;
    /* where long double is double, the f64 reference rounds as the kernel does, so the two may be twice as far apart */
    const double rounded = (double)n * unit * (dtype == PYSIM_F64 && LDBL_MANT_DIG == DBL_MANT_DIG ? 2 : 1);
    return rounded / (1 - rounded);
}

static int same_bits(int32_t dtype, const void *a, const void *b, int64_t index) {
    const size_t size = check_size(dtype);
    const double x = check_get(a, dtype, index), y = check_get(b, dtype, index);
    return memcmp((const char *)a + (size_t)index * size, (const char *)b + (size_t)index * size, size) == 0 ||
           (fpclassify(x) == FP_ZERO && fpclassify(y) == FP_ZERO);
}

int64_t check_compare(int32_t dtype, int64_t count, const void *got, const void *want, const void *bound, double factor) {
    for (int64_t i = 0; i < count; i++) {
        const double x = check_get(got, dtype, i), y = check_get(want, dtype, i);
        const double step = dtype == PYSIM_BF16 ? fabs(y) * 0x1p-7 : 0; /* of results that are rounded to it, between neighbours */
        if (isnan(y)             ? isnan(x)
            : bound && !isinf(y) ? fabs(x - y) <= factor * check_get(bound, dtype, i) + step
                                 : same_bits(dtype, got, want, i))
            continue;
        return i;
    }
    return -1;
}

/* Words of 8 bytes, then the bytes that are left: each step is invertible, so no single change is lost. */
uint64_t check_hash(const void *bytes, size_t count) {
    const uint64_t prime = UINT64_C(0x100000001B3);
    const unsigned char *byte = bytes;
    uint64_t parts[4] = {UINT64_C(0xCBF29CE484222325), 1, 2, 3}, words[4], hash = 0; /* a product waits for none of the other parts' */
    for (; count >= sizeof words; count -= sizeof words, byte += sizeof words) {
        memcpy(words, byte, sizeof words);
        for (int i = 0; i < 4; i++) parts[i] = (parts[i] ^ words[i]) * prime;
    }
    for (int i = 0; i < 4; i++) hash = (hash ^ parts[i]) * prime;
    for (size_t i = 0; i < count; i++) hash = (hash ^ byte[i]) * prime;
    return hash;
}

void *check_scratch(int32_t which, size_t bytes) {
    static struct {
        void *memory;
        size_t bytes;
    } kept[SCRATCH_COUNT];
    if (bytes > kept[which].bytes) {
        free(kept[which].memory);
        kept[which].memory = malloc(2 * bytes);
        kept[which].bytes = 2 * bytes;
        if (!kept[which].memory) {
            perror("check: memory");
            exit(2);
        }
    }
    return kept[which].memory;
}

enum { SHIFT = 8, BETWEEN = 0x5A };

static void *place_workspace(guard_arena *arena, int64_t bytes, guard_side side, int odd, int garbage) {
    unsigned char *buffer = guard_place(arena, (size_t)bytes + (odd ? SHIFT : 0), side);
    memset(buffer, BETWEEN, arena->bytes);
    return memset(odd && side == GUARD_LEFT ? buffer + SHIFT : buffer, garbage, (size_t)bytes);
}

static int workspace_intact(const guard_arena *arena, guard_side side, int odd) {
    const unsigned char *between = side == GUARD_LEFT ? arena->buffer : arena->buffer + arena->bytes - SHIFT;
    for (int i = 0; odd && i < SHIFT; i++)
        if (between[i] != BETWEEN) return 0;
    return guard_intact(arena);
}

int check_run(const pysim_problem *problem, const pysim_schedule *schedule, const pysim_epilogue *epilogue, int32_t threads,
              const void *first, const void *second, void *result, guard_arena *workspace, guard_side side, int64_t index, int garbage) {
    const int odd = index % 3 == 0, profiled = index & 1;
    int64_t bytes;
    pysim_profile profile;
    if (pysim_workspace_bytes(problem, schedule, threads, &bytes) != PYSIM_OK) {
        check_fail("pysim_workspace_bytes: %s", pysim_last_error());
        return 0;
    }
    void *buffer = place_workspace(workspace, bytes, side, odd, garbage);
    if (pysim_run(problem, schedule, epilogue, threads, first, second, result, buffer, bytes, profiled ? &profile : NULL) != PYSIM_OK) {
        check_fail("pysim_run: %s", pysim_last_error());
        return 0;
    }
    if (!workspace_intact(workspace, side, odd)) check_fail("pysim_run wrote outside the workspace");
    if (profiled && !(profile.kernel_calls >= 1 && profile.kernel_seconds >= 0 && profile.pack_seconds >= 0))
        check_fail("the profile says %lld calls", (long long)profile.kernel_calls);
    const int packs_windows = problem->kind == PYSIM_CONV && schedule->algorithm != CHECK_channels_last; /* which packs pixels as filters */
    if (profiled && packs_windows && (profile.packed_tiles >= 1) != (schedule->pack == PYSIM_PACK_TILES))
        check_fail("the profile says %lld packed tiles", (long long)profile.packed_tiles);
    return 1;
}

int64_t check_edge(int32_t level, int64_t block) {
    const int64_t edges[EDGES] = {1, block - 1, block, block + 1, 2 * block + 1};
    return edges[level] > 0 ? edges[level] : 1;
}

static int64_t k_value(int32_t level, check_random *random) {
    /* "all" is any value not below the tile count: the macro-kernel clamps it. */
    return level < 2 ? level + 1 : check_below(random, 2) ? 64 : INT64_C(1) << 40;
}

pysim_schedule check_schedule(int32_t kernel, const pysim_kernel_info *row, const check_plan *plan, int64_t channels,
                              check_random *random) {
    const int64_t sets[PLAN_SETS] = {1, 2, (channels + 1) / 2, channels};
    return (pysim_schedule){
        .kernel = kernel,
        .stationary = plan->stationary,
        .pack = plan->pack,
        .windows = row->windows,
        .filters = row->filters,
        .channels = sets[plan->set] < channels ? sets[plan->set] : channels,
        .k2 = k_value(plan->k2, random),
        .k3 = k_value(plan->k3, random),
    };
}

void check_schedule_text(const pysim_schedule *s, char *text, size_t size) {
    snprintf(text, size, "%s pack=%s channels=%lld k2=%lld k3=%lld",
             s->stationary == PYSIM_INPUT_STATIONARY ? "input_stationary" : "weight_stationary",
             s->pack == PYSIM_PACK_NONE ? "none" : "tiles", (long long)s->channels, (long long)s->k2, (long long)s->k3);
}

int64_t check_volume(pysim_conv *c, check_random *random) {
    static const int64_t axes[][6] = {{3, 3, 1, 1, 1, 1}, {4, 2, 2, 1, 1, 0}, {5, 3, 1, 2, 1, 0}, {1, 1, 1, 1, 1, 2}};
    enum { AXES = sizeof axes / sizeof *axes, MAX_TAPS = 256 }; /* of winograd.c */
    const int64_t *of = axes[c->kernel_h * c->kernel_w * 3 > MAX_TAPS ? AXES - 1 : check_below(random, AXES)];
    c->depth = of[0], c->kernel_d = of[1], c->stride_d = of[2], c->dilation_d = of[3], c->pad_front = of[4], c->pad_back = of[5];
    return (of[0] + of[4] + of[5] - of[3] * (of[1] - 1) - 1) / of[2] + 1;
}

void check_rectangle(int32_t level, int64_t n, int64_t *p, int64_t *q) {
    int64_t rows = level == 0 ? 1 : n;
    if (level == 2) {
        for (rows = 1; (rows + 1) * (rows + 1) <= n; rows++) {}
        while (rows > 1 && n % rows) rows--;
        if (rows == 1 && n > 3) rows = n % 2 ? 3 : 2;
    }
    *p = rows;
    *q = (n + rows - 1) / rows;
}

int64_t check_grouped(pysim_conv *c, const pysim_kernel_info *row, int32_t index, int64_t q) {
    const int64_t half = row->lane_filters / 2, channels = index % 5 == 4 ? 1 + index % 7 : half * (1 + index / 3 % 4);
    c->groups = index % 5 == 4 ? 2 * half : 2 + 2 * (index / 2 % 2);
    c->channels = c->groups * channels, c->filters = c->groups * half * (1 + index % 4);
    c->input_block = c->output_block = row->lane_filters;
    c->kernel_w = 3, c->dilation_w = 1, c->stride_w = 1 + index % 2;
    c->pad_left = index / 2 % 2, c->pad_right = index / 4 % 2;
    c->width = (q - 1) * c->stride_w + c->kernel_w - c->pad_left - c->pad_right;
    return channels;
}

void check_axis(int32_t padding, int64_t out, int64_t kernel, int64_t stride, int64_t dilation, check_random *random, int64_t *before,
                int64_t *after, int64_t *size) {
    const int64_t extent = dilation * (kernel - 1) + 1;
    const int64_t pads[CHECK_PADDINGS][2] = {
        {0, 0}, {(extent - 1) / 2, (extent - 1) / 2}, {0, 3}, {extent, extent + 1}, {extent + 2, 1},
    };
    *before = pads[padding][0], *after = pads[padding][1];
    *size = (out - 1) * stride + extent - *before - *after + check_below(random, stride);
    if (*size < 1) *size = 1 + check_below(random, 2);
    if (*size + *before + *after < extent) *size = extent;
}
