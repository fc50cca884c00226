# SPDX-License-Identifier: Apache-2.0
"""What im2col costs: the step that SConv leaves out. The product that follows is planned and costed like any other.

    copy      elements of the columns, C R S P Q for each image, in vectors: one load and one store of a vector each, short rows of
              outputs filling the last one badly; as SConv packs, pack_cycles more a vector, pack_call_cycles a row of outputs,
              pack_line_cycles a line from beyond L1
    transfer  by the reuse distances of `reuse`:
                input    first touches lie a whole run apart; the other reads of a plane, R S in all of the rows that each meets, one
                         plane and one row of columns
                columns  written once, a whole run after the last use of those lines

compute and transfer combine as in `cost`. A whole run is image, columns, filters and outputs. Source: im2col as SConv describes its
baseline (arXiv 2303.04739, sections 2.2 and 7), which `tools/im2col_baseline.py` costs and traces.

Worked number: 64 channels, 56x56, 3x3, FP32: 64 * 9 * 3,136 = 1,806,336 elements, 7.2 MB; 16 lanes fill rows of 56 with 4 vectors, so
64 * 9 * 56 * 4 = 129,024 vectors: 129,024 (1/2 + 1) = 193,536 cycles at two loads and one store a cycle, against 7.2 million of the sums.
"""

from functools import lru_cache

import numpy as np

from pysim.cachemodel.cpu.cost import Pass, crossed
from pysim.cachemodel.cpu.loops import Extent, Loop, LoopNest, Operand
from pysim.cachemodel.cpu.nest import Nest, ceil_div, nest_of
from pysim.machine.cpu import Machine, Unit
from pysim.problem.conv import Conv
from pysim.record.state import State


@lru_cache(maxsize=64)
def columns_pass(w: Conv, machine: Machine, state: State, packer: Unit) -> Pass:
    """Writing the columns of every image and group of a convolution once, on one core, by SConv's packing on a unit."""
    described = columns_nest(w, nest_of(w), machine)
    moved = crossed(described, described.misses(machine.levels, state))[:, :4]
    waits = float(moved[0, 0, 0]) / machine.line_bytes * machine.core.pack_line_cycles.value
    return Pass(machine, {"copy": np.array([copy_cycles(w, machine, packer) + waits])}, ("input", "columns"), moved)


def copy_cycles(w: Conv, machine: Machine, packer: Unit) -> float:
    """Cycles of it where all lines are in L1."""
    nest, core = nest_of(w), machine.core
    rows = w.channels * w.taps * w.batch * nest.out_h  # of outputs, in all columns
    lanes = packer.lanes(nest.element_bytes)
    strided = min(nest.stride_w, lanes)  # loads, and permutes to part them, of one vector
    permutes = strided if strided > 1 else 0
    vector = strided / packer.loads_per_cycle.value + 1 / packer.stores_per_cycle.value + permutes
    return rows * (ceil_div(nest.out_w, lanes) * (vector + core.pack_cycles.value) + core.pack_call_cycles.value / nest.kernel_w)


def columns_nest(w: Conv, nest: Nest, machine: Machine) -> LoopNest:
    """For each image, rows of columns: one of each plane and kernel element, which with strides meets some of the plane's rows only; then
    the product's data."""
    plane, row = nest.touched_bytes(machine.line_bytes), nest.windows * nest.element_bytes
    taps, outputs = w.taps, w.filters * nest.windows * nest.out_bytes
    filters = w.filter_elements * nest.element_bytes
    images, planes = Extent(1.0, w.batch), Extent(1.0, w.channels)
    operands = (
        Operand("input", {"images": images, "planes": Extent(plane, plane * w.channels)}, "kernel elements"),
        Operand("columns", {"planes": planes, "kernel elements": Extent(row, row * taps)}, "kernel elements", written=True),
        Operand("filters", {"run": Extent(filters, filters)}, "images"),
        Operand("output", {"images": Extent(outputs, outputs * w.batch)}, "images"),
    )
    reads = max(1.0, taps * min(1.0, nest.out_h / nest.touched_h))
    total = {"images": w.batch, "planes": w.channels, "kernel elements": taps, "run": 1}
    trips = {"images": w.batch, "planes": w.channels, "kernel elements": reads}
    return LoopNest([Loop(name, name, 1, count) for name, count in trips.items()], operands, total, 1)
