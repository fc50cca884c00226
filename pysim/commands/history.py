# SPDX-License-Identifier: Apache-2.0
"""`pysim history`: what the measurement store knows; and, for `compare`, what changed since a baseline."""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from pysim.commands.common import Cell, Column, document, json_option, layers_of, plural, put, put_table, say, seconds
from pysim.errors import PlanError, StoreError, choose

if TYPE_CHECKING:
    from pysim.comparison.compare import Planned
    from pysim.comparison.history import Change, Compared, Run, Series
    from pysim.machine.cpu import Machine
    from pysim.machine.gpu import Gpu
    from pysim.measure.store import Store
    from pysim.peers import Peer
    from pysim.record.measurement import Comparison

RUNS, FEWEST_RUNS, MOST_RUNS = 3, 2, 10  # of a layer that is saved; of one that is compared with what was saved
MOST_UNDECIDED = 24  # of one whose change is undecided
UNDECIDED = 4  # exit code
SAMPLES = 90  # at least, of a library in such a run
_COLOURS = {"slower": "bold red", "faster": "green", "same": "", "undecided": "yellow"}


@click.command()
@click.argument("problems", metavar="[PROBLEM]...", nargs=-1)
@click.option("--baseline", metavar="NAME", help="Each setting's last run beside the run of this name (pysim compare --save NAME).")
@json_option
def history(problems: tuple[str, ...], baseline: str | None, as_json: bool) -> None:
    """List the runs of each PROBLEM in the measurement store, oldest first, each beside the first one of its machine, threads
    and layout.

    A change is that of the plan's time over the time of a library that was timed in turns with it, so a computer that is busier than it was
    changes little. Without a PROBLEM: the saved names, and how many runs each problem has.

    \b
    Examples
      pysim history
      pysim history conv:mb1ic64ih56oc64kh3ph1
      pysim history resnet50 --baseline monday
    """
    from pysim.comparison.history import compared, document_of, runs_of, series_of
    from pysim.measure.store import Store

    before = saved(baseline) if baseline else None
    with Store() as store:
        if not problems and before is None:
            _put_all(runs_of(store.find()), store.marks(), as_json)
            return
        saved_problems = [series[-1].ours.problem for series in before or ()]
        wanted = [layer.workload.text for layer in layers_of(problems)] if problems else saved_problems
        runs = [run for problem in dict.fromkeys(wanted) for run in runs_of(store.find(problem=problem))]
    if not runs:
        raise StoreError(f"the store has no measurement of {', '.join(problems)}; pysim compare makes some")
    if before is None:
        first = {run.setting: (run,) for run in reversed(runs)}
        rows = compared([*first.values()], [(run,) for run in runs])
    else:
        rows = compared(before, series_of(runs))
    if as_json:
        document(changes=[document_of(one) for one in rows])
        return
    _put(rows, times=True)


def checked(saved_as: str | None, resume: bool, baseline: str | None) -> "list[Series]":
    """The runs of the baseline, if one is asked for; UsageError for options of `compare` that do not go together."""
    if resume and not saved_as:
        raise click.UsageError("--resume goes on with what --save NAME began; give both")
    return saved(baseline) if baseline else []


def saved(name: str) -> "list[Series]":
    """The runs of a name. StoreError if it has none."""
    from pysim.comparison.history import baseline
    from pysim.measure.store import Store

    with Store() as store:
        if not (found := baseline(store, name)):
            known = choose(name, [one for one, _, _ in store.marks()])
            raise StoreError(f'nothing is saved as "{name}" in {store.path}; {known}; pysim compare --save {name} saves measurements')
    return found


