# SPDX-License-Identifier: Apache-2.0
"""The cost of an activation that the kernels' stores do not compute: a pass over results in L1, tile by tile (`native/operators/loops.h`).

    cycles = rows x ceil(columns / lanes) x max(operations / fma_per_cycle, 1 / loads_per_cycle, 1 / stores_per_cycle)

A row is the plane of a filter, or a contiguous piece of results. Rows of tiles end in partial vectors about where planes do, so
every plan of a problem costs the same. `operations` of a vector come from the registry, as do the targets; the machine's fastest one runs.

Assumptions: every operation is as fast as a multiply-add, even a division (no machine file has its cost); FP64, whose exponential
is the C library's, takes as many operations.

Worked number: SiLU has 16 operations. With two multiply-adds a cycle of 16 lanes, 480 planes of 14 x 14 are 480 x 13 vectors of 8 cycles,
49,920 in all.
"""

from pysim.machine.cpu import Machine
from pysim.registry.cpu import epilogue_operations, loop_targets


def activation_cycles(machine: Machine, activation: str, dtype: str, element_bytes: int, rows: int, columns: int) -> float:
    """Cycles of one core for rows of results; 0 for an activation that stores compute, or if the machine has no target of these loops."""
    operations = epilogue_operations()[activation]
    unit = next(filter(None, map(machine.unit, loop_targets(dtype))), None)
    if operations == 0 or unit is None:
        return 0.0
    each = max(operations / unit.vector_rate(dtype, element_bytes), 1 / unit.loads_per_cycle.value, 1 / unit.stores_per_cycle.value)
    return rows * -(-columns // unit.lanes(element_bytes)) * each
