#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fits the GPU cost model of convolutions to measurements of lab/benchmarks/cuda/conv.py, and reports its errors on held-out layers.

    lab/fits/fit_conv.py conv-h200.jsonl... -m h200 [-o report.json] [--write] [--no-fit]

Every other distinct layer is fitted, by least squares of log(predicted / measured). Free parameters are the constants of the kernels'
families, starting from those of the products, and the efficiency of each registry row. The machine's rates and the products' constants are
fixed (fit_gpu.py). Launches within MAX_SLOWDOWN of a layer's best weigh more. Rows that lower to a product, and rows without tiles,
have no parameters. --machine-alone fixes the rows' efficiencies, which machines of one compute capability share. The report has, for both
halves as in fit_gpu.py, error, Kendall's tau and regret. --write stores the constants in the machine's file, and the efficiencies, if
fitted, in the registry's attributes file.
"""

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from fit_gpu import merged, named, parser_of, rounded, tell_gone
from scipy.optimize import least_squares
from scipy.stats import kendalltau

from pysim.algorithms import algorithm_named
from pysim.cachemodel.gpu import waves
from pysim.cachemodel.gpu.columns import Table
from pysim.cachemodel.gpu.copy_kernels import pass_cycles
from pysim.cachemodel.gpu.launches import Variant, columns_of, constants_of
from pysim.cachemodel.gpu.product_columns import efficiency_of
from pysim.calibration import gpu_fit
from pysim.calibration.gpu_fit import EFFICIENCY, EFFICIENCY_PRIOR, FAST_WEIGHT, MAX_SLOWDOWN, PRIOR
from pysim.machine.gpu import Gpu, GpuFamily
from pysim.machine.load import SHIPPED, load_any
from pysim.machine.quantity import Number
from pysim.problem.conv import Conv
from pysim.record.plan import LAYOUTS, Layout
from pysim.record.schedule import DECOMPOSITIONS, GpuSchedule
from pysim.registry.cuda import Attributes, ConvKernel, attributes_file, conv_kernel, conv_kernels, gemm_attributes

sys.path.append(str(Path(__file__).parents[1]))
import conv_data
import cuda_attributes
import rooms  # noqa: F401

SOURCE = "fit_conv"
MOVED = ("launch_seconds", "block_cycles", "step_cycles", "meet_cycles", "hidden")
BOUNDS = {name: gpu_fit.BOUNDS[name] for name in MOVED}


class Case(NamedTuple):
    """A distinct layer in a layout with its measured launches. `rows`: registry rows, each with its number of chunks (1 unless staged).
    `table`: the launches."""

    problem: Conv
    layout: Layout
    names: list[str]
    rows: list[tuple[ConvKernel, int]]
    table: Table
    seconds: Any
    weight: Any


def read(gpu: Gpu, paths: list[Path]) -> list[Case]:
    """The layers of the files. If a layer occurs several times, the last one counts."""
    lines = {line.problem: line for path in paths for line in conv_data.read(path) if isinstance(line, conv_data.Line)}
    schedules = (one.schedule for line in lines.values() for one in line.of(conv_data.OURS).values() if one.schedule)
    tell_gone(Counter(one["kernel"] for one in schedules if not conv_kernel(one["kernel"])))
    return [case for line in lines.values() for layout in LAYOUTS if (case := case_of(gpu, line, layout))]


def case_of(gpu: Gpu, line: conv_data.Line, layout: Layout) -> Case | None:
    problem = msgspec.structs.replace(line.workload, dtype=line.dtype)
    launches = []
    for name, one in line.of(conv_data.OURS).items():
        schedule = msgspec.convert(one.schedule, GpuSchedule) if one.schedule else None
        row = conv_kernel(schedule.kernel) if schedule else None
        if schedule and row and row.block_filters and not row.makes_product and one.layout == layout:
            launches.append((row, schedule, one.seconds, name))
    if len(launches) < 2:
        return None
    used = [(row, schedule.splits if row.staged else 1) for row, schedule, *_ in launches]
    rows = list(dict.fromkeys(used))
    columns = [
        (rows.index(one), DECOMPOSITIONS.index(s.decomposition), 1 if row.staged else s.splits, s.along_n, s.group)
        for one, (row, s, *_) in zip(used, launches, strict=True)
    ]
    seconds = np.array([one[2] for one in launches])
    weight = np.where(seconds <= MAX_SLOWDOWN * seconds.min(), FAST_WEIGHT, 1.0) / np.sqrt(len(seconds))
    return Case(problem, layout, [one[3] for one in launches], rows, Table(*np.array(columns, int).T), seconds, weight)


def variants(case: Case, gpu: Gpu, known: dict[str, Attributes]) -> list[Variant]:
    """The cost-model variants of a layer's rows."""
    w, found = case.problem, list[Variant]()
    for row, chunks in case.rows:
        algorithm: Any = algorithm_named(row.algorithm, w, gpu)
        found.append(algorithm.by(row, w, case.layout, chunks).variant(gpu, known))
    return found


