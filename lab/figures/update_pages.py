# SPDX-License-Identifier: Apache-2.0
"""Writes tables and command output from the data files into the documents, between their marks.

pysim compare resnet50 --peers > lab/data/zen5/compare-resnet50.txt
python lab/figures/update_pages.py
"""

import json
import math
import re
import sys
import textwrap
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))
from rooms import DATA, ROOT  # noqa: I001
import api_page
import compiler_tables
import conv_data
import model_figure
import paper_comparison
import prediction_quality
import records
import reproducible_tables
import sconv_figures
import static_cycles


from pysim.problem.text import parse

PRECISION_SETS = {  # precisions of lab/benchmarks/cuda/models.py other than FP32
    "f16": "autocast to float16",
    "tf32": "TF32 allowed",
    "half": "converted to float16",
    "bf16": "converted to bfloat16",
}
ABLATION = (  # a row of im2win, and the rows that leave something out of it
    "f32_im2win_128x128x8_64x32_8x8_s2",
    "f32_im2win_128x128x8_64x32_8x8_s1_no_prefetch",
    "f32_im2win_128x128x8_64x32_8x8_s2_no_vector",
    "f32_im2win_32x32x32_4x8_1x1_s2_no_micro",
    "f32_im2win_basic",
    "f32_im2win_128x64x16_32x64_8x8_s1",
    "f32_im2win_128x64x16_32x64_8x8_s1_fused",
)


def put(path: Path, mark: str, text: str) -> None:
    """Replaces what stands between the begin and end marks of `mark`; lines of prose are wrapped."""
    lines = text.splitlines()
    text = "".join(
        f"{part}\n" for line in lines for part in (textwrap.wrap(line, 160) if line[:1].isalpha() and len(line) > 200 else [line])
    )
    pattern = re.compile(rf"(<!-- {mark}: begin[^\n]*-->\n).*?(<!-- {mark}: end -->)", re.DOTALL)
    changed, count = pattern.subn(lambda found: found[1] + text + found[2], path.read_text())
    if count != 1:
        raise SystemExit(f"{path} has no place marked {mark!r}")
    path.write_text(changed)


def fit_table() -> str:
    fit = json.loads((DATA / "zen4/fit.json").read_text())
    rows = ["| layers | schedules | median error | 90th percentile | tau | regret, mean | regret, worst |", "|---|---|---|---|---|---|---|"]
    for name in ("train", "test"):
        q = fit[name]["after"]
        sets = ", ".join(word.rpartition("/")[2] for word in fit[name]["sets"])
        rows.append(
            f"| {'fitted on' if name == 'train' else 'reported on'} {sets}: {q['layers']} | {q['schedules']} | {q['median_error']:.1%} | "
            f"{q['p90_error']:.1%} | {q['kendall_tau_mean']:.2f} | {q['regret_geometric_mean']:.3f} | {q['regret_worst']:.3f} |"
        )
    return "\n".join(rows) + "\n"


