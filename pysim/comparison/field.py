# SPDX-License-Identifier: Apache-2.0
"""Who is timed beside a plan: peers, each checked on the plan's own operands before.

A peer may have several algorithms: every one enters, and the fastest right one of them is what the peer needs for the problem. What a peer
refuses, cannot get memory for or computes wrongly is a reason, never an error of the plan.
"""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from pysim.check.verdict import Verdict, judge
from pysim.comparison.bench import Bench
from pysim.errors import MissingError, PysimError
from pysim.peers import Peer
from pysim.peers.peer import Make, Ready


class Entry(NamedTuple):
    """A contender, and how it is prepared."""

    peer: str
    algorithm: str
    make: Make


class Field(NamedTuple):
    """The right peers of one plan by name ("cublas", "cudnn GEMM"), prepared on the random operands, the largest error of each over the
    result's root mean square, the seconds that analytic ones expect of their own kernels, with versions, and why others take no part."""

    ready: dict[str, tuple[Entry, Ready]]
    errors: dict[str, float]
    estimates: dict[str, tuple[float, str]]
    missing: dict[str, str]


def checked(bench: Bench, make: Make) -> tuple[Verdict, Ready]:
    """The verdict on what `make` prepares, and it on the random operands; it may be timed where that is passed."""
    exact, random = bench.operands(exact=True), bench.operands(exact=False)
    first, ready = make(exact), make(random)
    verdict = judge(bench.trial, ready.bound, bench.result(first, exact), lambda: bench.result(ready, random), bench.everywhere)
    return verdict, ready


def field_of(bench: Bench, peers: Mapping[str, Peer], gpu: str) -> Field:
    """The peers that compute a bench's problem, checked; `gpu` is the machine's name, for those that estimate."""
    field = Field({}, {}, {}, {})
    for name, peer in peers.items():
        if isinstance(bench.trial.workload, peer.computes):
            (_estimate if peer.analytic else _enter)(field, bench, name, peer, gpu)
    return field


def _estimate(field: Field, bench: Bench, name: str, peer: Peer, gpu: str) -> None:
    try:
        field.estimates[name] = peer.library.estimate(bench.trial.workload, gpu)
    except MissingError as error:
        field.missing[name] = str(error)


def _enter(field: Field, bench: Bench, name: str, peer: Peer, gpu: str) -> None:
    """Every algorithm of a peer. What it refuses is told where none ran; that there was no memory for it, or that it is wrong, always."""
    refused: dict[str, str] = {}
    for algorithm in peer.library.ALGORITHMS:
        label = f"{name} {algorithm}".rstrip()
        entry = Entry(name, algorithm, partial(peer.library.make, bench.trial.workload, algorithm=algorithm))
        try:
            verdict, ready = checked(bench, entry.make)
        except MissingError as error:
            refused[algorithm] = str(error)
        except Exception as error:  # others' code
            field.missing[label] = reason_of(error)
        else:
            if verdict.passed:
                field.ready[label], field.errors[label] = (entry, ready), verdict.over_rms
            else:
                field.missing[label] = f"its result is wrong: {verdict.reason}"
    if len(refused) == len(peer.library.ALGORITHMS):
        field.missing[name] = next(iter(refused.values()))
    elif not any(entry.peer == name for entry, _ in field.ready.values()) and name not in field.missing:
        others = f"{', '.join(refused) or 'none'} refused {bench.trial.workload.text}, the others failed"
        field.missing[name] = f"none of its algorithms ran: {others}"


def reason_of(error: Exception) -> str:
    """An error as a reason: pysim's own sentences as they are, others with their kind."""
    return str(error) if isinstance(error, PysimError) else f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
