/* SPDX-License-Identifier: Apache-2.0
 * Norms between products: check the arguments, launch (norm/norm.cu). */
#include <cmath>

#include "abi/arguments.h"
#include "norm/norm.h"

namespace pysim {
namespace {

pysim_status check_norm(const pysim_cuda_norm *n) {
    if (!n) return fail(PYSIM_BAD_ARGUMENT, "the norm is NULL");
    if (n->kind != PYSIM_NORM_CHANNELS && n->kind != PYSIM_NORM_ROWS)
        return fail(PYSIM_BAD_ARGUMENT, "the norm's kind is %d; expected %d (by channels) or %d (by rows)", n->kind, PYSIM_NORM_CHANNELS,
                    PYSIM_NORM_ROWS);
    const auto known = [](int32_t dtype) { return dtype == PYSIM_F32 || dtype == PYSIM_F16 || dtype == PYSIM_BF16; };
    if (!known(n->dtype) || !known(n->out_dtype) || (n->dtype != n->out_dtype && n->dtype != PYSIM_F32 && n->out_dtype != PYSIM_F32))
        return fail(
            PYSIM_UNSUPPORTED,
            "a norm of dtype %d cannot have the result type %d; expected f32, f16 or bf16 for both, and the same type unless one is f32",
            n->dtype, n->out_dtype);
    if ((unsigned)n->relu > 1) return fail(PYSIM_BAD_ARGUMENT, "the norm's relu is %d; expected 0 or 1", n->relu);
    if (n->rows < 1 || n->rows > limit::NORM_ROWS)
        return fail(PYSIM_BAD_ARGUMENT, "the norm has %lld rows; expected 1..%lld", (long long)n->rows, (long long)limit::NORM_ROWS);
    const int allowed = n->kind == PYSIM_NORM_ROWS ? 1 : PYSIM_CUDA_PARTS;
    if (n->parts < 1 || n->parts > allowed) return fail(PYSIM_BAD_ARGUMENT, "the norm has %d parts; expected 1..%d", n->parts, allowed);
    int64_t all = 0;
    for (int i = 0; i < n->parts; i++) {
        if (n->channels[i] < 1 || n->channels[i] > limit::NORM_CHANNELS)
            return fail(PYSIM_BAD_ARGUMENT, "part %d has %lld channels; expected 1..%lld", i, (long long)n->channels[i],
                        (long long)limit::NORM_CHANNELS);
        all += n->channels[i];
    }
    const int64_t limit = n->kind == PYSIM_NORM_ROWS ? limit::NORM_ROW : limit::NORM_CHANNELS;
    if (all > limit) return fail(PYSIM_UNSUPPORTED, "the norm has %lld channels; expected at most %lld", (long long)all, (long long)limit);
    if (n->image_rows && (n->kind == PYSIM_NORM_ROWS || !n->scale || n->image_rows < 0 || n->rows % n->image_rows))
        return fail(PYSIM_BAD_ARGUMENT,
                    "the norm has images of %lld rows; expected 0, or, in a norm by channels with a scale, a divisor of its %lld rows",
                    (long long)n->image_rows, (long long)n->rows);
    if (n->kind == PYSIM_NORM_ROWS && (n->center || !(n->epsilon >= 0) || std::isinf(n->epsilon)))
        return fail(PYSIM_BAD_ARGUMENT, "a norm by rows has epsilon %g; expected a finite number of at least 0, and center NULL",
                    n->epsilon);
    return PYSIM_OK;
}

bool begins_a_vector(const void *data, int64_t bytes) { return (uintptr_t)data % (uint64_t)bytes == 0; }

/* The kernel's arguments, and whether it can use vector accesses. */
pysim_status arguments_of(const pysim_cuda_norm &n, const void *const *parts, void *result, Norm *to, bool *whole) {
    if (!parts) return fail(PYSIM_BAD_ARGUMENT, "the norm's parts are NULL");
    const int of = dtypes[n.dtype].bytes, out = dtypes[n.out_dtype].bytes, vector = norm_vector(n.dtype, n.out_dtype);
    to->parts = n.parts, to->relu = n.relu, to->rows = n.rows, to->image_rows = (int)n.image_rows, to->result = result,
    to->epsilon = (float)n.epsilon;
    to->center = (const float *)n.center, to->scale = (const float *)n.scale, to->shift = (const float *)n.shift;
    *whole = begins_a_vector(result, vector * out) && begins_a_vector(n.center, 16) && begins_a_vector(n.scale, 16) &&
             begins_a_vector(n.shift, 16);
    for (int i = 0; i < n.parts; i++) {
        to->at[i] = parts[i], to->starts[i + 1] = to->starts[i] + (int)n.channels[i];
        *whole = *whole && n.channels[i] % vector == 0 && begins_a_vector(parts[i], vector * of);
    }
    const int64_t channels = to->channels = to->starts[n.parts];
    const auto parameter = [&](const char *name, const void *data, int64_t images = 1) {
        return Memory{name, data, images * channels * 4, 4};
    };
    for (int i = 0; i < n.parts; i++) {
        const Memory part = {"a part", parts[i], n.rows * n.channels[i] * of, of};
        const pysim_status status = check_memory({{"the norm's result", result, n.rows * channels * out, out},
                                                  part,
                                                  part,
                                                  parameter("center", n.center),
                                                  parameter("scale", n.scale, n.image_rows ? n.rows / n.image_rows : 1),
                                                  parameter("shift", n.shift),
                                                  {"workspace", nullptr, 0, 1}});
        if (status != PYSIM_OK) return status;
    }
    return PYSIM_OK;
}
}
}

pysim_status pysim_cuda_normalize(const pysim_cuda_norm *n, const void *const *parts, void *result, void *stream) {
    using namespace pysim;
    Norm norm = {};
    bool whole = false;
    int sms = 0;
    pysim_status status = check_norm(n);
    if (status == PYSIM_OK) status = arguments_of(*n, parts, result, &norm, &whole);
    if (status == PYSIM_OK) status = sms_of("normalize", 75, false, 0, 0, &sms);
    return status == PYSIM_OK ? check(normalize(norm, n->kind, n->dtype, n->out_dtype, whole, sms, (cudaStream_t)stream), "a norm")
                              : status;
}
