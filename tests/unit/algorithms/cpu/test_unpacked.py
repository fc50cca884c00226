# SPDX-License-Identifier: Apache-2.0
"""Products whose A is read where it lies, and those of a B in panels that were packed beforehand: right beside sums in float64 in every
layout, the bits of the nest that packs, the bytes that the library asks for. Every row against guard pages: native/test/check_gemm.c."""

import msgspec
import numpy as np
import pytest

import pysim
from pysim import planner
from pysim.algorithms.cpu import panels, unpacked
from pysim.algorithms.nest import BROADCASTS
from pysim.calibration import host
from pysim.check.bounds import gamma
from pysim.errors import NativeError, PlanError
from pysim.machine.cpu import Machine
from pysim.machine.load import load_any
from pysim.problem.gemm import Gemm
from pysim.problem.text import parse
from pysim.record.cost import Cost
from pysim.record.plan import Plan
from pysim.record.schedule import Schedule
from pysim.registry.cpu import kernels
from pysim.runtime import cpu as runtime
from pysim.runtime.cpu_launch import Launch

SIZES = ("1x1x1", "5x33x70", "29x31x257", "65x7x40", "64x96x128")
LAYOUTS = ("nn", "nt", "tn", "tt")
SHARED = "16x128x1024:nt"  # rows of A share sets of L1: panels packs them; tiles of 14 rows are two of 8


def problem_of(text: str) -> Gemm:
    problem = parse(f"gemm:{text}")
    assert isinstance(problem, Gemm)
    return problem


def plans_of(problem: Gemm) -> list[Plan]:
    """The best of each kernel that can run it here, of both algorithms."""
    of_form = [row for row in kernels() if (row.form, row.dtype) == (BROADCASTS, problem.dtype)]
    rows = [row for row in of_form if row.name in runtime.available_kernels()]
    on = host.machine("host")
    return [
        planner.plan(problem, on, micro_kernel=(row.windows, row.filters), algorithm=name, prepared=True)
        for row in rows
        for name in (unpacked.NAME, panels.NAME)
    ]


def operands(problem: Gemm) -> tuple[np.ndarray, np.ndarray]:
    rng, dtype = np.random.default_rng(3), {"f32": "f4", "f64": "f8"}[problem.dtype]
    a = rng.standard_normal((problem.k, problem.m) if problem.trans_a else (problem.m, problem.k)).astype(dtype)
    b = rng.standard_normal((problem.n, problem.k) if problem.trans_b else (problem.k, problem.n)).astype(dtype)
    return a, b


def product(problem: Gemm, a: np.ndarray, b: np.ndarray, plan: Plan, threads: int = 1) -> np.ndarray:
    result: np.ndarray = pysim.gemm(a, b, trans_a=problem.trans_a, trans_b=problem.trans_b, plan=plan, threads=threads)
    return result


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_every_kernel_is_within_the_bound_of_a_sum_and_prepared_gives_the_same_bits(size: str, layout: str, dtype: str) -> None:
    problem = problem_of(f"{size}:{dtype}:{layout}")
    a, b = operands(problem)
    op_a, op_b = (a.T if problem.trans_a else a).astype(np.float64), (b.T if problem.trans_b else b).astype(np.float64)
    bound = gamma(problem.k + 4, {"f32": 2.0**-24, "f64": 2.0**-53}[dtype]) * (np.abs(op_a) @ np.abs(op_b))
    found = plans_of(problem)
    assert {plan.algorithm for plan in found} == {unpacked.NAME, panels.NAME}
    for plan in found:
        got = product(problem, a, b, plan)
        assert (np.abs(got - op_a @ op_b) <= bound).all(), plan.name
        assert np.array_equal(pysim.prepare(problem, b, plan=plan)(a), got), plan.name


def test_bits_are_those_of_the_nest_that_packs_and_of_any_number_of_threads() -> None:
    for text in (*(f"45x101x70:{layout}" for layout in LAYOUTS), SHARED):
        problem = problem_of(text)
        a, b = operands(problem)
        for plan in plans_of(problem):
            assert isinstance(plan.schedule, Schedule)
            packed = msgspec.structs.replace(plan.schedule, algorithm="gemm", pack="tiles")
            right = Launch(problem, packed).run(a, b)
            assert all(np.array_equal(product(problem, a, b, plan, threads), right) for threads in (1, 2, 3)), plan.name


