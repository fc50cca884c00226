/* SPDX-License-Identifier: Apache-2.0
 * Norms of groups of channels: check the arguments, launch (norm/group.cu). */
#include <cmath>

#include "abi/arguments.h"
#include "core/launch.h"
#include "norm/group.h"

namespace pysim {
namespace {

pysim_status check_group_norm(const pysim_cuda_group_norm *n) {
    if (!n) return fail(PYSIM_BAD_ARGUMENT, "the norm is NULL");
    if (n->dtype != PYSIM_F32 && n->dtype != PYSIM_F16 && n->dtype != PYSIM_BF16)
        return fail(PYSIM_UNSUPPORTED, "a norm of groups of dtype %d; expected f32, f16 or bf16", n->dtype);
    if (n->parameters != PYSIM_F32 && n->parameters != n->dtype)
        return fail(PYSIM_BAD_ARGUMENT, "the norm's parameters are of dtype %d; expected f32 or that of its images, %d", n->parameters,
                    n->dtype);
    const auto within = [](int64_t value) { return value >= 1 && value <= limit::CONV_SIZE; };
    if (!within(n->images) || !within(n->pixels) || !within(n->channels) || !within(n->groups) || n->channels % n->groups ||
        n->images * n->pixels > limit::CONV_TENSOR / n->channels)
        return fail(
            PYSIM_BAD_ARGUMENT,
            "the norm has %lld images of %lld pixels of %lld channels in %lld groups; expected 1 to %lld of each, groups of as many "
            "channels each, and at most %lld elements",
            (long long)n->images, (long long)n->pixels, (long long)n->channels, (long long)n->groups, (long long)limit::CONV_SIZE,
            (long long)limit::CONV_TENSOR);
    if (!(n->epsilon >= 0) || std::isinf(n->epsilon))
        return fail(PYSIM_BAD_ARGUMENT, "the norm's epsilon is %g; expected a finite number of at least 0", n->epsilon);
    pysim_cuda_epilogue epilogue = {};
    epilogue.alpha = 1, epilogue.activation = n->activation, epilogue.low = n->low, epilogue.high = n->high;
    return check_epilogue(n->dtype, &epilogue);
}

/* The kernel's arguments without x and result. */
pysim_status arguments_of(const pysim_cuda_group_norm *n, GroupNorm *to) {
    int sms = 0;
    pysim_status status = check_group_norm(n);
    if (status == PYSIM_OK) status = sms_of("normalize_groups", 75, false, 0, 0, &sms);
    if (status != PYSIM_OK) return status;
    to->residual = n->residual, to->scale = n->scale, to->shift = n->shift, to->narrow_parameters = n->parameters != PYSIM_F32;
    to->images = n->images, to->pixels = (int)n->pixels, to->channels = (int)n->channels, to->group = (int)(n->channels / n->groups);
    to->activation = n->activation, to->low = (float)n->low, to->high = (float)n->high, to->epsilon = (float)n->epsilon;
#ifdef PYSIM_EMULATED
    const bool clusters = false;
#else
    const bool clusters = has_dependent_launch(); /* code for 9.0 and later has both */
#endif
    if (share_image(*to, n->dtype, sms, clusters)) return PYSIM_OK;
    return fail(PYSIM_UNSUPPORTED,
                "%lld pixels of groups of %d channels do not fit into shared memory, or %d channels are no whole vectors of %d bytes",
                (long long)n->pixels, to->group, to->channels, (int)GROUP_VECTOR);
}
}
}

pysim_status pysim_cuda_normalizes_groups(const pysim_cuda_group_norm *n) {
    pysim::GroupNorm norm = {};
    return pysim::arguments_of(n, &norm);
}

pysim_status pysim_cuda_normalize_groups(const pysim_cuda_group_norm *n, const void *x, void *result, void *stream) {
    using namespace pysim;
    GroupNorm norm = {};
    pysim_status status = arguments_of(n, &norm);
    if (status != PYSIM_OK) return status;
    const int64_t bytes = n->images * n->pixels * n->channels * dtypes[n->dtype].bytes;
    const int parameter = dtypes[n->parameters].bytes;
    norm.x = x, norm.result = result;
    status = check_memory({{"the norm's result", result, bytes, GROUP_VECTOR},
                           {"its images", x, bytes, GROUP_VECTOR},
                           {"its images", x, bytes, GROUP_VECTOR},
                           {"its residual", n->residual, bytes, GROUP_VECTOR},
                           {"scale", n->scale, n->channels * parameter, parameter},
                           {"shift", n->shift, n->channels * parameter, parameter},
                           {"workspace", nullptr, 0, 1}});
    return status == PYSIM_OK ? check(normalize_groups(norm, n->dtype, (cudaStream_t)stream), "a norm of groups") : status;
}
