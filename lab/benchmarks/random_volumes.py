# SPDX-License-Identifier: Apache-2.0
"""Random convolutions of sequences and volumes, and transposed ones, as benchdnn's lines.

    python lab/benchmarks/random_volumes.py plan [-n 20000] [-m zen4] [-o FILE] [--lines FILE]   milliseconds of planning, and what failed
    python lab/benchmarks/random_volumes.py run [-n 5000] [-o FILE]                         results of the host's plans against float64

`plan` takes process time, without kept plans; one line of JSON a machine. `--lines`: random lines of that file, such as those of oneDNN's
tests/benchdnn/inputs. `run` checks exact and random operands of each problem under the chosen plan and under the best plan of one other
algorithm; transposed convolutions, too, against the sum of their definition. A failure is printed with its line, and the exit status is 1.
"""

import argparse
import itertools
import json
import math
import random
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import pysim
from pysim import planner
from pysim.calibration import host
from pysim.comparison.bench import bench_of
from pysim.comparison.peer_timings import checked
from pysim.errors import PysimError
from pysim.measure.store import environment
from pysim.planner import forget
from pysim.problem.text import parse

MOST_PRODUCTS = {"plan": 1 << 38, "run": 1 << 24}  # multiply-adds of a problem
SIZES = {"plan": 96, "run": 14}  # of an axis of a volume
LENGTHS = {"plan": 16000, "run": 600}  # of a sequence
CHANNELS = {"plan": 10.0, "run": 6.5}  # as powers of two


def line(draw: random.Random, what: str) -> str:
    """A line whose output is not empty, of at most MOST_PRODUCTS."""
    while True:
        text = _drawn(draw, what)
        try:
            if parse(text).flops / 2 <= MOST_PRODUCTS[what]:
                return text
        except PysimError:  # no output, or a padding that the output does not allow
            continue


