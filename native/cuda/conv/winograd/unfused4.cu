/* SPDX-License-Identifier: Apache-2.0
 * The staged Winograd rows: their workspace, and the launches of one convolution. */
#include "winograd_staged.cuh"

#include "arguments.h"

namespace pysim {
namespace winograd {
namespace {

/* The chunks of a convolution: all but the last have so many tiles. */
Chunk chunk_of(const Conv &c, int block) {
    Chunk s = {};
    s.tiles = (int)round_up(ceil_div(c.windows, c.product.splits), block);
    if (s.tiles > c.windows) s.tiles = c.windows;
    s.pitch = (int)round_up(s.tiles, 4), s.u_pitch = (int)round_up(c.filters, 4), s.blocks = ceil_div(s.tiles, block);
    return s;
}

/* Bytes of U, V and M. */
struct Sizes { int64_t u, v, m; };
Sizes sizes_of(const Conv &c, const Chunk &s) {
    const int64_t plane = (int64_t)LARGE * c.groups * sizeof(float);
    return {round_up(plane * c.channels * s.u_pitch, ALIGN), round_up(plane * c.channels * s.pitch, ALIGN), plane * c.filters * s.pitch};
}

template <class S, bool NHWC> cudaError_t products_of(void (**out)(Problem, Conv, Chunk)) {
    *out = stage_products<S, NHWC>;
    return S::SHARED_BYTES > 47 * 1024 ? cudaFuncSetAttribute(*out, cudaFuncAttributeMaxDynamicSharedMemorySize, S::SHARED_BYTES) : cudaSuccess;
}

unsigned blocks_for(int64_t threads) { return (unsigned)((threads + THREADS - 1) / THREADS); }

template <class S, bool NHWC> cudaError_t run_chunks(const Conv &c, int block, cudaStream_t stream) {
    Chunk s = chunk_of(c, block);
    const Sizes sizes = sizes_of(c, s);
    s.u = (float *)c.own, s.v = s.u + sizes.u / 4, s.m = s.v + sizes.v / 4;
    void (*products)(Problem, Conv, Chunk);
    cudaError_t error = products_of<S, NHWC>(&products);
    if (error == cudaSuccess)
        error = launch(stage_filters<NHWC>, dim3(blocks_for((int64_t)c.groups * c.channels * c.filters)), dim3(THREADS), 0, stream, c, s);
    for (const int tiles = s.tiles; error == cudaSuccess && s.first < c.windows; s.first += tiles) {
        if (s.tiles > c.windows - s.first) s.tiles = c.windows - s.first; /* pitches stay: a chunk's buffers have one layout */
        s.blocks = ceil_div(s.tiles, block);
        Problem p = c.product;
        p.splits = 1;
        const int all = LARGE * c.groups * s.blocks * block;
        p.m = NHWC ? all : c.filters, p.n = NHWC ? c.filters : all, p.k = c.channels;
        error = launch(stage_input<NHWC>, dim3(blocks_for((int64_t)s.tiles * c.groups * c.channels)), dim3(THREADS), 0, stream, c, s);
        if (error == cudaSuccess)
            error = launch(products, dim3((unsigned)Grid(p, S::BM, S::BN, S::BK).tiles()), dim3(S::THREADS), S::SHARED_BYTES, stream, p, c, s);
        if (error == cudaSuccess)
            error = launch(stage_output<NHWC>, dim3(blocks_for((int64_t)s.tiles * c.groups * c.filters)), dim3(THREADS), 0, stream, c, s);
    }
    return error;
}

template <class S, bool NHWC> cudaError_t products_attributes(pysim_cuda_attributes *out) {
    void (*run)(Problem, Conv, Chunk);
    cudaFuncAttributes of;
    cudaError_t error = products_of<S, NHWC>(&run);
    if (error == cudaSuccess) error = cudaFuncGetAttributes(&of, run);
    if (error == cudaSuccess) error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&out->blocks_per_sm, run, S::THREADS, S::SHARED_BYTES);
    if (error != cudaSuccess) return error;
    out->threads = S::THREADS, out->registers = of.numRegs;
    out->shared_bytes = (int64_t)of.sharedSizeBytes + S::SHARED_BYTES, out->local_bytes = (int64_t)of.localSizeBytes;
    return cudaSuccess;
}
}

#define PYSIM_STAGED template <int BF, int BW, int BK, int WF, int WW, int TF, int TW, int STAGES>
#define PYSIM_OF_STAGED Staged<BF, BW, BK, WF, WW, TF, TW, STAGES>
#define PYSIM_OF_NCHW simt::Shape<simt::F32, simt::full, BF, BW, BK, WF, WW, TF, TW, STAGES>
#define PYSIM_OF_NHWC simt::Shape<simt::F32, simt::full, BW, BF, BK, WW, WF, TW, TF, STAGES>

PYSIM_STAGED const char *PYSIM_OF_STAGED::refuses(const Conv &c) {
    if (!is_3x3(c)) return PYSIM_NOT_3X3;
    if (c.product.kind != PYSIM_DATA_PARALLEL) return "it is data parallel only: decomposition is 0";
    if (c.product.splits > 1 && c.product.splits > ceil_div(c.windows, BW)) return "splits is more than there are chunks of whole tiles";
    const Chunk s = chunk_of(c, BW);
    const int64_t tiles = (int64_t)LARGE * c.groups * s.blocks;
    return tiles * BW > most::TILES || tiles * ceil_div(c.filters, BF) > most::TILES ? "it takes fewer groups" : nullptr;
}

PYSIM_STAGED pysim_status PYSIM_OF_STAGED::own_bytes(const Conv &c, int64_t *bytes) {
    const Sizes sizes = sizes_of(c, chunk_of(c, BW));
    *bytes = sizes.u + sizes.v + sizes.m;
    return PYSIM_OK;
}

PYSIM_STAGED pysim_status PYSIM_OF_STAGED::launch_row(const Conv &c, int, cudaStream_t stream) {
    return check(c.nhwc ? run_chunks<PYSIM_OF_NHWC, true>(c, BW, stream) : run_chunks<PYSIM_OF_NCHW, false>(c, BW, stream), "staged Winograd");
}

PYSIM_STAGED cudaError_t PYSIM_OF_STAGED::attributes(const Conv &c, pysim_cuda_attributes *out) {
    return c.nhwc ? products_attributes<PYSIM_OF_NHWC, true>(out) : products_attributes<PYSIM_OF_NCHW, false>(out);
}

#define PYSIM_STAGED_reference(...)
#define PYSIM_STAGED_sts64(...)
#define PYSIM_STAGED_compact(...)
#define PYSIM_STAGED_fused(...)
#define PYSIM_STAGED_single(...)
#define PYSIM_STAGED_staged(bf, bw, bk, wf, ww, tf, tw, stages, ...) template struct Staged<bf, bw, bk, wf, ww, tf, tw, stages>;
#define PYSIM_CONV_ROW_direct(...)
#define PYSIM_CONV_ROW_depthwise(...)
#define PYSIM_CONV_ROW_im2col(...)
#define PYSIM_CONV_ROW_implicit(...)
#define PYSIM_CONV_ROW_im2win(...)
#define PYSIM_CONV_ROW_wgmma(...)
#define PYSIM_CONV_ROW_winograd(dtype, form, ...) PYSIM_STAGED_##form(__VA_ARGS__)
#define PYSIM_CUDA_CONV(family, ...) PYSIM_CONV_ROW_##family(__VA_ARGS__)
#include "convs.inc"
}
}
