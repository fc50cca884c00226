#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Convolutions of sequences and volumes, and transposed ones, on a GPU: random volumes checked against float64, and layers of
networks beside PyTorch's in CUDA graphs.

    lab/benchmarks/cuda/volumes.py --random 1000 [--seed S] [--seconds S]
    lab/benchmarks/cuda/volumes.py -o volumes.jsonl [LAYER ...] [--batch 1,8] [--dtype f32,tf32,f16] [--seconds S] [--plans N] [--turn FILE]
    lab/benchmarks/cuda/volumes.py --depthwise -o depthwise.jsonl

LAYER is a benchdnn line, or SET:NUMBER, a built-in set's layer of that number from 0, or @FILE, lines of a file; without one, LAYERS.
`--batch own` takes the batch of each line. `--plans N`: where PyTorch is faster, the N best plans of each layout, too. `--turn`: as
volume_networks.py's. Each library runs in both layouts, PyTorch with cudnn.benchmark; float32 plans have accuracy "strict", which allows
no larger error than a direct sum's. Times are medians of interleaved graphs. An error is the largest over |x| * |w| of its element. Random
volumes run beside products on a second stream. A prediction is of a call in a graph: less the machine's `event_seconds`. `--depthwise`:
causal depthwise sequences beyond the L2, and the share of a copy's bandwidth that they reach.
"""

import argparse
import math
import random
import re
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
from compilers import Turn
from graphs import microseconds
from torch.nn import functional

import pysim
from pysim.problem.conv import Conv
from pysim.problem.text import line_of, parse
from pysim.problem.transposed import Moves, Transposed, transposed
from pysim.runtime.cuda import interleave

MOST_FLOPS = 4e11  # of a layer that is timed
# 3-D U-Net, R3D-18, SlowFast, wav2vec 2, EnCodec, Mamba, DCGAN, Stable Diffusion's U-Net
LAYERS = """
    unet3d:0 r3d18:0 slowfast:0 slowfast:1 encodec:0 wav2vec2:0 dcgan:4 dcgan:5 unet3d:1 r3d18:1 unet3d:8 dcgan:1 encodec:1 wav2vec2:1
    slowfast:2 slowfast:4 slowfast:13 slowfast:14 unet3d:2 unet3d:4 unet3d:6 unet3d:9 unet3d:11 unet3d:12 unet3d:14 unet3d:16 unet3d:17
    r3d18:5 r3d18:6 r3d18:7 r3d18:10 r3d18:11 r3d18:15 r3d18:16 slowfast:25 slowfast:27 slowfast:38 slowfast:60 wav2vec2:5 wav2vec2:7
    encodec:4 encodec:8 encodec:16 encodec:18 encodec:19 encodec:27 encodec:35 dcgan:2 dcgan:3 dcgan:6 dcgan:7
    conv:g1536mb1ic1536iw2048oc1536ow2048kw4pw3 conv:g2560mb1ic2560iw2048oc2560ow2048kw4pw3 conv:mb1ic4ih64iw64oc320kh3kw3ph1pw1
    conv:mb1ic320ih64iw64oc320kh3kw3sh2sw2ph1pw1 conv:mb1ic1280ih16iw16oc1280kh3kw3sh2sw2ph1pw1
"""
TYPES = {"f32": torch.float32, "tf32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
BOUNDS = {"f16": 4 * 2.0**-11, "bf16": 4 * 2.0**-8, "tf32": 4 * 2.0**-10, "f32": 2.0**-16}  # of an error
LAYOUTS = ("nhwc", "nchw")


def formats(layout: str, rank: int) -> Any:
    return (torch.channels_last if rank == 2 else torch.channels_last_3d) if layout == "nhwc" else torch.contiguous_format


def convolved(w: Conv, x: Any, filters: Any, bias: Any = None) -> Any:
    """PyTorch's convolution, of sequences as images of one row."""
    axes = (w.slices, w.rows, w.columns) if w.is_volume else (w.rows, w.columns)
    even = all(axis.before == axis.after for axis in axes)
    x = x if even else functional.pad(x, [n for axis in axes[::-1] for n in (axis.before, axis.after)])
    pads = [axis.before * even for axis in axes]
    call = functional.conv3d if w.is_volume else functional.conv2d
    return call(x, filters, bias, [axis.stride for axis in axes], pads, [axis.dilation for axis in axes], w.groups)


