# SPDX-License-Identifier: Apache-2.0
"""Depthwise convolutions and those of groups of few channels on a CPU: right beside sums in float64, planned by cost, the same bits for any
number of threads. Every row against guard pages: native/test/check_conv.c."""

from typing import cast

import numpy as np
import pytest
from own_rows import (
    UNIT,
    assert_padding_alone_hides_an_infinite_weight,
    assert_rows_are_apart,
    assert_threads_change_no_bit,
    assert_within_the_bound_of_a_sum,
    convolution,
    exact,
    operands,
)

from pysim import planner
from pysim.algorithms.cpu import depthwise
from pysim.calibration import host
from pysim.check.bounds import gamma
from pysim.errors import PlanError
from pysim.machine.load import load_any
from pysim.problem.conv import Conv
from pysim.problem.text import parse
from pysim.record.plan import Layout, Plan
from pysim.record.schedule import Schedule
from pysim.registry.cpu import direct_kernels
from pysim.runtime import cpu as runtime
from pysim.runtime import cpu_launch

PROBLEMS = (
    "conv:g32ic32ih30iw41oc32kh3ph1",
    "conv:g20ic20ih14oc20kh3sh2ph1",
    "conv:mb2g90ic90ih7oc90kh3ph1",
    "conv:g45ic90ih5iw11oc135kh3ph1",
    "conv:g17ic17ih7oc17kh5ph2",
    "conv:g18ic18ih15oc18kh5sh2ph2",
    "conv:g3ic3ih23oc3kh7ph3",
    "conv:g9ic9ih33oc9kh7sh2ph3",
    "conv:g6ic6ih20oc6kh3ph4dh3",
    "conv:g4ic4ih11iw9oc4kh4kw2sh3sw1ph1pw0",
    "conv:g5ic5ih16oc20kh3ph1",
    "conv:g4ic16ih12oc24kh3sh2ph1",
    "conv:mb2g2ic6ih19oc10kh5sh2ph2",
    "conv:mb3g2ic32ih9oc10kh1",
    "conv:g6ic6id5ih19iw13oc6kd3kh3kw3pd1ph1pw1",
    "conv:mb2g3ic12id6ih12iw17oc9kd2kh3kw3sd2sh2sw2pd1ph1pw1dd1dh0dw0",
    "conv:g7ic7id2ih9iw9oc7kd5kh5kw5pd4ph2pw2",
    "conv:g2ic4id4ih6iw21oc6kd3kh1kw7sd1sh3sw3pd2ph0pw3",
)


def plans_of(problem: Conv) -> list[Plan]:
    """A plan of each kernel that can run it here."""
    found = planner.plans(problem, host.machine("host"), top=20, algorithm=depthwise.NAME)
    return [plan for plan in found if plan.kernel in runtime.available_kernels()]


@pytest.mark.parametrize("text", PROBLEMS)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_every_kernel_is_within_the_bound_of_a_sum(text: str, dtype: str) -> None:
    problem = convolution(f"{text}:{dtype}")
    assert_within_the_bound_of_a_sum(problem, plans_of(problem))


@pytest.mark.parametrize(
    "text",
    ["conv:g3ic3ih40oc3kh5ph2", "conv:g40ic40ih7oc40kh3ph1", "conv:g4ic16ih20oc16kh3ph1", "conv:g2ic2id9ih7iw7oc2kd3kh3kw3pd1ph1pw1"],
)
def test_threads_change_no_bit(text: str) -> None:
    problem = convolution(text)
    assert_threads_change_no_bit(problem, plans_of(problem))


def test_padding_hides_an_infinite_weight_and_nothing_else_does() -> None:
    problem = convolution("conv:g20ic20ih9oc20kh3ph1")
    assert_padding_alone_hides_an_infinite_weight(problem, plans_of(problem))


@pytest.mark.parametrize("text", ["conv:g32mb2ic32ih9iw15oc32kh3ph1", "conv:g16ic16ih12oc16kh5sh2ph2", "conv:g16ic16ih5oc16kh7ph3"])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_every_kernel_of_blocks_is_within_the_bound_of_a_sum(text: str, dtype: str) -> None:
    problem = convolution(f"{text}:{dtype}")
    x, f, bias = operands(problem)
    f[3, 0, 0, 0] = np.inf if problem.kernel_h == 3 else f[3, 0, 0, 0]  # which padding hides
    with np.errstate(invalid="ignore"):
        right = exact(problem, x, f) + bias[:, None, None].astype(np.float64)
        bound = exact(problem, np.abs(x), np.abs(f)) + np.abs(bias[:, None, None])
    kernels = [row for row in direct_kernels() if row.form == "blocks" and row.dtype == dtype and row.name in runtime.available_kernels()]
    assert kernels
    for row in kernels:
        c = row.lane_filters
        layout = cast("Layout", f"nchw{c}c")
        schedule = Schedule(row.name, "input_stationary", "none", row.windows, row.filters, 1, 1, 1, "depthwise")
        launch = cpu_launch.Prepared(problem, f, schedule, bias, layout=layout)
        assert launch.workspace_bytes == depthwise.workspace_bytes(problem, schedule, layout)
        y = launch(image := np.ascontiguousarray(x.reshape(x.shape[0], -1, c, *x.shape[2:]).transpose(0, 1, 3, 4, 2)))
        for threads in (2, 5):
            divided = cpu_launch.Prepared(problem, f, schedule, bias, layout=layout, threads=threads)
            assert np.array_equal(divided(image), y, equal_nan=True), (row.name, threads)
        planes = y.transpose(0, 1, 4, 2, 3).reshape(right.shape)
        finite = np.isfinite(bound)
        assert (np.abs(planes[finite] - right[finite]) <= gamma(f[0].size + 2, UNIT[dtype]) * bound[finite]).all(), row.name
        assert finite.all() or (np.isfinite(planes[:, 3, 0]).all() and not np.isfinite(planes[:, 3, 1:, 1:]).all()), row.name


