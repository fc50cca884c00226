/* SPDX-License-Identifier: Apache-2.0
 * The registry: all families' rows (families.inc), numbered as in the ABI. */
#ifndef PYSIM_CUDA_ABI_REGISTRY_H
#define PYSIM_CUDA_ABI_REGISTRY_H
#include "abi/arguments.h"
#include "core/launch.h"
#include "core/rows.h"

namespace pysim {

template <class Row> struct Registry {
    const std::initializer_list<Units<Row>> families;

    int count() const {
        int sum = 0;
        for (const auto &units : families)
            for (const auto unit : units) sum += unit().count;
        return sum;
    }
    pysim_status find(int32_t index, const Row **out) const {
        int first = 0;
        for (const auto &units : families)
            for (const auto unit : units) {
                const Rows<Row> rows = unit();
                if (index >= first && index - first < rows.count) return *out = rows.rows + (index - first), PYSIM_OK;
                first += rows.count;
            }
        return fail(PYSIM_BAD_ARGUMENT, "kernel %d is outside the registry of %d rows", index, first);
    }
    pysim_status find(int32_t index, int32_t dtype, const Row **out) const {
        const pysim_status status = find(index, out);
        if (status != PYSIM_OK || (*out)->info.dtype == dtype) return status;
        /* both are f32 in memory: interchangeable */
        const auto f32 = [](int32_t type) { return type == PYSIM_F32 || type == PYSIM_TF32X3; };
        if (f32((*out)->info.dtype) && f32(dtype)) return status;
        return fail(PYSIM_UNSUPPORTED, "kernel %s does not multiply %s", (*out)->info.name, dtypes[dtype].name);
    }
    template <class Info> pysim_status describe(int32_t index, Info *out, const char *caller) const {
        const Row *row = nullptr;
        if (!out) return fail(PYSIM_BAD_ARGUMENT, "%s: out is NULL", caller);
        const pysim_status status = find(index, &row);
        if (status == PYSIM_OK) *out = row->info;
        return status;
    }
};

/* Multiprocessors of the current device; fails unless it can run `row`. */
template <class Row> pysim_status sms_for(const Row &row, int *sms) {
    const pysim_status status = sms_of(row.info.name, row.info.capability, row.exact_capability, row.below, row.replaced_on, sms);
    if (status == PYSIM_OK && !row.launch)
        return fail(PYSIM_UNSUPPORTED, "kernel %s is not in this build%s", row.info.name,
                    ABLATIONS ? "" : ": it is an ablation, which -Dtests=true builds");
    return status;
}
template <class Row> pysim_status is_available(const Registry<Row> &registry, int32_t index) {
    const Row *row = nullptr;
    int sms;
    const pysim_status status = registry.find(index, &row);
    return status == PYSIM_OK ? sms_for(*row, &sms) : status;
}
}
#endif
