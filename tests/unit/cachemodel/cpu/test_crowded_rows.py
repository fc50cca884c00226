# SPDX-License-Identifier: Apache-2.0
"""Rows in place that share few sets of L1: what the cost model adds for their lines."""

import msgspec
import pytest

from pysim.cachemodel.cpu import tilings as space
from pysim.cachemodel.cpu.cost import cost_of, predict
from pysim.cachemodel.cpu.incore import rates
from pysim.cachemodel.cpu.nest import nest_of
from pysim.machine.cpu import Machine
from pysim.machine.load import load
from pysim.problem.text import parse

ZEN3 = load("zen3")


def waiting(cycles: float) -> Machine:
    number = ZEN3.core.crowded_line_cycles
    assert number is not None
    number = msgspec.structs.replace(number, value=cycles)
    return msgspec.structs.replace(ZEN3, core=msgspec.structs.replace(ZEN3.core, crowded_line_cycles=number))


@pytest.mark.parametrize(("columns", "share"), [(1024, 1.0), (512, 0.5), (1536, 0.5), (256, 0.0), (1000, 0.0)])
def test_rows_in_place_wait_for_their_lines_if_they_share_few_sets_of_l1(columns: int, share: float) -> None:
    nest, kernels = nest_of(parse(f"gemm:192x{columns}x512")), space.rows(ZEN3, "f32").kernels
    free, crowded = (predict(space.table(rates(nest, on, kernels))) for on in (waiting(0.0), waiting(2.0)))
    waited = False
    for index in range(0, free.table.kernel.size, 7):
        lines = cost_of(free, index).levels["L2"]["input_bytes"] / ZEN3.line_bytes * (free.table.packed[index] == 0)
        more = cost_of(crowded, index).terms["kernel"] - cost_of(free, index).terms["kernel"]
        assert more == pytest.approx(2.0 * share * lines, abs=1e-3)
        waited |= bool(lines)
    assert waited
