/* SPDX-License-Identifier: Apache-2.0
 * Shared by convolutions without tiles, in which each thread computes its own outputs. Lanes run along the contiguous dimension of the output: columns
 * under NCHW, filters under NHWC. */
#ifndef PYSIM_CUDA_CONV_UNTILED_CUH
#define PYSIM_CUDA_CONV_UNTILED_CUH
#include "conv/rows.h"
#include "core/epilogue.cuh"
#include "core/launch.h"
#include "core/limits.h"

namespace pysim {
namespace {

enum { THREADS = limit::UNTILED_THREADS };

/* Places in the output, in the order in which they lie: `high` x `wide` in an image, each of up to `of_group` filters of one group. There are
 * fewer than 2^31, as there are of outputs. A place's rows are `apart` from one another; places that lie between them come first. */
struct Places {
    int count;
    Divisor wide, high, filters, group; /* places of filters: of all, of a group */
    Divisor apart;
    int lanes = 1; /* of a block along filters, where a block has its own (depthwise's paired_kernel) */
    Places(const Conv &c, int rows, int columns, int of_group = 1, int apart_ = 1)
        : wide((unsigned)((c.out_w + columns - 1) / columns)), high((unsigned)((c.out_h + rows * apart_ - 1) / (rows * apart_) * apart_)),
          filters((unsigned)(c.groups * ((c.filters + of_group - 1) / of_group))), group((unsigned)((c.filters + of_group - 1) / of_group)),
          apart((unsigned)apart_) {
        count = c.batch * (int)(wide.divisor * high.divisor * filters.divisor);
    }
};
struct Place {
    int n, f, p, q;
};
__device__ inline Place place_of(const Conv &c, const Places &places, int index) {
    Place at;
    if (c.nhwc) index = places.filters.of(index, at.f);
    index = places.wide.of(index, at.q), index = places.high.of(index, at.p);
    if (!c.nhwc) index = places.filters.of(index, at.f);
    at.n = index;
    return at;
}

/* Elements between neighbours of a tensor of `channels` x height x width, which has fewer than 2^31. */
struct Strides {
    int image, channel, row, column;
    __device__ Strides(bool nhwc, int channels, int height, int width)
        : image(channels * height * width), channel(nhwc ? 1 : height * width), row(nhwc ? channels * width : width),
          column(nhwc ? channels : 1) {}
};

/* A kernel, which begins with wait_for_previous(), and the outputs of a thread, whose rows are `apart` from one another; `lanes`, unless 0: of a block along
 * pairs of channels; `shared`: its bytes of dynamic shared memory. `in_slices`: a thread's rows are in one slice of a volume, which `apart` threads cover. */
struct Chosen {
    void (*kernel)(Conv, Places);
    int rows, columns, filters, apart = 1, lanes = 0, shared = 0;
    bool in_slices = false;
};

template <Chosen (*OF)(const Conv &, int)> pysim_status launch_row(const Conv &c, int sms, cudaStream_t stream) {
    const Chosen by = OF(c, sms);
    Conv of_places = c;
    if (by.in_slices) of_places.out_h = c.out_h / c.slice_rows * by.apart * by.rows;
    if (by.lanes) of_places.groups = (c.groups + 2 * by.lanes - 1) / (2 * by.lanes); /* blocks along channels */
    Places places(of_places, by.rows, by.columns, by.filters, by.apart);
    int64_t blocks = (places.count + THREADS - 1) / THREADS;
    if (by.lanes) {
        const int each = THREADS / by.lanes, chunks = of_places.groups;
        blocks = (int64_t)(places.count / chunks + each - 1) / each * chunks, places.lanes = by.lanes;
    }
    return check(
        launch_with({1, has_dependent_launch()}, by.kernel, dim3((unsigned)blocks), dim3(THREADS), (size_t)by.shared, stream, c, places),
        "a convolution without tiles");
}

template <Chosen (*OF)(const Conv &, int)> cudaError_t attributes(const Conv &c, pysim_cuda_attributes *out) {
    const Chosen by = OF(c, 1);
    return attributes_of(by.kernel, THREADS, by.shared, out);
}
}
}
#endif
