# SPDX-License-Identifier: Apache-2.0
"""im2col on the CPU: its results are the reference's, its sizes the library's, its costs add up, and it is chosen where it costs less."""

import re
from typing import Any

import msgspec
import numpy as np
import pytest
from native_library import native, reference_conv
from problems import conv

import pysim
from pysim import planner
from pysim.algorithms import algorithm_named
from pysim.algorithms.cpu import im2col
from pysim.cachemodel.cpu.incore import stride_cycles
from pysim.calibration import host
from pysim.errors import PlanError
from pysim.machine.cpu import Machine
from pysim.machine.load import load
from pysim.problem.conv import Conv
from pysim.problem.text import parse
from pysim.record.cost import Cost
from pysim.record.schedule import Schedule
from pysim.runtime import cpu as runtime
from pysim.runtime import cpu_launch

pytestmark = native

ZEN4 = load("zen4")
SHAPES = [
    "conv:ic3ih9oc5kh3ph1",
    "conv:mb2ic4ih11iw7oc6kh3kw5ph1pw2",
    "conv:ic5ih23oc9kh7sh2ph3",
    "conv:mb3g2ic4ih8oc6kh3ph1",
    "conv:g6ic6ih10oc12kh3ph1",
    "conv:ic4ih17oc3kh3dh1ph2",
    "conv:ic4ih20iw33oc20kh2kw3sh3sw4dh2dw1",
    "conv:ic8ih14oc33kh1sh2",
    "conv:ic2ih6oc3kh3ph4",
    "conv:ic1ih5iw40oc2kh1kw19pw9",
    "conv:ic17ih16oc33kh3ph1",
]


def operands(w: Conv) -> tuple[Any, Any, Any]:
    """Small whole numbers, whose sums are exact in any order."""
    random = np.random.default_rng(5)
    shapes = (w.batch, w.channels, w.height, w.width), (w.filters, w.channels // w.groups, w.kernel_h, w.kernel_w), (w.filters,)
    x, filters, bias = (random.integers(-4, 5, shape) for shape in shapes)

    def bits(a: Any) -> Any:
        return (
            (a.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) if w.dtype == "bf16" else a.astype(runtime.NUMPY_DTYPES[w.dtype])
        )

    return bits(x), bits(filters), bias.astype(runtime.RESULT_DTYPES[w.dtype])


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "s8"])
@pytest.mark.parametrize("shape", SHAPES)
def test_results_are_the_references_on_any_number_of_threads(shape: str, dtype: str) -> None:
    w = conv(f"{shape}:{dtype}")
    x, filters, bias = operands(w)
    plan = pysim.plan(w, "host", algorithm="im2col")
    assert plan.schedule.algorithm == plan.algorithm == "im2col"
    for given, activation in ((None, None), (bias, "relu")):
        want = reference_conv(w, x, filters, given, activation)
        for threads in (1, 2, 5):
            assert np.array_equal(plan.run(x, filters, given, activation, threads=threads), want)


def test_random_values_give_the_same_bits_on_any_number_of_threads() -> None:
    w = conv("conv:mb2g2ic6ih19oc10kh3sh2ph1")
    random = np.random.default_rng(7)
    x, filters = random.random((2, 6, 19, 19), np.float32), random.random((10, 3, 3, 3), np.float32)
    plan = pysim.plan(w, "host", algorithm="im2col")
    first = plan.run(x, filters)
    np.testing.assert_allclose(first, reference_conv(w, x, filters), rtol=1e-5)
    for threads in (2, 5):
        assert plan.run(x, filters, threads=threads).tobytes() == first.tobytes()


@pytest.mark.parametrize("shape", SHAPES)
def test_sizes_are_those_that_the_library_asks_for(shape: str) -> None:
    w = conv(shape)
    for plan in planner.plans(w, host.machine("host"), top=40, algorithm="im2col"):
        assert isinstance(plan.schedule, Schedule)
        launch = cpu_launch.Launch(w, plan.schedule)
        assert plan.workspace_bytes == launch.workspace_bytes
        assert im2col.prepare(w, plan.schedule, "nchw").size_bytes == launch.prepared_bytes


