# SPDX-License-Identifier: Apache-2.0
"""What a benchmark wrote, as a file of lab/data: without the fields that no reader reads, records of one form as tables (records.py).

    python lab/pack.py FILE KIND > lab/data/MACHINE/SUBJECT.jsonl

KIND says what the file is, and so what is dropped:

    conv       lab/benchmarks/cuda/conv.py: quartiles, least times and errors of candidates
    layers     lab/benchmarks/cuda/layers.py: these, predicted times and the words of refusals
    products   lab/benchmarks/cuda/products.py: times beside other builds
    networks   lab/benchmarks/models.py and cuda/models.py: of layers all but problem and times, the reasons of decisions
    search     `pysim search --json`: the plans in full, all of a measured plan but its name, times and runs; searches-by-algorithm also
               drops the schedules of the names
    wavefronts lab/benchmarks/cuda/wavefronts.py: nothing
    rows       JSON lines with a header or without: nothing
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import records

Record = dict[str, Any]
SEARCHED = ("problem", "plans_measured", "plans_legal", "regret", "regret_8", "regret_16", "kendall_tau", "model_regret", "random_regret")
PLAN = ("name", "predicted_seconds", "measured_seconds", "runs")


def without(one: Record, *names: str) -> Record:
    return {name: value for name, value in one.items() if name not in names}


def conv(path: Path, *more: str) -> str:
    every = records.lines(path)
    headers = [one for one in every if one["kind"] == "header"]
    lines = [one for one in every if one["kind"] != "header"]
    for line in lines:
        line["candidates"] = {name: without(one, "quartiles", "min_seconds", "error", *more) for name, one in line["candidates"].items()}
    first, _, rest = records.packed(headers[0], lines, {"candidates": "name"}).partition("\n")
    return "\n".join([first, *(json.dumps(one, separators=(",", ":")) for one in headers[1:]), rest])


def layers(path: Path) -> str:
    return conv(path, "predicted_seconds", "refused")


def products(path: Path) -> str:
    lines = records.lines(path)
    for line in lines:
        line["plans"] = [without(plan, "beside") | {"schedule": without(plan["schedule"], "kernel")} for plan in line["plans"]]
    return records.packed({}, lines)


def networks(path: Path) -> str:
    header, *rows = records.lines(path)
    for one in rows:
        if "decisions" in one:
            one["decisions"] = [without(of, "reason", "predicted_seconds", "torch_seconds") for of in one["decisions"]]
        if "layers" in one:
            times = ("measured_seconds", "predicted_seconds")
            one["layers"] = [{"problem": of.get("problem") or of["op"], **{name: of[name] for name in times}} for of in one["layers"]]
    return records.packed(header, [without(one, "layouts", "missing") for one in rows])


def search(path: Path, algorithm_alone: bool = False) -> str:
    document = json.loads(path.read_text())
    rows = []
    for one in document["searches"]:
        found = [{name: plan[name] for name in PLAN} for plan in one["found"]]
        if algorithm_alone:
            found = [plan | {"name": plan["name"].partition(",")[0]} for plan in found]
        rows.append({name: one[name] for name in SEARCHED if name in one} | {"found": found})
    return records.packed({"kind": "header"} | without(document, "searches"), rows)


def searches_by_algorithm(path: Path) -> str:
    return search(path, algorithm_alone=True)


def wavefronts(path: Path) -> str:
    document = json.loads(path.read_text())
    return records.packed({"kind": "header"} | without(document, "launches"), document["launches"])


def rows(path: Path) -> str:
    every = records.lines(path)
    headed = every[0].get("kind") == "header" or every[0].keys() != every[-1].keys()
    return records.packed(every[0] if headed else {}, every[headed:])


KINDS: dict[str, Callable[[Path], str]] = {
    of.__name__.replace("_", "-"): of for of in (conv, layers, products, networks, search, searches_by_algorithm, wavefronts, rows)
}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("kind", choices=KINDS)
    given = parser.parse_args()
    sys.stdout.write(KINDS[given.kind](given.file))
