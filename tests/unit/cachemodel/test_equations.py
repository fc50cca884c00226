# SPDX-License-Identifier: Apache-2.0
"""Recorded equations: the same numbers as NumPy, for every nest and table; what cannot be recorded is refused."""

import math
from typing import NamedTuple

import numpy as np
import pytest

import pysim
from pysim.cachemodel import equations
from pysim.cachemodel.cpu import nest_loops, nest_schedules
from pysim.cachemodel.equations import OfRows, Program, Programs, as_rows, asked, empty
from pysim.cachemodel.gpu import waves
from pysim.errors import NativeError
from pysim.planner.plan import forget
from pysim.runtime import cpu as runtime

pytestmark = pytest.mark.skipif(not equations.evaluable(), reason="the native library is not built")
WIDTHS = (1, 7, 8, 63, 64, 65, 200)


def numbers(rows, columns, seed=3):
    return np.random.default_rng(seed).uniform(-4, 9, (rows, columns)).round(2)


def every_operation(rows):
    x, y, z = rows
    sums = as_rows(equations.columns_of(x), x, y, 2.0)
    sums[1:] -= z
    more = empty((2, 2), equations.columns_of(x))
    more[0], more[1] = sums[:2], 1.0
    np.minimum(more[0], z, out=more[1])
    more[1] *= np.where(~(x > y) | (y != z), np.maximum(x, 0.0) ** 1.5, x**2.0)
    rest = np.where((x > y) & (x >= z), np.floor(x), np.ceil(y) * 3), np.sqrt(np.maximum(x, 0.0)) / (1 + abs_of(y)), np.exp(z / 8)
    return (sums.sum(axis=0), more.swapaxes(0, 1)[:, 1], *rest, np.where(x < y, 1.0, x == y), np.array([[1.0], [2.0]]) * (x + 0.0)), None


def abs_of(y):
    return np.maximum(y, 0 - y)


@pytest.mark.parametrize("columns", WIDTHS)
def test_every_operation_rounds_as_numpy_does(columns):
    program, rows = Program.of(every_operation, 3), numbers(3, columns)
    for ours, want in zip(program(rows), every_operation(rows)[0], strict=True):
        np.testing.assert_allclose(ours, want, rtol=1e-14, atol=0)


def test_an_operation_is_recorded_once_and_a_neutral_one_not_at_all():
    program = Program.of(lambda rows: ((np.minimum(rows[0], rows[1]) + 1, np.minimum(rows[0], rows[1]) * 1.0), None), 2)
    assert program.struct.length == 6


class Sizes(NamedTuple):
    rows: int
    padded: bool


@asked
def common(sizes, other):
    return math.gcd(sizes.rows, other)


def of_sizes(rows, sizes):
    return ((rows * sizes.rows + common(sizes, 12)) if sizes.padded else rows * 2,), sizes.padded


def traced_in(programs):
    return sum(map(len, programs.recorded.values()))


def test_a_program_asks_each_problem_and_serves_those_that_answer_alike(monkeypatch):
    monkeypatch.setattr(equations, "OFTEN", 1)
    programs, rows = Programs(), numbers(1, 5)
    for sizes in (Sizes(6, True), Sizes(8, True), Sizes(8, False), Sizes(3, False)):
        program = programs.of(lambda sizes=sizes: Program.of(of_sizes, 1, sizes), sizes)
        np.testing.assert_array_equal(program(rows, sizes)[0], of_sizes(rows, sizes)[0][0])
        assert program.about == sizes.padded
    assert traced_in(programs) == 2


def test_equations_are_traced_once_they_are_evaluated_often():
    programs = Programs()
    made = [programs.of(lambda: Program.of(lambda rows: ((rows + 1,), None), 1)) for _ in range(equations.OFTEN + 1)]
    assert made[:-2] == [None] * (equations.OFTEN - 1) and made[-2] is made[-1] is not None


def test_equations_of_rows_are_traced_for_what_is_known_and_so_many_rows(monkeypatch):
    monkeypatch.setattr(equations, "OFTEN", 2)
    scaled = OfRows(lambda rows, by: (rows.sum(axis=0) * by, rows[0] - by))
    for rows, by in ((2, 3.0), (3, 3.0), (2, 4.0)):
        table = numbers(2 * rows, 70)[::2]  # rows apart in memory
        untraced, traced = scaled(table, by), scaled(table, by)
        for ours, want in zip(traced, untraced, strict=True):
            np.testing.assert_array_equal(ours, want)
    assert [*map(traced_in, scaled.programs.values())] == [1, 1, 1]


