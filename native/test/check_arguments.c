/* SPDX-License-Identifier: Apache-2.0
 * Bad arguments. Each case changes one thing in a valid call, which must return the right status, name the error and change no operand. */
#include <math.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "operators/loops.h"
#include "check.h"

enum { REGION = 1 << 16 };

/* One call's arguments; the functions below pass the ones they need. */
typedef struct {
    pysim_problem of;
    pysim_schedule s;
    pysim_epilogue e;
    const pysim_problem *problem;
    const pysim_conv *conv;
    const pysim_schedule *schedule;
    const pysim_epilogue *epilogue;
    int32_t threads;
    char *input, *filters, *output; /* a, b and c of a GEMM */
    char *packed, *columns, *workspace, *bias, *residual;
    int64_t packed_bytes, workspace_bytes;
    int64_t *bytes, *p, *q;
    int64_t result[3];
} call;

/* ---- the functions ---- */

static pysim_status conv_output(call *x) { return pysim_conv_output(x->problem ? x->conv : NULL, x->p, x->q); }
static pysim_status packed_bytes(call *x) { return pysim_prepared_bytes(x->problem, x->schedule, x->bytes); }
static pysim_status pack(call *x) { return pysim_prepare(x->problem, x->schedule, x->filters, x->packed, x->packed_bytes); }
static pysim_status workspace_bytes(call *x) { return pysim_workspace_bytes(x->problem, x->schedule, x->threads, x->bytes); }
static pysim_status conv_run(call *x) {
    return pysim_run(x->problem, x->schedule, x->epilogue, x->threads, x->input, x->packed, x->output, x->workspace, x->workspace_bytes,
                     NULL);
}
static pysim_status reference(call *x) { return pysim_reference(x->problem, x->epilogue, x->input, x->filters, x->output); }
static pysim_status im2col(call *x) { return pysim_im2col(x->problem ? x->conv : NULL, x->input, x->columns); }
static pysim_status gemm_run(call *x) {
    return pysim_run(x->problem, x->schedule, x->epilogue, x->threads, x->input, x->filters, x->output, x->workspace, x->workspace_bytes,
                     NULL);
}

/* The last ones are of products. */
static const struct {
    const char *name;
    pysim_status (*call)(call *);
} functions[] = {
    {"pysim_conv_output", conv_output},
    {"pysim_prepared_bytes", packed_bytes},
    {"pysim_prepare", pack},
    {"pysim_workspace_bytes", workspace_bytes},
    {"pysim_run", conv_run},
    {"pysim_reference", reference},
    {"pysim_im2col", im2col},
    {"pysim_workspace_bytes of a product", workspace_bytes},
    {"pysim_run of a product", gemm_run},
    {"pysim_reference of a product", reference},
};
/* clang-format off */
enum {
    CONV_OUTPUT, CONV_PACKED_BYTES, CONV_PACK, CONV_WORKSPACE, CONV_RUN, CONV_REFERENCE, CONV_IM2COL,
    GEMM_WORKSPACE, GEMM_RUN, GEMM_REFERENCE, FUNCTIONS,
};
/* Sets of functions. */
enum {
    OUTPUT = 1 << CONV_OUTPUT, PACKED = 1 << CONV_PACKED_BYTES, PACK = 1 << CONV_PACK, WORKSPACE = 1 << CONV_WORKSPACE,
    RUN = 1 << CONV_RUN, REFERENCE = 1 << CONV_REFERENCE, IM2COL = 1 << CONV_IM2COL, G_WORKSPACE = 1 << GEMM_WORKSPACE,
    G_RUN = 1 << GEMM_RUN, G_REFERENCE = 1 << GEMM_REFERENCE,
    CONV = OUTPUT | PACKED | PACK | WORKSPACE | RUN | REFERENCE | IM2COL, GEMM = G_WORKSPACE | G_RUN | G_REFERENCE,
    CONV_PLAN = PACKED | PACK | WORKSPACE | RUN, PLAN = CONV_PLAN | G_WORKSPACE | G_RUN,
    ENTRIES = PLAN | REFERENCE | G_REFERENCE, THREADED = WORKSPACE | RUN | G_WORKSPACE | G_RUN, COMPUTE = RUN | REFERENCE | G_RUN | G_REFERENCE,
};
/* clang-format on */

/* ---- the call that works ---- */

static int32_t kernel_of(int32_t dtype, int32_t available, pysim_kernel_info *row) {
    for (int32_t i = 0; i < pysim_kernel_count(); i++)
        if (pysim_kernel_at(i, row) == PYSIM_OK && row->dtype == dtype && !row->available == !available) return i;
    return -1;
}

static _Alignas(64) char pool[10 * REGION], kept[10 * REGION];

