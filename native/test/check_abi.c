/* SPDX-License-Identifier: Apache-2.0
 * Sections that check no kernel: the check program itself, the registry table, the reference, and the probes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

/* ---- checks: this program detects what it is meant to detect ---- */

/* 1 when touching the byte at `offset` of a guarded buffer of 100 bytes ends the process. */
static int faults(guard_side side, ptrdiff_t offset) {
    guard_arena arena = {0};
    volatile unsigned char *buffer = guard_place(&arena, 100, side);
    int status = 0;
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        if (!freopen("/dev/null", "w", stderr)) _exit(0); /* a sanitizer would report the wanted fault */
        _exit(buffer[offset] == 0 ? 0 : 0);
    }
    return child > 0 && waitpid(child, &status, 0) == child && !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void check_guards(void) {
    guard_arena arena = {0};
    if (faults(GUARD_RIGHT, 99) || faults(GUARD_LEFT, 0)) check_fail("a byte of the buffer itself cannot be read");
    if (!faults(GUARD_RIGHT, 100)) check_fail("the byte after a buffer on the right can be read");
    if (!faults(GUARD_LEFT, -1)) check_fail("the byte before a buffer on the left can be read");
    for (int side = GUARD_RIGHT; side <= GUARD_LEFT; side++) {
        unsigned char *buffer = guard_place(&arena, 100, side ? GUARD_LEFT : GUARD_RIGHT);
        if (!guard_intact(&arena)) check_fail("a fresh buffer does not look intact");
        buffer[side ? 100 : -1] ^= 1;
        if (guard_intact(&arena)) check_fail("a write beside the buffer is not seen");
    }
}

static void check_comparison(void) {
    const float want[] = {1, 2, 0}, near[] = {1, 2.0000002384185791f, 0}, bound[] = {1, 2, 0}, not_a_number[] = {1, NAN, 0};
    const float other_zero[] = {1, 2, -0.0f}, stray[] = {1, 2, 1e-30f};
    if (check_compare(PYSIM_F32, 3, want, want, NULL, 0) != -1) check_fail("equal arrays differ");
    if (check_compare(PYSIM_F32, 3, near, want, NULL, 0) != 1) check_fail("one unit in the last place is not seen");
    if (check_compare(PYSIM_F32, 3, near, want, bound, 0x1p-23) != -1) check_fail("a value on the bound is refused");
    if (check_compare(PYSIM_F32, 3, near, want, bound, 0x1p-24) != 1) check_fail("a value outside the bound is not seen");
    if (check_compare(PYSIM_F32, 3, not_a_number, want, bound, 1e30) != 1) check_fail("a NaN passes a bound");
    if (check_compare(PYSIM_F32, 3, not_a_number, want, NULL, 0) != 1) check_fail("a NaN passes for a number");
    if (check_compare(PYSIM_F32, 3, want, not_a_number, NULL, 0) != 1) check_fail("a number passes for a NaN");
    if (check_compare(PYSIM_F32, 3, other_zero, want, NULL, 0) != -1) check_fail("-0 does not pass for 0");
    if (check_compare(PYSIM_F32, 3, stray, want, bound, 1) != 2) check_fail("a value where the bound is 0 is not seen");
}

void check_checks(void) {
    if (check_begin("guards", "buffers of 100 bytes against inaccessible pages")) check_guards(), check_end();
    if (check_begin("comparison", "arrays of three elements")) check_comparison(), check_end();
}

/* ---- registry: the table in the library is the one in kernels.inc and the tables beside it ---- */

