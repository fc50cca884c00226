# SPDX-License-Identifier: Apache-2.0
"""What im2col costs: the step that SConv leaves out. The product that follows is planned and costed like any other.

    copy      elements of the columns, C R S P Q for each image, in vectors: one load and one store of a vector each, short rows of
              outputs filling the last one badly; or by element, one a cycle, as Caffe's loop with its check of the padding does; or by
              SConv's packing: pack_cycles more a vector, pack_call_cycles a row of outputs, pack_line_cycles a line from beyond L1
    transfer  by the reuse distances of `reuse`:
                input    first touches lie a whole run apart; the other reads of a plane, R S in all of the rows that each meets, one
                         plane and one row of columns
                columns  written once, a whole run after the last use of those lines

compute and transfer combine as in `cost`. A whole run is image, columns, filters and outputs. An unpadded 1x1 convolution of stride 1 is
a product as it stands: it costs nothing here. Source: Caffe's im2col as SConv describes its baseline (arXiv 2303.04739, sections 2.2
and 7), whose exact trace is `trace.accesses_im2col`.

Worked number: 64 channels, 56x56, 3x3, FP32: 64 * 9 * 3,136 = 1,806,336 elements, 7.2 MB; 16 lanes fill rows of 56 with 4 vectors, so
64 * 9 * 56 * 4 = 129,024 vectors: 129,024 (1/2 + 1) = 193,536 cycles at two loads and one store a cycle, against 7.2 million of the sums.
"""

from pysim.cachemodel.cpu.nest import Nest, ceil_div, nest_of
from pysim.machine.cpu import Level, Machine, Memory, Unit
from pysim.problem.conv import Conv
from pysim.record.cost import Cost


def im2col_cost(workload: Conv, machine: Machine, hot: bool = True, by_element: bool = False, packer: Unit | None = None) -> Cost:
    """The cost of writing the columns of every image and group of a convolution once, on one core; with a `packer`, by SConv's packing on
    that unit."""
    nest = nest_of(workload)
    if workload.pointwise:
        return Cost(0.0, 0.0, "copy", {}, {"copy": 0.0})
    unit = packer or max(machine.core.units, key=lambda one: one.vector_bytes)
    taps = workload.channels * workload.kernel_h * workload.kernel_w * workload.batch
    copy = float(taps * nest.windows) if by_element else taps * _vector_cycles(nest, unit)
    crossed = [*_crossed(workload, nest, machine, hot), (0.0, 0.0)]
    if packer:
        vectors = taps * nest.out_h * ceil_div(nest.out_w, _lanes(nest, unit))
        copy += vectors * machine.core.pack_cycles.value + taps / nest.kernel_w * nest.out_h * machine.core.pack_call_cycles.value
        copy += crossed[0][0] / machine.levels[0].line_bytes * machine.core.pack_line_cycles.value
    terms, levels = {"copy": copy}, {}
    suppliers: list[Level | Memory] = [*machine.levels[1:], machine.memory]
    names = [*(level.name for level in machine.levels[1:]), "memory"]
    for level, name, place, own, further in zip(machine.levels, names, suppliers, crossed, crossed[1:], strict=False):
        cycles = (own[0] - further[0]) / place.read_bytes_per_cycle.value + (own[1] - further[1]) / place.write_bytes_per_cycle.value
        size = own[0] + 2 * own[1]
        terms[name] = cycles
        levels[name] = {
            "lines": size / level.line_bytes,
            "bytes": size,
            "cycles": cycles,
            "writeback_lines": own[1] / level.line_bytes,
            "input_bytes": own[0],
            "columns_bytes": 2 * own[1],
        }
    transfer = sum(terms[name] for name in names)
    total = max(copy, transfer) + (1 - machine.core.overlap.value) * min(copy, transfer)
    bound = "copy" if copy >= transfer else max(names, key=terms.__getitem__)
    hidden = {name: machine.core.overlap.value * terms[name] for name in (names if copy >= transfer else ["copy"])}
    return Cost(total, total / machine.core.frequency_hz.value, bound, levels, terms, hidden)


def _vector_cycles(nest: Nest, unit: Unit) -> float:
    """One row of the columns, P x Q elements: a load and a store for each vector of a row of outputs."""
    vectors = nest.out_h * ceil_div(nest.out_w, _lanes(nest, unit))
    strided = min(nest.stride_w, _lanes(nest, unit))  # loads, and permutes to part them, of one vector
    permutes = strided if strided > 1 else 0
    return vectors * (strided / unit.loads_per_cycle.value + 1 / unit.stores_per_cycle.value + permutes)


def _lanes(nest: Nest, unit: Unit) -> int:
    return max(1, unit.vector_bytes // nest.element_bytes)


def _crossed(w: Conv, nest: Nest, machine: Machine, hot: bool) -> list[tuple[float, float]]:
    """Bytes of the image read and of columns written that miss each level, L1 first."""
    size, taps = nest.element_bytes, w.kernel_h * w.kernel_w
    plane = nest.touched_bytes(machine.levels[0].line_bytes)
    image = w.channels * plane * w.batch
    reads = taps * min(1.0, nest.out_h / nest.touched_h)  # of a plane: with strides a kernel element meets some of its rows only
    row = nest.windows * size
    columns = w.channels * taps * row
    run = image + columns + w.filters * (w.channels // w.groups) * taps * size + w.filters * nest.windows * w.batch * nest.out_bytes
    found, own = [], (float("inf"), float("inf"))
    for level in machine.levels:
        again, first, last = (_missing(level, distance) for distance in (plane + row, run, run))
        first, written = (first if hot else 1.0), (last if hot or w.batch > 1 else 1.0)
        own = min(own[0], image * (first + (reads - 1) * again)), min(own[1], columns * w.batch * written)
        found.append(own)
    return found


def _missing(level: Level, distance: float) -> float:
    """Share of lines that miss a level when touched again after `distance` bytes: sets differ by up to one line from their mean."""
    return min(1.0, max(0.0, (distance / (level.sets * level.line_bytes) - (level.ways - 1)) / 2))
