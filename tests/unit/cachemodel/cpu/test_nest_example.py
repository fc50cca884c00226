# SPDX-License-Identifier: Apache-2.0
"""A nest of a reader's own, from docs/cost-model.md alone: a batched product C[b] = A[b] B, its cost, its exact trace and its words."""

from collections.abc import Iterator

import numpy as np
import pytest
from nest_trace import walk

from pysim.cachemodel.cpu.cost import Pass, cost_from, traffic_of
from pysim.cachemodel.cpu.nest_text import printed, reused
from pysim.cachemodel.cpu.reuse.loops import Extent, Loop, LoopNest, Operand, Use
from pysim.cachemodel.simulator.hierarchy import Hierarchy
from pysim.errors import MissingError
from pysim.machine.load import load
from pysim.record.cost import Cost

ON = load("zen4").contiguous()
BATCH, ROWS, K, COLUMNS = 24, 40, 128, 256
A_ROW, B_ALL, C_ROW = 4 * K, 4 * K * COLUMNS, 4 * COLUMNS  # bytes in f32
OPERANDS = ("A", "B", "C")


def batched_product() -> LoopNest:
    loops = (Loop("matrices", "b", 1, BATCH), Loop("rows", "r", 1, ROWS))
    each = Extent(1, BATCH)
    operands = (
        Operand("A", {"b": each, "r": Extent(A_ROW, A_ROW * ROWS)}, "rows"),
        Operand("B", {"all": Extent(B_ALL, B_ALL)}, "rows"),
        Operand("C", {"b": each, "r": Extent(C_ROW, C_ROW * ROWS)}, "rows", written=True),
    )
    return LoopNest(loops, operands, {"b": BATCH, "r": ROWS, "all": 1}, 1)


def cost(nest: LoopNest) -> Cost:
    kernel = np.array([BATCH * ROWS * K * COLUMNS / 16])  # multiply-adds, a vector of 16 a cycle
    return cost_from([Pass(ON, {"kernel": kernel}, OPERANDS, traffic_of(nest, nest.misses(ON.levels)))])


def lines(nest: LoopNest) -> Iterator[np.ndarray]:
    """Every line that the nest touches, in order; operands lie one after the other."""
    starts, rows = {"A": 0, "B": 1 << 24, "C": 1 << 25}, {"A": A_ROW, "B": B_ALL, "C": C_ROW}
    for name, tiles in walk(nest):
        row = tiles["b"][0] * ROWS + tiles["r"][0] if "b" in tiles else 0
        yield np.arange(rows[name] // 64) * 64 + starts[name] + row * rows[name]


def test_the_cost_of_a_readers_nest_is_that_of_the_caches_on_its_trace_and_its_words_say_its_loops() -> None:
    nest = batched_product()
    assert list(printed(nest)) == [f"for each of {BATCH} matrices", f"  for each of {ROWS} rows: A, B, C (written)"]
    assert any(line.startswith("B reused in the next iteration of rows") and "129.5 KiB" in line for line in reused(nest, ON))
    # B is reused in the next row; in between lie all of it, a row of A and a row of C
    assert nest.between((Use(nest.accesses[1], 1),))[:, 0, 0].tolist() == [A_ROW, B_ALL, C_ROW]
    run = np.concatenate(list(lines(nest)))
    assert run.size * 64 == BATCH * ROWS * (A_ROW + B_ALL + C_ROW)
    caches, sizes = Hierarchy.from_machine(ON), np.full(run.size, 64, dtype=np.int32)
    try:
        caches.simulate(run, sizes, run >= 1 << 25)
    except MissingError as error:
        pytest.skip(str(error))
    counted = caches.simulate(run, sizes, run >= 1 << 25, warm=True)
    levels = cost(nest).levels
    for level, supplier in zip(ON.levels, ("L2", "L3", "memory"), strict=True):
        predicted = levels[supplier]["lines"] - levels[supplier]["writeback_lines"]
        assert predicted == pytest.approx(counted[level.name].misses, rel=0.02, abs=64)
    assert levels["L3"]["lines"] > 0 == levels["memory"]["lines"]
