# SPDX-License-Identifier: Apache-2.0
"""Products of few rows or columns on a CPU: right beside sums in float64 in every layout, planned by cost, the same bits for any number of
threads. Every row against guard pages: native/test/check_gemm.c."""

import time
from functools import partial

import msgspec
import numpy as np
import pytest

import pysim
from pysim import planner
from pysim.algorithms.cpu import skinny
from pysim.calibration import host
from pysim.check.bounds import gamma
from pysim.errors import NativeError, OperandError, PlanError
from pysim.machine.cpu import Machine
from pysim.machine.load import load_any
from pysim.problem.gemm import Gemm
from pysim.problem.text import parse
from pysim.record.plan import Plan
from pysim.record.schedule import Schedule
from pysim.registry.cpu import cpu_kernels, skinny_kernels
from pysim.runtime import cpu as runtime
from pysim.runtime.cpu_launch import Launch

SIZES = ("1x300x70", "3x257x33", "11x130x515", "200x1x600", "65x7x40", "16x16x16", "1x1x1000")
LAYOUTS = ("nn", "nt", "tn", "tt")


def plans_of(problem: Gemm) -> list[Plan]:
    """Plans of all kernels that can run it here."""
    found = planner.plans(problem, host.machine("host"), top=60, algorithm=skinny.NAME)
    return [plan for plan in found if plan.kernel in runtime.available_kernels()]


def operands(problem: Gemm) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng, dtype = np.random.default_rng(3), {"f32": "f4", "f64": "f8"}[problem.dtype]
    a = rng.standard_normal((problem.k, problem.m) if problem.trans_a else (problem.m, problem.k)).astype(dtype)
    b = rng.standard_normal((problem.n, problem.k) if problem.trans_b else (problem.k, problem.n)).astype(dtype)
    return a, b, rng.standard_normal((problem.m, problem.n)).astype(dtype), rng.standard_normal(problem.n).astype(dtype)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_every_plan_is_within_the_bound_of_a_sum(size: str, layout: str, dtype: str) -> None:
    problem = parse(f"gemm:{size}:{dtype}:{layout}")
    assert isinstance(problem, Gemm)
    a, b, c, bias = operands(problem)
    op_a, op_b = (a.T if problem.trans_a else a).astype(np.float64), (b.T if problem.trans_b else b).astype(np.float64)
    right = np.maximum(2 * op_a @ op_b - 0.5 * c + bias, 0)
    bound = 2 * np.abs(op_a) @ np.abs(op_b) + 0.5 * np.abs(c) + np.abs(bias)
    found = plans_of(problem)
    assert found
    for plan in found:
        got = pysim.gemm(a, b, c, 2.0, -0.5, problem.trans_a, problem.trans_b, bias=bias, activation="relu", plan=plan)
        assert (np.abs(got - right) <= gamma(problem.k + 4, {"f32": 2.0**-24, "f64": 2.0**-53}[dtype]) * bound).all(), plan.name


def test_threads_change_no_bit() -> None:
    for text in ("gemm:3x1001x777", "gemm:3x1001x777:nt", "gemm:900x5x321:tt"):
        problem = parse(text)
        assert isinstance(problem, Gemm)
        a, b, _, _ = operands(problem)
        plan = plans_of(problem)[0]
        one, *others = (
            pysim.gemm(a, b, trans_a=problem.trans_a, trans_b=problem.trans_b, plan=plan, threads=threads) for threads in (1, 2, 3, 7)
        )
        assert all(np.array_equal(one, other) for other in others)


def test_numbers_that_are_not_finite_reach_their_own_results_alone() -> None:
    for layout in LAYOUTS:
        problem = parse(f"gemm:2x37x29:{layout}")
        assert isinstance(problem, Gemm)
        a, b, c, _ = operands(problem)
        (b.T if problem.trans_b else b)[4, 11] = np.inf
        for plan in plans_of(problem):
            got = pysim.gemm(a, b, trans_a=problem.trans_a, trans_b=problem.trans_b, plan=plan)
            assert np.isfinite(np.delete(got, 11, axis=1)).all() and np.isinf(got[:, 11]).all()
            nothing = pysim.gemm(a, b, c, 0.0, 1.0, problem.trans_a, problem.trans_b, plan=plan)
            assert np.array_equal(nothing, c)


