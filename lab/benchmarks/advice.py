# SPDX-License-Identifier: Apache-2.0
"""Whether the gains that advice names are there: each change that a caller can make is made, and timed in turns with the plan as it was.

    taskset -c 1 python lab/benchmarks/advice.py [-o FILE] [--threads] [PROBLEM[,option=value]...]

For each plan: what `--explain` says would help, the share of the time that it names, and the share that it saves. Changes of the machine
cannot be made here; of the number of threads only with --threads, which takes as many idle CPUs. Converting operands to another layout and
preparing B are not timed, as advice does not count them: both are for operands that a caller has in that form.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pysim import planner
from pysim.calibration import host
from pysim.comparison.compare import target_of
from pysim.explain.advice import advice, planned_with
from pysim.measure.clock import Call, CpuClock, interleave
from pysim.measure.speed import Speedometer
from pysim.problem.gemm import Gemm
from pysim.record.plan import Plan
from pysim.runtime.cpu import aligned
from pysim.runtime.cpu_launch import Launch

PLANS = (
    "conv:mb1ic64ih56oc64kh3ph1,accuracy=ieee",
    "conv:mb1ic64ih56oc64kh3ph1,memory_limit=65536",
    "conv:mb1ic128ih28oc128kh3ph1,accuracy=ieee",
    "conv:mb1ic128ih28oc128kh3ph1,memory_limit=65536",
    "conv:mb1ic256ih14oc256kh3ph1,accuracy=ieee",
    "conv:mb1ic512ih7oc512kh3ph1,accuracy=ieee",
    "conv:mb1ic32ih112oc64kh3ph1,accuracy=ieee",
    "conv:mb1ic96ih27oc256kh5ph2,accuracy=ieee",
    "conv:mb1ic48ih28oc192kh5ph2,accuracy=ieee",
    "conv:mb1ic3ih224oc64kh7sh2ph3,accuracy=ieee",
    "conv:mb1ic3ih224oc32kh3sh2ph1",
    "conv:mb1g32ic32ih112oc32kh3ph1",
    "conv:mb1g144ic144ih56oc144kh3ph1",
    "conv:mb1g96ic96ih112oc96kh3sh2ph1",
    "conv:mb1g192ic192ih28oc192kh3ph1",
    "conv:mb1g384ic384ih14oc384kh3ph1",
    "conv:mb1g576ic576ih14oc576kh3sh2ph1",
    "conv:mb1g960ic960ih7oc960kh3ph1",
    "conv:mb1g960ic960ih7oc960kh5ph2",
    "conv:mb1g240ic240ih28oc240kh5sh2ph2",
    "conv:mb1g672ic672ih14oc672kh5ph2",
    "gemm:2x1024x1024",
    "gemm:4x1024x1024",
    "gemm:8x256x1024",
    "gemm:8x768x3072:nt",
    "gemm:16x768x768",
    "gemm:48x256x48:nt",
)
Array = NDArray[np.float64]
SECONDS, BUDGET = 0.5, 6.0  # of samples of a plan; of a case, at most
WITHIN = 1 / 3


def plan_of(text: str) -> Plan:
    """PROBLEM,option=value,...: options of `pysim.plan`."""
    problem, *options = text.split(",")
    given = dict(one.split("=") for one in options)
    terms: dict[str, Any] = {name: int(value) if value.isdigit() else value for name, value in given.items()}
    return planner.plan(problem, host.machine("host"), **terms)


def call_of(plan: Plan) -> Call:
    """A call on operands in the plan's layout. A B that the plan prepares is prepared before."""
    launch, w, random = Launch.of(plan, plan.threads), plan.workload, np.random.default_rng(1)
    if isinstance(w, Gemm):
        second: tuple[int, ...] = (w.n, w.k) if w.trans_b else (w.k, w.n)
    else:
        second = w.filter_shape
    first, out = (aligned(shape, np.float32) for shape in launch.shapes)
    first[...] = random.standard_normal(first.shape)
    weights = aligned(second, np.float32)
    weights[...] = random.standard_normal(second)
    step = launch.step(first, launch.prepare(weights), out, aligned(launch.workspace_bytes, np.uint8))
    return step.bound()


def share_saved(before: Array, after: Array) -> tuple[float, tuple[float, float]]:
    """1 - after / before of the lower quartiles, since other processes disturb a sample in two; and the interval that nine in ten
    resamples of the rounds have."""
    drawn = np.random.default_rng(0).integers(0, before.size, (500, before.size))
    quarter = lambda samples: np.quantile(samples, 0.25, axis=-1)  # noqa: E731
    low, high = np.quantile(1 - quarter(after[drawn]) / quarter(before[drawn]), (0.05, 0.95))
    return float(1 - quarter(after) / quarter(before)), (float(low), float(high))


def followed(text: str, threads: bool) -> list[dict[str, Any]]:
    """A row for each change of this plan's advice that can be made here."""
    plan = plan_of(text)
    changes = {one.change.what: one for one in advice([(1, plan)]) if not one.change.machine}
    changes = {what: one for what, one in changes.items() if one.change.options.get("threads", 1) <= (os.cpu_count() or 1) * threads + 1}
    changes = {what: one for what, one in changes.items() if threads == ("threads" in one.change.options)}
    plans = {"": plan} | {what: planned_with(plan, one.change) for what, one in changes.items()}
    if len(plans) == 1:
        return []
    most = max(one.threads for one in plans.values())
    calls = {what: call_of(one) for what, one in plans.items()}
    meter = (lambda: Speedometer(target_of(plan), most)) if most == 1 else None
    timed = interleave(
        calls, CpuClock(most, own_time=most == 1), min_samples=60, min_seconds=SECONDS, budget_seconds=BUDGET, speedometer=meter
    )
    before = timed.samples[""]
    rows = []
    for what, one in changes.items():
        after, predicted = timed.samples[what], plans[what]
        middle, (low, high) = share_saved(before, after)
        rows.append(
            {
                "plan": text, "change": what, "named": one.share, "measured": middle, "interval": [low, high],
                "rounds": int(after.size), "algorithms": [plan.algorithm, predicted.algorithm],
                "predicted_seconds": [plan.seconds, predicted.seconds], "seconds": [float(np.median(before)), float(np.median(after))],
            }
        )  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plans", nargs="*", default=[*PLANS])
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--threads", action="store_true", help="the advice of two threads, and no other")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for text in given.plans:
        for row in followed(text, given.threads):
            rows.append(row)
            print(
                f"{row['named']:5.1%} named {row['measured']:6.1%} measured ({row['interval'][0]:.1%} to {row['interval'][1]:.1%}) "
                f"{row['change']}: {text}",
                flush=True,
            )
    if given.output:
        header = {"kind": "header", "machine": host.runnable("host").description}
        given.output.write_text("".join(json.dumps(row) + "\n" for row in (header, *rows)))
    near = sum(abs(row["measured"] - row["named"]) <= WITHIN * row["named"] for row in rows)
    print(f"{near} of {len(rows)} gains of {len({row['plan'] for row in rows})} plans are within a third of what was named")


if __name__ == "__main__":
    main()
