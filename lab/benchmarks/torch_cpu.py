# SPDX-License-Identifier: Apache-2.0
"""Whole PyTorch networks on this CPU by PyTorch, by its compiler and by pysim, interleaved.

    python lab/benchmarks/torch_cpu.py [-o FILE] [--threads 1 2] [--seconds 3600] [MODEL...]
    python lab/figures/update_pages.py          # puts the table into docs/networks.md

Candidates: eager; eager channels last; torch.compile with Inductor; the same with its option freezing (weights are constants), and with
freezing and max_autotune; pysim, by
`optimize` or, with --how compile, as the backend of torch.compile; and `pysim.load` of the same network exported to ONNX. Without names:
one model of each family of torchvision, and TIMM's where timm is installed. Batch 1, seeded random weights.

Each round calls every candidate once: CPU time and wall time, the least of the rounds and their median. Errors: the largest difference
from eager's output over the largest output. With -o one JSON line per network and number of threads; those that the file has are left out.
At the end: networks that are slower than eager. Exit status 1 if pysim fails on a network or differs by more than ERROR.
"""

import argparse
import copy
import gc
import json
import statistics
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torchvision

import pysim
import pysim.torch
from pysim.calibration import host

ERROR = 1e-4  # far above what rounding adds up to, far below what a wrong operand does
SIZES = {"inception_v3": 299, "swin_v2_t": 256, "swin_v2_s": 256, "swin_v2_b": 256}
FAMILIES = (
    "alexnet", "convnext_tiny", "deeplabv3_mobilenet_v3_large", "densenet121", "efficientnet_b0", "efficientnet_v2_s", "googlenet",
    "inception_v3", "lraspp_mobilenet_v3_large", "maxvit_t", "mnasnet1_0", "mobilenet_v2", "mobilenet_v3_large", "regnet_y_400mf",
    "resnet18", "resnext50_32x4d", "shufflenet_v2_x1_0", "squeezenet1_1", "swin_t", "swin_v2_t", "vgg11", "vit_b_32",
)  # fmt: skip
TIMM = (
    "coat_lite_tiny", "convnextv2_atto", "cspresnet50", "deit_tiny_patch16_224", "dla34", "dm_nfnet_f0", "eca_nfnet_l0",
    "edgenext_xx_small", "efficientformer_l1", "ese_vovnet19b_dw", "fastvit_t8", "fbnetc_100", "ghostnet_100", "inception_next_tiny",
    "lcnet_050", "levit_128s", "mixer_s32_224", "mixnet_s", "mobilenetv4_conv_small", "mobilevit_xxs", "pit_ti_224", "poolformer_s12",
    "regnetz_005", "repvgg_a0", "res2net50_26w_4s", "resmlp_12_224", "resnest14d", "rexnet_100", "seresnet18", "xcit_nano_12_p16_224",
)  # fmt: skip
WAYS = ("eager", "channels_last", "inductor", "inductor_freezing", "inductor_autotuned", "pysim", "pysim_onnx")
Call = Callable[[], Any]


class Network(NamedTuple):
    """A model in inference and its input."""

    library: str
    model: torch.nn.Module
    x: torch.Tensor


def network(name: str) -> Network:
    """Of torchvision, else of timm."""
    torch.manual_seed(0)
    if name not in torchvision.models.list_models():
        import timm

        model = timm.create_model(name, pretrained=False).eval()
        for weight in model.parameters():  # heads of zeros (mixer, resmlp), whose results show no error, and are no scale for one
            if weight.ndim > 1 and not weight.any():
                torch.nn.init.normal_(weight, std=0.02)
        return Network("timm", model, torch.rand(1, *model.default_cfg["input_size"]))
    options = {"init_weights": True} if name in ("googlenet", "inception_v3") else {}
    backbone = {"weights_backbone": None} if name.startswith(("deeplab", "fcn", "lraspp")) else {}
    size = SIZES.get(name, 224)
    model = torchvision.models.get_model(name, weights=None, **options, **backbone).eval()
    return Network("torchvision", model, torch.rand(1, 3, size, size))


def output(y: Any) -> torch.Tensor:
    """The first result of a network as a tensor."""
    y = next(iter(y.values())) if isinstance(y, dict) else y[0] if isinstance(y, tuple | list) else y
    return torch.as_tensor(y)


def by_onnx(one: Network, threads: int, folder: Path) -> Call:
    path, fast = folder / "network.onnx", torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # attention as one operator, which no ONNX has
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(one.model, (one.x,), str(path), opset_version=17, dynamo=False)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return partial(pysim.load(path, threads=threads), one.x.numpy())


def makers(one: Network, how: str, threads: int, folder: Path) -> dict[str, Callable[[], Call]]:
    """Per candidate: what makes its call."""
    model, x = one.model, one.x

    def channels_last() -> Call:
        last = copy.deepcopy(model).to(memory_format=torch.channels_last)
        return partial(last, x.to(memory_format=torch.channels_last))

    def ours() -> Call:
        return partial(pysim.torch.optimize(model) if how == "optimize" else torch.compile(model, backend=pysim.torch.backend), x)

    return {
        "eager": lambda: partial(model, x),
        "channels_last": channels_last,
        "inductor": lambda: partial(torch.compile(model, dynamic=False), x),
        "inductor_freezing": lambda: partial(torch.compile(model, dynamic=False, options={"freezing": True}), x),
        "inductor_autotuned": lambda: partial(torch.compile(model, dynamic=False, options={"freezing": True, "max_autotune": True}), x),
        "pysim": ours,
        "pysim_onnx": lambda: by_onnx(one, threads, folder),
    }


