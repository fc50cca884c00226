#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the speedup of whole networks over the best of PyTorch (eager, channels last, CUDA graphs), one bar per type, from lab/data.

python lab/figures/model_figure.py docs/networks.svg
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).parents[1]))
import records
from rooms import DATA

PRECISIONS = {  # files of lab/benchmarks/cuda/models.py, and the colour of their bars
    "FP32": ("h100/models.jsonl", "#1f4e79"),
    "TF32 allowed": ("h100/models-tf32.jsonl", "#5b9bd5"),
    "autocast to float16": ("h100/models-f16.jsonl", "#f4a742"),
}
CPUS = {  # files of lab/benchmarks/models.py
    "Zen 5, one core": "zen5/models.jsonl",
    "Zen 4, one core": "zen4/models.jsonl",
    "Granite Rapids, one core": "granite-rapids/models.jsonl",
}
TORCH_CPUS = {"Zen 4, one core": "zen4/torch-cpu.jsonl"}  # files of lab/benchmarks/torch_cpu.py
_CPU_PEERS = "PyTorch's best of eager, channels last, and Inductor: plain, with freezing, and with max-autotune"
BATCHES = (4, 32)  # that are drawn: a GPU is busy with them
BAR = 0.26  # height, of 1 for a network


class Best(NamedTuple):
    """The fastest way of PyTorch's to run a network, and its milliseconds."""

    way: str
    milliseconds: float


def networks(file: str, batches: tuple[int, ...] = ()) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The header of a file of measured networks, and its rows (of some batches)."""
    header, *found = records.lines(DATA / file)
    return header, [one for one in found if one.get("kind") != "failed" and (not batches or one["batch"] in batches)]


def best(one: dict[str, Any]) -> Best:
    times = {way: value for way, value in one["milliseconds"].items() if not way.startswith("pysim")}
    way = min(times, key=times.__getitem__)
    return Best(way.replace("_", " "), times[way])


def peers(found: Sequence[dict[str, Any]]) -> str:
    """What PyTorch's best is the best of in these rows; only modes of torch.compile that were measured are named."""
    rows: dict[str, int] = {}
    for one in found:
        ways = [way.split() for way in one["milliseconds"]]
        for mode in dict.fromkeys(way[1] for way in ways if way[0] == "compile"):
            rows[mode] = rows.get(mode, 0) + 1
    modes = ", ".join(mode if count == len(found) else f"{mode} in {count} of {len(found)}" for mode, count in rows.items())
    compiled = f" and torch.compile ({modes})" if modes else "; torch.compile was not measured"
    return f"eager, channels last{',' if modes else ' and'} CUDA graphs{compiled}"


def speed(one: dict[str, Any], level: str = "") -> float:
    """PyTorch's best time over pysim's, as CUDA graphs; `level`: of accuracy, "" the one that whole networks have by default."""
    return best(one).milliseconds / float(one["milliseconds"][f"pysim{level} graph"])


def summary() -> str:
    """Slowest, geometric mean and fastest of the bars and of ONNX models on CPUs, as a Markdown table."""
    rows = []
    for label, (file, _) in PRECISIONS.items():
        found = networks(file, BATCHES)[1]
        rows += _rows({f"H100, {label}": [(one["model"], speed(one)) for one in found]}, f"PyTorch's best of {peers(found)}")
    cpu = {machine: [(one["model"].removesuffix(".onnx"), cpu_speed(one)) for one in networks(file)[1]] for machine, file in CPUS.items()}
    rows += _rows(cpu, "ONNX Runtime")
    for on, file in TORCH_CPUS.items():
        for over, speeds in torch_cpu_speeds(file).items():
            rows += _rows({f"{on}, PyTorch models": [*speeds.items()]}, over)
    titles = "| on | over | networks | slowest | geometric mean | fastest |"
    return "\n".join([titles, "|---|---|--:|---|--:|---|", *rows, ""])


def torch_cpu_speeds(file: str) -> dict[str, dict[str, float]]:
    """For eager PyTorch, and for the best of all its ways: the speed of `pysim.torch.optimize` over it, by network, on one thread."""
    rows = [one for one in networks(file)[1] if one["threads"] == 1]
    found: dict[str, dict[str, float]] = {"eager PyTorch": {}, _CPU_PEERS: {}}
    for one in rows:
        times = {way: seconds["cpu"] for way, seconds in one["seconds"].items()}
        fastest = min(value for way, value in times.items() if not way.startswith("pysim"))
        for speeds, other in zip(found.values(), (times["eager"], fastest), strict=True):
            speeds[one["model"]] = other / times["pysim"]
    return found


