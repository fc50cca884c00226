/* SPDX-License-Identifier: Apache-2.0
 * The rows of all families one after another, as the ABI numbers them. */
#ifndef PYSIM_CUDA_ABI_REGISTRY_H
#define PYSIM_CUDA_ABI_REGISTRY_H
#include "abi/arguments.h"
#include "core/rows.h"

namespace pysim {

template <class Row> struct Registry {
    const std::initializer_list<Rows<Row> (*)()> families;

    int count() const {
        int sum = 0;
        for (const auto family : families) sum += family().count;
        return sum;
    }
    pysim_status find(int32_t index, const Row **out) const {
        int first = 0;
        for (const auto family : families) {
            const Rows<Row> rows = family();
            if (index >= first && index - first < rows.count) return *out = rows.rows + (index - first), PYSIM_OK;
            first += rows.count;
        }
        return fail(PYSIM_BAD_ARGUMENT, "kernel %d is outside the registry of %d rows", index, first);
    }
    pysim_status find(int32_t index, int32_t dtype, const Row **out) const {
        const pysim_status status = find(index, out);
        if (status != PYSIM_OK || (*out)->info.dtype == dtype) return status;
        if ((*out)->info.dtype == PYSIM_TF32X3 && dtype == PYSIM_F32) return status; /* that is what it is for */
        return fail(PYSIM_UNSUPPORTED, "kernel %s does not multiply %s", (*out)->info.name, dtypes[dtype].name);
    }
    template <class Info> pysim_status tell(int32_t index, Info *out, const char *asked) const {
        const Row *row = nullptr;
        if (!out) return fail(PYSIM_BAD_ARGUMENT, "%s: out is NULL", asked);
        const pysim_status status = find(index, &row);
        if (status == PYSIM_OK) *out = row->info;
        return status;
    }
};

/* Streaming multiprocessors of the current device, which must be able to run `row`. */
template <class Row> pysim_status sms_for(const Row &row, int *sms) {
    if (!row.launch) return fail(PYSIM_UNSUPPORTED, "kernel %s is not in this build; -Dtests=true builds those of ablations", row.info.name);
    return sms_of(row.info.name, row.info.capability, row.exact_capability, sms);
}
}
#endif