def test_the_bytes_are_what_the_library_asks_for() -> None:
    for text in (*(f"45x101x70:{layout}" for layout in LAYOUTS), SHARED):
        problem = problem_of(text)
        for plan in plans_of(problem):
            assert isinstance(plan.schedule, Schedule)
            launch = Launch(problem, plan.schedule)
            prepared = panels.prepare(problem, plan.schedule, "nchw").size_bytes if plan.algorithm == panels.NAME else 0
            assert (launch.workspace_bytes, launch.prepared_bytes) == (plan.workspace_bytes, prepared)


def test_rows_that_share_sets_of_the_machines_l1_are_packed_beside_panels() -> None:
    """16 KiB apart in the 128 KiB of an M1, 4 KiB apart in a Zen 4: more rows than L1 has ways, which are 8 and on a Zen 5 12."""

    def pack(text: str, machine: str) -> str:
        plan = planner.plan(f"gemm:{text}", load_any(machine), prepared=True, algorithm=panels.NAME)
        assert isinstance(plan.schedule, Schedule)
        return plan.schedule.pack

    zen4, zen5 = load_any("zen4"), load_any("zen5")
    assert isinstance(zen4, Machine) and isinstance(zen5, Machine) and (zen4.levels[0].ways, zen5.levels[0].ways) == (8, 12)
    assert [pack("128x768x768:nt", name) for name in ("zen4", "zen5")] == ["none", "none"]
    assert [pack("128x768x3072:nt", name) for name in ("zen4", "zen5")] == ["tiles", "tiles"]
    assert [pack("10x768x3072:nt", name) for name in ("zen4", "zen5")] == ["tiles", "none"]
    assert pack("10x768x3072:nt:s8", "zen5") == "tiles"  # elements of one byte always
    assert planner.plan("gemm:128x768x3072:nt", zen4, prepared=True, accuracy="strict").algorithm == panels.NAME


def test_only_who_prepares_b_is_given_its_panels() -> None:
    on = load_any("zen5")
    for text in ("gemm:512x512x512:nt", "gemm:81x190x41:tt"):
        plan = planner.plan(text, on)
        assert plan.algorithm != panels.NAME
        assert (panels.NAME, "shape") in {(one.what, one.code) for one in plan.rejected}
        prepared = planner.plan(text, on, prepared=True, accuracy="strict")  # no sums of its rows
        assert prepared.algorithm == panels.NAME and prepared.cost.cycles < plan.cost.cycles


def test_a_is_packed_no_more_where_few_columns_use_it() -> None:
    """Its copy took a fifth of the time and more (Zen 5): 730x64x33:nt 20.3 -> 17.7 us, 94x29x1028:tt 59.8 -> 36.8."""
    for text in ("730x64x33:nt", "94x29x1028:tt", "128x64x128", "2048x48x2048"):
        plan = planner.plan(f"gemm:{text}", load_any("zen5"))
        assert plan.algorithm == unpacked.NAME, text
        assert plan.cost.cycles < 0.95 * planner.plan(f"gemm:{text}", load_any("zen5"), algorithm="gemm").cost.cycles


def cycles(text: str, micro_kernel: tuple[int, int] | None = None) -> float:
    return planner.plan(f"gemm:{text}", load_any("zen5"), micro_kernel=micro_kernel, algorithm=unpacked.NAME).cost.cycles


def test_a_tile_whose_rows_share_more_sets_of_l1_than_it_has_ways_costs_more() -> None:
    """256x196x1024, rows 4 KiB apart: 14 of them 527 us, 9 of them 475, A packed 462 (Zen 5, 12 ways)."""
    for micro_kernel, at_least, at_most in (((32, 14), 1.05, 2.0), ((48, 9), 0.97, 1.04)):
        assert at_least < cycles("256x196x1024", micro_kernel) / cycles("256x196x1040", micro_kernel) * 1040 / 1024 < at_most


