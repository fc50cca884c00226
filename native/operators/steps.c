/* SPDX-License-Identifier: Apache-2.0
 * Chains of calls: each step is an operator, or a convolution or product. */
#include "algorithms/nest.h"
#include "operators.h"
#include "abi/status.h"

static pysim_status run_step(const pysim_step *s) {
    int64_t bytes;
    if (s->threads != 0) { /* only for the check of `threads` */
        const pysim_status status = pysim_threads_workspace(0, s->threads, &bytes);
        if (status != PYSIM_OK) return status;
    }
    switch (s->kind) {
    case PYSIM_STEP_RUN:
        return pysim_run_job(s->of, s->epilogue, s->threads, s->first, s->second, s->result, s->workspace, s->workspace_bytes, NULL);
    case PYSIM_STEP_MAP: return pysim_share_map(s->of, s->epilogue, s->first, s->second, s->third, s->result, s->threads);
    case PYSIM_STEP_POOL: return pysim_share_pool(s->of, s->first, s->result, s->threads);
    case PYSIM_STEP_REORDER: return pysim_share_reorder(s->of, s->first, s->result, s->threads);
    case PYSIM_STEP_COPY: return pysim_share_copy(s->of, s->first, s->result, s->threads);
    case PYSIM_STEP_PAIR: return pysim_share_pair(s->of, s->epilogue, s->first, s->second, s->result, s->threads);
    case PYSIM_STEP_ROWS: return pysim_share_rows(s->of, s->first, s->second, s->third, s->result, s->threads);
    case PYSIM_STEP_TAKE: return pysim_run_take(s->of, s->first, s->second, s->third, s->result);
    case PYSIM_STEP_PRODUCTS:
        return pysim_run_products(s->of, s->schedule, s->epilogue, s->threads, s->first, s->second, s->result, s->workspace,
                                  s->workspace_bytes);
    case PYSIM_STEP_ATTENTION:
        return pysim_run_attention(s->of, s->threads, s->first, s->second, s->third, s->result, s->workspace, s->workspace_bytes);
    case PYSIM_STEP_QUANTIZE:
    case PYSIM_STEP_DEQUANTIZE:
    case PYSIM_STEP_QUANTIZE_RANGE:
    case PYSIM_STEP_SUMS:
    case PYSIM_STEP_TABLE:
    case PYSIM_STEP_BYTE_PAIR:
    case PYSIM_STEP_BYTE_POOL:
    case PYSIM_STEP_BYTE_MEANS:
    case PYSIM_STEP_BYTE_PAD: return pysim_run_integer_step(s);
    case PYSIM_STEP_FOLD: return pysim_run_fold(s->of, s->first, s->result);
    case PYSIM_STEP_BEST: return pysim_run_best(s->of, s->first, s->result, (int64_t *)s->third);
    case PYSIM_STEP_HALVES: return pysim_run_halves(s->of, s->first, s->result);
    case PYSIM_STEP_SAMPLE: return pysim_run_sample(s->of, s->first, s->second, s->result);
    case PYSIM_STEP_RECURRENT: return pysim_run_recurrent(s->of, s->first, s->second, s->result, s->workspace, s->workspace_bytes);
    case PYSIM_STEP_FEW_BITS:
        return pysim_run_few_bits(s->of, s->threads, s->first, s->second, s->result, s->workspace, s->workspace_bytes);
    case PYSIM_STEP_BYTE_PRODUCTS:
        return pysim_run_byte_products(s->of, s->threads, s->first, s->second, s->result, s->workspace, s->workspace_bytes);
    case PYSIM_STEP_BYTE_SOFTMAX: return pysim_share_byte_softmax(s->of, s->first, s->result, s->threads);
    default: return pysim_fail(PYSIM_BAD_ARGUMENT, "a step's kind is %d; expected 0 (run) to 26 (softmax of bytes)", (int)s->kind);
    }
}

pysim_status pysim_run_steps(const pysim_step *steps, int64_t count) {
    pysim_status status = PYSIM_OK;
    if (count > 0 && !steps) return pysim_fail(PYSIM_BAD_ARGUMENT, "steps is NULL");
    for (int64_t i = 0; i < count && status == PYSIM_OK; i++) status = run_step(&steps[i]);
    return status;
}
