/* SPDX-License-Identifier: Apache-2.0
 * The im2win rows. Each run makes the tensor and the filters in the workspace (im2win.cuh), then
 *
 *   variant full      algorithm 3 of arXiv 2306.14316 on mainloop/simt/kernel.cuh: lanes along a window's slice, 16 bytes at once if slices are aligned
 *        no_prefetch, no_vector, no_micro   the same without the second stage, vector accesses, register tiles: its ablation
 *        basic        algorithm 2: one thread per output
 *        fused        no tensor and no workspace: windows are gathered from the input, taps in the order of the filters */
#include "conv/im2win/im2win.cuh"

#include "conv/rows.h"

#include "conv/im2win/rows.inc"

namespace pysim {
namespace im2win {
namespace {

using gather::Prepared, gather::Tiled;

template <int LINE> struct Row {
    static constexpr rows::ConvColumns L = rows::lines[LINE];
    static constexpr bool FUSED = !L.keeps_tensor;
    template <bool NHWC>
    using Of = gather::ShapeOf<NHWC, simt::F32, L.variant == "no_vector" ? simt::scalar : simt::full, L.block.m, L.block.n, L.block.k,
                               L.warp.m, L.warp.n, L.thread.m, L.thread.n, L.stages>;
    using Wide = Of<false>;
    using Deep = Of<true>;
    template <bool NHWC> using Along = gather::Along<gather::Listed<NHWC>>;
    using Windows = std::conditional_t<FUSED, gather::Across<gather::Listed<false>>, Along<false>>;

    static Tiled tiled(const Conv &c) { return c.nhwc ? Tiled::of<Deep, true, Along<true>>() : Tiled::of<Wide, false, Windows>(); }

    static const char *refuses(const Conv &c) {
        if (FUSED) return gather::refuses_listed(c);
        return (int64_t)c.kernel_h * c.kernel_w > limit::TENSOR_TAPS ? "it takes kernels of up to 240 taps" : im2win::refuses(c);
    }
    static pysim_status own_bytes(const Conv &c, int64_t *bytes) {
        *bytes = FUSED ? 0 : gather::prepared(c, true).filters + tensor_of(c).elements * (int64_t)sizeof(float);
        return PYSIM_OK;
    }
    static pysim_status launch_row(const Conv &c, int, cudaStream_t stream) {
        const Prepared own = gather::prepared(c, !FUSED);
        const Arguments a = FUSED ? gather::of_input(c, own) : of_tensor(c, own);
        pysim_status status = gather::prepare(a, own, stream);
        if (status == PYSIM_OK && !FUSED) status = transform(a, stream);
        return status == PYSIM_OK ? check(tiled(c).start(a, stream), "im2win") : status;
    }
    static cudaError_t attributes(const Conv &c, pysim_cuda_attributes *out) { return tiled(c).attributes(out); }
};

struct BasicRow {
    static constexpr auto refuses = im2win::refuses;
    static pysim_status own_bytes(const Conv &c, int64_t *bytes) {
        *bytes = gather::prepared(c, true).filters + tensor_of(c).elements * (int64_t)sizeof(float);
        return PYSIM_OK;
    }
    static pysim_status launch_row(const Conv &c, int, cudaStream_t stream) {
        const Prepared own = gather::prepared(c, true);
        const Arguments a = of_tensor(c, own);
        pysim_status status = gather::prepare(a, own, stream);
        if (status == PYSIM_OK) status = transform(a, stream);
        if (status != PYSIM_OK) return status;
        const int64_t outputs = (int64_t)c.groups * c.filters * c.windows;
        return check(launch(basic_kernel, dim3((unsigned)((outputs + 255) / 256)), dim3(256), 0, stream, basic_of(a)),
                     "im2win, a thread an output");
    }
    static cudaError_t attributes(const Conv &, pysim_cuda_attributes *out) { return attributes_of(basic_kernel, 256, 0, out); }
};

}
}

Rows<ConvRow> conv_im2win::all() {
    return table_of<ConvRow>(rows::lines, [](auto line, auto add) {
        constexpr rows::ConvColumns c = rows::lines[line];
        using Of = std::conditional_t<c.variant == "basic", im2win::BasicRow, im2win::Row<line>>;
        add(row_of(c, rows::functions_of<Of, ABLATIONS || !c.ablation>()));
    });
}
}
