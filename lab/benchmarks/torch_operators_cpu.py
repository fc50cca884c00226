# SPDX-License-Identifier: Apache-2.0
"""Times of PyTorch's operators inside whole networks on this CPU: what `torch/layers/expected_cpu.py` is fitted to.

    python lab/benchmarks/torch_operators_cpu.py -o lab/data/MACHINE/torch-operators.jsonl [--threads 1] [NETWORK...]
    python lab/fits/fit_torch.py lab/data/*/torch-operators.jsonl

Each operator is timed where it stands in the network, so its operands are as warm in the caches as they are in use; batch 1, seeded random
weights. The least wall time of the rounds counts, since other processes only lengthen them. One JSON line for each network, operator and
problem (or number of elements); `calls`: how many calls of a pass these are, `seconds`: the median over them.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch_cpu import network

from pysim.calibration import host
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm

# not those of the table in docs/networks.md
NETWORKS = (
    "alexnet", "convnext_tiny", "densenet169", "efficientnet_b1", "efficientnet_v2_s", "googlenet", "maxvit_t", "mnasnet0_5",
    "mobilenet_v2", "regnet_x_400mf", "regnet_y_800mf", "resnet18", "resnext50_32x4d", "shufflenet_v2_x0_5", "squeezenet1_0", "swin_t",
    "vgg11", "vit_b_32", "wide_resnet50_2", "convnextv2_femto", "edgenext_x_small", "ghostnetv2_100", "hardcorenas_c", "levit_192",
    "mobilevitv2_050", "pit_xs_224", "poolformerv2_s12", "xcit_nano_12_p16_384",
)  # fmt: skip
PASSES = {
    functional.relu: "relu", functional.gelu: "gelu", functional.silu: "silu", functional.hardswish: "hard_swish",
    functional.relu6: "clamp", functional.hardtanh: "clamp", torch.sigmoid: "sigmoid", torch.Tensor.sigmoid: "sigmoid",
    functional.batch_norm: "norm", torch.Tensor.add: "add", torch.Tensor.add_: "add", torch.add: "add", torch.Tensor.__iadd__: "add",
    torch.relu: "relu", torch.relu_: "relu",
}  # fmt: skip


def described(function: Any, x: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, str] | None:
    """The operator's name, and its problem or number of elements; None for an operator that is not timed."""
    if function in (functional.linear, torch._C._nn.linear):
        weight = args[1] if len(args) > 1 else kwargs["weight"]
        return "linear", Gemm(m=x.numel() // x.shape[-1], n=weight.shape[0], k=weight.shape[1], trans_b=True, dtype="f32").text
    if function in (torch.conv2d, functional.conv2d):
        given = dict(zip(("input", "weight", "bias", "stride", "padding", "dilation", "groups"), args, strict=False)) | kwargs
        w = given["weight"]
        (stride_h, stride_w), (pad_h, pad_w), (dilation_h, dilation_w) = (
            (one, one) if isinstance(one := given.get(name, default), int) else tuple(one)
            for name, default in (("stride", 1), ("padding", 0), ("dilation", 1))
        )
        conv = Conv(
            batch=x.shape[0], channels=x.shape[1], height=x.shape[2], width=x.shape[3], filters=w.shape[0], kernel_h=w.shape[2],
            kernel_w=w.shape[3], stride_h=stride_h, stride_w=stride_w, dilation_h=dilation_h, dilation_w=dilation_w, pad_top=pad_h,
            pad_left=pad_w, pad_bottom=pad_h, pad_right=pad_w, groups=given.get("groups", 1),
        )  # fmt: skip
        return "conv" if x.is_contiguous() else "conv of channels last", conv.text
    name = PASSES.get(function)
    same = name != "add" or (isinstance(args[1], torch.Tensor) and args[1].shape == x.shape)
    return (name, str(x.numel())) if name and same else None


class Timed(TorchFunctionMode):
    """Times each operator of a pass, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[tuple[str, str], float]] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        x = args[0] if args else kwargs.get("input")
        timed = isinstance(x, torch.Tensor) and x.dtype == torch.float32
        what = described(function, x, args, kwargs) if timed else None
        if what is None:
            return function(*args, **kwargs)
        start = time.perf_counter()
        y = function(*args, **kwargs)
        self.found.append((what, time.perf_counter() - start))
        return y


def timed(call: Callable[[], Any], rounds: int) -> dict[tuple[str, str], tuple[int, float]]:
    """For each operator and problem: the calls of a pass, and the median over them of the least time of the rounds."""
    passes: list[list[tuple[tuple[str, str], float]]] = []
    for _ in range(rounds):
        with Timed() as mode:
            call()
        passes.append(mode.found)
    seconds: dict[tuple[str, str], list[float]] = {}
    for same in zip(*passes, strict=True):
        seconds.setdefault(same[0][0], []).append(min(one for _, one in same))
    return {what: (len(times), statistics.median(times)) for what, times in seconds.items()}


def rows_of(name: str, rounds: int) -> Iterator[dict[str, Any]]:
    one = network(name)
    one.model(one.x)
    for (op, problem), (calls, seconds) in timed(lambda: one.model(one.x), rounds).items():
        yield {"network": name, "op": op, "problem": problem, "calls": calls, "seconds": round(seconds, 9)}


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.backends.mha.set_fastpath_enabled(False)  # attention as one operator
    header = {"kind": "header", "machine": host.runnable("host").description, "torch": version("torch"), "threads": given.threads}
    with given.output.open("w") as out:
        out.write(json.dumps(header) + "\n")
        for name in given.networks:
            for row in rows_of(name, given.rounds):
                out.write(json.dumps(row) + "\n")
            print(name, flush=True)


if __name__ == "__main__":
    main()
