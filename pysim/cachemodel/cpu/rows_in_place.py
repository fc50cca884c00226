# SPDX-License-Identifier: Apache-2.0
"""What the nest of a product waits for where its kernels read rows of B in place: they lie a row of B apart, where no prefetcher follows.

A kernel asks for its rows ROWS_AHEAD ahead, but for those whose distance is a multiple of a way of L1 (`native/x86/lanes.h`): they share their
sets, and only the ROWS_IN_CORE rows whose multiply-adds its schedulers hold are on their way. A line from X then waits, beyond its transfer, for

    max(0, latency_X / (rows on their way x lines of a row of the tile) - line / read_rate_X)   cycles,

and the multiply-adds with it: the term `wait`, which no arithmetic hides.

Assumption: the core keeps all of them on their way. Worked number: tiles of 64 FP32 windows are 4 lines, 32 on their way at once; of a
latency of 550 cycles 17 are waited for each line, where 8.7 bytes a cycle alone take 7. Measured on a Zen 5: gemm:1x4096x4096 with B in
place takes 3.1 times the time of its bytes; B of 8 MiB in L3, latency 60 cycles: tiles of 32, 48, 64 windows wait 0.4, 0.3, 0.4 to 0.6 cycles
a line in rows of 12,352 bytes (here 1.5, 0.3, 0), and 1 to 5, 0.5 to 2, 0.4 to 1.2 in rows of 12,288 (5.3, 2.8, 1.5).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pysim.cachemodel.cpu.cost import COMPUTE, Prediction, overlapped, predict
from pysim.cachemodel.cpu.nested import CsaCandidates, CsaCosts, NestCandidates, NestCosts
from pysim.machine.cpu import Level, Machine, Memory

if TYPE_CHECKING:
    from pysim.cachemodel.cpu.incore import Array

ROWS_AHEAD = 8
ROWS_IN_CORE = 4  # of 24 to 28 multiply-adds each: 114 wait in the schedulers of a Zen 5 core


def cost(machine: Machine, found: Sequence[NestCandidates | CsaCandidates]) -> list[NestCosts | CsaCosts]:
    """The costs of candidates as the nest has them, and what reading in place waits for."""
    return [one.costs() if isinstance(one, CsaCandidates) else _costs(one) for one in found]


def _costs(one: NestCandidates) -> NestCosts:
    return NestCosts(waiting(predict(one.rates, one.table, one.hot, one.limit)), one.bounds)


def waiting(prediction: Prediction) -> Prediction:
    """The same with what reading in place waits for, as another compute term."""
    rates, table = prediction.rates, prediction.table
    machine, size, line = rates.machine, rates.nest.element_bytes, rates.machine.levels[0].line_bytes
    way = machine.levels[0].sets * line
    rows = ROWS_AHEAD if rates.nest.plane_bytes % way else ROWS_IN_CORE
    on_their_way = rows * np.maximum(1.0, rates.windows[table.kernel] * size / line)
    places: list[Level | Memory] = [*machine.levels[1:], machine.memory]
    input_read = [crossed[0] for crossed in prediction.crossed.values()]
    wait: Array = np.zeros(len(prediction.cycles))
    for place, own, beyond in zip(places, input_read, [*input_read[1:], 0.0], strict=True):
        waited = place.latency_cycles.value / on_their_way - line / place.read_bytes_per_cycle.value
        wait += (1 - table.packed) * (own - beyond) / line * np.maximum(0.0, waited)
    compute: Array = sum((prediction.terms[name] for name in COMPUTE), wait)
    moving: Array = sum((prediction.terms[name] for name in prediction.crossed), np.zeros(1))
    return prediction._replace(cycles=overlapped(machine, compute, moving), terms=prediction.terms | {"wait": wait})
