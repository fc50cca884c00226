# SPDX-License-Identifier: Apache-2.0
"""Times below which no plan can be: its multiply-adds at the peak of the unit that makes them, its operands at the bandwidth of memory.

    floor = max(FLOPs of the definition / peak, bytes / bandwidth)

peak        of all threads; it counts what the algorithm really multiplies (`Description.peak_flops`)
bytes       of both operands, each element that a window meets read once. Caches cold: all of them; hot: those that no cache holds, were
            each byte kept in one alone
bandwidth   of reading memory: a GPU's; a CPU's as one core has it, of several threads the total where the file has one

A time below it means that a number of the machine file, or a clock, is wrong. Worked numbers: conv:mb1ic64ih56oc64kh3ph1, 231 MFLOP by
F(4x4), a quarter of the multiply-adds, on a unit of 117 GFLOP/s: 231 / (4 x 117) = 0.49 ms. gemm:1x4096x4096 reads 67.1 MB, cold at 31.8
GB/s in 2.1 ms; of them caches of 33 MiB may hold 34.6 MB, so hot 1.0 ms.
"""

from typing import NamedTuple

from pysim.algorithms import algorithm_named
from pysim.cachemodel.cpu.nest import ceil_div, live_taps
from pysim.machine.gpu import Gpu
from pysim.problem.dtypes import SIZES
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload
from pysim.record.description import bytes_text, seconds_text
from pysim.record.plan import Plan

ROUNDING = 1.02  # a measured clock is that good


class Floor(NamedTuple):
    """The least seconds of a plan, and what takes them."""

    seconds: float
    what: str


def floor_of(plan: Plan) -> Floor:
    """The least that multiply-adds and operands can take; 0 seconds where neither is known."""
    peak = plan.threads * algorithm_named(plan.algorithm, plan.workload, plan.on).describe(plan).peak_flops
    multiplying = Floor(plan.workload.flops / peak if peak else 0.0, "its multiply-adds take {} at the peak")
    size = max(0, read_bytes(plan.workload) - (_held_bytes(plan) if plan.state != "cold" else 0))
    moving = Floor(size / _bandwidth(plan), f"reading {bytes_text(size)} from memory takes {{}} at the bandwidth")
    return max(multiplying, moving)


def floor_seconds(plan: Plan) -> float:
    return floor_of(plan).seconds


def read_bytes(w: Workload) -> int:
    """Bytes of the elements of both operands that any result needs."""
    if isinstance(w, Gemm):
        return SIZES[w.dtype] * (w.m * w.k + w.k * w.n)
    high, wide = min(w.height, w.out_h * w.kernel_h), min(w.width, w.out_w * w.kernel_w)
    met = max(0, high - w.pad_top - w.pad_bottom) * max(0, wide - w.pad_left - w.pad_right)  # less what may lie in padding
    rows, columns = live_taps(w)
    taps = ceil_div(rows, w.out_h) * ceil_div(columns, w.out_w)  # that meet the image, or fewer
    return SIZES[w.dtype] * (w.batch * w.channels * met + w.filters * (w.channels // w.groups) * taps)


def _held_bytes(plan: Plan) -> int:
    """What all caches hold together, private ones once for each thread."""
    on = plan.on
    if isinstance(on, Gpu):
        return on.l2_bytes.value
    return sum(level.size_bytes * (1 if level.shared else plan.threads) for level in on.levels)


def _bandwidth(plan: Plan) -> float:
    on = plan.on
    if isinstance(on, Gpu):
        return on.memory_bytes_per_second.value
    one, total = on.memory.read_bytes_per_cycle.value, on.memory.total_read_bytes_per_cycle
    return on.clock_hz * (min(one * plan.threads, total.value) if total else one * plan.threads)


def above(plan: Plan, seconds: float | None, what: str) -> str:
    """What is wrong with a time of the plan that is above the roof, "predicted" or "measured"; empty where nothing is."""
    if not seconds or seconds * ROUNDING >= (least := floor_of(plan)).seconds:
        return ""
    return (
        f"{plan.problem} by {plan.kernel} is {what} in {seconds_text(seconds)}, caches {plan.state}, and "
        f"{least.what.format(seconds_text(least.seconds))} that the machine file of {plan.machine} gives: a rate or the clock in it is "
        f"wrong, or the clock was"
    )
