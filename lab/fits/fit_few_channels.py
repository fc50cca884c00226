# SPDX-License-Identifier: Apache-2.0
"""Fits the constants of convolutions of few channels, by threads and by tiles of pixels, to timed layers. Nothing is measured.

    python lab/fits/fit_few_channels.py      # lab/data/h200/few-channels.jsonl, volumes.jsonl (CUDA graphs), grouped-first.jsonl (events)

`launch_seconds` and `efficiency` of each of FAMILIES: the point of a grid with the least sum over both sorts of timing of the mean of
|log(predicted / measured)|, each at most CAP. Printed with its median and 90th percentile, for the machine's file and for the fit.
"""

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
import records
from rooms import DATA

from pysim.algorithms.gpu import direct, grouped
from pysim.cachemodel.gpu import threads
from pysim.cachemodel.gpu.launches import Variant
from pysim.machine.gpu import Gpu
from pysim.machine.load import load_any
from pysim.problem.conv import Conv
from pysim.problem.text import parse
from pysim.registry.cuda import conv_kernel

MACHINE = "h200"
FAMILIES = {"conv_direct_tiled": "_direct_tiled", "conv_grouped": "_grouped"}  # ends of names
BY: dict[str, Any] = {"direct": direct.Direct, "grouped": grouped.Grouped}
LAUNCHES, EFFICIENCIES = np.arange(3.0e-6, 6.0e-6, 0.1e-6), np.arange(0.25, 0.85, 0.01)
CAP = 0.5


class Timed(NamedTuple):
    variant: Variant
    seconds: float  # between events
    graph: bool


def timed(gpu: Gpu, ends: str) -> list[Timed]:
    """All timed layers of kernels whose names end so."""
    return [
        Timed(of.variant(gpu, {}), seconds, graph)
        for problem, layout, kernel, seconds, graph in (*_graphs(gpu), *_events())
        if kernel.endswith(ends) and not (of := BY[conv_kernel(kernel).algorithm](conv_kernel(kernel), _conv(problem), layout)).refusal()
    ]


def _conv(problem: str) -> Conv:
    found = parse(problem)
    assert isinstance(found, Conv)
    return found


def _graphs(gpu: Gpu) -> Iterator[tuple[str, str, str, float, bool]]:
    """Layers timed in CUDA graphs, where launches start while the one before ends."""
    assert gpu.event_seconds
    assert gpu.early_start_seconds
    saved = gpu.event_seconds.value + gpu.early_start_seconds.value
    for row in records.lines(DATA / MACHINE / "few-channels.jsonl")[1:]:
        yield row["problem"], row["layout"], row["kernel"], 1e-6 * row["us"] + saved, True
    for row in records.lines(DATA / MACHINE / "volumes.jsonl")[1:]:
        if (kernel := row.get("kernel") or "").endswith(FAMILIES["conv_direct_tiled"]):
            layout = "nchw" if _conv(row["problem"]).pointwise else "nhwc"
            yield row["problem"], layout, kernel, 1e-6 * row["pysim"] + saved, True


def _events() -> Iterator[tuple[str, str, str, float, bool]]:
    for row in records.lines(DATA / MACHINE / "grouped-first.jsonl")[1:]:
        for one in row["candidates"].values():
            if one.get("seconds") and one.get("algorithm") in BY:
                yield row["problem"], one.get("layout", "nchw"), one["schedule"]["kernel"], one["seconds"], False


def errors(gpu: Gpu, rows: list[Timed], launch: float, efficiency: float) -> np.ndarray:
    """|log(predicted / measured)| of each."""
    family = rows[0].variant.family
    assert family
    number = family.launch_seconds
    own = msgspec.structs.replace(
        family,
        launch_seconds=msgspec.structs.replace(number, value=launch),
        efficiency=msgspec.structs.replace(number, value=efficiency),
    )
    made = []
    for row in rows:
        assert row.variant.threads
        made.append((row.variant.threads, row.variant.attributes, own))
    seconds = threads.predict(gpu, made, hot=True).cycles / gpu.clock_hz
    return np.abs(np.log(seconds / np.array([row.seconds for row in rows])))


def fitted(gpu: Gpu, rows: list[Timed]) -> tuple[float, float]:
    graph = np.array([row.graph for row in rows])

    def mean(point: tuple[float, float]) -> float:
        found = np.minimum(errors(gpu, rows, *point), CAP)
        return sum(float(found[of].mean()) for of in (graph, ~graph) if of.any())

    return min(itertools.product(LAUNCHES.tolist(), EFFICIENCIES.tolist()), key=mean)


def main() -> None:
    gpu = load_any(MACHINE)
    assert isinstance(gpu, Gpu)
    for name, ends in FAMILIES.items():
        rows = timed(gpu, ends)
        family = rows[0].variant.family
        assert family
        now = family.launch_seconds.value, family.efficiency.value
        for what, point in (("the file's", now), ("fitted", fitted(gpu, rows))):
            found = 100 * errors(gpu, rows, *point)
            print(
                f"{name} {len(rows)} layers, {what}: launch {point[0] * 1e6:.1f} us, efficiency {point[1]:.2f}; error "
                f"{np.median(found):.1f} % median, {np.quantile(found, 0.9):.1f} % 90th percentile"
            )


if __name__ == "__main__":
    main()
