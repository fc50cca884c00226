/* SPDX-License-Identifier: Apache-2.0
 * Max pools: check the arguments, launch (pool/pool.cu). */
#include <climits>

#include "abi/arguments.h"
#include "pool/pool.h"

namespace pysim {
namespace {

pysim_status check_pool(const pysim_cuda_pool *p) {
    if (!p) return fail(PYSIM_BAD_ARGUMENT, "the pool is NULL");
    if (p->dtype != PYSIM_F32 && p->dtype != PYSIM_F16 && p->dtype != PYSIM_BF16)
        return fail(PYSIM_UNSUPPORTED, "a pool of dtype %d is not supported; expected f32, f16 or bf16", p->dtype);
    double from = 1, to = 1;
    if (p->batch < 1 || p->channels < 1)
        return fail(PYSIM_BAD_ARGUMENT, "the pool has %lld images of %lld channels; expected at least 1", (long long)p->batch,
                    (long long)p->channels);
    for (int axis = 0; axis < 2; axis++) {
        const long long all[] = {p->in[axis], p->out[axis], p->windows[axis], p->strides[axis], p->dilations[axis]};
        for (const long long one : all)
            if (one < 1 || one > limit::CONV_SIZE)
                return fail(PYSIM_BAD_ARGUMENT, "axis %d of the pool has a number %lld; expected 1..%lld", axis, one,
                            (long long)limit::CONV_SIZE);
        if (p->pads[axis] < 0 || p->pads[axis] > limit::CONV_SIZE)
            return fail(PYSIM_BAD_ARGUMENT, "axis %d of the pool has %lld rows of padding; expected 0..%lld", axis,
                        (long long)p->pads[axis], (long long)limit::CONV_SIZE);
        const double last = (double)p->out[axis] * (double)p->strides[axis] + (double)p->windows[axis] * (double)p->dilations[axis];
        if (last > INT_MAX) return fail(PYSIM_UNSUPPORTED, "axis %d of the pool reaches to row %.0f; expected up to 2^31 - 1", axis, last);
        from *= (double)p->in[axis], to *= (double)p->out[axis];
    }
    const double each = (double)p->batch * (double)p->channels;
    if (each * from > limit::CONV_TENSOR || each * to > limit::CONV_TENSOR)
        return fail(PYSIM_UNSUPPORTED, "the pool has %.0f elements and its result %.0f; expected up to %lld", each * from, each * to,
                    (long long)limit::CONV_TENSOR);
    return PYSIM_OK;
}

/* The kernel's arguments, from valid ones, and how many channels a thread has. */
Pool pool_of(const pysim_cuda_pool &p, const void *from, void *to, int *vector) {
    Pool of = {};
    const int whole = 16 / dtypes[p.dtype].bytes;
    *vector = p.channels % whole == 0 && ((uintptr_t)from | (uintptr_t)to) % 16 == 0 ? whole : 1;
    of.from = from, of.to = to, of.height = (int)p.in[0], of.width = (int)p.in[1], of.channels = (int)p.channels;
    for (int axis = 0; axis < 2; axis++) {
        of.windows[axis] = (int)p.windows[axis], of.strides[axis] = (int)p.strides[axis];
        of.pads[axis] = (int)p.pads[axis], of.dilations[axis] = (int)p.dilations[axis];
    }
    of.by_vectors = Divisor((unsigned)(of.channels / *vector));
    of.by_out_h = Divisor((unsigned)p.out[0]), of.by_out_w = Divisor((unsigned)p.out[1]);
    of.threads = (int)(p.batch * p.out[0] * p.out[1]) * (of.channels / *vector);
    return of;
}
}
}

pysim_status pysim_cuda_max_pool(const pysim_cuda_pool *p, const void *from, void *to, void *stream) {
    using namespace pysim;
    pysim_status status = check_pool(p);
    if (status != PYSIM_OK) return status;
    int vector = 1, sms = 0, element = dtypes[p->dtype].bytes;
    const Pool of = pool_of(*p, from, to, &vector);
    const int64_t each = p->batch * p->channels * element;
    const Memory images = {"the pool's images", from, each * p->in[0] * p->in[1], element};
    status = check_memory({{"the pool's result", to, each * p->out[0] * p->out[1], element}, images, images, {"workspace", nullptr, 0, 1}});
    if (status == PYSIM_OK) status = sms_of("max pool", 75, false, 0, 0, &sms);
    return status == PYSIM_OK ? check(max_pool(of, p->dtype, vector, (cudaStream_t)stream), "a max pool") : status;
}