static void good(int32_t f, call *x) {
    const int product = f >= GEMM_WORKSPACE;
    pysim_kernel_info row;
    memset(x, 0, sizeof *x);
    if (product) x->of = (pysim_problem){PYSIM_GEMM, .gemm = {5, 6, 7, 9, 9, 9, 0, 0, PYSIM_F32}};
    else x->of = (pysim_problem){PYSIM_CONV, .conv = {1, 2, 4, 6, 7, 6, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, PYSIM_F32}};
    const int32_t algorithm = product ? CHECK_gemm : CHECK_sconv, kernel = kernel_of(PYSIM_F32, 1, &row);
    /* k2, k3: all tiles */
    x->s = (pysim_schedule){algorithm, kernel, PYSIM_INPUT_STATIONARY, PYSIM_PACK_TILES, row.windows, row.filters, 2, 64, 64, 0};
    x->problem = &x->of, x->conv = &x->of.conv, x->schedule = &x->s, x->epilogue = &x->e;
    x->threads = 1;
    char **region[] = {&x->input, &x->filters, &x->packed, &x->output, &x->columns, &x->workspace, &x->bias, &x->residual};
    for (size_t i = 0; i < sizeof region / sizeof *region; i++) *region[i] = pool + (i + 1) * REGION; /* room on both sides */
    x->e = (pysim_epilogue){.alpha = 1, .bias = x->bias, .activation = PYSIM_RELU, .residual = product ? NULL : x->residual};
    x->bytes = &x->result[0], x->p = &x->result[1], x->q = &x->result[2];
    if (pysim_prepared_bytes(&x->of, &x->s, &x->packed_bytes) != PYSIM_OK ||
        pysim_workspace_bytes(&x->of, &x->s, 1, &x->workspace_bytes) != PYSIM_OK)
        check_fail("the call that should work: %s", pysim_last_error());
    if (x->packed_bytes > REGION || x->workspace_bytes > REGION) check_fail("REGION is too small");
    check_random random = {check_given.seed};
    check_fill(pool, PYSIM_F32, sizeof pool / sizeof(float), FILL_EXACT, &random);
}

/* Calls function f and checks its message, which must contain `word`. */
static void refuse(int32_t f, call *x, pysim_status want, const char *word) {
    char before[512], after[512];
    pysim_kernel_info row;
    pysim_kernel_at(-98765, &row);
    snprintf(before, sizeof before, "%s", pysim_last_error());
    memcpy(kept, pool, sizeof pool);
    const pysim_status status = functions[f].call(x);
    snprintf(after, sizeof after, "%s", pysim_last_error());
    if (status != want) {
        check_fail("status %d, expected %d; the message is: %s", (int)status, (int)want, status == PYSIM_OK ? "none" : after);
        return;
    }
    if (want != PYSIM_OK && (after[0] == '\0' || strcmp(before, after) == 0)) check_fail("no message");
    if (want != PYSIM_OK && word && !strstr(after, word)) check_fail("the message does not name %s: %s", word, after);
    if (want != PYSIM_OK && memcmp(kept, pool, sizeof pool) != 0) check_fail("an operand was changed by a call that failed");
}

/* ---- one field at a time ---- */

typedef enum { I32, I64, F64, POINTER, SHIFT } kind; /* SHIFT: the pointer plus a number of bytes */

static void set(call *x, size_t offset, kind of, int64_t value) {
    char *field = (char *)x + offset;
    const int32_t narrow = (int32_t)value;
    const double real = value == INT64_MIN ? NAN : (double)value;
    char *pointer = NULL;
    if (of == SHIFT) memcpy(&pointer, field, sizeof pointer), pointer += value;
    if (of == I32) memcpy(field, &narrow, sizeof narrow);
    if (of == I64) memcpy(field, &value, sizeof value);
    if (of == F64) memcpy(field, &real, sizeof real);
    if (of == POINTER || of == SHIFT) memcpy(field, &pointer, sizeof pointer);
}

