/* SPDX-License-Identifier: Apache-2.0
 * The ABI's entry for a list of products, convolutions and norms. */
#include "abi/arguments.h"

using namespace pysim;

pysim_status pysim_cuda_run_steps(const pysim_cuda_step *steps, int64_t count, const uint64_t *bases, void *stream) {
    if (count > 0 && (!steps || !bases)) return fail(PYSIM_BAD_ARGUMENT, "%s: steps or bases are NULL", __func__);
    const auto at = [&](const pysim_cuda_place &place) { return (void *)(uintptr_t)(bases[place.base] + place.offset); };
    const auto run = [&](const pysim_cuda_step &s) {
        if (!s.norm)
            return pysim_cuda_run(s.problem, s.schedule, s.epilogue, at(s.first), at(s.second), at(s.result),
                                  s.workspace_bytes ? at(s.workspace) : nullptr, s.workspace_bytes, stream);
        const void *parts[PYSIM_CUDA_PARTS] = {};
        for (int i = 0; s.parts && i < s.norm->parts && i < PYSIM_CUDA_PARTS; i++) parts[i] = at(s.parts[i]);
        pysim_cuda_norm norm = *s.norm;
        if (norm.image_rows) norm.scale = at(s.first);
        return pysim_cuda_normalize(&norm, s.parts ? parts : nullptr, at(s.result), stream);
    };
    for (int64_t i = 0; i < count; i++) {
        const pysim_status status = run(steps[i]);
        if (status != PYSIM_OK) return status;
    }
    return PYSIM_OK;
}
