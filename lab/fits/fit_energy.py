# SPDX-License-Identifier: Apache-2.0
"""Fits the energies of a machine's file, [energy], to joules that this computer counts, and prints the table.

    python lab/fits/fit_energy.py [-m host] [--threads N] [--seconds 2] [-o FILE] [PROBLEM...]

Each problem's plan runs for some seconds, between two readings of RAPL (a CPU's package, /sys/class/powercap) or of NVML (a GPU's board).
Least squares without negative terms of

    joules = static_watts threads seconds + flop_joules FLOPs + byte_joules bytes of each level

with the FLOPs and bytes that the model counts (`pysim/explain/energy.py`). Problems of one element type with few and with many FLOPs a byte
tell the terms apart. Virtual machines have no RAPL: there, the script says so and ends.
"""

import argparse
import ctypes
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from pysim import planner
from pysim.calibration import host
from pysim.comparison.bench import bench_of
from pysim.explain.energy import counts_of
from pysim.machine.cpu import Machine
from pysim.machine.gpu import Gpu

RAPL = Path("/sys/class/powercap")
PROBLEMS = ("gemm:2048x2048x2048", "gemm:256x4096x64", "gemm:64x64x64", "gemm:1x8192x8192", "gemm:4x2048x2048", "gemm:2048x2048x16")


def rapl() -> Callable[[], float] | None:
    """Reads the joules of all packages; None where they cannot be read."""
    files = [*RAPL.glob("intel-rapl:[0-9]/energy_uj")]
    try:
        _ = [int(one.read_text()) for one in files]
    except OSError:
        return None
    return (lambda: sum(int(one.read_text()) for one in files) * 1e-6) if files else None


def nvml() -> Callable[[], float] | None:
    """Reads the joules of the first board since its driver was loaded; None without a driver."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    device, millijoules = ctypes.c_void_p(), ctypes.c_ulonglong()
    if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)):
        return None

    def read() -> float:
        if library.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(millijoules)):
            sys.exit("this board does not count its energy")
        return millijoules.value * 1e-3

    return read


def run(problem: str, on: Machine | Gpu, threads: int, seconds: float, joules: Callable[[], float]) -> dict[str, Any]:
    """What a plan's runs took: joules, seconds, and what the model counts in them."""
    plan = planner.plan(problem, on, **({"threads": threads} if threads > 1 else {}))
    bench = bench_of(plan, on, threads, seed=0)
    call, clock = bench.make(plan, bench.operands(exact=False)).call, bench.clock()
    times = max(1, round(0.1 / clock.seconds(call, 10) * 10))
    runs, before, start = 0, joules(), time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
        clock.seconds(call, times)
        runs += times
    kind, flops, moved = counts_of(plan)
    counted = {"static": spent * threads, kind: flops * runs} | {name: size * runs for name, size in moved.items()}
    return {"problem": problem, "joules": joules() - before, "counted": counted}


def fitted(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Joules of each unit that rows count: of a second, a FLOP of a kind, a byte of a level. Relative errors are minimised."""
    names = [*dict.fromkeys(name for row in rows for name in row["counted"])]
    matrix = np.array([[row["counted"].get(name, 0.0) / row["joules"] for name in names] for row in rows])
    scale = np.maximum(matrix.max(axis=0), 1e-300)
    return dict(zip(names, (nnls(matrix / scale, np.ones(len(rows)))[0] / scale).tolist(), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", default=[*PROBLEMS])
    parser.add_argument("-m", "--machine", default="host")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("-o", "--output", type=Path, help="the readings, as JSON lines")
    given = parser.parse_args()
    on = host.runnable_any(given.machine)
    joules = nvml() if isinstance(on, Gpu) else rapl()
    if joules is None:
        sys.exit(f"this computer does not tell its energy: no {'NVML' if isinstance(on, Gpu) else f'RAPL in {RAPL}'}")
    rows = [run(problem, on, given.threads, given.seconds, joules) for problem in given.problems]
    if given.output:
        given.output.write_text("".join(json.dumps(row) + "\n" for row in ({"kind": "header", "machine": on.description}, *rows)))
    for name, value in fitted(rows).items():
        print(f"{name:<12} {value:.3g} {'W' if name == 'static' else 'J'}")


if __name__ == "__main__":
    main()
