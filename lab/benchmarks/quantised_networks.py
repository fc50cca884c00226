# SPDX-License-Identifier: Apache-2.0
"""Quantised networks beside ONNX Runtime and OpenVINO, interleaved: what `pysim.network.integers` is worth.

    python lab/benchmarks/quantised_networks.py [MODEL:FORM ...] [--folder FOLDER] [--seconds 6] [--threads 1] [--float32] [-o FILE]

MODEL is a name of timm's (random weights, calibrated with random images), FORM how ONNX Runtime's tool writes it: qdq (u8 x s8, by
channel), qdq7 (the same with weights of 7 bits, for CPUs without VNNI), qoperator (by tensor) or dynamic; or nncf, how OpenVINO's does.
Files are made once, in FOLDER. OpenVINO computes what a file leaves in float32 in bfloat16 where a CPU has that, but with --float32.
A sample is the CPU time of one call of each library, one after another: wall time of long calls is never undisturbed on a shared computer.
With several threads each library has a process of its own, in turns of TURN seconds after a rest, and a sample is the wall time of a call;
OpenVINO then binds its threads to CPUs, which is faster.
Columns: the 10th percentile of each in ms, the peers' time over pysim's (median of the samples' ratios; above 1: pysim is faster), and
whether results are ONNX Runtime's to the bit. Pin it to a core: `taskset -c 1`. JSON lines go to FILE, a header first.
"""

import argparse
import json
import logging
import multiprocessing
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime import quantization
from onnxruntime.quantization.shape_inference import quant_pre_process

import pysim
from pysim.measure.store import environment

SHAPE = (1, 3, 224, 224)
REST, TURN = 0.1, 0.2  # seconds before a library's turn: threads of the one before wait for more work, and keep CPUs busy
CNNS = (
    "resnet50:qdq mobilenetv2_100:qdq repvgg_a0:qdq regnety_004:qdq resnet18:qdq efficientnet_b0:qdq mobilenetv3_large_100:qdq "
    "dla34:qdq resnet50:qoperator mobilenetv2_100:qoperator"
)
TRANSFORMERS = "vit_tiny_patch16_224:dynamic vit_tiny_patch16_224:qdq pit_ti_224:qdq vit_small_patch32_224:dynamic"


class Images(quantization.CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self._left = [{"x": random.standard_normal(SHAPE, dtype=np.float32)} for _ in range(2)]

    def get_next(self) -> Any:
        return self._left.pop() if self._left else None


def exported(name: str, folder: Path) -> Path:
    """A model of timm's in float32 with random weights, also of its norms."""
    import timm
    import torch

    path = folder / f"{name}.onnx"
    if not path.exists():
        torch.manual_seed(0)
        model = timm.create_model(name, pretrained=False).eval()
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d) and module.running_mean is not None and module.running_var is not None:
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
                torch.nn.init.uniform_(module.weight, 0.5, 1.0)  # some models begin with zeros, so their branches give nothing
            if hasattr(module, "reparameterize"):
                module.reparameterize()
        about: dict[str, Any] = {"opset_version": 17, "input_names": ["x"], "output_names": ["y"], "dynamo": False}
        torch.onnx.export(model, (torch.randn(SHAPE),), path, **about)
    return path


def quantised(name: str, form: str, folder: Path) -> Path:
    path = folder / f"{name}-{form}.onnx"
    if not path.exists():
        whole, ready = exported(name, folder), folder / f"{name}-ready.onnx"
        quant_pre_process(whole, ready, skip_symbolic_shape=True)
        weights = quantization.QuantType.QInt8
        if form == "nncf":
            by_nncf(name, ready, path)
        elif form == "dynamic":
            quantization.quantize_dynamic(ready, path, weight_type=weights)
        else:
            by_channel = form in ("qdq", "qdq7")
            about = {"quant_format": quantization.QuantFormat.QDQ if by_channel else quantization.QuantFormat.QOperator}
            about |= {"per_channel": by_channel, "reduce_range": form == "qdq7", "weight_type": weights}
            about |= {"activation_type": quantization.QuantType.QUInt8}
            quantization.quantize_static(ready, path, Images(), **about)
    return path


def by_nncf(name: str, ready: Path, path: Path) -> None:
    import nncf
    import onnx

    kind = nncf.ModelType.TRANSFORMER if any(word in name for word in ("vit", "deit", "pit")) else None
    random = np.random.default_rng(0)
    images = nncf.Dataset([{"x": random.standard_normal(SHAPE, dtype=np.float32)} for _ in range(4)])
    onnx.save(nncf.quantize(onnx.load(ready), images, subset_size=4, model_type=kind), path)


