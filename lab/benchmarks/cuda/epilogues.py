#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the cost of epilogues of convolutions and products on tensor cores, relative to the same launch with a plain epilogue, on a GPU.

    lab/benchmarks/cuda/epilogues.py -o epilogues.jsonl [--dtype f16,bf16,tf32,f32] [--layout nchw,nhwc] [--seconds S] [--note old]

Each launch is the plan of a layer (LAYERS, batch 32) or product (PRODUCTS). The epilogues of BEHIND run interleaved: medians of 9 medians
of 8 runs, and their ratio to the plain epilogue. Every element is compared with PyTorch in f32 (without TF32) with the same functions:
`error` is the largest difference over the sum of magnitudes. One JSON line per layer and layout.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import msgspec
import torch
from layers import BOUNDS, Operands

from pysim import planner
from pysim.calibration import host
from pysim.measure.events import UNTIMED
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.problem.text import parse
from pysim.runtime import cuda

LAYERS = (  # from ResNet-50, MobileNet-v2 and ConvNeXt-T
    "ic64ih56oc256kh1 ic64ih56oc64kh3ph1 ic256ih56oc64kh1 ic128ih28oc512kh1 ic128ih28oc128kh3ph1 ic256ih14oc1024kh1 ic1024ih14oc256kh1 "
    "ic512ih7oc2048kh1 ic512ih7oc512kh3ph1 ic24ih56oc144kh1 ic32ih112oc16kh1 ic160ih7oc960kh1 ic96ih56oc384kh1 ic384ih14oc1536kh1"
)
PRODUCTS = "4096x4096x64 2048x2048x512 8192x1024x256 512x4096x1024"
BEHIND = {  # residual, scale, bias, activation
    "plain": (0.0, False, False, None),
    "bias": (0.0, False, True, None),
    "bias relu": (0.0, False, True, "relu"),
    "scale bias relu": (0.0, True, True, "relu"),
    "residual": (1.0, False, False, None),
    "bias residual relu": (1.0, False, True, "relu"),
    "scale bias residual relu": (1.0, True, True, "relu"),
    "bias silu": (0.0, False, True, "silu"),
    "scale bias silu": (0.0, True, True, "silu"),
    "bias gelu": (0.0, False, True, "gelu"),
    "bias residual silu": (1.0, False, True, "silu"),
}
FUNCTIONS = {None: lambda x: x, "relu": torch.relu, "silu": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu}
TURNS, RUNS = 9, 8


class Product:
    """Random operands of a product, its output and the expected result; layers.Operands is the same for convolutions."""

    def __init__(self, w: Gemm) -> None:
        kind = {"f16": torch.float16, "bf16": torch.bfloat16, "tf32": torch.float32, "f32": torch.float32}[w.dtype]
        a, b = (torch.empty(shape, device="cuda").uniform_(-1, 1).to(kind) for shape in ((w.m, w.k), (w.k, w.n)))
        self.kept, self.y = (a, b), torch.empty((w.m, w.n), device="cuda", dtype=kind)
        self.want, self.scale = a.float() @ b.float(), a.float().abs() @ b.float().abs()
        self.pointers = (a.data_ptr(), b.data_ptr(), self.y.data_ptr())


def measure(text: str, dtype: str, layout: str, gpu: Any) -> dict[str, Any]:
    w = msgspec.structs.replace(parse(text), dtype=dtype)
    plan = planner.plan(w, gpu, **({"layout": layout} if isinstance(w, Conv) else {}))
    result = "f32" if dtype == "tf32" else dtype
    if isinstance(w, Conv):
        operands: Any = Operands(w)
        y, pointers = operands.seen(operands.y, operands.out, layout), operands.given(layout).pointers
        lines, shape = w.filters, (1, -1, 1, 1)
    else:
        operands = Product(w)
        y, pointers = operands.y, operands.pointers
        lines, shape = w.n, (1, -1)
    want, scale = operands.want, operands.scale
    bias = torch.empty(lines, device="cuda").uniform_(-1, 1).to(y.dtype)
    factor = torch.empty(lines, device="cuda").uniform_(-1, 1)
    before = torch.empty(y.shape, device="cuda").uniform_(-1, 1).to(y.dtype)
    launch = cuda.Launch(w, plan.schedule, result=result, **({"layout": layout} if isinstance(w, Conv) else {}))
    calls, errors = {}, {}
    for name, (beta, scaled, biased, activation) in BEHIND.items():
        at = [one.data_ptr() if used else 0 for one, used in ((bias, biased), (factor, scaled))]
        call = launch.on(pointers, epilogue=cuda.epilogue_struct(1.0, beta, at[0], activation, at[1]))
        y.copy_(before)
        if not beta:
            y.fill_(float("nan"))
        torch.cuda.synchronize()
        call.run()
        cuda.synchronize()
        x = want * (factor.to(want.dtype).view(shape) if scaled else 1) + beta * before.to(want.dtype)
        x = x + (bias.to(want.dtype).view(shape) if biased else 0)
        errors[name] = float(((y.to(want.dtype) - FUNCTIONS[activation](x)).abs() / (scale + 2)).nan_to_num(float("inf")).max())
        calls[name] = call
    spent = {name: list[float]() for name in calls}
    for _ in range(TURNS):
        for name, call in calls.items():
            if BEHIND[name][0]:
                y.fill_(0.0)
                torch.cuda.synchronize()
            spent[name].append(statistics.median(call.time(RUNS, max(2, round(UNTIMED / 2e-5)))))
    seconds = {name: statistics.median(some) for name, some in spent.items()}
    wrong = [name for name, error in errors.items() if not error <= BOUNDS[dtype]]
    return {"problem": w.text, "layout": layout, "kernel": plan.kernel, "schedule": msgspec.to_builtins(plan.schedule), "seconds": seconds,
            "errors": errors, "wrong": wrong}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--dtype", default="f16,bf16,tf32,f32")
    parser.add_argument("--layout", default="nchw,nhwc")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--note", default="")
    options = parser.parse_args()
    gpu, until = host.gpu_here(), time.monotonic() + options.seconds
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    texts = [(f"conv:mb32{layer}", layout) for layer in LAYERS.split() for layout in options.layout.split(",")]
    texts += [(f"gemm:{size}", "") for size in PRODUCTS.split()]
    with options.out.open("w") as out:
        header = {"kind": "header", "device": torch.cuda.get_device_name(), "torch": torch.__version__, "note": options.note}
        out.write(json.dumps(header) + "\n")
        for dtype in options.dtype.split(","):
            for text, layout in texts:
                if time.monotonic() > until:
                    return
                one = measure(text, dtype, layout, gpu)
                out.write(json.dumps(one) + "\n")
                out.flush()
                plain = one["seconds"]["plain"]
                words = "  ".join(f"{name} {1e6 * s:.1f} ({s / plain:.2f})" for name, s in one["seconds"].items())
                print(one["problem"], layout, one["kernel"], words, *(f"WRONG {name}" for name in one["wrong"]), flush=True)


if __name__ == "__main__":
    main()
