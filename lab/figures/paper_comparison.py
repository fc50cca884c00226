# SPDX-License-Identifier: Apache-2.0
"""The SConv paper's comparison redone on the model: which operand stays, and SConv against im2col and a matrix product.

    python lab/figures/paper_comparison.py > lab/data/simulated/paper-comparison.json
    python lab/figures/update_pages.py                 # puts the tables into docs/cost-model.md

For every distinct convolution of the paper's seven networks, on its two machines (arXiv 2303.04739, section 7):

csa        cost of input and of weight stationary by the slicing analysis, equations 6 to 14
full       the least predicted cycles of each stationary kind by the full model
sconv      predicted seconds of the plan, hot caches
free       predicted seconds of the best plan among all algorithms
baseline   predicted seconds of im2col (`pysim.algorithms.cpu.im2col`) and of the product, by image and group; unpadded 1x1 layers of
           stride 1 are the product alone. Three of them, from the best that this project could do to the one that the paper timed:
             planned   im2col in vectors, the planned product: it may read the columns where they lie
             blas      im2col in vectors, the best product that packs both operands, as a BLAS does
             caffe     im2col element by element, one a cycle, and that product
packing    of each side: the share of its packing terms and all of im2col

A layer that occurs several times counts as often. A network's speed-up is the sum of its layers' baseline seconds over that of
SConv's. Everything is predicted, nothing here was measured.
"""

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))
import rooms  # noqa: F401
from im2col_baseline import columns_cost, product_of

from pysim import planner
from pysim.cachemodel.cpu.cost import predict_schedule
from pysim.cachemodel.cpu.nest import nest_of
from pysim.machine import load as machine
from pysim.machine.cpu import Machine
from pysim.measure.store import environment
from pysim.problem.conv import Conv
from pysim.problem.text import Layer, distinct, resolve
from pysim.record.cost import Cost, CsaCost

NETWORKS = ("googlenet", "inception_v2", "resnet18", "resnet50", "resnet152", "squeezenet", "vgg16")
MACHINES = ("xeon-4208", "power10-e1050")
# Table 2, speed-up of the convolutions alone, as the text of version 1 has it: x86, POWER10
TABLE_2 = {
    "googlenet": (1.18, 1.26),
    "inception_v2": (1.21, 1.28),
    "resnet18": (1.26, 1.46),
    "resnet50": (1.13, 1.28),
    "resnet152": (1.16, 1.28),
    "squeezenet": (1.12, 1.27),
    "vgg16": (1.27, 1.28),
}
PEAK = {"xeon-4208": 67.2e9, "power10-e1050": 256e9}  # FLOP/s of one core, the paper's Table 1
BASELINES = ("planned", "blas", "caffe")


def of_layer(workload: Conv, on: Machine) -> dict[str, Any]:
    """Everything that is predicted of one convolution."""
    csa, full = planner.plan(workload, on, model="csa"), planner.plan(workload, on, algorithm="sconv")
    ours, free = full.cost, planner.plan(workload, on)
    assert isinstance(ours, Cost)
    return {
        "problem": workload.text,
        "pointwise": workload.pointwise,
        "csa": {one.schedule.stationary: one.cost.cost for one in csa.considered if isinstance(one.cost, CsaCost)},
        "csa_choice": csa.schedule.stationary,
        "full": {one.schedule.stationary: one.cost.cycles for one in full.considered if isinstance(one.cost, Cost)},
        "full_choice": full.schedule.stationary,
        "kernel": full.kernel,
        "sconv_seconds": ours.seconds,
        "sconv_packing_seconds": ours.seconds * ours.terms["pack"] / ours.cycles,
        "peak_share": workload.flops / PEAK[on.name] / ours.seconds,
        "free_algorithm": free.algorithm,
        "free_seconds": free.seconds,
        "baseline": baselines(workload, on),
    }


def baselines(workload: Conv, on: Machine) -> dict[str, dict[str, float]]:
    """Seconds of each baseline, and the part of them that packing and im2col take."""
    product = product_of(workload)
    planned = planner.plan(product, on, algorithm="gemm").schedule
    packing = next(schedule for schedule, _ in planner.candidates(product, on, within=100, algorithm="gemm") if schedule.pack == "tiles")
    vector, element = (columns_cost(workload, on, by_element=by_element).seconds for by_element in (False, True))
    found = {}
    for name, schedule, copy in (("planned", planned, vector), ("blas", packing, vector), ("caffe", packing, element)):
        cost = predict_schedule(nest_of(product), on, schedule)
        times = workload.batch * workload.groups
        moved = times * cost.seconds * cost.terms["pack"] / cost.cycles
        found[name] = {"seconds": copy + times * cost.seconds, "packing_seconds": copy + moved}
    return found