class Kept(NamedTuple):
    """The runs of `compare --save` and `--baseline`, each with operands elsewhere in memory: RUNS of each layer under the name `saved_as`,
    or beside `before` FEWEST_RUNS, and up to MOST_RUNS while it may be slower, MOST_UNDECIDED while that is undecided. `beside`: the plans
    of `before` on their library, as a peer; `runs`: those of all layers so far."""

    saved_as: str | None
    before: "Sequence[Series]"
    beside: "Mapping[str, Peer]"
    runs: list[str]

    def of_layer(self, measure: "Callable[[Mapping[str, Peer]], Comparison]", peers: "Mapping[str, Peer]", store: "Store") -> "Comparison":
        """The first measurement of a layer, with all peers. The others need none but the baseline's plan, where that runs."""
        first = one = measure({**peers, **self.beside})
        made = list[str]()
        others = self.beside if self.beside.keys() & first.peers.keys() and not self.saved_as else peers
        while one.run:
            made.append(one.run)
            if self.saved_as:
                store.mark(self.saved_as, one.run)
            if not self._lacks(made, store):
                break
            one = measure(others)
        self.runs.extend(made)
        return first

    def _lacks(self, made: list[str], store: "Store") -> bool:
        if len(made) < (RUNS if self.saved_as else FEWEST_RUNS):
            return True
        if not self.before or len(made) >= MOST_UNDECIDED:
            return False
        changes = [one.change for one in _since(self.before, made, store) if one.change]
        return any(one.doubtful and (len(made) < MOST_RUNS or one.verdict == "undecided") for one in changes)


def carefully(threads: int, saved_as: str | None, on: "Machine | Gpu") -> dict[str, Any]:
    """How such runs are measured: longer than for a table, on one thread in the time that the process had, and marked as one series. The
    library that ran what is saved is kept."""
    return {
        "min_samples": SAMPLES,
        "own_time": threads == 1,
        "series": str(uuid.uuid4()),
        "library": _kept_library() if saved_as and _runs_here(on) else "",
    }


def _runs_here(on: "Machine | Gpu") -> bool:
    """Whether this process runs its plans, on a CPU."""
    from pysim.machine.gpu import Gpu
    from pysim.runtime.emulated import executor_for

    return not isinstance(on, Gpu) and executor_for(on).kind == "local"


def _kept_library() -> str:
    from pysim.peers.earlier import keep, kept_in

    try:
        return keep(kept_in())
    except StoreError as error:
        say(f"the library is not kept, so a later comparison is less certain: {error}")
        return ""


def beside(before: "Sequence[Series]", on: "Machine | Gpu") -> "dict[str, Peer]":
    """The plans of a baseline on the library that they were measured with, as a peer; nothing where none can run."""
    from pysim import planner
    from pysim.peers import Peer
    from pysim.peers.earlier import NAME, Earlier, kept_in

    plans = {}
    for ours in [series[-1].ours for series in before] if _runs_here(on) else []:
        details = ours.environment
        if ours.machine == on.name and "library" in details:
            terms: dict[str, Any] = {"threads": int(details["threads"]), "state": ours.state, "name": details["plan"]}
            with suppress(PlanError):  # this package lacks the kernel
                plans[ours.problem] = planner.plan(ours.problem, on, **terms), details["library"]
    return {NAME: Peer("", "cpu", made=Earlier(plans, kept_in()))} if plans else {}


def _since(before: "Sequence[Series]", runs: "Iterable[str]", store: "Store") -> "list[Compared]":
    from pysim.comparison.history import compared, runs_of, series_of

    return compared(before, series_of(runs_of(one for run in runs for one in store.find(run=run))))


def without_saved(planned: "Sequence[Planned]", name: str | None, state: str, threads: int) -> "list[Planned]":
    """The layers whose plan has no run of this name, if there is a name; a note on stderr says how many have one."""
    if name is None:
        return list(planned)
    from pysim.comparison.history import baseline
    from pysim.measure.store import Store
    from pysim.record.plan import Plan

    with Store() as store:
        last = [series[-1].ours for series in baseline(store, name)]
    done = {(ours.problem, ours.kernel, ours.state, ours.environment.get("threads")) for ours in last}
    rest = [
        (layer, plan)
        for layer, plan in planned
        if not isinstance(plan, Plan) or (plan.problem, plan.kernel, state, str(threads)) not in done
    ]
    if len(rest) < len(planned):
        say(f'"{name}" has {len(planned) - len(rest)} of {plural(len(planned), "layer")}')
    if not rest:
        raise click.exceptions.Exit(0)
    return rest


