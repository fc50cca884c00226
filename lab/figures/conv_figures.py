#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pictures of measured convolutions, from the data files of lab/benchmarks/cuda/conv.py, as SVG.

    lab/figures/conv_figures.py roofline DATA... -o docs/conv-roofline.svg [--set opencnn] [--dtype f32] [-m h200]
    conv_figures.py heat DATA... -o docs/conv-heat.svg [--set opencnn] [--dtype f32] [--against pysim|planned|FAMILY|cudnn|torch]

roofline (after Figure 16 of openCNN, Mathematics 2021, 9(17), 2033; Williams et al., CACM 52(4), 2009): for each layer and each kind of
candidate the fastest one, at intensity = operations / (bytes of input, filters and output). Operations are those of the direct
method, 2 N K P Q (C/g) R S, so algorithms that transform their operands may exceed the roof. The roofs are the sustained multiply-adds and
the memory bandwidth of the machine file.
heat (after its Figures 17 and 19): time of each candidate over that of a reference, by layer; blue where the reference is faster, hatched
where a candidate has no time.

Worked number: conv:mb32ic64ih56oc64kh3ph1 is 7.40e9 operations on 51.5 MB: 144 a byte. The H200's roofs, 63.8 TFLOP/s and 4.8 TB/s,
meet at 13.3.
"""

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))
import conv_data
import rooms  # noqa: F401
from conv_data import CUDNN, OURS, TORCH, Candidate, Line

from pysim.errors import MachineError, MissingError, StoreError, run_script
from pysim.machine.gpu import Gpu
from pysim.machine.load import load_any
from pysim.problem.conv import Conv
from pysim.problem.dtypes import SIZES

# Okabe and Ito's colours, which colour-blind readers tell apart; ours are filled and in front, others' open
OTHERS = {
    "cuDNN GEMM-class": ("#0072b2", "s"),
    "cuDNN FFT": ("#56b4e9", "^"),
    "cuDNN Winograd": ("#009e73", "v"),
    "PyTorch": ("#555555", "D"),
}
OWN_COLOURS = ("#d55e00", "#cc79a7", "#e69f00", "#7a0403", "#000000", "#8b5a2b")
TITLES = {"opencnn": "openCNN's layers", "im2win": "im2win's layers, batch 128", "resnet50": "ResNet-50, batch 32"}
FACTOR = 3  # colours of the heat map end at 2^3


def intensity(w: Conv) -> float:
    """Operations of the direct method per byte of input, filters and output."""
    size = SIZES[w.dtype]
    filters = w.filters * (w.channels // w.groups) * w.kernel_h * w.kernel_w
    return w.flops / size / (w.batch * w.channels * w.height * w.width + filters + w.batch * w.filters * w.windows)


def kind_of(one: Candidate) -> str:
    """What a candidate is drawn as."""
    if one.who == TORCH:
        return "PyTorch"
    if one.who == OURS:
        return f"pysim {one.algorithm}"
    return "cuDNN GEMM-class" if one.algorithm in conv_data.GEMM_CLASS else f"cuDNN {'FFT' if 'FFT' in one.algorithm else 'Winograd'}"


def roofs(gpu: Gpu, dtype: str) -> tuple[float, float]:
    """(operations, bytes) a second that a machine sustains; MachineError where it has no such multiplier."""
    pipe = dtype if dtype == "f32" else f"tensor_{dtype}"
    if pipe not in gpu.fma_per_cycle:
        raise MachineError(f"{gpu.name} has no multiply-adds of {pipe}; it has {', '.join(gpu.fma_per_cycle)}")
    clock = gpu.sustained_hz.get(pipe, gpu.frequency_hz).value
    return 2 * gpu.sms.value * gpu.fma_per_cycle[pipe].value * clock, gpu.memory_bytes_per_second.value


def spread(wanted: list[float], gap: float) -> list[float]:
    """Ascending places in [0, 1], near the wanted ones (ascending) and at least `gap` apart, as far as there is room."""
    gap = min(gap, 1 / max(1, len(wanted) - 1))
    placed: list[float] = []
    for at in wanted:
        placed.append(max(at, placed[-1] + gap) if placed else max(at, 0.0))
    limit = 1.0
    for index in reversed(range(len(placed))):
        placed[index] = min(placed[index], limit)
        limit = placed[index] - gap
    return placed


# Drawing


def pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise MissingError("pictures need matplotlib, which is not installed: pip install matplotlib") from None
    matplotlib.use("Agg")
    # text stays text, the file depends on the data alone, and its white ground serves dark pages too
    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "pysim", "font.size": 9, "hatch.linewidth": 0.6}
    from matplotlib import pyplot as plots

    return plots


def save(figure: Any, out: Path) -> None:
    try:
        figure.savefig(out, facecolor="white", **({"metadata": {"Date": None}} if out.suffix == ".svg" else {"dpi": 150}))
    except OSError as error:
        raise StoreError(f"{out} cannot be written: {error}") from None
    finally:
        pyplot().close(figure)


def roofline(lines: list[Line], gpu: Gpu, out: Path) -> None:
    """Draws all lines, which are of one type."""
    dtype = lines[0].dtype
    points: dict[str, list[tuple[float, float]]] = {}
    for line in lines:
        best: dict[str, Candidate] = {}
        for who in (CUDNN, TORCH, OURS):
            for one in line.of(who).values():
                best.setdefault(kind_of(one), one)
        for kind, one in best.items():
            points.setdefault(kind, []).append((intensity(line.workload), line.tflops(one)))
    places = [x for kind in points.values() for x, _ in kind]
    rates = [y for kind in points.values() for _, y in kind]
    compute, memory = roofs(gpu, dtype)
    height, rows = 6.4, -(-len(points) // 4)
    figure, axes = pyplot().subplots(figsize=(9.5, height))
    over = 0.75 + 0.075 * max(len(name) for name in layers_of(lines))  # inches: the title and the layers' names
    figure.subplots_adjust(left=0.08, right=0.98, bottom=(0.65 + 0.25 * rows) / height, top=1 - over / height)
    ridge = compute / memory
    left, right = min(*places, ridge) / 2, max(*places, ridge) * 1.5
    low, high = min(rates) / 2, max(*rates, compute / 1e12) * 1.6
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(low, high))
    corner = (max(left, low * 1e12 / memory), max(low, left * memory / 1e12))  # where the memory's roof comes into sight
    axes.plot([corner[0], ridge, right], [corner[1], compute / 1e12, compute / 1e12], color="black", linewidth=1.6, zorder=2)
    _plain(axes)
    _roof_names(axes, compute, memory, corner)
    ours = [kind for kind in points if kind not in OTHERS]
    for kind in [*(name for name in OTHERS if name in points), *ours]:
        colour, marker = OTHERS.get(kind) or (OWN_COLOURS[ours.index(kind) % len(OWN_COLOURS)], "o")
        face, front = (colour, 4) if kind in ours else ("none", 3)
        axes.plot(*zip(*points[kind], strict=True), marker, color=colour, markerfacecolor=face, markersize=6, label=kind, zorder=front)
    _layer_names(axes, lines)
    axes.set_xlabel("operations of the direct method per byte of input, filters and output")
    axes.set_ylabel("TFLOP/s of the direct method")
    figure.suptitle(f"{TITLES.get(lines[0].set, lines[0].set)}, {dtype}, on {gpu.name}: the fastest of each kind", y=0.98)
    figure.legend(loc="lower center", ncol=min(4, len(points)), frameon=False)
    save(figure, out)


def _plain(axes: Any) -> None:
    """Ticks as plain numbers, 1 2 5 of each decade, and a faint grid."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid(color="0.92", linewidth=0.6)


