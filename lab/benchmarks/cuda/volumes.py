#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Convolutions of volumes on a GPU: random ones checked against float64, and layers of networks beside PyTorch's in CUDA graphs.

    lab/benchmarks/cuda/volumes.py --random 1000 [--seed S] [--seconds S]
    lab/benchmarks/cuda/volumes.py -o volumes.jsonl [--set unet3d,r3d18] [--layers 7] [--batch 1,8] [--dtype f32,tf32,f16] [--seconds S]

Each library runs in both layouts, PyTorch with cudnn.benchmark; float32 plans have accuracy "strict", which allows no larger error than a
direct sum's. Times are medians of interleaved graphs. An error is the largest over |x| * |w| of its element.
"""

import argparse
import itertools
import math
import random
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
from graphs import microseconds
from torch.nn import functional

import pysim
from pysim.problem.conv import Conv
from pysim.problem.text import distinct, resolve
from pysim.problem.transposed import Moves, transposed

MOST_FLOPS = 4e11  # of a layer that is timed
# Transposed layers of DCGAN's generator, U-Net and 3-D U-Net: channels, sizes, filters, kernel and padding along each axis; stride 2
TRANSPOSED = (
    (1024, (4, 4), 512, 4, 1), (512, (8, 8), 256, 4, 1), (256, (16, 16), 128, 4, 1), (128, (32, 32), 3, 4, 1),
    (1024, (28, 28), 512, 2, 0), (128, (128, 128), 64, 2, 0), (256, (9, 9, 9), 256, 2, 0), (64, (32, 32, 32), 32, 2, 0),
)  # fmt: skip
TYPES = {"f32": torch.float32, "tf32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
BOUNDS = {"f16": 4 * 2.0**-11, "bf16": 4 * 2.0**-8, "tf32": 4 * 2.0**-10, "f32": 2.0**-16}  # of an error
LAYOUTS = ("nhwc", "nchw")


def formats(layout: str) -> Any:
    return torch.channels_last_3d if layout == "nhwc" else torch.contiguous_format


def convolved(w: Conv, x: Any, filters: Any, bias: Any = None) -> Any:
    """PyTorch's convolution."""
    axes = (w.slices, w.rows, w.columns)
    even = all(axis.before == axis.after for axis in axes)
    x = x if even else functional.pad(x, [n for axis in axes[::-1] for n in (axis.before, axis.after)])
    pads = [axis.before * even for axis in axes]
    return functional.conv3d(x, filters, bias, [axis.stride for axis in axes], pads, [axis.dilation for axis in axes], w.groups)


def operands(w: Conv) -> tuple[Any, Any]:
    shapes = (w.batch, w.channels, w.depth, w.height, w.width), (w.filters, w.group_channels, w.kernel_d, w.kernel_h, w.kernel_w)
    x, filters = (torch.empty(shape, device="cuda").uniform_(-1, 1).to(TYPES[w.dtype]) for shape in shapes)
    return x, filters


def error_of(w: Conv, x: Any, filters: Any, found: Any) -> float:
    torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = False
    wide = torch.float64 if w.dtype == "f32" or w.flops < 1e9 else torch.float32
    x, filters = x.to(wide), filters.to(wide)
    want, scale = convolved(w, x, filters), convolved(w, x.abs(), filters.abs())
    smallest = 2.0**-25 if w.dtype == "f16" else 0.0  # the error of a result among f16's numbers below the normal ones
    return float((((found.to(wide) - want).abs() - smallest) / scale.clamp_min(1e-30)).max())


