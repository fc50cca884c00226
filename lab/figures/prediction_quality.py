#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Errors of predicted times by machine, algorithm and type, from the measurements in lab/data: a table and a picture.

    python lab/figures/prediction_quality.py -o docs/prediction-error.svg [--table]

A sample is a plan with its measured time and the time that was predicted then. For each group of samples:

    error   |log(predicted / measured)|, median and 90th percentile
    tau     Kendall's rank correlation over the plans of a problem with at least FEWEST plans, mean over problems
    regret  for such a problem, time of the plan predicted fastest / time of the fastest: mean and worst

A machine is *seen* if constants of its file were fitted to measurements on it. Worked number: predicted 80, 100, 90, measured 100, 90,
120 us: the first is chosen, the second is fastest, regret 1.11; tau is -0.33.
"""

import argparse
import json
import math
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))
import fit_gpu
import model_errors
import records
from rooms import DATA

from pysim.calibration import gpu_fit
from pysim.machine.cpu import Machine
from pysim.machine.gpu import Gpu
from pysim.machine.load import load_any, names
from pysim.machine.quantity import facts
from pysim.measure.statistics import kendall_tau
from pysim.problem.text import parse
from pysim.registry.cuda import gemm_attributes

FEWEST = 3
SEARCHES = (
    ("Zen 5", False, "zen5/search.jsonl"),
    ("Zen 5, calibrated", True, "zen5/search-calibrated.jsonl"),
    ("Xeon server, calibrated", True, "xeon-server/search.jsonl"),
    ("Zen 4, calibrated", True, "zen4/search-calibrated.jsonl"),
)
SEEN, UNSEEN = "#0072b2", "#d55e00"  # Okabe and Ito's


class Sample(NamedTuple):
    """One plan: where and what it is, and its seconds."""

    machine: str
    seen: bool
    algorithm: str
    dtype: str
    problem: str
    predicted: float
    measured: float


class Row(NamedTuple):
    """What a group of samples amounts to; None where no problem of it has plans enough."""

    machine: str
    seen: bool
    algorithm: str
    dtype: str
    problems: int
    plans: int
    median_error: float
    p90_error: float
    tau: float | None
    regret_mean: float | None
    regret_worst: float | None


def lines(path: Path | str) -> list[dict[str, Any]]:
    return records.lines(DATA / path)


def server() -> Iterator[Sample]:
    """The plans of a Xeon server, one a layer."""
    for one in lines("xeon-server/compare.jsonl")[1:]:
        algorithm = one["plan"].partition(",")[0]
        yield Sample("Xeon server", False, algorithm, *typed(one["problem"]), one["predicted_seconds"], one["measured_seconds"])


def teams() -> Iterator[Sample]:
    """Plans of 1 to 16 threads on servers of that kind, by a clock and shares that were fitted to layers of the other half of the set, or
    that are the means of what either half says: as the source of each machine file has it."""
    for path in sorted(DATA.glob("xeon-server*/thread-rounds.jsonl")):
        for one in lines(path)[1:]:
            if one["set"] == "reported" and "predicted_seconds" in one:
                threads = f"{one['threads']} thread{'s' if one['threads'] > 1 else ''}"
                problem = f"{one['problem']}, {threads}, {path.parent.name}"  # one plan each
                dtype, _ = typed(one["problem"])
                yield Sample("Xeon server, 16 CPUs", True, threads, dtype, problem, one["predicted_seconds"], one["measured_seconds"])


def convolutions() -> Iterator[Sample]:
    """All of pysim's candidates on an H200."""
    for path in sorted(DATA.glob("h200/conv-*.jsonl")):
        for one in (one for one in lines(path) if one["kind"] == "problem"):
            for it in one["candidates"].values():
                if it["who"] == "pysim" and it.get("seconds") and it.get("predicted_seconds"):
                    yield Sample("H200", True, it["algorithm"], one["dtype"], one["problem"], it["predicted_seconds"], it["seconds"])


def products() -> Iterator[Sample]:
    """Launches of products on an H200."""
    found = json.loads((DATA / "h200/planner.json").read_text())
    at = {name: place for place, name in enumerate(found["columns"])}
    for one in found["problems"]:
        for launch in one["launches"]:
            yield Sample("H200", True, "gemm", *typed(one["problem"]), launch[at["predicted"]], launch[at["seconds"]])