#define FIELD(type, field, value, who, status, word) {#field " = " #value, offsetof(call, field), type, value, who, PYSIM_##status, word}
#define LEAST(type, struct, field, least, who) \
    FIELD(type, struct.field, least - 1, who, BAD_ARGUMENT, #field), FIELD(type, struct.field, -7, who, BAD_ARGUMENT, #field)
#define HUGE_(struct, field, who) FIELD(I64, struct.field, INT64_MAX, who, OVERFLOW, NULL)
#define NIL(field, who, word) FIELD(POINTER, field, 0, who, BAD_ARGUMENT, word)

/* clang-format off */
static const struct {
    const char *name;
    size_t offset;
    kind of;
    int64_t value;
    int32_t who;
    pysim_status status;
    const char *word;
} wrong[] = {
    LEAST(I64, of.conv, batch, 1, CONV), LEAST(I64, of.conv, groups, 1, CONV), LEAST(I64, of.conv, channels, 1, CONV),
    LEAST(I64, of.conv, height, 1, CONV),
    LEAST(I64, of.conv, width, 1, CONV), LEAST(I64, of.conv, filters, 1, CONV), LEAST(I64, of.conv, kernel_h, 1, CONV),
    LEAST(I64, of.conv, kernel_w, 1, CONV), LEAST(I64, of.conv, stride_h, 1, CONV), LEAST(I64, of.conv, stride_w, 1, CONV),
    LEAST(I64, of.conv, dilation_h, 1, CONV), LEAST(I64, of.conv, dilation_w, 1, CONV), LEAST(I64, of.conv, pad_top, 0, CONV),
    LEAST(I64, of.conv, pad_left, 0, CONV), LEAST(I64, of.conv, pad_bottom, 0, CONV), LEAST(I64, of.conv, pad_right, 0, CONV),
    FIELD(I64, of.conv.groups, 3, CONV, BAD_ARGUMENT, "channels"), FIELD(I64, of.conv.filters, 5, CONV, BAD_ARGUMENT, "filters"),
    FIELD(I64, of.conv.kernel_h, 9, CONV, BAD_ARGUMENT, "height"), FIELD(I64, of.conv.kernel_w, 10, CONV, BAD_ARGUMENT, "width"),
    FIELD(I64, of.conv.dilation_h, 4, CONV, BAD_ARGUMENT, "height"), FIELD(I64, of.conv.dilation_w, 5, CONV, BAD_ARGUMENT, "width"),
    FIELD(I64, of.conv.depth, -1, CONV, BAD_ARGUMENT, "depth"), FIELD(I64, of.conv.kernel_d, 2, CONV, BAD_ARGUMENT, "kernel_d"), FIELD(I64, of.conv.depth, 4, CONV, BAD_ARGUMENT, "kernel_d"),
    FIELD(I32, of.conv.dtype, 6, CONV, BAD_ARGUMENT, "dtype"), FIELD(I32, of.conv.dtype, -1, CONV, BAD_ARGUMENT, "dtype"),
    FIELD(I32, of.conv.dtype, PYSIM_F16, CONV, UNSUPPORTED, "f16"), FIELD(I32, of.conv.dtype, PYSIM_S32, CONV, UNSUPPORTED, "s32"),
    FIELD(I32, of.conv.input_block, -1, CONV, BAD_ARGUMENT, "input_block"), FIELD(I32, of.conv.input_block, 3, CONV, BAD_ARGUMENT, "input_block"),
    FIELD(I32, of.conv.output_block, 4, CONV, BAD_ARGUMENT, "output_block"),
    FIELD(I32, of.conv.input_block, 2, CONV_PLAN, UNSUPPORTED, "planes"), FIELD(I32, of.conv.output_block, 3, CONV_PLAN, UNSUPPORTED, "planes"),
    HUGE_(of.conv, batch, CONV), HUGE_(of.conv, height, CONV), HUGE_(of.conv, width, CONV), HUGE_(of.conv, pad_top, CONV), HUGE_(of.conv, pad_left, CONV),
    HUGE_(of.conv, pad_bottom, CONV), HUGE_(of.conv, pad_right, CONV), HUGE_(of.conv, dilation_h, CONV), HUGE_(of.conv, dilation_w, CONV),
    FIELD(I64, of.conv.channels, INT64_C(1) << 61, CONV, OVERFLOW, NULL),
    FIELD(I64, of.conv.filters, INT64_C(1) << 61, CONV, OVERFLOW, NULL),
    FIELD(I64, of.conv.batch, INT64_C(1) << 55, CONV, OVERFLOW, NULL),

    LEAST(I64, of.gemm, m, 1, GEMM), LEAST(I64, of.gemm, n, 1, GEMM), LEAST(I64, of.gemm, k, 1, GEMM), LEAST(I64, of.gemm, lda, 1, GEMM),
    LEAST(I64, of.gemm, ldb, 1, GEMM), LEAST(I64, of.gemm, ldc, 1, GEMM), FIELD(I64, of.gemm.lda, 6, GEMM, BAD_ARGUMENT, "lda"),
    FIELD(I64, of.gemm.ldb, 5, GEMM, BAD_ARGUMENT, "ldb"), FIELD(I64, of.gemm.ldc, 5, GEMM, BAD_ARGUMENT, "ldc"),
    FIELD(I32, of.gemm.trans_a, 2, GEMM, BAD_ARGUMENT, "trans_a"),
    FIELD(I32, of.gemm.trans_b, -1, GEMM, BAD_ARGUMENT, "trans_b"), FIELD(I32, of.gemm.dtype, 6, GEMM, BAD_ARGUMENT, "dtype"),
    FIELD(I32, of.gemm.dtype, -1, GEMM, BAD_ARGUMENT, "dtype"), FIELD(I32, of.gemm.dtype, PYSIM_F16, GEMM, UNSUPPORTED, "f16"),
    FIELD(I32, of.gemm.dtype, PYSIM_S32, GEMM, UNSUPPORTED, "s32"), HUGE_(of.gemm, lda, GEMM), HUGE_(of.gemm, ldb, GEMM), HUGE_(of.gemm, ldc, GEMM),
    FIELD(I64, of.gemm.m, INT64_C(1) << 61, GEMM, OVERFLOW, NULL), FIELD(I64, of.gemm.lda, INT64_C(1) << 60, GEMM, OVERFLOW, NULL),

    FIELD(I32, of.kind, 2, ENTRIES, BAD_ARGUMENT, "kind"), FIELD(I32, of.kind, -1, ENTRIES, BAD_ARGUMENT, "kind"),
    FIELD(I32, s.algorithm, -1, PLAN, BAD_ARGUMENT, "algorithm"),
    FIELD(I32, s.algorithm, CHECK_ALGORITHMS, PLAN, BAD_ARGUMENT, "algorithm"),
    FIELD(I32, s.algorithm, CHECK_gemm, CONV_PLAN, UNSUPPORTED, "gemm"),
    FIELD(I32, s.algorithm, CHECK_sconv, G_WORKSPACE | G_RUN, UNSUPPORTED, "sconv"),
    FIELD(I32, s.kernel, -1, PLAN, BAD_ARGUMENT, "kernel"), FIELD(I32, s.kernel, 10000, PLAN, BAD_ARGUMENT, "kernel"),
    FIELD(I32, s.stationary, 2, PLAN, BAD_ARGUMENT, "stationary"),
    FIELD(I32, s.stationary, -1, PLAN, BAD_ARGUMENT, "stationary"),
    FIELD(I32, s.pack, 2, PLAN, BAD_ARGUMENT, "pack"), FIELD(I32, s.pack, -1, PLAN, BAD_ARGUMENT, "pack"),
    FIELD(I32, s.pack, PYSIM_PACK_NONE, CONV_PLAN, UNSUPPORTED, "pack"), LEAST(I64, s, windows, 1, PLAN),
    LEAST(I64, s, filters, 1, PLAN),
    FIELD(I64, s.windows, 1000, PLAN, BAD_ARGUMENT, "windows"), FIELD(I64, s.filters, 1000, PLAN, BAD_ARGUMENT, "filters"),
    LEAST(I64, s, channels, 1, PLAN), FIELD(I64, s.channels, 3, CONV_PLAN, BAD_ARGUMENT, "channels"),
    FIELD(I64, s.channels, 8, G_WORKSPACE | G_RUN, BAD_ARGUMENT, "channels"), LEAST(I64, s, k2, 1, PLAN),
    LEAST(I64, s, k3, 1, PLAN),
    FIELD(I64, s.k2, INT64_MAX, PLAN, OK, NULL), FIELD(I64, s.k3, INT64_MAX, PLAN, OK, NULL),

    FIELD(I32, threads, 0, THREADED, BAD_ARGUMENT, "threads"), FIELD(I32, threads, -1, THREADED, BAD_ARGUMENT, "threads"),
    FIELD(I32, threads, 1025, THREADED, BAD_ARGUMENT, "1..1024"),
    FIELD(I32, e.activation, PYSIM_EPILOGUES, COMPUTE, BAD_ARGUMENT, "activation"),
    FIELD(SHIFT, e.residual, 2, RUN | REFERENCE, BAD_ARGUMENT, "residual"),
    FIELD(I32, e.activation, -1, COMPUTE, BAD_ARGUMENT, "activation"),
    FIELD(F64, e.alpha, 2, RUN | REFERENCE, BAD_ARGUMENT, "alpha"),
    FIELD(F64, e.alpha, INT64_MIN, RUN | REFERENCE, BAD_ARGUMENT, "alpha"),
    FIELD(F64, e.beta, 1, RUN | REFERENCE, BAD_ARGUMENT, "beta"),
    FIELD(F64, e.beta, INT64_MIN, RUN | REFERENCE, BAD_ARGUMENT, "beta"),

    NIL(problem, CONV | GEMM, "NULL"), NIL(schedule, PLAN, "schedule"), NIL(epilogue, COMPUTE, "epilogue"),
    NIL(p, OUTPUT, "NULL"), NIL(q, OUTPUT, "NULL"), NIL(bytes, PACKED | WORKSPACE | G_WORKSPACE, "NULL"),
    NIL(input, RUN | REFERENCE | IM2COL | G_RUN | G_REFERENCE, "NULL"),
    NIL(filters, PACK | REFERENCE | G_RUN | G_REFERENCE, "NULL"),
    NIL(packed, PACK | RUN, "NULL"), NIL(output, COMPUTE, "NULL"), NIL(columns, IM2COL, "columns"),
    NIL(workspace, RUN | G_RUN, "workspace"), FIELD(POINTER, e.bias, 0, COMPUTE, OK, NULL), FIELD(POINTER, e.residual, 0, COMPUTE, OK, NULL),
    FIELD(SHIFT, input, 2, RUN | REFERENCE | IM2COL | G_RUN | G_REFERENCE, BAD_ARGUMENT, NULL),
    FIELD(SHIFT, filters, 2, PACK | REFERENCE | G_RUN | G_REFERENCE, BAD_ARGUMENT, NULL),
    FIELD(SHIFT, packed, 2, PACK | RUN, BAD_ARGUMENT, NULL),
    FIELD(SHIFT, output, 2, COMPUTE, BAD_ARGUMENT, NULL), FIELD(SHIFT, columns, 2, IM2COL, BAD_ARGUMENT, NULL),
    FIELD(SHIFT, e.bias, 2, COMPUTE, BAD_ARGUMENT, "bias"), FIELD(SHIFT, workspace, 4, RUN | G_RUN, OK, NULL),

    FIELD(I64, packed_bytes, 0, PACK, BAD_ARGUMENT, "prepared"), FIELD(I64, packed_bytes, -1, PACK, BAD_ARGUMENT, "prepared"),
    FIELD(I64, workspace_bytes, 0, RUN | G_RUN, BAD_ARGUMENT, "workspace"),
    FIELD(I64, workspace_bytes, -1, RUN | G_RUN, BAD_ARGUMENT, "workspace"),
    FIELD(I64, workspace_bytes, INT64_MIN, RUN | G_RUN, BAD_ARGUMENT, "workspace"),
};
/* clang-format on */

static void fields(void) {
    call x;
    for (int32_t f = 0; f < FUNCTIONS; f++)
        for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
            if (!(wrong[i].who >> f & 1)) continue;
            char id[32];
            snprintf(id, sizeof id, "field/%d/%d", (int)i, (int)f);
            const char *unit = wrong[i].of == SHIFT ? " bytes further" : "";
            if (!check_begin(id, "%s with %s%s", functions[f].name, wrong[i].name, unit)) continue;
            good(f, &x);
            set(&x, wrong[i].offset, wrong[i].of, wrong[i].value);
            refuse(f, &x, wrong[i].status, wrong[i].word);
            check_end();
        }
}

