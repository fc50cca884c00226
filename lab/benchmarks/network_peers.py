# SPDX-License-Identifier: Apache-2.0
"""Whole networks on this CPU beside ONNX Runtime, OpenVINO and PyTorch's compiler, in turns.

    taskset -c 0,1 python lab/benchmarks/network_peers.py -o FILE [--threads 1 2] [--ways WAY ...] [--rounds 9] [NETWORK ...]
    python lab/benchmarks/network_peers.py --told FILE       # the table and the means of a file

Networks are those of torchvision and timm by name, `bert` and `gpt2` as in lab/benchmarks/cuda/zoo.py, and the small ones of
lab/benchmarks/cuda/small_networks.py; batch 1, seeded random weights, exported to ONNX once. Ways: `pysim` (pysim.load), `onnxruntime`,
`openvino` (latency, float32), `inductor` (torch.compile with freezing; some 10 to 60 seconds to compile) and, if asked for, `torch`
(pysim.torch.optimize).

A turn is a pause, in which the threads of the other libraries stop looking for work, an untimed call, and timed ones for TURN seconds; each
round has a turn of every way. The least wall time and the median of all rounds are kept, one JSON line a network and number of threads;
lines that the file has are left out. Errors: the largest difference from PyTorch's result over the largest result; exit status 1 above
ERROR.
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pysim
import pysim.torch
from pysim.calibration import host
from pysim.measure.speed import line_seconds
from pysim.measure.store import environment

sys.path += [str(Path(__file__).parent / "cuda"), str(Path(__file__).parents[1])]
import records
import small_networks
import zoo

NETWORKS = (
    "resnet18", "resnet50", "repvgg_a0", "dla34", "densenet121", "regnetx_004", "regnety_004", "seresnext26t_32x4d", "ese_vovnet19b_dw",
    "mobilenetv3_large_100", "mobilenetv4_conv_small", "tinynet_c", "fbnetc_100", "ghostnet_100", "efficientnet_b0", "mobileone_s0",
    "hrnet_w18_small", "unet", "decoder", "super_resolution", "mobilevit_xxs", "levit_128s", "convnext_atto",
    "vit_tiny_patch16_224", "bert",
)  # fmt: skip
WAYS = ("pysim", "onnxruntime", "openvino", "torch", "inductor")
ERROR = 1e-4  # far above what rounding adds up to, far below what a wrong operand does
PAUSE, TURN = 0.02, 0.06  # seconds; OpenMP's threads look for work for up to 12 ms
Call = Callable[[], Any]


def network(name: str) -> tuple[torch.nn.Module, Any]:
    """A model in inference, and an input."""
    torch.manual_seed(0)
    if name in small_networks.NETWORKS or name in ("bert", "gpt2"):
        return zoo.model_and_input(name, 1, lambda: None, "cpu")
    import timm

    model = timm.create_model(name, pretrained=False).eval()
    for weight in model.parameters():  # heads of zeros, whose results show no error, and are no scale for one
        if weight.ndim > 1 and not weight.any():
            torch.nn.init.normal_(weight, std=0.02)
    return model, torch.rand(1, *model.default_cfg["input_size"])


def exported(model: torch.nn.Module, x: Any, folder: str) -> Path:
    path = Path(folder) / "network.onnx"
    torch.backends.mha.set_fastpath_enabled(False)  # attention as one operator, which no ONNX has
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (x,), str(path), opset_version=17, dynamo=False)
    torch.backends.mha.set_fastpath_enabled(True)
    return path


def by_onnxruntime(path: Path, x: np.ndarray, threads: int) -> Call:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 3
    options.add_session_config_entry("session.force_spinning_stop", "1")  # after a call, not within it
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feeds = {session.get_inputs()[0].name: x}
    return lambda: session.run(None, feeds)[0]


def by_openvino(path: Path, x: np.ndarray, threads: int) -> Call:
    import openvino

    options = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    request = openvino.Core().compile_model(str(path), "CPU", options | {"ENABLE_CPU_PINNING": False}).create_infer_request()
    request.set_input_tensor(openvino.Tensor(x, shared_memory=True))

    def call() -> Any:
        request.infer()
        return request.get_output_tensor(0).data

    return call


def makers(model: torch.nn.Module, x: Any, path: Path, threads: int) -> dict[str, Callable[[], Call]]:
    """Of each way what makes its call."""
    return {
        "pysim": lambda: partial(pysim.load(path, threads=threads), x.numpy()),
        "onnxruntime": lambda: by_onnxruntime(path, x.numpy(), threads),
        "openvino": lambda: by_openvino(path, x.numpy(), threads),
        "torch": lambda: partial(pysim.torch.optimize(model, accuracy="standard"), x),
        "inductor": lambda: partial(torch.compile(model, dynamic=False, options={"freezing": True}), x),
    }


def in_turns(calls: dict[str, Call], rounds: int) -> dict[str, list[float]]:
    """The least and the median wall seconds of each call."""
    spent: dict[str, list[float]] = {way: [] for way in calls}
    for at in range(rounds):
        for way in [*calls][at % len(calls) :] + [*calls][: at % len(calls)]:
            time.sleep(PAUSE)
            calls[way]()
            end = time.perf_counter() + TURN
            while (start := time.perf_counter()) < end:
                calls[way]()
                spent[way].append(time.perf_counter() - start)
    return {way: [round(min(of), 7), round(statistics.median(of), 7)] for way, of in spent.items()}


def ready(makers: dict[str, Callable[[], Call]], wanted: Any) -> tuple[dict[str, Call], dict[str, float], dict[str, str]]:
    """The calls of the ways that work, their errors, and why others do not."""
    calls, errors, failed = dict[str, Call](), dict[str, float](), dict[str, str]()
    for way, make in makers.items():
        try:
            call = make()
            error = (wanted - torch.as_tensor(call())).abs().max() / wanted.abs().max().clamp_min(1e-30)
            errors[way] = float(f"{error:.1e}")
            calls[way] = call
        except Exception as error:  # of any library: the others are to be seen, too
            failed[way] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return calls, errors, failed


@torch.no_grad()
def measure(name: str, counts: list[int], given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each number of threads."""
    model, x = network(name)
    wanted = model(x)
    with tempfile.TemporaryDirectory() as folder:
        path = exported(model, x, folder)
        for threads in counts:
            torch.set_num_threads(threads)
            torch._dynamo.reset()
            ways = {way: make for way, make in makers(model, x, path, threads).items() if way in given.ways}
            calls, errors, failed = ready(ways, wanted)
            kept = {way: error for way, error in errors.items() if way in ("pysim", "torch") or error > ERROR}
            row: dict[str, Any] = {"network": name, "threads": threads, "seconds": in_turns(calls, given.rounds), "errors": kept}
            if "pysim" in calls:
                row["predicted"] = round(calls["pysim"].func.plan.predicted_seconds, 7)  # type: ignore[attr-defined]  # it is a partial
            if threads > 1:
                row["line_seconds"] = round(line_seconds(), 9)
            yield row | ({"failed": failed} if failed else {})