def test_blocks_are_planned_for_whole_blocks_of_groups_of_one_channel() -> None:
    plan = planner.plan("conv:g96ic96ih14oc96kh3ph1", "zen5", layout="nchw16c")
    assert (plan.algorithm, "_blocks_" in plan.kernel) == (depthwise.NAME, True)
    cases: tuple[tuple[str, Layout, str], ...] = (
        ("conv:g24ic24ih14oc24kh3ph1", "nchw16c", "24 groups are not a multiple of 16, the block of nchw16c"),
        ("conv:g16ic16ih14oc32kh3ph1", "nchw16c", "in channel blocks it takes only groups of one channel and one filter"),
        ("conv:g16ic16ih14oc16kh3ph1", "nchw-nchw16c", "both in NCHW or both in channel blocks, not NCHW-NCHW16C"),
    )
    for text, layout, why in cases:
        with pytest.raises(PlanError, match=why):
            planner.plan(text, "zen5", layout=layout, algorithm=depthwise.NAME)


def test_depthwise_layers_are_planned_by_cost_on_every_cpu_with_vectors() -> None:
    for machine in ("zen4", "sapphire-rapids", "xeon-4208"):
        plan = planner.plan("conv:g144ic144ih56oc144kh3ph1", machine)
        assert plan.algorithm == depthwise.NAME
        assert "sconv" in {*(one.algorithm for one in plan.considered), *(one.what for one in plan.rejected if one.code == "slower")}
        assert sum(plan.cost.counted.values()) == pytest.approx(plan.cost.cycles)


def test_short_rows_are_taken_by_half_vectors_or_lanes_of_groups_and_long_ones_by_whole_vectors() -> None:
    found = [
        planner.plan(f"conv:{text}", "zen4", algorithm=depthwise.NAME).kernel
        for text in ("g960ic960ih7oc960kh3ph1", "g768ic768ih7oc768kh7ph3", "g32ic32ih112oc32kh3ph1")
    ]
    assert found == ["f32_rows_64x1__avx512", "f32_planes_8x16__avx512", "f32_rows_128x1__avx512"]


@pytest.mark.parametrize("text", PROBLEMS)
def test_workspace_is_what_the_library_asks_for(text: str) -> None:
    problem = parse(text)
    ffi, lib = runtime.library()
    size = ffi.new("int64_t *")
    for plan in plans_of(problem):
        runtime.check(lib.pysim_workspace_bytes(runtime.problem_struct(problem), runtime.schedule_struct(plan.schedule, problem), 1, size))
        assert size[0] == plan.workspace_bytes, plan.kernel


def test_what_it_does_not_compute_is_refused_with_a_reason() -> None:
    for text, why in (
        ("conv:g2ic128ih8oc128kh3ph1", "shape"),
        ("conv:ic4ih8oc4kh3ph1", "shape"),
        ("conv:g4ic4ih8oc4kh3ph1:bf16", "type"),
    ):
        assert {one.what: one.code for one in planner.plan(text, "zen4").rejected}["depthwise"] == why
    name = planner.plan("conv:g32ic32ih8oc32kh3ph1", "zen4", algorithm="depthwise").name
    assert planner.plan("conv:g32ic32ih8oc32kh3ph1", "zen4", name=name).name == name
    with pytest.raises(PlanError, match="the nearest is depthwise"):
        planner.plan("conv:g32ic32ih8oc32kh3ph1", "zen4", name=name.replace("k2=1", "k2=2"))


def test_the_nest_refuses_a_row_that_is_not_its_own_and_depthwise_one_of_the_nest() -> None:
    assert_rows_are_apart("conv:g4ic4ih8oc4kh3ph1", "depthwise")


def test_rows_of_the_registry_are_named_once() -> None:
    names = [row.name for row in direct_kernels()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("problem", "microseconds"),
    [("ih14oc32kh3ph1", 24), ("ih28oc32kh3ph1", 56), ("ih112oc32kh3ph1", 602), ("ih56oc32kh3sh2ph1", 80), ("ih56oc32kh7ph3", 665)],
)
def test_plain_c_takes_as_long_as_it_was_measured_to_take(problem: str, microseconds: float) -> None:
    """Its loops load and store sums for each tap: predicted 3 to 7 times too fast by the rate of products alone (Zen 5)."""
    plan = planner.plan(f"conv:g32ic32{problem}", load_any("zen5"), micro_kernel="f32_rows_64x1__portable")
    assert 0.7 < plan.cost.seconds * 1e6 / microseconds < 1.5
