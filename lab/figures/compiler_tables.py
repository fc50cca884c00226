# SPDX-License-Identifier: Apache-2.0
"""Tables of whole networks beside PyTorch with its compiler, from what lab/benchmarks/cuda/compilers.py measured."""

import math
import sys
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).parents[1]))
import records
from rooms import DATA

FILE = "h200/models-compilers.jsonl"
TYPES = {"half": "float16", "bf16": "bfloat16", "tf32": "TF32", "f32": "FP32"}
OURS, ALWAYS = "pysim graph", ("pysim alone graph", "pysim compiled graph")
LEAST = 0.98  # of PyTorch's speed: below it a network loses


class Case(NamedTuple):
    """A network, a batch and a type: milliseconds of PyTorch's fastest way and of pysim's default."""

    network: str
    batch: int
    precision: str
    way: str
    best: float
    ours: float
    row: dict[str, Any]

    @property
    def ratio(self) -> float:
        return self.best / self.ours


def cases(file: str = FILE) -> tuple[dict[str, Any], list[Case]]:
    """The file's header and cases; of a case that was measured again, the last."""
    header, *rows = records.lines(DATA / file)
    found = dict[tuple[str, int, str], Case]()
    for row in rows:
        times = {way: value for way, value in row["ms"].items() if not way.startswith("pysim")}
        way = min(times, key=times.__getitem__)
        key = row["model"], row["batch"], row["precision"]
        found[key] = Case(*key, way, times[way], row["ms"][OURS], row)
    return header, [*found.values()]


def _groups(every: list[Case]) -> list[tuple[str, int]]:
    there = {(one.precision, one.batch) for one in every}
    return [
        (precision, batch)
        for precision in TYPES
        for batch in sorted({one.batch for one in every}, reverse=True)
        if (precision, batch) in there
    ]


def table() -> str:
    """A line for each network: PyTorch's best time over pysim's, and pysim's milliseconds."""
    header, every = cases()
    groups = _groups(every)
    titles = " | ".join(f"{TYPES[precision]}, batch {batch}" for precision, batch in groups)
    lines = [f"| network | {titles} |", "|---|" + "--:|" * len(groups)]
    by_place = {(one.network, one.precision, one.batch): one for one in every}
    for network in dict.fromkeys(one.network for one in every):
        cells = [by_place.get((network, *group)) for group in groups]
        lines.append(f"| {network} | " + " | ".join(f"{one.ratio:.2f}x, {one.ours:.3g}" if one else "" for one in cells) + " |")
    means = [geometric_mean([one.ratio for one in every if (one.precision, one.batch) == group]) for group in groups]
    lines.append("| *geometric mean* | " + " | ".join(f"**{one:.2f}x**" for one in means) + " |")
    earlier = sum(one.row["run"] == "before" for one in every)
    told = f" To {earlier} of these cases the constants of the choice were fitted." if earlier else ""
    about = f"{header['device']}, PyTorch {header['torch']}. {' '.join(_said(every))}{told}"
    return "\n".join([*lines, "", about, ""])


def means() -> str:
    """A line for each type and batch: how many times as fast as PyTorch's best, from the slowest to the fastest network."""
    header, every = cases()
    lines = [f"| {header['device'].removeprefix('NVIDIA ')} | networks | slowest | geometric mean | fastest |", "|---|--:|---|--:|---|"]
    for precision, batch in _groups(every):
        of = sorted((one for one in every if (one.precision, one.batch) == (precision, batch)), key=lambda one: one.ratio)
        slowest, fastest = (f"{one.ratio:.2f}x {one.network}" for one in (of[0], of[-1]))
        mean = geometric_mean([one.ratio for one in of])
        lines.append(f"| {TYPES[precision]}, batch {batch} | {len(of)} | {slowest} | {mean:.2f}x | {fastest} |")
    return "\n".join([*lines, ""])


def _said(every: list[Case]) -> list[str]:
    lost = [one for one in every if one.ratio < LEAST]
    said = [f"Of {len(every)} cases {len(lost)} {'is' if len(lost) == 1 else 'are'} below {LEAST}x;"]
    ways = [max(one.best / one.row["ms"][way] for way in (OURS, *ALWAYS) if way in one.row["ms"]) for one in every]
    said.append(f"had the faster of compiled and one by one been chosen each time, {sum(one < LEAST for one in ways)} would be.")
    errors = [one.row["ways"][OURS][0] / one.row["ways"][one.way][0] for one in every if one.row["ways"].get(one.way, [0])[0]]
    said.append(f"The mean error is at most {max(errors):.2f} times PyTorch's, {median(errors):.2f} times in the median.")
    off = [abs(math.log(predicted / one.ours)) for one in every if (predicted := expected_ms(one.row))]
    said.append(f"Predicted times are off by {math.expm1(median(off)):.0%} in the median.".replace("%", " %"))
    return said


def expected_ms(row: dict[str, Any]) -> float:
    """The predicted milliseconds of pysim's default; 0.0 if its graphs were not looked at."""
    if not row.get("expected"):
        return 0.0
    alone, fused, own, faster = row["expected"]
    return 1e3 * (fused + faster if row["by_compiler"] else alone + own)


def losses() -> str:
    """An item of README's list: where PyTorch is faster, by type and batch."""
    header, every = cases()
    told = []
    for precision, batch in _groups(every):
        of = [one for one in every if (one.precision, one.batch) == (precision, batch)]
        lost = sorted((one for one in of if one.ratio < LEAST), key=lambda one: one.ratio)
        worst = f" (the slowest is {lost[0].network}, at {lost[0].ratio:.2f} times PyTorch's speed)" if lost else ""
        told.append(f"{len(lost)} of {len(of)} in {TYPES[precision]} at batch {batch}{worst}")
    device = header["device"].removeprefix("NVIDIA ")
    if earlier := sum(one.row["run"] == "before" for one in every):
        told[-1] += (
            f". To {earlier} of these {len(every)} cases the constants of the choice between pysim's layers and the compiler's were fitted"
        )
    more = round(100 * (1 / LEAST - 1))
    what = f"networks that take over {more} % longer under pysim's default than under PyTorch's best mode, its compiler included"
    return f"- On an {device}, {what}: {'; '.join(told)}.\n"