def validation_table(name: str) -> str:
    levels = ("L1", "L2", "L3")
    titles = [f"{level} {what}" for level in levels for what in ("median", "90th percentile")]
    rows = [f"| machine | cases | {' | '.join(titles)} |", "| --- | --: |" + " --: |" * len(titles)]
    for machine, found in json.loads((DATA / name).read_text())["summary"].items():
        cells = [f"{found[level][key]:.1%}".replace("%", " %") for level in levels for key in ("median_error", "p90_error")]
        rows.append(f"| {machine} | {found['L1']['cases']} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def cublas_table() -> str:
    """Per type: TFLOP/s and ratio to cuBLAS of the main shape in four layouts, and the geometric mean ratio of the others."""
    found = [one for one in map(json.loads, (DATA / "h200/cublas.jsonl").read_text().splitlines()) if "layout" in one]
    rows = ["| types | NN | TN | NT | TT | 12 other shapes |", "| --- | --: | --: | --: | --: | --: |"]
    for dtype in dict.fromkeys(one["dtype"] for one in found):
        mine = [one for one in found if one["dtype"] == dtype]
        main = {one["layout"]: one for one in mine if (one["m"], one["n"], one["k"]) == (10240, 4096, 4096)}
        others = [one["ratio"] for one in mine if one not in main.values()]
        cells = [f"{main[name]['tflops']:.0f} ({main[name]['ratio']:.2f})" for name in ("nn", "tn", "nt", "tt")]
        rows.append(f"| {dtype.replace('>', ' -> ')} | {' | '.join(cells)} | {geometric_mean(others):.2f} |")
    return "\n".join(rows) + "\n"


def accuracy_table(*names: str) -> str:
    """Of each type the problem with the longest sums: the least and largest measured errors of each library, operands in [-1, 1)."""
    found = [one for name in names for one in records.lines(DATA / name)]
    longest: dict[tuple[str, type, str], tuple[float, str]] = {}
    for one in found:
        w = parse(one["problem"])
        key, products = (one["machine"], type(w), w.dtype), w.flops / 2 / w.output_elements
        longest[key] = max(longest.get(key, (0.0, "")), (products, one["problem"]))
    problems = [(machine, problem) for (machine, _, _), (_, problem) in longest.items()]
    rows = ["| machine | problem | who: least to largest error of its kernels |", "| --- | --- | --- |"]
    for machine, problem in problems:
        parties: dict[str, list[float]] = {}
        for one in found:
            if (one["machine"], one["problem"]) == (machine, problem) and one["low"] < 0:
                transform = re.search(r"_f(\d)_.*?(_drained)?$", one["kernel"]) if "stated" in one else None
                of = f" F({transform[1]}x{transform[1]}){' drained' * bool(transform[2])}" if transform else ""
                parties.setdefault(one["algorithm"] + of, []).append(one["error"])
        cells = [f"{name} {min(some):.1e}" + f" to {max(some):.1e}" * (max(some) > min(some)) for name, some in sorted(parties.items())]
        rows.append(f"| {machine} | `{problem}` | {'; '.join(cells)} |")
    return "\n".join(rows) + "\n"


def convolution_table(*names: str) -> str:
    """Per set and type: TFLOP/s of the fastest of each party."""
    lines = conv_data.lines_of(DATA / name for name in names)
    rows = ["| layers | who | TFLOP/s, geometric mean | least | largest workspace, MiB | ran |", "| --- | --- | --: | --: | --: | --: |"]
    for dtype in conv_data.DTYPES:
        for name in (*conv_data.SETS, *conv_data.NETWORKS):
            mine = [line for line in lines if (line.set, line.dtype) == (name, dtype)]
            for one in conv_data.parties(mine):
                if one.name.endswith(" best"):
                    cells = f"{one.mean:.1f} | {one.least:.1f} | {one.workspace_bytes / 2**20:.0f} | {one.layers} of {len(mine)}"
                    rows.append(f"| {name} {dtype} | {one.name} | {cells} |")
    return "\n".join(rows) + "\n"


def conv_figures(names: list[str]) -> str:
    """The acceptance figures of measured convolutions beside their bars, and im2win's ablation, measured and predicted."""
    lines = list(conv_data.lines_of(DATA / name for name in names))
    rows = ["| figure | value | bar | | where |", "| --- | --: | --- | --- | --- |"]
    rows += [
        f"| {one.what} | {one.value:.2f} | {one.bar} | {'met' if one.met else '**missed**'} | {one.where} |"
        for one in conv_data.figures(lines)
        if one.value is not None
    ]
    mec = [line for line in lines if (line.set, line.dtype) == ("im2win", "f32")]
    rows += ["", "| im2win on cv1 to cv12 | measured, times the first | predicted |", "| --- | --: | --: |"]
    for row in ABLATION:
        pairs = [(line.candidates[f"pysim {row}"], line.candidates[f"pysim {ABLATION[0]}"]) for line in mec]
        measured = geometric_mean(one.seconds / whole.seconds for one, whole in pairs)
        predicted = geometric_mean(one.predicted_seconds / whole.predicted_seconds for one, whole in pairs)
        rows.append(f"| `{row}` | {measured:.2f} | {predicted:.2f} |")
    return "\n".join(rows) + "\n"


def conv_fit_table(name: str) -> str:
    """What lab/fits/fit_conv.py reported."""
    rows = ["| layers | launches | regret, mean | worst | tau | error, median | 90th percentile |", "| --- |" + " --: |" * 6]
    for half, one in json.loads((DATA / name).read_text())["sets"].items():
        errors = " | ".join(f"{one[key]:.1%}".replace("%", " %") for key in ("median_error", "p90_error"))
        regrets = f"{one['regret_mean']:.3f} | {one['regret_worst']:.3f} | {one['tau']:.2f}"
        rows.append(f"| {half}: {one['problems']} | {one['launches']} | {regrets} | {errors} |")
    return "\n".join(rows) + "\n"


def shared_memory_table(name: str) -> str:
    """Cycles per instruction with many warps (with one) / wavefronts, by pattern and instruction."""
    found = json.loads((DATA / name).read_text())["calibrations"][0]
    by_place = {(row["pattern"], row["instruction"]): row for row in found["shared"]}
    patterns, instructions = (list(dict.fromkeys(place[i] for place in by_place)) for i in (0, 1))
    few, *_, many = found["shared"][0]["cycles"]
    rows = [f"| cycles, {many} warps ({few} warp) / wavefronts | {' | '.join(instructions)} |", "| --- |" + " --: |" * len(instructions)]
    for pattern in patterns:
        cells = []
        for row in (by_place.get((pattern, instruction)) for instruction in instructions):
            mark = "**" if row and row["differs"] else ""
            cycles = {warps: figure["median"] for warps, figure in row["cycles"].items()} if row else {}
            cells.append(f"{mark}{cycles[many]:.2f}{mark} ({cycles[few]:.2f}) / {row['wavefronts']}" if row else "")
        rows.append(f"| {pattern} | {' | '.join(cells)} |")
    differ, of, device = sum(row["differs"] for row in found["shared"]), len(found["shared"]), found["device"]
    about = f"{device['name']}, CUDA {device['runtime']}, medians of {found['samples']} launches"
    about += f": {differ} of {of} (bold) differ by more than {found['tolerance']:.0%} from one wavefront a cycle."
    return "\n".join([about, "", *rows, ""])


def conv_wavefronts_table(name: str) -> str:
    """Per row and layout: comparisons, how many are equal, and sums of wavefronts predicted and counted."""
    found = json.loads((DATA / name).read_text())
    rows = ["| row | layout | comparisons | equal | loads, predicted | counted | stores, predicted | counted |"]
    rows.append("| --- | --- |" + " --: |" * 6)
    for kernel, layout in dict.fromkeys((one["kernel"], one["layout"]) for one in found["launches"]):
        mine = [one for one in found["launches"] if (one["kernel"], one["layout"]) == (kernel, layout)]
        sums = [sum(one[key][kind] for one in mine) for kind in ("loads", "stores") for key in ("predicted", "counted")]
        cells = " | ".join(f"{number:,}" for number in (len(mine), sum(one["equal"] for one in mine), *sums))
        rows.append(f"| `{kernel}` | {layout.upper()} | {cells} |")
    about = f"{found['meta']['device']}, Nsight Compute {found['meta']['ncu']}:"
    return "\n".join([about, "", *rows, ""])


def models_table(device: str) -> str:
    """Whole networks: milliseconds of PyTorch's best and of pysim, both as CUDA graphs or not, errors, and layers that
    run here."""
    header, found = model_figure.networks(f"{device}/models.jsonl")
    means: list[list[float]] = [[], [], []]
    rows = [
        "| network, batch | PyTorch | its best of | pysim | ratio | standard, ieee | errors: PyTorch, pysim, standard | memory "
        "| layers by pysim |",
        "|---|--:|---|--:|--:|---|---|--:|--:|",
    ]
    for one in found:
        best, ours = model_figure.best(one), sum(layer["runs"] == "pysim" for layer in one["decisions"])
        errors = ", ".join(f"{one['errors'][name]:.1e}" for name in ("pytorch", "pysim", "pysim standard") if name in one["errors"])
        levels = [level for level in ("", " standard", " ieee") if f"pysim{level} graph" in one["milliseconds"]]
        ratios = [model_figure.speed(one, level) for level in levels]
        for of_level, ratio in zip(means, ratios, strict=False):
            of_level.append(ratio)
        times = f"{best.milliseconds:.2f} | {best.way} | {one['milliseconds']['pysim graph']:.2f} | {ratios[0]:.2f}x"
        memory = one["peak_bytes"]["pysim"] / one["peak_bytes"]["pytorch"]
        others = ", ".join(f"{ratio:.2f}x" for ratio in ratios[1:])
        told = f"{others} | {errors} | {memory:.2f}x | {ours} of {len(one['decisions'])}"
        rows.append(f"| {one['model']}, {one['batch']} | {times} | {told} |")
    mean = ", ".join(f"{name}{geometric_mean(level):.2f}x" for name, level in zip(("", "standard ", "ieee "), means, strict=True) if level)
    versions = ", ".join(f"{name} {version}" for name, version in header["versions"].items())
    about = f"{header['device']}, {versions}; milliseconds; geometric means {mean}."
    return "\n".join([*rows, "", f"{about} PyTorch's best of {model_figure.peers(found)}.", ""])


def precisions_table(device: str) -> str:
    """Whole networks in other types than FP32: milliseconds of PyTorch's best and of pysim as a CUDA graph, errors, types of layers."""
    rows = ["| network, batch | set | PyTorch | its best of | pysim | ratio | mean errors: PyTorch, pysim | layers by pysim, their types |"]
    rows.append("|---|---|--:|---|--:|--:|---|---|")
    told, header, every = list[str](), {}, list[dict[str, Any]]()
    for precision, name in PRECISION_SETS.items():
        file = f"{device}/models-{precision}.jsonl"
        if not (DATA / file).exists() or not (measured := model_figure.networks(file))[1]:
            continue
        header, found = measured
        every += found
        ratios = []
        for one in found:
            best = model_figure.best(one)
            ratios.append(model_figure.speed(one))
            decided = {layer["layer"]: layer for layer in reversed(one["decisions"])}  # on the first kind of input
            native = [parse(layer["problem"]).dtype for layer in decided.values() if layer["runs"] == "pysim"]
            layers = ", ".join(f"{native.count(dtype)} {dtype}" for dtype in dict.fromkeys(sorted(native)))
            errors = ", ".join(f"{one['mean_errors'][who]:.1e}" for who in ("pytorch", "pysim"))
            times = f"{best.milliseconds:.2f} | {best.way} | {one['milliseconds']['pysim graph']:.2f} | {ratios[-1]:.2f}x"
            rows.append(f"| {one['model']}, {one['batch']} | {name} | {times} | {errors} | {layers} of {len(decided)} |")
        told.append(f"{name} {geometric_mean(ratios):.2f}x")
    versions = ", ".join(f"{name} {version}" for name, version in header["versions"].items())
    means = f"{header['device']}, {versions}; milliseconds; geometric means: {', '.join(told)}."
    return "\n".join([*rows, "", f"{means} PyTorch's best of {model_figure.peers(every)}.", ""])


def networks_table(file: str) -> str:
    """The paper's networks measured: milliseconds of all convolutions, each as often as it occurs, and shares outside micro-kernels."""
    header, *found = records.lines(DATA / file)
    layers = {one["problem"]: one for one in found}
    titles = "SConv | im2col + product | im2col + OpenBLAS | free choice | outside micro-kernels: SConv, im2col"
    rows = [f"{header['environment']['cpu']}:", "", f"| network | {titles} |", "|---|" + "--:|" * 5]
    for name, counts in header["networks"].items():
        spent = {
            kind: sum(count * layers[problem]["seconds"][kind] for problem, count in counts.items())
            for kind in ("sconv", "im2col", "im2col_openblas", "free")
        }
        moved = [
            1 - sum(count * layers[problem]["packing"][kind]["kernel_seconds"] for problem, count in counts.items()) / spent[kind]
            for kind in ("sconv", "im2col")
        ]
        times = " | ".join(f"{value * 1e3:.1f}" for value in spent.values())
        rows.append(f"| {name} | {times} | {moved[0]:.0%}, {moved[1]:.0%} |")
    return "\n".join([*rows, ""])


def cpu_models_table(name: str, errors: bool = True) -> str:
    """Whole ONNX networks on a CPU: milliseconds here, ONNX Runtime's over them, what was predicted, errors if wanted."""
    about, *found = records.lines(DATA / name)
    beside = "im2col_openblas" in found[0]["peers"]
    more = " im2col + OpenBLAS over it |" * beside
    rows = [
        f"| network | pysim | ONNX Runtime over it |{more} its layers, one by one | predicted |{' errors: pysim, ONNX Runtime |' * errors}"
    ]
    rows.append("|---|--:|--:|" + "--:|" * beside + "--:|--:|" + "---|" * errors)
    ratios, columns, misses = [], [], []
    for one in found:
        ratios.append(one["peers"]["onnxruntime"] / one["measured_seconds"])
        alone = sum(layer["measured_seconds"] for layer in one["layers"])
        misses.append(abs(one["predicted_seconds"] / alone - 1))
        off = ", ".join(f"{one['errors'][who]:.1e}" for who in ("pysim", "onnxruntime"))
        columns += [one["peers"]["im2col_openblas"] / one["measured_seconds"]] if beside else []
        second = f"{columns[-1]:.2f}x | " if beside else ""
        times = (
            f"{one['measured_seconds'] * 1e3:.2f} | {ratios[-1]:.2f}x | {second}{alone * 1e3:.2f} | {one['predicted_seconds'] * 1e3:.2f}"
        )
        rows.append(f"| {one['model'].removesuffix('.onnx')} | {times} |" + f" {off} |" * errors)
    second = f", beside im2col and OpenBLAS {geometric_mean(columns):.2f}x" if beside else ""
    means = (
        f"geometric mean {geometric_mean(ratios):.2f}x{second}, prediction against the sum of layers: median error {np.median(misses):.0%}"
    )
    return "\n".join(
        [
            *rows,
            "",
            f"{about['machine']}, ONNX Runtime {about['onnxruntime']}, batch 1; milliseconds; {means}.",
            "",
        ]
    )


CPU_WAYS = {  # candidates of lab/benchmarks/torch_cpu.py
    "eager": "eager",
    "channels_last": "channels last",
    "inductor": "Inductor",
    "inductor_freezing": "with freezing",
    "inductor_autotuned": "and max-autotune",
    "pysim": "pysim.torch",
    "pysim_onnx": "pysim.load",
}


def torch_cpu_table(path: Path) -> str:
    """Whole PyTorch networks on a CPU: milliseconds of each candidate, and the best of PyTorch over pysim's two."""
    header, *found = records.lines(path)
    rows = [f"| network, threads | {' | '.join(CPU_WAYS.values())} | over pysim.torch | over pysim.load |", "|---|" + "--:|" * 9]
    over: dict[str, list[float]] = {"pysim": [], "pysim_onnx": []}
    for one in found:
        clock = "cpu" if one["threads"] == 1 else "wall"
        times = {way: seconds[clock] for way, seconds in one["seconds"].items()}
        best = min(value for way, value in times.items() if not way.startswith("pysim"))
        cells = [f"{times[way] * 1e3:.2f}" if way in times else "-" for way in CPU_WAYS]
        for way, ratios in over.items():
            cells.append(f"{best / times[way]:.2f}x" if way in times else "-")
            ratios += [best / times[way]] if way in times else []
        rows.append(f"| {one['model']}, {one['threads']} | {' | '.join(cells)} |")
    versions = ", ".join(f"{name} {version}" for name, version in header["versions"].items())
    ways = [CPU_WAYS[way] for way in CPU_WAYS if not way.startswith("pysim") and any(way in one["seconds"] for one in found)]
    means = ", ".join(f"over {CPU_WAYS[way]} {geometric_mean(ratios):.2f}x" for way, ratios in over.items() if ratios)
    about = f"{header['machine']}, {versions}; batch 1, milliseconds; CPU time of one thread, wall time of more."
    return "\n".join([*rows, "", f"{about} PyTorch's best of {', '.join(ways)}: geometric means {means}.", ""])


def volumes_table(name: str) -> str:
    """Convolutions of sequences and volumes, and transposed ones: milliseconds, and the faster peer's time over ours."""
    header, *found = records.lines(DATA / name)
    rows = ["| layer | plan | pysim | onnxruntime | openvino | ratio |", "|---|---|--:|--:|--:|--:|"]
    for one in (one for one in found if not 0.95 <= one["ratio"] < 2):
        milliseconds = " | ".join(f"{one['seconds'][of] * 1e3:.2f}" for of in ("pysim", "onnxruntime", "openvino"))
        plans = ", ".join(dict.fromkeys(plan.partition(",")[0] for plan in one["plans"]))
        rows.append(f"| `{one['problem']}` | {plans} | {milliseconds} | {one['ratio']:.2f} |")
    ratios = [one["ratio"] for one in found]
    slower = f"{sum(ratio < 0.95 for ratio in ratios)} of {len(ratios)} below 0.95; the table has these and those from 2 on"
    about = f"{header['environment']['cpu']}, one thread, CPU time, milliseconds; `python lab/benchmarks/sequences_and_volumes.py`;"
    ratio = f"ratio: the faster peer's time over pysim's, {geometric_mean(ratios):.2f} in the geometric mean, {slower}."
    return "\n".join([*rows, "", f"{about} {ratio}", ""])


SHARED = 0.9  # of the multiply-adds of a core alone, as in lab/benchmarks/thread_rounds.py


def server_table(name: str) -> str:
    """Per set: layers, geometric mean and worst of each library's time over pysim's, and the prediction's error; of layers that say what
    share of its multiply-adds the core made meanwhile, those with nearly all of them, too."""
    header, *found = records.lines(DATA / name)
    sets = {of: [one for one in found if one["set"] == of] for of in dict.fromkeys(one["set"] for one in found)}
    if "multiply_share" in found[0]:
        own = [one for one in found if one["multiply_share"] >= SHARED]
        sets |= {"all": found, f"all while the core was ours ({SHARED:.0%} or more)": own}
    peers = list(dict.fromkeys(peer for one in found for peer in sorted(one["peers"])))
    rows = [
        f"| set | layers | {' | '.join(f'{peer}: mean, worst' for peer in peers)} | prediction error: median, 90th percentile |",
        "|---|--:|" + "--:|" * (len(peers) + 1),
    ]
    for of_set, some in sets.items():
        ratios = [[one["peers"][peer] / one["measured_seconds"] for one in some if peer in one["peers"]] for peer in peers]
        errors = [abs(math.log(one["predicted_seconds"] / one["measured_seconds"])) for one in some]
        cells = [f"{geometric_mean(of):.2f}x, {min(of):.2f}x" for of in ratios]
        median, p90 = np.quantile(errors, [0.5, 0.9])
        rows.append(f"| {of_set} | {len(some)} | {' | '.join(cells)} | {median:.0%}, {p90:.0%} |")
    return "\n".join([*rows, "", f"{header['device']}; `{header['command']}`; a library's time over pysim's.", ""])


def without_small_regrets(output: str, least: float = 1.04) -> str:
    """The output of a search; of its rows only those with such a regret of the model's first choice."""
    rows = [(line, line.split()) for line in output.splitlines(keepends=True)]
    kept = [line for line, words in rows if not (len(words) > 4 and words[1] in ("us", "ms") and float(words[4]) < least)]
    first = next(at for at, line in enumerate(kept) if line == "\n")
    return "".join([*kept[:first], f"  ... {len(rows) - len(kept)} rows with a regret below {least}\n", *kept[first:]])


def search_summary(name: str) -> str:
    """The three regrets of a file of searches, and how often the model's order found the better plan in the same time."""
    found = records.lines(DATA / name)[1:]
    told = list[str]()
    for key, what in (("regret", "the model's first choice"), ("regret_8", "the best of its first 8"), ("regret_16", "of its first 16")):
        known = [one[key] for one in found if key in one]
        told.append(f"{what} {geometric_mean(known):.3f} times the best found (worst {max(known):.2f})")
    both = [one for one in found if "random_regret" in one]  # both arms' best were measured twice
    ahead = sum(one["model_regret"] <= one["random_regret"] for one in both)
    plans = sum(one["plans_measured"] for one in found)
    over = f"Geometric means over {len(found)} problems, {plans:,} plans: {'; '.join(told)}."
    return f"{over} In the same time the model's order found at least as good a plan as the random one on {ahead} of {len(both)}.\n"


def gpu_search_text() -> str:
    """The searches of each GPU that was searched."""
    machines = [path.parent.name for path in sorted(DATA.glob("h*/search.jsonl"))]
    return "\n".join(f"{machine.upper()}: {search_summary(f'{machine}/search.jsonl')}" for machine in machines)


OPERATOR_RATIOS = (0.5, 1.0, 1.25, 1.5, math.inf)  # ends of the rows of the table


def operators_table(path: str) -> str:
    """Single operators beside ONNX Runtime (lab/benchmarks/onnx_operators.py), by the ratio of their times."""
    rows = [row for row in records.lines(DATA / path) if "case" in row]
    ratios = {row["case"]: row["seconds"]["pysim"] / row["seconds"]["onnxruntime"] for row in rows}
    lines, least = ["| time over ONNX Runtime's | cases |", "|---|---|"], 0.0
    for most in OPERATOR_RATIOS:
        within = sorted((ratio, case) for case, ratio in ratios.items() if least < ratio <= most)
        told = f"above {least:g}" if math.isinf(most) else f"up to {most:g}"
        lines.append(f"| {told}: {len(within)} | {', '.join(f'{case} {ratio:.2f}' for ratio, case in within)} |")
        least = most
    lines.append(f"\nMedian of {len(ratios)} cases: {np.median([*ratios.values()]):.2f}.")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    put(ROOT / "docs" / "networks.md", "onnx operators", operators_table("zen4/onnx-operators.jsonl"))
    put(ROOT / "docs" / "api.md", "api", api_page.page())
    put(ROOT / "lab" / "notebook" / "cpu-model.md", "xeon server", server_table("xeon-server/compare.jsonl"))
    put(ROOT / "docs" / "kernels.md", "groups", server_table("granite-rapids/groups.jsonl"))
    put(ROOT / "lab" / "notebook" / "cpu-model.md", "another xeon server", server_table("xeon-server-2/compare.jsonl"))
    put(ROOT / "lab" / "notebook" / "cpu-model.md", "depthwise on a xeon server", server_table("xeon-server-3/compare.jsonl"))
    put(ROOT / "docs" / "kernels.md", "granite rapids", server_table("granite-rapids/compare.jsonl"))
    put(ROOT / "docs" / "networks.md", "models h100", models_table("h100"))
    put(ROOT / "docs" / "networks.md", "models in other types h100", precisions_table("h100"))
    put(ROOT / "docs" / "networks.md", "torch on cpus", "\n".join(map(torch_cpu_table, sorted(DATA.glob("*/torch-cpu.jsonl")))))
    put(ROOT / "docs" / "networks.md", "compilers", compiler_tables.table())
    put(ROOT / "docs" / "reproducible.md", "networks on a GPU", reproducible_tables.table() + "\n" + reproducible_tables.said())
    put(ROOT / "README.md", "compilers", compiler_tables.losses())
    put(ROOT / "README.md", "compilers by type", compiler_tables.means())
    put(ROOT / "README.md", "models", model_figure.summary())
    put(ROOT / "README.md", "torch on cpus", model_figure.torch_cpu_losses("zen4/torch-cpu.jsonl"))
    model_figure.draw(ROOT / "docs" / "networks.svg")
    for mark, machine in (("", "zen5"), ("-granite-rapids", "granite-rapids"), ("-zen4", "zen4")):
        put(ROOT / "docs" / "networks.md", f"cpu models{mark}", cpu_models_table(f"{machine}/models.jsonl"))
        if (DATA / machine / "models-two-threads.jsonl").exists():
            put(ROOT / "docs" / "networks.md", f"two threads{mark}", cpu_models_table(f"{machine}/models-two-threads.jsonl", errors=False))
    put(ROOT / "docs" / "networks.md", "peers", model_figure.peers_table("emerald-rapids/network-peers.jsonl"))
    output = (DATA / "zen5/compare-resnet50.txt").read_text()
    put(ROOT / "README.md", "compare resnet50", f"```\n$ pysim compare resnet50 --peers\n{output}```\n")
    put(ROOT / "docs" / "cost-model.md", "fit", fit_table())
    output = without_small_regrets((DATA / "zen5/search.txt").read_text())
    arguments = "@problems/search_layers.txt --budget 12"
    put(ROOT / "docs" / "cli.md", "search", f"```\n$ pysim search {arguments}\n{output}```\n\n{search_summary('zen5/search.jsonl')}")
    put(ROOT / "docs" / "cli.md", "search calibrated", search_summary("zen5/search-calibrated.jsonl"))
    put(ROOT / "docs" / "cli.md", "search server", search_summary("xeon-server/search.jsonl"))
    put(ROOT / "docs" / "cli.md", "search zen4", search_summary("zen4/search-calibrated.jsonl"))
    put(ROOT / "docs" / "cli.md", "search gpu", gpu_search_text())
    power10, paper = ROOT / "docs" / "machines.md", json.loads((DATA / "simulated/paper-comparison.json").read_text())
    put(power10, "static", static_cycles.tables(json.loads((DATA / "power10/static.json").read_text())))
    output = (DATA / "power10/compare-resnet50.txt").read_text()
    put(power10, "compare power10", f"```\n$ pysim compare resnet50 -m power10-e1050\n{output}```\n")
    sconv = ROOT / "docs" / "cost-model.md"
    put(sconv, "table 2", sconv_figures.table())
    put(sconv, "speed-ups", paper_comparison.speed_table(paper))
    put(sconv, "details", paper_comparison.detail_table(paper))
    put(sconv, "measured networks", "\n".join(map(networks_table, sconv_figures.MEASURED)))
    for name, draw in sconv_figures.FIGURES.items():
        draw(sconv.parent / name)
    cache = ROOT / "docs" / "cost-model.md"
    put(cache, "validation resnet50", validation_table("simulated/cache-validation.json"))
    put(cache, "validation other networks", validation_table("simulated/cache-validation-other.json"))
    put(cache, "validation drawn schedules", validation_table("simulated/cache-validation-random.json"))
    put(ROOT / "docs" / "kernels.md", "volumes", volumes_table("zen4/sequences-and-volumes.jsonl"))
    put(ROOT / "docs" / "gpu.md", "cublas", cublas_table())
    put(ROOT / "lab" / "notebook" / "gpu-convolutions.md", "winograd error", (DATA / "simulated/winograd-error.md").read_text())
    put(ROOT / "docs" / "accuracy.md", "errors", accuracy_table("h200/accuracy.jsonl", "zen5/accuracy.jsonl"))
    predictions = prediction_quality.found()
    put(ROOT / "docs" / "accuracy.md", "predictions", prediction_quality.table(predictions))
    prediction_quality.draw(predictions, ROOT / "docs" / "prediction-error.svg")
    measured = [f"h200/{path.name}" for path in sorted(DATA.glob("h200/conv-*.jsonl"))]
    put(ROOT / "docs" / "gpu.md", "convolution figures", conv_figures(measured))
    put(ROOT / "docs" / "gpu.md", "convolutions", convolution_table(*measured))
    put(ROOT / "docs" / "gpu.md", "conv fit", conv_fit_table("h200/conv-fit.json"))
    if (DATA / "h200/wavefronts-conv.json").exists():
        put(ROOT / "lab" / "notebook" / "gpu-products.md", "convolution wavefronts", conv_wavefronts_table("h200/wavefronts-conv.json"))
    if (DATA / "h200/shared-memory.json").exists():
        put(ROOT / "lab" / "notebook" / "gpu-products.md", "shared memory h200", shared_memory_table("h200/shared-memory.json"))