def torch_cpu_losses(file: str) -> str:
    """The networks that PyTorch's compiler runs faster, as an item of a list, if there are any."""
    _, speeds = torch_cpu_speeds(file).values()
    slower = ", ".join(f"{name} {speed:.2f}x" for name, speed in sorted(speeds.items(), key=lambda pair: pair[1]) if speed < 1)
    return f"- On one core of a Zen 4, PyTorch models that are slower than under Inductor: {slower}.\n" if slower else ""


def _rows(measured: dict[str, list[tuple[str, float]]], over: str) -> list[str]:
    rows = []
    for on, pairs in measured.items():
        (slow, least), *_, (fast, most) = sorted(pairs, key=lambda pair: pair[1])
        mean = geometric_mean(value for _, value in pairs)
        rows.append(f"| {on} | {over} | {len(pairs)} | {least:.2f}x {slow} | {mean:.2f}x | {most:.2f}x {fast} |")
    return rows


def cpu_speed(one: dict[str, Any]) -> float:
    """ONNX Runtime's time over pysim's."""
    return float(one["peers"]["onnxruntime"] / one["measured_seconds"])


def peers_table(file: str) -> str:
    """Networks beside ONNX Runtime and OpenVINO (lab/benchmarks/network_peers.py): the better peer's time over pysim's, by least times and
    by medians, for each number of threads."""
    header, *rows = records.lines(DATA / file)
    found = {(one["network"], one["threads"]): one for one in rows}
    counts, names = sorted({threads for _, threads in found}), [*dict.fromkeys(name for name, _ in found)]
    told = ["| network |" + "".join(f" pysim, {threads} | better peer over it, least, median | predicted |" for threads in counts)]
    told.append("|---|" + "--:|--:|--:|" * len(counts))
    ratios: dict[int, list[tuple[float, float, float]]] = {threads: [] for threads in counts}
    for name in names:
        cells = ""
        for threads in counts:
            if (one := found.get((name, threads))) is None:
                cells += " | | |"
                continue
            ours, others = one["seconds"]["pysim"], [of for way, of in one["seconds"].items() if way in ("onnxruntime", "openvino")]
            least, median = (min(of[at] for of in others) / ours[at] for at in (0, 1))
            ratios[threads].append((least, median, one["predicted"] / ours[0]))
            cells += f" {ours[0] * 1e3:.2f} | {least:.2f}x, {median:.2f}x | {one['predicted'] * 1e3:.2f} |"
        told.append(f"| {name} |{cells}")
    means = []
    for threads, some in ratios.items():
        least, median = (geometric_mean(of) for of in [*zip(*some, strict=True)][:2])
        off, under = statistics.median(abs(of - 1) for *_, of in some), sum(one < 0.98 for one, *_ in some)
        means.append(
            f"{threads} thread{'s' * (threads > 1)}: {len(some)} networks, {least:.2f}x in the geometric mean of least times, "
            f"{median:.2f}x of medians, {under} below 0.98x; predictions off by {off:.0%} in the median"
        )
    return "\n".join([*told, "", f"{header['machine']}; milliseconds, least; {'; '.join(means)}.", ""])


def draw(out: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "pysim", "font.size": 9}
    from matplotlib import pyplot

    headers, found = zip(*(networks(file, BATCHES) for file, _ in PRECISIONS.values()), strict=True)
    names = [*dict.fromkeys((one["model"], one["batch"]) for rows in found for one in rows)]
    figure, axes = pyplot.subplots(figsize=(8, 0.9 + 0.42 * len(names)), layout="constrained")
    for place, (label, rows) in enumerate(zip(PRECISIONS, found, strict=True)):
        speeds = [speed(one) for one in rows]
        middles = [names.index((one["model"], one["batch"])) + (place - 1) * BAR for one in rows]
        bars = axes.barh(middles, speeds, 0.9 * BAR, color=PRECISIONS[label][1], label=label)
        axes.bar_label(bars, [f"{one:.2f}x" for one in speeds], padding=2, fontsize=7)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(names)), [f"{model}, batch {batch}" for model, batch in names])
    axes.set_ylim(len(names) - 0.45, -0.55)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    about = f"speed over PyTorch's best (1: as fast); {headers[0]['device']}, PyTorch {headers[0]['versions']['torch']}"
    axes.set_xlabel(f"{about}\nbest of {peers([one for rows in found for one in rows])}")
    figure.legend(loc="outside upper center", ncols=3, frameon=False, handlelength=1)
    figure.savefig(out, facecolor="white", metadata={"Date": None})
    pyplot.close(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    draw(parser.parse_args().out)
