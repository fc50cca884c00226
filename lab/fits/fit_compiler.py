# SPDX-License-Identifier: Apache-2.0
"""Fits the constants of pysim/torch/layers/compiler_seconds.py to measured layers, and keeps those of profiled networks.

    python lab/fits/fit_compiler.py                                  prints the constants, and the errors of those in use
    python lab/fits/fit_compiler.py --keep FILE.jsonl [--early FILE.jsonl]
                                                  writes lab/data/h200/compiler-layers.jsonl from outputs of compilers.py with EXTRA
                                                  profile and the .kernels beside them; `--early`: of builds whose products start before
                                                  the kernel before them ends, so that their times are not their own and are not kept

Kept for each layer: its problem, the operators after it, microseconds of the library's kernels in Inductor's graph, those of pysim's
kernel in the graph without the compiler, and elements and microseconds of Inductor's kernel behind it if that is a norm's alone. A network
is left out if its kernels cannot be told apart layer by layer. Kept of each compiled network (compiler-between.jsonl): microseconds of the
compiler's own kernels, and the elements and bytes that `pysim.torch.capture.between` expects of them. Convolutions (`conv-*`, `layers-*`:
PyTorch's, channels last where measured) and products with weights as (outputs, inputs) and whole vectors (`products-*`) are fitted with
them; those were timed between two events.
"""

import argparse
import json
import math
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares, lsq_linear

from pysim import planner
from pysim.machine.load import load_any
from pysim.problem.conv import Conv
from pysim.problem.dtypes import SIZES
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload, parse
from pysim.torch.layers import compiler_seconds as model
from pysim.torch.layers.expected_cpu import work_of

sys.path.append(str(Path(__file__).parents[1]))
from records import lines

DATA = Path(__file__).parent.parent / "data"
KEPT, BETWEEN = DATA / "h200" / "compiler-layers.jsonl", DATA / "h200" / "compiler-between.jsonl"
GPUS = {name: load_any(name) for name in ("h200", "h100")}
# Kernels that belong to the one after them, and to the one before; those of no layer
BEFORE = re.compile(
    "nchwToNhwc|nhwcToNchw|convertTensor|Memset|transform|addPadding|columns_kernel|channels_last|prepare_|layout_conv", re.I
)
AFTER = re.compile("splitk|reduce", re.I)
OTHERS = re.compile("triton|fmha|flash|dgrad|by_rows|by_channels|at::native|Memcpy|cublasLt::epilogue|fused4_filters", re.I)
NORM = re.compile(r"triton_poi_fused__native_batch_norm_legit_no_training_(?:add_|relu_|silu_|hardswish_)*\d+$")


NEARLY_ALL = 0.9  # of a network's layers


class Layer(NamedTuple):
    """Microseconds; `behind`: of the norm's kernel behind it."""

    problem: str
    parts: tuple[str, ...]
    library: float | None = None
    ours: float | None = None
    behind: float | None = None


def by_layer(kernels: list[tuple[str, float]], count: int) -> list[tuple[str, float, float | None]] | None:
    """Of each layer the name of its kernel, its microseconds with what belongs to it, and those of a norm's kernel behind it."""
    own = [not (OTHERS.search(name) or BEFORE.search(name) or AFTER.search(name)) for name, _ in kernels]
    if sum(own) != count:
        return None
    found, waiting = list[tuple[str, float, float | None]](), 0.0
    for (name, us), is_own in zip(kernels, own, strict=True):
        if is_own:
            found.append((name, us + waiting, None))
            waiting = 0.0
        elif BEFORE.search(name):
            waiting += us
        elif AFTER.search(name) and not OTHERS.search(name) and found:
            found[-1] = (found[-1][0], found[-1][1] + us, found[-1][2])
        elif found and found[-1][2] is None:
            found[-1] = (*found[-1][:2], us if NORM.match(name) else math.nan)
    return found


