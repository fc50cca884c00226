/* SPDX-License-Identifier: Apache-2.0
 * The rows of gemm/simt/rows.inc. A unit has a type's rows, or a part of them. */
#include <iterator>

#include "gemm/rows.h"
#include "mainloop/simt/kernel.cuh"

#include "gemm/simt/rows.inc"

namespace pysim {
namespace rows {
namespace {

/* Rows of a type before line `end`. */
constexpr int rows_before(int end, int dtype) {
    int count = 0;
    for (int i = 0; i < end; i++) count += lines[i].dtype == dtype;
    return count;
}
/* Which of `parts` equal parts of a type's rows has the row of a line. */
constexpr int part_of(int line, int dtype, int parts) {
    return rows_before(line, dtype) * parts / rows_before((int)std::size(lines), dtype);
}

struct Part {
    int dtype, number = 0, of = 1;
};
struct Parts {
    static constexpr Part f32_1 = {f32, 0, 4}, f32_2 = {f32, 1, 4}, f32_3 = {f32, 2, 4}, f32_4 = {f32, 3, 4};
    static constexpr Part f64 = {rows::f64}, f16 = {rows::f16}, s8 = {rows::s8};
};

template <int DTYPE, int PART, int PARTS> Rows<GemmRow> simt_rows() {
    return table_of<GemmRow>(lines, [](auto line, auto add) {
        constexpr Columns c = lines[line];
        if constexpr (c.dtype == DTYPE && part_of(line, DTYPE, PARTS) == PART) {
            constexpr simt::Form form = c.variant == "scalar" ? simt::scalar : c.variant == "unpadded" ? simt::unpadded : simt::full;
            using S = simt::Shape<typename simt::TypeOf<DTYPE>::T, form, c.block.m, c.block.n, c.block.k, c.warp.m, c.warp.n, c.thread.m,
                                  c.thread.n, c.stages, c.below, c.replaced_on, c.reduces_in_cluster>;
            static_assert(c.capability >= S::CAPABILITY, "asynchronous copies");
            if constexpr (c.ablation && !ABLATIONS) add(row_of(c, nullptr, nullptr));
            else add(row_of(c, simt::launch<S>, simt::attributes<S>));
        }
    });
}
}
}

Rows<GemmRow> gemm_simt::PYSIM_UNIT() {
    using rows::Parts;
    return rows::simt_rows<Parts::PYSIM_UNIT.dtype, Parts::PYSIM_UNIT.number, Parts::PYSIM_UNIT.of>();
}
}
