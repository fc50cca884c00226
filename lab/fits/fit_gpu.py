#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fits the constants of the GPU cost model to measurements of lab/benchmarks/cuda/planner.py, and reports its errors on held-out shapes.

    lab/fits/fit_gpu.py h200/planner.json -m h200 [-o report.json] [--write] [--families]
    (also .jsonl of bench.cu --rows, of products.py --top, and of layers.py --rows all,
    whose pointwise convolutions are products)

Half of the problems are fitted, by least squares of log(predicted / measured) (`pysim/calibration/gpu_fit.py`). Free parameters are the
machine's [model] table, its L2 and memory rates, and each kernel's efficiency. Options fix some of them:

    --families        fixes rates, latencies and the sharing of L2: the fit of the convolutions depends on them
    --machine-alone   fixes the kernels' efficiencies: machines of one compute capability share them
    --own-alone       frees only the efficiencies of these files' kernels and the constants of their families; --write does not support it
    --same-chip       names another machine of the same chip, and its files: both are fitted with the same free parameters, except the
                      memory rate and the size of L2, which each machine keeps

Launches of kernels that CHANGED since they were measured are ignored. Families whose constants have another source than this fit stay as
they are, except with --own-alone.

The report has for both halves the error (median and 90th percentile of |log(predicted / measured)|), Kendall's tau over the launches of a
problem, and the regret of the launch predicted best. If nvidia-matmul-heuristics is installed, its estimates for the same kernels are
reported, too. --write stores the constants in the machine's file, with kind "fitted", and attributes and efficiencies in the registry's
attributes file.
"""

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from scipy.stats import kendalltau

from pysim.algorithms.gpu.gemm import THIRD_BYTES, computed, copies, graph_saving, pitches
from pysim.algorithms.gpu.im2col import products_of
from pysim.cachemodel.gpu.columns import Table
from pysim.cachemodel.gpu.launches import constants_of
from pysim.cachemodel.gpu.mainloop import LINE_BYTES, VECTOR_BYTES, loads_side_by_side
from pysim.calibration.gpu_fit import CONSTANTS, RATES, STARTS, Case, Measured, Moved, fit, half_of, predicted
from pysim.errors import MissingError
from pysim.machine.gpu import Gpu, GpuFamily
from pysim.machine.load import SHIPPED, load_any
from pysim.machine.quantity import Number
from pysim.problem.dtypes import GPU_RESULT_BYTES, SIZES
from pysim.problem.gemm import Gemm
from pysim.problem.text import parse
from pysim.record.schedule import DECOMPOSITIONS, GpuSchedule
from pysim.registry.cuda import Attributes, GemmKernel, attributes_file, gemm_attributes, gemm_kernel

sys.path.append(str(Path(__file__).parents[1]))
import rooms  # noqa: F401, I001
import conv_data
import cuda_attributes
import records

SOURCE = "fit"
SHOWN = ("regret_mean", "regret_worst", "tau", "median_error", "p90_error", "median_error_of_chosen")


def transposed(problem: Gemm, kernel: GemmKernel) -> bool:
    """Transposed results: the epilogue stored words, and now stores vectors (native/cuda/mainloop/wgmma/epilogue.cuh)."""
    return computed(problem, kernel) is not problem


def line_pitches(problem: Gemm, kernel: GemmKernel) -> bool:
    """The pitch of copied operands was a multiple of 16 bytes, and is now one of L2 lines (native/cuda/abi/gemm.cu)."""
    sizes = {SIZES[problem.dtype], THIRD_BYTES}
    return any(one.pitch % LINE_BYTES == 0 and all(one.columns * size % LINE_BYTES for size in sizes) for one in copies(problem, kernel))


def overlapping(problem: Gemm, kernel: GemmKernel) -> bool:
    """Tiles that reach beyond C or k had a slower loop, and now overlap their neighbours (native/cuda/mainloop/simt/kernel.cuh)."""
    tiles = kernel.tiles
    return not tiles.tensor and bool(problem.m % tiles.rows or problem.n % tiles.columns or problem.k % tiles.depth)


def apart(problem: Gemm, kernel: GemmKernel) -> bool:
    """Unaligned rows were loaded by lanes a vector apart, and now by adjacent lanes (native/cuda/mainloop/simt/singles.cuh)."""
    return loads_side_by_side(kernel.tiles) and any(pitch * SIZES[problem.dtype] % VECTOR_BYTES for pitch in pitches(problem))


def in_strips(problem: Gemm, kernel: GemmKernel) -> bool:
    """Rows of two-byte results that are not whole vectors were stored strip by strip (native/cuda/mainloop/wgmma/direct.cuh)."""
    return kernel.mainloop == "wgmma" and GPU_RESULT_BYTES[problem.dtype] == 2 and bool(problem.n * 2 % VECTOR_BYTES)


def stored_by_words(problem: Gemm, kernel: GemmKernel) -> bool:
    """wgmma kernels stored rows of C in runs of 32 or 64 bytes, and now in lines of 128; their first load is issued sooner
    (native/cuda/mainloop/wgmma/rows.cuh)."""
    return kernel.mainloop == "wgmma"


def swapped(problem: Gemm, kernel: GemmKernel) -> bool:
    """B was copied although it is larger than A (`computed`)."""
    return problem.trans_a and transposed(problem, kernel)


def by_words(problem: Gemm, kernel: GemmKernel) -> bool:
    """Copies of rows as they lie moved single elements, and now words (native/cuda/gemm/layout_conversion.cu)."""
    return any(one.element > SIZES[problem.dtype] for one in copies(problem, kernel))


def in_turn(problem: Gemm, kernel: GemmKernel) -> bool:
    """Copies began when the launch before them had ended, and now begin earlier: times in graphs."""
    return any(True for _ in copies(problem, kernel))


def wide(problem: Gemm, kernel: GemmKernel) -> bool:
    """Tiles of these rows had all of their columns, and now have those that fill the last wave (pysim/algorithms/product_tiles.py)."""
    return kernel.narrows > 0


CHANGED_IN_ALL, CHANGED_IN_GRAPHS = (swapped, by_words, wide), (in_turn,)  # since the files of lab/data were measured
CHANGED = {  # file of lab/data -> predicates of launches whose kernels changed since the file was measured
    "h200/products-clusters.jsonl": (transposed, line_pitches, apart, overlapping),
    "h200/products-held.jsonl": (transposed, line_pitches, apart, overlapping, in_strips),
    "h200/products-random.jsonl": (transposed, line_pitches, apart, overlapping, in_strips),
    "h100/products-random.jsonl": (transposed, line_pitches, apart, overlapping, stored_by_words),
    "h100/products-seed61.jsonl": (transposed, apart, overlapping, stored_by_words),
    "h200/products-singles.jsonl": (overlapping,),
    "h200/planner.json": (overlapping,),
    **{f"h200/products-seed{seed}.jsonl": (apart, overlapping, in_strips) for seed in (62, 63)},
    **{f"h100/products-seed{seed}.jsonl": (stored_by_words,) for seed in (171, 397, 501, 601)},
}


def read(paths: list[Path], gpu: Gpu) -> tuple[list[Case], dict[str, Attributes]]:
    """The problems of the files, and the attributes of their kernels. Times of CUDA graphs become those between events."""
    cases, attributes, gone = [], {}, Counter[str]()
    for path in paths:
        document = document_of(path)
        names = document["kernels"]
        gone.update(name for one in document["problems"] for launch in one["launches"] if not gemm_kernel(name := names[launch[0]]))
        attributes |= {name: msgspec.convert(one, Attributes) for name, one in document["attributes"].items() if one and gemm_kernel(name)}
        found = [case for one in document["problems"] if (case := case_of(one, names))]
        found = [by_events(case, gpu) for case in found] if document.get("graphs") else found
        changed = (*CHANGED.get(f"{path.parent.name}/{path.name}", ()), *CHANGED_IN_ALL, *CHANGED_IN_GRAPHS[: bool(document.get("graphs"))])
        cases += [case for one in found if (case := unchanged(one, changed))]
    tell_gone(gone)
    return cases, attributes


def by_events(case: Case, gpu: Gpu) -> Case:
    """A case measured in CUDA graphs, with the times between events."""
    saved = []
    for row, kind, splits, along_n, group in zip(*case.table, strict=True):
        schedule = GpuSchedule(case.kernels[row].name, DECOMPOSITIONS[kind], int(splits), bool(along_n), int(group))
        saved.append(graph_saving(gpu, case.problem, schedule))
    return case._replace(seconds=case.seconds + np.array(saved))


def unchanged(case: Case, changed: tuple[Callable[[Gemm, GemmKernel], bool], ...]) -> Case | None:
    """A case without the launches for which any predicate holds; None if none is left."""
    left = [any(are(case.problem, kernel) for are in changed) for kernel in case.kernels]
    kept = np.flatnonzero(~np.array(left)[case.table.variant])
    return case._replace(table=case.table.select(kept), seconds=case.seconds[kept], samples=case.samples[kept]) if len(kept) else None


def tell_gone(gone: Counter[str]) -> None:
    """Prints how many recorded launches were left out, and of how many kernels."""
    if gone:
        print(f"left out are {gone.total()} launches of {len(gone)} kernels that the registry no longer has", file=sys.stderr)


class Places(dict[str, int]):
    """Numbers names in the order of their first use."""

    def __missing__(self, name: str) -> int:
        return self.setdefault(name, len(self))


def document_of(path: Path) -> dict[str, Any]:
    """A file of any supported benchmark, converted to planner.py's document."""
    if path.suffix != ".jsonl":
        return json.loads(path.read_text())
    lines = records.lines(path)
    if lines[0].get("kind") == "header":
        return of_layers(path)
    return (of_products if "plans" in lines[0] else of_bench)(lines)


