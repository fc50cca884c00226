# SPDX-License-Identifier: Apache-2.0
"""The peers that are timed beside a plan, each checked on the plan's operands first.

All algorithms of a peer are timed, and the fastest correct one counts. If a peer refuses the problem, runs out of memory or gives a wrong
result, that is recorded as a reason and is no error of the plan.
"""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from pysim.check.verdict import Verdict, judge
from pysim.comparison.bench import Bench
from pysim.errors import MissingError, PysimError
from pysim.peers import Peer
from pysim.peers.peer import Make, Ready
from pysim.problem.conv import Conv


class Entry(NamedTuple):
    """A candidate, and how it is prepared."""

    peer: str
    algorithm: str
    make: Make


class Field(NamedTuple):
    """Peers of one plan by name ("cublas", "cudnn GEMM"). `ready`: correct ones, prepared on the random operands; `errors`: the largest
    error of each over the result's root mean square; `estimates`: seconds and version of analytic peers; `missing`: why others are
    absent."""

    ready: dict[str, tuple[Entry, Ready]]
    errors: dict[str, float]
    estimates: dict[str, tuple[float, str]]
    missing: dict[str, str]


def checked(bench: Bench, make: Make) -> tuple[Verdict, Ready]:
    """Prepares a call on both fills: the verdict, and the call on the random operands, to be timed if the verdict passed."""
    exact, random = bench.operands(exact=True), bench.operands(exact=False)
    first, ready = make(exact), make(random)
    verdict = judge(bench.trial, ready.bound, bench.result(first, exact), lambda: bench.result(ready, random), bench.everywhere)
    return verdict, ready


def field_of(bench: Bench, peers: Mapping[str, Peer], gpu: str) -> Field:
    """The checked peers that compute a bench's problem. `gpu`: the machine's name, for analytic peers."""
    field = Field({}, {}, {}, {})
    for name, peer in peers.items():
        workload = bench.trial.workload
        if isinstance(workload, peer.computes):
            if isinstance(workload, Conv) and workload.is_volume:
                field.missing[name] = "peers are timed on images and products, and these are volumes"
            elif peer.analytic:
                _estimate(field, bench, name, peer, gpu)
            else:
                _enter(field, bench, name, peer)
    return field


def _estimate(field: Field, bench: Bench, name: str, peer: Peer, gpu: str) -> None:
    try:
        field.estimates[name] = peer.library.estimate(bench.trial.workload, gpu)
    except MissingError as error:
        field.missing[name] = str(error)


def _enter(field: Field, bench: Bench, name: str, peer: Peer) -> None:
    """Adds every algorithm of a peer. Refusals are reported only if none ran; lack of memory and wrong results always."""
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
    """The text of an error: pysim's own messages unchanged, others with their type."""
    return str(error) if isinstance(error, PysimError) else f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
