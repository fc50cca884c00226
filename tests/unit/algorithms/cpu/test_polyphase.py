# SPDX-License-Identifier: Apache-2.0
"""Convolutions over rows that are parted by phases: right beside sums in float64, planned by cost, the same bits for any number of threads.
Every row against guard pages: native/test/check_conv.c."""

import msgspec
import pytest
from own_rows import (
    assert_padding_alone_hides_an_infinite_weight,
    assert_rows_are_apart,
    assert_threads_change_no_bit,
    assert_within_the_bound_of_a_sum,
    convolution,
)

from pysim import planner
from pysim.algorithms.cpu import polyphase
from pysim.algorithms.cpu.polyphase import tiles_of
from pysim.calibration import host
from pysim.errors import PlanError
from pysim.machine.cpu import Machine
from pysim.machine.load import load_any
from pysim.problem.conv import Conv
from pysim.problem.text import parse
from pysim.record.plan import Plan
from pysim.record.schedule import Schedule
from pysim.registry.cpu import phases_kernels
from pysim.runtime import cpu as runtime

PROBLEMS = (
    "conv:ic3ih40iw51oc20kh7sh2ph3",
    "conv:mb2ic3ih29oc9kh3sh2ph1",
    "conv:ic4ih33oc8kh3ph1",
    "conv:ic1ih28oc5kh5",
    "conv:ic3ih51oc12kh11sh4ph2",
    "conv:ic3ih32oc7kh4sh4",
    "conv:ic2ih21iw70oc6kh3kw5sh3sw1ph0pw2",
    "conv:ic3ih30oc10kh3sh2ph4dh3",
    "conv:ic5ih17oc11kh1sh2",
    "conv:mb2g2ic6ih19oc10kh5sh3ph2",
    "conv:ic2ih9iw9oc4kh3sh5ph2",
)


def plans_of(problem: Conv) -> list[Plan]:
    """A plan of each kernel that can run it here, in blocks of one, of a few and of all rows."""
    found = planner.plans(problem, host.machine("host"), top=20, algorithm=polyphase.NAME)
    kernels = {plan.kernel: plan for plan in found if plan.kernel in runtime.available_kernels()}
    sizes = sorted({1, min(3, problem.out_h), problem.out_h})
    return [in_blocks(plan, rows) for plan in kernels.values() for rows in sizes]


def in_blocks(plan: Plan, rows: int) -> Plan:
    assert isinstance(plan.schedule, Schedule)
    return msgspec.structs.replace(plan, schedule=msgspec.structs.replace(plan.schedule, k2=rows))


@pytest.mark.parametrize("text", PROBLEMS)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_every_kernel_is_within_the_bound_of_a_sum(text: str, dtype: str) -> None:
    problem = convolution(f"{text}:{dtype}")
    found = plans_of(problem)
    assert {row.name for row in phases_kernels() if (row.target, row.dtype) == ("portable", dtype)} <= {plan.kernel for plan in found}
    assert_within_the_bound_of_a_sum(problem, found)


@pytest.mark.parametrize("text", ["conv:ic3ih40oc20kh7sh2ph3", "conv:mb3ic3ih17oc8kh3sh2ph1"])
def test_threads_change_no_bit(text: str) -> None:
    problem = convolution(text)
    assert_threads_change_no_bit(problem, plans_of(problem))


def test_padding_hides_an_infinite_weight_and_nothing_else_does() -> None:
    problem = convolution("conv:mb2ic3ih9oc20kh3ph1")
    assert_padding_alone_hides_an_infinite_weight(problem, plans_of(problem))


def test_first_layers_of_networks_are_planned_by_cost_on_every_cpu_with_vectors() -> None:
    for machine in ("zen4", "zen5", "sapphire-rapids", "xeon-4208"):
        for text in ("conv:ic3ih224oc32kh3sh2ph1", "conv:ic3ih224oc64kh3ph1"):
            plan = planner.plan(text, machine)
            assert plan.algorithm == polyphase.NAME
            assert "sconv" in {*(one.algorithm for one in plan.considered), *(one.what for one in plan.rejected if one.code == "slower")}
            assert sum(plan.cost.counted.values()) == pytest.approx(plan.cost.cycles)


