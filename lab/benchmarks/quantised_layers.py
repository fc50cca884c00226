# SPDX-License-Identifier: Apache-2.0
"""Single layers of bytes or of bf16 beside float32's plans and oneDNN, interleaved, their predictions and the planner's choices.

    python lab/benchmarks/quantised_layers.py [LAYER ...] [--dtype s8] [--seconds 0.3] [--threads 1] [-o FILE]

A LAYER is a problem such as conv:mb1ic64ih56oc64kh3ph1, a set: resnet50, mobilenet, bert, or random:SEED:N, layers that no constant was
fitted to (`regret.py`), and products:SEED:N. Layers of bytes read u8, multiply by s8 and store u8 by a scale for each filter and a clamp,
in planes or with channels last; those of bf16 lie in channel blocks or, of products, in rows. The best plan of every algorithm and layout
is timed, if it may be the fastest; the one predicted so counts. oneDNN (version 3, PYSIM_ONEDNN) has the same scales, its own layouts, and
weights that were reordered before. Columns: least times in us; multiply-adds in 10^9 a second; the time of float32's plan and of oneDNN
over ours; predicted over measured; regret, our time over that of the fastest plan. Pin it: `taskset -c 1`, of two threads `-c 0,1`. JSON
lines go to FILE, a header first; the last line of the output says means, errors and regret of all layers.
"""

import argparse
import functools
import json
import math
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import regret
from msgspec.structs import replace

from pysim.algorithms import algorithms_for
from pysim.calibration import host
from pysim.errors import MissingError, PlanError
from pysim.machine.cpu import Machine
from pysim.measure.store import environment
from pysim.peers import onednn
from pysim.planner import planned
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload, resolve
from pysim.record.integers import Integers
from pysim.record.plan import Layout, Plan, Request, blocked_shape
from pysim.runtime import cpu
from pysim.runtime.cpu_launch import Prepared

BERT = ["gemm:128x768x768", "gemm:128x3072x768", "gemm:128x768x3072", "gemm:384x768x768", "gemm:512x512x512", "gemm:1024x1024x1024"]
# MobileNet-v2's layers: channels, rows of outputs, filters, rows of the kernel, stride
MOBILENET = (
    "3 112 32 3 2  32 112 32 3 1  32 112 16 1 1  16 112 96 1 1  96 56 96 3 2  96 56 24 1 1  24 56 144 1 1  144 56 144 3 1  144 56 24 1 1  "
    "144 28 144 3 2  144 28 32 1 1  32 28 192 1 1  192 28 192 3 1  192 28 32 1 1  192 14 192 3 2  192 14 64 1 1  64 14 384 1 1  "
    "384 14 384 3 1  384 14 64 1 1  384 14 96 1 1  96 14 576 1 1  576 14 576 3 1  576 14 96 1 1  576 7 576 3 2  576 7 160 1 1  "
    "160 7 960 1 1  960 7 960 3 1  960 7 160 1 1  960 7 320 1 1  320 7 1280 1 1"
)
ZERO, WITHIN = 3, 1.6  # of results; times the least predicted time, the plans that are timed
_DECLARED = """
typedef struct dnnl_primitive_attr *dnnl_primitive_attr_t;
int dnnl_primitive_attr_create(dnnl_primitive_attr_t *attr);
int dnnl_primitive_attr_destroy(dnnl_primitive_attr_t attr);
int dnnl_primitive_attr_set_scales_mask(dnnl_primitive_attr_t attr, int arg, int mask);
int dnnl_primitive_attr_set_zero_points_mask(dnnl_primitive_attr_t attr, int arg, int mask);
int dnnl_matmul_primitive_desc_create(dnnl_primitive_desc_t *desc, dnnl_engine_t engine, dnnl_memory_desc_t src, dnnl_memory_desc_t weights,
                                      dnnl_memory_desc_t bias, dnnl_memory_desc_t dst, void *attr);
"""
SIZES = (16, 32, 49, 64, 96, 100, 128, 192, 196, 256, 384, 512, 768, 1024, 1536)  # of random products
BF16 = np.dtype(ml_dtypes.bfloat16)
LAYOUTS: dict[str, tuple[Layout, ...]] = {"s8": ("nchw", "nhwc"), "bf16": ("nchw16c", "nchw-nchw16c", "nchw"), "f32": ("nchw",)}
_BF16, _F32, _S32, _S8, _U8, _ANY, _QUERY_SRC, _QUERY_WEIGHTS, _QUERY_DST = 2, 3, 4, 5, 6, 1, 129, 131, 133
_SRC, _DST, _WEIGHTS, _SCALES, _ZEROS = 1, 17, 33, 4096, 8192


