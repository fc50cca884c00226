# SPDX-License-Identifier: Apache-2.0
"""Seven products of halves: the numbers of a classic product, with any epilogue, blocks and number of threads, also where operands are not
finite; the stated error; what does not fit is said; the model counts what is run."""

from typing import Any

import msgspec
import numpy as np
import pytest
from native_library import native

import pysim
from pysim import planner
from pysim.algorithms import algorithm_named
from pysim.cachemodel.simulator import walk
from pysim.cachemodel.simulator.hierarchy import Hierarchy
from pysim.errors import PlanError
from pysim.explain.text import explain
from pysim.machine.load import load
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.problem.text import parse
from pysim.record.cost import Cost
from pysim.record.plan import Layout, Plan, blocks_of, on_cpu
from pysim.record.schedule import name_of
from pysim.runtime import cpu_launch

RANDOM = np.random.default_rng(23)
PRODUCTS = ("gemm:13x20x34", "gemm:64x48x32:nt", "gemm:2x2x2", "gemm:197x96x64")
ZEN4 = load("zen4")
LARGE = "gemm:128x2048x512"


def product(text: str) -> Gemm:
    w = parse(text)
    assert isinstance(w, Gemm)
    return w


def normal(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def halves_of(text: str, rows: int | None = None, **asked: Any) -> Any:
    """The plan by halves; with blocks of 2 `rows`, if given."""
    name = "strassen" if text.startswith("gemm") else "strassen_1x1"
    plan = pysim.plan(text, algorithm=name, prepared=True, **asked)
    if rows is None:
        return plan
    schedule = msgspec.structs.replace(on_cpu(plan)[0], outputs=rows)
    return pysim.plan(text, name=name_of(name, schedule), prepared=True, **asked)


def blocks_layout() -> Layout:
    layouts: tuple[Layout, ...] = ("nchw16c", "nchw8c", "nchw4c")
    return next(one for one in layouts if _has(one))


def _has(layout: Layout) -> bool:
    try:
        pysim.plan("conv:ic32ih4oc32kh1", layout=layout, algorithm="direct_nchwc")
    except PlanError:
        return False
    return True


def in_blocks(x: np.ndarray, block: int) -> np.ndarray:
    n, c, h, w = x.shape
    return np.ascontiguousarray(x.reshape(n, c // block, block, h, w).transpose(0, 1, 3, 4, 2))


def in_planes(x: np.ndarray) -> np.ndarray:
    n, groups, h, w, block = x.shape
    return x.transpose(0, 1, 4, 2, 3).reshape(n, groups * block, h, w)


@native
@pytest.mark.parametrize("text", PRODUCTS)
@pytest.mark.parametrize("activation", [None, "relu", ("clamp", -1.0, 2.0), "gelu"])
def test_products_are_those_of_float64(text: str, activation: Any) -> None:
    w = product(text)
    a, b, bias = normal(w.m, w.k), normal(w.n, w.k) if w.trans_b else normal(w.k, w.n), normal(w.n)
    sums = a.astype(float) @ (b.T if w.trans_b else b).astype(float) + bias
    want = pysim.gemm(sums, np.eye(w.n), activation=activation, accuracy="ieee")
    for rows in {1, (w.m + 1) // 4 or 1, (w.m + 1) // 2}:
        plan = halves_of(text, rows)
        got = pysim.prepare(text, b, bias=bias, activation=activation, plan=plan)(a)
        assert abs(got - want).max() <= 10 * plan.error * np.sqrt(np.mean(sums**2)), rows


@native
@pytest.mark.parametrize("text", ["conv:mb2ic64ih5iw7oc96kh1", "conv:ic32ih4oc64kh1", "conv:ic64ih1iw2oc32kh1"])
def test_convolutions_in_blocks_are_those_of_planes(text: str) -> None:
    w, layout = parse(text), blocks_layout()
    assert isinstance(w, Conv)
    block = blocks_of(layout)[0]
    x, f, bias = normal(w.batch, w.channels, w.height, w.width), normal(w.filters, w.channels, 1, 1), normal(w.filters)
    added = normal(w.batch, w.filters, w.height, w.width)
    for activation in (None, "relu", "silu"):
        want = pysim.conv2d(x.astype(float), f.astype(float), bias.astype(float), residual=added.astype(float), activation=activation)
        for rows in {1, 3, (w.windows + 1) // 2} - {3 if w.windows < 6 else 0}:
            plan = halves_of(text, rows, layout=layout)
            got = pysim.conv2d(
                in_blocks(x, block), f, bias, residual=in_blocks(added, block), activation=activation, layout=layout, plan=plan
            )
            assert abs(in_planes(got) - want).max() <= 10 * plan.error * np.sqrt(w.channels), rows


@native
def test_any_number_of_threads_gives_the_same_bits_and_sizes_are_the_librarys() -> None:
    for text in PRODUCTS:
        plan, w = halves_of(text), product(text)
        schedule, _ = on_cpu(plan)
        algorithm = algorithm_named(plan.algorithm, w, ZEN4)
        launch = cpu_launch.Launch(w, schedule)
        assert launch.prepared_bytes == algorithm.prepare(w, schedule, "nchw").size_bytes
        assert launch.workspace_bytes == algorithm.workspace_bytes(w, schedule, "nchw")
        a, b = normal(w.m, w.k), normal(w.n, w.k) if w.trans_b else normal(w.k, w.n)
        one = cpu_launch.Prepared(w, b, schedule)(a)
        for threads in (2, 3, 5):
            assert np.array_equal(cpu_launch.Prepared(w, b, schedule, threads=threads)(a), one)


@native
def test_what_is_not_finite_reaches_the_results_that_depend_on_it_and_no_others() -> None:
    text, (m, n, k) = "gemm:31x40x26", (31, 40, 26)
    a, b = normal(m, k), normal(k, n)
    a[3, 5], a[20, 0], b[7, 33] = np.inf, np.nan, -np.inf
    got = pysim.prepare(text, b, plan=halves_of(text, 4))(a)
    with np.errstate(invalid="ignore"):
        want = (a.astype(float) @ b.astype(float)).astype(np.float32)
    assert np.array_equal(np.isnan(got), np.isnan(want)) and np.array_equal(np.isinf(got), np.isinf(want))
    finite = np.isfinite(want)
    np.testing.assert_allclose(got[finite], want[finite], rtol=1e-4, atol=1e-4)
    large = np.full((2, 2), 3e38, np.float32)  # sums of two elements overflow, products with tiny weights do not
    got = pysim.prepare("gemm:2x2x2", np.full((2, 2), 1e-3, np.float32), plan=halves_of("gemm:2x2x2"))(large)
    np.testing.assert_allclose(got, 6e35, rtol=1e-6)


@native
@pytest.mark.parametrize("text", ["gemm:64x64x32", "gemm:128x256x256", "gemm:96x128x1024"])
def test_errors_are_those_that_plans_state(text: str) -> None:
    w, plan = product(text), halves_of(text)
    for low in (-1.0, 0.0):
        a, b = (RANDOM.uniform(low, 1, shape).astype(np.float32) for shape in ((w.m, w.k), (w.k, w.n)))
        want = a.astype(float) @ b.astype(float)
        found = abs(pysim.prepare(text, b, plan=plan)(a) - want).max() / np.sqrt(np.mean(want**2))
        assert found <= plan.error


def test_only_accuracy_standard_takes_it_and_only_problems_with_halves() -> None:
    def by(text: str, **asked: Any) -> Plan:
        return planner.plan(text, ZEN4, algorithm="strassen" if text.startswith("gemm") else "strassen_1x1", prepared=True, **asked)

    assert by(LARGE).error > planner.plan(LARGE, ZEN4, algorithm="panels", prepared=True).error
    assert planner.plan(LARGE, ZEN4, prepared=True).algorithm == "strassen"
    for accuracy in ("strict", "ieee", "reproducible"):
        assert planner.plan(LARGE, ZEN4, prepared=True, accuracy=accuracy).algorithm != "strassen"
    refused = {"gemm:8x8x7": "even", "gemm:1x8x8": "2 rows", "gemm:8x8x8:tn": "not transposed", "gemm:8x8x8:f64": "f32"}
    for text, why in refused.items():
        with pytest.raises(PlanError, match=why):
            by(text)
    for text, why in {"conv:ic64ih9oc64kh3ph1": "1x1", "conv:ic48ih9oc64kh1": "multiples of 32"}.items():
        with pytest.raises(PlanError, match=why):
            by(text, layout="nchw16c")
    with pytest.raises(PlanError, match="channel blocks"):
        by("conv:ic64ih9oc64kh1")
    with pytest.raises(PlanError, match="not prepacked"):
        planner.plan(LARGE, ZEN4, algorithm="strassen")


def test_it_is_planned_where_products_are_large_and_costs_seven_of_them() -> None:
    plan = planner.plan(LARGE, ZEN4, algorithm="strassen", prepared=True)
    classic = planner.plan(LARGE, ZEN4, algorithm="panels", prepared=True)
    assert isinstance(plan.cost, Cost) and isinstance(classic.cost, Cost)
    assert 7 / 8 < plan.cost.cycles / classic.cost.cycles < 1
    assert plan.cost.terms["kernel"] == pytest.approx(7 / 8 * classic.cost.terms["kernel"], rel=0.05)
    assert sum(plan.cost.counted.values()) == pytest.approx(plan.cost.cycles)
    assert planner.plan("gemm:64x32x32", ZEN4, prepared=True).algorithm != "strassen"
    assert "seven products" in explain(plan)


@pytest.mark.parametrize("threads", [2, 4])
def test_plans_for_threads_divide_what_runs_divide(threads: int) -> None:
    alone, team = (planner.plan(LARGE, ZEN4, threads=count, algorithm="strassen", prepared=True) for count in (1, threads))
    assert alone.seconds is not None and team.seconds is not None
    assert alone.seconds / threads * 0.8 < team.seconds < alone.seconds


@pytest.mark.parametrize(("text", "layout"), [("gemm:128x512x256", "nchw"), ("conv:mb2ic64ih14oc96kh1", "nchw16c")])
def test_its_loops_are_simulated_and_move_about_the_lines_that_are_predicted(text: str, layout: Layout) -> None:
    on = ZEN4.contiguous()
    name = "strassen" if text.startswith("gemm") else "strassen_1x1"
    plan = planner.plan(text, on, algorithm=name, prepared=True, layout=layout)
    found, _ = walk.simulate(algorithm_named(name, plan.workload, on).nests(plan).loops, Hierarchy.from_machine(on), warm=True)
    assert isinstance(plan.cost, Cost)
    lines = plan.cost.levels["L2"]
    assert found["L1"].misses == pytest.approx(lines["lines"] - lines["writeback_lines"], rel=0.4)
