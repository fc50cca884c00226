# SPDX-License-Identifier: Apache-2.0
"""Fits the constants of the cost model on this computer: measures schedules of some sets, reports the error on others.

    python lab/fits/fit_model.py googlenet inception_v2 squeezenet --test resnet50 mec resnet18 > lab/data/zen4/fit.json

For each distinct layer the planned schedule is timed, interleaved with two random schedules of each vector kernel whose predicted cost is
within 35 % of the best. (Results are checked by `pysim compare`, not here.) The fitted constants of `machine.Core` (CONSTANTS below)
minimise a soft-L1 loss of log(predicted / measured) over the training layers. The JSON document has the machine, the versions, and the
constants before and after. On the test layers it has, for both sets of constants, the error (median and 90th percentile of
|log(predicted / measured)|), Kendall's tau over the schedules of a layer, and the regret of the planned one.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from scipy import optimize, stats

from pysim import planner
from pysim.cachemodel.cpu.cost import predict_schedule
from pysim.cachemodel.cpu.nest import nest_of
from pysim.calibration import host
from pysim.check.reference import trial
from pysim.machine.cpu import Machine
from pysim.machine.quantity import Number
from pysim.measure.clock import pinned
from pysim.measure.store import environment
from pysim.problem.conv import Conv
from pysim.problem.text import Layer, distinct, resolve
from pysim.record.schedule import Schedule
from pysim.registry.cpu import kernels
from pysim.runtime import cpu as runtime
from pysim.runtime import cpu_launch

CONSTANTS = ("call_cycles", "pack_call_cycles", "pack_cycles", "pack_line_cycles", "store_run_cycles", "prefetch_streams", "overlap")
START = (120.0, 30.0, 1.3, 7.0, 24.0, 10.0, 0.85)
BOUNDS = ((0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0), (1000.0, 300.0, 20.0, 100.0, 100.0, 256.0, 1.0))
WITHIN, PER_KERNEL, ROUNDS, MOST_FLOPS = 1.35, 2, 25, 1.2e9


class Sample(msgspec.Struct):
    """Median seconds of one schedule; the first of a layer is the planned one."""

    layer: Conv
    schedule: Schedule
    seconds: float


def schedules_to_time(layer: Conv, on: Machine, random: np.random.Generator) -> list[Schedule]:
    """The planned schedule, then random good ones of every vector kernel: PER_KERNEL of each stationary kind."""
    groups: dict[tuple[str, str], list[Schedule]] = {}
    for schedule, _ in planner.candidates(layer, on, WITHIN, algorithm="sconv"):
        groups.setdefault((schedule.stationary, schedule.kernel), []).append(schedule)
    chosen = [planner.plan(layer, on, algorithm="sconv").schedule]
    for _, good in sorted(groups.items()):
        chosen += [good[row] for row in random.choice(len(good), min(PER_KERNEL, len(good)), replace=False)]
    return [schedule for schedule in chosen if not schedule.kernel.endswith("__portable")]


def measure(layers: list[Layer], on: Machine) -> list[Sample]:
    random, samples = np.random.default_rng(0), []
    for layer in (item.workload for item in layers):
        if not isinstance(layer, Conv) or layer.flops > MOST_FLOPS:
            continue
        schedules, (x, w) = schedules_to_time(layer, on, random), trial(layer, runtime.RESULT_DTYPES[layer.dtype]).random
        ready = [cpu_launch.Prepared(layer, w, schedule) for schedule in schedules]
        out, times = ready[0](x), np.empty((ROUNDS, len(ready)))
        with pinned():
            for turn in range(ROUNDS):
                for column, run in enumerate(ready):
                    run(x, out)
                    start = time.perf_counter()
                    run(x, out)
                    times[turn, column] = time.perf_counter() - start
        samples += [Sample(layer, schedule, float(value)) for schedule, value in zip(schedules, np.median(times, axis=0), strict=True)]
        print(layer.text, len(schedules), file=sys.stderr)
    return samples


def with_constants(on: Machine, values: Any) -> Machine:
    numbers = {name: Number(value=float(value), kind="fitted", source="fit") for name, value in zip(CONSTANTS, values, strict=True)}
    return msgspec.structs.replace(on, core=msgspec.structs.replace(on.core, **numbers))


def errors(samples: list[Sample], on: Machine) -> np.ndarray[Any, Any]:
    """log(predicted / measured) of every sample."""
    return np.array([np.log(predict_schedule(nest_of(s.layer), on, s.schedule).seconds / s.seconds) for s in samples])


def quality(samples: list[Sample], on: Machine) -> dict[str, float]:
    log = errors(samples, on)
    taus, regrets = [], []
    for layer in dict.fromkeys(sample.layer for sample in samples):
        own = [i for i, sample in enumerate(samples) if sample.layer == layer]
        measured = np.array([samples[i].seconds for i in own])
        predicted = measured * np.exp(log[own])
        taus.append(stats.kendalltau(predicted, measured).statistic)
        regrets.append(measured[predicted.argmin()] / measured.min())
    return {
        "layers": len(taus),
        "schedules": len(samples),
        "median_error": float(np.median(np.abs(log))),
        "p90_error": float(np.quantile(np.abs(log), 0.9)),
        "kendall_tau_mean": float(np.nanmean(taus)),
        "regret_geometric_mean": float(np.exp(np.mean(np.log(regrets)))),
        "regret_worst": float(max(regrets)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("train", nargs="+")
    parser.add_argument("--test", nargs="+", required=True)
    parser.add_argument("--hold", nargs="*", default=[], metavar="NAME=VALUE", help="constants that are given, not fitted")
    parser.add_argument("--samples", help="a file that keeps what was measured; if it is there, nothing is measured again")
    given = parser.parse_args()
    on = host.detect()
    train_layers = distinct(resolve(given.train))
    seen = {layer.workload for layer in train_layers}
    test_layers = [layer for layer in distinct(resolve(given.test)) if layer.workload not in seen]
    kept = Path(given.samples) if given.samples else None
    if kept and kept.exists():
        train, test = msgspec.json.decode(kept.read_bytes(), type=tuple[list[Sample], list[Sample]])
    else:
        train, test = measure(train_layers, on), measure(test_layers, on)
        if kept:
            kept.write_bytes(msgspec.json.encode((train, test)))
    held = {name: float(value) for name, _, value in (word.partition("=") for word in given.hold)}
    free = [i for i, name in enumerate(CONSTANTS) if name not in held]
    values = np.array([held.get(name, start) for name, start in zip(CONSTANTS, START, strict=True)])

    def residuals(some: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        values[free] = some
        return errors(train, with_constants(on, values))

    low, high, start = (np.array(column)[free] for column in (*BOUNDS, START))
    found = optimize.least_squares(residuals, start, bounds=(low, high), loss="soft_l1", f_scale=0.1, x_scale=start)
    values[free] = found.x
    fitted = with_constants(on, values)
    document = {
        "command": " ".join(["python", *sys.argv]),
        "environment": environment(),
        "kernels": [row.name for row in kernels()],
        "constants": {
            "before": {name: getattr(on.core, name).value for name in CONSTANTS},
            "after": dict(zip(CONSTANTS, values.tolist(), strict=True)),
        },
        "train": {"sets": given.train, "before": quality(train, on), "after": quality(train, fitted)},
        "test": {"sets": given.test, "before": quality(test, on), "after": quality(test, fitted)},
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
