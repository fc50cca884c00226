/* SPDX-License-Identifier: Apache-2.0
 * Products of many rows, few columns and short k, C = A B', by the stream of pointwise convolutions (conv/pointwise/kernel.cuh): rows of A are windows, rows of
 * B filters, and k is the channels. Memory or the instructions of stores are the bound. A block takes all of k, whatever the schedule's decomposition.
 *
 * Worked number: 100352 x 24 x 96 of f16 keeps 6 KiB of B in each of 132 blocks, whose warps pass 3,136 tiles of 32 rows. */
#include "conv/pointwise/stream.h"
#include "gemm/rows.h"

#include "gemm/tall/rows.inc"

namespace pysim {
namespace {

/* The product as a convolution. */
template <int DTYPE> Conv conv_of(const Problem &p) {
    Conv c = {};
    c.in = p.a, c.weights = p.b, c.out = p.c, c.batch = c.groups = c.nhwc = 1, c.dtype = DTYPE;
    c.channels = c.k = p.k, c.filters = p.n, c.windows = p.m, c.product = p;
    return c;
}

template <int DTYPE> struct Tall {
    static const char *refuses(const Problem &p) {
        static_assert(limit::CONV_TENSOR == 1 << 30, "what the sentence says");
        if (p.m * p.ldc > limit::CONV_TENSOR) return "it takes results of up to 2^30 elements, counted with the gaps between rows";
        return pointwise::refuses_sizes(conv_of<DTYPE>(p));
    }
    static cudaError_t launch(const Problem &p, int sms, cudaStream_t stream) {
        const Conv c = conv_of<DTYPE>(p);
        pointwise::Tiling t;
        return pointwise::tiling_here(c, sms, &t) == PYSIM_OK ? pointwise::start(c, t, stream) : cudaErrorInvalidConfiguration;
    }
    static cudaError_t attributes(const Problem &p, pysim_cuda_attributes *out) { return pointwise::attributes(conv_of<DTYPE>(p), out); }
};
}

Rows<GemmRow> gemm_tall::all() {
    return table_of<GemmRow>(rows::lines, [](auto line, auto add) {
        constexpr rows::GemmColumns c = rows::lines[line];
        using K = Tall<c.dtype>;
        GemmRow row = row_of(c, K::launch, K::attributes);
        row.refuses = K::refuses;
        add(row);
    });
}
}