def test_equations_of_rows_ask_a_problem(monkeypatch):
    monkeypatch.setattr(equations, "OFTEN", 1)
    scaled = OfRows(lambda rows, by, sizes: (rows * sizes.rows + by,) if sizes.padded else (rows,))
    for sizes in (Sizes(7, True), Sizes(5, True), Sizes(5, False)):
        np.testing.assert_array_equal(scaled(rows := numbers(2, 9), 3.0, problem=sizes)[0], rows * sizes.rows + 3 if sizes.padded else rows)
    assert [*map(traced_in, scaled.programs.values())] == [2]


def test_a_problem_is_asked_once_however_often_its_program_runs(monkeypatch):
    monkeypatch.setattr(equations, "OFTEN", 1)
    asked_of, programs, rows = [], Programs(), numbers(1, 5)

    @asked
    def noted(sizes):
        asked_of.append(sizes)
        return sizes.rows

    for _ in range(3):
        sizes = Sizes(7, True)
        program = programs.of(lambda sizes=sizes: Program.of(lambda rows, sizes: ((rows * noted(sizes),), None), 1, sizes), sizes)
        np.testing.assert_array_equal(program(rows, sizes)[0], rows * 7)
    assert len(asked_of) == 2  # traced, and answered for its numbers


@pytest.mark.parametrize(
    "looks",
    [
        lambda rows: rows[0] if rows[0] > 1 else rows[1],
        lambda rows: rows[0] if rows.any() else rows[1],
        lambda rows: np.linalg.norm(rows, axis=0),
        lambda rows: np.cumsum(rows, axis=0),
        lambda rows: np.add(rows[0], rows[1], where=True),
        lambda rows: rows[0] + np.ones(7),
    ],
)
def test_equations_that_look_at_numbers_or_do_something_else_are_refused(looks):
    with pytest.raises((TypeError, AttributeError)):
        Program.of(lambda rows: ((looks(rows),), None), 2)


@pytest.mark.parametrize("change", [("operation", 99), ("to", 999), ("to", -1), ("a", 999), ("a", -1)])
def test_the_library_refuses_instructions_that_leave_its_arrays(change):
    program = Program.of(lambda rows: ((rows[0] + rows[1],), None), 2)
    for at in range(program.struct.length):
        ffi, _ = runtime.library()
        other = ffi.new("pysim_instruction[]", [program.instructions[k] for k in range(program.struct.length)])
        setattr(other[at], *change)
        struct = ffi.new("pysim_program *", program.struct[0])
        struct.instructions = other
        with pytest.raises(NativeError, match="instruction"):
            program._replace(struct=struct)(numbers(2, 3))


PROBLEMS = (
    "gemm:300x700x900",
    "gemm:64x1000x50:tn",
    "gemm:40x500x600:nt",
    "gemm:77x88x99:bf16",
    "conv:mb2ic64ih56oc96kh3ph1",
    "conv:g4mb1ic64ih28oc64kh1",
    "conv:mb1ic512ih14oc256kh1",
    "conv:mb1ic96ih30oc64kh3ph1:s8",
    "conv:g64mb1ic64ih30oc64kh3ph1",
    "conv:mb1ic3ih64oc32kh7sh2ph3",
)


@pytest.mark.parametrize("machine", ["zen4", "sapphire-rapids", "power10-e1050"])
def test_plans_and_costs_are_the_same_with_programs_and_without(machine, monkeypatch):
    def planned():
        forget()
        return [(plan.name, plan.cost.cycles) for plan in (pysim.plan(problem, machine=machine) for problem in PROBLEMS)]

    monkeypatch.setattr(equations, "OFTEN", math.inf)
    without = planned()
    monkeypatch.setattr(equations, "OFTEN", 1)
    before = recorded()
    assert [name for name, _ in planned()] == [name for name, _ in without]
    np.testing.assert_allclose([cycles for _, cycles in planned()], [cycles for _, cycles in without], rtol=1e-13)
    assert recorded() > before


@pytest.mark.parametrize("machine", ["h200", "v100"])
def test_launches_are_the_same_with_programs_and_without(machine, monkeypatch):
    problems = ("gemm:300x700x900", "gemm:4096x64x4000", "gemm:500x600x700:f16", "gemm:800x900x1000:f64", "conv:mb8ic64ih56oc64kh3ph1")
    found = []
    for often in (math.inf, 1):
        waves._predicted.programs.clear()
        waves._without_traffic.programs.clear()
        monkeypatch.setattr(equations, "OFTEN", often)
        forget()
        found.append([(plan.name, plan.cost.cycles) for plan in (pysim.plan(problem, machine=machine) for problem in problems)])
    assert [name for name, _ in found[0]] == [name for name, _ in found[1]]
    np.testing.assert_allclose([cycles for _, cycles in found[0]], [cycles for _, cycles in found[1]], rtol=1e-13)
    assert len(waves._predicted.programs) and len(waves._without_traffic.programs)


def recorded():
    return sum(traced_in(one) for of in (nest_loops._streams, nest_schedules._bounded) for one in of.programs.values())