def peer_over_ours(row: dict[str, Any], way: str = "pysim", at: int = 0) -> float:
    """The fastest peer's time over ours; `at`: 0 least, 1 median."""
    seconds = row["seconds"]
    peers = [of[at] for name, of in seconds.items() if name not in ("pysim", "torch")]
    return min(peers) / seconds[way][at] if peers and way in seconds else math.nan


def told(row: dict[str, Any]) -> str:
    times = " ".join(f"{row['seconds'][way][0] * 1e3:9.2f}" if way in row["seconds"] else f"{'-':>9}" for way in WAYS)
    of_prediction = row.get("predicted", math.nan) / row["seconds"]["pysim"][0] if "pysim" in row["seconds"] else math.nan
    ratios = f"{peer_over_ours(row):6.2f}x {peer_over_ours(row, at=1):6.2f}x  {of_prediction:5.2f}"
    return f"{row['network']:<24} {row['threads']} {times}  {ratios}  {max(row['errors'].values()):.0e}  {row.get('failed', '')}"


def summary(rows: list[dict[str, Any]]) -> str:
    """Of each number of threads: the mean, the least, and how far predictions are off."""
    lines = []
    for threads in sorted({row["threads"] for row in rows}):
        some = [row for row in rows if row["threads"] == threads and not math.isnan(peer_over_ours(row))]
        ratios = [peer_over_ours(row) for row in some]
        if not ratios:
            continue
        least = sorted(zip(ratios, (row["network"] for row in some), strict=True))[:5]
        off = statistics.median(abs(row["predicted"] / row["seconds"]["pysim"][0] - 1) for row in some)
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        worst = ", ".join(f"{name} {ratio:.2f}" for ratio, name in least)
        lines.append(
            f"{threads} threads: {len(some)} networks, the best peer over pysim {mean:.2f} in the mean; {worst}; predicted {off:.1%} off"
        )
    return "\n".join(lines)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [row for row in records.lines(path) if "network" in row] if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--told", type=Path, nargs="+")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=[way for way in WAYS if way != "torch"])
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    if given.told:
        rows = [row for path in given.told for row in rows_of(path)]
        print("\n".join(map(told, rows)), summary(rows), sep="\n")
        return
    rows = rows_of(given.output) if given.output else []
    if given.output and not given.output.exists():
        header = {"kind": "header", "machine": host.runnable("host").description, "environment": environment(), "command": sys.argv}
        given.output.write_text(json.dumps(header) + "\n")
    print("milliseconds; the best peer over pysim, least and median; predicted over measured; error")
    print(" " * 26, " ".join(f"{way:>9}" for way in WAYS))
    done, wrong = {(row["network"], row["threads"]) for row in rows}, []
    for name in given.networks:
        for row in measure(name, counts, given) if (counts := [one for one in given.threads if (name, one) not in done]) else ():
            rows.append(row)
            if given.output:
                with given.output.open("a") as out:
                    out.write(json.dumps(row) + "\n")
            print(told(row), flush=True)
            wrong += [name] * any(row["errors"].get(way, 0.0) > ERROR for way in ("pysim", "torch"))
    print(summary(rows))
    if wrong:
        sys.exit(f"wrong: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