def operands(w: Conv) -> tuple[Any, Any]:
    shapes = w.input_shape, w.filter_shape
    x, filters = (torch.empty(shape, device="cuda").uniform_(-1, 1).to(TYPES[w.dtype]) for shape in shapes)
    return x, filters


def error_of(w: Conv, x: Any, filters: Any, found: Any) -> float:
    torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = False
    wide = torch.float64 if w.dtype == "f32" or w.flops < 1e9 else torch.float32
    x, filters = x.to(wide), filters.to(wide)
    want, scale = convolved(w, x, filters), convolved(w, x.abs(), filters.abs())
    smallest = 2.0**-25 if w.dtype == "f16" else 0.0  # the error of a result among f16's numbers below the normal ones
    return float((((found.to(wide) - want).abs() - smallest) / scale.clamp_min(1e-30)).max())


def drawn(draw: random.Random, volumes: bool = True) -> Conv:
    """A random convolution of volumes, or of images."""

    def axis() -> tuple[int, ...]:
        kernel, stride, dilation = draw.choice((1, 1, 2, 3, 3, 3, 5, 7)), draw.choice((1, 1, 1, 2, 2, 3)), draw.choice((1, 1, 1, 2, 3))
        before, after, out = draw.randint(0, 3), draw.randint(0, 3), draw.randint(1, 14)
        size = max(1, (out - 1) * stride + dilation * (kernel - 1) + 1 - before - after + draw.randrange(stride))
        return size, kernel, stride, dilation, before, after

    while True:
        d, h, w = axis() if volumes else (1, 1, 1, 1, 0, 0), axis(), axis()
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
        if one.is_volume == volumes and one.flops < 4e9:
            return one


def check(count: int, seed: int, seconds: float) -> None:
    """Random convolutions, while products run on a second stream."""
    draw, started, wrong, by, done = random.Random(seed), time.monotonic(), 0, dict[str, int](), 0
    beside, matrix = torch.cuda.Stream(), torch.ones(2048, 2048, device="cuda", dtype=torch.float16)
    while done < count and time.monotonic() - started < seconds:
        w, layout = drawn(draw), draw.choice(LAYOUTS)
        done += 1
        x, filters = operands(w)
        x, filters = x.to(memory_format=formats(layout, 3)), filters.to(memory_format=formats(layout, 3))
        try:
            plan = pysim.plan(w, "cuda", layout=layout, accuracy="strict" if w.dtype == "f32" else "standard")
            with torch.cuda.stream(beside):
                matrix @ matrix
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


def predicted(plan: Any) -> float:
    """Microseconds in a graph."""
    events = plan.on.event_seconds
    return round(1e6 * (plan.seconds - (events.value if events else 0.0)), 2)


def measure(w: Conv) -> dict[str, Any]:
    """Microseconds of both libraries in both layouts."""
    x, filters = operands(w)
    calls, kept = {}, []
    line: dict[str, Any] = {"problem": w.text}
    for layout in LAYOUTS:
        form = formats(layout, x.dim() - 2)
        mine = x.to(memory_format=form), filters.to(memory_format=form)
        kept.append(mine)
        calls[f"torch {layout}"] = lambda at, mine=mine: convolved(w, *mine)
        plan = pysim.plan(w, "cuda", layout=layout, accuracy="strict" if w.dtype == "f32" else "standard")
        if layout == "nhwc" and w.batch == 1:
            line["error"] = error_of(w, *mine, plan.run(*mine))
        line |= {f"kernel {layout}": plan.kernel, f"predicted {layout}": predicted(plan)}
        calls[f"pysim {layout}"] = lambda at, mine=mine, plan=plan: plan.run(*mine)
    torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = True, w.dtype == "tf32"
    count = max(1, min(20, int(1e12 / w.flops)))
    return line | {name: round(value, 2) for name, value in microseconds(calls, count, 5).items()}