def layers_of(path: Path) -> Iterator[Layer]:
    kernels = {}
    for line in path.with_suffix(".kernels").read_text().splitlines():
        one = json.loads(line)
        kernels[tuple(one["case"].split(":")[:3])] = one["kernels"]
    for row in map(json.loads, path.read_text().splitlines()):
        case = row.get("model"), str(row.get("batch")), row.get("precision")
        if case not in kernels or not row.get("decisions"):
            continue
        table, of = row["decisions"], kernels[case]
        library = by_layer(of.get("compile default graph", []), len(table))
        ours = by_layer(of.get("pysim alone graph") or of.get("pysim graph", []), len(table))
        for at, one in enumerate(table):
            if not one[1] or one[5] is None:
                continue
            theirs = library[at] if library else ("", None, None)
            mine = ours[at] if ours and "pysim" in ours[at][0] else ("", None, None)
            behind = theirs[2] if theirs[2] is not None and not math.isnan(theirs[2]) and "norm" in one[5] else None
            yield Layer(one[1], tuple(one[5]), theirs[1], mine[1], behind)


def keep(paths: list[Path], early: list[Path]) -> None:
    found = defaultdict[tuple[str, tuple[str, ...]], list[Layer]](list)
    for path in (*paths, *early):
        for one in layers_of(path):
            found[one.problem, one.parts].append(one if path in paths else one._replace(ours=None))
    parts = [*dict.fromkeys(" ".join(of) for _, of in found)]
    header = {
        "kind": "header",
        "device": "NVIDIA H200",
        "command": "python lab/fits/fit_compiler.py --keep",
        "times": "microseconds, medians",
    }
    header["table"] = {"problem": None, "parts": {"words": parts}, "library": None, "ours": None, "behind": None}
    with KEPT.open("w") as out:
        out.write(json.dumps(header, separators=(",", ":")) + "\n")
        for (problem, of), rows in found.items():
            values = [_median(one[at] for one in rows) for at in (2, 3, 4)]
            if values == [None, None, None]:
                continue
            while values[-1] is None:
                values.pop()
            out.write(json.dumps([problem, parts.index(" ".join(of)), *values], separators=(",", ":")) + "\n")


def keep_between(paths: list[Path]) -> None:
    """Of the networks in these files whose layers are nearly all pysim's, as its compiled graph has no passes behind layers then; rows of
    others stay."""
    rows = {row["network"]: row for row in (lines(BETWEEN)[1:] if BETWEEN.exists() else [])}
    for path in paths:
        kernels = {}
        for line in path.with_suffix(".kernels").read_text().splitlines():
            one = json.loads(line)
            kernels[":".join(one["case"].split(":")[:3])] = one["kernels"]
        for row in map(json.loads, path.read_text().splitlines()):
            name = f"{row.get('model')}:{row.get('batch')}:{row.get('precision')}"
            graph = kernels.get(name, {}).get("pysim graph" if row.get("by_compiler") else "pysim compiled graph", [])
            own = [us for kernel, us in graph if kernel.startswith("triton")]
            if own and row.get("between") and sum(one[2] == "pysim" for one in row["decisions"]) > NEARLY_ALL * len(row["decisions"]):
                expected = [[*pair, count] for pair, count in Counter(map(tuple, row["between"])).items()]
                rows[name] = {"network": name, "us": round(sum(own), 1), "kernels": len(own), "expected": expected}
    header = {"kind": "header", "device": "NVIDIA H200", "command": "python lab/fits/fit_compiler.py --keep"}
    header["expected"] = "elements, bytes, kernels of as many"
    with BETWEEN.open("w") as out:
        for one in (header, *rows.values()):
            out.write(json.dumps(one, separators=(",", ":")) + "\n")