def network(layers: list[Layer], found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The sums over the layers of a network, each counted as often as it occurs."""
    every = [(layer.count, found[layer.workload.text]) for layer in layers]
    total = sum(count for count, _ in every)
    document: dict[str, Any] = {"layers": total}
    for model in ("csa", "full"):
        chosen = sum(count for count, one in every if one[f"{model}_choice"] == "input_stationary")
        costs = [sum(count * one[model][kind] for count, one in every) for kind in ("input_stationary", "weight_stationary")]
        document[model] = {"input_stationary": chosen, "weight_stationary": total - chosen, "cost_ratio": costs[1] / costs[0]}
    ours = sum(count * one["sconv_seconds"] for count, one in every)
    pack = sum(count * one["sconv_packing_seconds"] for count, one in every)
    document["sconv_seconds"], document["sconv_packing_share"] = ours, pack / ours
    document["free_seconds"] = sum(count * one["free_seconds"] for count, one in every)
    document["peak_share"] = sum(count * one["sconv_seconds"] * one["peak_share"] for count, one in every) / ours
    document["baseline"] = {name: _against(every, name, ours, pack) for name in BASELINES}
    return document


def _against(every: list[tuple[int, dict[str, Any]]], name: str, ours: float, pack: float) -> dict[str, Any]:
    """One baseline of a network: its seconds, the speed-ups, and how packing compares."""
    theirs, moved = (sum(count * one["baseline"][name][key] for count, one in every) for key in ("seconds", "packing_seconds"))
    ratios = [(count, one["pointwise"], one["baseline"][name]["seconds"] / one["sconv_seconds"]) for count, one in every]
    return {
        "seconds": theirs,
        "speed_up": theirs / ours,
        "packing_share": moved / theirs,
        "packing_ratio": moved / pack,
        "faster": sum(count for count, _, ratio in ratios if ratio > 1),
        "pointwise": sum(count for count, pointwise, _ in ratios if pointwise),
        "pointwise_faster": sum(count for count, pointwise, ratio in ratios if pointwise and ratio > 1),
        "most": max(ratio for _, _, ratio in ratios),
    }


# ------------------------------------------------------------------------------------------------------------- tables


def stationary_table(document: dict[str, Any]) -> str:
    """How many layers keep the input (IS) and how many the weights (WS), and the network's cost of WS over IS, by machine and model."""
    titles = [f"{name} {model}: IS / WS, cost WS/IS" for name in MACHINES for model in ("csa", "full")]
    rows = [["network", "layers", *titles]]
    for name in NETWORKS:
        cells = []
        for on in MACHINES:
            for model in ("csa", "full"):
                one = document["machines"][on]["networks"][name][model]
                cells.append(f"{one['input_stationary']} / {one['weight_stationary']}, {one['cost_ratio']:.2f}")
        rows.append([name, str(document["machines"][MACHINES[0]]["networks"][name]["layers"]), *cells])
    return markdown(rows)


def speed_table(document: dict[str, Any]) -> str:
    """Predicted speed-ups of the convolutions of the seven networks beside the paper's, geometric means."""
    rows = [["machine", *BASELINES, "paper"]]
    for place, on in enumerate(MACHINES):
        means = [document["machines"][on]["geometric_mean"][copy] for copy in BASELINES]
        paper = math.exp(sum(math.log(pair[place]) for pair in TABLE_2.values()) / len(TABLE_2))
        rows.append([on, *(f"{value:.2f}" for value in (*means, paper))])
    return markdown(rows)


def detail_table(document: dict[str, Any]) -> str:
    """Figures over all layers of the seven networks that the paper gives beside Table 2."""
    rows = [["", *(f"{on}, {copy}" for on in MACHINES for copy in BASELINES)]]
    every = [document["machines"][on]["all"] for on in MACHINES]
    both = [(one, one["baseline"][copy]) for one in every for copy in BASELINES]
    rows.append(["layers faster", *(f"{base['faster'] / one['layers']:.0%}" for one, base in both)])
    rows.append(["pointwise layers faster", *(f"{base['pointwise_faster'] / base['pointwise']:.0%}" for _, base in both)])
    rows.append(["most, one layer", *(f"{base['most']:.2f}x" for _, base in both)])
    rows.append(["packing's share, baseline", *(f"{base['packing_share']:.0%}" for _, base in both)])
    rows.append(["packing's share, SConv", *(f"{one['sconv_packing_share']:.0%}" for one, _ in both)])
    rows.append(["packing time, baseline / SConv", *(f"{base['packing_ratio']:.1f}x" for _, base in both)])
    rows.append(["SConv's share of the peak", *(f"{one['peak_share']:.0%}" for one, _ in both)])
    return markdown(rows)


def markdown(rows: list[list[str]]) -> str:
    ruled = [rows[0], ["---", *["--:"] * (len(rows[0]) - 1)], *rows[1:]]
    return "\n".join(f"| {' | '.join(row)} |" for row in ruled) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", metavar="FILE", help="print the Markdown tables of a file that was written before, and stop")
    given = parser.parse_args()
    if given.tables:
        document = json.loads(Path(given.tables).read_text())
        print(stationary_table(document), speed_table(document), detail_table(document), sep="\n")
        return
    networks = {name: distinct(resolve([name])) for name in NETWORKS}
    together = distinct([layer for name in NETWORKS for layer in resolve([name])])
    document = {"schema": 1, "command": " ".join(["python", *sys.argv]), "environment": environment(), "machines": {}}
    for name in MACHINES:
        on, found = machine.load(name), {}
        for layer in together:
            assert isinstance(layer.workload, Conv), "networks of convolutions only"
            found[layer.workload.text] = of_layer(layer.workload, on)
        per_network = {net: network(layers, found) for net, layers in networks.items()}
        logs = {copy: [math.log(one["baseline"][copy]["speed_up"]) for one in per_network.values()] for copy in BASELINES}
        document["machines"][name] = {
            "networks": per_network,
            "geometric_mean": {copy: math.exp(sum(values) / len(values)) for copy, values in logs.items()},
            "all": network(together, found),
            "layers": list(found.values()),
        }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
