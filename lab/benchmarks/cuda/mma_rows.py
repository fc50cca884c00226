#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times every row on mma.sync, products and convolutions, and PyTorch on the same problem. Also measures the errors of tf32x3 and of
cuBLAS's FP32. One line each, on a GPU of capability 8.0 or higher; on a Hopper the library must be built with -Dtests=true.

    lab/benchmarks/cuda/mma_rows.py [products] [errors] [convolutions] > rows.txt

Times are medians between device events. Errors are the largest difference from float64 over the rms of the result, as geometric means over
draws. `log`: operands of either sign with exponents of ten uniform from -18 to 18, so that few products dominate a sum.
"""

import math
import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.problem.text import parse
from pysim.record.schedule import GpuSchedule
from pysim.registry.cuda import conv_kernels, gemm_kernels
from pysim.runtime import cuda

TYPES = {"f16": torch.float16, "tf32": torch.float32, "tf32x3": torch.float32}
PRODUCTS = ("4096x4096x4096:nn", "4096x4096x4096:nt", "1024x1024x1024:nt", "512x512x8192:tn")
LAYERS = (
    "mb32ic64ih56oc64kh3ph1", "mb32ic256ih14oc256kh3ph1", "mb32ic256ih14oc1024kh1", "mb32ic1024ih14oc256kh1",
    "mb32ic256ih56oc512kh1sh2", "mb32ic3ih224oc64kh7sh2ph3", "g32mb32ic1024ih14oc1024kh3ph1",
)  # fmt: skip
DEPTHS, FILLS, DRAWS = (8, 64, 128, 512, 4096), ("log", "-1..1", "0..1"), 16


def seconds(call: Callable[[], Any], samples: int = 12) -> float:
    """The median device time of a call."""
    call()
    found = []
    for _ in range(samples):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) * 1e-3)
    return statistics.median(found)


def bound(w: Gemm | Conv, kernel: str, operands: tuple[Any, ...], layout: str = "nchw") -> cuda.Bound:
    """A row with whole tiles, rasterised in bands of 8, after one run."""
    launch = cuda.Launch(w, GpuSchedule(kernel, "data_parallel", 1, False, 8), layout=layout)
    found = launch.on(tuple(one.data_ptr() for one in operands))
    found.run()
    torch.cuda.synchronize()
    return found


def gap(found: Any, want: Any) -> float:
    """The largest difference over the rms."""
    return float((found.double() - want).abs().max() / want.square().mean().sqrt())


def products() -> Iterator[str]:
    for shape in PRODUCTS:
        for dtype, kind in TYPES.items():
            w = parse(f"gemm:{shape}:{dtype}")
            assert isinstance(w, Gemm)
            a = torch.randn((w.k, w.m) if w.trans_a else (w.m, w.k), device="cuda").to(kind)
            b = torch.randn((w.n, w.k) if w.trans_b else (w.k, w.n), device="cuda").to(kind)
            left, right = a.T if w.trans_a else a, b.T if w.trans_b else b
            torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
            theirs, c = seconds(lambda left=left, right=right: left @ right), torch.empty((w.m, w.n), device="cuda", dtype=kind)
            for row in gemm_kernels():
                if row.mainloop == "mma" and row.dtype == dtype:
                    own = statistics.median(bound(w, row.name, (a, b, c)).time(12).tolist())
                    rate = 2 * w.m * w.n * w.k / own / 1e12
                    yield f"{w.text} {row.name} {own * 1e6:.1f} us {rate:.1f} TFLOP/s cublas {theirs * 1e6:.1f} us"


def filled(kind: str, size: tuple[int, int], draw: Any) -> Any:
    x = torch.rand(size, device="cuda", generator=draw, dtype=torch.float64)
    if kind == "log":
        negative = torch.rand(size, device="cuda", generator=draw) < 0.5
        x = 10.0 ** (36 * x - 18)
        return torch.where(negative, -x, x).float()
    return (2 * x - 1 if kind == "-1..1" else x).float()


def errors() -> Iterator[str]:
    torch.backends.cuda.matmul.allow_tf32 = False
    draw = torch.Generator(device="cuda").manual_seed(1)
    rows = [row.name for row in gemm_kernels() if row.mainloop == "mma" and row.dtype == "tf32x3"]
    for k in DEPTHS:
        n = 256 if k < 512 else 1024
        w = parse(f"gemm:{n}x{n}x{k}:nn:tf32x3")
        for kind in FILLS:
            theirs: list[float] = []
            own: dict[str, list[float]] = {name: [] for name in rows}
            for _ in range(DRAWS if kind == "log" else 2):
                a, b = filled(kind, (n, k), draw), filled(kind, (k, n), draw)
                want, c = a.double() @ b.double(), torch.empty((n, n), device="cuda")
                theirs.append(gap(a @ b, want))
                for name in rows:
                    bound(w, name, (a, b, c))
                    own[name].append(gap(c, want))
            worst, base = max(map(statistics.geometric_mean, own.values())), statistics.geometric_mean(theirs)
            yield f"error k {k} {kind} cublas {base:.2e} mma {worst:.2e} ratio {worst / base:.2f}"


def convolutions() -> Iterator[str]:
    for dtype in ("tf32x3", "tf32", "f16"):
        torch.backends.cudnn.allow_tf32 = dtype == "tf32"
        for layer in LAYERS:
            w = parse(f"conv:{layer}:{dtype}")
            assert isinstance(w, Conv)
            size = (w.filters, w.channels // w.groups, w.kernel_h, w.kernel_w)
            x = torch.randn(w.batch, w.channels, w.height, w.width, device="cuda").to(TYPES[dtype])
            weights = (torch.randn(size, device="cuda") / math.sqrt(math.prod(size[1:]))).to(TYPES[dtype])
            for layout, form in (("nchw", torch.contiguous_format), ("nhwc", torch.channels_last)):
                yield layer_line(w, layout, x.contiguous(memory_format=form), weights.contiguous(memory_format=form), form)


def layer_line(w: Conv, layout: str, x: Any, weights: Any, form: Any) -> str:
    how = {"stride": (w.stride_h, w.stride_w), "padding": (w.pad_top, w.pad_left), "groups": w.groups}

    def call() -> Any:
        return torch.nn.functional.conv2d(x, weights, **how)

    theirs, want = call(), torch.nn.functional.conv2d(x[:2].double(), weights.double(), **how)
    line = f"{w.text} {layout} torch {seconds(call, 7) * 1e6:.1f} us error {gap(theirs[:2], want):.1e}"
    for row in conv_kernels():
        if row.algorithm == "mma" and row.dtype == w.dtype:
            y = torch.full_like(theirs, float("nan"), memory_format=form)
            own = statistics.median(bound(w, row.name, (x, weights, y), layout).time(7).tolist())
            line += f" | {row.name} {own * 1e6:.1f} us error {gap(y[:2], want):.1e}"
    return line


PARTS = {"products": products, "errors": errors, "convolutions": convolutions}


def main() -> None:
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    for part in sys.argv[1:] or PARTS:
        for line in PARTS[part]():
            print(line, flush=True)


if __name__ == "__main__":
    main()
