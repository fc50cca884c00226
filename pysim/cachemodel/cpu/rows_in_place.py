# SPDX-License-Identifier: Apache-2.0
"""What the nest of a product waits for where its kernels read rows of B in place: they lie a row of B apart, where no prefetcher follows.

A kernel asks for its rows ROWS_AHEAD ahead (`native/x86/lanes.h`), so that many lines of a tile's width are on their way at once:

    cycles of a line from X = max(line / read_rate_X, latency_X / (ROWS_AHEAD lines of a row of the tile))

Assumption: the core keeps all of them on their way. Worked number: tiles of 64 FP32 windows are 4 lines, 32 on their way at once; of a
latency of 550 cycles 17 are waited for each line, where 8.7 bytes a cycle alone take 7. Measured on a Zen 5: gemm:1x4096x4096 with B in
place takes 3.1 times the time of its bytes.
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


def cost(machine: Machine, found: Sequence[NestCandidates | CsaCandidates]) -> list[NestCosts | CsaCosts]:
    """The costs of candidates as the nest has them, and what reading in place waits for."""
    return [one.costs() if isinstance(one, CsaCandidates) else _costs(one) for one in found]


def _costs(one: NestCandidates) -> NestCosts:
    return NestCosts(waiting(predict(one.rates, one.table, one.hot, one.limit)), one.bounds)


def waiting(prediction: Prediction) -> Prediction:
    """The same with what reading in place waits for, as transfer from the level that has the line."""
    machine, table = prediction.rates.machine, prediction.table
    size, line = prediction.rates.nest.element_bytes, machine.levels[0].line_bytes
    on_their_way = ROWS_AHEAD * np.maximum(1.0, prediction.rates.windows[table.kernel] * size / line)
    places: list[Level | Memory] = [*machine.levels[1:], machine.memory]
    input_read = [crossed[0] for crossed in prediction.crossed.values()]
    terms = dict(prediction.terms)
    for place, name, own, beyond in zip(places, prediction.crossed, input_read, [*input_read[1:], 0.0], strict=True):
        waited = place.latency_cycles.value / on_their_way - line / place.read_bytes_per_cycle.value
        terms[name] = terms[name] + (1 - table.packed) * (own - beyond) / line * np.maximum(0.0, waited)
    compute: Array = sum((terms[name] for name in COMPUTE), np.zeros(1))
    moving: Array = sum((terms[name] for name in prediction.crossed), np.zeros(1))
    return prediction._replace(cycles=overlapped(machine, compute, moving), terms=terms)