/* ---- overlap: the written operand on another one's first byte, on its last element, and ending on its first element ---- */

typedef struct {
    int32_t function;
    size_t written, other;
    int64_t written_bytes, other_bytes; /* < 0: the field at this offset, negated, holds them */
    const char *name;
} pair;

#define AT(field) offsetof(call, field)
/* Bytes of the operands of good(). */
enum { IN = 4 * 6 * 7 * 4, FILT = 6 * 2 * 9 * 4, OUT = 6 * 6 * 7 * 4, COL = 2 * 9 * 6 * 7 * 4 };
enum { A = (4 * 9 + 7) * 4, B = (6 * 9 + 6) * 4, C = (4 * 9 + 6) * 4 };
/* clang-format off */
static const pair pairs[] = {
    {CONV_RUN, AT(output), AT(input), OUT, IN, "output over input"},
    {CONV_RUN, AT(output), AT(packed), OUT, -(int64_t)AT(packed_bytes), "output over packed filters"},
    {CONV_RUN, AT(output), AT(e.bias), OUT, 6 * 4, "output over bias"},
    {CONV_RUN, AT(output), AT(e.residual), OUT, OUT, "output over residual"},
    {CONV_RUN, AT(output), AT(workspace), OUT, -(int64_t)AT(workspace_bytes), "output over workspace"},
    {CONV_RUN, AT(workspace), AT(input), -(int64_t)AT(workspace_bytes), IN, "workspace over input"},
    {CONV_RUN, AT(workspace), AT(packed), -(int64_t)AT(workspace_bytes), -(int64_t)AT(packed_bytes),
     "workspace over packed filters"},
    {CONV_RUN, AT(workspace), AT(e.bias), -(int64_t)AT(workspace_bytes), 6 * 4, "workspace over bias"},
    {CONV_REFERENCE, AT(output), AT(input), OUT, IN, "output over input"},
    {CONV_REFERENCE, AT(output), AT(filters), OUT, FILT, "output over filters"},
    {CONV_REFERENCE, AT(output), AT(e.bias), OUT, 6 * 4, "output over bias"},
    {CONV_PACK, AT(packed), AT(filters), -(int64_t)AT(packed_bytes), FILT, "packed over filters"},
    {CONV_IM2COL, AT(columns), AT(input), COL, IN / 2, "columns over image"},
    {GEMM_RUN, AT(output), AT(input), C, A, "C over A"},
    {GEMM_RUN, AT(output), AT(filters), C, B, "C over B"},
    {GEMM_RUN, AT(output), AT(e.bias), C, 6 * 4, "C over bias"},
    {GEMM_RUN, AT(output), AT(workspace), C, -(int64_t)AT(workspace_bytes), "C over workspace"},
    {GEMM_RUN, AT(workspace), AT(input), -(int64_t)AT(workspace_bytes), A, "workspace over A"},
    {GEMM_RUN, AT(workspace), AT(filters), -(int64_t)AT(workspace_bytes), B, "workspace over B"},
    {GEMM_RUN, AT(workspace), AT(e.bias), -(int64_t)AT(workspace_bytes), 6 * 4, "workspace over bias"},
    {GEMM_REFERENCE, AT(output), AT(input), C, A, "C over A"},
    {GEMM_REFERENCE, AT(output), AT(filters), C, B, "C over B"},
    {GEMM_REFERENCE, AT(output), AT(e.bias), C, 6 * 4, "C over bias"},
};
/* clang-format on */

