# SPDX-License-Identifier: Apache-2.0
"""Single layers of bytes beside float32's plans and oneDNN, interleaved, and their predictions.

    python lab/benchmarks/quantised_layers.py [LAYER ...] [--seconds 0.3] [--threads 1] [-o FILE]

A LAYER is a problem such as conv:mb1ic64ih56oc64kh3ph1 or a set: resnet50, mobilenet, bert. Layers of bytes read u8, multiply by s8 and
store u8 by a scale for each filter and a clamp; the faster of the plans in planes and with channels last is the one timed. oneDNN (version
3, PYSIM_ONEDNN) has the same scales, its own layouts, and weights that were reordered before. Columns: least times in us; multiply-adds in
10^9 a second; the time of float32's plan and of oneDNN over ours; predicted over measured. Pin it: `taskset -c 1`, of two threads `-c
0,1`. JSON lines go to FILE, a header first.
"""

import argparse
import functools
import json
import math
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

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
from pysim.record.plan import Layout, Plan, Request
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
ZERO = 3  # of results
_DECLARED = """
typedef struct dnnl_primitive_attr *dnnl_primitive_attr_t;
int dnnl_primitive_attr_create(dnnl_primitive_attr_t *attr);
int dnnl_primitive_attr_destroy(dnnl_primitive_attr_t attr);
int dnnl_primitive_attr_set_scales_mask(dnnl_primitive_attr_t attr, int arg, int mask);
int dnnl_primitive_attr_set_zero_points_mask(dnnl_primitive_attr_t attr, int arg, int mask);
int dnnl_matmul_primitive_desc_create(dnnl_primitive_desc_t *desc, dnnl_engine_t engine, dnnl_memory_desc_t src, dnnl_memory_desc_t weights,
                                      dnnl_memory_desc_t bias, dnnl_memory_desc_t dst, void *attr);
"""
_F32, _S32, _S8, _U8, _ANY, _QUERY_SRC, _QUERY_WEIGHTS, _QUERY_DST = 3, 4, 5, 6, 1, 129, 131, 133
_SRC, _DST, _WEIGHTS, _SCALES, _ZEROS = 1, 17, 33, 4096, 8192


def mobilenet() -> list[str]:
    numbers, found = iter(MOBILENET.split()), list[str]()
    for channels, out, filters, kernel, stride in zip(*[map(int, numbers)] * 5, strict=True):
        group = f"g{channels}" if kernel > 1 and channels == filters else ""
        found.append(f"conv:{group}mb1ic{channels}ih{out * stride}oc{filters}kh{kernel}sh{stride}ph{kernel // 2}")
    return found


def problems(names: list[str]) -> list[Workload]:
    own = {"bert": BERT, "mobilenet": mobilenet()}
    found = [layer.workload for name in names for layer in resolve(own.get(name, [name]))]
    return list(dict.fromkeys(replace(one, trans_b=True) if isinstance(one, Gemm) else one for one in found))


class Operands:
    """Random bytes of a layer, and what rescales its sums."""

    def __init__(self, problem: Workload) -> None:
        random = np.random.default_rng(0)
        of = (problem.input_shape, problem.filter_shape) if isinstance(problem, Conv) else ((problem.m, problem.k), (problem.n, problem.k))
        self.x, self.w = random.integers(0, 256, of[0]).astype(np.uint8), random.integers(-127, 128, of[1]).astype(np.int8)
        depth = self.w[0].size
        self.scales = (random.uniform(0.5, 1.5, len(self.w)) / (60 * math.sqrt(depth))).astype(np.float32)


def aligned(array: Any) -> Any:
    found = cpu.aligned(array.size, array.dtype).reshape(array.shape)
    found[...] = array
    return found


def of_plan(plan: Plan, held: Operands, threads: int) -> tuple[Callable[[], object], Any]:
    """A call of a plan, and its result."""
    whole = plan.workload.dtype == "s8"
    clamp: Any = ("clamp", 0.0, 255.0) if whole else "relu"
    integers = Integers(True, 0, held.scales, "u8", ZERO) if whole else None
    run = Prepared.of(plan, held.w if whole else held.w.astype(np.float32), None, clamp, threads, integers=integers)
    image = held.x if whole else held.x.astype(np.float32)
    given = np.moveaxis(image, 1, -1) if plan.layout == "nhwc" else image
    x, out = aligned(np.ascontiguousarray(given).reshape(run.shapes[0])), aligned(np.zeros(run.shapes[1], image.dtype))
    room = cpu.aligned(max(1, run.workspace_bytes), np.uint8)
    return run.step(x, out, room), np.moveaxis(out, -1, 1) if plan.layout == "nhwc" else out


def plans_of(problem: Workload, on: Machine, threads: int, dtype: str) -> Plan:
    """The best plan of a type within a network."""
    found = list[Plan]()
    layouts: tuple[Layout, ...] = ("nchw", "nhwc")
    for layout in layouts[: 1 + (dtype == "s8" and isinstance(problem, Conv))]:
        about: Any = {
            "threads": threads,
            "prepared": True,
            "quantised": dtype == "s8",
            "to_bytes": dtype == "s8",
            "accuracy": "ieee" if dtype == "s8" else "standard",
        }
        try:
            found.append(planned(Request(replace(problem, dtype=dtype), on, layout, "hot", **about)))
        except PlanError:
            continue
    return min(found, key=lambda one: one.seconds or math.inf)