def put_changes(kept: Kept, name: str, as_json: bool) -> int:
    """Writes what changed since the baseline, to stderr beside a document; returns the exit code: 1 if a plan or all together became
    slower, UNDECIDED if one may have, 0 if none did."""
    from pysim.comparison.history import together
    from pysim.measure.store import Store

    with Store() as store:
        rows = _since(kept.before, kept.runs, store)
    slower, undecided = ([one for one in rows if one.change and one.change.verdict == verdict] for verdict in ("slower", "undecided"))
    every = together(rows, kept.before)
    of_all = f"all {len(rows)} together: {every.value - 1:+.1%} ({_interval(every)}), {every.verdict}" if every else ""
    if as_json:
        for verdict, found in (("slower", slower), ("undecided", undecided)):
            for one in found:
                say(f"{verdict} since {name}: {one.after.ours.problem}")
        if every and every.verdict in ("slower", "undecided"):
            say(of_all)
    else:
        put("")
        unsure = f", {len(undecided)} undecided: measure again when this computer is quieter" if undecided else ""
        put(f'since "{name}": {plural(len(slower), "plan")} slower of {len(rows)}{unsure}')
        _put(rows)
        if every:
            put(of_all)
    if slower or (every and every.verdict == "slower"):
        return 1
    return UNDECIDED if undecided or (every and every.verdict == "undecided") else 0


def _interval(change: "Change") -> str:
    return f"{change.low - 1:+.1%} to {change.high - 1:+.1%}"


def _put(rows: "Sequence[Compared]", times: bool = False) -> None:
    def change(one: "Compared") -> Cell:
        return (f"{one.change.value - 1:+.1%}", _COLOURS[one.change.verdict]) if one.change else "-"

    def interval(one: "Compared") -> str:
        return _interval(one.change) if one.change else ""

    def verdict(one: "Compared") -> Cell:
        if one.change:
            return one.change.verdict, _COLOURS[one.change.verdict]
        return "no peer in common" if one.before else "not in the baseline"

    def version(one: "Compared") -> str:
        environment = one.after.ours.environment
        return environment.get("commit") or environment.get("pysim", "")

    when: list[Column[Compared]] = [
        Column("time", lambda one: one.after.ours.time[:16].replace("T", " "), left=True),
        Column("version", version, left=True),
    ]
    columns: list[Column[Compared]] = [
        *(when if times else []),
        Column("measured", lambda one: seconds(one.after.seconds)),
        Column("was", lambda one: seconds(one.before.seconds) if one.before else "-"),
        Column("change", change),
        Column("interval", interval),
        Column("", verdict, left=True),
        Column("beside", lambda one: one.change.against if one.change else "", left=True),
        Column("kernel", lambda one: one.after.ours.kernel, left=True),
        Column("problem", lambda one: one.after.ours.problem, left=True),
    ]
    put_table(columns, rows)


def _put_all(runs: "Sequence[Run]", marks: Sequence[tuple[str, int, str]], as_json: bool) -> None:
    """How many runs each problem has, and the saved names."""
    by_problem: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        by_problem.setdefault((run.ours.problem, run.ours.machine), []).append(run)
    if as_json:
        counted = [{"problem": name, "machine": on, "runs": len(of), "last": of[-1].ours.time} for (name, on), of in by_problem.items()]
        document(runs=counted, baselines=[{"name": name, "runs": count, "last": time} for name, count, time in marks])
        return
    if not runs:
        say("nothing is measured yet; pysim compare PROBLEM measures and keeps it")
        return
    columns: list[Column[tuple[str, str]]] = [
        Column("runs", lambda key: str(len(by_problem[key]))),
        Column("last", lambda key: by_problem[key][-1].ours.time[:16].replace("T", " "), left=True),
        Column("machine", lambda key: key[1], left=True),
        Column("problem", lambda key: key[0], left=True),
    ]
    put_table(columns, by_problem)
    for name, count, time in marks:
        put(f'saved as "{name}": {plural(count, "run")}, last {time[:16].replace("T", " ")}')