static int64_t bytes_of(const call *x, int64_t bytes) {
    int64_t value = bytes;
    if (bytes < 0) memcpy(&value, (const char *)x + -bytes, sizeof value);
    return value;
}

static void overlaps(void) {
    static const char *const places[] = {"on its first element", "on its last element", "with its last element on the first"};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        for (int place = 0; place < 3; place++) {
            const pair *o = &pairs[i];
            call x;
            char id[32], *other;
            snprintf(id, sizeof id, "overlap/%d/%d", (int)i, place);
            if (!check_begin(id, "%s: %s, %s", functions[o->function].name, o->name, places[place])) continue;
            good(o->function, &x);
            memcpy(&other, (char *)&x + o->other, sizeof other);
            if (place == 1) other += bytes_of(&x, o->other_bytes) - 4;
            if (place == 2) other -= bytes_of(&x, o->written_bytes) - 4;
            if (other >= pool && other + bytes_of(&x, o->written_bytes) <= pool + sizeof pool) {
                memcpy((char *)&x + o->written, &other, sizeof other);
                refuse(o->function, &x, PYSIM_BAD_ARGUMENT, "overlap");
            }
            check_end();
        }
}

/* ---- what needs more than one field ---- */

static void beside(void) {
    call x;
    if (check_begin("beside", "buffers that touch without sharing a byte")) {
        good(CONV_REFERENCE, &x);
        x.output = x.input + IN;
        refuse(CONV_REFERENCE, &x, PYSIM_OK, NULL);
        good(CONV_RUN, &x);
        x.output = x.input + IN;
        refuse(CONV_RUN, &x, PYSIM_OK, NULL);
        check_end();
    }
}

