#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares shared-memory wavefronts of every kernel of native/cuda/gemm: predicted by pysim.cachemodel, counted by Nsight Compute.

    lab/benchmarks/cuda/wavefronts.py -o wavefronts.json [--only REGEX]

Each row runs on a few small products: 2 x 2 tiles in every layout for which it has a kernel, and ragged ones, also with k in parts. All
launches run in one process under one `ncu`. For tensor-core rows the whole launch is predicted. The SIMT model predicts one k-iteration of
one block inside C; therefore two launches that differ only in k are counted, and their difference is compared.

The compared counters are sm__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_*, computed from the addresses of executed instructions.
l1tex__data_pipe_lsu_wavefronts_mem_shared_op_*, counted in the data pipe, are recorded, too. In some launches they have a few percent more
loads (1.5 % was seen), a different number each time. No comparable counter exists for asynchronous copies. Prints a table (row, launches,
wavefronts predicted and counted, equal); exits with 1 if one differs. Needs ncu, a GPU and the CUDA library ($PYSIM_CUDA_LIBRARY).
"""

import argparse
import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import tensor_shared

from pysim.cachemodel.shared_memory import gemm_shared
from pysim.problem.gemm import Gemm
from pysim.record.schedule import GpuSchedule
from pysim.registry.cuda import GemmKernel, gemm_kernels
from pysim.runtime import cuda
from pysim.runtime.arrays import SIZES
from pysim.runtime.cuda import DeviceArray, Launch

PRODUCTS = "regex:^(kernel|wmma_kernel|mma_kernel|wgmma_kernel)$"
SASS, HARDWARE = "sm__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_", "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_"
KINDS = {"loads": ("ld", "ldsm"), "stores": ("st", "stsm"), "products": ("gmma",)}  # suffixes of the counters
COUNTERS = [SASS + ending + ".sum" for endings in KINDS.values() for ending in endings]
COUNTERS += [HARDWARE + endings[0] + ".sum" for endings in KINDS.values()]
LAYOUTS = ("nn", "nt", "tn", "tt")
SHORT, LONG = 3, 5  # k-iterations of the SIMT rows' two launches


Counts = dict[str, dict[str, int]]


class Run(NamedTuple):
    """One launch."""

    kernel: GemmKernel
    problem: Gemm
    schedule: GpuSchedule
    result: str


def runs_of(kernel: GemmKernel) -> list[Run]:
    """The launches for a row."""
    high, wide, deep = kernel.block_m * kernel.cluster_m, kernel.block_n * kernel.cluster_n, kernel.block_k
    results = cuda.RESULTS[kernel.dtype]

    def run(m: int, n: int, k: int, layout: str, splits: tuple[str, int] = ("data_parallel", 1), result: str = results[0]) -> Run:
        w = Gemm(m=m, n=n, k=k, trans_a=layout[0] == "t", trans_b=layout[1] == "t", dtype=kernel.dtype)
        return Run(kernel, w, GpuSchedule(kernel.name, splits[0], splits[1], False, 8), result)

    if not kernel.tiles.tensor:
        return [run(2 * high, 2 * wide, steps * deep, layout) for layout in LAYOUTS for steps in (SHORT, LONG)]
    layouts = ("nt",) if kernel.k_major else LAYOUTS
    return [
        *(run(2 * high, 2 * wide, 4 * deep, layout) for layout in layouts),
        run(2 * high + high // 2 + 3, wide + 5, 5 * deep + 3, layouts[-1], result=results[-1]),
        run(high // 2 + 1, 2 * wide - 7, 7 * deep - 5, layouts[0], ("split_k", 3)),
        run(high + 1, 2 * wide + 1, 3 * deep - 1, layouts[-1], ("stream_k", 5), results[-1]),
    ]


def pitch(columns: int, dtype: str) -> int:
    """Elements of a row padded to 16 bytes, so that no operand needs a layout conversion."""
    step = 16 // SIZES.get(dtype, 4)
    return -(-columns // step) * step


def launch(runs: list[Run]) -> None:
    """The process under ncu: executes every run once."""
    largest = max(max(r.problem.m, r.problem.n, r.problem.k, 64) + 16 for r in runs)
    a, b, c = (DeviceArray((largest * largest * 8,), "u8") for _ in range(3))
    for r in runs:
        w = r.problem
        lda, ldb = pitch(w.m if w.trans_a else w.k, w.dtype), pitch(w.k if w.trans_b else w.n, w.dtype)
        made = Launch(w, r.schedule, result=r.result, pitches=(lda, ldb, pitch(w.n, r.result))).on((a.pointer, b.pointer, c.pointer))
        made.run()
        cuda.synchronize()


def counted(command: list[str], kernels: str = PRODUCTS) -> tuple[str, list[Counts], str]:
    """For each launch of `kernels`, in order: wavefronts from the instructions' addresses ("counted") and in the pipe ("passed").

    Returns ncu's version, these, and the output of ncu and the process. Exits if nothing was counted.
    """
    ncu = ["ncu", "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none", "--cache-control", "none"]
    ncu += ["--kernel-name-base", "function", "--kernel-name", kernels, "--metrics", ",".join(COUNTERS)]
    done = subprocess.run([*ncu, sys.executable, *command], capture_output=True, text=True)
    messages = "".join(line for line in (done.stdout + done.stderr).splitlines(True) if not line.startswith('"'))
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    if len(lines) < 3:
        sys.exit(f"ncu failed ({done.returncode}):\n{messages[-6000:]}")
    found = []
    for row in list(csv.DictReader(lines))[1:]:  # the first row has the units
        value = {name: round(float(row[name].replace(",", ""))) for name in COUNTERS}
        found.append({
            "counted": {kind: sum(value[f"{SASS}{ending}.sum"] for ending in endings) for kind, endings in KINDS.items()},
            "passed": {kind: value[f"{HARDWARE}{endings[0]}.sum"] for kind, endings in KINDS.items()},
        })  # fmt: skip
    version = subprocess.run(["ncu", "--version"], capture_output=True, text=True).stdout.split("Version ")[-1].split()[0]
    return version, found, messages


def compared(runs: list[Run], seen: list[Counts]) -> list[dict[str, Any]]:
    """One entry for each launch (SIMT: pair of launches, per k-iteration and tile) with prediction and counters."""
    entries, done = [], iter(zip(runs, seen, strict=True))
    for r, counts in done:
        entry: dict[str, Any] = {"kernel": r.kernel.name, "problem": r.problem.text, "result": r.result}
        if not r.kernel.tiles.tensor:
            longer, more = next(done)
            steps = 4 * (LONG - SHORT)
            cost = gemm_shared.wavefronts(r.kernel.tiles, r.problem.trans_a, r.problem.trans_b)
            predicted = {kind: steps * cost[kind].total if kind in cost else 0 for kind in KINDS}
            entry |= {"problem": f"{longer.problem.text} less {r.problem.text}"}
            entry |= {key: {kind: more[key][kind] - counts[key][kind] for kind in KINDS} for key in counts}
        else:
            cost = tensor_shared.wavefronts(r.kernel, r.problem, r.schedule)
            predicted = {kind: cost[kind].total for kind in KINDS}
            entry |= {"decomposition": r.schedule.decomposition, "splits": r.schedule.splits, **counts}
        entries.append(entry | {"predicted": predicted, "equal": predicted == entry["counted"]})
    return entries


def write(path: Path, version: str, entries: list[dict[str, Any]]) -> None:
    device = cuda.devices()[0]
    head = {"device": device.name, "driver": device.driver, "runtime": device.runtime, "ncu": version, "counters": COUNTERS}
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    path.write_text(f'{{"meta": {json.dumps(head)},\n"launches": [\n{lines}\n]}}\n')


def print_table(entries: list[dict[str, Any]]) -> None:
    kinds = [kind for kind in KINDS if any(entry["predicted"][kind] or entry["counted"][kind] for entry in entries)]
    print(f"{'row':<52} {'launches':>8}" + "".join(f" {kind + ' predicted':>19} {'counted':>10}" for kind in kinds) + "  equal")
    for name in dict.fromkeys(entry["kernel"] for entry in entries):
        of = [entry for entry in entries if entry["kernel"] == name]
        sums = [[sum(entry[key][kind] for entry in of) for key in ("predicted", "counted")] for kind in kinds]
        equal = "yes" if all(entry["equal"] for entry in of) else "NO"
        print(f"{name:<52} {len(of):>8}" + "".join(f" {predicted:>19} {number:>10}" for predicted, number in sums) + f"  {equal}")
    print(f"{sum(entry['equal'] for entry in entries)} of {len(entries)} equal")


def parsed(doc: str) -> argparse.Namespace:
    """The command line. `launch`: this is the process under ncu."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--only", default="", help="rows whose name this regular expression matches")
    parser.add_argument("--launch", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = parsed(__doc__)
    runs = [r for kernel in gemm_kernels() if re.search(options.only, kernel.name) for r in runs_of(kernel)]
    if options.launch:
        return launch(runs)
    version, seen, messages = counted([__file__, "--launch", "--only", options.only])
    if len(seen) != len(runs):
        sys.exit(f"ncu counted {len(seen)} launches of {len(runs)}:\n{messages[-6000:]}")
    entries = compared(runs, seen)
    if options.output:
        write(options.output, version, entries)
    print_table(entries)
    sys.exit(not all(entry["equal"] for entry in entries))


if __name__ == "__main__":
    main()