@pytest.mark.parametrize("machine", ["zen4", "xeon-4208", "power10-e1050"])
@pytest.mark.parametrize("state", ["hot", "cold"])
def test_the_cost_is_that_of_the_columns_and_of_the_product_and_adds_up(machine: str, state: Any) -> None:
    plan = planner.plan("conv:mb2ic64ih28oc64kh3ph1", machine, algorithm="im2col", state=state)
    assert isinstance(plan.cost, Cost)
    assert sum(plan.cost.counted.values()) == pytest.approx(plan.cost.cycles)
    assert plan.cost.terms["copy"] > 0 and plan.cost.terms["kernel"] > 0
    assert plan.cost.levels["L2"]["columns_bytes"] > 0


def refused(name: str, problem: str) -> bool:
    return algorithm_named(name, conv(problem), ZEN4).refuses(conv(problem), ZEN4, "nchw") is not None


@pytest.mark.parametrize("problem", ["conv:ic64ih56oc64kh3ph1", "conv:ic2ih7oc5kh3ph1", "conv:ic3ih224oc64kh7sh2ph3", "conv:ic3ih9oc5kh3"])
def test_the_plan_is_the_cheaper_of_both(problem: str) -> None:
    chosen = planner.plan(problem, ZEN4)
    each = [
        planner.plan(problem, ZEN4, algorithm=name) for name in ("im2col", "sconv", "winograd", "polyphase") if not refused(name, problem)
    ]
    best = min(each, key=lambda one: one.seconds or 0.0)
    assert (chosen.algorithm, chosen.schedule, chosen.cost) == (best.algorithm, best.schedule, best.cost)


def test_what_it_cannot_do_is_refused_with_the_reason() -> None:
    with pytest.raises(PlanError, match="its columns would be a copy of the input"):
        planner.plan("conv:ic64ih56oc64kh1", ZEN4, algorithm="im2col")
    with pytest.raises(PlanError, match="not NCHW16C"):
        planner.plan("conv:ic64ih56oc64kh3", ZEN4, algorithm="im2col", layout="nchw16c")
    with pytest.raises(PlanError, match="csa model costs sconv only"):
        planner.plan("conv:ic64ih56oc64kh3", "xeon-4208", algorithm="im2col", model="csa")


def test_a_plan_comes_back_by_its_name_and_explains_itself() -> None:
    plan = pysim.plan("conv:ic16ih14oc16kh3ph1", "zen4", algorithm="im2col")
    again = pysim.plan("conv:ic16ih14oc16kh3ph1", "zen4", name=plan.name)
    assert (again.schedule, again.cost.cycles) == (plan.schedule, pytest.approx(plan.cost.cycles))
    assert re.search("im2col of each image", plan.explain())


def test_weights_must_be_finite_where_the_problem_is_padded() -> None:
    assert planner.plan("conv:ic4ih9oc4kh3ph1", ZEN4, algorithm="im2col").needs_finite == "filters"
    assert planner.plan("conv:ic4ih9oc4kh3", ZEN4, algorithm="im2col").needs_finite == "nothing"


def test_a_schedule_of_another_kind_of_problem_is_refused() -> None:
    assert isinstance(ZEN4, Machine)
    product = planner.plan("gemm:8x8x8", ZEN4).schedule
    assert isinstance(product, Schedule)
    with pytest.raises(PlanError, match="no algorithm 'im2col'"):
        cpu_launch.Launch(parse("gemm:8x8x8"), msgspec.structs.replace(product, algorithm="im2col"))


def test_taps_up_to_four_columns_apart_share_the_permutes_of_a_stride() -> None:
    unit = load("zen5").unit("avx512")
    assert unit and unit.loads_per_cycle.value == 2

    def added(layer: str, windows: int = 64) -> float:
        return stride_cycles(parse(f"conv:ic3ih224oc96{layer}"), unit, windows, windows / 16)

    assert added("kh7sh4") == pytest.approx(15 / 28 / 2 + 80 / 28 - 2 * 3 / 7)
    assert added("kh1sh2") == 1 / 2 + 2 and added("kh1sh4") == 3 / 2 + 4  # only the phase that is read
    assert added("kh7sh2") < added("kh3sh2") < added("kh1sh2")  # more taps share them
    assert added("kh3sh2", 15) < added("kh3sh2", 16)  # the third tap of 15 windows ends in the same vectors
    assert added("kh4sh5") == 4 / 2 + 5 and added("kh4sh4dh1") == 3 / 2 + 4
    assert added("kh4") == 0