def drawn(draw: random.Random) -> Conv:
    """A random convolution of volumes."""

    def axis() -> tuple[int, ...]:
        kernel, stride, dilation = draw.choice((1, 1, 2, 3, 3, 3, 5, 7)), draw.choice((1, 1, 1, 2, 2, 3)), draw.choice((1, 1, 1, 2, 3))
        before, after, out = draw.randint(0, 3), draw.randint(0, 3), draw.randint(1, 14)
        size = max(1, (out - 1) * stride + dilation * (kernel - 1) + 1 - before - after + draw.randrange(stride))
        return size, kernel, stride, dilation, before, after

    while True:
        d, h, w = axis(), axis(), axis()
        groups = draw.choice((1, 1, 1, 1, 2, 3, 8))
        channels, filters = (draw.choice((1, 3, 4, 8, 12, 16, 17, 32, 40, 64, 128)) for _ in range(2))
        try:
            one = Conv(
                batch=draw.choice((1, 1, 2, 3, 5)), channels=channels * groups, filters=filters * groups, groups=groups,
                depth=d[0], height=h[0], width=w[0], kernel_d=d[1], kernel_h=h[1], kernel_w=w[1], stride_d=d[2], stride_h=h[2],
                stride_w=w[2], dilation_d=d[3], dilation_h=h[3], dilation_w=w[3], pad_front=d[4], pad_top=h[4], pad_left=w[4],
                pad_back=d[5], pad_bottom=h[5], pad_right=w[5], dtype=draw.choice(tuple(TYPES)),
            )  # fmt: skip
        except pysim.errors.ProblemError:
            continue
        if one.is_volume and one.flops < 4e9:
            return one


def check(count: int, seed: int, seconds: float) -> None:
    """Random convolutions, with a bias and an activation in every other one."""
    draw, started, wrong, by, done = random.Random(seed), time.monotonic(), 0, dict[str, int](), 0
    while done < count and time.monotonic() - started < seconds:
        w, layout = drawn(draw), draw.choice(LAYOUTS)
        done += 1
        x, filters = operands(w)
        x, filters = x.to(memory_format=formats(layout)), filters.to(memory_format=formats(layout))
        try:
            plan = pysim.plan(w, "cuda", layout=layout, accuracy="strict" if w.dtype == "f32" else "standard")
            error = error_of(w, x, filters, plan.run(x, filters))
            by[plan.algorithm] = by.get(plan.algorithm, 0) + 1
        except Exception as reason:
            print("REFUSED", w.text, layout, repr(reason)[:300], flush=True)
            wrong += 1
            continue
        if not error < BOUNDS[w.dtype]:
            print("WRONG", w.text, layout, plan.kernel, error, flush=True)
            wrong += 1
    print(f"{done} random convolutions, {wrong} wrong or refused; by algorithm {by}", flush=True)


def measure(w: Conv) -> dict[str, Any]:
    """Microseconds of both libraries in both layouts."""
    x, filters = operands(w)
    calls, kept = {}, []
    line: dict[str, Any] = {"problem": w.text}
    for layout in LAYOUTS:
        mine = x.to(memory_format=formats(layout)), filters.to(memory_format=formats(layout))
        kept.append(mine)
        calls[f"torch {layout}"] = lambda at, mine=mine: convolved(w, *mine)
        plan = pysim.plan(w, "cuda", layout=layout, accuracy="strict" if w.dtype == "f32" else "standard")
        if layout == "nhwc":
            line |= {"kernel": plan.kernel, "predicted": round(1e6 * (plan.seconds or 0), 2)}
            if w.batch == 1:
                line["error"] = error_of(w, *mine, plan.run(*mine))
        calls[f"pysim {layout}"] = lambda at, mine=mine, plan=plan: plan.run(*mine)
    torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = True, w.dtype == "tf32"
    count = max(1, min(20, int(2e13 / w.flops)))
    return line | {name: round(value, 2) for name, value in microseconds(calls, count, 7).items()}