def searches() -> Iterator[Sample]:
    """The plans that searches measured, and whether constants had been fitted there."""
    for machine, seen, name in (*SEARCHES, *gpu_searches()):
        for one in lines(name)[1:]:
            for plan in one["found"]:
                if plan.get("predicted_seconds") and plan["runs"] > 1:
                    algorithm = plan["name"].partition(",")[0]
                    yield Sample(machine, seen, algorithm, *typed(one["problem"]), plan["predicted_seconds"], plan["measured_seconds"])


def calibrated() -> Iterator[Sample]:
    """Random products on GPUs calibrated by `pysim machines calibrate -m cuda`: by the shipped machine file, and by the calibrated one."""
    for path in sorted(DATA.glob("*/products-calibrated.jsonl")):
        name = path.parent.name
        shipped, own = load_any(name), load_any(DATA / name / f"{name}-calibrated.toml")
        cases, _ = fit_gpu.read([path], shipped)
        for machine, seen, label in ((shipped, name not in never_fitted(), name.upper()), (own, True, f"{name.upper()}, calibrated")):
            for case in cases:
                seconds = gpu_fit.predicted(case, machine, gemm_attributes(machine.capability_number))
                for predicted, measured in zip(seconds.tolist(), case.seconds.tolist(), strict=True):
                    yield Sample(label, seen, "gemm, held out", case.problem.dtype, case.problem.text, predicted, measured)


def random_layers() -> Iterator[Sample]:
    """Every algorithm's best plan on layers of no network, and several schedules of some of networks (lab/benchmarks/regret.py)."""
    for path in sorted([*DATA.glob("*/regret*.jsonl"), *DATA.glob("*/held-out.jsonl")]):
        plans, machine = lines(path)[1:], model_errors.machine_of(path)
        other = path.stem.removeprefix("regret").replace("-", " ")
        label = model_errors.header(path).get("label") or f"{machine.core.name}, random layers{other}"
        seen = has_fitted(machine)
        for one in plans:
            algorithm = one["plan"].partition(",")[0]
            yield Sample(label, seen, algorithm, *typed(one["problem"]), one["predicted_seconds"], one["measured_seconds"])


def gpu_searches() -> list[tuple[str, bool, str]]:
    """Searches of GPUs, whose plans were costed by the shipped machine, as SEARCHES has others."""
    names = [path.parent.name for path in sorted(DATA.glob("h*/search.jsonl"))]
    return [(name.upper(), name not in never_fitted(), f"{name}/search.jsonl") for name in names]


def typed(problem: str) -> tuple[str, str]:
    """A problem's type, and it."""
    return parse(problem).dtype, problem


def rows(samples: Iterable[Sample]) -> list[Row]:
    """Each machine's algorithms and types, then all of them."""
    groups: dict[tuple[str, bool, str, str], list[Sample]] = defaultdict(list)
    for one in samples:
        groups[one.machine, one.seen, one.algorithm, one.dtype].append(one)
        groups[one.machine, one.seen, "all", one.dtype].append(one)
    order = sorted(groups, key=lambda key: (key[0], key[3], key[2] != "all", _natural(key[2])))
    return [row(*key, groups[key]) for key in order]


