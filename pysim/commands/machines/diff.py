# SPDX-License-Identifier: Apache-2.0
"""`pysim machines diff`: compares the numbers of two machines and their plans."""

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from pysim.commands.common import Column, document, json_option, kind_cell, layers_of, plural, put, put_table, quantity, seconds

if TYPE_CHECKING:
    from pysim.machine.cpu import Machine
    from pysim.machine.gpu import Gpu
    from pysim.problem.text import Workload
    from pysim.record.plan import Plan


@click.command(short_help="Compare two machines and their plans.")
@click.argument("a")
@click.argument("b")
@click.argument("problems", nargs=-1, metavar="[PROBLEM]...")
@json_option
def diff(a: str, b: str, problems: tuple[str, ...], as_json: bool) -> None:
    """Compare machines A and B (names, host, or .toml files): the numbers that differ, and for each PROBLEM both plans, the time of
    A's plan on B, or why it cannot run there.

    \b
    Examples
      pysim machines diff zen4 zen5
      pysim machines diff host mine.toml conv:mb1ic64ih56oc64kh3ph1
    """
    from pysim.calibration import host
    from pysim.errors import MachineError

    first, second = host.any_machine(a), host.any_machine(b)
    if type(first) is not type(second):
        raise MachineError(f"{a} and {b} are a CPU and a GPU, which share no numbers; give two of one kind")
    differences = _differences(first, second)
    compared = [_compared(layer.workload, first, second) for layer in layers_of(problems)] if problems else []
    if as_json:
        document(differences=differences, plans=[one.to_dict() for one in compared])
        return
    put_table(
        [
            Column[dict[str, Any]]("number", lambda one: one["number"], left=True),
            Column(a, lambda one: "-" if one["a"] is None else quantity(one["a"])),
            Column(b, lambda one: "-" if one["b"] is None else quantity(one["b"])),
            Column("b / a", lambda one: f"{one['b'] / one['a']:.3f}" if one["a"] and one["b"] is not None else "-"),
            Column("a is", lambda one: kind_cell(one["a_kind"]), left=True),
            Column("b is", lambda one: kind_cell(one["b_kind"]), left=True),
        ],
        differences,
    )
    put(f"{plural(len(differences), 'number')} differ")
    for one in compared:
        _put_plans(a, b, one)


class _Answer(NamedTuple):
    """A plan, or why there is none."""

    plan: "Plan | None"
    why: str | None = None

    @property
    def name(self) -> str:
        return self.plan.name if self.plan else f"none: {self.why}"

    @property
    def seconds(self) -> float | None:
        return self.plan.seconds if self.plan else None


class _Compared(NamedTuple):
    """The plan of each machine for a problem, and A's plan on B, which may lack the kernels."""

    problem: str
    a: _Answer
    b: _Answer
    moved: _Answer

    def to_dict(self) -> dict[str, Any]:
        """As a document has it."""
        plans = {name: answer.plan.to_dict() if answer.plan else None for name, answer in (("a", self.a), ("b", self.b))}
        refused = {f"{name}_refused": answer.why for name, answer in (("a", self.a), ("b", self.b), ("a_on_b", self.moved))}
        return {"problem": self.problem, **plans, "a_on_b_seconds": self.moved.seconds, **refused}


def _compared(workload: "Workload", first: "Machine | Gpu", second: "Machine | Gpu") -> _Compared:
    """Raises PlanError where neither machine computes the problem."""
    from pysim import planner
    from pysim.errors import PlanError

    def answer(on: "Machine | Gpu", named: "Plan | None" = None) -> _Answer:
        try:
            return _Answer(planner.plan(workload, on, name=named.name, layout=named.layout) if named else planner.plan(workload, on))
        except PlanError as error:
            return _Answer(None, str(error))

    a, b = answer(first), answer(second)
    if not (a.plan or b.plan):
        raise PlanError(f"neither {first.name} nor {second.name} computes {workload.text}: {a.why}")
    moved = answer(second, a.plan) if a.plan else _Answer(None, a.why)
    return _Compared(workload.text, a, b, moved)


def _differences(a: "Machine | Gpu", b: "Machine | Gpu") -> list[dict[str, Any]]:
    """The numbers that differ, each with both values and kinds; null where a machine has no such number."""
    from pysim.machine.quantity import quantities

    values = [{path: value for path, _, value in quantities(one)} for one in (a, b)]
    paths = [path for path in dict.fromkeys([*values[0], *values[1]]) if values[0].get(path) != values[1].get(path)]
    kinds = [_kinds(one, paths) for one in (a, b)]
    return [
        {"number": path, "a": values[0].get(path), "b": values[1].get(path), "a_kind": kinds[0][path], "b_kind": kinds[1][path]}
        for path in paths
    ]


def _kinds(machine: "Machine | Gpu", paths: list[str]) -> dict[str, str]:
    """The kind of each number: its own, or that of its table."""
    from pysim.machine.quantity import facts

    known = {path: fact.kind for path, fact in facts(machine)}

    def kind(path: str) -> str:
        return known.get(path) or (kind(path.rpartition(".")[0]) if "." in path else "")

    return {path: kind(path) for path in paths}


def _put_plans(a: str, b: str, one: _Compared) -> None:
    """Writes both plans and the cycles of their cost terms."""
    put("")
    put((one.problem, "bold"))
    put_table(
        [
            Column[tuple[str, _Answer]]("on", lambda on: on[0], left=True),
            Column("predicted", lambda on: seconds(on[1].seconds)),
            Column("plan", lambda on: on[1].name, left=True),
        ],
        [(a, one.a), (b, one.b)],
    )
    if one.moved.seconds and one.b.seconds and one.a.name != one.b.name:
        put(f"{a}'s plan would take {seconds(one.moved.seconds)} on {b}, {one.moved.seconds / one.b.seconds:.3f} times {b}'s own")
    elif one.a.plan and not one.moved.plan:
        put(f"{a}'s plan cannot run on {b}: {one.moved.why}")
    terms, others = (getattr(answer.plan.cost, "terms", {}) if answer.plan else {} for answer in (one.a, one.b))
    put_table(
        [
            Column[str]("cycles", str, left=True),
            Column(a, lambda term: quantity(terms.get(term, 0.0))),
            Column(b, lambda term: quantity(others.get(term, 0.0))),
        ],
        dict.fromkeys([*terms, *others]),
    )
