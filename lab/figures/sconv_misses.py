# SPDX-License-Identifier: Apache-2.0
"""Cache misses of SConv against im2col and a matrix product, over whole networks, by exact simulation.

    python lab/figures/sconv_misses.py > lab/data/simulated/sconv-misses.json
    python lab/figures/sconv_misses.py --table lab/data/simulated/sconv-misses.json

For every distinct convolution of the networks: the planned SConv schedule on one side, Caffe's im2col and then the planned schedule of
the product on the other, on the same simulated caches, hot (the second of two runs counts) or with --cold from empty caches. A layer
that occurs several times is simulated once and counted as often. No layer is left out, nothing is sampled.

`ratio` is misses of im2col + GEMM over those of SConv. Layers where im2col is nothing (unpadded 1x1, stride 1: the product reads
the image) are also given apart, since only the other layers can show what im2col costs.
"""

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))
import im2col_baseline
import rooms  # noqa: F401

from pysim import planner
from pysim.cachemodel.simulator import trace
from pysim.cachemodel.simulator.hierarchy import Hierarchy
from pysim.machine import load as machine
from pysim.machine.cpu import Machine
from pysim.measure.store import environment
from pysim.problem.conv import Conv
from pysim.problem.text import distinct, resolve

NETWORKS = ("resnet18", "resnet50", "resnet152", "vgg16", "googlenet", "inception_v2", "squeezenet")
PARTS = ("all", "im2col", "pointwise")  # all layers, those that im2col expands, and the others


def misses(workload: Conv, on: Machine, cold: bool) -> dict[str, Any]:
    """Misses of both sides at each level, in lines, with the schedules that made them."""
    pair = (workload, "sconv"), (im2col_baseline.product_of(workload), "gemm")
    ours, product = (planner.plan(one, on, state="cold" if cold else "hot", algorithm=name) for one, name in pair)
    sconv = trace.simulate(workload, ours.schedule, Hierarchy.from_machine(on), warm=not cold)
    im2col = im2col_baseline.simulate(workload, product.schedule, Hierarchy.from_machine(on), warm=not cold)
    return {
        "problem": workload.text,
        "pointwise": workload.pointwise,
        "sconv": {"schedule": _words(ours.schedule), "accesses": sconv.accesses, **{name: sconv[name].misses for name in sconv}},
        "im2col_gemm": {
            "schedule": _words(product.schedule),
            "accesses": im2col.accesses,
            **{name: im2col[name].misses for name in im2col},
        },
    }


def _words(s: Any) -> str:
    return f"{s.kernel} {s.stationary} {s.pack} {s.channels}/{s.k2}/{s.k3}"


def totals(network: str, found: dict[str, dict[str, Any]], levels: list[str]) -> dict[str, Any]:
    """Misses of a network by part, with the ratio at each level."""
    document: dict[str, Any] = {"layers": 0}
    sums = {part: {side: dict.fromkeys(levels, 0) for side in ("sconv", "im2col_gemm")} for part in PARTS}
    for layer in distinct(resolve([network])):
        one = found[layer.workload.text]
        document["layers"] += layer.count
        for part in ("all", "pointwise" if one["pointwise"] else "im2col"):
            for side, by_level in sums[part].items():
                for name in levels:
                    by_level[name] += layer.count * one[side][name]
    for part, sides in sums.items():
        ratio = {name: sides["im2col_gemm"][name] / sides["sconv"][name] if sides["sconv"][name] else None for name in levels}
        document[part] = {**sides, "ratio": ratio}
    return document


def table(document: dict[str, Any]) -> str:
    """The networks of a document as a Markdown table: how many times fewer lines SConv misses."""
    levels = next(iter(document["networks"].values()))["all"]["ratio"]
    titles = [f"{name} {part}" for part in ("all layers", "im2col layers") for name in levels]
    rows = [["network", "layers", *titles, *(f"{name} lines, SConv / im2col" for name in levels)]]
    rows.append(["---", *["--:"] * (len(rows[0]) - 1)])
    for name, one in document["networks"].items():
        cells = [_times(one[part]["ratio"][level]) for part in ("all", "im2col") for level in levels]
        lines = [f"{one['all']['sconv'][level]:,} / {one['all']['im2col_gemm'][level]:,}" for level in levels]
        rows.append([name, str(one["layers"]), *cells, *lines])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:,.2f}" if ratio < 100 else f"{ratio:,.0f}"


def _job(job: tuple[Conv, str, bool]) -> dict[str, Any]:
    workload, name, cold = job
    print(workload.text, file=sys.stderr)
    return misses(workload, machine.load(name), cold)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--machine", default="xeon-4208")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--table", metavar="FILE", help="print the Markdown table of a file that was written before, and stop")
    given = parser.parse_args()
    if given.table:
        print(table(json.loads(Path(given.table).read_text())))
        return
    on = machine.load(given.machine)
    layers = distinct(resolve(given.networks))
    jobs = [(layer.workload, given.machine, given.cold) for layer in layers if isinstance(layer.workload, Conv)]
    assert len(jobs) == len(layers), "networks of convolutions only"
    if given.jobs > 1:
        with ProcessPoolExecutor(given.jobs) as pool:
            results = list(pool.map(_job, jobs))
    else:
        results = [_job(job) for job in jobs]
    found = {one["problem"]: one for one in results}
    levels = [level.name for level in on.levels]
    document = {
        "schema": 1,
        "command": " ".join(["python", *sys.argv]),
        "environment": environment(),
        "machine": on.name,
        "state": "cold" if given.cold else "hot",
        "networks": {name: totals(name, found, levels) for name in given.networks},
        "layers": results,
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
