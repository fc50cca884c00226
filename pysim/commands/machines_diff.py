# SPDX-License-Identifier: Apache-2.0
"""`pysim machines diff`: two machines side by side, and what their numbers change in plans."""

from typing import TYPE_CHECKING, Any

import click

from pysim.commands.common import KIND_STYLE, Cell, document, json_option, layers_of, plural, put, put_table, quantity, seconds

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
    put_table(["number", a, b, "b / a", "a is", "b is"], list(map(_cells, differences)), left=["number", "a is", "b is"])
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


def _cells(one: dict[str, Any]) -> list[Cell]:
    both = one["a"] is not None and one["b"] is not None
    values = ["-" if value is None else quantity(value) for value in (one["a"], one["b"])]
    kinds: list[Cell] = [(kind, KIND_STYLE.get(kind, "")) for kind in (one["a_kind"], one["b_kind"])]
    return [one["number"], *values, f"{one['b'] / one['a']:.3f}" if both and one["a"] else "-", *kinds]


def _put_plans(a: str, b: str, one: "Plan", other: "Plan", there: float | None) -> None:
    """Both choices, and the cycles of their terms."""
    put("")
    put((one.problem, "bold"))
    put_table(
        ["on", "predicted", "plan"], [[a, seconds(one.seconds), one.name], [b, seconds(other.seconds), other.name]], left=["on", "plan"]
    )
    if one.name != other.name and there and other.seconds:
        put(f"{a}'s choice would take {seconds(there)} on {b}, {there / other.seconds:.3f} times {b}'s own")
    terms = [getattr(plan.cost, "terms", {}) for plan in (one, other)]
    rows = [[name, *(quantity(some.get(name, 0.0)) for some in terms)] for name in dict.fromkeys([*terms[0], *terms[1]])]
    put_table(["cycles", a, b], rows, left=["cycles"])