def _drawn(draw: random.Random, what: str) -> str:
    kind, along = draw.choice(("conv", "conv", "conv", "deconv")), draw.choice(("w", "dhw", "dhw", "hw"))
    along = "hw" if kind == "deconv" and along == "w" and draw.random() < 0.5 else along if kind == "deconv" or along != "hw" else "dhw"
    channels, filters = (max(1, round(2 ** draw.uniform(0, CHANNELS[what]))) for _ in range(2))
    groups = 1
    if draw.random() < 0.2:
        groups = filters = channels
    elif draw.random() < 0.2:
        groups = draw.choice((2, 3, 4, 8))
        channels, filters = (groups * -(-count // groups) for count in (channels, filters))
    elif draw.random() < 0.5:
        channels, filters = (max(1, count // 16) * 16 for count in (channels, filters))
    cubic = len(along) > 1 and draw.random() < 0.5
    axes = [_axis(draw, along == "w", what) for _ in along]
    axes = axes[:1] * len(along) if cubic else axes
    fields = "".join(f"i{a}{i}k{a}{k}s{a}{s}p{a}{p}d{a}{d}" for a, (i, k, s, p, d) in zip(along, axes, strict=True))
    return f"{kind}:g{groups}mb{draw.choice((1, 1, 1, 2, 3))}ic{channels}{fields}oc{filters}"


def _axis(draw: random.Random, is_sequence: bool, what: str) -> tuple[int, int, int, int, int]:
    """Size, kernel, stride, padding, dilation - 1."""
    kernel = draw.choice((1, 3, 3, 4, 5, 7, 10, 31, 63) if is_sequence else (1, 1, 2, 3, 3, 3, 4, 5, 7))
    stride, dilation = draw.choice((1, 1, 1, 2, 2, 3, 4)), draw.choice((0,) * 7 + (1, 2))
    most = LENGTHS[what] if is_sequence else SIZES[what]
    return round(2 ** draw.uniform(0, math.log2(most))), kernel, stride, draw.choice((0, kernel // 2, kernel // 2, kernel - 1)), dilation


def planned(machine: str, lines: list[str]) -> dict[str, Any]:
    """Milliseconds of planning."""
    on, failed, spent, algorithms = host.any_machine(machine), [], [], Counter[str]()
    planner.plan(lines[0], on)  # opens files and libraries
    for text in lines:
        forget()
        start = time.process_time()
        try:
            algorithms[planner.plan(text, on).algorithm] += 1
        except PysimError as error:
            failed.append((text, str(error)))
        spent.append((time.process_time() - start) * 1e3)
    quantiles = {str(q): round(float(np.quantile(spent, q)), 2) for q in (0.5, 0.9, 0.99, 1)}
    slowest = [lines[at] for at in np.argsort(spent)[-3:]]
    within = sum(one <= 5 for one in spent) / len(spent)
    return {
        "machine": machine,
        "lines": len(lines),
        "failed": failed,
        "milliseconds": quantiles,
        "within_5_ms": within,
        "slowest": slowest,
        "algorithms": dict(algorithms),
    }


def wrong(text: str, seed: int, ran: Counter[str]) -> str:
    """What is wrong with the results of this line, else nothing."""
    on = host.any_machine("host")
    if text.startswith("deconv"):
        ran["transposed"] += 1
        return _wrong_transposed(text, seed)
    first = planner.plan(text, on)
    others = [one for one in planner.plans(text, on, 1000) if one.algorithm != first.algorithm]
    kinds = sorted({one.algorithm for one in others})
    plans = [first, *(next(one for one in others if one.algorithm == name) for name in kinds[seed % max(1, len(kinds)) :][:1])]
    for plan in plans:
        ran[plan.algorithm] += 1
        bench = bench_of(plan, on, 1, seed)
        verdict, _ = checked(bench, lambda operands, plan=plan, bench=bench: bench.make(plan, operands))
        if verdict.status == "failed":
            return f"{plan.name}: {verdict.reason}"
    return ""


def _wrong_transposed(text: str, seed: int) -> str:
    """Of a transposed convolution, against the sum of its definition in float64."""
    of = {name: int(number) for name, number in re.findall(r"([a-z]+)(\d+)", text.partition(":")[2])}
    letters, groups, rng = [a for a in "dhw" if f"i{a}" in of], of["g"], np.random.default_rng(seed)
    sizes, kernel, strides, pads, more = ([of[f"{field}{a}"] for a in letters] for field in "ikspd")
    x = rng.standard_normal((of["mb"], of["ic"], *sizes), np.float32)
    w = rng.standard_normal((of["ic"], of["oc"] // groups, *kernel), np.float32)
    dilations = [one + 1 for one in more]
    call = getattr(pysim, f"conv_transpose{len(letters)}d")
    got = call(x, w, stride=tuple(strides), padding=tuple(pads), dilation=tuple(dilations), groups=groups)
    whole = [(i - 1) * s + d * (k - 1) + 1 for i, s, d, k in zip(sizes, strides, dilations, kernel, strict=True)]
    y = np.zeros((of["mb"], groups, of["oc"] // groups, *whole))
    scale = np.zeros_like(y)
    grouped, weights = x.astype(np.float64).reshape(of["mb"], groups, -1, *sizes), w.astype(np.float64).reshape(groups, -1, *w.shape[1:])
    for tap in itertools.product(*map(range, kernel)):
        to = tuple(slice(t * d, t * d + (i - 1) * s + 1, s) for t, d, i, s in zip(tap, dilations, sizes, strides, strict=True))
        part = weights[(slice(None),) * 3 + tap]
        y[(slice(None),) * 3 + to] += np.einsum("ngc...,gcm->ngm...", grouped, part)
        scale[(slice(None),) * 3 + to] += np.einsum("ngc...,gcm->ngm...", abs(grouped), abs(part))
    kept = (slice(None), slice(None), *(slice(p, size - p) for p, size in zip(pads, whole, strict=True)))
    want, most = (a.reshape(of["mb"], of["oc"], *whole)[kept] for a in (y, scale))
    if got.shape != want.shape:
        return f"the result has shape {got.shape}, expected {want.shape}"
    off = np.abs(got - want)
    bar = 1e-6 * most + 3e-5 * float(np.sqrt(np.mean(want**2)))  # of Winograd F(4x4, 3x3)
    return "" if (off <= bar).all() else f"the result is {float((off / np.maximum(bar, 1e-30)).max()):.1e} times as far off as allowed"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("plan", "run"))
    parser.add_argument("-n", type=int)
    parser.add_argument("-m", "--machine", action="append")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lines", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    draw, count = random.Random(given.seed), given.n or {"plan": 20000, "run": 5000}[given.what]
    lines = draw.sample(given.lines.read_text().split(), count) if given.lines else [line(draw, given.what) for _ in range(count)]
    if given.what == "plan":
        found = [planned(machine, lines) for machine in given.machine or ("zen4",)]
        failed = sum(len(one["failed"]) for one in found)
    else:
        ran: Counter[str] = Counter()
        failures = [(text, why) for at, text in enumerate(lines) if (why := _told(text, at, ran))]
        failed, found = len(failures), [{"lines": count, "failed": failures, "checked": dict(ran)}]
    for one in found:
        print(json.dumps(one))
    if given.output:
        documents = [{"kind": "header", "environment": environment(), "seed": given.seed}, *found]
        given.output.write_text("".join(json.dumps(one) + "\n" for one in documents), encoding="utf-8")
    return int(failed > 0)


def _told(text: str, seed: int, ran: Counter[str]) -> str:
    try:
        why = wrong(text, seed, ran)
    except PysimError as error:
        why = str(error)
    if why:
        print(f"{text}: {why}", flush=True)
    return why


if __name__ == "__main__":
    sys.exit(main())
