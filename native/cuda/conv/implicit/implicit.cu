/* SPDX-License-Identifier: Apache-2.0
 * Implicit GEMM: out[filter][window] = sum over k of filters[filter][k] in(k, window). Windows are gathered tile by tile (conv/gather.cuh) and never stored.
 *
 *   variant full     each thread divides k into channel, row and column of the kernel: no workspace
 *           offsets  each block has a table of these in shared memory; filters are copied to a pitch of whole vectors if k is none
 * A pointwise convolution of stride 1 without padding copies its windows as a matrix, in either variant. */
#include "abi/arguments.h"
#include "conv/gather.cuh"
#include "conv/rows.h"

#include "conv/implicit/rows.inc"

namespace pysim {
namespace gather {
namespace {

struct Prepare {
    Arguments a;
    void *filters;
};

/* Where tap k stands among a filter's elements. */
__device__ inline int place_of(const Conv &c, Order order, int k) {
    const int taps = c.taps(), channel = c.nhwc ? k % c.channels : k / taps, tap = c.nhwc ? k / c.channels : k % taps;
    const int r = order == AS_FILTERS ? tap / c.kernel_w : tap % c.kernel_h, s = order == AS_FILTERS ? tap % c.kernel_w : tap / c.kernel_h;
    return c.nhwc ? (r * c.kernel_w + s) * c.channels + channel : channel * taps + r * c.kernel_w + s;
}

template <class In> __global__ __launch_bounds__(256) void prepare_kernel(const __grid_constant__ Prepare p) {
    const Conv &c = p.a.c;
    const int64_t threads = (int64_t)gridDim.x * blockDim.x, thread = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    for (int64_t i = thread; i < (int64_t)c.groups * c.filters * p.a.pitch; i += threads) {
        const int64_t filter = i / p.a.pitch;
        const int k = (int)(i - filter * p.a.pitch);
        ((In *)p.filters)[i] = k < c.k ? ((const In *)c.weights)[filter * c.k + place_of(c, p.a.order, k)] : In(0);
    }
}
}

pysim_status prepare(const Arguments &a, const Prepared &own, cudaStream_t stream) {
    if (!own.filters) return PYSIM_OK;
    const int64_t blocks = ((int64_t)a.c.groups * a.c.filters * a.pitch + 255) / 256;
    const Prepare p = {a, const_cast<void *>(a.weights)};
    return check(launch(a.c.dtype == PYSIM_F64 ? prepare_kernel<double> : prepare_kernel<float>,
                        dim3((unsigned)(blocks < 2048 ? blocks : 2048)), dim3(256), 0, stream, p),
                 "filters of a convolution");
}

namespace {

/* The windows are a matrix that Copy takes. */
bool matrix(const Conv &c) { return c.pointwise() && (c.nhwc || c.out_h * c.out_w % vector_of(c) == 0); }

/* A row: tiles of both layouts. */
template <int LINE> struct Row {
    static constexpr rows::ConvColumns L = rows::lines[LINE];
    static constexpr bool LISTED = L.variant == "offsets";
    template <bool NHWC> using Knows = std::conditional_t<LISTED, Listed<NHWC>, Divided>;
    template <bool NHWC>
    using Of = ShapeOf<NHWC, typename simt::TypeOf<L.dtype>::T, simt::full, L.block.m, L.block.n, L.block.k, L.warp.m, L.warp.n, L.thread.m,
                       L.thread.n, L.stages>;
    using Wide = Of<false>;
    using Deep = Of<true>;

    static Tiled tiled(const Conv &c) {
        if constexpr (L.prologue)
            if (c.prologue.any())
                return matrix(c) ? Tiled::of<Wide, false, WithPrologue<Columns>>()
                                 : Tiled::of<Wide, false, WithPrologue<Across<Knows<false>>>>();
        if (c.nhwc) return matrix(c) ? Tiled::of<Deep, true, Rows>() : Tiled::of<Deep, true, Along<Knows<true>>>();
        return matrix(c) ? Tiled::of<Wide, false, Columns>() : Tiled::of<Wide, false, Across<Knows<false>>>();
    }
    static Prepared own(const Conv &c) { return prepared(c, LISTED && c.k % vector_of(c) != 0); }

    static const char *refuses(const Conv &c) {
        if (c.prologue.any() && (c.nhwc || !c.pointwise())) return "it takes a prologue only of a pointwise convolution under NCHW";
        return LISTED && !matrix(c) ? refuses_listed(c) : nullptr;
    }
    static pysim_status own_bytes(const Conv &c, int64_t *bytes) {
        *bytes = own(c).filters;
        return PYSIM_OK;
    }
    static pysim_status launch_row(const Conv &c, int, cudaStream_t stream) {
        const Prepared p = own(c);
        const Arguments a = of_input(c, p);
        const pysim_status status = prepare(a, p, stream);
        if (status != PYSIM_OK) return status;
        return check(tiled(c).start(a, stream), "an implicit product");
    }
    static cudaError_t attributes(const Conv &c, pysim_cuda_attributes *out) { return tiled(c).attributes(out); }
};
}
}

Rows<ConvRow> conv_implicit::all() {
    return table_of<ConvRow>(rows::lines,
                             [](auto line, auto add) { add(row_of(rows::lines[line], rows::functions_of<gather::Row<line>>())); });
}
}