def predicted(case: Case, gpu: Gpu, known: dict[str, Attributes]) -> Any:
    """Predicted seconds of a layer's launches."""
    found = variants(case, gpu, known)
    cycles = waves.predict(gpu, columns_of([one.columns for one in found if one.columns]), case.table).cycles
    times, around = ([of(one) for one in found] for of in (lambda one: one.times, lambda one: sum(pass_cycles(gpu, p) for p in one.passes)))
    return (cycles * np.array(times)[case.table.variant] + np.array(around)[case.table.variant]) / gpu.clock_hz


class Parameters:
    """The families' constants and the rows' efficiencies as one vector of logarithms."""

    def __init__(self, gpu: Gpu, cases: list[Case], known: dict[str, Attributes], machine_alone: bool) -> None:
        self.gpu, self.known, self.machine_alone = gpu, known, machine_alone
        self.rows = list({row.name: row for case in cases for row, _ in case.rows}.values())
        self.attributes = {one.kernel: one.attributes for case in cases for one in variants(case, gpu, known)}
        tiled = [row for row in self.rows if not row.staged]
        self.families = {row.family: constants_of(gpu, row.families)[1] for row in tiled}
        self.names = [f"{family}.{name}" for family in self.families for name in MOVED]
        start = [getattr(family, name).value for family in self.families.values() for name in MOVED]
        start += [self.efficiency_now(row) for row in self.rows]
        self.moved = len(self.names) if machine_alone else len(start)  # the other parameters keep their values
        limits = [BOUNDS[name] for _ in self.families for name in MOVED] + [EFFICIENCY] * len(self.rows)
        self.low, self.high = np.log(np.array(limits)).T
        self.start = np.clip(np.log(start), self.low + 1e-6, self.high - 1e-6)
        self.strength = np.repeat([PRIOR, EFFICIENCY_PRIOR], [len(self.names), len(self.rows)])

    def efficiency_now(self, row: ConvKernel) -> float:
        _, family = constants_of(self.gpu, row.families)
        tiles = row.tiles.transposed if row.tiles.by_warpgroups else row.tiles
        return efficiency_of(tiles, self.attributes[row.name], self.known) or family.efficiency.value

    def machine(self, vector: Any) -> tuple[Gpu, dict[str, Attributes]]:
        """The machine and the attributes with the parameters of a vector."""
        values = iter(np.exp(vector).tolist())
        families = {}
        for name, family in self.families.items():
            moved = {one: Number(value=next(values), kind="fitted", source=SOURCE) for one in MOVED}
            families[name] = msgspec.structs.replace(family, **moved)
        efficiencies = {row.name: next(values) for row in self.rows}
        for name, family in families.items():
            some = [efficiencies[row.name] for row in self.rows if row.family == name]
            median = Number(value=float(np.median(some)), kind="fitted", source=SOURCE)
            families[name] = msgspec.structs.replace(family, efficiency=median)
        gpu = msgspec.structs.replace(self.gpu, model=msgspec.structs.replace(self.gpu.model, families=self.gpu.model.families | families))
        own = {}
        for row in self.rows:
            own[row.name] = msgspec.structs.replace(self.attributes[row.name], efficiency=efficiencies[row.name])
        return gpu, self.known | own

    def touched(self, cases: list[Case]) -> Any:
        """The residuals that depend on each parameter: those of launches of a family's rows, or of one row."""
        blocks = []
        for case in cases:
            block = np.zeros((len(case.seconds), len(self.start)), int)
            for i, place in enumerate(case.table.variant):
                row, _ = case.rows[place]
                block[i, len(self.names) + [one.name for one in self.rows].index(row.name)] = 1
                for j, name in enumerate(self.names):
                    block[i, j] = name.startswith(f"{row.family}.") and not row.staged
            blocks.append(block)
        return np.concatenate([*blocks, np.eye(len(self.start), dtype=int)])[:, : self.moved]


def fit(cases: list[Case], parameters: Parameters) -> Any:
    moved, fixed = parameters.moved, parameters.start[parameters.moved :]

    def residuals(free: Any) -> Any:
        vector = np.concatenate([free, fixed])
        gpu, known = parameters.machine(vector)
        errors = [case.weight * np.log(predicted(case, gpu, known) / case.seconds) for case in cases]
        return np.concatenate([*errors, parameters.strength * (vector - parameters.start)])

    found = least_squares(
        residuals, parameters.start[:moved], bounds=(parameters.low[:moved], parameters.high[:moved]), loss="soft_l1", f_scale=0.1,
        max_nfev=25, jac_sparsity=parameters.touched(cases),
    )  # fmt: skip
    return np.concatenate([found.x, fixed])


