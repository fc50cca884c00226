#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fits the constants of the GPU cost model to what benchmarks/cuda/planner.py measured, and reports on other shapes than it fitted.

    tools/fit_gpu.py planner-h200.json -m h200 [-o report.json] [--write] [--families]
    (also .jsonl of benchmarks/cuda/bench.cu --rows, and of benchmarks/cuda/products.py --top)

Fitted, by least squares of log(predicted / measured) over half of the problems (`half_of`): the machine's [model] table, its L2 and memory rates,
and each kernel's efficiency; with --families all but rates, latencies and how L2 is shared, which convolutions were fitted with; with
--machine-alone kernels' efficiencies stay, which another machine of the same capability was fitted with and shares. Launches
within NEAR of a problem's best weigh more, since among them the planner chooses. Reported, for both halves: error (median and 90th
percentile of |log(predicted / measured)|), Kendall's tau over the launches of a problem, and the regret of the launch predicted best;
beside them what nvidia-matmul-heuristics makes of the same kernels where it is installed.
--write puts the constants into the machine's file, with kind "fitted", and attributes and efficiencies beside the registry.
"""

import argparse
import json
import re
import sys
import zlib
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from scipy.optimize import least_squares
from scipy.stats import kendalltau

from pysim.algorithms.gpu import gemm
from pysim.cachemodel.gpu import waves
from pysim.cachemodel.gpu.launches import columns_of, constants_of
from pysim.errors import MissingError
from pysim.machine.gpu import Gpu, GpuFamily
from pysim.machine.load import SHIPPED, load_any
from pysim.machine.quantity import Number
from pysim.problem.gemm import Gemm
from pysim.problem.text import parse
from pysim.record.schedule import DECOMPOSITIONS, GpuSchedule
from pysim.registry.cuda import Attributes, GemmKernel, attributes_file, gemm_attributes, gemm_kernel, gemm_kernels

NEAR, NEAR_WEIGHT = 1.5, 3.0
ENOUGH = 4  # samples: a median of fewer weighs less
SAMPLE = 64  # launches of a problem that the fit looks at
SOURCE = "fit"
RATES = (
    "l2_bytes_per_second",
    "memory_bytes_per_second",
    "l2_latency_cycles",
    "memory_latency_cycles",
    "port_bytes_per_cycle",
    "memory_port_bytes_per_cycle",
)
STARTS = ("pass_seconds", "clear_seconds", "copy_share", "single_cycles")
CONSTANTS = (*STARTS, "l2_share", "repeat_share")
OF_FAMILY = tuple(name for name in GpuFamily.__struct_fields__ if name != "efficiency")
BOUNDS = {  # of each constant: what a GPU could have
    "launch_seconds": (1e-6, 2e-5), "pass_seconds": (2e-7, 1e-5), "clear_seconds": (1e-7, 1e-5),
    "copy_share": (0.05, 1), "block_cycles": (1, 20000), "step_cycles": (0.1, 1000), "meet_cycles": (10, 20000),
    "hidden": (1e-3, 1), "l2_share": (0.2, 1), "repeat_share": (0.01, 1), "single_cycles": (0.01, 10), "l2_bytes_per_second": (1e12, 3e13),
    "memory_bytes_per_second": (1e12, 4.8e12), "l2_latency_cycles": (100, 2000),
    "memory_latency_cycles": (200, 5000),
    "port_bytes_per_cycle": (16, 64), "memory_port_bytes_per_cycle": (4, 64),
}  # fmt: skip
SHOWN = ("regret_mean", "regret_worst", "tau", "median_error", "median_error_of_chosen")
EFFICIENCY = (0.05, 1.6)  # above 1 the counts of a step are too high
PRIOR, EFFICIENCY_PRIOR, HELD = 0.05, 0.15, 100.0  # how strongly constants and kernels' shares are held where they stand


class Case(NamedTuple):
    """One problem with its measured launches; `sample` are those that the fit looks at."""

    problem: Gemm
    kernels: tuple[GemmKernel, ...]
    table: waves.Table
    seconds: Any
    sample: Any
    weight: Any
    cublas: float | None


def read(paths: list[Path]) -> tuple[list[Case], dict[str, Attributes]]:
    """The problems of some files, and the attributes of their kernels."""
    cases, attributes = [], {}
    for path in paths:
        document = document_of(path)
        attributes |= {name: msgspec.convert(one, Attributes) for name, one in document["attributes"].items() if one}
        cases += [case for one in document["problems"] if (case := case_of(one, document["kernels"]))]
    return cases, attributes


def document_of(path: Path) -> dict[str, Any]:
    """A file as planner.py's document, whichever wrote it."""
    if path.suffix != ".jsonl":
        return json.loads(path.read_text())
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]
    return (of_products if "plans" in lines[0] else of_bench)(lines)


