/* SPDX-License-Identifier: Apache-2.0
 * ABI entry point of products with weights of four bits: arguments are checked here; templates/loops/few_bits.h computes. */
#include "operators.h"
#include "abi/status.h"

typedef struct {
    const pysim_few_bits *of;
    const pysim_loops *loops;
    const void *x, *weights;
    void *y;
    pysim_few_bytes bytes; /* or NULL: of numbers */
} few_bits_run;

static void some_panels(const void *operator, int64_t begin, int64_t end) {
    const few_bits_run *r = operator;
    if (r->bytes.bytes) r->loops->few_bytes(r->of, begin, end, &r->bytes, r->weights, r->y);
    else r->loops->few_bits(r->of, begin, end, r->x, r->weights, r->y);
}

static pysim_status check_memory(const pysim_few_bits *b, const void *x, const void *weights, const void *y) {
    const int64_t element = pysim_dtype_bytes(b->dtype), of_x[] = {b->rows, b->k, element}, of_y[] = {b->rows, b->columns, element};
    int64_t columns, bytes_x = 0, bytes_y = 0, bytes_w = 0;
    if (__builtin_add_overflow(b->columns, PYSIM_PANEL - 1, &columns) || b->block > INT64_MAX / PYSIM_PANEL)
        return pysim_fail(PYSIM_OVERFLOW, "weights of four bits exceed int64");
    const int64_t of_w[] = {columns / PYSIM_PANEL, pysim_ceil_div(b->k, b->block), pysim_few_bits_block_bytes(b)};
    pysim_status status = pysim_product("x", 3, of_x, &bytes_x);
    if (status == PYSIM_OK) status = pysim_product("y", 3, of_y, &bytes_y);
    if (status == PYSIM_OK) status = pysim_product("weights", 3, of_w, &bytes_w);
    const pysim_span spans[] = {
        {"y", y, bytes_y, 1}, {"x", x, bytes_x, 0}, {"weights", weights, bytes_w, 0}, {"bias", b->bias, b->columns * element, 0}};
    enum { SPANS = sizeof spans / sizeof *spans };
    for (int i = 0; i < SPANS && status == PYSIM_OK; i++)
        if (spans[i].data || i < SPANS - 1) status = pysim_check_operand(spans[i].name, spans[i].data, b->dtype);
    return status == PYSIM_OK ? pysim_check_apart(spans, SPANS) : status;
}

/* Scales, sums and bytes of all rows. */
pysim_status pysim_few_bits_workspace_bytes(const pysim_few_bits *b, int32_t threads, int64_t *bytes) {
    if (!b || !bytes) return pysim_fail(PYSIM_BAD_ARGUMENT, "%s is NULL", b ? "bytes" : "the product of few bits");
    const int64_t sizes[] = {b->rows, b->columns, b->k, b->block};
    pysim_status status = pysim_check_positive("rows, columns, k and block of weights of four bits", sizes, 4);
    if (status == PYSIM_OK && (b->k % PYSIM_NIBBLES || b->block % PYSIM_NIBBLES))
        status = pysim_fail(PYSIM_BAD_ARGUMENT, "k is %lld and a block %lld; expected multiples of %d", (long long)b->k,
                            (long long)b->block, PYSIM_NIBBLES);
    const int64_t all[] = {b->rows, b->k, 1 + (int64_t)(sizeof(float) + sizeof(int32_t))};
    if (status == PYSIM_OK) status = pysim_product("the workspace of weights of four bits", 3, all, bytes);
    if (status == PYSIM_OK) *bytes = b->rounds ? b->rows * (b->k + pysim_ceil_div(b->k, b->block) * (all[2] - 1)) : 1;
    (void)threads;
    return status;
}

/* Rounds x, if that is wanted and this CPU multiplies bytes. */
static void round_inputs(few_bits_run *r, char *workspace) {
    const pysim_few_bits *b = r->of;
    const int64_t blocks = b->rows * pysim_ceil_div(b->k, b->block);
    if (!b->rounds || !r->loops->few_bytes(b, 0, 0, NULL, NULL, NULL)) return;
    float *scales = (float *)(void *)workspace;
    int32_t *sums = (int32_t *)(void *)(scales + blocks);
    r->bytes = (pysim_few_bytes){(int8_t *)(sums + blocks), scales, sums};
    r->loops->round_blocks(b, r->x, &r->bytes);
}

pysim_status pysim_run_few_bits(const pysim_few_bits *b, int32_t threads, const void *x, const void *weights, void *y, void *workspace,
                                int64_t workspace_bytes) {
    few_bits_run r = {.of = b, .x = x, .weights = weights, .y = y};
    int64_t needed;
    pysim_status status = pysim_few_bits_workspace_bytes(b, threads, &needed);
    if (status == PYSIM_OK && b->dtype != PYSIM_F32)
        status = pysim_fail(PYSIM_UNSUPPORTED, "dtype is %s; weights of four bits multiply f32", pysim_dtype_name(b->dtype));
    if (status == PYSIM_OK) status = pysim_loops_of(b->dtype, &r.loops);
    if (status == PYSIM_OK) status = check_memory(b, x, weights, y);
    if (status == PYSIM_OK && (!workspace || workspace_bytes < needed))
        status = pysim_fail(PYSIM_BAD_ARGUMENT, "the workspace of weights of four bits has %lld bytes; it needs %lld",
                            workspace ? (long long)workspace_bytes : 0LL, (long long)needed);
    if (status != PYSIM_OK) return status;
    round_inputs(&r, workspace);
    const int64_t panel = pysim_few_bits_block_bytes(b) * pysim_ceil_div(b->k, b->block);
    pysim_share_items(pysim_ceil_div(b->columns, PYSIM_PANEL), PYSIM_FEW_BITS_PANELS, panel, threads, some_panels, &r);
    return PYSIM_OK;
}
