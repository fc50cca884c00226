# SPDX-License-Identifier: Apache-2.0
"""Times below which no plan can be: what its multiply-adds take at the peak of the unit that makes them.

    floor = FLOPs of the definition / peak        peak counts what the algorithm really multiplies (`Description.peak_flops`)

A time below it means that a number of the machine file, or a clock, is wrong. Worked number: conv:mb1ic64ih56oc64kh3ph1, 231 MFLOP by
F(4x4), a quarter of the multiply-adds, on a unit of 117 GFLOP/s: 231 / (4 x 117) = 0.49 ms.
"""

from pysim.algorithms import algorithm_named
from pysim.record.description import seconds_text
from pysim.record.plan import Plan

ROUNDING = 1.02  # a measured clock is that good


def floor_seconds(plan: Plan) -> float:
    """The least that the plan's multiply-adds can take; 0 where the peak is not known."""
    peak = algorithm_named(plan.algorithm, plan.workload, plan.on).describe(plan).peak_flops
    return plan.workload.flops / peak if peak else 0.0


def above(plan: Plan, seconds: float | None, what: str) -> str:
    """What is wrong with a time of the plan that is above the roof, "predicted" or "measured"; empty where nothing is."""
    if not seconds or seconds * ROUNDING >= (least := floor_seconds(plan)):
        return ""
    return (
        f"{plan.problem} by {plan.kernel} is {what} in {seconds_text(seconds)}, and its multiply-adds take {seconds_text(least)} "
        f"at the peak that the machine file of {plan.machine} gives: a rate or the clock in it is wrong, or the clock was"
    )