def test_small_blocks_of_rows_copy_their_halos_again() -> None:
    plan = planner.plan("conv:ic3ih224oc64kh7sh2ph3", "zen4", algorithm="polyphase")
    one, many = (planner.plan("conv:ic3ih224oc64kh7sh2ph3", "zen4", name=in_blocks(plan, rows).name).cost for rows in (1, 16))
    assert one.terms["pack"] > 2.5 * many.terms["pack"]
    assert one.terms["kernel"] == many.terms["kernel"]


def test_calls_that_pack_one_row_make_its_masks_for_it_alone() -> None:
    """On a Zen 3 one row a block takes 2.1 times as long as 14, which copy twice as many rows."""
    plan = planner.plan("conv:ic32ih112oc48kh1sh2", "zen3", algorithm="polyphase")
    one, many = (planner.plan("conv:ic32ih112oc48kh1sh2", "zen3", name=in_blocks(plan, rows).name).cost for rows in (1, 14))
    assert one.cycles > 1.8 * many.cycles


def test_blocks_of_rows_that_leave_rows_between_have_one() -> None:
    """Larger blocks would copy the rows that no tap reads."""
    for text, sizes in (("conv:ic8ih64iw300oc16kh5kw1sh8sw1", {1}), ("conv:ic8ih64iw300oc16kh5kw1sh4sw1", {1, 2, 4, 8, 15})):
        plans = planner.plans(text, "zen4", top=1000, algorithm=polyphase.NAME)
        assert {plan.schedule.k2 for plan in plans if isinstance(plan.schedule, Schedule)} == sizes


def test_results_in_whole_rows_take_the_rate_of_writing_alone() -> None:
    """25 MB of results, on a Zen 4: sconv took 1.85 times as long, and was planned while written lines were thought to come in first."""
    machine = load_any("zen4")
    assert isinstance(machine, Machine)
    plan = planner.plan("conv:mb2ic8ih80oc480kh1", machine)
    assert plan.algorithm == polyphase.NAME
    assert plan.cost.terms["memory"] == pytest.approx(2 * 480 * 80 * 80 * 4 / machine.memory.write_bytes_per_cycle.value, rel=0.05)


def test_vectors_of_a_row_are_divided_evenly_among_tiles() -> None:
    assert [tiles_of(vectors, 3) for vectors in (1, 3, 4, 7)] == [((0, 2), (1, 1)), ((0, 4), (1, 3)), ((0, 3), (2, 2)), ((1, 3), (2, 2))]


@pytest.mark.parametrize("text", PROBLEMS)
def test_workspace_and_prepared_bytes_are_what_the_library_asks_for(text: str) -> None:
    problem = parse(text)
    assert isinstance(problem, Conv)
    ffi, lib = runtime.library()
    nbytes = ffi.new("int64_t *")
    for plan in plans_of(problem):
        structs = runtime.problem_struct(problem), runtime.schedule_struct(plan.schedule, problem)
        runtime.check(lib.pysim_workspace_bytes(*structs, 1, nbytes))
        assert nbytes[0] == polyphase.workspace_bytes(problem, plan.schedule, "nchw"), plan.name
        runtime.check(lib.pysim_prepared_bytes(*structs, nbytes))
        assert nbytes[0] == polyphase.prepare(problem, plan.schedule, "nchw").size_bytes, plan.name


def test_what_it_does_not_compute_is_refused_with_a_reason() -> None:
    for text, why in (("conv:ic64ih8oc64kh3ph1", "shape"), ("conv:ic4ih8oc4kh3ph1:s8", "type")):
        assert {one.what: one.code for one in planner.plan(text, "zen4").rejected}["polyphase"] == why
    name = planner.plan("conv:ic3ih32oc8kh3ph1", "zen4", algorithm="polyphase").name
    assert planner.plan("conv:ic3ih32oc8kh3ph1", "zen4", name=name).name == name
    with pytest.raises(PlanError, match=r"the nearest is polyphase,.*k2=32"):
        planner.plan("conv:ic3ih32oc8kh3ph1", "zen4", name=name.replace("k3=1", "k3=2"))


def test_the_nest_refuses_a_row_that_is_not_its_own_and_polyphase_one_of_the_nest() -> None:
    assert_rows_are_apart("conv:ic4ih8oc4kh3ph1", "polyphase")
