# SPDX-License-Identifier: Apache-2.0
"""The cost of a schedule with simulated caches: the cost model with exact counts instead of its closed forms.

    compute    as in `cost`: in-core cycles from the machine's rates
    transfer   misses and write-backs of the plan's own trace (`trace`) in the machine's caches (`hierarchy`), at the machine's rates

So it differs from a prediction only by the errors of the closed forms (`nest_loops`, `occupancy`). On a machine whose in-core rates are of
kind `static` it is a second opinion where nothing can be measured; it is not a measurement.

A written line is transferred twice, once each way, and is charged once, as in `cost`: the lines of an operand that are only read are its
misses less its write-backs. Exact simulation processes some hundred million accesses a second.

Worked number: a hot run that fits L1 misses nothing, so its cycles are those of the compute terms alone.
"""

import numpy as np

from pysim.cachemodel.cpu.cost import assemble, cost_of, one_schedule
from pysim.cachemodel.cpu.incore import Array
from pysim.cachemodel.cpu.nest import nest_of
from pysim.cachemodel.cpu.tables import compute_cycles
from pysim.cachemodel.simulator import trace
from pysim.cachemodel.simulator.hierarchy import Hierarchy, Result
from pysim.machine.cpu import Machine
from pysim.problem.text import Workload
from pysim.record.cost import Cost
from pysim.record.schedule import Schedule

# the operands of the closed forms, and the tags that the trace gives them
OF_OPERAND = {"input": ("input",), "filters": ("filter",), "output": ("output",), "packed": ("packed_input", "packed_filter")}


def simulated_cost(workload: Workload, machine: Machine, schedule: Schedule, hot: bool = True) -> Cost:
    """The cost of one run of a schedule on one thread. `hot`: the caches hold what the previous run left in them.

    Raises PlanError for a kernel that the registry or the machine lacks, NativeError for a schedule that does not fit the workload,
    MissingError without the native library, which makes and simulates the trace.
    """
    table = one_schedule(nest_of(workload), machine, schedule)
    counted = trace.simulate(workload, schedule, Hierarchy.from_machine(machine), warm=hot, flush=not hot)
    return cost_of(assemble(table, compute_cycles(table), counted_traffic(counted, machine)), 0)


def counted_traffic(counted: Result, machine: Machine) -> Array:
    """Bytes from each supplier; two rows for each operand, read only and written, as in `occupancy.traffic`."""
    traffic = np.empty((len(machine.levels), 2 * len(OF_OPERAND), 1))
    for level, moved in zip(machine.levels, traffic, strict=True):
        for row, tags in enumerate(OF_OPERAND.values()):
            parts = [counted.by(level.name, operand=tag) for tag in tags]
            written = sum(part.writebacks for part in parts)
            lines = max(0, sum(part.misses for part in parts) - written), written
            moved[2 * row : 2 * row + 2, 0] = np.array(lines) * level.line_bytes
    return traffic
