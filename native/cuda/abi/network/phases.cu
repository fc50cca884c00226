/* SPDX-License-Identifier: Apache-2.0
 * Interleaved phases of transposed convolutions: check the arguments, launch (conv/phases.cu). */
#include <climits>

#include "abi/arguments.h"
#include "conv/phases.h"

namespace pysim {
namespace {

pysim_status check_phases(const pysim_cuda_phases *p) {
    if (!p) return fail(PYSIM_BAD_ARGUMENT, "phases is NULL");
    if (p->layout != PYSIM_NCHW && p->layout != PYSIM_NHWC)
        return fail(PYSIM_BAD_ARGUMENT, "the layout of phases is %d; expected 0 (NCHW) or 1 (NHWC)", p->layout);
    if (p->element_bytes != 2 && p->element_bytes != 4 && p->element_bytes != 8)
        return fail(PYSIM_BAD_ARGUMENT, "an element of phases has %d bytes; expected 2, 4 or 8", p->element_bytes);
    double phases = 1, from = 1, to = 1;
    if (p->batch < 1 || p->filters < 1)
        return fail(PYSIM_BAD_ARGUMENT, "phases have %lld images and %lld filters; expected at least 1", (long long)p->batch,
                    (long long)p->filters);
    for (int axis = 0; axis < 3; axis++) {
        const long long stride = p->strides[axis], start = p->starts[axis], windows = p->windows[axis], out = p->out[axis];
        if (stride < 1 || windows < 1 || start < 0 || out < 1 || start > INT_MAX || out > INT_MAX || stride > INT_MAX ||
            (double)start + (double)out > (double)windows * (double)stride)
            return fail(PYSIM_BAD_ARGUMENT, "axis %d has %lld windows of %lld phases, which have no results %lld to %lld", axis, windows,
                        stride, start, start + out - 1);
        phases *= (double)stride, from *= (double)windows, to *= (double)out;
    }
    const double images = (double)p->batch * (double)p->filters;
    if (images * phases * from > INT_MAX || images * to > INT_MAX)
        return fail(PYSIM_UNSUPPORTED, "phases have %.0f elements and their result %.0f; expected up to 2^31 - 1", images * phases * from,
                    images * to);
    return PYSIM_OK;
}

/* The kernel's arguments, from valid ones. */
Phases phases_of(const pysim_cuda_phases &p, const void *from, void *to) {
    Phases of = {};
    of.from = from, of.to = to, of.nhwc = p.layout == PYSIM_NHWC, of.filters = (int)p.filters, of.phases = 1;
    of.elements = p.batch * p.filters;
    for (int axis = 0; axis < 3; axis++) {
        of.strides[axis] = (int)p.strides[axis], of.starts[axis] = (int)p.starts[axis];
        of.windows[axis] = (int)p.windows[axis], of.out[axis] = (int)p.out[axis];
        of.by_windows[axis] = Divisor((unsigned)of.windows[axis]), of.by_out[axis] = Divisor((unsigned)of.out[axis]);
        of.by_strides[axis] = Divisor((unsigned)of.strides[axis]);
        of.phases *= of.strides[axis], of.elements *= p.out[axis];
    }
    const int vector = 16 / p.element_bytes;
    const bool whole = of.nhwc && of.filters % vector == 0 && ((uintptr_t)from | (uintptr_t)to) % 16 == 0;
    of.vectors = whole && (of.phases == 2 || of.phases == 4 || of.phases == 8) ? of.filters / vector : 0;
    of.by_filters = Divisor((unsigned)of.filters), of.by_vectors = Divisor((unsigned)(of.vectors ? of.vectors : 1));
    return of;
}
}
}

pysim_status pysim_cuda_interleave(const pysim_cuda_phases *p, const void *from, void *to, void *stream) {
    using namespace pysim;
    pysim_status status = check_phases(p);
    if (status != PYSIM_OK) return status;
    const Phases of = phases_of(*p, from, to);
    const int64_t read = p->batch * of.filters * of.phases * of.windows[0] * of.windows[1] * of.windows[2];
    const Memory phases = {"phases", from, read * p->element_bytes, p->element_bytes};
    status = check_memory({{"the interleaved result", to, of.elements * p->element_bytes, p->element_bytes}, phases, phases, {"workspace", nullptr, 0, 1}});
    int sms = 0;
    if (status == PYSIM_OK) status = sms_of("interleave", 50, false, 0, 0, &sms);
    return status == PYSIM_OK ? check(interleave(of, p->element_bytes, p->batch, (cudaStream_t)stream), "interleaved phases") : status;
}