def _roof_names(axes: Any, compute: float, memory: float, corner: tuple[float, float]) -> None:
    """Each roof's name over it: the rate of operations beside the ridge, the memory's along its slope."""
    ridge = (compute / memory, compute / 1e12)
    axes.annotate(f"{compute / 1e12:.1f} TFLOP/s", ridge, xytext=(8, 4), textcoords="offset points")
    ends = axes.transData.transform([corner, ridge])
    across, up = ends[1] - ends[0]
    middle, angle = axes.transData.inverted().transform((ends[0] + ends[1]) / 2), math.atan2(up, across)
    away = (-9 * math.sin(angle), 9 * math.cos(angle))
    place = {"rotation": math.degrees(angle), "ha": "center", "va": "center", "rotation_mode": "anchor"}
    axes.annotate(f"{memory / 1e12:.1f} TB/s", middle, xytext=away, textcoords="offset points", **place)


def layers_of(lines: list[Line]) -> dict[str, list[float]]:
    """name -> intensities, by their mean; layers that differ in their batch alone have one name."""
    named: dict[str, list[float]] = {}
    for line in lines:
        named.setdefault(line.label.partition("_N")[0], []).append(intensity(line.workload))
    return dict(sorted(named.items(), key=lambda item: sum(item[1]) / len(item[1])))


def _layer_names(axes: Any, lines: list[Line]) -> None:
    """Layers' names over the picture, each with a line to its intensities."""
    to_axes = axes.transData + axes.transAxes.inverted()
    at = {name: [float(to_axes.transform((x, 1))[0]) for x in found] for name, found in layers_of(lines).items()}
    wanted = sorted((sum(places) / len(places), name) for name, places in at.items())
    for (_, name), place in zip(wanted, spread([middle for middle, _ in wanted], 0.021), strict=True):
        for x in at[name]:
            axes.plot([x, x, place], [0, 1, 1.035], transform=axes.transAxes, color="0.8", linewidth=0.6, clip_on=False, zorder=1)
        axes.text(place, 1.045, name, transform=axes.transAxes, rotation=90, ha="center", va="bottom", fontsize=8)