def interleaved(calls: dict[str, Call], times: int) -> dict[str, dict[str, float]]:
    """CPU and wall seconds of each call, the least and the median of the rounds."""
    spent: dict[str, list[tuple[float, float]]] = {way: [] for way in calls}
    names = [*calls]
    for turn in range(times):
        for way in names[turn % len(names) :] + names[: turn % len(names)]:
            wall, cpu = time.perf_counter(), time.process_time()
            calls[way]()
            spent[way].append((time.process_time() - cpu, time.perf_counter() - wall))
    found = {}
    for way, pairs in spent.items():
        cpus, walls = zip(*pairs, strict=True)
        found[way] = {"cpu": min(cpus), "wall": min(walls), "cpu_median": statistics.median(cpus), "wall_median": statistics.median(walls)}
    return found


@torch.no_grad()
def measure(name: str, threads: int, given: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(threads)
    one, calls = network(name), dict[str, Call]()
    row: dict[str, Any] = {"model": name, "library": one.library, "size": one.x.shape[-1], "threads": threads, "how": given.how}
    first, errors, failed = dict[str, float](), dict[str, float](), dict[str, str]()
    wanted = output(one.model(one.x)).clone()
    with tempfile.TemporaryDirectory() as folder:
        for way, make in makers(one, given.how, threads, Path(folder)).items():
            if way not in given.ways:
                continue
            start = time.perf_counter()
            try:
                call = make()
                found = output(call())
                first[way] = time.perf_counter() - start
                errors[way] = float((wanted - found).abs().max() / wanted.abs().max().clamp_min(1e-30))
                call()
            except Exception as error:  # whatever it is: the others are to be seen, too
                failed[way] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
                if way == "pysim":
                    traceback.print_exc()
                continue
            calls[way] = call
        row["seconds"] = interleaved(calls, given.times)
    if given.how == "optimize" and "pysim" in calls:
        decisions = pysim.torch.report(calls["pysim"].func)  # type: ignore[attr-defined]  # it is a partial
        row["native"] = [sum(decision.runs == "pysim" for decision in decisions), len(decisions)]
    torch._dynamo.reset()
    gc.collect()
    return row | {"first_seconds": first, "errors": errors, "failed": failed}


def clock(row: dict[str, Any]) -> str:
    """The clock whose ratios tell of a row: CPU time of one thread, which other processes lengthen less, else wall time."""
    return "cpu" if row["threads"] == 1 else "wall"


def told(row: dict[str, Any]) -> str:
    """A line for the terminal: milliseconds, and the fastest of PyTorch's over pysim's."""
    kind, seconds = clock(row), row["seconds"]
    times = " ".join(f"{seconds[way][kind] * 1e3:9.2f}" if way in seconds else f"{'-':>9}" for way in WAYS)
    ratio = seconds["eager"][kind] / seconds["pysim"][kind] if {"eager", "pysim"} <= seconds.keys() else float("nan")
    return f"{row['model']:<30} {row['threads']:>2} {times} {ratio:6.2f}x  {row['errors'].get('pysim', float('nan')):.1e}" + (
        f"  failed: {', '.join(row['failed'])}" if row["failed"] else ""
    )


def header(given: argparse.Namespace) -> dict[str, Any]:
    packages = ("torch", "torchvision", "timm", "numpy", "onnx")
    versions = {name: version(name) for name in packages if find_spec(name) is not None}
    command = " ".join(["python", "lab/benchmarks/torch_cpu.py", *sys.argv[1:]])
    return {"kind": "header", "machine": host.runnable("host").description, "versions": versions, "command": command, "how": given.how}


def rows_of(path: Path | None, given: argparse.Namespace) -> list[dict[str, Any]]:
    """What a file has; a new one gets a header."""
    if path is None:
        return []
    if not path.exists() or not path.stat().st_size:
        path.write_text(json.dumps(header(given)) + "\n")
    return [row for row in map(json.loads, path.read_text().splitlines()) if "model" in row]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=[*FAMILIES, *(TIMM if find_spec("timm") else ())])
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--how", choices=("optimize", "compile"), default="optimize")
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--times", type=int, default=7, help="rounds")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="before which the run ends")
    given = parser.parse_args()
    begin, longest = time.time(), 60.0
    rows = rows_of(given.output, given)
    done = {(row["model"], row["threads"], row["how"]) for row in rows}
    print(f"torch {torch.__version__}, {given.how}; milliseconds, CPU time of one thread, wall time of more; eager over pysim; error")
    print(f"{'':<30}    {' '.join(f'{way[:9]:>9}' for way in WAYS)}")
    wrong = []
    for name, threads in [(name, threads) for name in given.models for threads in given.threads]:
        if (name, threads, given.how) in done:
            continue
        start = time.time()
        if start + longest > begin + given.seconds:
            print(f"{name}, {threads} threads, and what follows: no time left")
            break
        row = measure(name, threads, given)
        longest = max(longest, time.time() - start)
        rows.append(row)
        if given.output:
            with given.output.open("a") as out:
                out.write(json.dumps(row) + "\n")
        print(told(row), flush=True)
        if "pysim" in given.ways and not row["errors"].get("pysim", float("nan")) <= ERROR:
            wrong.append(name)
    for way in ("pysim", "pysim_onnx"):
        both = [row for row in rows if {"eager", way} <= row["seconds"].keys()]
        slower = {
            f"{row['model']} ({row['threads']})": seconds[way][clock(row)] / seconds["eager"][clock(row)]
            for row in both
            if (seconds := row["seconds"])[way][clock(row)] > seconds["eager"][clock(row)]
        }
        worst = ", ".join(f"{name} {ratio:.2f}x" for name, ratio in sorted(slower.items(), key=lambda pair: -pair[1]))
        print(f"{way} slower than eager: {len(slower)} of {len(both)}{': ' * bool(slower)}{worst}")
    if wrong:
        sys.exit(f"failed or wrong: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
