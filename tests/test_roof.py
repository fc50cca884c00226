# SPDX-License-Identifier: Apache-2.0
"""No time is less than what the multiply-adds take."""

import msgspec
import pytest

from pysim import planner
from pysim.explain.roof import above, floor_seconds
from pysim.explain.text import explain
from pysim.machine.cpu import Machine
from pysim.machine.load import load_any, names

PROBLEMS = (
    "conv:mb32ic512ih28oc512kh3ph1",
    "conv:mb1ic48ih6oc128kh5ph2",
    "conv:mb8ic256ih14oc256kh1",
    "conv:g32mb4ic32ih28oc32kh3ph1",
    "gemm:2048x2048x2048",
    "gemm:300x200x100",
)


@pytest.mark.parametrize("machine", sorted(names()))
def test_no_plan_is_predicted_above_the_roof(machine: str) -> None:
    for text in PROBLEMS:
        for plan in planner.plans(text, machine, top=20):
            assert above(plan, plan.seconds, "predicted") == ""
            assert above(plan, 0.5 * floor_seconds(plan), "measured") or not floor_seconds(plan)


def test_a_number_that_a_machine_file_has_wrong_is_found_and_said() -> None:
    text, zen4 = "conv:mb1ic256ih28oc256kh3sh2ph1", load_any("zen4")
    assert isinstance(zen4, Machine)
    overlap = msgspec.structs.replace(zen4.core.overlap, value=3.0)  # of two terms the smaller is hidden three times
    wrong = msgspec.structs.replace(zen4, core=msgspec.structs.replace(zen4.core, overlap=overlap))
    plan = planner.plan(text, wrong)
    assert "at the peak that the machine file of zen4 gives" in above(plan, plan.seconds, "predicted")
    assert "at the peak that the machine" in explain(plan)
    assert "at the peak that the machine" not in explain(planner.plan(text, zen4))