def heat(lines: list[Line], against: str, out: Path) -> None:
    """Draws the ratios of all lines, which are of one type."""
    base, title = base_of(against)
    names = list(dict.fromkeys(name for line in lines for name, one in line.candidates.items() if one.who != OURS))
    timed = [name for name in names if any((one := line.candidates.get(name)) and one.seconds for line in lines)]
    plots = pyplot()
    figure, axes = plots.subplots(figsize=(3.2 + 0.92 * len(timed), 2.5 + 0.27 * len(lines)), layout="constrained")
    colours, scale = plots.get_cmap("RdBu"), plots.Normalize(-FACTOR, FACTOR)
    for row, line in enumerate(lines):
        mine = base(line)
        for column, name in enumerate(timed):
            one = line.candidates.get(name)
            ratio = one.seconds / mine.seconds if one and mine and one.seconds and mine.seconds else None
            shade = colours(scale(math.log2(ratio))) if ratio else "white"
            box = {"facecolor": shade, "edgecolor": "white" if ratio else "0.75", "hatch": None if ratio else "////"}
            axes.add_patch(plots.Rectangle((column - 0.5, row - 0.5), 1, 1, **box))
            dark = ratio is not None and sum(w * c for w, c in zip((0.3, 0.59, 0.11), shade, strict=False)) < 0.5
            words = f"{ratio:.2f}" if ratio and ratio < 9.95 else f"{ratio:.1f}" if ratio else "wrong" if one and one.wrong else ""
            axes.text(column, row, words, ha="center", va="center", color="white" if dark else "black", fontsize=8)
    axes.set(xlim=(-0.5, len(timed) - 0.5), ylim=(len(lines) - 0.5, -0.5))
    axes.set_xticks(range(len(timed)), [short_name(name) for name in timed])
    axes.set_yticks(range(len(lines)), [line.label.replace("_N", ", N = ") for line in lines])
    axes.tick_params(length=0, top=False, labeltop=True, labelbottom=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    figure.suptitle(f"{TITLES.get(lines[0].set, lines[0].set)}, {lines[0].dtype}: seconds over those of {title}")
    bar = figure.colorbar(plots.cm.ScalarMappable(scale, colours), ax=axes, location="bottom", shrink=0.6, aspect=40, pad=0.02)
    ticks = range(-FACTOR, FACTOR + 1)
    bar.set_ticks(list(ticks), labels=[f"{2.0**power:g}" for power in ticks])
    never = [name for name in names if name not in timed]
    bar.set_label("hatched: refused, wrong or not tried" + (f"; on every layer: {', '.join(never)}" if never else ""), fontsize=8)
    save(figure, out)


def short_name(name: str) -> str:
    """A candidate's name in lines that fit over a column."""
    return name.replace("IMPLICIT_PRECOMP_GEMM", "IMPLICIT_ PRECOMP_ GEMM").replace("_GEMM", "_ GEMM").replace("_ _", "_").replace(
        "NONFUSED", " NONFUSED"
    ).replace("FFT_TILING", "FFT_ TILING").replace(" ", "\n")  # fmt: skip


def base_of(against: str) -> tuple[Callable[[Line], Candidate | None], str]:
    """(which candidate of a line the others are divided by, its name)."""
    if against == "planned":
        return conv_data.planned, "what pysim planned"
    titles = {OURS: "pysim's fastest", CUDNN: "cuDNN's fastest", TORCH: "PyTorch's fastest"}
    if against in titles:
        return lambda line: line.best(against), titles[against]
    return lambda line: line.best(OURS, lambda one: one.algorithm == against), f"pysim's {against}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture", choices=("roofline", "heat"))
    parser.add_argument("data", nargs="+", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--set", dest="name", choices=conv_data.SETS, default="opencnn")
    parser.add_argument("--dtype", choices=conv_data.DTYPES, default="f32")
    parser.add_argument("-m", "--machine", default="h200", help="whose roofs are drawn")
    parser.add_argument("--against", help="heat: divide by this; without it pysim where the data have it, else cudnn")
    options = parser.parse_args()
    lines = [line for line in conv_data.lines_of(options.data) if (line.set, line.dtype) == (options.name, options.dtype)]
    lines = [line for line in lines if any(one.seconds for one in line.candidates.values())]
    if not lines:
        raise StoreError(f"nothing of {options.name} in {options.dtype} was timed in {', '.join(map(str, options.data))}")
    if options.picture == "roofline":
        gpu = load_any(options.machine)
        if not isinstance(gpu, Gpu):
            raise MachineError(f"{gpu.name} is not a GPU")
        roofline(lines, gpu, options.out)
        return
    against = options.against or (OURS if any(line.of(OURS) for line in lines) else CUDNN)
    if not any(base_of(against)[0](line) for line in lines):
        raise StoreError(f"nothing of {against!r} was timed in {options.name}, {options.dtype}, so nothing can be divided by it")
    lines.sort(key=lambda line: line.label.partition("_N")[0] if options.name == "opencnn" else "")
    heat(lines, against, options.out)


if __name__ == "__main__":
    run_script(main)