def mobilenet() -> list[str]:
    numbers, found = iter(MOBILENET.split()), list[str]()
    for channels, out, filters, kernel, stride in zip(*[map(int, numbers)] * 5, strict=True):
        group = f"g{channels}" if kernel > 1 and channels == filters else ""
        found.append(f"conv:{group}mb1ic{channels}ih{out * stride}oc{filters}kh{kernel}sh{stride}ph{kernel // 2}")
    return found


def products(seed: int) -> Iterator[Gemm]:
    of = random.Random(seed)
    while True:
        yield Gemm(m=of.choice(SIZES), n=of.choice(SIZES), k=of.choice(SIZES), trans_b=True)


def named(name: str) -> list[Workload]:
    kind, *numbers = name.split(":")
    if kind in ("random", "products"):
        seed, count = map(int, numbers)
        return [*islice(products(seed), count)] if kind == "products" else [layer for _, layer in regret.layers(seed, count)]
    return [layer.workload for one in {"bert": BERT, "mobilenet": mobilenet()}.get(name, [name]) for layer in resolve(one)]


def problems(names: list[str]) -> list[Workload]:
    found = [one for name in names for one in named(name)]
    return list(dict.fromkeys(replace(one, trans_b=True) if isinstance(one, Gemm) else one for one in found))


class Operands:
    """Random operands of a layer, and what rescales sums of bytes."""

    def __init__(self, problem: Workload, dtype: str) -> None:
        random = np.random.default_rng(0)
        of = (problem.input_shape, problem.filter_shape) if isinstance(problem, Conv) else ((problem.m, problem.k), (problem.n, problem.k))
        self.whole = dtype == "s8"
        self.x, self.w = random.integers(0, 256, of[0]).astype(np.uint8), random.integers(-127, 128, of[1]).astype(np.int8)
        if not self.whole:
            self.x, self.w = ((one / 128).astype(BF16) for one in (self.x, self.w))
        depth = self.w[0].size
        self.scales = (random.uniform(0.5, 1.5, len(self.w)) / (60 * math.sqrt(depth))).astype(np.float32)


def aligned(array: Any) -> Any:
    found = cpu.aligned(array.size, array.dtype).reshape(array.shape)
    found[...] = array
    return found


def of_plan(plan: Plan, held: Operands, threads: int) -> tuple[Callable[[], object], Any]:
    """A call of a plan, and its result."""
    dtype, last = plan.workload.dtype, plan.layout == "nhwc"
    clamp: Any = ("clamp", 0.0, 255.0) if dtype == "s8" else "relu" if held.whole else None
    integers = Integers(True, 0, held.scales, "u8", ZERO) if dtype == "s8" else None
    floats = dtype == "f32" or (dtype == "bf16" and plan.layout != "nchw")  # filters beside channel blocks are floats
    run = Prepared.of(plan, held.w.astype(np.float32) if floats else held.w, None, clamp, threads, integers=integers)
    image, blocked = held.x, len(run.shapes[0]) == 5
    if dtype == "f32" or (dtype == "bf16" and plan.layout == "nchw-nchw16c"):  # planes before blocks are floats
        image = held.x.astype(np.float32)
    if blocked:
        sizes = blocked_shape(image.shape, run.shapes[0][-1])
        image = np.moveaxis(image.reshape(sizes[0], sizes[1], sizes[-1], *sizes[2:4]), 2, -1)
    given = np.ascontiguousarray(np.moveaxis(image, 1, -1) if last else image).reshape(run.shapes[0])
    kind = np.uint8 if dtype == "s8" else np.uint16 if len(run.shapes[1]) == 5 else np.float32
    x, out = aligned(given.view(np.uint16) if given.dtype == BF16 else given), aligned(np.zeros(run.shapes[1], kind))
    room = cpu.aligned(max(1, run.workspace_bytes), np.uint8)
    return run.step(x, out, room), np.moveaxis(out, -1, 1) if last else np.moveaxis(out, -1, 2) if out.ndim == 5 else out