def by_pysim(path: Path, threads: int, float32: bool) -> Callable[[Any], Any]:
    return pysim.load(path, threads=threads)


def by_onnxruntime(path: Path, threads: int, float32: bool) -> Callable[[Any], Any]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda x: session.run(None, {"x": x})[0]


def by_openvino(path: Path, threads: int, float32: bool) -> Callable[[Any], Any]:
    """Raises RuntimeError for operators that it does not read."""
    import openvino

    core = openvino.Core()
    core.set_property("CPU", {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "ENABLE_CPU_PINNING": threads > 1})
    if float32:
        core.set_property("CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    request = core.compile_model(str(path), "CPU").create_infer_request()
    return lambda x: next(iter(request.infer({0: x}).values()))


BY = {"pysim": by_pysim, "onnxruntime": by_onnxruntime, "openvino": by_openvino}


def image() -> Any:
    return np.random.default_rng(1).standard_normal(SHAPE, dtype=np.float32)


def turns(name: str, pipe: Any, path: Path, threads: int, float32: bool) -> None:
    """A library in a process of its own: sends its result, or why it has none, then wall times of the calls of a turn whenever asked."""
    x = image()
    try:
        call = BY[name](path, threads, float32)
        pipe.send(np.array(call(x)))
    except (ImportError, RuntimeError) as error:
        pipe.send(str(error).strip().splitlines()[-1])
        return
    while pipe.recv():
        taken, end = list[float](), time.perf_counter() + TURN
        while time.perf_counter() < end or len(taken) < 3:
            start = time.perf_counter()
            call(x)
            taken.append(time.perf_counter() - start)
        pipe.send(taken[1:])


def in_turns(path: Path, seconds: float, threads: int, float32: bool) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Results, and a sample of each library for each turn, its least."""
    context, pipes, results = multiprocessing.get_context("spawn"), dict[str, Any](), dict[str, Any]()
    for name in BY:
        pipe, other = context.Pipe()
        context.Process(target=turns, args=(name, other, path, threads, float32), daemon=True).start()
        results[name] = pipe.recv()
        if isinstance(results[name], str):
            print(f"# {name}: {results.pop(name)}")
        else:
            pipes[name] = pipe
    samples: dict[str, list[float]] = {name: [] for name in pipes}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(samples["pysim"]) < 8:
        for name, pipe in pipes.items():
            time.sleep(REST)
            pipe.send(True)
            samples[name].append(min(pipe.recv()))
    for pipe in pipes.values():
        pipe.send(False)
    return results, samples


def one_after_another(path: Path, seconds: float, float32: bool) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Results and CPU times of calls of one thread."""
    calls, x = dict[str, Callable[[Any], Any]](), image()
    for name, made in BY.items():
        try:
            calls[name] = made(path, 1, float32)
        except (ImportError, RuntimeError) as error:
            print(f"# {name}: {str(error).strip().splitlines()[-1]}")
    results = {name: np.array(call(x)) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(samples["pysim"]) < 20:
        for name, call in calls.items():
            start = time.process_time()
            call(x)
            samples[name].append(time.process_time() - start)
    return results, samples


def measure(path: Path, seconds: float, threads: int = 1, float32: bool = False) -> dict[str, Any]:
    results, samples = one_after_another(path, seconds, float32) if threads == 1 else in_turns(path, seconds, threads, float32)
    taken = {name: np.array(of) for name, of in samples.items()}
    return {
        "model": path.stem,
        "ms": {name: round(float(np.percentile(of, 10)) * 1e3, 3) for name, of in taken.items()},
        "ratios": {name: round(float(np.median(of / taken["pysim"])), 3) for name, of in taken.items() if name != "pysim"},
        "same_bits": bool((results["pysim"] == results["onnxruntime"]).all()),
        "samples": len(samples["pysim"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=[*CNNS.split(), *TRANSFORMERS.split()])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "pysim-quantised")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--float32", action="store_true")
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    given.folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"kind": "header", "environment": environment()})]
    for model in given.models:
        name, form = model.split(":")
        row = measure(quantised(name, form, given.folder), given.seconds, given.threads, given.float32)
        lines.append(json.dumps(row))
        times = "  ".join(f"{who} {ms:7.2f}" for who, ms in row["ms"].items())
        ratios = "  ".join(f"{who} {ratio:.2f}" for who, ratio in row["ratios"].items())
        print(f"{row['model']:32} {times} ms | {ratios} | {'same bits' if row['same_bits'] else 'other bits'}", flush=True)
        if given.output:
            given.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
