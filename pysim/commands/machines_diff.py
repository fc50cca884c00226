# SPDX-License-Identifier: Apache-2.0
"""`pysim machines diff`: two machines side by side, and what their numbers change in plans."""

from typing import TYPE_CHECKING, Any

import click

from pysim.commands.common import Column, document, json_option, kind_cell, layers_of, plural, put, put_table, quantity, seconds

if TYPE_CHECKING:
    from pysim.machine.cpu import Machine
    from pysim.machine.gpu import Gpu
    from pysim.record.plan import Plan


@click.command(short_help="Two machines side by side, and what that changes in a plan.")
@click.argument("a")
@click.argument("b")
@click.argument("problems", nargs=-1, metavar="[PROBLEM]...")
@json_option
def diff(a: str, b: str, problems: tuple[str, ...], as_json: bool) -> None:
    """The numbers in which machines A and B differ (names, host, or .toml files), and the plan of each PROBLEM on both: which one each
    chooses, and what A's choice would take on B.

    \b
    Examples
      pysim machines diff zen4 zen5
      pysim machines diff host mine.toml conv:mb1ic64ih56oc64kh3ph1
    """
    from pysim import planner
    from pysim.calibration import host
    from pysim.errors import MachineError

    first, second = host.any_machine(a), host.any_machine(b)
    if type(first) is not type(second):
        raise MachineError(f"{a} and {b} are a CPU and a GPU, which share no numbers; give two of one kind")
    differences = _differences(first, second)
    workloads = [layer.workload for layer in layers_of(problems)] if problems else []
    pairs = [(planner.plan(one, first), planner.plan(one, second)) for one in workloads]
    moved = [planner.plan(chosen.workload, second, name=chosen.name, layout=chosen.layout).seconds for chosen, _ in pairs]
    if as_json:
        plans = [
            {"problem": one.problem, "a": one.to_dict(), "b": other.to_dict(), "a_on_b_seconds": there}
            for (one, other), there in zip(pairs, moved, strict=True)
        ]
        document(differences=differences, plans=plans)
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
    for (one, other), there in zip(pairs, moved, strict=True):
        _put_plans(a, b, one, other, there)


def _differences(a: "Machine | Gpu", b: "Machine | Gpu") -> list[dict[str, Any]]:
    """Paths at which the machines differ, with the value and the kind that each has; null where one has no such number."""
    from pysim.machine.quantity import quantities

    values = [{path: value for path, _, value in quantities(one)} for one in (a, b)]
    paths = [path for path in dict.fromkeys([*values[0], *values[1]]) if values[0].get(path) != values[1].get(path)]
    kinds = [_kinds(one, paths) for one in (a, b)]
    return [
        {"number": path, "a": values[0].get(path), "b": values[1].get(path), "a_kind": kinds[0][path], "b_kind": kinds[1][path]}
        for path in paths
    ]


def _kinds(machine: "Machine | Gpu", paths: list[str]) -> dict[str, str]:
    """How each number is known: its own kind, or that of the table it stands in."""
    from pysim.machine.quantity import facts

    known = {path: fact.kind for path, fact in facts(machine)}

    def kind(path: str) -> str:
        return known.get(path) or (kind(path.rpartition(".")[0]) if "." in path else "")

    return {path: kind(path) for path in paths}


def _put_plans(a: str, b: str, one: "Plan", other: "Plan", there: float | None) -> None:
    """Both choices, and the cycles of their terms."""
    from pysim.record.plan import Plan

    put("")
    put((one.problem, "bold"))
    put_table(
        [
            Column[tuple[str, Plan]]("on", lambda on: on[0], left=True),
            Column("predicted", lambda on: seconds(on[1].seconds)),
            Column("plan", lambda on: on[1].name, left=True),
        ],
        [(a, one), (b, other)],
    )
    if one.name != other.name and there and other.seconds:
        put(f"{a}'s choice would take {seconds(there)} on {b}, {there / other.seconds:.3f} times {b}'s own")
    terms, others = (getattr(plan.cost, "terms", {}) for plan in (one, other))
    put_table(
        [
            Column[str]("cycles", str, left=True),
            Column(a, lambda term: quantity(terms.get(term, 0.0))),
            Column(b, lambda term: quantity(others.get(term, 0.0))),
        ],
        dict.fromkeys([*terms, *others]),
    )
