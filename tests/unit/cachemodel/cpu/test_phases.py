# SPDX-License-Identifier: Apache-2.0
"""Nests of several phases: what their descriptions say that caches miss is what exact caches count on the walk of the loops."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from nest_trace import walk

from pysim import planner
from pysim.algorithms.cpu import depthwise
from pysim.cachemodel.cpu import winograd
from pysim.cachemodel.cpu.direct_schedules import Rows
from pysim.cachemodel.cpu.reuse.loops import Extent, Loop, LoopNest, Operand
from pysim.cachemodel.cpu.threads import touched_bytes
from pysim.cachemodel.cpu.winograd_incore import shape_of
from pysim.cachemodel.simulator.hierarchy import Hierarchy
from pysim.errors import MissingError
from pysim.explain.text import explain
from pysim.machine.load import load
from pysim.problem.conv import Conv
from pysim.problem.text import parse
from pysim.record.schedule import Schedule, name_of
from pysim.registry.cpu import Kernel, direct_kernels, kernels

Spans = Iterator[tuple[int, int, bool]]  # first byte, bytes, whether they are written
MACHINES = ("xeon-4208", "zen4", "power10-e1050")
LAYERS = (
    "conv:g32ic32ih112oc32kh3ph1",
    "conv:g96ic96ih56oc96kh3sh2ph1",
    "conv:g144ic144ih56oc144kh3ph1",
    "conv:g240ic240ih28oc240kh5ph2",
    "conv:g384ic384ih14oc384kh3ph1",
    "conv:g960ic960ih7oc960kh3ph1",
    "conv:g48ic48ih56oc48kh7ph3",
    "conv:mb2g64ic64ih28oc128kh3ph1",
)


def counted(spans: Spans, machine: str) -> list[int]:
    """Misses of each level in the second of two runs."""
    on, found = load(machine).contiguous(), [*spans]
    lines = [np.arange(at // 64, (at + size - 1) // 64 + 1) for at, size, _ in found]
    addresses, counts = np.concatenate(lines) * 64, np.array([part.size for part in lines])
    sizes, writes = np.full(addresses.size, 4, dtype=np.int32), np.repeat([write for _, _, write in found], counts)
    caches = Hierarchy.from_machine(on)
    try:
        caches.simulate(addresses, sizes, writes)
    except MissingError as error:
        pytest.skip(str(error))
    again = caches.simulate(addresses, sizes, writes, warm=True)
    return [again[level.name].misses for level in on.levels]


def depthwise_spans(w: Conv, kernel: Any) -> Spans:
    """What native/algorithms/depthwise.c touches, by the walk of its description: whole rows, buffers one after another on pages."""
    size, filters, row, out_row = 4, w.filters // w.groups, 4 * w.width, 4 * w.out_w
    image, result, weights = w.height * row, w.out_h * out_row, w.kernel_h * w.kernel_w * size * (w.channels // w.groups)
    channels, lanes = w.channels // w.groups, kernel.lane_filters
    kept = lanes * w.height * depthwise.kept_columns(w) * size
    sizes = (w.batch * w.channels * image, w.filters * weights, w.batch * w.filters * result, kept + lanes * weights, lanes * result)
    x, f, y, planes, sums = (int(at) for at in np.cumsum([0, *(-(-size // 4096) * 4096 for size in sizes)])[:-1])
    seen: dict[str, range] = {}
    high = kernel.windows // kernel.lane_windows

    def rows(p: range, step: int) -> tuple[int, int]:
        first, last = p[0] * step * w.stride_h - w.pad_top, (min(p[-1] * step + step, w.out_h) - 1) * w.stride_h - w.pad_top + w.kernel_h
        return max(0, first), min(w.height, last)

    for operand, tiles in walk(depthwise.described(w, Rows.alone(kernel, schedule_of(kernel)))):
        seen |= tiles
        groups, at = seen["groups"], len(seen["images"]) and seen["images"][0]
        if operand == "input" and lanes == 1:
            top, end = rows(seen["rows"], high)
            for c in range(groups[0] * channels, (groups[-1] + 1) * channels):
                yield x + (at * w.channels + c) * image + top * row, (end - top) * row, False
        elif operand == "input":
            yield x + (at * w.channels + groups[0]) * image, len(groups) * image, False
        elif operand == "filters":
            some = seen["filters"] if lanes == 1 else range(1)
            yield f + (groups[0] * filters + some[0]) * weights, len(groups) * len(some) * weights, False
        elif operand == "output" and lanes == 1:
            p0, p1 = seen["rows"][0] * high, min((seen["rows"][-1] + 1) * high, w.out_h)
            for k in seen["filters"]:
                yield y + (at * w.filters + groups[0] * filters + k) * result + p0 * out_row, (p1 - p0) * out_row, True
        elif operand == "output":
            yield y + (at * w.filters + groups[0]) * result, len(groups) * result, True
        elif operand == "packed" and "rows" in tiles and len(tiles["rows"]) == 1:
            top, end = rows(tiles["rows"], 1)
            yield planes + top * kept // w.height, (end - top) * kept // w.height, False
            yield planes + kept, lanes * weights, False
        elif operand == "packed":
            yield planes, kept + lanes * weights, True
        elif len(tiles["rows"]) == 1:
            yield sums + tiles["rows"][0] * lanes * out_row, lanes * out_row, True
        else:
            yield sums, lanes * result, False


def differences(nest: LoopNest, spans: Callable[[], Spans], touched: float, machine: str) -> list[float]:
    """By level, of the misses counted or of all lines that are touched, whichever are more."""
    levels = load(machine).contiguous().levels
    predicted = nest.misses(levels).sum(axis=1)[:, 0]
    exact = [misses * level.line_bytes for misses, level in zip(counted(spans(), machine), levels, strict=True)]
    return [abs(float(one) - other) / max(other, touched) for one, other in zip(predicted, exact, strict=True)]


def schedule_of(kernel: Kernel) -> Schedule:
    """A kernel's own tile; lines do not depend on the rest."""
    return Schedule(kernel.name, "input_stationary", "none", kernel.windows, kernel.filters, 1, 1, 1, "depthwise")