typedef struct {
    const char *name, *target, *dtype, *form;
    int32_t windows, filters, lane_windows, lane_filters;
} line;
static const line lines[] = {
#define PYSIM_PACKER(target, dtype)
#define PYSIM_ROW(target, dtype, form, windows, filters, lane_windows, lane_filters) \
    {#dtype "_" #form "_" #windows "x" #filters "__" #target, #target, #dtype, #form, windows, filters, lane_windows, lane_filters},
#define PYSIM_DIRECT_ROW PYSIM_ROW
#define PYSIM_SKINNY_ROW PYSIM_ROW
#define PYSIM_PHASES_ROW PYSIM_ROW
#define PYSIM_NCHWC_ROW PYSIM_ROW
#include "kernels.inc"
#include "depthwise.inc"
#include "skinny.inc"
#include "polyphase.inc"
#include "direct_nchwc.inc"
#undef PYSIM_ROW
#undef PYSIM_DIRECT_ROW
#undef PYSIM_SKINNY_ROW
#undef PYSIM_PHASES_ROW
#undef PYSIM_NCHWC_ROW
#undef PYSIM_PACKER
};
enum { LINES = sizeof lines / sizeof *lines };

static void check_line(int32_t i) {
    pysim_kernel_info row;
    if (pysim_kernel_at(i, &row) != PYSIM_OK) {
        check_fail("pysim_kernel_at(%d): %s", (int)i, pysim_last_error());
        return;
    }
    if (strcmp(row.name, lines[i].name) != 0) check_fail("its name is %s", row.name);
    if (strcmp(row.target, lines[i].target) != 0 || strcmp(row.form, lines[i].form) != 0 ||
        strcmp(check_name(row.dtype), lines[i].dtype) != 0 || row.windows != lines[i].windows || row.filters != lines[i].filters ||
        row.lane_windows != lines[i].lane_windows || row.lane_filters != lines[i].lane_filters)
        check_fail("its columns are not those of its line");
    if (row.available != 0 && row.available != 1) check_fail("available is %d", (int)row.available);
    if (strcmp(row.target, "portable") == 0 && !row.available) check_fail("a portable kernel is not available");
}

void check_registry(void) {
    if (check_begin("version", "pysim_abi_version")) {
        if (pysim_abi_version() != PYSIM_ABI_VERSION) check_fail("%d, and the header has %d", pysim_abi_version(), PYSIM_ABI_VERSION);
        check_end();
    }
    if (check_begin("count", "pysim_kernel_count")) {
        if (pysim_kernel_count() != LINES) check_fail("%d rows, and the files have %d", pysim_kernel_count(), LINES);
        check_end();
    }
    for (int32_t i = 0; i < LINES && i < pysim_kernel_count(); i++) {
        if (!check_begin(lines[i].name, "row %d of the registry", (int)i)) continue;
        check_line(i);
        check_end();
    }
}

/* ---- reference: numbers worked by hand, and two definitions that must agree ---- */

static void worked_numbers(void) {
    const pysim_conv c = {1, 1, 1, 3, 3, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, PYSIM_F32, 0, 0, 0, 0, 0, 0, 0, 0};
    const pysim_epilogue e = {.alpha = 1};
    const float ones[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1}, want[9] = {4, 6, 4, 6, 9, 6, 4, 6, 4};
    float got[9];
    if (check_conv_reference(&c, &e, ones, ones, got) != PYSIM_OK) check_fail("%s", pysim_last_error());
    if (check_compare(PYSIM_F32, 9, got, want, NULL, 0) >= 0) check_fail("ones with ones are not 4 6 4 6 9 6 4 6 4");

    /* C = relu(2 A B^T - C + bias): row 0: 2*(1*5+2*6)-1+1 = 34, 2*(1*7+2*8)-100-1 = -55 -> 0; row 1: 2*(3*5+4*6)-1+1 = 78, …
     */
    const pysim_gemm g = {2, 2, 2, 2, 2, 2, 0, 1, PYSIM_F64};
    const double a[4] = {1, 2, 3, 4}, b[4] = {5, 6, 7, 8}, bias[2] = {1, -1}, result[4] = {34, 0, 78, 104};
    const pysim_epilogue relu = {.alpha = 2, .beta = -1, .bias = bias, .activation = PYSIM_RELU};
    double m[4] = {1, 100, 1, 1};
    if (check_gemm_reference(&g, &relu, a, b, m) != PYSIM_OK) check_fail("%s", pysim_last_error());
    if (check_compare(PYSIM_F64, 4, m, result, NULL, 0) >= 0) check_fail("the product is %g %g %g %g", m[0], m[1], m[2], m[3]);

    /* bf16: 1.5 is 0x3FC0, -2 is 0xC000, 2^-7 is 0x3C00: 1.5*1.5 - 2*2^-7 = 2.234375, which bf16 itself does not have. */
    const pysim_gemm half = {1, 1, 2, 2, 1, 1, 0, 0, PYSIM_BF16};
    const pysim_epilogue plain = {.alpha = 1};
    const uint16_t left[2] = {0x3FC0, 0xC000}, right[2] = {0x3FC0, 0x3C00};
    float sum = NAN;
    if (check_gemm_reference(&half, &plain, left, right, &sum) != PYSIM_OK) check_fail("%s", pysim_last_error());
    if (!(sum >= 2.234375f && sum <= 2.234375f)) check_fail("the bf16 product is %.9g", (double)sum);

    /* s8: -128*-128 + 127*-1 = 16257; times 3, plus 2*(2^30+5), plus 7 is 2147532436 and wraps to it less 2^32. */
    const pysim_gemm byte = {1, 1, 2, 2, 1, 1, 0, 0, PYSIM_S8};
    const int32_t seven = 7;
    const pysim_epilogue whole = {.alpha = 3, .beta = 2, .bias = &seven};
    const int8_t bytes[2] = {-128, 127}, others[2] = {-128, -1};
    int32_t wrapped = (1 << 30) + 5;
    if (check_gemm_reference(&byte, &whole, bytes, others, &wrapped) != PYSIM_OK) check_fail("%s", pysim_last_error());
    if (wrapped != -2147434860) check_fail("the s8 product is %d", wrapped);
}

static guard_arena image, filters, columns, direct, product;

/* For one group: filters[m][c r s] x columns[c r s][p q] is the convolution. Everything is flush against a guard. */
static void both_ways(const pysim_conv *c, guard_side side, check_random *random) {
    int64_t p, q;
    if (pysim_conv_output(c, &p, &q) != PYSIM_OK) {
        check_fail("pysim_conv_output: %s", pysim_last_error());
        return;
    }
    const size_t size = check_size(c->dtype), result_size = check_size(check_result(c->dtype));
    const int64_t depth = c->channels * c->kernel_h * c->kernel_w, windows = p * q;
    const pysim_gemm g = {c->filters, windows, depth, depth, windows, windows, 0, 0, c->dtype};
    const pysim_epilogue e = {.alpha = 1};
    check_fill(guard_place(&image, (size_t)(c->channels * c->height * c->width) * size, side), c->dtype, c->channels * c->height * c->width,
               FILL_EXACT, random);
    check_fill(guard_place(&filters, (size_t)(c->filters * depth) * size, side), c->dtype, c->filters * depth, FILL_EXACT, random);
    void *col = guard_place(&columns, (size_t)(depth * windows) * size, side);
    void *one = guard_place(&direct, (size_t)(c->filters * windows) * result_size, side);
    void *two = guard_place(&product, (size_t)(c->filters * windows) * result_size, side);
    memset(col, 0xFF, columns.bytes);
    memset(one, 0xFF, direct.bytes);
    memset(two, 0xFF, product.bytes);
    if (pysim_im2col(c, image.buffer, col) != PYSIM_OK || check_gemm_reference(&g, &e, filters.buffer, col, two) != PYSIM_OK ||
        check_conv_reference(c, &e, image.buffer, filters.buffer, one) != PYSIM_OK) {
        check_fail("%s", pysim_last_error());
        return;
    }
    if (!guard_intact(&columns) || !guard_intact(&direct) || !guard_intact(&product)) check_fail("a write beside an output");
    if (check_compare(check_result(c->dtype), c->filters * windows, one, two, NULL, 0) >= 0)
        check_fail("im2col and GEMM give another result");
}

void check_reference(void) {
    if (check_begin("worked", "numbers worked by hand")) worked_numbers(), check_end();
    for (int32_t i = 0; i < 120; i++) {
        check_random random = {check_given.seed * 31 + (uint64_t)i};
        static const int32_t computed[] = {PYSIM_F32, PYSIM_F64, PYSIM_BF16, PYSIM_S8};
        pysim_conv c = {.batch = 1, .groups = 1, .dtype = computed[i % 4]};
        char id[32];
        c.channels = 1 + check_below(&random, 5), c.filters = 1 + check_below(&random, 4);
        c.kernel_h = 1 + check_below(&random, 5), c.kernel_w = 1 + check_below(&random, 5);
        c.stride_h = 1 + check_below(&random, 4), c.stride_w = 1 + check_below(&random, 4);
        c.dilation_h = 1 + check_below(&random, 2), c.dilation_w = 1 + check_below(&random, 2);
        c.pad_top = check_below(&random, 7), c.pad_left = check_below(&random, 7);
        c.pad_bottom = check_below(&random, 7), c.pad_right = check_below(&random, 7);
        c.height = 9 + check_below(&random, 6), c.width = 9 + check_below(&random, 6);
        snprintf(id, sizeof id, "im2col/%d", (int)i);
        if (!check_begin(id, "conv:ic%lldih%lldiw%lldoc%lldkh%lldkw%lldsh%lldsw%lldph%lldpw%llddh%llddw%lld pad_bottom=%lld pad_right=%lld",
                         (long long)c.channels, (long long)c.height, (long long)c.width, (long long)c.filters, (long long)c.kernel_h,
                         (long long)c.kernel_w, (long long)c.stride_h, (long long)c.stride_w, (long long)c.pad_top, (long long)c.pad_left,
                         (long long)c.dilation_h - 1, (long long)c.dilation_w - 1, (long long)c.pad_bottom, (long long)c.pad_right))
            continue;
        both_ways(&c, i & 4 ? GUARD_LEFT : GUARD_RIGHT, &random);
        check_end();
    }
}

/* ---- probes: rates are positive numbers, and the buffer's edges are kept ---- */

static void positive(const char *what, pysim_status status, const double *rate) {
    if (status != PYSIM_OK) check_fail("%s: %s", what, pysim_last_error());
    else if (!(isfinite(*rate) && *rate > 0)) check_fail("%s: the rate is %g", what, *rate);
}

static void check_latency(guard_arena *arena) {
    double rate = NAN;
    const int64_t chased[][2] = {{16, 8}, {128, 64}, {200, 64}, {1024, 128}, {70000, 64}};
    for (size_t i = 0; i < sizeof chased / sizeof *chased; i++) {
        const int64_t bytes = chased[i][0], line = chased[i][1];
        char id[32];
        snprintf(id, sizeof id, "latency/%lld/%lld", (long long)bytes, (long long)line);
        if (!check_begin(id, "pysim_probe_latency: one cycle through all lines")) continue;
        unsigned char *buffer = guard_place(arena, (size_t)bytes, GUARD_RIGHT);
        positive("latency", pysim_probe_latency(buffer, bytes, line, 1e-4, &rate), &rate);
        if (!guard_intact(arena)) check_fail("a write beside the buffer");
        int64_t steps = 0;
        for (void *at = buffer; steps == 0 || (at != buffer && steps <= bytes); steps++) at = *(void **)at;
        if (steps != bytes / line) check_fail("the cycle has %lld of %lld lines", (long long)steps, (long long)(bytes / line));
        check_end();
    }
    if (check_begin("latency/refused", "pysim_probe_latency of what has no cycle")) {
        uint64_t words[32];
        const int64_t bad[][2] = {{64, 64}, {256, 12}, {256, 0}, {256, -8}, {-1, 8}};
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
            if (pysim_probe_latency(words, bad[i][0], bad[i][1], 1e-4, &rate) != PYSIM_BAD_ARGUMENT)
                check_fail("%lld bytes in lines of %lld were taken", (long long)bad[i][0], (long long)bad[i][1]);
        if (pysim_probe_latency((char *)words + 4, 128, 64, 1e-4, &rate) != PYSIM_BAD_ARGUMENT) check_fail("an odd address was taken");
        if (pysim_probe_latency(words, 256, 64, -1, &rate) != PYSIM_BAD_ARGUMENT) check_fail("seconds below 0 were taken");
        check_end();
    }
}

void check_probes(void) {
    static guard_arena arena;
    double rate = NAN;
    if (check_begin("clock", "pysim_probe_clock")) positive("clock", pysim_probe_clock(&rate), &rate), check_end();
    for (int32_t i = 0; i < pysim_kernel_count(); i++) {
        pysim_kernel_info row;
        if (pysim_kernel_at(i, &row) != PYSIM_OK || !check_begin(row.name, "pysim_probe_fma of its target and dtype")) continue;
        const pysim_status status = pysim_probe_fma(row.target, row.dtype, &rate);
        const int no_probe = status == PYSIM_UNSUPPORTED && strcmp(row.target, "amx") == 0; /* of its emulation, and of types but FP32 */
        if (row.available && !no_probe) positive(row.target, status, &rate);
        else if (status != PYSIM_UNSUPPORTED) check_fail("status %d for a target that is not available", (int)status);
        check_end();
    }
    const int64_t sizes[] = {1, 7, 63, 64, 511, 512, 513, 1025, 70001};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int side = GUARD_RIGHT; side <= GUARD_LEFT; side++) {
            char id[32];
            snprintf(id, sizeof id, "stream/%lld/%d", (long long)sizes[i], side);
            if (!check_begin(id, "pysim_probe_read and _write of %lld bytes", (long long)sizes[i])) continue;
            unsigned char *buffer = guard_place(&arena, (size_t)sizes[i], side ? GUARD_LEFT : GUARD_RIGHT);
            memset(buffer, 0x11, (size_t)sizes[i]);
            const uint64_t hash = check_hash(buffer, arena.bytes);
            positive("read", pysim_probe_read(buffer, sizes[i], 1e-4, &rate), &rate);
            if (check_hash(buffer, arena.bytes) != hash) check_fail("reading changed the buffer");
            positive("write", pysim_probe_write(buffer, sizes[i], 1e-4, &rate), &rate);
            if (!guard_intact(&arena)) check_fail("a write beside the buffer");
            for (int64_t j = 0; j < sizes[i]; j++)
                if (buffer[j] != 0) check_fail("byte %lld was not written", (long long)j);
            check_end();
        }
    for (int64_t lines = 1; lines <= 64; lines *= 8) {
        char id[32];
        snprintf(id, sizeof id, "line_transfer/%lld", (long long)lines);
        if (!check_begin(id, "pysim_probe_line_transfer: a buffer between two CPUs, or no second CPU")) continue;
        unsigned char *buffer = guard_place(&arena, (size_t)(64 * lines), GUARD_RIGHT);
        const pysim_status status = pysim_probe_line_transfer(buffer, 64 * lines, 64, 1e-4, &rate);
        if (status != PYSIM_UNSUPPORTED) positive("line transfer", status, &rate);
        if (!guard_intact(&arena)) check_fail("a write beside the buffer");
        check_end();
    }
    check_latency(&arena);
}
