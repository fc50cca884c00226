/* SPDX-License-Identifier: Apache-2.0
 * Layouts of the operands of mma.sync convolutions: channels padded to 16 bytes (windows.h). Under NHWC with such channels operands are used in place, as are
 * filters of one tap; pointwise convolutions under NCHW read planes in place. conv/wgmma/channels_last.cu copies everything else into `own`: the input
 * (for a pointwise convolution only the pixels that windows use), then the filters. */
#include "abi/arguments.h"
#include "conv/mma/windows.h"
#include "conv/wgmma/wgmma.h"
#include "core/limits.h"

namespace pysim::mma_sync {
namespace {

int64_t vector_of(const Conv &c) { return 16 / dtypes[c.dtype].bytes; }
int64_t padded(const Conv &c) { return round_up(c.channels, vector_of(c)); }
bool copies_input(const Conv &c) { return !planes(c) && (!c.nhwc || padded(c) != c.channels); }
bool sparse(const Conv &c) { return copies_input(c) && c.one_pixel() && !c.pointwise() && !c.volumes; }
bool copies_filters(const Conv &c) { return padded(c) != c.channels || (!c.nhwc && c.taps() > 1); }

/* Elements of the operands, channels padded. */
int64_t input_of(const Conv &c) {
    const int64_t pixels = sparse(c) ? (int64_t)c.out_h * c.out_w : (int64_t)c.rows() * c.width;
    return c.batch * pixels * c.groups * padded(c);
}
int64_t filters_of(const Conv &c) { return (int64_t)c.groups * c.filters * steps_of_k(c); }

struct Own {
    int64_t input, filters;
};
Own own_of(const Conv &c) {
    const int64_t element = dtypes[c.dtype].bytes;
    return {copies_input(c) ? round_up(input_of(c) * element, ALIGN) : 0, copies_filters(c) ? round_up(filters_of(c) * element, ALIGN) : 0};
}
}

bool planes(const Conv &c) { return !c.nhwc && c.pointwise() && (int64_t)c.height * c.width % vector_of(c) == 0; }
int64_t steps_of_k(const Conv &c) { return padded(c) * c.taps(); }

const char *refuses(const Conv &c) {
    static_assert(limit::CONV_TENSOR == 1 << 30, "what the sentence says");
    const int64_t most = limit::CONV_TENSOR;
    if (c.prologue.any() && !copies_input(c)) return "it takes a prologue only of an input that it copies";
    const bool fits = (!copies_input(c) || input_of(c) <= most) && (!copies_filters(c) || filters_of(c) <= most);
    return fits ? nullptr : "it copies operands of up to 2^30 elements, channels in whole 16 bytes";
}

pysim_status own_bytes(const Conv &c, int64_t *bytes) {
    const Own own = own_of(c);
    *bytes = own.input + own.filters;
    return PYSIM_OK;
}

pysim_status prepare(const Conv &c, Windows &to, cudaStream_t stream) {
    const Own own = own_of(c);
    const int channels = (int)padded(c), taps = c.taps();
    to.c = c, to.channels = channels;
    if (own.input) to.c.in = c.own;
    if (own.filters) to.c.weights = (char *)c.own + own.input;
    const pysim_status status = aligned("mma.sync", to.c.in, to.c.weights);
    if (status != PYSIM_OK) return status;
    if (sparse(c)) to.c.height = c.out_h, to.c.width = c.out_w, to.c.stride_h = to.c.stride_w = 1;
    to.pitch = own.input ? channels : c.groups * channels, to.row = to.c.width * to.pitch, to.slice = to.c.height * to.row, to.image = to.c.depth * to.slice;
    to.group = own.input ? c.batch * to.image : channels;
    to.per_tap = Divisor((unsigned)channels), to.per_row = Divisor((unsigned)c.kernel_w);
    if (!own.input && !own.filters) return PYSIM_OK;
    ChannelsLast input = {}, filters = {};
    input.from = c.in, input.images = c.batch, input.groups = c.groups, input.rows = to.c.rows(), input.width = input.wide = to.c.width;
    if (sparse(c)) input.every = {c.stride_h, c.stride_w, c.width, c.height * c.width};
    filters.from = c.weights, filters.images = c.groups * c.filters, filters.groups = 1, filters.rows = 1,
    filters.width = filters.wide = taps;
    input.channels = filters.channels = c.channels, input.padded = filters.padded = channels, input.last = filters.last = c.nhwc != 0;
    if (own.input) input.to = c.own, input.prologue = c.prologue;
    if (own.filters) filters.to = const_cast<void *>(to.c.weights);
    return check(channels_last(input, filters, dtypes[c.dtype].bytes, stream), "channels of input and filters");
}
}
