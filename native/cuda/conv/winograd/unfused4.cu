/* SPDX-License-Identifier: Apache-2.0
 * The rows of unfused F(4x4, 3x3): their workspace, and the launches of one convolution. */
#include "conv/winograd/unfused4.cuh"

#include "conv/rows.h"

#include "conv/winograd/rows.inc"

namespace pysim {
namespace winograd {
namespace {

/* The first chunk of a convolution. Only the last chunk may have fewer tiles. */
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
    const cudaError_t error = products_of<S, NHWC>(&run);
    return error == cudaSuccess ? attributes_of(run, S::THREADS, S::SHARED_BYTES, out) : error;
}

template <int LINE> struct Row {
    static constexpr rows::ConvColumns L = rows::lines[LINE];
    static constexpr int BF = L.block.m, BW = L.block.n;
    using Nchw = simt::Shape<simt::F32, simt::full, BF, BW, L.block.k, L.warp.m, L.warp.n, L.thread.m, L.thread.n, L.stages>;
    using Nhwc = simt::Shape<simt::F32, simt::full, BW, BF, L.block.k, L.warp.n, L.warp.m, L.thread.n, L.thread.m, L.stages>;

    static const char *refuses(const Conv &c) {
        if (!is_3x3(c)) return PYSIM_NOT_3X3;
        if (c.product.kind != PYSIM_DATA_PARALLEL) return "it is data parallel only: decomposition is 0";
        if (c.product.splits > 1 && c.product.splits > ceil_div(c.windows, BW)) return "splits is more than there are chunks of whole tiles";
        const Chunk s = chunk_of(c, BW);
        const int64_t tiles = (int64_t)LARGE * c.groups * s.blocks;
        return tiles * BW > limit::TILES || tiles * ceil_div(c.filters, BF) > limit::TILES ? "it takes fewer groups" : nullptr;
    }
    static pysim_status own_bytes(const Conv &c, int64_t *bytes) {
        const Sizes sizes = sizes_of(c, chunk_of(c, BW));
        *bytes = sizes.u + sizes.v + sizes.m;
        return PYSIM_OK;
    }
    static pysim_status launch_row(const Conv &c, int, cudaStream_t stream) {
        return check(c.nhwc ? run_chunks<Nhwc, true>(c, BW, stream) : run_chunks<Nchw, false>(c, BW, stream), "unfused Winograd");
    }
    static cudaError_t attributes(const Conv &c, pysim_cuda_attributes *out) {
        return c.nhwc ? products_attributes<Nhwc, true>(out) : products_attributes<Nchw, false>(out);
    }
};
}
}

Rows<ConvRow> conv_winograd::unfused4() {
    return table_of<ConvRow>(rows::lines, [](auto line, auto add) {
        constexpr rows::ConvColumns c = rows::lines[line];
        if constexpr (c.staged) add(row_of(c, rows::functions_of<winograd::Row<line>>()));
    });
}
}
