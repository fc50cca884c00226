/* SPDX-License-Identifier: Apache-2.0
 * The rows of conv/grouped/rows.inc. */
#include "conv/grouped/kernel.cuh"
#include "conv/rows.h"
#include "core/element.h"

#include "conv/grouped/rows.inc"

namespace pysim {
namespace {

template <bool SINGLE> const char *refuses(const Conv &c) {
    static_assert(limit::GROUPED_TILE_CHANNELS == 64 && limit::GROUPED_SINGLE_CHANNELS == 8, "what the sentences say");
    if (c.filters == 1 || c.channels > limit::GROUPED_TILE_CHANNELS) return "it takes up to 64 channels and several filters a group";
    if (SINGLE && c.channels > limit::GROUPED_SINGLE_CHANNELS) return "it takes up to 8 channels a group";
    return grouped::tiling_of(c, 1, SINGLE).shared ? nullptr : "a tile of its pixels and filters exceeds 96 KiB of shared memory";
}
}

Rows<ConvRow> conv_grouped::all() {
    return table_of<ConvRow>(rows::lines, [](auto line, auto add) {
        constexpr auto c = rows::lines[line];
        using T = ElementOf<c.dtype>;
        constexpr bool single = c.variant == "single";
        add(row_of(c, {refuses<single>, nullptr, grouped::launch<T, single>, grouped::attributes<T, single>}));
    });
}
}