def of_products(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """What `benchmarks/cuda/products.py` printed, as planner.py's document."""
    names = [row.name for row in gemm_kernels()]
    problems = []
    for line in lines:
        launches = []
        for plan in line["plans"]:
            s = plan["schedule"]
            if plan["right"] and plan["kernel"] in names:
                how = (names.index(plan["kernel"]), DECOMPOSITIONS.index(s["decomposition"]), s["splits"], int(s["along_n"]), s["group"])
                launches.append([*how, plan["seconds"], plan["samples"], plan["predicted"]])
        problems.append({"problem": line["problem"], "cublas": line["cublas"], "launches": launches})
    return {"kernels": names, "attributes": {}, "problems": problems}


def of_bench(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """What `benchmarks/cuda/bench.cu --rows` printed, as planner.py's document: its sizes are cuBLAS's, so the kernels see C transposed.

    Only whole results of a type (not "f16>f32") are taken; its walks are along m in bands of 8.
    """
    names = [row.name for row in gemm_kernels()]
    problems, launches = [], []
    for one in lines:
        if "row" in one and ">" not in one["dtype"]:
            name, kind, splits = (*one["row"].split(), "", "1")[:3]
            if name in names:
                launches.append([names.index(name), ("", "split-k", "stream-k").index(kind), int(splits), 0, 8, one["seconds"], 3, 0.0])
        elif "layout" in one:
            layout = one["layout"][::-1]
            suffixes = f":{layout}" * (layout != "nn") + f":{one['dtype']}" * (one["dtype"] != "f32")
            text = f"gemm:{one['n']}x{one['m']}x{one['k']}{suffixes}"
            if launches:
                problems.append({"problem": text, "cublas": one.get("cublas_seconds"), "launches": launches})
            launches = []
    return {"kernels": names, "attributes": {}, "problems": problems}


def case_of(one: dict[str, Any], names: list[str]) -> Case | None:
    launches = [launch for launch in one["launches"] if gemm_kernel(names[launch[0]])]
    if not launches:
        return None
    used = sorted({launch[0] for launch in launches})
    kernels = tuple(row for index in used if (row := gemm_kernel(names[index])))
    columns = np.array([launch[:5] for launch in launches])
    columns[:, 0] = [used.index(index) for index in columns[:, 0]]
    seconds = np.array([launch[5] for launch in launches])
    order = np.argsort(seconds)
    step = max(1, len(order) // SAMPLE)
    sample = np.unique(np.concatenate([order[: SAMPLE // 3], order[::step]]))
    weight = np.where(seconds[sample] <= NEAR * seconds.min(), NEAR_WEIGHT, 1.0)
    weight *= np.sqrt(np.minimum([launches[index][6] for index in sample], ENOUGH) / ENOUGH)
    problem = parse(one["problem"])
    assert isinstance(problem, Gemm)
    return Case(problem, kernels, waves.Table(*columns.T), seconds, sample, weight / np.sqrt(len(sample)), one["cublas"])


class Parameters:
    """Machine constants and kernel efficiencies as one vector of logarithms."""

    def __init__(self, gpu: Gpu, kernels: list[GemmKernel], attributes: dict[str, Attributes], families_only: bool, prior: float) -> None:
        self.gpu, self.kernels, self.attributes = gpu, kernels, attributes
        self.families = sorted({family_name(gpu, k) for k in kernels})
        self.shared = STARTS if families_only else CONSTANTS, () if families_only else RATES
        self.names = [*chain(*self.shared), *(f"{family}.{name}" for family in self.families for name in OF_FAMILY)]
        start = [getattr(gpu.model, name).value for name in self.shared[0]] + [getattr(gpu, name).value for name in self.shared[1]]
        start += [getattr(gpu.model.families[family], name).value for family in self.families for name in OF_FAMILY]
        start += [
            (attributes[k.name].efficiency if k.name in attributes else None) or gpu.model.families[family_name(gpu, k)].efficiency.value
            for k in kernels
        ]
        limits = [BOUNDS[name.rpartition(".")[2]] for name in self.names] + [EFFICIENCY] * len(kernels)
        self.strength = np.repeat([PRIOR, prior], [len(self.names), len(kernels)])
        self.low, self.high = np.log(np.array(limits)).T
        self.start = np.clip(np.log(np.maximum(start, 1e-12)), self.low + 1e-6, self.high - 1e-6)

    def parts(self, vector: Any) -> tuple[Gpu, dict[str, float]]:
        """The machine, and the efficiency of each kernel."""
        values = np.exp(vector)
        numbers = {name: Number(value=float(x), kind="fitted", source=SOURCE) for name, x in zip(self.names, values, strict=False)}
        efficiencies = dict(zip((k.name for k in self.kernels), values[len(self.names) :].tolist(), strict=True))
        families = {
            family: msgspec.structs.replace(self.gpu.model.families[family], **{name: numbers[f"{family}.{name}"] for name in OF_FAMILY})
            for family in self.families
        }
        own = {name: numbers[name] for name in self.shared[0]}
        constants = msgspec.structs.replace(self.gpu.model, **own, families=self.gpu.model.families | families)
        gpu = msgspec.structs.replace(self.gpu, model=constants, **{name: numbers[name] for name in self.shared[1]})
        return gpu, efficiencies

    def machine(self, vector: Any) -> tuple[Gpu, dict[str, Attributes]]:
        """The machine and the attributes that a vector stands for."""
        gpu, efficiencies = self.parts(vector)
        families = dict(gpu.model.families)
        for family in self.families:
            some = [efficiencies[k.name] for k in self.kernels if family_name(gpu, k) == family]
            median = Number(value=float(np.median(some)), kind="fitted", source=SOURCE)
            families[family] = msgspec.structs.replace(families[family], efficiency=median)
        gpu = msgspec.structs.replace(gpu, model=msgspec.structs.replace(gpu.model, families=families))
        known = {}
        for kernel in self.kernels:
            base = gemm.attributes_of(kernel, self.attributes)
            known[kernel.name] = msgspec.structs.replace(base, efficiency=efficiencies[kernel.name])
        return gpu, known


def predicted(case: Case, gpu: Gpu, known: dict[str, Attributes], where: Any = None) -> Any:
    """Seconds of a case's launches, or of some of them."""
    table = case.table if where is None else case.table.select(where)
    return waves.predict(gpu, columns(case, gpu, known), table).cycles / gpu.clock_hz


def columns(case: Case, gpu: Gpu, known: dict[str, Attributes]) -> waves.Columns:
    """A case's kernels as the model has them."""
    return columns_of([one.columns for one in gemm.variants(gpu, case.problem, case.kernels, known) if one.columns])


def family_name(gpu: Gpu, kernel: GemmKernel) -> str:
    """The key of the machine's constants for a kernel."""
    return constants_of(gpu, gemm.families_of(kernel))[0]


def fit(cases: list[Case], parameters: Parameters) -> Any:
    """The vector of least squares; the parts of `waves.Columns` that no parameter moves are made once."""
    attributes = {k.name: gemm.attributes_of(k, parameters.attributes) for k in parameters.kernels}
    plain = {name: msgspec.structs.replace(one, efficiency=1.0) for name, one in attributes.items()}
    fixed = [(case, columns(case, parameters.gpu, plain), case.table.select(case.sample)) for case in cases]

    def residuals(vector: Any) -> Any:
        gpu, efficiencies = parameters.parts(vector)
        errors = []
        for case, found, table in fixed:
            seconds = waves.predict(gpu, moved(gpu, case, found, efficiencies), table).cycles / gpu.clock_hz
            errors.append(case.weight * np.log(seconds / case.seconds[case.sample]))
        # what few launches say should not carry a constant far from where it stands
        return np.concatenate([*errors, parameters.strength * (vector - parameters.start)])

    limits = (parameters.low, parameters.high)
    touched = sparsity(cases, parameters)
    return least_squares(residuals, parameters.start, bounds=limits, loss="soft_l1", f_scale=0.1, max_nfev=40, jac_sparsity=touched).x


def moved(gpu: Gpu, case: Case, found: waves.Columns, efficiencies: dict[str, float]) -> waves.Columns:
    """Columns that were made with an efficiency of 1, with these constants."""
    share = np.array([efficiencies[k.name] for k in case.kernels])
    families = [gpu.model.families[family_name(gpu, k)] for k in case.kernels]
    own = {name: np.array([getattr(family, name).value for family in families]) for name in OF_FAMILY}
    return found._replace(step=found.step / share, alone=found.alone / share, **own)


def sparsity(cases: list[Case], parameters: Parameters) -> Any:
    """Which residuals each parameter moves: a kernel's its own launches, a constant all."""
    count, first, names = len(parameters.start), len(parameters.names), [k.name for k in parameters.kernels]
    blocks = []
    for case in cases:
        block = np.zeros((len(case.sample), count), int)
        block[:, :first] = 1
        own = np.array([names.index(case.kernels[row].name) for row in case.table.variant[case.sample]])
        block[np.arange(len(own)), first + own] = 1
        blocks.append(block)
    return np.concatenate([*blocks, np.eye(count, dtype=int)])


def half_of(problem: Gemm) -> int:
    """The half of the problems that one is in, whatever file it stands in: not every second one, since those alone have rows of whole
    vectors."""
    return zlib.crc32(problem.text.encode()) & 1


def report(cases: list[Case], gpu: Gpu, known: dict[str, Attributes]) -> dict[str, Any]:
    """The three numbers of a set of problems, and those of each."""
    each, errors = [], []
    for case in cases:
        seconds = predicted(case, gpu, known)
        errors.append(np.abs(np.log(seconds / case.seconds)))
        each.append(judged(case, seconds))
    return {
        "problems": len(cases),
        "launches": int(sum(len(case.seconds) for case in cases)),
        **merged(each, np.concatenate(errors)),
        "each": each,
    }


def judged(case: Case, seconds: Any) -> dict[str, Any]:
    chosen = int(np.argmin(seconds))
    best = float(case.seconds.min())
    return {
        "problem": case.problem.text,
        "regret": float(case.seconds[chosen]) / best,
        "tau": float(kendalltau(seconds, case.seconds).statistic),
        "error": float(np.log(seconds[chosen] / case.seconds[chosen])),
        "median_error": float(np.median(np.abs(np.log(seconds / case.seconds)))),
        "chosen": launch_text(case, chosen),
        "best": launch_text(case, int(np.argmin(case.seconds))),
        "best_seconds": best,
        "cublas_over_best": case.cublas / best if case.cublas else None,
    }


def merged(each: list[dict[str, Any]], errors: Any) -> dict[str, float]:
    regrets = np.array([one["regret"] for one in each])
    return {
        "regret_mean": float(np.exp(np.log(regrets).mean())),
        "regret_worst": float(regrets.max()),
        "tau": float(np.nanmean([one["tau"] for one in each])),
        "median_error": float(np.median(errors)),
        "p90_error": float(np.quantile(errors, 0.9)),
        "median_error_of_chosen": float(np.median(np.abs([one["error"] for one in each]))),
    }


def launch_text(case: Case, index: int) -> str:
    row, kind, splits, along_n, group = (int(column[index]) for column in case.table)
    return f"{case.kernels[row].name} {DECOMPOSITIONS[kind]} {splits} {'mn'[along_n]} {group}"


def heuristics(cases: list[Case], gpu: str) -> dict[str, Any] | None:
    """The same numbers of nvidia-matmul-heuristics' estimates of the same launches; None where it says nothing."""
    from pysim.peers import matmul_heuristics

    each, errors, missing = [], [], set()
    for case in cases:
        estimates = []
        try:
            for row, kind, splits, along_n, group in zip(*case.table, strict=True):
                schedule = GpuSchedule(case.kernels[row].name, DECOMPOSITIONS[kind], int(splits), bool(along_n), int(group))
                known = kind != DECOMPOSITIONS.index("stream_k")
                estimates.append(matmul_heuristics.estimate_kernel(case.problem, gpu, case.kernels[row], schedule) if known else None)
        except MissingError as error:
            missing.add(str(error))
            continue
        told = np.array([i for i, seconds in enumerate(estimates) if seconds])
        if len(told) < 3:
            continue
        part = case._replace(table=case.table.select(told), seconds=case.seconds[told])
        seconds = np.array([estimates[i] for i in told])
        errors.append(np.abs(np.log(seconds / part.seconds)))
        each.append(judged(part, seconds))
    print(*sorted(missing), sep="\n", file=sys.stderr)
    return {"problems": len(each), **merged(each, np.concatenate(errors)), "each": each} if each else None


def write(gpu: Gpu, known: dict[str, Attributes], paths: list[Path]) -> None:
    """The constants into the machine's file, line by line, and the kernels' attributes beside the registry."""
    path = SHIPPED / f"{gpu.name}.toml"
    text = path.read_text()
    values = {name: getattr(gpu.model, name) for name in CONSTANTS} | {name: getattr(gpu, name) for name in RATES}
    text = with_values(text, values)
    for family, numbers in gpu.model.families.items():
        head, found, rest = text.partition(f"[model.families.{family}]\n")
        body, blank, tail = rest.partition("\n\n")
        text = head + found + with_values(body, {name: getattr(numbers, name) for name in GpuFamily.__struct_fields__}) + blank + tail
    text = re.sub(rf"(?ms)^\[sources\.{SOURCE}\]\n.*?(?=^\[|\Z)", "", text).rstrip("\n") + "\n"
    if f'source = "{SOURCE}"' in text:
        files = ", ".join(map(named, paths))
        text += f'\n[sources.{SOURCE}]\ntitle = "Least squares over measured products"\ncommand = "tools/fit_gpu.py"\nfile = "{files}"\n'
    for key in re.findall(r"(?m)^\[sources\.(\w+)\]$", text):
        if f'source = "{key}"' not in text:
            text = re.sub(rf"(?ms)^\[sources\.{key}\]\n.*?(?=^\[|\Z)", "", text)
    path.write_text(text.rstrip("\n") + "\n")
    if not known:
        return
    target = attributes_file(gpu.capability_number)
    old = json.loads(target.read_text()) if target.exists() else {"schema": 1, "kernels": {}}
    old["kernels"] |= {name: msgspec.to_builtins(rounded(one)) for name, one in known.items()}
    old["efficiencies"] = {"command": "tools/fit_gpu.py", "files": [named(path) for path in paths]}
    target.write_text(json.dumps(old, indent=1) + "\n")


def named(path: Path) -> str:
    """A data file as sources name it: by its place in the repository where it was given so."""
    return path.name if path.is_absolute() else path.as_posix()


def with_values(text: str, values: dict[str, Number]) -> str:
    """A part of a machine file with the fitted ones of these numbers."""
    for name, number in values.items():
        line = f'{name} = {{ value = {number.value:.4g}, kind = "{number.kind}", source = "{number.source}" }}'
        text = re.sub(rf"(?m)^{name} = \{{.*\}}$", line, text) if number.source == SOURCE else text
    return text


def rounded(one: Attributes) -> Attributes:
    return msgspec.structs.replace(one, efficiency=round(one.efficiency or 0.0, 4) or None)


def parser_of(doc: str) -> argparse.ArgumentParser:
    """The options of a fit."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("-m", "--machine", default="h200")
    parser.add_argument("-o", "--out", type=Path)
    parser.add_argument("--no-fit", action="store_true", help="report on the constants as they are")
    parser.add_argument("--write", action="store_true", help="into the machine's file and the attributes' file")
    return parser


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--families", action="store_true", help="leave rates, latencies and shares of L2 as they are")
    parser.add_argument("--machine-alone", action="store_true", help="leave kernels' efficiencies as they are")
    parser.add_argument("--other-half", action="store_true", help="fit on the half of the problems that is else reported on")
    parser.add_argument("--report", type=Path, nargs="+", default=[], help="fit on all of the other files, and report on these")
    options = parser.parse_args()
    gpu, (cases, attributes) = load_any(options.machine), read(options.files)
    assert isinstance(gpu, Gpu)
    for name, one in gemm_attributes(gpu.capability_number).items():  # what was fitted before is where a fit starts
        told = attributes.get(name, one)
        attributes[name] = msgspec.structs.replace(told, efficiency=one.efficiency)
    halves = {
        name: [case for case in cases if half_of(case.problem) == half]
        for name, half in (("fitted on", int(options.other_half)), ("reported on", int(not options.other_half)))
    }
    if options.report:
        halves = {"fitted on": cases, "reported on": read(options.report)[0]}
        cases = [*cases, *halves["reported on"]]
    known = attributes
    if not options.no_fit:
        kernels = list({kernel.name: kernel for case in halves["fitted on"] for kernel in case.kernels}.values())
        parameters = Parameters(gpu, kernels, attributes, options.families, HELD if options.machine_alone else EFFICIENCY_PRIOR)
        gpu, fitted = parameters.machine(fit(halves["fitted on"], parameters))
        known = attributes | fitted
    found = {name: report(some, gpu, known) for name, some in halves.items()}
    for dtype in sorted({case.problem.dtype for case in cases}):
        for half, some in halves.items():
            found[f"{half}, {dtype}"] = report([case for case in some if case.problem.dtype == dtype], gpu, known)
    if peer := heuristics(halves["reported on"], options.machine):
        found["nvidia-matmul-heuristics, reported on"] = peer
    for name, one in found.items():
        numbers = "  ".join(f"{key} {one[key]:.3f}" for key in SHOWN)
        print(f"{name:<40} {one['problems']:>4} problems  {numbers}")
    constants = {name: getattr(gpu.model, name).value for name in CONSTANTS} | {name: getattr(gpu, name).value for name in RATES}
    for family, numbers in gpu.model.families.items():
        constants |= {f"{family}.{name}": getattr(numbers, name).value for name in GpuFamily.__struct_fields__}
    print("  ".join(f"{name} {value:.4g}" for name, value in constants.items()))
    efficiencies = {name: one.efficiency for name, one in known.items() if one.efficiency}
    if options.out:
        options.out.write_text(json.dumps({"schema": 1, "constants": constants, "efficiencies": efficiencies, "sets": found}, indent=1))
    if options.write:
        write(gpu, {} if options.machine_alone else known, options.files)


if __name__ == "__main__":
    main()
