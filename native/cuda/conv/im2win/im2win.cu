/* SPDX-License-Identifier: Apache-2.0
 * The im2win rows: tensor and filters are made in the workspace on every run (conv_im2win.cuh), then
 *
 *   form full         algorithm 3 of arXiv 2306.14316 on the tiles of simt.cuh: lanes along a window's slice, 16 bytes where slices are aligned
 *        no_prefetch, no_vector, no_micro   the same without the second stage, vector accesses, tiles of a thread: its ablation
 *        basic        algorithm 2: a thread an output
 *        fused        no tensor and no workspace: the tiles gather windows from the input, taps in the order of the filters as they lie
 */
#include "conv_im2win.cuh"

namespace pysim {
namespace im2win {
namespace {

using gather::Prepared, gather::Tiled;

enum Form { full, no_prefetch, no_vector, no_micro, fused };

template <Form FORM, int BF, int BW, int BK, int WF, int WW, int TF, int TW, int STAGES> struct Row {
    static constexpr simt::Form SIMT = FORM == no_vector ? simt::scalar : simt::full;
    static constexpr bool FUSED = FORM == fused;
    using Wide = gather::ShapeOf<false, simt::F32, SIMT, BF, BW, BK, WF, WW, TF, TW, STAGES>;
    using Deep = gather::ShapeOf<true, simt::F32, SIMT, BF, BW, BK, WF, WW, TF, TW, STAGES>;
    template <bool NHWC> using Along = gather::Along<gather::Listed<NHWC>>;
    using Windows = std::conditional_t<FUSED, gather::Across<gather::Listed<false>>, Along<false>>;

    static Tiled tiled(const Conv &c) { return c.nhwc ? Tiled::of<Deep, true, Along<true>>() : Tiled::of<Wide, false, Windows>(); }

    static const char *refuses(const Conv &c) {
        if (FUSED) return gather::refuses_listed(c);
        return (int64_t)c.kernel_h * c.kernel_w > gather::MOST_TAPS ? "it takes kernels of up to 240 taps" : im2win::refuses(c);
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
        return check(launch(basic_kernel, dim3((unsigned)((outputs + 255) / 256)), dim3(256), 0, stream, basic_of(a)), "im2win, a thread an output");
    }
    static cudaError_t attributes(const Conv &, pysim_cuda_attributes *out) {
        cudaFuncAttributes of;
        cudaError_t error = cudaFuncGetAttributes(&of, basic_kernel);
        if (error == cudaSuccess) error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&out->blocks_per_sm, basic_kernel, 256, 0);
        if (error != cudaSuccess) return error;
        out->threads = 256, out->registers = of.numRegs;
        out->shared_bytes = (int64_t)of.sharedSizeBytes, out->local_bytes = (int64_t)of.localSizeBytes;
        return cudaSuccess;
    }
};

#define PYSIM_FORM_no_prefetch "_no_prefetch"
#define PYSIM_FORM_no_vector "_no_vector"
#define PYSIM_FORM_no_micro "_no_micro"
#define PYSIM_FORM_basic "_basic"
#define PYSIM_FORM_fused "_fused"
#define PYSIM_IM2WIN_TILED(dtype, form, bf, bw, bk, wf, ww, tf, tw, stages, ...)                                                      \
    {PYSIM_CONV_TILED(im2win, dtype, form, bf, bw, bk, wf, ww, tf, tw, stages, __VA_ARGS__),                                          \
     Row<form, bf, bw, bk, wf, ww, tf, tw, stages>::refuses, Row<form, bf, bw, bk, wf, ww, tf, tw, stages>::own_bytes,                \
     Row<form, bf, bw, bk, wf, ww, tf, tw, stages>::launch_row, Row<form, bf, bw, bk, wf, ww, tf, tw, stages>::attributes},
#define PYSIM_IM2WIN_full(...) PYSIM_IM2WIN_TILED(__VA_ARGS__)
#define PYSIM_IM2WIN_no_prefetch(...) PYSIM_IM2WIN_TILED(__VA_ARGS__)
#define PYSIM_IM2WIN_no_vector(...) PYSIM_IM2WIN_TILED(__VA_ARGS__)
#define PYSIM_IM2WIN_no_micro(...) PYSIM_IM2WIN_TILED(__VA_ARGS__)
#define PYSIM_IM2WIN_fused(...) PYSIM_IM2WIN_TILED(__VA_ARGS__)
#define PYSIM_IM2WIN_basic(...) {PYSIM_CONV_WHOLE(im2win, __VA_ARGS__), refuses, BasicRow::own_bytes, BasicRow::launch_row, BasicRow::attributes},
#define PYSIM_CONV_ROW_im2win(dtype, form, ...) PYSIM_IM2WIN_##form(dtype, form, __VA_ARGS__)
#define PYSIM_CONV_ROW_direct(...)
#define PYSIM_CONV_ROW_depthwise(...)
#define PYSIM_CONV_ROW_im2col(...)
#define PYSIM_CONV_ROW_implicit(...)
#define PYSIM_CONV_ROW_winograd(...)
#define PYSIM_CONV_ROW_wgmma(...)
#define PYSIM_CUDA_CONV(family, ...) PYSIM_CONV_ROW_##family(__VA_ARGS__)
const ConvRow rows[] = {
#include "convs.inc"
};
}
}

ConvRows im2win_rows() { return {im2win::rows, (int)(sizeof im2win::rows / sizeof *im2win::rows)}; }
}