def _median(values: Iterator[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    return float(f"{median(known):.3g}") if known else None


def kept() -> Iterator[Layer]:
    for row in lines(KEPT)[1:]:
        yield Layer(row["problem"], tuple(row["parts"].split()), row.get("library"), row.get("ours"), row.get("behind"))


class Alone(NamedTuple):
    """A layer by a library, without what follows: seconds at the peak of arithmetic and of memory, and measured ones."""

    problem: Workload
    flops: float
    bytes: float
    seconds: float
    in_network: bool


def alone(machine: str, text: str, seconds: float, in_network: bool = False) -> Alone:
    problem = parse(text)
    arithmetic, memory = model.rooflines(problem, GPUS[machine])
    return Alone(problem, arithmetic, memory, seconds, in_network)


def library_layers() -> Iterator[Alone]:
    event = GPUS["h200"].event_seconds.value
    for problem, rows in _grouped((one.problem, one.library) for one in kept() if one.library).items():
        yield alone("h200", problem, 1e-6 * median(rows) + event, True)
    for machine in GPUS:
        measured = defaultdict[str, list[float]](list)
        for path in (*(DATA / machine).glob("conv-*.jsonl"), *(DATA / machine).glob("layers-*.jsonl")):
            for row in lines(path):
                of = {name: one.get("seconds") for name, one in row.get("candidates", {}).items() if name in ("torch", "torch nhwc")}
                if best := of.get("torch nhwc") or of.get("torch"):
                    measured[row["problem"]].append(best)
        for path in (DATA / machine).glob("products-*.jsonl"):
            for row in lines(path):
                text = str(row.get("problem"))
                if row.get("cublas") and text.startswith("gemm:") and _is_layers(text):
                    measured[text].append(row["cublas"])
        for problem, rows in measured.items():
            if parse(problem).dtype in ("f16", "bf16", "tf32", "f32"):
                yield alone(machine, problem, median(rows))


def _is_layers(text: str) -> bool:
    """Whether a product is one of a network: weights as (outputs, inputs), rows of whole vectors."""
    problem = parse(text)
    if not isinstance(problem, Gemm) or problem.dtype not in ("f16", "bf16", "tf32", "f32"):
        return False
    vector = 16 // SIZES[problem.dtype]
    return problem.layout == "nt" and not (problem.n % vector or problem.k % vector)


def _grouped(pairs: Iterator[tuple[Any, float]]) -> dict[Any, list[float]]:
    found = defaultdict[Any, list[float]](list)
    for key, value in pairs:
        found[key].append(value)
    return found


def told(name: str, constants: Any, fitted: Any, now: Any) -> None:
    """A line: constants, and of those fitted and of those in use the median error and the 90th percentile."""
    errors = "  ".join(f"{np.median(abs(one)):4.0%} {np.quantile(abs(one), 0.9):4.0%}" for one in (fitted, now))
    print(f"{name:<24} {len(fitted):>4}  {np.round(constants, 3)!s:<28} fitted, in use: {errors}")


def fit_library() -> None:
    kinds = defaultdict[tuple[str, str], list[Alone]](list)
    for one in library_layers():
        kinds["half" if SIZES[one.problem.dtype] == 2 else one.problem.dtype, model.kind_beside(one.problem)].append(one)
    for (dtype, kind), rows in sorted(kinds.items()):
        seconds, weights = np.array([one.seconds for one in rows]), np.array([1.0 + one.in_network for one in rows])
        if kind == "few rows":
            sums = np.array([one.problem.k if isinstance(one.problem, Gemm) else one.problem.products for one in rows])
            columns = np.stack([np.ones(len(rows)), sums], 1)
            found = lsq_linear(columns / seconds[:, None] * weights[:, None], weights, bounds=(0, np.inf)).x
            error, constants = columns @ found / seconds - 1, (1e6 * found[0], 1e9 * found[1])
        elif len(rows) > 4:
            roofs = np.array([(one.flops, one.bytes) for one in rows])

            def off(c: Any, roofs: Any = roofs, seconds: Any = seconds) -> Any:
                return np.log((((roofs / c[:2]) ** 3).sum(1) ** (1 / 3) + 1e-6 * c[2]) / seconds)

            bounds, start = ([0.01, 0.05, 1], [1, 1, 30]), [0.5, 0.5, 5]
            of_all = least_squares(lambda c, w=weights, off=off: w * off(c), start, bounds=bounds, loss="soft_l1", f_scale=0.15)
            constants, error = tuple(of_all.x), off(of_all.x)
        else:
            continue
        now = [model.compiler_seconds(one.problem, GPUS["h200"], False, False, False) / one.seconds for one in rows]
        told(f"{dtype} {kind}", constants, error, np.log(now))


def fit_norms() -> None:
    """Of Inductor's kernels for norms behind convolutions: cycles of a multiprocessor for an element, and a launch."""
    gpu = GPUS["h200"]
    for size in (2, 4):
        known = [one for one in kept() if one.behind and SIZES[parse(one.problem).dtype] == size]
        rows = [(work_of(parse(one.problem)).output // size, one.behind or 0.0, one) for one in known]
        cycles = np.array([one[0] for one in rows]) / gpu.sms.value / gpu.frequency_hz.value * 1e6
        us = np.array([one[1] for one in rows])
        trust = np.ones(len(rows))
        for _ in range(30):
            columns = np.stack([cycles, np.ones(len(rows))], 1) / us[:, None]
            found = lsq_linear(columns * trust[:, None], trust, bounds=(0, np.inf)).x
            trust = 1 / np.maximum(1, abs(columns @ found - 1) / 0.1)
        now = [
            1e6 * model.fused_seconds(count, (2 + ("add" in one.parts)) * size * count, gpu, model.NORM_CYCLES) / value
            for count, value, one in rows
        ]
        told(f"norms, {size} bytes", found, columns @ found - 1, np.log(now))


def fit_between() -> None:
    """Of Inductor's kernels between layers, network by network: a launch, and cycles of a multiprocessor for an element."""
    gpu, rows = GPUS["h200"], lines(BETWEEN)[1:]
    us, launch = np.array([row["us"] for row in rows]), 1e6 * model.fused_seconds(0, 0, gpu)

    def of(constants: Any) -> Any:
        first, cycles = constants
        each = [
            sum(count * (1e6 * model.fused_seconds(n, moved, gpu, cycles) + first - launch) for n, moved, count in row["expected"])
            for row in rows
        ]
        return np.array(each)

    fitted = least_squares(lambda c: np.log(of(c) / us), (launch, 0.4), bounds=((0.5, 0), (4, 2)), loss="soft_l1", f_scale=0.1).x
    now = of((launch, model.FUSED_CYCLES))
    told("between layers", fitted, of(fitted) / us - 1, now / us - 1)
    for row, one, used in zip(rows, of(fitted), now, strict=True):
        print(f"    {row['network']:<28} {row['us']:7.1f} us, fitted {one:7.1f}, in use {used:7.1f}, {row['kernels']} kernels")


def fit_ours() -> None:
    """Of pysim's kernels in networks: a share of their plans' seconds, a time, and cycles of a multiprocessor for a result by operator."""
    gpu, event = GPUS["h200"], GPUS["h200"].event_seconds.value
    for size in (2, 4):
        rows = [(one, parse(one.problem)) for one in kept() if one.ours and SIZES[parse(one.problem).dtype] == size]
        rows = [(one, problem) for one, problem in rows if model.kind_beside(problem) != "by channel"]
        names = sorted({part for one, _ in rows for part in one.parts} - {"relu", "clamp", "scale"})
        columns, us = [], []
        for one, problem in rows:
            how: dict[str, Any] = {"layout": "nhwc"} if isinstance(problem, Conv) else {}
            seconds = (planner.plan(problem, gpu, accuracy="strict", **how).seconds or 0.0) - event
            results = model.epilogue_results(problem, gpu) / gpu.frequency_hz.value
            columns.append([seconds * 1e6, 1.0, *[1e6 * results * (name in one.parts) for name in names]])
            us.append(one.ours - 1e6 * work_of(problem).output / gpu.memory_bytes_per_second.value * ("add" in one.parts))
        of, measured = np.array(columns), np.array([one.ours for one, _ in rows])
        trust = 1 / measured
        for _ in range(30):
            found = lsq_linear(of * trust[:, None], np.array(us) * trust, bounds=(0, np.inf)).x
            off = (of @ found - us) / measured
            trust = 1 / measured / np.maximum(1, abs(off) / 0.08)
        told(f"ours, {size} bytes", found, off, off)
        print("   ", dict(zip(("share", "us", *names), np.round(found, 2).tolist(), strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", nargs="+", type=Path, metavar="FILE.jsonl")
    parser.add_argument("--early", nargs="*", type=Path, default=[], metavar="FILE.jsonl")
    given = parser.parse_args()
    if given.keep:
        keep_between(given.keep)
        return keep(given.keep, given.early)
    fit_library()
    fit_norms()
    fit_between()
    return fit_ours()


if __name__ == "__main__":
    main()