def report(cases: list[Case], gpu: Gpu, known: dict[str, Attributes]) -> dict[str, Any]:
    each, errors = [], []
    for case in cases:
        seconds = predicted(case, gpu, known)
        chosen, best = int(np.argmin(seconds)), int(np.argmin(case.seconds))
        error = np.log(seconds / case.seconds)
        errors.append(np.abs(error))
        each.append({
            "problem": case.problem.text, "regret": float(case.seconds[chosen] / case.seconds[best]),
            "tau": float(kendalltau(seconds, case.seconds).statistic), "error": float(error[chosen]),
            "chosen": case.names[chosen], "best": case.names[best], "best_seconds": float(case.seconds[best]),
        })  # fmt: skip
    launches = sum(len(case.seconds) for case in cases)
    return {"problems": len(cases), "launches": launches, **merged(each, np.concatenate(errors)), "each": each}


def write(gpu: Gpu, known: dict[str, Attributes], parameters: Parameters, paths: list[Path], command: str) -> None:
    """Writes the fitted families into the machine's file, and the rows' attributes, if fitted, into the registry's attributes file."""
    rows, path = parameters.rows, SHIPPED / f"{gpu.name}.toml"
    text = path.read_text()
    for family in parameters.families:
        numbers = gpu.model.families[family]
        head = f"[model.families.{family}]\n"
        values = {name: getattr(numbers, name) for name in GpuFamily.__struct_fields__}
        body = "".join(
            f'{name} = {{ value = {one.value:.4g}, kind = "{one.kind}"' + (f', source = "{one.source}"' if one.source else "") + " }\n"
            for name, one in values.items()
        )
        if head in text:
            before, _, rest = text.partition(head)
            text = before + head + body + "\n" + rest.partition("\n\n")[2]
        else:
            at = text.index("[sources.")
            text = text[:at] + head + body + "\n" + text[at:]
    block = rf"(?ms)^\[sources\.{SOURCE}\]\n.*?(?=^\[|\Z)"
    before = re.search(r'file = "(.*?)"', match[0]) if (match := re.search(block, text)) else None  # source of unfitted families
    text = re.sub(block, "", text).rstrip("\n") + "\n"
    files = ", ".join(dict.fromkeys([*(before[1].split(", ") if before else []), *map(named, paths)]))
    text += f'\n[sources.{SOURCE}]\ntitle = "Least squares over measured convolutions"\ncommand = "{command}"\nfile = "{files}"\n'
    path.write_text(text)
    if parameters.machine_alone:
        return
    target = attributes_file(gpu.capability_number)
    document = json.loads(target.read_text())
    document["kernels"] |= {row.name: msgspec.to_builtins(rounded(known[row.name])) for row in rows}
    for row in conv_kernels():  # bf16 has the same instruction rates as f16
        measured = row in rows or row.name not in document["kernels"]
        if row.dtype == "bf16" and not measured and (twin := conv_kernel(row.name.removeprefix("b"))) in rows:
            document["kernels"][row.name]["efficiency"] = document["kernels"][twin.name]["efficiency"]
    document["efficiencies of convolutions"] = {"command": command, "files": [named(path) for path in paths]}
    cuda_attributes.write(target, document)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--machine-alone", action="store_true", help="fix the rows' efficiencies")
    options = parser.parse_args()
    gpu = load_any(options.machine)
    assert isinstance(gpu, Gpu)
    cases, known = read(gpu, options.files), gemm_attributes(gpu.capability_number)
    layers = list(dict.fromkeys(case.problem for case in cases))  # both layouts of a layer are in the same half
    halves = {name: [case for case in cases if case.problem in layers[first::2]] for first, name in enumerate(("fitted on", "reported on"))}
    parameters = Parameters(gpu, cases, known, options.machine_alone)
    if not options.no_fit:
        gpu, known = parameters.machine(fit(halves["fitted on"], parameters))
    found = {name: report(some, gpu, known) for name, some in halves.items()}
    efficiencies = {row.name: known[row.name].efficiency for row in parameters.rows if row.name in known}
    if options.out:
        constants = {f: {n: getattr(v, n).value for n in MOVED} for f, v in gpu.model.families.items() if f.startswith("conv_")}
        document = {"schema": 1, "constants": constants, "efficiencies": efficiencies, "sets": found}
        options.out.write_text(json.dumps(document, indent=1) + "\n")
    if options.write:
        machine = ["-m", options.machine] * (options.machine != parser.get_default("machine"))
        command = " ".join(["lab/fits/fit_conv.py", *machine, *["--machine-alone"] * options.machine_alone])
        write(gpu, known, parameters, options.files, command)
    for name, one in found.items():
        numbers = "  ".join(f"{key} {value:.3f}" for key, value in one.items() if isinstance(value, float))
        print(f"{name:<14} {one['problems']:>3} layers {one['launches']:>4} launches  {numbers}")
    worst = sorted((each for one in found.values() for each in one["each"]), key=lambda each: -each["regret"])[:12]
    for each in worst:
        print(f"  regret {each['regret']:.3f}  {each['problem']}: {each['chosen']}, best {each['best']}")
    print("  ".join(f"{name} {value:.3f}" for name, value in efficiencies.items() if value))


if __name__ == "__main__":
    main()
