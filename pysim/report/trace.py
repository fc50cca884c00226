# SPDX-License-Identifier: Apache-2.0
"""A report's times as a trace that https://ui.perfetto.dev shows, in the Trace Event Format of Chrome.

One process per network, and one per machine for its layers, with a track of measured and one of predicted times: the layers one after
another, as often as they occur, and in the predicted ones the terms that add up to their time. Complete events ("ph": "X"),
microseconds.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from pysim.report.rows import Found, Row

_TRACKS = {"measured": 1, "predicted": 2}
Slice = tuple[str, float, Mapping[str, float], Mapping[str, Any]]  # a name, its seconds, the terms of these, and arguments


def trace(found: Found) -> str:
    """The trace as JSON text."""
    events: list[dict[str, Any]] = []
    for number, network in enumerate(found.networks, 1):
        layers = network.get("layers", ())
        name = f"{network.get('model', '')} on {network.get('machine', '')}"
        events += _process(number, name, {track: _of_layers(layers, f"{track}_seconds") for track in _TRACKS})
    machines = dict.fromkeys(row.machine for row in found.rows)
    for number, machine in enumerate(machines, 1 + len(found.networks)):
        rows = [row for row in found.rows if row.machine == machine]
        events += _process(number, f"layers on {machine}", {track: _of_rows(rows, track) for track in _TRACKS})
    return msgspec.json.encode({"displayTimeUnit": "ms", "traceEvents": events}).decode() + "\n"


def _of_layers(layers: Iterable[Mapping[str, Any]], field: str) -> Iterator[Slice]:
    for one in layers:
        told = {name: one[name] for name in ("node", "problem", "fused") if one.get(name)}
        yield f"{one.get('op', '')} {one.get('node', '')}", one.get(field) or 0.0, {}, told


def _of_rows(rows: Iterable[Row], track: str) -> Iterator[Slice]:
    for row in rows:
        seconds = (row.measured_seconds if track == "measured" else row.predicted_seconds) or 0.0
        terms = row.terms if track == "predicted" and abs(sum(row.terms.values()) - seconds) <= 1e-3 * seconds else {}
        told = {"plan": row.plan, "bound_by": row.bound_by, "label": row.label}
        for _ in range(row.count):
            yield row.problem, seconds, terms, {name: text for name, text in told.items() if text}


def _process(number: int, name: str, tracks: Mapping[str, Iterable[Slice]]) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "pid": number, "tid": 0, "name": "process_name", "args": {"name": name}}
    for track, slices in tracks.items():
        same, start = {"ph": "X", "pid": number, "tid": _TRACKS[track]}, 0.0
        for what, seconds, terms, told in slices:
            if not seconds:
                continue
            if not start:
                yield {"ph": "M", "pid": number, "tid": _TRACKS[track], "name": "thread_name", "args": {"name": track}}
            yield same | {"name": what, "ts": start * 1e6, "dur": seconds * 1e6, "args": dict(told)}
            at = start
            for term, part in terms.items():
                yield same | {"name": term, "ts": at * 1e6, "dur": part * 1e6, "args": {}}
                at += part
            start += seconds
