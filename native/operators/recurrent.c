/* SPDX-License-Identifier: Apache-2.0
 * ABI entry points of recurrent layers: arguments are checked here; loops_recurrent.h computes. */
#include "operators.h"
#include "abi/status.h"

enum { STATES = 3, SPANS = 8 }; /* h, c and r h */

static int64_t gates_of(const pysim_recurrent *r) { return r->kind == PYSIM_LSTM ? 4 : r->kind == PYSIM_GRU ? 3 : 1; }

static pysim_status check_sizes(const pysim_recurrent *r) {
    const int64_t sizes[] = {r->steps, r->batch, r->hidden}, steps[] = {r->sum_step, r->sum_batch, r->y_step, r->y_batch, r->state_batch};
    if (r->kind < PYSIM_RNN || r->kind > PYSIM_GRU)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "a recurrent layer's kind is %d; expected 0 (RNN), 1 (LSTM) or 2 (GRU)", (int)r->kind);
    pysim_status status = pysim_check_positive("a recurrent layer's steps, batch and hidden", sizes, 3);
    if (status == PYSIM_OK) status = pysim_check_positive("a recurrent layer's distances of sums, results and states", steps, 5);
    return status;
}

pysim_status pysim_recurrent_workspace_bytes(const pysim_recurrent *r, int64_t *bytes) {
    const pysim_loops *loops;
    int64_t room = 0;
    if (!r || !bytes) return pysim_fail(PYSIM_BAD_ARGUMENT, "%s is NULL", r ? "bytes" : "the recurrent layer");
    pysim_status status = pysim_loops_of(r->dtype, &loops);
    if (status == PYSIM_OK) status = check_sizes(r);
    if (status == PYSIM_OK && __builtin_add_overflow(r->hidden, PYSIM_PANEL - 1, &room))
        status = pysim_fail(PYSIM_OVERFLOW, "a recurrent layer's workspace exceeds int64");
    if (status != PYSIM_OK) return status;
    const int64_t all[] = {r->batch, room / PYSIM_PANEL * PYSIM_PANEL, STATES + gates_of(r), pysim_dtype_bytes(r->dtype)};
    return pysim_product("a recurrent layer's workspace", 4, all, bytes);
}

/* Bytes of an operand of `batch` rows of `width` elements, and of as many for every step; the rows do not overlap. */
static pysim_status bytes_of(const char *what, const pysim_recurrent *r, int64_t steps, int64_t step, int64_t batch, int64_t width,
                             int64_t *bytes) {
    int64_t along, across, last;
    const int64_t nearest = steps == 1 ? batch : r->batch == 1 ? step : pysim_min(step, batch);
    if ((steps > 1 || r->batch > 1) && nearest < width)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "%s of %lld elements lie %lld apart", what, (long long)width, (long long)nearest);
    if (__builtin_mul_overflow(steps - 1, step, &along) || __builtin_mul_overflow(r->batch - 1, batch, &across) ||
        __builtin_add_overflow(along, across, &last) || __builtin_add_overflow(last, width, &last))
        return pysim_fail(PYSIM_OVERFLOW, "%s exceed int64", what);
    const int64_t all[] = {last, pysim_dtype_bytes(r->dtype)};
    return pysim_product(what, 2, all, bytes);
}

static pysim_status check_memory(const pysim_recurrent *r, const void *sums, const void *weights, const void *y) {
    const int64_t room = (r->hidden + PYSIM_PANEL - 1) / PYSIM_PANEL * PYSIM_PANEL, element = pysim_dtype_bytes(r->dtype);
    const int64_t packed[] = {gates_of(r), room, r->hidden, element};
    int64_t of_sums = 0, of_y = 0, of_state = 0, of_weights = 0, width = 0;
    if (__builtin_mul_overflow(gates_of(r), r->hidden, &width)) return pysim_fail(PYSIM_OVERFLOW, "sums exceed int64");
    pysim_status status = pysim_product("a recurrent layer's weights", 4, packed, &of_weights);
    if (status == PYSIM_OK) status = bytes_of("sums", r, r->steps, r->sum_step, r->sum_batch, width, &of_sums);
    if (status == PYSIM_OK) status = bytes_of("results", r, r->steps, r->y_step, r->y_batch, r->hidden, &of_y);
    if (status == PYSIM_OK) status = bytes_of("states", r, 1, 1, r->state_batch, r->hidden, &of_state);
    const pysim_span spans[SPANS] = {
        {"y", y, of_y, 1},          {"last_h", r->last_h, of_state, 1},        {"last_c", r->last_c, of_state, 1},
        {"sums", sums, of_sums, 0}, {"weights", weights, of_weights, 0},       {"h", r->h, of_state, 0},
        {"c", r->c, of_state, 0},   {"bias", r->bias, r->hidden * element, 0},
    };
    for (int i = 0; i < SPANS && status == PYSIM_OK; i++)
        if (spans[i].data || i == 3 || i == 4) status = pysim_check_operand(spans[i].name, spans[i].data, r->dtype);
    return status == PYSIM_OK ? pysim_check_apart(spans, SPANS) : status;
}

pysim_status pysim_run_recurrent(const pysim_recurrent *r, const void *sums, const void *weights, void *y, void *workspace,
                                 int64_t workspace_bytes) {
    int64_t needed;
    pysim_status status = pysim_recurrent_workspace_bytes(r, &needed);
    if (status == PYSIM_OK) status = check_memory(r, sums, weights, y);
    if (status == PYSIM_OK && (!workspace || workspace_bytes < needed))
        status = pysim_fail(PYSIM_BAD_ARGUMENT, "a recurrent layer's workspace has %lld bytes; it needs %lld",
                            workspace ? (long long)workspace_bytes : 0LL, (long long)needed);
    if (status == PYSIM_OK) pysim_loops_for(r->dtype)->recurrent(r, sums, weights, y, workspace);
    return status;
}
