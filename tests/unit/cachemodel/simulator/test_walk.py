# SPDX-License-Identifier: Apache-2.0
"""The trace of a plan from its description: in the order of the loops, of as many bytes, and with misses like those of the plain C code."""

import itertools
import math

import numpy as np
import pytest
from native_library import native
from nest_trace import walk as touches

from pysim import planner
from pysim.algorithms import algorithm_named
from pysim.cachemodel.cpu.reuse.loops import Extent, Loop, LoopNest, Operand
from pysim.cachemodel.simulator import walk
from pysim.cachemodel.simulator.hierarchy import Cache, Hierarchy
from pysim.errors import PlanError
from pysim.machine.load import load
from pysim.problem.text import parse

ON = load("zen4").contiguous()
PLANS = (
    ("conv:ic32ih30oc48kh3ph1", "winograd"),
    ("conv:mb2ic16ih29oc32kh3ph1", "im2col"),
    ("conv:mb2ic32ih15oc32kh3ph1", "blocked"),
    ("conv:g24ic24ih30oc24kh3ph1", "depthwise"),
    ("conv:ic3ih30oc16kh7sh2ph3", "polyphase"),
    ("gemm:3x500x200", "skinny"),
    ("conv:ic32ih15oc48kh3ph1", "sconv"),
    ("gemm:100x90x70", "gemm"),
)


def nests_of(text: str, algorithm: str) -> tuple[LoopNest, ...]:
    plan = planner.plan(text, ON, algorithm=algorithm)
    return algorithm_named(algorithm, parse(text), ON).nests(plan).loops


def joined(nests: tuple[LoopNest, ...]) -> list[np.ndarray]:
    chunks = [*walk.trace_of(nests)]
    return [np.concatenate([np.asarray(chunk[at]) for chunk in chunks]) for at in range(4)]


@pytest.mark.parametrize(("text", "algorithm"), PLANS)
def test_a_trace_touches_operands_in_the_order_of_the_loops_however_many_are_laid_out_at_once(
    text: str, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for nest in nests_of(text, algorithm):
        (places,) = walk.buffers([nest])
        wanted = [places[one.operand].tag for one in touches(nest) if one.operand in places]
        whole = joined((nest,))
        assert [tag for tag, _ in itertools.groupby(whole[3].tolist())] == [tag for tag, _ in itertools.groupby(wanted)]
        for most in (1, 40):
            monkeypatch.setattr(walk, "MOST_AT_ONCE", most)
            assert all(np.array_equal(*pair) for pair in zip(whole, joined((nest,)), strict=True))
        monkeypatch.undo()


@pytest.mark.parametrize(("text", "algorithm"), PLANS)
def test_a_trace_has_the_bytes_of_each_touch_inside_its_buffer(text: str, algorithm: str) -> None:
    for nest in nests_of(text, algorithm):
        (places,) = walk.buffers([nest])
        addresses, sizes, _, tags = joined((nest,))
        for name, of in places.items():
            own = tags == of.tag
            assert addresses[own].min() >= of.start
            assert (addresses[own] + sizes[own]).max() <= of.start + of.size_bytes + 1
            rows = [row for row, one in enumerate(nest.operands) if one.name == name]
            all_of_it = max(walk.number(nest.footprint(-1, row)) for row in rows)
            spans = np.unique(np.stack((addresses[own], sizes[own])), axis=1).T.tolist()
            covered = np.unique(np.concatenate([np.arange(at, at + size) for at, size in spans]))
            part = min(walk.number(1.0 if nest.operands[row].part is None else nest.operands[row].part) for row in rows)
            assert 0.9 * part * all_of_it - 64 <= covered.size <= 1.1 * all_of_it + 64


@native
def test_misses_of_a_trace_are_those_worked_by_hand() -> None:
    """7 kept tiles of 1,024 bytes, 4 streamed of 64: a cache of 36 lines holds one kept tile and all streamed ones."""
    loops = (Loop("kept", "i", 1, 7), Loop("streamed", "f", 1, 4))
    operands = (Operand("I", {"i": Extent(1024, 7168)}, "streamed"), Operand("F", {"f": Extent(64, 256)}, "streamed", written=True))
    nest = LoopNest(loops, operands, {"i": 7, "f": 4}, 1)
    counted, tags = walk.simulate([nest], Hierarchy([Cache("L1", 1, 36, 64)]))
    assert counted["L1"].misses == 7 * 16 + 4
    assert (counted.by("L1", operand=tags["I"]).misses, counted.by("L1", operand=tags["F"]).stores) == (7 * 16, 28)
    again, _ = walk.simulate([nest], Hierarchy([Cache("L1", 1, 36, 64)]), warm=True)
    assert again["L1"].misses == 7 * 16  # the streamed lines stayed
    assert walk.lines([nest], 64) == 28 * 16 + 28 + 28 + 28


def test_memory_that_is_filled_again_is_the_same_memory() -> None:
    loops = (Loop("sets", "t", 2, 3), Loop("tiles", "t", 1, 2))
    nest = LoopNest(loops, (Operand("panel", {"t": Extent(100, 200)}, "tiles", refilled_by="sets"),), {"t": 6}, 1)
    addresses = joined((nest,))[0]
    assert (addresses - walk.PAGE).tolist() == [0, 100, 0, 100, 0, 100]


def test_runs_over_images_are_made_image_by_image() -> None:
    nests = nests_of("conv:mb2ic16ih29oc32kh3ph1", "im2col")
    names = {of.tag: name for one in walk.buffers(nests) for name, of in one.items()}
    order = [names[tag] for tag, _ in itertools.groupby(joined(nests)[3].tolist())]
    first_product = order.index("filters")
    assert "input" in order[first_product:]  # the second image is copied after the first product


def test_more_buffers_than_the_simulator_tells_apart_are_refused() -> None:
    operands = [Operand(f"o{at}", {"i": Extent(1, 4)}, "all") for at in range(9)]
    with pytest.raises(PlanError, match="buffers"):
        walk.buffers([LoopNest([Loop("all", "i", 1, 4)], operands, {"i": 4}, 1)])
    assert math.isfinite(walk.lines([LoopNest([Loop("all", "i", 1, 4)], operands, {"i": 4}, 1)], 64))
