# SPDX-License-Identifier: Apache-2.0
"""No time is less than what the multiply-adds take, or the operands."""

import msgspec
import pytest
from limits import SHARE

from pysim import planner
from pysim.explain.roof import above, floor_of, read_bytes
from pysim.explain.text import explain
from pysim.machine.cpu import Machine
from pysim.machine.load import load_any, names
from pysim.record.plan import Layout
from pysim.record.state import STATES, State

PROBLEMS = (
    "conv:mb32ic512ih28oc512kh3ph1",
    "conv:mb1ic48ih6oc128kh5ph2",
    "conv:mb8ic256ih14oc256kh1",
    "conv:g32mb4ic32ih28oc32kh3ph1",
    "gemm:2048x2048x2048",
    "gemm:300x200x100",
    "gemm:1x4096x4096",
)


@pytest.mark.parametrize("state", ["hot", "cold"])
@pytest.mark.parametrize("machine", sorted(names()))
def test_no_plan_is_predicted_above_the_roof(machine: str, state: State) -> None:
    """Every problem on every machine, in one of both states; with PYSIM_LONG=1 in both."""
    for text in PROBLEMS if SHARE >= 1 else PROBLEMS[state == "cold" :: 2]:
        for plan in planner.plans(text, machine, top=20, state=state):
            assert above(plan, plan.seconds, "predicted") == ""
            assert above(plan, 0.5 * floor_of(plan).seconds, "measured") or not floor_of(plan).seconds


PADDED = (
    ("conv:g8mb1ic8ih2oc8kh5ph2", "nchw"),
    ("conv:g4mb1ic16ih2iw40oc16kh3ph1", "nchw"),
    ("conv:g16mb1ic16ih2oc16kh5ph2", "nchw16c"),
    ("conv:mb1ic32ih2oc32kh5ph2", "nchw16c"),
    ("conv:mb1ic2048ih1oc3200kh2kw3sh2ph2", "nchw16c"),
)


@pytest.mark.parametrize(("text", "layout"), PADDED)
def test_the_roof_counts_only_what_falls_inside_the_image(text: str, layout: Layout) -> None:
    machine = load_any("zen4")
    assert isinstance(machine, Machine)
    free = {name: msgspec.structs.replace(getattr(machine.core, name), value=0.0) for name in ("call_cycles", "store_run_cycles")}
    unit = machine.unit_of("avx512")
    slow = msgspec.structs.replace(unit, fma_per_cycle=msgspec.structs.replace(unit.fma_per_cycle, value=0.01))
    for units in ((slow,), machine.core.units):
        core = msgspec.structs.replace(machine.core, units=units, **free)
        for state in STATES:
            plan = planner.plan(text, msgspec.structs.replace(machine, core=core), layout=layout, state=state)
            assert above(plan, plan.seconds, "predicted") == ""


def test_half_vectors_have_the_peak_of_the_unit_that_they_run_on() -> None:
    """A Zen 4 has two multiply-adds of 32 bytes a cycle, one of 64."""
    plans = planner.plans("conv:g72ic72ih72oc72kh3ph1", "zen4", top=40, algorithm="depthwise")
    rows = [floor_of(plan).seconds for plan in plans if plan.kernel in ("f32_rows_64x1__avx512", "f32_rows_128x1__avx512")]
    assert len(rows) == 2 and rows[0] == pytest.approx(rows[1])


@pytest.mark.parametrize("text", ["conv:g8mb1ic8ih56oc8kh3ph1", "conv:g8mb1ic8ih56oc8kh3sh2ph1:f64"])
def test_depthwise_loops_of_plain_c_take_what_their_multiply_adds_take(text: str) -> None:
    machine = load_any("zen4")
    assert isinstance(machine, Machine)
    unit = machine.unit_of("portable")
    slow = msgspec.structs.replace(unit, fma_per_cycle=msgspec.structs.replace(unit.fma_per_cycle, value=0.1))
    machine = msgspec.structs.replace(machine, core=msgspec.structs.replace(machine.core, units=(slow,)))
    plan = planner.plan(text, machine, algorithm="depthwise")
    assert above(plan, plan.seconds, "predicted") == ""


def test_a_number_that_a_machine_file_has_wrong_is_found_and_said() -> None:
    text, zen4 = "conv:mb1ic256ih28oc256kh3sh2ph1", load_any("zen4")
    assert isinstance(zen4, Machine)
    overlap = msgspec.structs.replace(zen4.core.overlap, value=3.0)  # of two terms the smaller is hidden three times
    wrong = msgspec.structs.replace(zen4, core=msgspec.structs.replace(zen4.core, overlap=overlap))
    plan = planner.plan(text, wrong)
    assert "at the peak that the machine file of zen4 gives" in above(plan, plan.seconds, "predicted")
    assert "at the peak that the machine" in explain(plan)
    assert "at the peak that the machine" not in explain(planner.plan(text, zen4))


def test_operands_that_no_cache_holds_take_what_memory_gives() -> None:
    zen4 = load_any("zen4")
    assert isinstance(zen4, Machine)
    rate, caches = zen4.memory.read_bytes_per_cycle.value * zen4.clock_hz, sum(level.size_bytes for level in zen4.levels)
    for state, held in (("cold", 0), ("hot", caches)):
        plan = planner.plan("gemm:1x4096x4096", zen4, state=state)
        assert read_bytes(plan.workload) == 4 * (4096 + 4096 * 4096)
        assert floor_of(plan).seconds == pytest.approx((read_bytes(plan.workload) - held) / rate)
        assert "from memory" in above(plan, 0.9 * floor_of(plan).seconds, "measured") and f"caches {state}" in above(plan, 1e-9, "measured")
    small = planner.plan("gemm:1x64x64", zen4, state="hot")
    assert "multiply-adds" in floor_of(small).what and "from memory" in floor_of(msgspec.structs.replace(small, state="cold")).what


def test_an_overlap_of_a_machine_file_that_hides_the_bytes_is_found() -> None:
    zen4 = load_any("zen4")
    assert isinstance(zen4, Machine)
    overlap = msgspec.structs.replace(zen4.core.overlap, value=1.5)
    wrong = msgspec.structs.replace(zen4, core=msgspec.structs.replace(zen4.core, overlap=overlap))
    plan = planner.plan("gemm:4x100000x64", wrong, state="cold")
    assert "from memory" in above(plan, plan.seconds, "predicted")
    right = planner.plan("gemm:4x100000x64", zen4, state="cold")
    assert above(right, right.seconds, "predicted") == ""
