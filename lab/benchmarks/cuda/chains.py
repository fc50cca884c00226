#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Chains of dependent launches on a GPU, and random products and convolutions checked in full.

    lab/benchmarks/cuda/chains.py [--chains 2000] [--random 2000] [--seed 1] [--seconds 60] [--dtypes f16,bf16,tf32,f32,f64]

A launch may start before the one before it ends. Each launch of a chain reads what the launch before it wrote, and overwrites what that one
read; all have one workspace. A chain runs with a wait behind each launch, then REPEATS times without; the last two results must be equal
bit for bit. Launches are products (n = k = channels), pointwise, 3x3 and depthwise convolutions, of any kernel that computes them, not
the planned one alone. Random problems run any kernel, too; every element is compared with float64, within the bounds of products.py and
volumes.py, which count the rounding of results below the normal numbers.
`--seconds`: of the chains, and of the random problems. Prints a line for each failure, then the counts; exit status 1 if there was one.
"""

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
import products
import torch
import volumes

from pysim import planner
from pysim.calibration import gpu_lab, host
from pysim.errors import PlanError, ProblemError
from pysim.machine.gpu import Gpu
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload, parse
from pysim.record.plan import Layout, Plan
from pysim.runtime import cuda

LENGTH, REPEATS = 12, 3
CHAINS_OF_SHAPE = 25  # chains for each list of launches, since listing takes longer than running
EVERY = 1_000_000  # more than the number of plans
DTYPES = ("f16", "bf16", "tf32", "f32", "f64")
KINDS = volumes.TYPES | {"f64": torch.float64}
MOST_RANDOM = 2e9  # multiply-adds of a random problem
LAYOUTS: tuple[Layout, ...] = ("nhwc", "nchw")


class Step(NamedTuple):
    """A launch that a chain may have: operands are `first` and `second`."""

    name: str
    launch: cuda.Launch
    second: Any


def kernels_of(problem: Workload, gpu: Gpu, layout: Layout = "nchw") -> list[Plan]:
    """The best plan of each kernel, and of each with parts of k, as far as the accuracy of the definition allows."""
    found: dict[tuple[str, str | None, str], Plan] = {}
    try:
        for plan in planner.plans(problem, gpu, top=EVERY, layout=layout, accuracy="strict" if problem.dtype == "f32" else "standard"):
            s = plan.launch
            found.setdefault((s.kernel, s.gemm, s.decomposition), plan)
    except PlanError:
        pass  # no kernel computes it
    return [*found.values()]


def bound(problem: Workload, plan: Plan, layout: Layout, pointers: tuple[int, int, int], stream: Any = None, room: Any = None) -> Any:
    launch = cuda.Launch(problem, plan.launch, layout=layout)
    make = (lambda size: (room, room.data_ptr())) if room is not None else None
    return launch.on(pointers, stream=stream.cuda_stream if stream else 0, make=make)


# Chains


def shapes(draw: random.Random, dtype: str) -> tuple[list[tuple[Workload, Layout]], int, int]:
    """Problems from one array of pixels to another, the number of pixels and of channels."""
    unit = draw.choice((1, 2, 4, 8, 8, 8))
    batch, high, wide = draw.choice((1, 1, 2, 4)), draw.randint(1, 24), draw.randint(1, 24)
    channels = unit * draw.randint(1, 256 // unit)
    pixels = batch * high * wide
    images = f"mb{batch}ic{channels}ih{high}iw{wide}oc{channels}"
    convs = (f"{images}kh1kw1", f"{images}kh3kw3ph1pw1", f"g{channels}{images}kh3kw3ph1pw1") if dtype != "f64" else ()
    texts: list[tuple[str, Layout]] = [(f"gemm:{pixels}x{channels}x{channels}:{layout}", "nchw") for layout in ("nn", "nt")]
    texts += [(f"conv:{text}", "nhwc") for text in convs]
    return [(parse(f"{text}:{dtype}"), layout) for text, layout in texts], pixels, channels


def second_of(problem: Workload, kind: Any) -> Any:
    """Weights that keep the variance of what they multiply."""
    if isinstance(problem, Gemm):
        shape, terms = (problem.n, problem.k), problem.k
    else:
        terms = problem.channels // problem.groups * problem.taps
        shape = (problem.filters, terms)
    return ((torch.rand(shape, device="cuda", dtype=torch.float32) * 2 - 1) * (3 / terms) ** 0.5).to(kind)


def steps_of(draw: random.Random, dtype: str, gpu: Gpu) -> tuple[list[Step], int]:
    """What chains of one shape are made of, and the elements of their arrays."""
    problems, pixels, channels = shapes(draw, dtype)
    steps = []
    for problem, layout in problems:
        second = second_of(problem, KINDS[dtype])
        for plan in kernels_of(problem, gpu, layout):
            launch = cuda.Launch(problem, plan.launch, layout=layout)
            steps.append(Step(f"{problem.text} {plan.name}", launch, second))
    return steps, pixels * channels


def run_chain(chain: list[Step], arrays: list[Any], start: Any, room: Any, stream: Any, wait: bool) -> list[Any]:
    """The last two results, as integers."""
    for array in arrays:
        array.copy_(start)
    torch.cuda.synchronize()
    for number, step in enumerate(chain):
        pointers = arrays[number % 2].data_ptr(), step.second.data_ptr(), arrays[1 - number % 2].data_ptr()
        step.launch.on(pointers, stream=stream.cuda_stream, make=lambda _: (room, room.data_ptr())).run()
        if wait:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return [array.view(torch.uint8).clone() for array in arrays]


def check_chains(count: int, dtypes: list[str], seed: int, seconds: float, gpu: Gpu) -> Iterator[str]:
    """The failures of that many chains; prints the number."""
    draw, stream, until, done = random.Random(seed), torch.cuda.Stream(), time.monotonic() + seconds, 0
    while done < count and time.monotonic() < until:
        dtype = dtypes[done // CHAINS_OF_SHAPE % len(dtypes)]
        steps, elements = steps_of(draw, dtype, gpu)
        room = torch.empty(max(1, *(step.launch.workspace_bytes for step in steps)), device="cuda", dtype=torch.uint8)
        start = (torch.rand(elements, device="cuda") * 2 - 1).to(KINDS[dtype])
        arrays = [torch.empty_like(start) for _ in range(2)]
        for _ in range(CHAINS_OF_SHAPE):
            chain = [draw.choice(steps) for _ in range(LENGTH)]
            want = run_chain(chain, arrays, start, room, stream, wait=True)
            for _ in range(REPEATS):
                found = run_chain(chain, arrays, start, room, stream, wait=False)
                if any(not torch.equal(one, other) for one, other in zip(want, found, strict=True)):
                    yield "CHAIN " + "; ".join(step.name for step in chain)
                    break
            done += 1
    print(f"{done} chains of {LENGTH} launches, {REPEATS} times each", flush=True)


# Random problems


def product(draw: random.Random, dtype: str, gpu: Gpu) -> tuple[str, Callable[[], bool]] | None:
    """A random product by a random kernel, and whether its results are right."""
    (text,) = gpu_lab.drawn(dtype, 1, draw.randrange(2**31), MOST_RANDOM)
    problem = parse(text)
    assert isinstance(problem, Gemm)
    plans = kernels_of(problem, gpu)
    if not plans:
        return None
    plan = draw.choice(plans)

    def right() -> bool:
        operands = products.Operands(problem)
        return operands.right(bound(problem, plan, "nchw", operands.pointers).run)

    return f"{text} {plan.name}", right


def image(draw: random.Random, dtype: str) -> Conv:
    """A random convolution of images, or of volumes."""
    while True:
        one = msgspec.structs.replace(volumes.drawn(draw, volumes=draw.random() < 0.3), dtype=dtype)
        if one.flops < MOST_RANDOM:
            return one


def convolution(draw: random.Random, dtype: str, gpu: Gpu) -> tuple[str, Callable[[], bool]] | None:
    """A random convolution by a random kernel, and whether its results are right."""
    problem, layout = image(draw, dtype), draw.choice(LAYOUTS)
    plans = kernels_of(problem, gpu, layout)
    if not plans:
        return None
    plan = draw.choice(plans)

    def right() -> bool:
        x, filters = volumes.operands(problem)
        form = volumes.formats(layout, x.dim() - 2)
        x, filters = x.contiguous(memory_format=form), filters.contiguous(memory_format=form)
        y = torch.full_like(volumes.convolved(problem, x.float(), filters.float()), float("nan")).to(x.dtype).contiguous(memory_format=form)
        run = bound(problem, plan, layout, (x.data_ptr(), filters.data_ptr(), y.data_ptr()))
        torch.cuda.synchronize()
        run.run()
        torch.cuda.synchronize()
        return volumes.error_of(problem, x, filters, y) < volumes.BOUNDS[dtype]

    return f"{problem.text} {layout} {plan.name}", right


def check_random(count: int, dtypes: list[str], seed: int, seconds: float, gpu: Gpu) -> Iterator[str]:
    """The failures of that many problems; prints the number."""
    draw, until, done = random.Random(seed), time.monotonic() + seconds, 0
    while done < count and time.monotonic() < until:
        dtype = draw.choice(dtypes)
        made = (product if dtype not in volumes.TYPES or draw.random() < 0.5 else convolution)(draw, dtype, gpu)
        if made is None:
            continue
        done += 1
        name, right = made
        try:
            if not right():
                yield f"WRONG {name}"
        except ProblemError as reason:
            yield f"REFUSED {name}: {reason}"
    print(f"{done} random problems", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chains", type=int, default=2000)
    parser.add_argument("--random", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    options = parser.parse_args()
    gpu, dtypes, failures = host.gpu_here(), options.dtypes.split(","), 0
    for check, count in ((check_chains, options.chains), (check_random, options.random)):
        for failure in check(count, dtypes, options.seed, options.seconds, gpu):
            failures += 1
            print(failure, flush=True)
    print(f"{failures} failures", flush=True)
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