def of_layers(path: Path) -> dict[str, Any]:
    """The products in the output of `lab/benchmarks/cuda/layers.py`, as planner.py's document."""
    places, problems = Places(), []
    for line in conv_data.read(path):
        if not isinstance(line, conv_data.Line):
            continue
        of = products_of(msgspec.structs.replace(line.workload, dtype=line.dtype), "nhwc")
        launches = []
        for one in line.of(conv_data.OURS).values():
            s = msgspec.convert(one.schedule, GpuSchedule) if one.schedule and one.layout == "nhwc" else None
            if s and s.gemm:
                how = (places[s.gemm], DECOMPOSITIONS.index(s.decomposition), s.splits, int(s.along_n), s.group)
                launches.append([*how, one.seconds, one.samples, one.predicted_seconds])
        if launches and of.times == 1 and not of.columns:
            problems.append({"problem": of.problem.text, "cublas": None, "launches": launches})
    return {"kernels": list(places), "attributes": {}, "problems": problems}


def of_products(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """The output of `lab/benchmarks/cuda/products.py`, as planner.py's document."""
    places, problems = Places(), []
    for line in lines:
        launches = []
        for plan in line["plans"]:
            s = plan["schedule"]
            if plan["right"]:
                how = (places[plan["kernel"]], DECOMPOSITIONS.index(s["decomposition"]), s["splits"], int(s["along_n"]), s["group"])
                launches.append([*how, plan["seconds"], plan["samples"], plan.get("predicted", 0.0)])
        problems.append({"problem": line["problem"], "cublas": line.get("cublas"), "launches": launches})
    return {"kernels": list(places), "attributes": {}, "problems": problems, "graphs": bool(lines[0].get("graphs"))}


def of_bench(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """The output of `bench.cu --rows`, as planner.py's document. Its sizes are cuBLAS's: the kernels compute C transposed.

    Lines whose result has another type ("f16>f32") are skipped. Tiles are rasterised along m in groups of 8.
    """
    places, problems, launches = Places(), [], []
    for one in lines:
        if "row" in one and ">" not in one["dtype"]:
            name, kind, splits = (*one["row"].split(), "", "1")[:3]
            launches.append([places[name], ("", "split-k", "stream-k").index(kind), int(splits), 0, 8, one["seconds"], 3, 0.0])
        elif "layout" in one:
            layout = one["layout"][::-1]
            suffixes = f":{layout}" * (layout != "nn") + f":{one['dtype']}" * (one["dtype"] != "f32")
            text = f"gemm:{one['n']}x{one['m']}x{one['k']}{suffixes}"
            if launches:
                problems.append({"problem": text, "cublas": one.get("cublas_seconds"), "launches": launches})
            launches = []
    return {"kernels": list(places), "attributes": {}, "problems": problems}


def case_of(one: dict[str, Any], names: list[str]) -> Case | None:
    launches = [launch for launch in one["launches"] if gemm_kernel(names[launch[0]])]
    if not launches:
        return None
    used = sorted({launch[0] for launch in launches})
    kernels = tuple(row for index in used if (row := gemm_kernel(names[index])))
    columns = np.array([launch[:5] for launch in launches])
    columns[:, 0] = [used.index(index) for index in columns[:, 0]]
    seconds, samples = (np.array([launch[place] for launch in launches]) for place in (5, 6))
    problem = parse(one["problem"])
    assert isinstance(problem, Gemm)
    return Case(problem, kernels, Table(*columns.T), seconds, samples)


def of_type(cases: list[Case], dtype: str) -> list[Case]:
    return [case for case in cases if case.problem.dtype == dtype or not dtype]


def of_this_fit(gpu: Gpu, cases: list[Case]) -> list[Case]:
    """The launches of kernels whose constants this fit wrote before. Other families keep their own fits."""
    found = []
    for case in cases:
        own = [constants_of(gpu, kernel.families)[1].launch_seconds.source == SOURCE for kernel in case.kernels]
        kept = np.flatnonzero(np.array(own)[case.table.variant])
        if len(kept):
            table = case.table.select(kept)
            table = table._replace(variant=(np.cumsum(own) - 1)[table.variant])
            kernels = tuple(kernel for kernel, of_fit in zip(case.kernels, own, strict=True) if of_fit)
            found.append(Case(case.problem, kernels, table, case.seconds[kept], case.samples[kept]))
    return found


def report(cases: list[Case], gpu: Gpu, known: dict[str, Attributes]) -> dict[str, Any]:
    """Error, tau and regret over a set of problems, and of each problem."""
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
    """The same report on nvidia-matmul-heuristics' estimates for the same launches; None without estimates."""
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
        estimated = np.array([i for i, seconds in enumerate(estimates) if seconds])
        if len(estimated) < 3:
            continue
        part = case._replace(table=case.table.select(estimated), seconds=case.seconds[estimated])
        seconds = np.array([estimates[i] for i in estimated])
        errors.append(np.abs(np.log(seconds / part.seconds)))
        each.append(judged(part, seconds))
    print(*sorted(missing), sep="\n", file=sys.stderr)
    return {"problems": len(each), **merged(each, np.concatenate(errors)), "each": each} if each else None


def write(gpu: Gpu, known: dict[str, Attributes], paths: list[Path], command: str) -> None:
    """Writes the constants into the machine's file, line by line, and the kernels' attributes into the registry's attributes file."""
    path = SHIPPED / f"{gpu.name}.toml"
    text = path.read_text()
    values = {name: getattr(gpu.model, name) for name in CONSTANTS} | {name: getattr(gpu, name) for name in RATES}
    text = with_values(text, values)
    for family, numbers in gpu.model.families.items():
        head, found, rest = text.partition(f"[model.families.{family}]\n")
        body, blank, tail = rest.partition("\n\n")
        text = head + found + with_values(body, {name: getattr(numbers, name) for name in GpuFamily.__struct_fields__}) + blank + tail
    kept = re.search(rf"(?ms)^\[sources\.{SOURCE}\]\n(?:(?!^\[).)*?^(note = .*?\n)", text)
    note = kept[1] if kept else ""
    text = re.sub(rf"(?ms)^\[sources\.{SOURCE}\]\n.*?(?=^\[|\Z)", "", text).rstrip("\n") + "\n"
    if f'source = "{SOURCE}"' in text:
        files = ", ".join(map(named, paths))
        text += f'\n[sources.{SOURCE}]\ntitle = "Least squares over measured products"\ncommand = "{command}"\nfile = "{files}"\n{note}'
    for key in re.findall(r"(?m)^\[sources\.(\w+)\]$", text):
        if f'source = "{key}"' not in text:
            text = re.sub(rf"(?ms)^\[sources\.{key}\]\n.*?(?=^\[|\Z)", "", text)
    path.write_text(text.rstrip("\n") + "\n")
    if not known:
        return
    target = attributes_file(gpu.capability_number)
    old = json.loads(target.read_text()) if target.exists() else {"schema": 1, "kernels": {}}
    old["kernels"] |= {name: msgspec.to_builtins(rounded(one)) for name, one in known.items()}
    old["efficiencies"] = {"command": command, "files": [named(path) for path in paths]}
    cuda_attributes.write(target, old)


def named(path: Path) -> str:
    """The name of a data file in sources: its path in the repository if it was given so."""
    return path.name if path.is_absolute() else path.as_posix()


def with_values(text: str, values: dict[str, Number]) -> str:
    """A part of a machine file with the fitted values replaced."""
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
    parser.add_argument("--no-fit", action="store_true", help="report only, with the present constants")
    parser.add_argument("--write", action="store_true", help="store the constants in the machine file, attributes in the registry")
    return parser


def parser_of_fit() -> argparse.ArgumentParser:
    parser = parser_of(__doc__)
    parser.add_argument("--families", action="store_true", help="fix the rates, latencies and shares of L2")
    parser.add_argument("--machine-alone", action="store_true", help="fix the kernels' efficiencies")
    parser.add_argument("--own-alone", action="store_true", help="free only the kernels and families of these files")
    parser.add_argument("--other-half", action="store_true", help="exchange the two halves: fit one, report on the other")
    parser.add_argument("--report", type=Path, nargs="+", default=[], help="files to report on; all problems of FILES are then fitted")
    parser.add_argument("--dtype", default="", help="only problems of this element type")
    parser.add_argument(
        "--same-chip", nargs="+", default=[], metavar=("MACHINE", "FILE"), help="another machine of the chip, and its files"
    )
    return parser


def main() -> None:
    parser = parser_of_fit()
    options = parser.parse_args()
    gpu = load_any(options.machine)
    assert isinstance(gpu, Gpu)
    cases, attributes = read(options.files, gpu)
    cases = of_type(cases, options.dtype)
    others = [load_any(name) for name in options.same_chip[:1]]
    more_files = [Path(name) for name in options.same_chip[1:]]
    of_others = of_type(read(more_files, others[0])[0], options.dtype) if others else []
    for name, one in gemm_attributes(gpu.capability_number).items():  # the fit starts from the previous efficiencies
        measured = attributes.get(name, one)
        attributes[name] = msgspec.structs.replace(measured, efficiency=one.efficiency)
    halves = {
        name: [case for case in cases if half_of(case.problem) == half]
        for name, half in (("fitted on", int(options.other_half)), ("reported on", int(not options.other_half)))
    }
    if options.report:
        halves = {"fitted on": cases, "reported on": of_type(read(options.report, gpu)[0], options.dtype)}
        cases = [*cases, *halves["reported on"]]
    known = attributes
    if not options.no_fit:
        moved = Moved(STARTS, (), not options.machine_alone) if options.families else Moved(CONSTANTS, RATES, not options.machine_alone)
        moved = Moved((), (), True) if options.own_alone else moved
        own = [case for case in of_others if options.report or half_of(case.problem) == int(options.other_half)]
        sides = [Measured(gpu, halves["fitted on"]), *(Measured(on, own) for on in others)]
        if not options.own_alone:
            sides = [Measured(on, of_this_fit(on, some)) for on, some in sides]
        (gpu, *others), known, _ = fit(sides, attributes, moved)
    found = {name: report(some, gpu, known) for name, some in halves.items()}
    for other in others:
        found[f"{other.name}, reported on"] = report(
            [case for case in of_others if half_of(case.problem) != int(options.other_half)], other, known
        )
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
        flags = [f"--{name.replace('_', '-')}" for name in ("families", "machine_alone", "other_half") if getattr(options, name)]
        machine = ["-m", options.machine] * (options.machine != parser.get_default("machine"))
        command = " ".join(["lab/fits/fit_gpu.py", *machine, *flags, *(f"--same-chip {one.name}" for one in others)])
        files = [*options.files, *more_files]
        for machine in (gpu, *others):
            write(machine, {} if options.machine_alone or machine is not gpu else known, files, command)


if __name__ == "__main__":
    main()