def _natural(name: str) -> list[str | int]:
    """A sort key that orders numbers in a name by their value: 2 threads before 16."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def row(machine: str, seen: bool, algorithm: str, dtype: str, some: list[Sample]) -> Row:
    errors = [abs(math.log(one.predicted / one.measured)) for one in some]
    problems: dict[str, list[Sample]] = defaultdict(list)
    for one in some:
        problems[one.problem].append(one)
    ranked = [of for of in problems.values() if len(of) >= FEWEST]
    taus = [kendall_tau([one.predicted for one in of], [one.measured for one in of]) for of in ranked]
    known = [tau for tau in taus if tau is not None]
    regrets = [min(of, key=lambda one: one.predicted).measured / min(one.measured for one in of) for of in ranked]
    median, p90 = np.quantile(errors, [0.5, 0.9])
    return Row(
        *(machine, seen, algorithm, dtype, len(problems), len(some), float(median), float(p90)),
        *(float(np.mean(known)) if known else None, float(np.mean(regrets)) if regrets else None, max(regrets, default=None)),
    )


def table(found: list[Row], algorithms: bool = False) -> str:
    """Each machine and type, as the picture has them; with `algorithms` also each of its algorithms."""
    titles = "problems | plans | error, median | 90th percentile | tau | regret, mean | worst"
    text = [f"| machine, type |{' algorithm |' * algorithms} {titles} |", "| --- |" + " --- |" * algorithms + " --: |" * 7]
    for one in found if algorithms else drawn(found).values():
        figures = [f"{one.tau:.2f}" if one.tau is not None else "", *(f"{r:.3f}" if r else "" for r in (one.regret_mean, one.regret_worst))]
        errors = [f"{100 * error:.1f} %" for error in (one.median_error, one.p90_error)]
        where = f"{one.machine}, {one.dtype}" + ("" if one.seen else " (never seen)")
        name = [one.algorithm] * algorithms
        text.append(f"| {' | '.join([where, *name, str(one.problems), f'{one.plans:,}', *errors, *figures])} |")
    return "\n".join([*text, "", f"Machine files with no constant fitted to measurements: {', '.join(never_fitted())}.", ""])


def has_fitted(machine: Machine | Gpu) -> bool:
    """Whether any number of its model was fitted to measurements."""
    return any(fact.kind == "fitted" for _, fact in facts(machine))


def never_fitted() -> list[str]:
    """Shipped machines whose model has no fitted number."""
    return [name for name in names() if not has_fitted(load_any(name))]


def drawn(found: list[Row]) -> dict[str, Row]:
    """What the picture shows, from top to bottom: each machine and type, all its algorithms together, by label. Machines never seen come
    first; within each kind the smallest median error does."""
    shown = sorted((one for one in found if one.algorithm == "all"), key=lambda one: (one.seen, one.median_error))
    return {f"{one.machine}, {one.dtype} ({one.problems})": one for one in shown}


KINDS = {False: "machines never seen", True: "constants fitted on this machine"}


def draw(found: list[Row], out: Path) -> None:
    """Median and 90th percentile of each machine and type, in a panel for each of KINDS."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "pysim", "font.size": 9}
    from matplotlib import pyplot

    shown = drawn(found)
    panels = [(title, {label: one for label, one in shown.items() if one.seen == seen}) for seen, title in KINDS.items()]
    panels = [panel for panel in panels if panel[1]]
    heights = [len(of) for _, of in panels]
    size, ratios = (9.5, 1.6 + 0.21 * len(shown)), {"height_ratios": heights}
    figure, some = pyplot.subplots(len(panels), 1, sharex=True, squeeze=False, figsize=size, layout="constrained", gridspec_kw=ratios)
    for axes, (title, of), colour in zip(some[:, 0], panels, (UNSEEN, SEEN) if len(panels) > 1 else (SEEN,), strict=True):
        for place, one in enumerate(of.values()):
            axes.plot([100 * one.median_error, 100 * one.p90_error], [place, place], color=colour, linewidth=2, solid_capstyle="butt")
            axes.plot(100 * one.median_error, place, "o", color=colour, markersize=5)
            axes.plot(100 * one.p90_error, place, "|", color=colour, markersize=7)
        axes.set_yticks(range(len(of)), list(of))
        axes.set_ylim(len(of) - 0.4, -0.6)
        axes.set_xlim(left=0)
        axes.grid(axis="x", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.set_title(title, loc="left", fontsize=10, color=colour)
    some[-1, 0].set_xlabel("error of predicted times, %\nmedian (dot) to 90th percentile (bar)")
    figure.supylabel("machine, type (number of problems)", fontsize=9)
    figure.savefig(out, facecolor="white", metadata={"Date": None}, bbox_inches="tight", pad_inches=0.3)  # viewers' fonts may be wider
    pyplot.close(figure)


def found() -> list[Row]:
    """Of everything that is in the repository."""
    return rows([*server(), *teams(), *searches(), *random_layers(), *products(), *convolutions(), *calibrated()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if given.output:
        draw(found(), given.output)
    if given.table or not given.output:
        print(table(found(), algorithms=True), end="")


if __name__ == "__main__":
    main()
