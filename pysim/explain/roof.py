# SPDX-License-Identifier: Apache-2.0
"""Lower bounds on a plan's time: its multiply-adds at the peak of their unit, its operands at the bandwidth of memory.

    floor = max(FLOPs of the definition / peak, bytes / bandwidth)

peak        of all threads, for the algorithm's actual multiply-adds (`Description.peak_flops`)
bytes       of both operands; each element that a window reads counts once. Cold caches: all bytes; hot caches: bytes beyond the capacity
            of all caches together
bandwidth   of reading memory: a GPU's, or one CPU core's times the threads, at most the file's total

A time below it means that a number of the machine file, or a clock, is wrong. Worked numbers: conv:mb1ic64ih56oc64kh3ph1, 231 MFLOP, by
F(4x4) with a quarter of the multiply-adds, on a unit of 117 GFLOP/s: 231 / (4 x 117) = 0.49 ms. gemm:1x4096x4096 reads 67.1 MB, cold 2.1 ms
at 31.8 GB/s; caches of 33 MiB may hold 34.6 MB of them, so hot 1.0 ms.
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

ROUNDING = 1.02  # accuracy of a measured clock


class Floor(NamedTuple):
    """The least seconds of a plan, and the resource that sets them."""

    seconds: float
    what: str


def floor_of(plan: Plan) -> Floor:
    """The lower bound from multiply-adds and operands; 0 seconds if neither is known."""
    peak = plan.threads * algorithm_named(plan.algorithm, plan.workload, plan.on).describe(plan).peak_flops
    multiplying = Floor(plan.workload.flops / peak if peak else 0.0, "its multiply-adds take {} at the peak")
    size = max(0, read_bytes(plan.workload) - (_held_bytes(plan) if plan.state != "cold" else 0))
    moving = Floor(size / _bandwidth(plan), f"reading {bytes_text(size)} from memory takes {{}} at the bandwidth")
    return max(multiplying, moving)


def read_bytes(w: Workload) -> int:
    """Bytes of the elements of both operands that contribute to a result."""
    if isinstance(w, Gemm):
        return SIZES[w.dtype] * (w.m * w.k + w.k * w.n)
    high, wide = min(w.height, w.out_h * w.kernel_h), min(w.width, w.out_w * w.kernel_w)
    met = max(0, high - w.pad_top - w.pad_bottom) * max(0, wide - w.pad_left - w.pad_right)  # without padding
    if w.is_volume:
        met *= max(0, min(w.depth, w.out_d * w.kernel_d) - w.pad_front - w.pad_back)
    rows, columns = live_taps(w)
    taps = ceil_div(rows, w.out_rows) * ceil_div(columns, w.out_w)  # at most those inside the image
    return SIZES[w.dtype] * (w.batch * w.channels * met + w.filters * (w.channels // w.groups) * taps)


def _held_bytes(plan: Plan) -> int:
    """Bytes of all caches together, private ones once per thread."""
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
    """Why a time of the plan, "predicted" or "measured", is impossible (below the floor); empty if it is not."""
    if not seconds or seconds * ROUNDING >= (least := floor_of(plan)).seconds:
        return ""
    return (
        f"{plan.problem} by {plan.kernel} is {what} in {seconds_text(seconds)}, caches {plan.state}, and "
        f"{least.what.format(seconds_text(least.seconds))} that the machine file of {plan.machine} gives: a rate or the clock in it is "
        f"wrong, or the clock was"
    )
