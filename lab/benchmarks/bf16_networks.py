# SPDX-License-Identifier: Apache-2.0
"""Networks of bfloat16 beside PyTorch and OpenVINO on one thread, interleaved, and how far the logits of each are from float64. With
`--float16` those of float16 beside ONNX Runtime, by ONNX alone; with `--autocast` those of float32 under autocast to bfloat16.

    python lab/benchmarks/bf16_networks.py [MODEL ...] [--float16 | --autocast] [--rounds 15] [--inductor] [-m FILE.toml] [-o FILE]

MODEL is a name of timm's; weights are random, norms get the statistics of random images. `onnx` is the file of bfloat16, planned for -m,
`torch` the module in `pysim.torch.optimize`; OpenVINO has the file of float32 with INFERENCE_PRECISION_HINT bf16. Columns: the least of
each in ms, and the root mean square of the error over the logits' deviation. Only ratios of one run are claims. Pin it to a core:
`taskset -c 1`.
JSON lines go to FILE.
"""

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import timm
import torch
from onnx import TensorProto, numpy_helper

import pysim
from pysim.measure.store import environment

SHAPE, IMAGES = (1, 3, 224, 224), 4
MODELS = "resnet50 mobilenetv2_100 regnetx_004 convnext_atto vit_tiny_patch16_224"


def module(name: str) -> Any:
    torch.manual_seed(0)
    made = timm.create_model(name, pretrained=False)
    for one in made.modules():
        if isinstance(one, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(one.weight, 0.5, 1.5)
            torch.nn.init.uniform_(one.bias, -0.2, 0.2)
    with torch.no_grad():
        for _ in range(IMAGES):
            made.train()(torch.randn(8, *SHAPE[1:]))
    return made.eval().bfloat16()


def of_type(model: Any, name: str, dtype: Any) -> Any:
    """The same weights, bfloat16 numbers, in another type."""
    made = timm.create_model(name, pretrained=False).eval().to(dtype)
    made.load_state_dict({key: one.to(dtype) if one.is_floating_point() else one for key, one in model.state_dict().items()})
    return made


def exported(model: Any, path: Path, kind: Any = ml_dtypes.bfloat16) -> None:
    """The float32 model's file with all float32 of it as bfloat16 or float16."""
    element = {np.float16: TensorProto.FLOAT16, np.float32: TensorProto.FLOAT}.get(kind, TensorProto.BFLOAT16)
    with warnings.catch_warnings(action="ignore"):
        torch.onnx.export(model, (torch.rand(SHAPE),), str(path), dynamo=False, opset_version=17)
    proto = onnx.load(str(path))
    tensors = [*proto.graph.initializer, *(one.t for node in proto.graph.node for one in node.attribute if one.HasField("t"))]
    for tensor in tensors:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(kind), tensor.name))
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = element
    for node in proto.graph.node:
        for one in node.attribute:
            if one.name == "to" and one.i == TensorProto.FLOAT:
                one.i = element
    onnx.save(proto, str(path))


def by_openvino(path: Path) -> Callable[[Any], Any]:
    import openvino

    hints = {"INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1}
    request = openvino.Core().compile_model(str(path), "CPU", hints).create_infer_request()
    return lambda x: request.infer({0: x.float().numpy()})[0]


def halves(name: str, model: Any, folder: Path) -> dict[str, Callable[[Any], Any]]:
    """The calls of a model's file of float16."""
    import onnxruntime

    path, options = folder / f"{name}.onnx", onnxruntime.SessionOptions()
    exported(of_type(model, name, torch.float32), path, np.float16)
    options.intra_op_num_threads = 1
    network, session = pysim.load(path), onnxruntime.InferenceSession(str(path), options)
    (given,) = session.get_inputs()
    return {
        "onnx": lambda x: network(x.half().numpy()).astype(np.float32),
        "ONNX Runtime": lambda x: session.run(None, {given.name: x.half().numpy()})[0].astype(np.float32),
    }


def cast(model: Any, inductor: bool) -> dict[str, Callable[[Any], Any]]:
    """The calls of a model of float32 under autocast."""
    made = {"torch": pysim.torch.optimize(model), "PyTorch": model} | ({"Inductor": torch.compile(model)} if inductor else {})

    def under(call: Any) -> Callable[[Any], Any]:
        def run(x: Any) -> Any:
            with torch.autocast("cpu", torch.bfloat16):
                return call(x.float()).float().numpy()

        return run

    return {name: under(call) for name, call in made.items()}


def calls(name: str, model: Any, folder: Path, inductor: bool, machine: str) -> dict[str, Callable[[Any], Any]]:
    plain, path = of_type(model, name, torch.float32), folder / f"{name}.onnx"
    exported(plain, path)
    network, ours = pysim.load(path, machine), pysim.torch.optimize(model)
    found: dict[str, Callable[[Any], Any]] = {
        "onnx": lambda x: network(x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)).astype(np.float32),
        "torch": lambda x: ours(x).float().numpy(),
        "PyTorch": lambda x: model(x).float().numpy(),
    }
    with suppress(ImportError):
        whole = folder / f"{name}-f32.onnx"
        exported(plain, whole, np.float32)
        found["OpenVINO"] = by_openvino(whole)
    if inductor:
        compiled = torch.compile(model)
        found["Inductor"] = lambda x: compiled(x).float().numpy()
    return found


def measured(name: str, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    model = module(name)
    images, exact = [torch.randn(SHAPE).bfloat16() for _ in range(IMAGES)], of_type(model, name, torch.float64)
    with torch.no_grad():
        if given.autocast:
            found = cast(of_type(model, name, torch.float32), given.inductor)
        else:
            found = halves(name, model, folder) if given.float16 else calls(name, model, folder, given.inductor, given.machine)
        wanted = np.stack([exact(x.double()).numpy() for x in images])
        errors = {key: np.stack([call(x) for x in images]) - wanted for key, call in found.items()}
        times: dict[str, list[float]] = {key: [] for key in found}
        for _ in range(given.rounds):
            for key, call in found.items():
                start = time.perf_counter()
                call(images[0])
                times[key].append(time.perf_counter() - start)
    return {
        "network": name,
        "ms": {key: round(min(some) * 1e3, 3) for key, some in times.items()},
        "error": {key: float(np.sqrt((one**2).mean()) / wanted.std()) for key, one in errors.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS.split())
    parser.add_argument("--float16", action="store_true")
    parser.add_argument("--autocast", action="store_true")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--inductor", action="store_true")
    parser.add_argument("-m", "--machine", default="host")
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    lines: list[Any] = [{"environment": environment()}]
    with tempfile.TemporaryDirectory() as folder:
        for name in given.models:
            lines.append(measured(name, Path(folder), given))
            print(json.dumps(lines[-1]), flush=True)
            if given.output:
                given.output.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