def measure_transposed(line: str, batch: int, dtype: str) -> dict[str, Any]:
    """The same of a transposed convolution, whose filters are prepared as a network keeps them."""
    of = {name: int(number) for name, number in re.findall(r"([a-z]+)(\d+)", line.partition(":")[2])}
    batch = batch or of.get("mb", 1)
    letters = [a for a in "dhw" if f"i{a}" in of]
    letters = letters if len(letters) > 1 else ["h", "w"]
    sizes, kernel, outs, strides, pads = (
        [of.get(f"{f}{a}", default) for a in letters] for f, default in zip("ikosp", (1, 1, 1, 1, 0), strict=True)
    )
    rank, kind, channels, filters = len(letters), TYPES[dtype], of["ic"], of["oc"]
    more = [o - ((i - 1) * s - 2 * p + k) for o, i, s, p, k in zip(outs, sizes, strides, pads, kernel, strict=True)]
    problem = transposed(batch, channels, sizes, filters, kernel, strides, (1,) * rank, pads, outs, dtype=dtype)
    x, w = (torch.empty(s, device="cuda").uniform_(-1, 1).to(kind) for s in ((batch, channels, *sizes), (channels, filters, *kernel)))
    call = functional.conv_transpose2d if rank == 2 else functional.conv_transpose3d
    theirs = partial(call, stride=strides, padding=pads, output_padding=more)
    mine = problem.weights(w, Moves(partial(torch.zeros, device="cuda"), torch.empty, torch.flip, torch.permute))
    calls, kept = {}, []
    found: dict[str, Any] = {"problem": re.sub(r"mb\d+", f"mb{batch}", line, count=1) + ("" if dtype == "f32" else f":{dtype}")}
    wide = [theirs(a.double(), b.double()) for a, b in ((x, w), (x.abs(), w.abs()))]
    for layout in LAYOUTS:
        form = formats(layout, rank)
        plan = pysim.plan(problem.problem, "cuda", layout=layout, accuracy="strict" if dtype == "f32" else "standard")
        own = x.to(memory_format=form), w.to(memory_format=form), mine.to(memory_format=form)
        out = torch.empty(problem.output_shape, dtype=kind, device="cuda").to(memory_format=form)
        kept.append((own, out))
        calls[f"torch {layout}"] = lambda at, own=own: theirs(own[0], own[1])
        calls[f"pysim {layout}"] = partial(_interleaved, problem, plan, layout, own[0], own[2], out)
        calls[f"pysim {layout}"](0)
        error = float(((out - wide[0]).abs() / wide[1].clamp_min(1e-30)).max())
        found |= {f"error {layout}": error, f"kernel {layout}": plan.kernel, f"predicted {layout}": predicted(plan)}
        calls[f"phases {layout}"] = lambda at, own=own, plan=plan: plan.run(own[0], own[2])
    torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = True, dtype == "tf32"
    return found | {name: round(value, 2) for name, value in microseconds(calls, 20, 5).items()}


def _interleaved(of: Transposed, plan: Any, layout: Any, x: Any, filters: Any, out: Any, at: int = 0) -> None:
    y = plan.run(x, filters)
    interleave(of, layout, out.element_size(), y.data_ptr(), out.data_ptr(), torch.cuda.current_stream().cuda_stream)


def measured(line: str, batch: int, dtype: str) -> dict[str, Any]:
    """Nothing of a layer that is too large."""
    if line.startswith("deconv"):
        return measure_transposed(line, batch, dtype)
    w = msgspec.structs.replace(parse(line), batch=batch or parse(line).batch, dtype=dtype)
    return measure(w) if w.flops <= MOST_FLOPS else {}