def measure_transposed(batch: int, dtype: str, layer: tuple[int, tuple[int, ...], int, int, int]) -> dict[str, Any]:
    """The same of a transposed convolution, whose filters are prepared as a network keeps them; both channels last and not."""
    channels, sizes, filters, kernel, pad = layer
    rank, kind = len(sizes), TYPES[dtype]
    of = transposed(
        batch, channels, sizes, filters, (kernel,) * rank, (2,) * rank, (1,) * rank, (pad,) * rank, [2 * n for n in sizes], dtype=dtype
    )
    x, w = (
        torch.empty(s, device="cuda").uniform_(-1, 1).to(kind) for s in ((batch, channels, *sizes), (channels, filters) + (kernel,) * rank)
    )
    theirs, last = (
        (functional.conv_transpose2d, torch.channels_last) if rank == 2 else (functional.conv_transpose3d, torch.channels_last_3d)
    )
    mine = of.weights(w, Moves(partial(torch.zeros, device="cuda"), torch.empty, torch.flip, torch.permute))
    calls, kept = {}, []
    line: dict[str, Any] = {"problem": f"deconv:mb{batch}ic{channels}i{sizes}oc{filters}k{kernel}s2p{pad}:{dtype}"}
    for layout, form in zip(LAYOUTS, (last, torch.contiguous_format), strict=True):
        plan = pysim.plan(of.problem, "cuda", layout=layout, accuracy="strict" if dtype == "f32" else "standard")
        own = x.to(memory_format=form), w.to(memory_format=form), mine.to(memory_format=form)
        out = torch.empty(of.output_shape, dtype=kind, device="cuda").to(memory_format=form)
        kept.append((own, out))
        calls[f"torch {layout}"] = lambda at, own=own: theirs(own[0], own[1], stride=2, padding=pad)
        calls[f"pysim {layout}"] = lambda at, own=own, out=out, plan=plan: of.interleave(plan.run(own[0], own[2]), out)
        calls[f"pysim {layout}"](0)
        wide = [theirs(a.double(), b.double(), stride=2, padding=pad) for a, b in ((x, w), (x.abs(), w.abs()))]
        line |= {f"error {layout}": float(((out - wide[0]).abs() / wide[1]).max()), f"conv {layout}": plan.kernel}
    torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = True, dtype == "tf32"
    return line | {name: round(value, 2) for name, value in microseconds(calls, 20, 7).items()}


def layers(sets: str, most: int) -> list[Conv]:
    """Up to `most` volumes of each set, evenly among its distinct layers, the sets in turn."""
    found = []
    for name in sets.split(","):
        every = [
            one.workload for one in distinct(resolve([name], lambda _: ())) if isinstance(one.workload, Conv) and one.workload.is_volume
        ]
        found.append(every[:: max(1, len(every) // most)][:most])
    return [w for turn in itertools.zip_longest(*found) for w in turn if w]


def measured(layer: Any, batch: int, dtype: str) -> dict[str, Any]:
    """Nothing of a layer that is too large."""
    if not isinstance(layer, Conv):
        return measure_transposed(batch, dtype, layer)
    w = msgspec.structs.replace(layer, batch=batch, dtype=dtype)
    return measure(w) if w.flops <= MOST_FLOPS else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--random", type=int, default=0, help="check that many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", default="unet3d,r3d18,slowfast", help="sets of layers, by comma")
    parser.add_argument("--layers", type=int, default=7, help="of each set")
    parser.add_argument("--transposed", action="store_true", help="transposed layers in their place")
    parser.add_argument("--batch", default="1,8")
    parser.add_argument("--dtype", default="f32,tf32,f16")
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no other layer is started")
    parser.add_argument("-o", "--out", type=Path)
    options = parser.parse_args()
    if options.random:
        check(options.random, options.seed, options.seconds)
    if not options.out:
        return
    started, ratios = time.monotonic(), list[float]()
    for batch in map(int, options.batch.split(",")):
        for dtype in options.dtype.split(","):
            for layer in TRANSPOSED if options.transposed else layers(options.set, options.layers):
                if time.monotonic() - started > options.seconds:
                    continue
                try:
                    line = measured(layer, batch, dtype)
                except Exception as reason:
                    line = {"problem": f"{layer}, batch {batch}, {dtype}", "refused": repr(reason)[:300]}
                if not line:
                    continue
                if "refused" not in line:
                    best = {who: min(line[f"{who} {layout}"] for layout in LAYOUTS) for who in ("pysim", "torch")}
                    ratios.append(best["torch"] / best["pysim"])
                with options.out.open("a") as file:
                    file.write(msgspec.json.encode(line).decode() + "\n")
    print(f"{len(ratios)} layers, PyTorch's best over pysim's {math.exp(sum(map(math.log, ratios)) / max(1, len(ratios))):.3f}", flush=True)


if __name__ == "__main__":
    main()
