# SPDX-License-Identifier: Apache-2.0
"""`pysim sweep`: problems x machines x options from a file, predicted, simulated or measured, resumable, on any number of workers."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pysim.commands.common import (
    Column,
    OutputFile,
    Whole,
    document,
    json_option,
    plural,
    progress,
    put,
    put_table,
    read_model,
    say,
    seconds,
)

if TYPE_CHECKING:
    from pysim.sweep.results import Result
    from pysim.sweep.spec import Task


@click.command()
@click.argument("spec", type=click.Path(dir_okay=False, path_type=Path))
@click.option("-o", "--output", type=OutputFile(".jsonl"), help="File of the results, one a line; default: SPEC with the suffix .jsonl.")
@click.option("--workers", type=Whole(1, 1024), metavar="N", help="Processes of this computer that share the tasks (Dask).")
@click.option("--dask", "scheduler", metavar="ADDRESS", help="A Dask scheduler, e.g. tcp://10.0.0.1:8786, whose workers share the tasks.")
@json_option
def sweep(spec: Path, output: Path | None, workers: int | None, scheduler: str | None, as_json: bool) -> None:
    """Predict, simulate or measure every combination of the problems, machines and options in SPEC, a TOML file.

    Stopped and started again, it goes on where it was: what the file of results has is not computed again.

    \b
    A SPEC is
      problems = ["resnet50", "gemm:512x2048x1024"]
      machines = ["zen4", "zen5"]          # or ["all"]
      how = "predict"                      # or "simulate", "measure"
      threads = [1, 2]
      [set]
      "levels.L2.size_bytes" = [1048576, 2097152]

    \b
    Examples
      pysim sweep caches.toml -o caches.jsonl
      pysim sweep caches.toml --workers 2
      pysim sweep caches.toml --dask tcp://10.0.0.1:8786
    """
    from pysim.sweep import results
    from pysim.sweep.spec import read, tasks_of

    if workers and scheduler:
        raise click.UsageError("--workers starts workers here, --dask uses those of a scheduler; give one of the two")
    asked = read(spec)
    if asked.how == "measure" and workers and workers > 1:
        raise click.UsageError("measurements on one computer disturb one another; leave out --workers")
    path = output or spec.with_suffix(".jsonl")
    wanted = tasks_of(asked, read_model, str(spec))
    rest = results.missing(wanted, results.read(path))
    if len(rest) < len(wanted):
        say(f"{path} has {len(wanted) - len(rest):,} of {plural(len(wanted), 'result')}")
    _compute(rest, path, workers, scheduler)
    found = results.latest(wanted, results.read(path))
    if as_json:
        document(results=found)
    else:
        _put(found)
        put(f"{plural(len(found), 'result')} in {path}")
    if any(one.failed for one in found):
        raise click.exceptions.Exit(1)


def _compute(rest: "list[Task]", path: Path, workers: int | None, scheduler: str | None) -> None:
    """Computes with progress: the rate and the time left."""
    from pysim.sweep import results

    begun = time.monotonic()
    with progress() as show:
        for number, _ in enumerate(results.computed(rest, path, workers, scheduler), 1):
            rate = number / (time.monotonic() - begun)
            show(f"{number:,} of {len(rest):,}, {rate:,.1f} a second, {(len(rest) - number) / rate:,.0f} s left")
        show("")


def _put(found: "list[Result]") -> None:
    """One row per combination of machine and options: the time of all its problems, and what failed."""
    cases: dict[str, list[Result]] = {}
    for one in found:
        cases.setdefault(one.task.case, []).append(one)
    totals = {case: sum(one.task.count * one.result["seconds"] for one in of if not one.failed) for case, of in cases.items()}
    complete = {case for case, of in cases.items() if not any(one.failed for one in of)}
    first = next((totals[case] for case in cases if case in complete), 0.0)
    columns: list[Column[str]] = [
        Column("predicted", lambda case: (seconds(totals[case]), "bold") if totals[case] else "-"),
        Column("x of first", lambda case: f"{totals[case] / first:.3f}" if case in complete and first else "-"),
        Column("problems", lambda case: str(len(cases[case]))),
        Column("failed", lambda case: str(sum(one.failed for one in cases[case]) or "")),
        Column("", str, left=True),
    ]
    put_table(columns, cases)
    reasons = dict.fromkeys(one.result["error"] for one in found if one.failed)
    for reason in [*reasons][:3]:
        say(f"failed: {reason}")
    if len(reasons) > 3:
        say(f"and {plural(len(reasons) - 3, 'other reason')}")
