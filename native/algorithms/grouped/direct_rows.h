/* SPDX-License-Identifier: Apache-2.0
 * What the algorithms that run rows of depthwise.inc share: their one schedule, and filters in blocks of lanes. */
#ifndef PYSIM_DIRECT_ROWS_H
#define PYSIM_DIRECT_ROWS_H
#include "algorithms/algorithm.h"

static inline pysim_status pysim_check_only_schedule(const pysim_schedule *s, int64_t channels, const pysim_row *row) {
    if (s->stationary == PYSIM_INPUT_STATIONARY && s->pack == PYSIM_PACK_NONE && s->channels == channels && s->k2 == 1 && s->k3 == 1)
        return PYSIM_OK;
    return pysim_fail(PYSIM_BAD_ARGUMENT,
                      "schedule has stationary %d, pack %d, channels %lld, k2 %lld, k3 %lld; kernel %s has one "
                      "schedule: 0, 0, %lld, 1, 1",
                      (int)s->stationary, (int)s->pack, (long long)s->channels, (long long)s->k2, (long long)s->k3, row->info.name,
                      (long long)channels);
}

#define DEFINE_PREPARE(T, name)                                                                                        \
    static inline void name(int64_t filters, int64_t depth, int64_t lanes, const T *from, T *to) {                     \
        for (int64_t f = 0; f < filters; f++)                                                                          \
            for (int64_t k = 0; k < depth; k++) to[(f / lanes * depth + k) * lanes + f % lanes] = from[f * depth + k]; \
    }
DEFINE_PREPARE(float, pysim_blocks_f32)
DEFINE_PREPARE(double, pysim_blocks_f64)
#undef DEFINE_PREPARE

/* [filter][channel of the group][tap] to [block][channel of the group][tap][filter of the block]. */
static inline void pysim_prepare_blocks(const pysim_job *job, const char *filters, char *prepared) {
    const pysim_conv *c = &job->problem.conv;
    const int64_t depth = c->channels / c->groups * c->kernel_h * c->kernel_w, lanes = job->nest.row.info.lane_filters;
    if (c->dtype == PYSIM_F64)
        pysim_blocks_f64(c->filters, depth, lanes, (const double *)(const void *)filters, (double *)(void *)prepared);
    else pysim_blocks_f32(c->filters, depth, lanes, (const float *)(const void *)filters, (float *)(void *)prepared);
}
#endif
