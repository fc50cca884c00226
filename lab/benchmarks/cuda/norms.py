#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times norms in one pass over memory and PyTorch's operators, on a GPU: medians of 20 replays of CUDA graphs of ten
launches, interleaved.

    lab/benchmarks/cuda/norms.py -o norms.jsonl [--only groups]

By channels: concatenation of parts, BatchNorm and ReLU, or a cast if types differ (PyTorch: only the cast). By rows: LayerNorm. By groups:
GroupNorm, an addition or not, and ReLU, beside the kernels of PyTorch's compiler; `errors`: root mean squares of both over the
largest result, from float64, and `expected_us`, what the choice between the two expects.
One JSON line each: microseconds, and bytes read and written per second.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from graphs import microseconds
from torch.nn import functional

from pysim.calibration.host import gpu_here
from pysim.torch.layers import group_norms
from pysim.torch.layers.gpu_launch import run_norm

F32, F16 = torch.float32, torch.float16
CHANNELS = (  # rows, channels of each part, types
    (100352, (64, *5 * (32,)), F16, F16),
    (25088, (128, *11 * (32,)), F16, F16),
    (6272, (256, *23 * (32,)), F16, F16),
    (1568, (512, *15 * (32,)), F16, F16),
    (100352, (64, *5 * (32,)), F32, F32),
    (6272, (256, *23 * (32,)), F32, F32),
    (196, (256, *23 * (32,)), F32, F32),
    (100352, (96,), F32, F16),
)
ROWS = (  # rows, channels, types
    (100352, 96, F16, F16),
    (25088, 192, F16, F16),
    (6272, 384, F16, F16),
    (1568, 768, F16, F16),
    (100352, 96, F32, F32),
    (25088, 192, F32, F32),
    (6272, 384, F32, F32),
    (100352, 96, F32, F16),
    (3136, 96, F32, F32),
    (16384, 1024, F16, F16),
    (16384, 4096, F32, F32),
)
GROUPS = (  # images, channels, rows of pixels, groups, whether one is added; float16 and FP32 each
    (16, 64, 112, 32, False),
    (16, 64, 56, 32, False),
    (16, 256, 56, 32, True),
    (16, 128, 28, 32, False),
    (16, 512, 28, 32, True),
    (16, 256, 14, 32, False),
    (16, 1024, 14, 32, True),
    (16, 512, 7, 32, False),
    (16, 2048, 7, 32, True),
    (1, 256, 56, 32, False),
    (1, 64, 56, 32, False),
    (1, 1024, 14, 32, True),
    (16, 96, 96, 32, False),
    (16, 192, 48, 32, True),
    (8, 320, 64, 32, False),
    (4, 128, 128, 32, False),
    (16, 64, 64, 64, False),
    (32, 96, 28, 1, False),
    (2, 640, 32, 32, True),
)


def line(kind: str, x: list[Any], dtype: Any, ours: Callable[[], Any], theirs: Callable[[], Any]) -> dict[str, Any]:
    if ours() is None:
        raise SystemExit("no kernel takes this norm: is the CUDA library built?")
    elements, channels = sum(one.numel() for one in x), [one.shape[1] for one in x]
    moved = elements * (x[0].element_size() + torch.empty(0, dtype=dtype).element_size())
    names = [str(one).removeprefix("torch.") for one in (x[0].dtype, dtype)]
    spent = microseconds({"us": lambda _: ours(), "torch_us": lambda _: theirs()}, count=10, replays=20)
    sizes = {"kind": kind, "rows": elements // sum(channels), "channels": channels, "dtype": names[0], "result": names[1]}
    times = {name: round(time, 1) for name, time in spent.items()}
    return sizes | times | {"bytes_per_second": float(f"{moved / spent['us'] * 1e6:.3g}")}


def by_channels(rows: int, channels: tuple[int, ...], dtype: Any, result: Any) -> dict[str, Any]:
    last = torch.channels_last
    parts = [torch.randn(1, one, rows, 1, device="cuda", dtype=dtype).contiguous(memory_format=last) for one in channels]
    mean, scale, shift = (torch.rand(sum(channels), device="cuda") + 0.5 for _ in range(3))

    def theirs() -> Any:
        if dtype is not result:
            return parts[0].to(result)
        return torch.relu_(functional.batch_norm(torch.cat(parts, 1), mean, torch.ones_like(mean), scale, shift))

    return line("channels", parts, result, lambda: run_norm(parts, (mean, scale, shift), True, None, result), theirs)


def by_rows(rows: int, channels: int, dtype: Any, result: Any) -> dict[str, Any]:
    x = torch.randn(rows, channels, device="cuda", dtype=dtype)
    scale, shift = (torch.rand(channels, device="cuda") for _ in range(2))
    own = [one.to(dtype) for one in (scale, shift)]
    ours = lambda: run_norm((x,), (None, scale, shift), False, 1e-6, result)  # noqa: E731
    return line("rows", [x], result, ours, lambda: functional.layer_norm(x, (channels,), *own, 1e-6))


def by_groups(images: int, channels: int, side: int, groups: int, adds: bool, dtype: Any) -> dict[str, Any]:
    x, residual = (
        torch.randn(images, channels, side, side, device="cuda", dtype=dtype).contiguous(memory_format=torch.channels_last) for _ in "xr"
    )
    gamma, beta = (torch.randn(channels, device="cuda", dtype=dtype) for _ in range(2))

    def norm(x: Any, residual: Any, gamma: Any, beta: Any) -> Any:
        y = functional.group_norm(x, groups, gamma, beta)
        return torch.relu(y + residual if adds else y)

    torch._dynamo.reset()  # which compiles a function for a few shapes alone
    compiled = torch.compile(norm, dynamic=False)
    ours: Callable[[], Any] = lambda: group_norms.group_norm(x, residual if adds else None, gamma, beta, groups, 1e-5, "relu")  # noqa: E731
    theirs: Callable[[], Any] = lambda: compiled(x, residual, gamma, beta)  # noqa: E731
    exact = norm(*(one.double() for one in (x, residual, gamma, beta)))
    errors = [float(f"{((call() - exact).square().mean().sqrt() / exact.abs().max()).item():.3g}") for call in (ours, theirs)]
    on = gpu_here()
    expected = group_norms.own_seconds(x, adds, False, on), group_norms.compiler_seconds(x, groups, adds, False, on)
    about = {"images": images, "side": side, "groups": groups, "adds": adds, "errors": errors}
    return line("groups", [x], dtype, ours, theirs) | about | {"expected_us": [round(1e6 * one, 1) for one in expected]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--only", choices=("channels", "rows", "groups"))
    options = parser.parse_args()
    header = {"kind": "header", "device": torch.cuda.get_device_name(), "versions": {"torch": torch.__version__}}
    tables = {"channels": (by_channels, CHANNELS), "rows": (by_rows, ROWS)}
    tables["groups"] = by_groups, [(*one, dtype) for dtype in (F16, F32) for one in GROUPS]
    with options.output.open("w") as out:
        print(json.dumps(header), file=out)
        for name, (measured, table) in tables.items():
            for one in table if options.only in (name, None) else ():
                text = json.dumps(measured(*one))
                print(text, flush=True)
                print(text, file=out, flush=True)


if __name__ == "__main__":
    main()
