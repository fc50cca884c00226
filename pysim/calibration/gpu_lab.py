# SPDX-License-Identifier: Apache-2.0
"""Random products on a GPU, each with the best plans of several kernels: checked, then timed interleaved with the device kept busy.

Sizes are log-uniform. Every second problem has multiples of eight, since rows of whole vectors use other code paths. All layouts occur.

Worked number: 1,000 x 1,000 x 1,000 in FP32 is 1e9 multiply-adds: 31 us on an H200, some ms for the reference.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from pysim import planner
from pysim.cachemodel.gpu.columns import Table
from pysim.calibration.gpu_fit import Case
from pysim.comparison.bench import bench_of, release
from pysim.comparison.peer_timings import checked
from pysim.errors import NativeError, OperandError, PlanError
from pysim.machine.gpu import Gpu
from pysim.measure.clock import Call, interleave
from pysim.problem.gemm import Gemm
from pysim.record.plan import Plan
from pysim.record.schedule import DECOMPOSITIONS, GpuSchedule
from pysim.registry.cuda import gemm_kernel

DTYPES = ("f32", "tf32x3", "tf32", "f16", "bf16", "s8", "f8", "f64")
MIN_SIZE, MAX_SIZES = 32, (8192, 8192, 16384)
SAMPLES, SECONDS, BUDGET = 12, 0.003, 1.0  # of a product: samples of each plan, least and most seconds


def drawn(dtype: str, count: int, seed: int, most: float) -> list[str]:
    """Random products of a type, of up to `most` multiply-adds."""
    draw, found = np.random.default_rng([seed, DTYPES.index(dtype)]), list[str]()
    while len(found) < count:
        m, n, k = np.exp(draw.uniform(np.log(MIN_SIZE), np.log(MAX_SIZES))).astype(int)
        if len(found) % 2:
            m, n, k = (-(-size // 8) * 8 for size in (m, n, k))
        if m * n * k <= most:
            found.append(f"gemm:{m}x{n}x{k}:{draw.choice(['nn', 'nt', 'tn', 'tt'])}:{dtype}")
    return found


def best_of_kernels(text: str, on: Gpu | str, top: int, accuracy: Any = "standard") -> list[Plan]:
    """The best plan of each of the `top` best kernels."""
    found: dict[str, Plan] = {}
    for plan in planner.plans(text, on, top=10_000, accuracy=accuracy):
        found.setdefault(plan.kernel, plan)
    return [*found.values()][:top]


class DeviceLab:
    """The GPU at hand."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def dtypes(self) -> tuple[str, ...]:
        """The types that the machine has kernels for."""
        return tuple(dtype for dtype in DTYPES if self._plans(f"gemm:64x64x64:{dtype}", 1))

    def _plans(self, text: str, top: int) -> list[Plan]:
        try:  # "standard" may compute f32 as tf32x3, a type of its own here
            return best_of_kernels(text, self._gpu, top, "ieee" if text.endswith(":f32") else "standard")
        except PlanError:
            return []

    def measure(self, text: str, top: int) -> Case | None:
        """Times a product with the best plans of `top` kernels after checking them; None where fewer than two run."""
        plans = [plan for plan in self._plans(text, top) if isinstance(plan.schedule, GpuSchedule)]
        if len(plans) < 2:
            return None
        try:
            return self._timed(plans)
        finally:
            release()

    def _timed(self, plans: Sequence[Plan]) -> Case | None:
        bench, calls = bench_of(plans[0], self._gpu, 1, 0), dict[str, Call]()
        for plan in plans:
            with suppress(NativeError, OperandError, MemoryError):  # a plan that cannot run here is skipped
                verdict, ready = checked(bench, partial(bench.make, plan))
                if verdict.passed:
                    calls[plan.name] = ready.call
        if len(calls) < 2:
            return None
        timed = interleave(calls, bench.clock(), min_samples=SAMPLES, min_seconds=SECONDS, budget_seconds=BUDGET, warmup_seconds=0.001)
        return case_of([(plan, timed.samples[plan.name]) for plan in plans if plan.name in timed.samples])


def case_of(measured: Sequence[tuple[Plan, Any]]) -> Case | None:
    """Plans of one product with their samples as input of a fit; None where fewer than two were measured."""
    if len(measured) < 2:
        return None
    names = list(dict.fromkeys(plan.kernel for plan, _ in measured))
    kernels = tuple(row for name in names if (row := gemm_kernel(name)))
    problem = measured[0][0].workload
    assert isinstance(problem, Gemm) and len(kernels) == len(names)
    launches = []
    for plan, _ in measured:
        s = plan.schedule
        assert isinstance(s, GpuSchedule)
        launches.append((names.index(plan.kernel), DECOMPOSITIONS.index(s.decomposition), s.splits, int(s.along_n), s.group))
    seconds = np.array([float(np.median(samples)) for _, samples in measured])
    return Case(problem, kernels, Table(*np.array(launches).T), seconds, np.array([len(samples) for _, samples in measured]))


def problems(dtypes: Sequence[str], seed: int, most: float, count: int) -> Iterator[str]:
    """Random products, types in rotation."""
    for turn in zip(*(drawn(dtype, count, seed, most) for dtype in dtypes), strict=True):
        yield from turn
