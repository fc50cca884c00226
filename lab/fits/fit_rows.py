#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fits the efficiencies of products on warpgroups in 16-bit types, row by row, all other constants as they are. The rows of f16 and bf16
have the same machine code but for the type, so both get one number, from the launches of both.

    lab/fits/fit_rows.py h200/products-even.jsonl h200/products-late.jsonl h200/products-early.jsonl -m h200 [--write] [ROW ...]

ROW: names of f16's rows that are fitted; of the others, those of convolutions too, bf16 takes f16's number. Without one: rows that have
none, and those of ping-pong. A number is the least of GRID that minimises the mean of |log(predicted / measured)|, weighted by the squares
of (the fastest launch of the problem / this one). Beyond the largest number of use a k-iteration takes what its multiply-adds do. Prints
errors and regrets before and after; --write stores the numbers in the registry.

    lab/fits/fit_rows.py FILE ... -m h200 --port

prints errors and regrets, of all types, by the rate of a multiprocessor's port to L2 (`port_bytes_per_cycle` of the machine's file).
"""

import argparse
import re
from collections.abc import Iterable
from pathlib import Path

import fit_gpu
import msgspec
import numpy as np
from rooms import DATA

from pysim.calibration.gpu_fit import Case, predicted
from pysim.machine.gpu import Gpu
from pysim.machine.load import load_any
from pysim.registry.cuda import Attributes, attributes_file, gemm_attributes, gemm_kernel

GRID = np.arange(0.8, 1.65, 0.05)
PORTS = (1.0, 1.05, 1.1, 1.15, 1.2, 1.25)  # times the rate in the machine's file
Known = dict[str, Attributes]


def twin(row: str) -> str:
    return "b" + row


def with_efficiency(known: Known, rows: Iterable[str], value: float | None) -> Known:
    both = (name for row in rows for name in (row, twin(row)))
    return known | {name: msgspec.structs.replace(known[name], efficiency=value) for name in both}


def losses(cases: list[Case], gpu: Gpu, known: Known, rows: list[str]) -> dict[str, float]:
    """Each row's weighted mean error."""
    errors: dict[str, list[tuple[float, float]]] = {row: [] for row in rows}
    for case in cases:
        weights = (case.seconds.min() / case.seconds) ** 2
        for place, error, weight in zip(case.table.variant, np.log(predicted(case, gpu, known) / case.seconds), weights, strict=True):
            row = case.kernels[place].name.removeprefix("b")
            if row in errors:
                errors[row].append((abs(error), weight))
    return {row: sum(error * weight for error, weight in some) / sum(weight for _, weight in some) for row, some in errors.items() if some}


def fitted(cases: list[Case], gpu: Gpu, known: Known, rows: list[str]) -> dict[str, float]:
    tried = [losses(cases, gpu, with_efficiency(known, rows, float(value)), rows) for value in GRID]
    found = {row: np.array([one[row] for one in tried]) for row in tried[0]}
    return {row: round(float(GRID[np.flatnonzero(some <= some.min() * (1 + 1e-6))[0]]), 2) for row, some in found.items()}


def said(cases: list[Case], gpu: Gpu, known: Known) -> str:
    errors, regrets = [], []
    for case in cases:
        times = predicted(case, gpu, known)
        errors.extend(abs(np.log(times / case.seconds)))
        regrets.append(case.seconds[times.argmin()] / case.seconds.min())
    return f"error {np.median(errors):.1%}, {np.quantile(errors, 0.9):.1%}; regret {np.mean(regrets):.4f}, {max(regrets):.2f}"


def tell_ports(cases: list[Case], gpu: Gpu, known: Known) -> None:
    rate = gpu.port_bytes_per_cycle
    for times in PORTS:
        one = msgspec.structs.replace(gpu, port_bytes_per_cycle=msgspec.structs.replace(rate, value=rate.value * times))
        print(f"{rate.value * times:.1f} bytes a cycle: {said(cases, one, known)}")


def write(known: Known, command: str) -> None:
    path = attributes_file(90)
    text = path.read_text()
    for name, one in known.items():
        number = "null" if one.efficiency is None else f"{one.efficiency:g}"
        text = re.sub(rf'("{re.escape(name)}": \{{[^}}]*"efficiency": )[^}}]*', rf"\g<1>{number}", text)
    source = f' "efficiencies of f16 and bf16 on warpgroups": "{command}",\n'
    path.write_text(text if source in text else text.replace(' "kernels": {\n', source + ' "kernels": {\n', 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="of lab/data, then rows")
    parser.add_argument("-m", "--machine", default="h200")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--port", action="store_true")
    options = parser.parse_args()
    gpu, known = load_any(options.machine), gemm_attributes(90)
    assert isinstance(gpu, Gpu)
    paths, rows = [one for one in options.files if Path(one).suffix], [one for one in options.files if not Path(one).suffix]
    cases = fit_gpu.read([DATA / path for path in paths], gpu)[0]
    if options.port:
        tell_ports(cases, gpu, known)
        return
    cases = [case for case in cases if case.problem.dtype in ("f16", "bf16")]
    every = [name for name in known if name.startswith("f16_wgmma_") and twin(name) in known]
    rows = rows or [name for name in every if (kernel := gemm_kernel(name)) and (known[name].efficiency is None or kernel.tiles.pingpong)]
    shared = {twin(name): known[name].efficiency for name in every if known[name].efficiency is not None}
    new = known | {name: msgspec.structs.replace(known[name], efficiency=value) for name, value in shared.items()}
    for row, value in fitted(cases, gpu, known, rows).items():
        print(f"{row:<52} {known[row].efficiency} and {known[twin(row)].efficiency} -> {value}")
        new = with_efficiency(new, [row], value)
    for dtype in ("f16", "bf16"):
        own = [case for case in cases if case.problem.dtype == dtype]
        print(f"{dtype:<5} before {said(own, gpu, known)}; after {said(own, gpu, new)}")
    if options.write:
        changed = {name: one for name, one in new.items() if one.efficiency != known[name].efficiency}
        write(changed, f"lab/fits/fit_rows.py {' '.join(paths)} -m {options.machine}")


if __name__ == "__main__":
    main()
