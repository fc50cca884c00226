# SPDX-License-Identifier: Apache-2.0
"""A nest as a description: its walk is what the macro-kernel touches, its distances are those of the walk, and a reader can write one."""

import doctest
import math
from collections.abc import Iterable, Iterator
from typing import Any

import im2col_baseline
import numpy as np
import pytest
from checkout import ROOT
from native_library import native
from nest_trace import Trace, walk
from plan_trace import accesses
from plan_trace import recorded as recorded_runs

from pysim.algorithms.cpu import panels, unpacked
from pysim.algorithms.cpu.im2col import columns_nest
from pysim.cachemodel.cpu.nest import nest_of
from pysim.cachemodel.cpu.reuse.loops import Extent, Loop, LoopNest, Operand, Use, miss_share, normal_distribution
from pysim.cachemodel.simulator import trace
from pysim.cachemodel.simulator.hierarchy import OPERANDS, PHASES, Cache, Hierarchy
from pysim.machine.load import load
from pysim.problem.conv import Conv
from pysim.problem.text import parse
from pysim.record.schedule import STATIONARY, Schedule

LINE = 64


def lines(spans: Iterable[tuple[int, int]]) -> frozenset[int]:
    return frozenset(line for at, size in spans if size for line in range(at // LINE, (at + size - 1) // LINE + 1))


def recorded(text: str, schedule: Schedule, at: trace.Bases) -> Iterator[frozenset[int]]:
    """The macro-kernel's own accesses, as lines of one burst of packing or of one call."""
    spans: list[tuple[int, int]] = []
    last = ""
    for chunk in accesses(parse(text), schedule, at):
        for address, size, tag in zip(*(np.asarray(part).tolist() for part in (chunk.addresses, chunk.sizes, chunk.tags)), strict=True):
            phase = PHASES[tag >> 4]
            if spans and (last, phase) in (("pack", "compute"), ("store", "pack"), ("store", "compute")):
                yield lines(spans)
                spans = []
            spans.append((address, size))
            last = phase
    yield lines(spans)


def described(found: Trace) -> Iterator[frozenset[int]]:
    """The description's walk, in the same bursts: packing is of neighbouring tiles until a call."""
    packed: list[tuple[int, int]] = []
    for is_call, step in found.steps():
        spans = [(at, size) for at, size, _ in step]
        if is_call and packed:
            yield lines(packed)
            packed = []
        if is_call:
            yield lines(spans)
        else:
            packed += spans


@native
@pytest.mark.parametrize("stationary", STATIONARY)
@pytest.mark.parametrize(
    ("text", "pack", "sizes"),
    [
        ("conv:ic5ih9oc11kh3ph1", "tiles", (2, 2, 3)),
        ("conv:ic5ih9oc11kh3ph1", "tiles", (5, 3, 2)),
        ("conv:ic4ih12oc9kh3sh2ph1", "tiles", (3, 1, 2)),
        ("conv:mb2ic6ih7oc10kh1", "none", (4, 2, 2)),
        ("conv:g2ic6ih8oc12kh3", "tiles", (2, 1, 4)),
        ("gemm:11x40x6", "none", (4, 2, 2)),
        ("gemm:11x40x6", "tiles", (5, 3, 5)),
        ("gemm:11x40x6:tn", "tiles", (4, 2, 2)),
        ("gemm:11x40x6:nt", "tiles", (4, 1, 3)),
        ("gemm:11x40x6:tt", "tiles", (6, 2, 1)),
    ],
)
def test_the_described_loops_touch_what_the_macro_kernel_records(
    text: str, pack: str, sizes: tuple[int, int, int], stationary: str
) -> None:
    schedule = Schedule("f32_win_8x4__portable", stationary, pack, 8, 4, *sizes)
    found = Trace(nest_of(parse(text)), schedule)
    at = trace.Bases(found.input, found.filters, found.output, found.windows_at)
    assert list(described(found)) == list(recorded(text, schedule, at))


@native
@pytest.mark.parametrize("stationary", STATIONARY)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("sizes", [(2, 2, 3), (6, 3, 5)])
@pytest.mark.parametrize("algorithm", [unpacked, panels], ids=lambda one: one.NAME)
def test_the_described_loops_touch_what_is_recorded_with_a_read_in_place(
    algorithm: Any, sizes: tuple[int, int, int], layout: str, stationary: str
) -> None:
    text = f"gemm:11x43x6:{layout}"
    nest = algorithm.nest_of(parse(text))
    for pack in ("none", "tiles") if algorithm is unpacked else ("none",):
        if pack == "none" and not nest.in_place:
            continue
        schedule = Schedule("f32_win_8x4__portable", stationary, pack, 8, 4, *sizes, algorithm=algorithm.NAME)
        found = Trace(nest, schedule)
        at = trace.Bases(found.input, found.filters, found.output, found.windows_at)
        assert list(described(found)) == list(recorded(text, schedule, at))


def test_the_worked_number_of_the_distance_is_what_it_says() -> None:
    kept, streamed = 1000.0, 10.0
    loops = (Loop("kept", "i", 1.0, 7.0), Loop("streamed", "f", 1.0, 4.0))
    operands = (
        Operand("I", {"i": Extent(kept, 7 * kept)}, "streamed"),
        Operand("F", {"f": Extent(streamed, 4 * streamed)}, "streamed"),
    )
    nest = LoopNest(loops, operands, {"i": 7.0, "f": 4.0}, 1)
    i, f = nest.accesses
    found = nest.between((Use(f, 0), Use(f, 0, at_end=True), Use(f, 0, at_end=False), Use(i, 1)))[:, :, 0]
    assert found.T.tolist() == [[(2 - 1 / 4) * kept, 40.0], [1.5 * kept, 40.0], [2 * kept, 40.0], [kept, 10.0]]


def test_the_normal_distribution_is_right_to_seven_digits() -> None:
    z = np.linspace(-9, 9, 1001)
    assert normal_distribution(z.copy()) == pytest.approx([math.erfc(-x / math.sqrt(2)) / 2 for x in z], abs=1e-7)


@native
@pytest.mark.parametrize("machine", ["zen4", "emerald-rapids"])
def test_scattered_pages_miss_as_often_as_simulated_ones(machine: str) -> None:
    """Pages at random places are read twice; the share of the second reads that miss L2, the mean of some draws."""
    level, random = load(machine).level("L2"), np.random.default_rng(3)
    assert level.page_bytes

    def simulated(pages: int) -> float:
        frames = random.choice(1 << 20, pages, replace=False) * level.page_bytes
        addresses = (frames[:, None] + np.arange(0, level.page_bytes, level.line_bytes)).ravel()
        reads = addresses, np.ones_like(addresses, np.int32), np.zeros_like(addresses, np.bool_)
        caches = Hierarchy([Cache("L2", level.sets, level.ways, level.line_bytes)])
        caches.simulate(*reads)
        return caches.simulate(*reads, warm=True)["L2"].misses / addresses.size

    for fill in (0.5, 0.7, 0.9, 1.0, 1.1, 1.3):
        pages = round(fill * level.size_bytes / level.page_bytes)
        missed = np.mean([simulated(pages) for _ in range(24)])
        assert miss_share([level], np.array([float(pages * level.page_bytes)]))[0, 0] == pytest.approx(missed, abs=0.04), fill


def test_the_page_on_the_model_shows_what_the_tool_says() -> None:
    page = ROOT / "docs" / "cost-model.md"
    found = doctest.testfile(str(page), module_relative=False)
    assert found.attempted >= 6 and not found.failed


@native
def test_the_described_loops_of_im2col_touch_what_its_trace_records() -> None:
    w = parse("conv:ic3ih6iw7oc4kh3sh2ph1")
    assert isinstance(w, Conv)
    chunks = [*recorded_runs(im2col_baseline.runs_of(w, Schedule("f32_win_8x4__portable", STATIONARY[0], "tiles", 8, 4, 27, 1, 1)))]
    at, tags = (np.concatenate([getattr(chunk, name) for chunk in chunks]) for name in ("addresses", "tags"))
    operand, written = tags & 15, np.concatenate([chunk.is_write for chunk in chunks]).astype(bool)
    columns = OPERANDS.index("columns")
    ends = np.flatnonzero((operand == columns) & written)[w.windows - 1 :: w.windows] + 1  # of each row of columns
    first = int(at[(operand == columns) & written].min())
    rows = []
    for name, tiles in walk(columns_nest(w, load("zen4"))):
        if name == "columns":
            plane, element = tiles["planes"][0], tiles["kernel elements"][0]
            rows.append((plane, element, first + (plane * 9 + element) * w.windows * 4))
    for (plane, element, row), begin, end in zip(rows, [0, *ends[:-1]], ends, strict=True):
        r, s = divmod(element, 3)
        places = [(y * 2 + r - 1, x * 2 + s - 1) for y in range(w.out_h) for x in range(w.out_w)]
        inside = [trace.PAGE + ((plane * 6 + y) * 7 + x) * 4 for y, x in places if 0 <= y < 6 and 0 <= x < 7]
        assert at[begin:end][~written[begin:end]].tolist() == inside
        assert at[begin:end][written[begin:end]].tolist() == [row + 4 * i for i in range(w.windows)]
