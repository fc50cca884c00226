/* SPDX-License-Identifier: Apache-2.0
 * Reads the kernel tables (gemm/<family>/rows.inc, conv/<family>/rows.inc; families.inc lists them). PYSIM_CUDA_FAMILY sets the columns that all rows of
 * a file share, PYSIM_CUDA_ROW adds a kernel, PYSIM_CUDA_END ends the table. A column that neither names keeps its default (`Columns` in gemm/rows.h,
 * conv/rows.h). pysim/registry/cuda.py reads the same lines. Included behind such a header, a table is the constexpr array pysim::rows::lines, so
 * lines[i].block.m can be a template argument; table_of turns the lines into rows. */
#ifndef PYSIM_CUDA_CORE_ROWS_H
#define PYSIM_CUDA_CORE_ROWS_H
#include <cstring>
#include <string_view>
#include <utility>

#include "pysim_cuda.h"

/* clang-format off */
#define PYSIM_CUDA_FAMILY(...)                                                                                                        \
    namespace pysim::rows { namespace {                                                                                               \
    struct Family : Columns { constexpr Family() { __VA_ARGS__; } };                                                                  \
    constexpr Columns lines[] = {
#define PYSIM_CUDA_ROW(...) [] { struct Line : Family { constexpr Line() { __VA_ARGS__; } }; return (Columns)Line(); }(),
#define PYSIM_CUDA_END }; } }
/* clang-format on */

namespace pysim {
namespace rows {

using Text = std::string_view; /* of a literal, so zero-terminated */
/* clang-format off */
enum { f32 = PYSIM_F32, f64 = PYSIM_F64, f16 = PYSIM_F16, bf16 = PYSIM_BF16, s8 = PYSIM_S8, tf32 = PYSIM_TF32, f8 = PYSIM_F8, tf32x3 = PYSIM_TF32X3 };
/* clang-format on */
struct Size {
    int m = 0, n = 0, k = 0;
};
}

/* A unit's rows; row.info.name points to row.name. */
template <class Row> struct Rows {
    const Row *rows;
    int count;
};
template <class Row> using Unit = Rows<Row>();
/* The units of a family. */
template <class Row> struct Units {
    Unit<Row> *const *first;
    int count;
    template <int COUNT> constexpr Units(Unit<Row> *const (&units)[COUNT]) : first(units), count(COUNT) {}
    Unit<Row> *const *begin() const { return first; }
    Unit<Row> *const *end() const { return first + count; }
};

template <class Row, int MOST> struct Table {
    Row rows[MOST] = {};
    int count = 0;
    /* Calls make(line, add) for each line; make calls add(row) at most once. */
    template <class Make, int... LINE> Table(Make make, std::integer_sequence<int, LINE...>) {
        (make(std::integral_constant<int, LINE>(),
              [&](const Row &row) {
                  Row &own = rows[count++] = row;
                  own.info.name = own.name;
                  if (!own.info.form) own.info.form = strrchr(own.name, '_') + 1;
              }),
         ...);
    }
};
template <class Row, class Columns, int COUNT, class Make> Rows<Row> table_of(const Columns (&)[COUNT], Make make) {
    static const Table<Row, COUNT> table(make, std::make_integer_sequence<int, COUNT>());
    return {table.rows, table.count};
}
}
#endif
