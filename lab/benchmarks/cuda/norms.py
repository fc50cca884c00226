#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times norms in one pass over memory and PyTorch's operators, on a GPU: medians of 20 replays of CUDA graphs of ten
launches, interleaved.

    lab/benchmarks/cuda/norms.py -o norms.jsonl

By channels: concatenation of parts, BatchNorm and ReLU, or a cast if types differ (PyTorch: only the cast). By rows: LayerNorm.
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    lines: list[dict[str, Any]] = [{"kind": "header", "device": torch.cuda.get_device_name(), "versions": {"torch": torch.__version__}}]
    lines += [by_channels(*one) for one in CHANNELS]
    lines += [by_rows(*one) for one in ROWS]
    options.output.write_text("".join(json.dumps(one) + "\n" for one in lines))
    for one in lines:
        print(json.dumps(one))


if __name__ == "__main__":
    main()