@pytest.mark.parametrize("machine", ["zen4", "sapphire-rapids", "xeon-4208"])
def test_the_planner_takes_it_where_one_row_is_multiplied_by_a_large_matrix(machine: str) -> None:
    for size in ("1x4096x4096", "4096x1x4096", "1x1000x25088"):
        for layout in LAYOUTS:
            plan = planner.plan(f"gemm:{size}:{layout}", load_any(machine))
            least = min(one.cost.seconds for one in plan.considered if one.algorithm == skinny.NAME)
            assert least <= 1.02 * plan.cost.seconds, (size, layout)


@pytest.mark.parametrize("machine", ["zen4", "zen5", "sapphire-rapids"])
def test_the_planner_knows_that_few_rows_are_copied_an_element_at_a_time_for_axpy(machine: str) -> None:
    for size in ("94x29x1028:tt", "94x29x1028:tn", "29x94x1028:nn"):  # on a Zen 5: 59 us by axpy, of them 25 for the copy, 42 by gemm
        assert planner.plan(f"gemm:{size}", load_any(machine)).algorithm != skinny.NAME, size


@pytest.mark.parametrize("machine", ["zen4", "xeon-4208"])
def test_the_planner_packs_where_there_are_as_many_rows_as_columns(machine: str) -> None:
    plan = planner.plan("gemm:512x512x512", load_any(machine))
    assert plan.algorithm != skinny.NAME
    assert any(one.what == skinny.NAME and one.code == "shape" for one in plan.rejected)


def test_rows_in_place_wait_for_memory_unless_they_are_packed() -> None:
    """The nest with B in place was predicted to take the time of its bytes, and took 2.7 times that (Zen 5, 1x4096x4096)."""
    on = load_any("zen4")
    plan = planner.plan("gemm:1x4096x4096", on, algorithm="gemm")
    bytes_alone = 4096 * 4096 * 4 / on.memory.read_bytes_per_cycle.value
    assert plan.cost.cycles > 1.3 * bytes_alone


def test_dot_takes_blocks_of_k_that_stay_in_l1() -> None:
    """All of k at once streams both operands from L2: 1.5 to 1.7 times as long as blocks of 512 (Zen 5)."""
    on = load_any("zen5")
    for text in ("gemm:1000x17x3000", "gemm:16x1000x3000:nt", "gemm:24x2000x2000:nt"):
        assert planner.plan(text, on, algorithm="skinny").schedule.channels <= 512


def test_blocks_of_axpy_leave_room_in_l2_for_the_next_one() -> None:
    """Strips of whole rows, 32 of them, push out what was asked for ahead: 4.7 ms in place of 3.1 (Zen 5, 16x4096x4096)."""
    on = load_any("zen5")
    for text in ("gemm:12x4096x4096", "gemm:16x4096x4096", "gemm:16x4224x4096"):
        schedule = planner.plan(text, on, algorithm="skinny").schedule
        assert 2 * 4 * schedule.channels * schedule.k2 * schedule.windows < on.levels[1].size_bytes, text


def test_runs_of_a_matrix_that_begin_apart_wait() -> None:
    """A block of all of k reads rows as they follow one another: 1.4 ms in place of 1.7 in blocks of 1024 (Zen 5, one row, nt)."""
    assert planner.plan("gemm:1x4096x4096:nt", load_any("zen5"), algorithm="skinny").schedule.channels == 4096


def test_the_workspace_is_what_the_library_asks_for() -> None:
    for text in ("gemm:1x300x70", "gemm:5x1000x77:nt", "gemm:900x5x321:tt:f64", "gemm:33x2x2:f64"):
        problem = parse(text)
        assert isinstance(problem, Gemm)
        for plan in plans_of(problem):
            assert isinstance(plan.schedule, Schedule)
            assert Launch(problem, plan.schedule).workspace_bytes == plan.workspace_bytes


def test_a_kernel_that_reads_the_other_layout_is_refused() -> None:
    axpy = plans_of(parse("gemm:1x300x70"))[0].schedule
    with pytest.raises(NativeError, match="rows lie along results, and these lie along k"):
        Launch(parse("gemm:1x300x70:nt"), axpy)


def test_named_plans_are_replayed_and_wrong_ones_refused() -> None:
    plan = plans_of(parse("gemm:2x300x70:nt"))[0]
    assert planner.plan("gemm:2x300x70:nt", plan.on, name=plan.name).schedule == plan.schedule
    with pytest.raises(PlanError, match="has no such schedule"):
        planner.plan("gemm:2x300x70:nt", plan.on, name=plan.name.replace("channels=70", "channels=17"))
    with pytest.raises(PlanError, match="no kernel"):
        planner.plan("gemm:2x300x70:nt:f64", plan.on, name=plan.name)