def test_rows_of_k_a_power_of_two_apart_cost_more() -> None:
    """2048x64x2048:tn in tall tiles and one set of k: each row of k in the same sets of L1 and L2, 4.5 ms; in sets of 128, 3.2 (Zen 5)."""
    assert cycles("2048x64x2048:tn") / 2048 > 1.05 * cycles("2064x64x2048:tn") / 2064
    plan = planner.plan("gemm:2048x64x2048:tn", load_any("zen5"), algorithm=unpacked.NAME)
    assert isinstance(plan.schedule, Schedule) and plan.schedule.channels < 512


@pytest.mark.parametrize("size", ["3000x3000x16", "4096x4096x32"])
def test_results_that_lie_in_memory_are_written_in_runs_of_a_page_or_more(size: str) -> None:
    """Runs of 576 bytes, where tiles of three sets of columns stayed in L1: 3.8 ms in place of 3.0, and 7.8 in place of 6.9 (Zen 5)."""
    problem = problem_of(size)
    schedule = planner.plan(problem, load_any("zen5")).schedule
    assert isinstance(schedule, Schedule) and schedule.stationary == "weight_stationary"
    assert min(problem.n, schedule.k2 * schedule.windows) * 4 >= 4096


def test_kernels_that_read_panels_of_a_are_refused() -> None:
    problem = problem_of("40x50x60")
    here = [row.name for row in kernels() if row.form == "fil" and row.dtype == "f32" and row.name in runtime.available_kernels()]
    if not here:
        pytest.skip("this CPU has no kernel with filters along its lanes")
    fil = planner.plan(problem, host.machine("host"), micro_kernel=here[0], algorithm="gemm").schedule
    assert isinstance(fil, Schedule)
    with pytest.raises(NativeError, match="broadcast"):
        Launch(problem, msgspec.structs.replace(fil, algorithm=unpacked.NAME))
    power10 = load_any("power10-e1050")
    assert isinstance(power10, Machine)
    units = tuple(unit for unit in power10.core.units if unit.target == "mma")  # whose kernels make outer products
    bare = msgspec.structs.replace(power10, core=msgspec.structs.replace(power10.core, units=units))
    assert planner.plan(problem, bare).algorithm == "gemm"
    with pytest.raises(PlanError, match="broadcasts elements of A"):
        planner.plan(problem, bare, algorithm=unpacked.NAME)


def test_a_schedule_tells_whether_a_is_packed_beside_panels() -> None:
    problem = problem_of("40x50x60")
    plan = plans_of(problem)[1]
    schedule = plan.schedule
    assert isinstance(schedule, Schedule) and (schedule.algorithm, schedule.pack) == (panels.NAME, "none")
    packs = planner.plan(
        problem, host.machine("host"), schedule=msgspec.structs.replace(schedule, pack="tiles"), algorithm=panels.NAME, prepared=True
    )
    a, b = operands(problem)
    assert packs.workspace_bytes > plan.workspace_bytes and packs.cost.cycles > plan.cost.cycles
    assert Launch(problem, packs.schedule).workspace_bytes == packs.workspace_bytes
    assert np.array_equal(product(problem, a, b, packs), product(problem, a, b, plan))


def test_a_product_bound_to_its_arrays_is_the_product() -> None:
    problem = problem_of("45x101x70:nt")
    a, b = operands(problem)
    for plan in plans_of(problem):
        one = Launch(problem, plan.schedule)
        assert bool(one.prepared_bytes) == (plan.algorithm == panels.NAME)
        if not one.prepared_bytes:
            out = np.full((problem.m, problem.n), np.nan, np.float32)
            one.step(a, b, out, np.empty(one.workspace_bytes, np.uint8))()
            assert np.array_equal(out, product(problem, a, b, plan))


@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_a_prepared_b_of_few_rows_is_one_stream(layout: str) -> None:
    """Also for 8 rows in a first-level cache with 8 ways: lines of B evict them once per line, not in every k-iteration."""
    for m in (1, 2, 4, 8):
        found = pysim.plan(f"gemm:{m}x4096x4096:{layout}", "zen4", prepared=True)
        assert found.algorithm == panels.NAME and isinstance(found.cost, Cost)
        assert found.cost.cycles < 1.4 * max(found.cost.levels["memory"]["cycles"], m * 4096 * 4096 / 16)
