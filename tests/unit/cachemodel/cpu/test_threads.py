# SPDX-License-Identifier: Apache-2.0
"""Plans for several threads: what the native loops divide is what the model says, and no number of threads changes a bit."""

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest

import pysim
from pysim import planner
from pysim.algorithms import algorithm_named
from pysim.cachemodel.cpu.threads import (
    busy_rate,
    false_sharing_lines,
    fork_join_cycles,
    grid,
    machine_of_one_core,
    nest_grid,
    nest_part,
    parts_of_each,
    shares_panels,
    touched_bytes,
)
from pysim.explain.advice import peak_share
from pysim.explain.text import explain
from pysim.machine.cpu import Machine, Together
from pysim.machine.load import load
from pysim.machine.quantity import Number
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.problem.text import parse
from pysim.record.cost import Cost
from pysim.record.schedule import Schedule

ZEN4 = load("zen4")
PROBLEMS = (
    "conv:mb1ic64ih56oc64kh3ph1",
    "conv:mb1ic512ih7oc2048kh1",
    "conv:mb3ic64ih14oc96kh3sh2ph1",
    "conv:g4mb1ic64ih14oc128kh3ph1",
    "conv:g144mb1ic144ih56oc144kh3ph1",
    "conv:g6mb1ic6ih40oc6kh5ph2",
    "gemm:300x500x200",
    "gemm:1x4096x1024",
)


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 8, 16, 61])
@pytest.mark.parametrize("tiles", [(98, 5), (1, 64), (7, 1), (4, 16), (25, 37)])
def test_no_grid_of_so_many_parts_leaves_a_smaller_largest_part(tiles: tuple[int, int], parts: int) -> None:
    def largest(windows: int, filters: int) -> int:
        return -(-tiles[0] // windows) * -(-tiles[1] // filters)

    every = [largest(w, f) for w in range(1, tiles[0] + 1) for f in range(1, tiles[1] + 1) if w * f <= parts]
    assert largest(*grid(*tiles, parts)) == min(every)


def test_images_that_do_not_go_round_are_divided_until_they_do() -> None:
    for images in range(1, 40):
        for threads in (1, 2, 3, 8, 16):
            parts = parts_of_each(images, threads)
            assert images * parts % threads == 0 or (parts == 1 and images >= 4 * threads)


def test_a_shared_panel_is_packed_once_in_parts_as_square_as_can_be() -> None:
    assert grid(64, 64, 16) == (16, 1) and grid(64, 64, 16, True) == (4, 4)
    assert (
        nest_grid(1, 64, 64, 16, True) == (8, 8) and nest_grid(1, 16, 16, 16, True) == (4, 4) and nest_grid(1, 64, 64, 16, False) == (16, 1)
    )
    plan = planner.plan("gemm:2048x2048x2048", "emerald-rapids", threads=16, accuracy="strict", micro_kernel="f32_tiles_32x32__amx")
    assert isinstance(plan.schedule, Schedule)
    part = nest_part(Gemm(m=2048, n=2048, k=2048), plan.schedule, 16)
    assert (part.problem.m, part.problem.n, part.packing, part.items) == (512, 512, 0.25, 4)  # a thread takes 4 of 64 parts
    # of 16 + 16 panels that it reads it has packed one sixteenth, and of the 8 that it packs others have read the last contents
    assert part.crossing == (32 * 15 / 16 + 8) * 32 * 2048 * 6 and part.regions == 2 * -(-2048 // plan.schedule.channels)


@pytest.mark.parametrize("threads", [2, 5, 16])
@pytest.mark.parametrize("text", PROBLEMS)
def test_the_largest_part_is_at_least_an_even_share_and_no_more_than_all(text: str, threads: int) -> None:
    problem = parse(text)
    columns = [planner.plan(problem, ZEN4, algorithm="im2col")] if isinstance(problem, Conv) and not problem.pointwise else []
    for one in (*planner.plan(problem, ZEN4).considered, *columns):
        part = algorithm_named(one.algorithm, problem, ZEN4).largest_part(problem, one.schedule, threads)
        work = part.share * part.problem.flops
        assert problem.flops / threads <= work * 1.001 and work <= 1.001 * problem.flops


@pytest.mark.parametrize("text", PROBLEMS)
def test_more_threads_are_predicted_faster_where_forking_is_free(text: str) -> None:
    free = _with(ZEN4, fork_join_cycles=0.0, fork_join_thread_cycles=0.0, written_line_cycles=0.0)
    seconds = [planner.plan(text, free, threads=threads).seconds for threads in (1, 2, 4, 8)]
    assert all(later <= 1.02 * sooner for sooner, later in itertools.pairwise(seconds) if sooner and later)


def test_what_computes_a_part_but_not_the_whole_is_not_planned() -> None:
    for threads in (2, 3, 4):  # parts of up to 32 rows are skinny
        plan = planner.plan("gemm:45x45x45", ZEN4, threads=threads)
        assert "skinny" not in {plan.algorithm, *(one.algorithm for one in plan.considered)}


@pytest.mark.parametrize("text", ["conv:g2mb1ic746ih1iw1oc2ow5kh1ph0pw4", "conv:g2mb1ic4ih2oc2kh7sh2ph3", "conv:mb8ic566ih8oc556kh3ph1"])
def test_a_limit_is_of_the_error_of_the_whole_and_not_of_a_threads_part(text: str) -> None:
    plan = planner.plan(text, "zen5", threads=2)
    limited = planner.plan(text, "zen5", threads=2, error_limit=plan.error)
    assert (limited.name, limited.seconds) == (plan.name, plan.seconds)


def test_a_plan_says_its_threads_and_what_forking_costs() -> None:
    plan = planner.plan("conv:mb1ic64ih56oc64kh1", ZEN4, threads=4)
    assert plan.threads == 4 and plan.to_dict()["threads"] == 4 and isinstance(plan.cost, Cost)
    assert plan.cost.terms["threads"] == fork_join_cycles(ZEN4, 4) > 0
    assert sum(plan.cost.counted.values()) == pytest.approx(plan.cost.cycles)
    assert planner.plan("conv:mb1ic64ih56oc64kh1", ZEN4, name=plan.name, threads=4).cost == plan.cost


@pytest.mark.parametrize("text", ["conv:ic256ih14oc1024kh1", "gemm:512x512x512", "conv:ic64ih28oc64kh3ph1"])
def test_what_lies_along_a_divided_loop_is_each_threads_own_and_the_rest_is_shared(text: str) -> None:
    plan = planner.plan(text, "sapphire-rapids", threads=8, algorithm="gemm" if text.startswith("gemm") else "sconv")
    thread_lines = explain(plan).split("\n\nthreads\n")[1].split("\n\n")[0].replace("\n      ", " ").splitlines()
    w, s = parse(text), plan.schedule
    assert isinstance(s, Schedule)
    windows, filters = (w.n, w.m) if isinstance(w, Gemm) else (w.windows, w.filters)
    together = shares_panels(w, s, 8)
    parts = nest_grid(1, -(-windows // s.windows), -(-filters // s.filters), 8, together)
    lines = [f"  {count} parts of {what} tiles:" for count, what in zip(parts, ("window", "filter"), strict=True) if count > 1]
    assert sorted(line.split(":")[0] + ":" for line in thread_lines) == sorted(lines)
    for line in thread_lines:
        own, shared = line.split("each has its own ")[1].split("; they share ")
        assert "output" in own and ("filters" in shared if "window tiles" in line else "input" in shared)
        assert ("packed" in shared) == together


def test_cores_share_capacity_and_bandwidth_of_what_is_shared_alone() -> None:
    total = Number(value=20.0, kind="measured", source="l3")
    levels = tuple(_replace(level, total_read_bytes_per_cycle=total) if level.shared else level for level in ZEN4.levels)
    seen = machine_of_one_core(_replace(ZEN4, levels=levels), 4, 0.25)
    assert seen.levels[:2] == tuple(_replace(level, starts_cold=True) for level in ZEN4.levels[:2])  # what other runs left is elsewhere
    assert seen.levels[2].size_bytes == ZEN4.levels[2].size_bytes // 4 and seen.levels[2].read_bytes_per_cycle.value == 5.0
    assert seen.levels[2].write_bytes_per_cycle == ZEN4.levels[2].write_bytes_per_cycle
    assert machine_of_one_core(ZEN4, 1, 1.0) is ZEN4


def test_threads_beyond_the_cores_are_predicted_no_faster() -> None:
    text = "conv:mb16ic64ih28oc64kh3ph1"
    at, beyond = (planner.plan(text, _replace(ZEN4, cores=2), threads=threads).seconds for threads in (2, 4))
    assert at and beyond and beyond >= 0.95 * at


@pytest.mark.parametrize("text", PROBLEMS)
def test_every_number_of_threads_gives_the_bits_of_one(text: str) -> None:
    problem, random = parse(text), np.random.default_rng(1)
    for one in pysim.plan(text).considered:
        results = set()
        for threads in (1, 2, 3, 7, 16):
            random = np.random.default_rng(1)
            plan = pysim.plan(text, name=_name(one.algorithm, one.schedule))
            first, second = (random.standard_normal(shape).astype(np.float32) for shape in _shapes(problem))
            results.add(plan.run(first, second, threads=threads).tobytes())
        assert len(results) == 1, one


CALLER_AND_WORKER = """
import os, time

caller, other = sorted(os.sched_getaffinity(0))[:2]
os.sched_setaffinity(0, {caller, other})

import numpy as np, pysim

before = set(os.listdir("/proc/self/task"))
plan = pysim.plan("conv:mb1ic64ih28oc64kh3ph1")
x, w = np.ones((1, 64, 28, 28), np.float32), np.ones((64, 64, 3, 3), np.float32)
plan.run(x, w)  # loads the library
for moved_to in (caller, other, caller):
    os.sched_setaffinity(0, {moved_to})
    away, end, placed = {caller + other - moved_to}, time.monotonic() + 30, []
    while away not in placed and time.monotonic() < end:
        plan.run(x, w, threads=2)
        time.sleep(0.001)  # the worker sleeps
        placed = [os.sched_getaffinity(int(tid)) for tid in set(os.listdir("/proc/self/task")) - before]
    assert away in placed, (moved_to, placed)
"""


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_a_worker_keeps_off_its_callers_cpu_wherever_the_caller_goes() -> None:
    done = subprocess.run([sys.executable, "-c", CALLER_AND_WORKER], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr


def _name(algorithm: str, schedule: object) -> str:
    from pysim.record.schedule import name_of

    return name_of(algorithm, schedule)


def _shapes(problem: Conv | Gemm) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if isinstance(problem, Gemm):
        return (problem.m, problem.k), (problem.k, problem.n)
    weights = problem.filters, problem.channels // problem.groups, problem.kernel_h, problem.kernel_w
    return (problem.batch, problem.channels, problem.height, problem.width), weights


def _replace(of, **fields):
    import msgspec

    return msgspec.structs.replace(of, **fields)


def _with(machine: Machine, **cycles: float) -> Machine:
    numbers = {name: Number(value=value, kind="assumed", source="fit") for name, value in cycles.items()}
    return _replace(machine, core=_replace(machine.core, **numbers))


def test_bytes_of_a_problem_are_those_of_its_operands() -> None:
    assert touched_bytes(parse("gemm:2x3x5")) == 4 * (10 + 15 + 6)
    assert touched_bytes(parse("conv:mb2ic4ih5oc6kh3ph1")) == 4 * (2 * 4 * 25 + 6 * 4 * 9 + 2 * 6 * 25)


def _share(value: float) -> Number:
    return Number(value=value, kind="measured", source="l3")


SHARING = Together(cpus=8, slowest_share=_share(0.5), mean_share=_share(0.8))


def test_a_run_waits_for_its_slowest_part_and_for_the_mean_of_many() -> None:
    slow = _replace(ZEN4, core=_replace(ZEN4.core, together=(SHARING,)))
    assert busy_rate(ZEN4, 8, 1) == busy_rate(slow, 1, 1) == 1.0
    assert busy_rate(slow, 8, 1) == busy_rate(slow, 16, 1) == 0.5 and busy_rate(slow, 8, 10**6) == pytest.approx(0.8)
    assert 0.5 < busy_rate(slow, 4, 1) < 1.0 and busy_rate(slow, 8, 1) < busy_rate(slow, 8, 2) < 0.8
    assert busy_rate(slow, 8, 1, 8.0) == 0.5 and busy_rate(slow, 8, 1, 1.0) == 0.8  # one has most to do: it is as fast as any
    text = "conv:ic64ih64oc128kh1"  # 64 tiles of 64 windows
    name = "sconv,kernel=f32_win_64x6__avx512,stationary=input_stationary,pack=none,windows=64,filters=6,channels=64,k2=22,k3=64"
    even, shared = (planner.plan(text, machine, name=name, threads=8).cost for machine in (ZEN4, slow))
    assert isinstance(even, Cost) and isinstance(shared, Cost)
    assert shared.cycles - shared.terms["threads"] == pytest.approx(2 * (even.cycles - even.terms["threads"]))


def test_a_unit_that_busy_cpus_slow_down_is_planned_at_the_rate_it_then_has() -> None:
    machine = load("emerald-rapids")
    assert isinstance(machine, Machine)

    def with_tiles(*together: Together) -> Machine:
        units = tuple(_replace(unit, together=together if unit.target == "amx" else ()) for unit in machine.core.units)
        return _replace(machine, core=_replace(machine.core, units=units))

    def rate(of: Machine, threads: int = 16, items: int = 1, target: str = "amx", dtype: str = "f32") -> float:
        return machine_of_one_core(of, threads, 1.0, items).unit_of(target).rate(dtype) / of.unit_of(target).rate(dtype)

    slow = with_tiles(Together(cpus=16, slowest_share=_share(0.125), mean_share=_share(0.25)))
    assert rate(slow) == rate(slow, dtype="bf16") == 0.125 and rate(slow, target="avx512") == 1.0
    assert rate(slow, items=10**6) == pytest.approx(0.25) and 0.125 < rate(slow, items=2) < 0.25 < rate(slow, threads=8, items=4) < 1
    half = (Together(cpus=16, slowest_share=_share(0.5), mean_share=_share(0.5)),)
    assert rate(_replace(slow, core=_replace(slow.core, together=half))) == 0.25  # busy_rate has the other half
    plans = [planner.plan("gemm:2048x2048x2048", one, threads=16, accuracy="strict") for one in (with_tiles(), slow)]
    assert ["amx" in plan.name for plan in plans] == [True, False]
    assert all("amx" in planner.plan("gemm:2048x2048x2048", one, accuracy="strict").name for one in (with_tiles(), slow))


def test_lines_that_two_threads_write_are_those_that_tiles_begin_within() -> None:
    """Rows of 14x14 results are 12.25 lines, of 16x16 16: tiles of 64 begin on multiples of 16 and of 64 bytes."""
    name = "sconv,kernel=f32_win_64x6__avx512,stationary=input_stationary,pack=none,windows=64,filters=6,channels=128,k2=171,k3=4"
    for size, share in ((14, 0.75), (16, 0.0)):
        problem = parse(f"conv:ic256ih{size}oc1024kh1")
        part = algorithm_named("sconv", problem, ZEN4).largest_part(problem, planner.plan(problem, ZEN4, name=name).schedule, 4)
        # four parts of windows, of all filters: the second has both ends, in 1024 rows, in each set of 128 of 256 channels
        assert part.seams == 2 * 1024 * 2 and false_sharing_lines(ZEN4, part) == share * part.seams
    slow, free = (_with(ZEN4, written_line_cycles=cycles) for cycles in (200.0, 0.0))
    more, less = (planner.plan("conv:ic256ih14oc1024kh1", machine, name=name, threads=4).cost for machine in (slow, free))
    assert isinstance(more, Cost) and isinstance(less, Cost)
    meanwhile = sum(less.counted[name] for name in less.levels)
    assert more.cycles - less.cycles == pytest.approx(200 * 0.75 * 4096 - meanwhile)


@pytest.mark.parametrize("text", ["conv:ic256ih14oc1024kh1", "gemm:512x512x512"])
def test_a_plan_of_several_threads_is_held_against_the_peak_of_as_many(text: str) -> None:
    shares = [100 * peak_share(planner.plan(text, "zen5", threads=threads)) for threads in (1, 8)]
    assert 0 < shares[1] <= shares[0] <= 100