def of_onednn(problem: Workload, held: Operands) -> tuple[Callable[[], object], Any]:
    """A call of oneDNN's layer in layouts of its choice, and its result in planes when it is called."""
    dnn = library()
    about = dnn.made("primitive_attr")
    dnn.ok(
        dnn.lib.dnnl_primitive_attr_set_scales_mask(about, _WEIGHTS, 2 if isinstance(problem, Gemm) else 3 if problem.groups > 1 else 1),
        "scales",
    )
    dnn.ok(dnn.lib.dnnl_primitive_attr_set_zero_points_mask(about, _DST, 0), "zeros")
    if isinstance(problem, Gemm):
        shapes = held.x.shape, (problem.k, problem.n), (problem.m, problem.n)
        source, weights, result = (described(dnn, shape, kind) for shape, kind in zip(shapes, (_U8, _S8, _U8), strict=True))
        description = dnn.made(
            "primitive_desc", dnn.engine, source, weights, dnn.ffi.NULL, result, about, by="matmul_primitive_desc_create"
        )
        plain = {_WEIGHTS: np.ascontiguousarray(held.w.T)}
    else:
        g, w = problem.groups, held.w
        grouped = (g, len(w) // g, *w.shape[1:]) if g > 1 else w.shape
        shapes = held.x.shape, grouped, problem.output_shape
        source, weights, result = (described(dnn, shape, kind) for shape, kind in zip(shapes, (_U8, _S8, _U8), strict=True))
        c = problem
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
        dnn, description, {_SRC: held.x, **plain}, {_SRC: _QUERY_SRC, _WEIGHTS: _QUERY_WEIGHTS, _DST: _QUERY_DST}, shapes[2], held.scales
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
    kind = {np.dtype(np.uint8): _U8, np.dtype(np.int8): _S8, np.dtype(np.float32): _F32, np.dtype(np.int32): _S32}[array.dtype]
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


def executed(dnn: Any, description: Any, plain: dict[int, Any], queries: dict[int, int], out_shape: Any, scales: Any) -> Any:
    primitive = dnn.made("primitive", description)
    places = {arg: dnn.lib.dnnl_primitive_desc_query_md(description, query, 0) for arg, query in queries.items()}
    held = {arg: cpu.aligned(dnn.lib.dnnl_memory_desc_get_size(of), np.uint8) for arg, of in places.items()}
    for arg, array in plain.items():
        moved(dnn, (row_major(dnn, array), array), (places[arg], held[arg]))
    zero = np.array([ZERO], np.int32)
    memories = {arg: memory(dnn, places[arg], held[arg]) for arg in places}
    memories |= {_SCALES | _WEIGHTS: memory(dnn, row_major(dnn, scales), scales), _ZEROS | _DST: memory(dnn, row_major(dnn, zero), zero)}
    arguments, out = dnn.ffi.new("dnnl_exec_arg_t[]", [*memories.items()]), np.zeros(out_shape, np.uint8)
    alive = (memories, held, description, zero)

    def call() -> object:
        dnn.lib.dnnl_primitive_execute(primitive, dnn.stream, len(memories), arguments)
        return dnn.lib.dnnl_stream_wait(dnn.stream) or alive

    call()
    moved(dnn, (places[_DST], held[_DST]), (row_major(dnn, out), out))
    return call, out


def measured(problem: Workload, on: Machine, threads: int, seconds: float) -> dict[str, Any]:
    """`predicted`: microseconds of the plan of bytes, as the measured `us`."""
    held = Operands(problem)
    whole, numbers = (plans_of(problem, on, threads, dtype) for dtype in ("s8", "f32"))
    (ours, result), (floats, _) = (of_plan(plan, held, threads) for plan in (whole, numbers))
    calls = {"s8": ours, "f32": floats}
    ours()
    try:
        calls["onednn"], theirs = of_onednn(problem, held)
        apart = int(np.abs(theirs.reshape(result.shape).astype(np.int16) - result).max())
        assert apart <= 1, apart  # oneDNN multiplies by scales in another order
    except MissingError as error:
        print(f"# {error}")
    times: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["s8"]) < 5:
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    products = problem.flops / 2
    return {
        "problem": problem.text,
        "plan": whole.name,
        "layout": whole.layout,
        "float_plan": numbers.name,
        "us": {name: round(min(of) * 1e6, 2) for name, of in times.items()},
        "medians": {name: round(statistics.median(of) * 1e6, 2) for name, of in times.items()},
        "giga": round(products / min(times["s8"]) / 1e9, 1),
        "predicted": round((whole.seconds or 0.0) * 1e6, 2),
        "terms": {name: round(cycles) for name, cycles in (whole.cost.terms.items() if whole.cost else ())},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layers", nargs="*", default=["resnet50", "mobilenet", "bert"])
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    on: Any = host.any_machine("host")
    lines = [json.dumps({"kind": "header", "environment": environment()})]
    for problem in problems(given.layers):
        row = measured(problem, on, given.threads, given.seconds)
        lines.append(json.dumps(row))
        us = row["us"]
        over = "  ".join(f"{name} {us[name] / us['s8']:5.2f}" for name in us if name != "s8")
        about = f"{us['s8']:8.1f} us {row['giga']:6.1f} G/s | {over} | predicted {row['predicted'] / us['s8']:.2f}"
        print(f"{row['problem']:60} {about}  {row['layout']} {row['plan']}", flush=True)
        if given.output:
            given.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