def other_plans(text: str, number: int) -> dict[str, Any]:
    """Predicted and measured microseconds of the best plans of each layout, by kernel."""
    w = parse(text)
    x, filters = operands(w)
    calls, kept, found = {}, [], dict[str, Any]()
    for layout in LAYOUTS:
        form = formats(layout, x.dim() - 2)
        mine = x.to(memory_format=form), filters.to(memory_format=form)
        kept.append(mine)
        for plan in pysim.plans(w, "cuda", number, layout=layout, accuracy="strict" if w.dtype == "f32" else "standard"):
            found[f"{layout} {plan.kernel}"] = predicted(plan)
            calls[f"{layout} {plan.kernel}"] = lambda at, mine=mine, plan=plan: plan.run(*mine)
    times = microseconds(calls, max(1, min(20, int(1e12 / w.flops))), 5)
    return {name: [expected, round(times[name], 2)] for name, expected in found.items()}


def measure_depthwise(kernel: int, dtype: str) -> dict[str, Any]:
    """Causal depthwise sequences: microseconds, and the share of a copy's bandwidth."""
    w = parse(f"conv:g1536mb8ic1536iw8192oc1536ow8192kw{kernel}pw{kernel - 1}:{dtype}")
    line = measure(w)
    x, to = (torch.zeros(w.input_shape, device="cuda", dtype=TYPES[dtype]) for _ in range(2))
    copy = microseconds({"copy": lambda at: to.copy_(x)}, 5, 5)["copy"]
    return line | {"copy": copy, **{f"share {layout}": round(copy / line[f"pysim {layout}"], 3) for layout in LAYOUTS}}


def _ratio(line: dict[str, Any]) -> float:
    """PyTorch's best layout over ours."""
    best = [min(line[f"{who} {layout}"] for layout in LAYOUTS) for who in ("torch", "pysim")]
    return best[0] / best[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--random", type=int, default=0, help="check that many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("layers", nargs="*", default=LAYERS.split())
    parser.add_argument("--depthwise", action="store_true", help="causal depthwise sequences in their place")
    parser.add_argument("--batch", default="1,8")
    parser.add_argument("--dtype", default="f32,tf32,f16")
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no other layer is started")
    parser.add_argument("--plans", type=int, default=0)
    parser.add_argument("--turn", type=Path)
    parser.add_argument("-o", "--out", type=Path)
    options = parser.parse_args()
    if options.random:
        check(options.random, options.seed, options.seconds)
    if not options.out:
        return
    started, ratios = time.monotonic(), list[float]()
    cases: list[Any] = [
        partial(measured, line_of(layer), batch, dtype)
        for batch in (int(word) if word != "own" else 0 for word in options.batch.split(","))
        for dtype in options.dtype.split(",")
        for layer in (line for word in options.layers for line in (Path(word[1:]).read_text().split() if word[0] == "@" else [word]))
    ]
    turn = Turn(options.turn or options.out.with_suffix(".turn"))
    if options.depthwise:
        cases = [partial(measure_depthwise, kernel, dtype) for dtype in options.dtype.split(",") for kernel in (3, 4, 7, 15, 31, 63)]
    for case in cases:
        if time.monotonic() - started > options.seconds:
            break
        with turn.taken():
            try:
                line = case()
                if line:
                    ratios.append(_ratio(line))
                if line and ratios[-1] < 1 and options.plans and line["problem"].startswith("conv"):
                    line["plans"] = other_plans(line["problem"], options.plans)
            except Exception as reason:
                line = {"problem": repr(case.args), "refused": repr(reason)[:300]}
        if not line:
            continue
        with options.out.open("a") as file:
            file.write(msgspec.json.encode(line).decode() + "\n")
    print(f"{len(ratios)} layers, PyTorch's best over pysim's {math.exp(sum(map(math.log, ratios)) / max(1, len(ratios))):.3f}", flush=True)


if __name__ == "__main__":
    main()