def test_names_are_built_from_the_columns() -> None:
    names = [row.name for row in skinny_kernels()]
    assert len(set(names)) == len(names) == 12
    assert {row.form for row in skinny_kernels()} == {"axpy", "dot"}


@pytest.mark.parametrize("size", ["1x300x70", "40x50x60"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_prepared_product_is_the_product_and_keeps_its_own_weights(size: str, layout: str) -> None:
    problem = parse(f"gemm:{size}:{layout}")
    assert isinstance(problem, Gemm)
    a, b, out, bias = operands(problem)
    plan = pysim.plan(problem, prepared=True)
    right = pysim.gemm(a, b, trans_a=problem.trans_a, trans_b=problem.trans_b, bias=bias, activation="relu", plan=plan)
    product = pysim.prepare(problem.text, b, bias=bias, activation="relu")
    assert product.schedule == plan.schedule
    b[...] = bias[...] = np.nan
    assert product(a, out=out) is out
    assert np.array_equal(out, right) and np.array_equal(product(a), right)
    with pytest.raises(OperandError, match="a has shape"):
        product(a[:, 1:])


def test_the_largest_part_of_several_threads_is_an_even_share_of_the_results_and_stays_the_same_kind_of_product() -> None:
    """Planning for threads asked every algorithm, and this one had no answer."""
    on = load_any("zen4")
    for text in ("gemm:1x4096x4096", "gemm:4096x3x512", "gemm:900x5x321:tt", "gemm:16x16x16:nt"):
        problem = parse(text)
        assert isinstance(problem, Gemm)
        for plan in planner.plans(problem, on, top=5, algorithm=skinny.NAME):
            assert isinstance(plan.schedule, Schedule)
            for threads in (1, 2, 3, 64):
                part = skinny.largest_part(problem, plan.schedule, threads)
                assert problem.flops / threads <= part.problem.flops <= problem.flops
                assert skinny.Shape.of(part.problem)[3:] == skinny.Shape.of(problem)[3:]
    plan = planner.plan("gemm:1x4096x4096", on, threads=4)
    assert plan.algorithm == skinny.NAME and plan.cost.seconds < planner.plan("gemm:1x4096x4096", on).cost.seconds


@pytest.mark.parametrize("problem", ["gemm:4x400x1000", "conv:ic3ih56oc32kh3ph1"])
def test_doubles_in_plain_c_take_about_twice_as_long_as_floats(problem: str) -> None:
    """Vectors wider than the registers of a base CPU lie in memory: 19 and 13 times as long, seen on a Zen 5."""
    taken: dict[str, float] = {"f32": np.inf, "f64": np.inf}
    runs = {}
    for dtype in taken:
        form = "axpy" if problem.startswith("gemm") else "phases"
        name = next(row.name for row in cpu_kernels() if (row.target, row.dtype, row.form) == ("portable", dtype, form))
        plan = pysim.plan(f"{problem}:{dtype}", micro_kernel=name)
        shapes = ((4, 1000), (1000, 400)) if isinstance(plan.workload, Gemm) else ((1, 3, 56, 56), (32, 3, 3, 3))
        runs[dtype] = partial(plan.run, *(np.ones(shape, {"f32": "f4", "f64": "f8"}[dtype]) for shape in shapes))
        runs[dtype]()
    for turn in range(300):
        for dtype, run in runs.items():
            begin = time.thread_time()
            run()
            taken[dtype] = min(taken[dtype], time.thread_time() - begin)
        if turn >= 10 and taken["f64"] < 6 * taken["f32"]:  # more turns where other processes have the core
            break
    assert taken["f64"] < 6 * taken["f32"]


def test_runs_that_begin_apart_wait_as_the_machine_file_says() -> None:
    zen5, size = load_any("zen5"), "gemm:1x4096x4096"
    assert isinstance(zen5, Machine) and zen5.core.run_start_share
    share = msgspec.structs.replace(zen5.core.run_start_share, value=0.5)
    one, other = (
        msgspec.structs.replace(zen5.core, run_start_share=value, overlap=msgspec.structs.replace(zen5.core.overlap, value=0.0))
        for value in (zen5.core.run_start_share, share)
    )  # and computing hides nothing
    zen5, slow = (msgspec.structs.replace(zen5, core=core) for core in (one, other))
    waits = 0.4 * zen5.memory.latency_cycles.value
    for strip, runs in ((8, 4 * 4096), (32, 0)):  # four strips of 1,024 results, and rows in one piece
        name = (
            f"skinny,kernel=f32_axpy_128x8__avx512,stationary=input_stationary,pack=none,windows=128,filters=8,channels=16,k2={strip},k3=1"
        )
        cycles = [planner.plan(size, machine, name=name).cost.cycles for machine in (zen5, slow)]
        assert cycles[1] - cycles[0] == pytest.approx(runs * waits)


@pytest.mark.parametrize("few", [3, 4, 5, 6, 8])
def test_strips_of_several_rows_are_whole_pages_that_leave_their_sums_near(few: int) -> None:
    """Whole rows of 16 KiB took 1.1 to 1.2 times as long as strips of 4 and 8 KiB, and strips of 3 KiB 1.1 (Zen 5)."""
    schedule = planner.plan(f"gemm:{few}x4096x4096", load_any("zen5"), algorithm="skinny").schedule
    run = 4 * schedule.k2 * schedule.windows
    assert run in (4096, 8192)


def test_one_core_reads_a_matrix_from_memory_at_the_rate_that_was_measured() -> None:
    """64 MiB take 1.25 to 1.45 ms in one piece and products of one row 1.5 to 1.7 (Zen 5), which were predicted to take 2.2 to 2.4."""
    for layout in ("nn", "nt"):
        assert 1.3e-3 < planner.plan(f"gemm:1x4096x4096:{layout}", load_any("zen5"), algorithm="skinny").cost.seconds < 1.7e-3


def test_where_l1_has_few_miss_buffers_a_matrix_from_memory_is_prefetched_into_l2() -> None:
    """4x4096x4096 takes 2.1 ms instead of 3.6, nt 2.0 instead of 4.3 (Zen 4)."""
    for few in (1, 2, 4, 8):
        for layout in ("nn", "nt"):
            text = f"gemm:{few}x4096x4096:{layout}"
            assert planner.plan(text, load_any("zen4"), algorithm="skinny").schedule.k3 == skinny.L2, text
            assert planner.plan(text, load_any("zen5"), algorithm="skinny").schedule.k3 == skinny.L1, text
    one = planner.plan("gemm:1x4096x4096", load_any("zen4"), algorithm="skinny").schedule
    assert one.channels <= 16  # 48 rows in a block: 2.6 ms instead of 2.1


def test_rows_that_share_sets_of_l1_wait_for_l2_again() -> None:
    """Rows 4 KiB apart: 6.9 cycles a line instead of 4.7 with two results, 8.9 instead of 5.6 with four, 18 instead of 10.6 with eight;
    with no more rows in a block than L1 has ways 5.8 with two results (Zen 3)."""

    def cycles(few: int, n: int, rows: int) -> float:
        name = f"skinny,kernel=f32_axpy_64x4__avx2,stationary=input_stationary,pack=none,windows=64,filters=4,channels={rows},k2=8,k3=2"
        return planner.plan(f"gemm:{few}x{n}x1024", load_any("zen3"), name=name).cost.cycles / (n * 1024 / 16)

    for few, more in ((2, 2.2), (4, 3.3), (8, 7.4)):
        assert cycles(few, 1024, 16) - cycles(few, 1000, 16) == pytest.approx(more, rel=0.35)
        assert cycles(few, 1024, 8) - cycles(few, 1000, 8) < more
    assert planner.plan("gemm:2x1024x1024", load_any("zen3"), algorithm="skinny").schedule.channels <= 8


@pytest.mark.parametrize("layout", LAYOUTS)
def test_both_prefetch_levels_give_the_same_bits(layout: str) -> None:
    problem = parse(f"gemm:5x1003x391:{layout}")
    assert isinstance(problem, Gemm)
    a, b, *_ = operands(problem)
    for plan in plans_of(problem):
        assert isinstance(plan.schedule, Schedule)
        schedules = (msgspec.structs.replace(plan.schedule, k3=level) for level in (skinny.L1, skinny.L2))
        one, other = (Launch(problem, schedule).run(a, b) for schedule in schedules)
        assert np.array_equal(one, other), plan.name


def test_sums_of_few_products_in_plain_c_take_what_adding_them_up_takes():
    """3137x8x8 by `dot` took 95 us on a Zen 3; a plan that reads A in place takes 14 and is chosen."""
    plans = pysim.plans("gemm:3137x8x8", "zen3", top=100)
    plain = next(plan for plan in plans if "dot_8x4__portable" in plan.name)
    assert plain.cost.seconds == pytest.approx(95e-6, rel=0.25) and plans[0].algorithm == "unpacked"
