# SPDX-License-Identifier: Apache-2.0
"""Exported plans beside the library: whether their results have the same bits, and the library's time over the export's.

    taskset -c 1 python lab/benchmarks/exported_plans.py [-m MACHINE] [--folders DIRECTORY] [-o FILE] [PROBLEM[,option=value]...]

On this computer's CPU, or with -m h200 on that GPU. Options are those of `pysim.export`: `accuracy=strict`, `epilogue=x * tanh(x)`. Both
sides are timed in turns: lower quartiles of each round, since a busy computer disturbs a sample in two; then the median of rounds and
their quartiles. The library has no epilogue of a user's own: such an export is timed beside the plan without it, its bits are not compared,
and its own test checks it. --folders: exports that lie there, numbered in the order of the problems, are used as they were built and
tested.
"""

import argparse
import json
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import pysim
from pysim import planner
from pysim.calibration import host
from pysim.machine.gpu import Gpu
from pysim.problem.gemm import Gemm
from pysim.record.plan import Plan
from pysim.runtime import cuda
from pysim.runtime.cpu import aligned
from pysim.runtime.cpu_launch import Launch

CPU = (
    "conv:mb1ic64ih56oc64kh3ph1",
    "conv:mb1ic256ih14oc1024kh1",
    "conv:mb1ic3ih224oc64kh7sh2ph3",
    "conv:mb1g144ic144ih56oc144kh3ph1",
    "conv:mb1ic128ih28oc128kh3sh1ph2dh1",
    "gemm:512x2048x1024",
    "gemm:512x2048x1024,epilogue=x * tanh(x)",
)
GPU = (
    "gemm:1024x1024x1024:f64,accuracy=ieee",
    "conv:mb32ic64ih56oc64kh3ph1",
    "gemm:2048x2048x2048:nt:f16",
    "gemm:2048x2048x2048:nt:f16,epilogue=x * tanh(x)",
    "conv:mb8ic256ih28oc256kh3ph1:f16",
    "conv:mb32ic256ih14oc256kh3ph1,accuracy=strict",
    "gemm:2048x2048x2048:nt,accuracy=strict",
)
ROUNDS, SECONDS, SAMPLES = 15, 0.3, 1000  # of a round: seconds of a CPU, samples of a GPU
DTYPES = {"f16": np.float16, "f64": np.float64}
Run = Callable[[], float]  # the lower quartile of a round


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", metavar="PROBLEM[,option=value]")
    parser.add_argument("-m", "--machine", default="host")
    parser.add_argument("--folders", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    machine = host.any_machine(given.machine)
    problems = given.problems or (GPU if isinstance(machine, Gpu) else CPU)
    with tempfile.TemporaryDirectory() as scratch:
        exports = [exported(text, machine, (given.folders or Path(scratch)) / str(number)) for number, text in enumerate(problems)]
        new = [folder for _, folder in exports if not (folder / "plan").exists()]
        together([["make", "-s", "-j", "-C", str(folder), "plan"] for folder in new])
        together([[str(folder / "plan"), "test"] for folder in new])
        for text, (plan, folder) in zip(problems, exports, strict=True):
            row = {"problem": text, "machine": plan.machine, "plan": plan.name} | measured(plan, folder, "epilogue=" in text, given.rounds)
            low, middle, high = row["speed"]
            bits = {True: "same bits", False: "OTHER BITS", None: "an epilogue of its own"}[row["same_bits"]]
            print(f"{middle:.3f} ({low:.3f} to {high:.3f}), {bits}: {text}; {plan.name}", flush=True)
            if given.output:
                with given.output.open("a") as file:
                    file.write(json.dumps(row) + "\n")


def exported(text: str, machine: Any, folder: Path) -> tuple[Plan, Path]:
    problem, *options = text.split(",")
    terms: dict[str, Any] = dict(one.split("=", 1) for one in options)
    epilogue = terms.pop("epilogue", None)
    plan = planner.plan(problem, machine, **terms)
    if not folder.exists():
        pysim.export(plan, folder, epilogue=epilogue)
    return plan, folder


def together(commands: list[list[str]]) -> None:
    """Runs commands side by side; CalledProcessError if one fails."""
    running = [subprocess.Popen(one, stdout=subprocess.DEVNULL) for one in commands]
    for one in running:
        if one.wait():
            raise subprocess.CalledProcessError(one.returncode, one.args)


def measured(plan: Plan, folder: Path, has_epilogue: bool, rounds: int) -> dict[str, Any]:
    first, second, out = operands(plan)
    result, library = (on_gpu if isinstance(plan.on, Gpu) else on_cpu)(plan, first, second, out)
    same = None if has_epilogue else result.tobytes() == exported_result(folder, first, second, result.nbytes)
    amount = str(SAMPLES if isinstance(plan.on, Gpu) else SECONDS)
    pairs = [(library(), exported_seconds(folder, amount)) for _ in range(rounds)]
    speed = statistics.quantiles([mine / export for mine, export in pairs], n=4)
    return {"same_bits": same, "speed": speed, "seconds": [statistics.median(one) for one in zip(*pairs, strict=True)]}


def operands(plan: Plan) -> tuple[Any, Any, Any]:
    """Random operands, and an array for the result."""
    w, random = plan.workload, np.random.default_rng(1)
    if isinstance(w, Gemm):
        shapes: list[tuple[int, ...]] = [(w.k, w.m) if w.trans_a else (w.m, w.k), (w.n, w.k) if w.trans_b else (w.k, w.n), (w.m, w.n)]
    else:
        shapes = [(w.batch, w.channels, w.height, w.width), w.filter_shape, (w.batch, w.filters, w.out_h, w.out_w)]
    made = [aligned(shape, DTYPES.get(w.dtype, np.float32)) for shape in shapes]
    for one in made[:2]:
        one[...] = random.standard_normal(one.shape)
    return made[0], made[1], made[2]


def on_cpu(plan: Plan, first: Any, second: Any, out: Any) -> tuple[Any, Run]:
    """The library's result, and a round of its runs."""
    launch = Launch.of(plan)
    weights, epilogue = launch.prepare(second), launch.epilogue(None, None)
    shapes = [one.reshape(shape) for one, shape in zip((first, out), launch.shapes, strict=True)]

    def run() -> None:
        launch.run_prepared(shapes[0], weights, epilogue, shapes[1])

    run()
    return out.copy(), lambda: cpu_seconds(run)


def cpu_seconds(run: Callable[[], Any]) -> float:
    run()
    samples, end = [], time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        start = time.perf_counter()
        run()
        samples.append(time.perf_counter() - start)
    return statistics.quantiles(samples, n=4)[0]


def on_gpu(plan: Plan, first: Any, second: Any, out: Any) -> tuple[Any, Run]:
    arrays = [cuda.DeviceArray((one.nbytes,), "u8").fill(one.reshape(-1).view(np.uint8)) for one in (first, second, out)]
    pointers = (arrays[0].pointer, arrays[1].pointer, arrays[2].pointer)
    how = {"layout": plan.layout} if not isinstance(plan.workload, Gemm) else {"first": pointers[0], "second": pointers[1]}
    bound = cuda.Launch(plan.workload, plan.launch, **how).on(pointers)
    bound.run()
    arrays[2].read(out.reshape(-1).view(np.uint8))
    return out.copy(), lambda: (arrays, statistics.quantiles(bound.time(SAMPLES, 10), n=4)[0])[1]


def exported_result(folder: Path, first: Any, second: Any, nbytes: int) -> bytes:
    with tempfile.TemporaryDirectory() as scratch:
        files = [Path(scratch) / name for name in ("first", "second", "result")]
        for file, one in zip(files, (first, second), strict=False):
            one.tofile(file)
        subprocess.run([folder / "plan", "run", *files], check=True)
        made = files[2].read_bytes()
    assert len(made) == nbytes
    return made


def exported_seconds(folder: Path, amount: str) -> float:
    text = subprocess.run([folder / "plan", "benchmark", amount], check=True, capture_output=True, text=True).stdout
    return float(re.findall(r"quartiles ([\d.e-]+),", text)[0])


if __name__ == "__main__":
    main()