def plans_of(problem: Workload, on: Machine, threads: int, dtype: str) -> list[Plan]:
    """The best plans of algorithms and layouts within a network that may be the fastest, the one predicted so first."""
    found, typed = list[Plan](), replace(problem, dtype=dtype)
    whole = dtype == "s8"
    about: Any = {"threads": threads, "prepared": True, "quantised": whole, "to_bytes": whole, "accuracy": "ieee" if whole else "standard"}
    for layout in LAYOUTS[dtype] if isinstance(problem, Conv) else ("nchw",):
        for algorithm in algorithms_for(typed, on):
            try:
                found.append(planned(Request(typed, on, layout, "hot", algorithm=algorithm.NAME, **about)))
            except PlanError:
                continue
    found.sort(key=lambda one: one.seconds or math.inf)
    return [one for one in found if (one.seconds or math.inf) <= WITHIN * (found[0].seconds or 0.0)]


def of_onednn(problem: Workload, held: Operands) -> tuple[Callable[[], object], Any]:
    """A call of oneDNN's layer in layouts of its choice, and its result in planes when it is called."""
    dnn = library()
    about, kinds = dnn.made("primitive_attr"), (_U8, _S8, _U8) if held.whole else (_BF16, _BF16, _BF16)
    if held.whole:
        mask = 2 if isinstance(problem, Gemm) else 3 if problem.groups > 1 else 1
        dnn.ok(dnn.lib.dnnl_primitive_attr_set_scales_mask(about, _WEIGHTS, mask), "scales")
        dnn.ok(dnn.lib.dnnl_primitive_attr_set_zero_points_mask(about, _DST, 0), "zeros")
    if isinstance(problem, Gemm):
        shapes = held.x.shape, (problem.k, problem.n), (problem.m, problem.n)
        source, weights, result = (described(dnn, shape, kind) for shape, kind in zip(shapes, kinds, strict=True))
        description = dnn.made(
            "primitive_desc", dnn.engine, source, weights, dnn.ffi.NULL, result, about, by="matmul_primitive_desc_create"
        )
        plain = {_WEIGHTS: np.ascontiguousarray(held.w.T)}
    else:
        c, g, w = problem, problem.groups, held.w
        grouped = (g, len(w) // g, *w.shape[1:]) if g > 1 else w.shape
        shapes = held.x.shape, grouped, problem.output_shape
        source, weights, result = (described(dnn, shape, kind) for shape, kind in zip(shapes, kinds, strict=True))
        pairs = (
            (c.stride_h, c.stride_w),
            (c.dilation_h - 1, c.dilation_w - 1),
            (c.pad_top, c.pad_left),
            (c.pad_bottom, c.pad_right),
        )
        sizes = [dnn.ffi.new("int64_t[12]", list(pair)) for pair in pairs]
        operands = (source, weights, dnn.ffi.NULL, result, *sizes, about)
        description = dnn.made("primitive_desc", dnn.engine, 96, 1, *operands, by="convolution_forward_primitive_desc_create")
        plain = {_WEIGHTS: w.reshape(grouped)}
    return executed(
        dnn, description, {_SRC: held.x, **plain}, {_SRC: _QUERY_SRC, _WEIGHTS: _QUERY_WEIGHTS, _DST: _QUERY_DST}, shapes[2], held
    )


@functools.cache
def library() -> Any:
    dnn = onednn._library(os.environ.get("PYSIM_ONEDNN"))
    dnn.ffi.cdef(_DECLARED)
    return dnn


def described(dnn: Any, shape: tuple[int, ...], kind: int) -> Any:
    """A tensor in a layout of oneDNN's choice."""
    return dnn.made("memory_desc", len(shape), dnn.ffi.new("int64_t[12]", list(shape)), kind, _ANY, by="memory_desc_create_with_tag")


def row_major(dnn: Any, array: Any) -> Any:
    kind = {np.dtype(np.uint8): _U8, np.dtype(np.int8): _S8, np.dtype(np.float32): _F32, np.dtype(np.int32): _S32, BF16: _BF16}[array.dtype]
    sizes, strides = ([*values] for values in (array.shape, (stride // array.itemsize for stride in array.strides)))
    new = dnn.ffi.new
    return dnn.made(
        "memory_desc", len(sizes), new("int64_t[12]", sizes), kind, new("int64_t[12]", strides), by="memory_desc_create_with_strides"
    )


def memory(dnn: Any, description: Any, array: Any) -> Any:
    return dnn.made("memory", description, dnn.engine, dnn.ffi.cast("void *", array.ctypes.data))


def moved(dnn: Any, source: tuple[Any, Any], target: tuple[Any, Any]) -> None:
    """Copies an array of one layout, (description, array), to another."""
    ends = (source[0], dnn.engine, target[0], dnn.engine, dnn.ffi.NULL)
    reorder = dnn.made("primitive", dnn.made("primitive_desc", *ends, by="reorder_primitive_desc_create"))
    memories = [(_SRC, memory(dnn, *source)), (_DST, memory(dnn, *target))]
    dnn.ok(dnn.lib.dnnl_primitive_execute(reorder, dnn.stream, 2, dnn.ffi.new("dnnl_exec_arg_t[]", memories)), "reorder")
    dnn.ok(dnn.lib.dnnl_stream_wait(dnn.stream), "reorder")


def executed(dnn: Any, description: Any, plain: dict[int, Any], queries: dict[int, int], out_shape: Any, of: Operands) -> Any:
    primitive = dnn.made("primitive", description)
    places = {arg: dnn.lib.dnnl_primitive_desc_query_md(description, query, 0) for arg, query in queries.items()}
    held = {arg: cpu.aligned(dnn.lib.dnnl_memory_desc_get_size(of), np.uint8) for arg, of in places.items()}
    for arg, array in plain.items():
        moved(dnn, (row_major(dnn, array), array), (places[arg], held[arg]))
    zero, scales = np.array([ZERO], np.int32), of.scales
    memories = {arg: memory(dnn, places[arg], held[arg]) for arg in places}
    if of.whole:
        memories |= {
            _SCALES | _WEIGHTS: memory(dnn, row_major(dnn, scales), scales),
            _ZEROS | _DST: memory(dnn, row_major(dnn, zero), zero),
        }
    arguments, out = dnn.ffi.new("dnnl_exec_arg_t[]", [*memories.items()]), np.zeros(out_shape, np.uint8 if of.whole else BF16)
    alive = (memories, held, description, zero)

    def call() -> object:
        dnn.lib.dnnl_primitive_execute(primitive, dnn.stream, len(memories), arguments)
        return dnn.lib.dnnl_stream_wait(dnn.stream) or alive

    call()
    moved(dnn, (places[_DST], held[_DST]), (row_major(dnn, out), out))
    return call, out


def numbers(result: Any) -> Any:
    """A result as float64, of bf16 from its bits."""
    return (result.view(BF16) if result.dtype == np.uint16 else result).astype(np.float64).reshape(-1)


def timed(calls: dict[str, Callable[[], object]], seconds: float) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(next(iter(times.values()))) < 5:
        for name, call in calls.items():
            call()  # plans are for hot caches, which the call before has filled with other operands
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return times


def measured(problem: Workload, on: Machine, threads: int, seconds: float, dtype: str) -> dict[str, Any] | None:
    """`predicted`: microseconds of the plan, as the measured `us`. None if nothing computes the layer in this type."""
    held = Operands(problem, dtype)
    plans, floats = plans_of(problem, on, threads, dtype), plans_of(problem, on, threads, "f32")[0]
    if not plans:
        return None
    own, (base, _) = [of_plan(plan, held, threads) for plan in plans], of_plan(floats, held, threads)
    calls = {"ours": own[0][0], "f32": base} | {f"{at}": own[at][0] for at in range(1, len(own))}
    for call, _ in own:
        call()
    first = numbers(np.ascontiguousarray(own[0][1]))
    most = 1.0 if dtype == "s8" else 0.02 * np.abs(first).max()
    assert all(np.abs(numbers(np.ascontiguousarray(out)) - first).max() <= (0 if dtype == "s8" else most) for _, out in own)
    try:
        calls["onednn"], theirs = of_onednn(problem, held)
        apart = float(np.abs(numbers(theirs) - first).max())
        assert apart <= most, apart  # oneDNN multiplies by scales in another order
    except MissingError as error:
        print(f"# {error}")
    times = timed(calls, seconds)
    best, whole = min(min(times[name]) for name in calls if name == "ours" or name.isdigit()), plans[0]
    shown = [name for name in calls if not name.isdigit()]
    return {
        "problem": problem.text,
        "plan": whole.name,
        "layout": whole.layout,
        "float_plan": floats.name,
        "us": {name: round(min(times[name]) * 1e6, 2) for name in shown},
        "medians": {name: round(statistics.median(times[name]) * 1e6, 2) for name in shown},
        "others": {f"{plan.layout} {plan.name}": round(min(times[f"{at}"]) * 1e6, 2) for at, plan in enumerate(plans) if at},
        "giga": round(problem.flops / 2 / min(times["ours"]) / 1e9, 1),
        "predicted": round((whole.seconds or 0.0) * 1e6, 2),
        "regret": round(min(times["ours"]) / best, 4),
        "terms": {name: round(cycles) for name, cycles in (whole.cost.terms.items() if whole.cost else ())},
    }


def summary(rows: list[dict[str, Any]]) -> str:
    """Geometric means and least of ratios, errors of predictions (median, 90th percentile), the mean regret."""
    errors = [abs(row["predicted"] / row["us"]["ours"] - 1) for row in rows]
    text = f"{len(rows)} layers; error {np.median(errors):.1%}, {np.percentile(errors, 90):.1%}"
    text += f"; regret {np.mean([row['regret'] for row in rows]):.3f}"
    for name in ("f32", "onednn"):
        ratios = [row["us"][name] / row["us"]["ours"] for row in rows if name in row["us"]]
        text += f"; over {name} {np.exp(np.mean(np.log(ratios))):.2f}, least {min(ratios):.2f}" if ratios else ""
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layers", nargs="*", default=["resnet50", "mobilenet", "bert"])
    parser.add_argument("--dtype", choices=("s8", "bf16"), default="s8")
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    on: Any = host.any_machine("host")
    lines, rows = [json.dumps({"kind": "header", "environment": environment()})], list[dict[str, Any]]()
    for problem in problems(given.layers):
        row = measured(problem, on, given.threads, given.seconds, given.dtype)
        if row is None:
            print(f"{problem.text}: nothing computes it in {given.dtype}", flush=True)
            continue
        rows.append(row)
        lines.append(json.dumps(row))
        us = row["us"]
        over = "  ".join(f"{name} {us[name] / us['ours']:5.2f}" for name in us if name != "ours")
        about = f"{us['ours']:8.1f} us {row['giga']:6.1f} G/s | {over} | predicted {row['predicted'] / us['ours']:.2f}"
        print(f"{row['problem']:60} {about} regret {row['regret']:.2f}  {row['layout']} {row['plan']}", flush=True)
        if given.output:
            given.output.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(summary(rows))


if __name__ == "__main__":
    main()