static void combinations(void) {
    pysim_kernel_info row;
    call x;
    for (int32_t f = 0; f < FUNCTIONS; f++) {
        char id[32];
        snprintf(id, sizeof id, "good/%d", (int)f);
        if (check_begin(id, "%s with nothing wrong", functions[f].name)) good(f, &x), refuse(f, &x, PYSIM_OK, NULL), check_end();
        if (!(PLAN >> f & 1)) continue;
        snprintf(id, sizeof id, "dtype/%d", (int)f);
        if (check_begin(id, "%s with a kernel of another dtype", functions[f].name)) {
            good(f, &x);
            x.s.kernel = kernel_of(PYSIM_F64, 1, &row), x.s.windows = row.windows, x.s.filters = row.filters;
            refuse(f, &x, PYSIM_UNSUPPORTED, "dtype");
            check_end();
        }
        const int32_t missing = kernel_of(PYSIM_F32, 0, &row);
        snprintf(id, sizeof id, "missing/%d", (int)f);
        if (missing >= 0 && (f == CONV_RUN || f == GEMM_RUN) &&
            check_begin(id, "%s with a kernel that this CPU does not run", functions[f].name)) {
            good(f, &x);
            x.s.kernel = missing, x.s.windows = row.windows, x.s.filters = row.filters;
            refuse(f, &x, PYSIM_UNSUPPORTED, row.target);
            check_end();
        }
        snprintf(id, sizeof id, "in place/%d", (int)f);
        if (f >= GEMM_WORKSPACE && check_begin(id, "%s with pack none and B transposed", functions[f].name)) {
            good(f, &x);
            x.of.gemm.trans_b = 1, x.s.pack = PYSIM_PACK_NONE;
            refuse(f, &x, PYSIM_UNSUPPORTED, "pack");
            check_end();
        }
        snprintf(id, sizeof id, "small/%d", (int)f);
        if ((f == CONV_PACK || f == CONV_RUN || f == GEMM_RUN) && check_begin(id, "%s with one byte too few", functions[f].name)) {
            good(f, &x);
            x.packed_bytes--, x.workspace_bytes--;
            refuse(f, &x, PYSIM_BAD_ARGUMENT, f == CONV_PACK ? "prepared" : "workspace");
            check_end();
        }
    }
    static const struct {
        double alpha, beta;
        pysim_status status;
    } factors[] = {{-3, 2, PYSIM_OK},      {0.5, 0, PYSIM_UNSUPPORTED},    {1, 1e-300, PYSIM_UNSUPPORTED},  {NAN, 0, PYSIM_UNSUPPORTED},
                   {1, -0x1p31, PYSIM_OK}, {1, 0x1p31, PYSIM_UNSUPPORTED}, {INFINITY, 0, PYSIM_UNSUPPORTED}};
    if (check_begin("whole", "alpha and beta of an s8 product")) {
        for (size_t i = 0; i < sizeof factors / sizeof *factors; i++) {
            good(GEMM_RUN, &x);
            x.of.gemm.dtype = PYSIM_S8, x.e.alpha = factors[i].alpha, x.e.beta = factors[i].beta;
            refuse(GEMM_REFERENCE, &x, factors[i].status, "alpha");
            x.s.kernel = kernel_of(PYSIM_S8, 1, &row), x.s.windows = row.windows, x.s.filters = row.filters;
            x.workspace -= 4096, x.workspace_bytes += 4096; /* another row needs more */
            refuse(GEMM_RUN, &x, factors[i].status, "alpha");
        }
        check_end();
    }
    if (check_begin("aligned", "operands of one and two bytes, whose output has four")) {
        for (int32_t dtype = PYSIM_BF16; dtype <= PYSIM_S8; dtype++)
            for (int moved = 0; moved < 4; moved++) {
                good(GEMM_REFERENCE, &x);
                char **const operand[] = {&x.input, &x.filters, &x.output, &x.bias};
                *operand[moved] += dtype == PYSIM_S8 ? 1 : 2;
                x.of.gemm.dtype = dtype, x.e.bias = x.bias;
                refuse(GEMM_REFERENCE, &x, moved < 2 ? PYSIM_OK : PYSIM_BAD_ARGUMENT, moved == 2 ? "c starts" : "bias");
            }
        check_end();
    }
    if (check_begin("in place/stride", "pack none with 1x1 and a stride, or with padding")) {
        for (int i = 0; i < 6; i++) {
            good(CONV_RUN, &x);
            x.of.conv.kernel_h = x.of.conv.kernel_w = 1,
            x.of.conv.pad_top = x.of.conv.pad_left = x.of.conv.pad_bottom = x.of.conv.pad_right = 0, x.s.pack = PYSIM_PACK_NONE;
            int64_t *const field[] = {&x.of.conv.stride_h, &x.of.conv.stride_w,   &x.of.conv.pad_top,
                                      &x.of.conv.pad_left, &x.of.conv.pad_bottom, &x.of.conv.pad_right};
            (*field[i])++;
            refuse(CONV_RUN, &x, PYSIM_UNSUPPORTED, "pack");
        }
        check_end();
    }
    if (check_begin("huge workspace", "operands that fit int64, with a workspace that does not")) {
        good(CONV_WORKSPACE, &x);
        x.of.conv = (pysim_conv){1, 1, 1, INT64_C(1) << 30, INT64_C(1) << 28, 1, 3, 3, 1, 1, 1, 1, .dtype = PYSIM_F32};
        x.s.channels = 1, x.s.stationary = PYSIM_WEIGHT_STATIONARY, x.s.k2 = INT64_MAX;
        refuse(CONV_WORKSPACE, &x, PYSIM_OVERFLOW, NULL);
        check_end();
    }
}

