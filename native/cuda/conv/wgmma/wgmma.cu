/* SPDX-License-Identifier: Apache-2.0
 * The rows of conv/wgmma/rows.inc, a type at a time. Windows are rows of the product, filters its columns. */
#include <climits>

#include "conv/rows.h"
#include "conv/wgmma/wgmma.h"
#include "core/decomposition.cuh"
#ifdef PYSIM_HOPPER
#include "conv/wgmma/kernel.cuh"
#endif

#include "conv/wgmma/rows.inc"

namespace pysim {
namespace {

/* Clusters of S::BLOCKS blocks of S::BLOCK_M windows x S::BLOCK_N filters. Rows whose taps share pixels number a window for each pixel of a padded row. */
template <class S, bool FOLDS> struct Wgmma {
    static void tile(Conv &c) {
        c.halves = S::Element::SPLIT, c.folds = FOLDS, c.step_bytes = S::ROW, c.row_taps = S::TAPS > 1 ? S::TAPS : 0;
        c.tile_m = S::BLOCK_M * S::CLUSTER_M, c.tile_n = S::BLOCK_N * S::CLUSTER_N, c.cluster = S::BLOCKS;
        if (hopper::planes(c))
            c.windows = c.batch * hopper::windows_of_plane(c), c.per_image = Divisor((unsigned)hopper::windows_of_plane(c));
        if (c.row_taps && !hopper::refuses(c)) {
            const int wide = c.out_w + c.row_taps - 1;
            c.windows = c.batch * c.out_h * wide, c.per_image = Divisor((unsigned)(c.out_h * wide)), c.per_row = Divisor((unsigned)wide);
        }
        c.group_tiles = ceil_div(c.windows, c.tile_m);
        c.product.m = c.groups * c.group_tiles * c.tile_m, c.product.n = c.filters;
        const int64_t k = hopper::steps_of(c) * S::BLOCK_K;
        c.product.k = k < INT_MAX ? (int)k : INT_MAX; /* of kernels that it refuses */
    }
#ifdef PYSIM_HOPPER
    static pysim_status launch(const Conv &c, int sms, cudaStream_t stream) {
        hopper::Windows windows;
        const pysim_status status = hopper::prepare(c, windows, stream);
        return status == PYSIM_OK ? check(hopper::launch_windows<S>(windows, sms, stream), "a convolution on wgmma") : status;
    }
    static cudaError_t attributes(const Conv &, pysim_cuda_attributes *out) { return hopper::attributes_of_windows<S>(out); }
#endif
};

}

Rows<ConvRow> conv_wgmma::PYSIM_UNIT() {
    return table_of<ConvRow>(rows::lines, [](auto line, auto add) {
        constexpr rows::ConvColumns c = rows::lines[line];
        if constexpr (c.dtype == rows::PYSIM_UNIT) {
            using S = hopper::Shape<c.dtype, c.block.n, c.block.m, c.warp.n, c.warp.m, c.stages, c.cluster.n, c.cluster.m, c.promotion,
                                    c.pingpong != 0, c.block.k * hopper::Element<c.dtype>::BYTES, c.row_taps ? c.row_taps : 1>;
            static_assert(c.thread.n == 64 && c.thread.m == c.warp.m, "an instruction is as wide as its warpgroup's tile");
            static_assert(c.reduces_in_cluster == S::MAX_CLUSTER_PARTS, "as many parts as fit into a cluster");
            using Of = Wgmma<S, c.folds != 0>;
#ifdef PYSIM_HOPPER
            add(row_of(c, {hopper::refuses, hopper::own_bytes, Of::launch, Of::attributes, Of::tile}));
#else
            add(row_of(c, {hopper::refuses, hopper::own_bytes, nullptr, nullptr, Of::tile}));
#endif
        }
    });
}
}
