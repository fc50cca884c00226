#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Figures 8 to 11 and Table 2 of the SConv paper (arXiv 2303.04739) made again, from lab/data.

    lab/figures/sconv_figures.py docs        # writes sconv-speedups.svg (Figures 8, 9), sconv-packing.svg (10), sconv-misses.svg (11)

speedups   time of im2col and a product over that of SConv and of the best plan of any algorithm, per convolution, sorted. All 393
           convolutions of the seven networks, then the pointwise ones, which need no im2col.
packing    time of all convolutions of a network over that of its baseline: packing (with im2col and transforms), and all else.
misses     misses per 1,000 multiply-adds in the exact simulation, hot caches. The paper divides by loads, which differ between both sides.

Predicted machines: im2col in vectors and a product that packs both operands (`blas` of paper_comparison.py). Measured machines: this
library's im2col and OpenBLAS; in `packing`, where a BLAS does not tell its share, this library's product.
"""

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).parents[1]))
import paper_comparison
import records
from conv_figures import pyplot, save
from rooms import DATA

from pysim.problem.text import parse

NETWORKS = tuple(paper_comparison.TABLE_2)
PREDICTED = {"xeon-4208": "xeon-4208, predicted", "power10-e1050": "power10-e1050, predicted"}
MEASURED = {"zen4/networks.jsonl": "Zen 4, measured", "zen5/networks.jsonl": "Zen 5, measured"}
MISSES = {"simulated/sconv-misses.json": "xeon-4208, simulated", "simulated/sconv-misses-power10.json": "power10-e1050, simulated"}
SCONV, FREE, BASE, PACKING = "#0072b2", "#d55e00", "#999999", "#e69f00"  # Okabe and Ito's colours


class Layer(NamedTuple):
    """Seconds of one convolution, and the packing share of the two sides that `packing` compares."""

    pointwise: bool
    base: float
    sconv: float
    free: float
    base_packing: float  # of `base_parts` seconds
    base_parts: float
    sconv_packing: float


class Machine(NamedTuple):
    """The layers of all networks by problem text."""

    title: str
    layers: dict[str, Layer]


def machines() -> list[Machine]:
    """The two machines of the paper as predicted, then the measured ones."""
    document = json.loads((DATA / "simulated/paper-comparison.json").read_text())["machines"]
    found = [Machine(title, {one["problem"]: _predicted(one) for one in document[name]["layers"]}) for name, title in PREDICTED.items()]
    for file, title in MEASURED.items():
        _, *rows = records.lines(DATA / file)
        found.append(Machine(title, {one["problem"]: _measured(one, found[0].layers[one["problem"]].pointwise) for one in rows}))
    return found


def _predicted(one: dict[str, Any]) -> Layer:
    base = one["baseline"]["blas"]
    times = base["seconds"], one["sconv_seconds"], one["free_seconds"]
    return Layer(one["pointwise"], *times, base["packing_seconds"], base["seconds"], one["sconv_packing_seconds"])


def _measured(one: dict[str, Any], pointwise: bool) -> Layer:
    spent = one["seconds"]
    base, sconv = (max(0.0, spent[side] - one["packing"][side]["kernel_seconds"]) for side in ("im2col", "sconv"))
    return Layer(pointwise, spent["im2col_openblas"], spent["sconv"], spent["free"], base, spent["im2col"], sconv)


def counts() -> dict[str, dict[str, int]]:
    """How often each network has each convolution."""
    header = records.header(DATA / "zen5/networks.jsonl")
    return {name: header["networks"][name] for name in NETWORKS}


def total(machine: Machine, network: dict[str, int], part: str) -> float:
    """The sum of one field of `Layer` over the convolutions of a network."""
    return sum(count * float(getattr(machine.layers[problem], part)) for problem, count in network.items())


def table() -> str:
    """Table 2, the convolutions alone: speed-ups of SConv and of the free choice over im2col and a product."""
    every, networks = machines(), counts()
    titles = [f"{one.title}: SConv, free choice" for one in every]
    rows = [["network", "paper: x86, POWER10", *titles]]
    ratios: list[list[tuple[float, float]]] = []
    for name, network in networks.items():
        base = [total(one, network, "base") for one in every]
        ratios.append([(at / total(one, network, "sconv"), at / total(one, network, "free")) for one, at in zip(every, base, strict=True)])
        rows.append([name, *map(_pair, [paper_comparison.TABLE_2[name], *ratios[-1]])])
    papers = zip(*paper_comparison.TABLE_2.values(), strict=True)
    means = [_means(column) for column in zip(*ratios, strict=True)]
    rows.append(["geometric mean", *map(_pair, [tuple(map(geometric_mean, papers)), *means])])
    return paper_comparison.markdown(rows)


def _means(pairs: Iterable[tuple[float, float]]) -> tuple[float, ...]:
    return tuple(geometric_mean(side) for side in zip(*pairs, strict=True))


def _pair(values: Iterable[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


# Drawing


def speedups(out: Path) -> None:
    every, networks = machines(), counts()
    figure, rows = pyplot().subplots(2, len(every), figsize=(10, 5.4), sharey="row", layout="constrained")
    for pointwise, axes_row in zip((False, True), rows, strict=True):
        for machine, axes in zip(every, axes_row, strict=True):
            of = [machine.layers[problem] for network in networks.values() for problem, count in network.items() for _ in range(count)]
            layers = [one for one in of if one.pointwise or not pointwise]
            _sorted_line(axes, [one.base / one.free for one in layers], FREE, "free choice")
            _sorted_line(axes, [one.base / one.sconv for one in layers], SCONV, "SConv")
            faster = sum(one.base > one.sconv for one in layers) / len(layers)
            axes.text(0.04, 0.94, f"SConv faster on {faster:.0%}", transform=axes.transAxes, va="top", fontsize=8)
            axes.set_title(machine.title if not pointwise else "", fontsize=9)
            axes.set_xlabel(f"{len(layers)} {'pointwise ' * pointwise}convolutions, sorted", fontsize=8)
            _ratio_axis(axes)
    for axes in rows[:, 0]:
        axes.set_ylabel("speed over im2col + product")
    figure.legend(*rows[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False)
    save(figure, out)


def _sorted_line(axes: Any, ratios: list[float], colour: str, label: str) -> None:
    axes.plot(range(1, len(ratios) + 1), sorted(ratios), color=colour, linewidth=1.6, label=label)


def _ratio_axis(axes: Any) -> None:
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.axhline(1, color="black", linewidth=0.8)
    axes.grid(axis="y", color="0.9", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def packing(out: Path) -> None:
    every, networks = machines(), counts()
    figure, row = pyplot().subplots(1, len(every), figsize=(10, 3.4), sharey=True, layout="constrained")
    for machine, axes in zip(every, row, strict=True):
        for place, network in enumerate(networks.values()):
            base, sconv = total(machine, network, "base_parts"), total(machine, network, "sconv")
            moved, sconv_moved = total(machine, network, "base_packing"), total(machine, network, "sconv_packing")
            for left, colour, packed, rest in ((-0.38, BASE, moved, base - moved), (0.02, SCONV, sconv_moved, sconv - sconv_moved)):
                axes.bar(place + left, rest / base, 0.36, color=colour, align="edge")
                axes.bar(place + left, packed / base, 0.36, rest / base, color=PACKING, align="edge")
        axes.set_title(machine.title, fontsize=9)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        _network_names(axes, networks)
    row[0].set_ylabel("time over the baseline's")
    patches = [pyplot().Rectangle((0, 0), 1, 1, color=colour) for colour in (PACKING, BASE, SCONV)]
    labels = ["packing and im2col", "im2col + product: all else", "SConv: all else"]
    figure.legend(patches, labels, loc="outside upper center", ncols=3, frameon=False)
    save(figure, out)


def misses(out: Path) -> None:
    networks, levels = counts(), (("L1", 1.0), ("L2", 0.65), ("L3", 0.35))
    figure, row = pyplot().subplots(1, len(MISSES), figsize=(10, 3.6), sharey=True, layout="constrained")
    for (file, title), axes in zip(MISSES.items(), row, strict=True):
        layers = {one["problem"]: one for one in json.loads((DATA / file).read_text())["layers"]}
        for place, network in enumerate(networks.values()):
            thousands = sum(count * parse(problem).flops for problem, count in network.items()) / 2000
            for side, left, colour in (("im2col_gemm", -0.4, BASE), ("sconv", 0.02, SCONV)):
                for number, (level, shade) in enumerate(levels):
                    height = sum(count * layers[problem][side][level] for problem, count in network.items()) / thousands
                    axes.bar(place + left + 0.12 * number, height, 0.11, color=colour, alpha=shade, align="edge")
        axes.set_yscale("symlog", linthresh=0.1)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_title(f"{title}, hot caches", fontsize=9)
        _network_names(axes, networks)
    row[0].set_ylabel("misses per 1,000 multiply-adds")
    patches = [pyplot().Rectangle((0, 0), 1, 1, color=colour) for colour in (BASE, SCONV)]
    labels = ["im2col + product: L1, L2, L3 (dark to light)", "SConv: L1, L2, L3"]
    figure.legend(patches, labels, loc="outside upper center", ncols=2, frameon=False)
    save(figure, out)


def _network_names(axes: Any, networks: Iterable[str]) -> None:
    names = list(networks)
    axes.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


FIGURES = {"sconv-speedups.svg": speedups, "sconv-packing.svg": packing, "sconv-misses.svg": misses}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    for name, draw in FIGURES.items():
        draw(folder / name)


if __name__ == "__main__":
    main()