/* ---- the functions without operands, and the probes ---- */

static void expect(const char *id, const char *description, pysim_status status, pysim_status want) {
    if (!check_begin(id, "%s", description)) return;
    if (status != want) check_fail("status %d, expected %d", (int)status, (int)want);
    if (pysim_last_error()[0] == '\0') check_fail("no message");
    check_end();
}

static void without_operands(void) {
    pysim_kernel_info row;
    double rate = 0;
    char buffer[64] = {0}, endless[3000];
    memset(endless, 'x', sizeof endless - 1);
    endless[sizeof endless - 1] = '\0';
    expect("kernel/-1", "pysim_kernel_at(-1)", pysim_kernel_at(-1, &row), PYSIM_BAD_ARGUMENT);
    expect("kernel/count", "pysim_kernel_at(count)", pysim_kernel_at(pysim_kernel_count(), &row), PYSIM_BAD_ARGUMENT);
    expect("kernel/null", "pysim_kernel_at(0, NULL)", pysim_kernel_at(0, NULL), PYSIM_BAD_ARGUMENT);
    expect("clock/null", "pysim_probe_clock(NULL)", pysim_probe_clock(NULL), PYSIM_BAD_ARGUMENT);
    expect("fma/null", "pysim_probe_fma(NULL)", pysim_probe_fma(NULL, PYSIM_F32, &rate), PYSIM_BAD_ARGUMENT);
    expect("fma/result", "pysim_probe_fma with no result", pysim_probe_fma("portable", PYSIM_F32, NULL), PYSIM_BAD_ARGUMENT);
    expect("fma/dtype", "pysim_probe_fma of dtype 10", pysim_probe_fma("portable", 10, &rate), PYSIM_BAD_ARGUMENT);
    expect("fma/unknown", "pysim_probe_fma of an unknown target", pysim_probe_fma("abacus", PYSIM_F32, &rate), PYSIM_UNSUPPORTED);
    expect("fma/long", "pysim_probe_fma of an endless target", pysim_probe_fma(endless, PYSIM_F32, &rate), PYSIM_UNSUPPORTED);
    pysim_status (*const streams[])(void *, int64_t, double, double *) = {pysim_probe_read, pysim_probe_write};
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "write" : "read";
        expect(name, "a stream of no buffer", streams[i](NULL, 64, 1e-4, &rate), PYSIM_BAD_ARGUMENT);
        expect(name, "a stream of 0 bytes", streams[i](buffer, 0, 1e-4, &rate), PYSIM_BAD_ARGUMENT);
        expect(name, "a stream of -1 bytes", streams[i](buffer, -1, 1e-4, &rate), PYSIM_BAD_ARGUMENT);
        expect(name, "a stream for 0 seconds", streams[i](buffer, 64, 0, &rate), PYSIM_BAD_ARGUMENT);
        expect(name, "a stream for -1 seconds", streams[i](buffer, 64, -1, &rate), PYSIM_BAD_ARGUMENT);
        expect(name, "a stream for NaN seconds", streams[i](buffer, 64, NAN, &rate), PYSIM_BAD_ARGUMENT);
        expect(name, "a stream for ever", streams[i](buffer, 64, INFINITY, &rate), PYSIM_BAD_ARGUMENT);
        expect(name, "a stream with no result", streams[i](buffer, 64, 1e-4, NULL), PYSIM_BAD_ARGUMENT);
    }
    int64_t line[8] = {0};
    expect("line/null", "pysim_probe_line_transfer of no buffer", pysim_probe_line_transfer(NULL, 64, 64, 1e-4, &rate), PYSIM_BAD_ARGUMENT);
    expect("line/short", "pysim_probe_line_transfer of less than a line", pysim_probe_line_transfer(line, 63, 64, 1e-4, &rate),
           PYSIM_BAD_ARGUMENT);
    expect("line/size", "pysim_probe_line_transfer of lines of 12 bytes", pysim_probe_line_transfer(line, 64, 12, 1e-4, &rate),
           PYSIM_BAD_ARGUMENT);
    expect("line/odd", "pysim_probe_line_transfer of an odd address", pysim_probe_line_transfer((char *)line + 4, 32, 16, 1e-4, &rate),
           PYSIM_BAD_ARGUMENT);
    expect("line/ever", "pysim_probe_line_transfer for ever", pysim_probe_line_transfer(line, 64, 64, INFINITY, &rate), PYSIM_BAD_ARGUMENT);
    expect("line/result", "pysim_probe_line_transfer with no result", pysim_probe_line_transfer(line, 64, 64, 1e-4, NULL),
           PYSIM_BAD_ARGUMENT);
}

static void *fail_elsewhere(void *message) {
    pysim_probe_clock(NULL);
    return memcpy(message, pysim_last_error(), 8);
}

static void per_thread(void) {
    pthread_t thread;
    char here[512], there[8];
    if (!check_begin("thread", "pysim_last_error is the calling thread's")) return;
    pysim_probe_fma(NULL, PYSIM_F32, NULL);
    snprintf(here, sizeof here, "%s", pysim_last_error());
    if (pthread_create(&thread, NULL, fail_elsewhere, there) != 0 || pthread_join(thread, NULL) != 0) check_fail("no thread");
    if (strcmp(here, pysim_last_error()) != 0) check_fail("another thread's failure changed it to: %s", pysim_last_error());
    if (memcmp(here, there, sizeof there) == 0) check_fail("both threads have the same message");
    check_end();
}

void check_arguments(void) {
    fields();
    overlaps();
    beside();
    combinations();
    without_operands();
    per_thread();
}
