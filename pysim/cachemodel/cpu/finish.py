# SPDX-License-Identifier: Apache-2.0
"""What an activation costs that kernels' stores do not have: a pass over results in L1, tile by tile (`native/loops.h`).

    cycles = rows x ceil(columns / lanes) x max(operations / fma_per_cycle, 1 / loads_per_cycle, 1 / stores_per_cycle)

A row is the plane of a filter, or all that lies in one piece: rows of tiles end in vectors that are not full about where planes do, so
every plan of a problem costs the same. `operations` of a vector and the targets, of which the machine's fastest runs, are the registry's.

Assumptions: every operation is as fast as a multiply-add, a division too (no machine file says how long one takes); FP64, whose exponential
is the C library's, takes as many.

Worked number: SiLU has 16 operations; with two multiply-adds a cycle of 16 lanes, 480 planes of 14 x 14 are 480 x 13 vectors of 8 cycles,
49,920 in all.
"""

from pysim.machine.cpu import Machine
from pysim.registry.cpu import epilogue_operations, loop_targets


def finish_cycles(machine: Machine, activation: str, dtype: str, element_bytes: int, rows: int, columns: int) -> float:
    """Cycles of one core for rows of results; 0 for an activation that stores have, and where the machine has no target of these loops."""
    operations = epilogue_operations()[activation]
    unit = next(filter(None, map(machine.unit, loop_targets(dtype))), None)
    if operations == 0 or unit is None:
        return 0.0
    lanes = 1 if unit.target == "portable" else unit.vector_bytes // element_bytes  # whose rate counts single results
    each = max(operations / unit.rate(dtype), 1 / unit.loads_per_cycle.value, 1 / unit.stores_per_cycle.value)
    return rows * -(-columns // lanes) * each