def test_depthwise_lines_are_those_of_exact_caches_within_5_percent_median_and_15_in_nine_of_ten() -> None:
    found = [
        differences(
            depthwise.described(w, Rows.alone(kernel, schedule_of(kernel))), partial(depthwise_spans, w, kernel), touched_bytes(w), machine
        )
        for w in (parse(text) for text in LAYERS)
        for kernel in direct_kernels()
        if kernel.name in ("f32_rows_128x1__avx512", "f32_planes_8x16__avx512") and isinstance(w, Conv)
        if kernel.lane_filters == 1 or w.filters == w.groups
        for machine in MACHINES
    ]
    for errors in np.array(found).T:
        assert np.median(errors) <= 0.05
        assert np.quantile(errors, 0.9) <= 0.15


def winograd_spans(of: winograd.Candidates) -> Spans:
    """What algorithms/winograd.c touches, by the walk of its description: strips of the image for a panel, rows of patches and filters."""
    w, (kernel, shape), nest = of.workload, of.cases[0], winograd.described(of)
    k2, k3, channels = (int(of.k2[0]), int(of.k3[0]), int(of.channels[0]))
    planes, wide, held = shape.planes, 4 * kernel.windows, 4 * kernel.filters
    plane, pitch = 4 * winograd.plane_elements(w, kernel, shape_of(w, kernel, 4)), 4 * planes * kernel.windows * k3 + 64
    sizes = (4 * w.channels * w.height * w.width, planes * shape.filter_panels * shape.channels * wide, 4 * w.filters * w.windows)
    x, f, y, patches, products = (int(at) for at in np.cumsum([0, *(-(-size // 4096) * 4096 for size in (*sizes, k2 * planes * plane))]))
    seen: dict[str, range] = {}
    for operand, tiles in walk(nest):
        seen |= tiles
        panels, c0 = tiles.get("tiles", seen["tiles"]), seen.get("channels", range(1))[0]
        one = len(panels) == 1 and len(tiles.get("planes", ())) == 1
        rows = shape.panel // shape.row * shape.outputs
        if operand == "input":
            top, end = panels[0] * rows, min(w.height, (panels[-1] + 1) * rows + w.kernel_h - 1)
            yield from ((x + 4 * (c * w.height + top) * w.width, 4 * (end - top) * w.width, False) for c in range(w.channels))
        elif operand == "patches" and not one:
            yield from ((patches + (t % k2 * planes + p) * plane, plane, True) for t in panels for p in range(planes))
        elif operand == "patches":
            yield patches + (panels[0] % k2 * planes + tiles["planes"][0]) * plane + c0 * held, len(tiles["channels"]) * held, False
        elif operand == "filters":
            at = ((tiles["filter panels"][0] * planes + tiles["planes"][0]) * shape.channels + c0) * wide
            yield f + at, len(tiles["channels"]) * wide, False
        elif operand == "products":
            for tile in range(panels[0] % k2 * shape.panel, (panels[-1] % k2 + 1) * shape.panel):
                for p in tiles["planes"]:
                    at = products + tile * pitch + (p * k3 + tiles["filter panels"][0] % k3) * wide
                    yield at, len(tiles["filter panels"]) * wide, one
        elif operand == "output":
            for k in range(tiles["filter panels"][0] * kernel.windows, min(w.filters, (tiles["filter panels"][-1] + 1) * kernel.windows)):
                first, last = (min(w.out_h, panel * rows) for panel in (panels[0], panels[-1] + 1))
                yield y + 4 * (k * w.out_h + first) * w.out_w, 4 * (last - first) * w.out_w, True
    assert channels


def test_winograds_lines_are_those_of_exact_caches_within_10_percent_median_and_a_quarter_in_nine_of_ten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(winograd, "ROWS_AHEAD", 0)  # which the walk does not ask for
    w, kernel = parse("conv:ic64ih56oc64kh3ph1"), next(row for row in kernels() if row.name == "f32_win_32x14__avx512")
    assert isinstance(w, Conv)
    shape, touched = shape_of(w, kernel, 4), 4 * (64 * 56 * 56 * 2 + 36 * 64 * 64)
    found = []
    for machine in MACHINES:
        for schedule in ((64, 14, 2), (64, 4, 1), (32, 2, 2), (64, 1, 2), (16, 7, 1)):
            sizes = (np.array([float(size)]) for size in schedule)
            of = winograd.Candidates(w, load(machine).contiguous(), True, ((kernel, shape),), np.zeros(1, dtype=np.int64), *sizes)
            found.append(differences(winograd.described(of), partial(winograd_spans, of), touched, machine))
    for errors in np.array(found).T:
        assert np.median(errors) <= 0.1
        assert np.quantile(errors, 0.9) <= 0.25


def test_a_buffer_of_two_phases_comes_again_after_parts_of_both() -> None:
    """100 bytes are read ahead and 80 written, in the loop they are read with 10 of 40 others each of 4 times: worked by hand."""
    loops = (Loop("blocks", "b", 1, 3), Loop("tiles", "t", 1, 4))
    operands = (
        Operand("source", {"b": Extent(100, 300)}, "blocks"),
        Operand("buffer", {"t": Extent(20, 80)}, "blocks", written=True),
        Operand("buffer", {"t": Extent(20, 80)}, "tiles"),
        Operand("others", {"b": Extent(1, 3), "t": Extent(10, 40)}, "tiles"),
    )
    reuses = [*LoopNest(loops, operands, {"b": 3, "t": 4}, 1).reuses()]
    written, read = (next(one for one in reuses if one.row == row) for row in (1, 2))
    assert (written.times[0], written.size[0], written.first, read.first) == (3, 80, True, False)
    # a quarter of the way: what is left of the source, all of the buffer, a quarter of the others
    assert read.distances[:, 0].tolist() == [80 + 0.75 * 100 + 0.25 * 40, 80 + 0.25 * 100 + 0.75 * 40]
    assert written.distances[:, 0].tolist() == [80 + 0.75 * 40 + 0.25 * 100, 80 + 0.25 * 40 + 0.75 * 100]


@pytest.mark.parametrize(
    "text", ["conv:mb1ic3ih224oc64kh7sh2ph3", "conv:mb1ic64ih56oc64kh3ph1", "conv:g240ic240ih28oc240kh5ph2", "gemm:1x4096x4096"]
)
def test_no_two_uses_of_an_operand_have_the_same_words(text: str) -> None:
    for one in planner.plan(text, "zen4").considered:
        plan = planner.plan(text, "zen4", name=name_of(one.algorithm, one.schedule))
        reuse_lines = explain(plan).split("\n\nreuse\n")[1].split("\n\n")[0].splitlines()
        uses = [re.split(r" +[0-9.]+ [KMG]?i?B", line)[0] for line in reuse_lines]
        assert uses and len({*uses}) == len(uses), uses
