# SPDX-License-Identifier: Apache-2.0
"""Whole networks in `run` and `compare`: the model files among the problems, each as one row, and where its time goes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from pysim.commands.common import Column, error, plural, put, put_table, say, seconds, size
from pysim.commands.timing import put_cores
from pysim.errors import PysimError, printable
from pysim.problem.text import model_file

if TYPE_CHECKING:
    from pysim.frontends.whole import ModelComparison
    from pysim.machine.cpu import Machine
    from pysim.machine.gpu import Gpu

_LONGEST = 8  # layers that are shown, those that take most time


def measured(words: Sequence[str], on: "Machine | Gpu", threads: int, peers: bool, min_seconds: float = 0.2) -> "list[ModelComparison]":
    """Every model file among the words as a whole; one that cannot run as a whole is said on stderr, and its layers stay."""
    named = [(word, model) for word in words if (model := model_file(word.strip())) is not None]
    if not named:
        return []
    from pysim.calibration import host
    from pysim.frontends.whole import compare
    from pysim.machine.gpu import Gpu

    if isinstance(on, Gpu) or host.executor(on).kind == "emulated":
        return []
    found = []
    for word, (path, batch) in named:
        try:
            found.append(msgspec.structs.replace(compare(path, on, threads, peers, min_seconds, batch), model=printable(word)))
        except PysimError as error:
            say(f"{word} as a whole: {error}")
    return found


def put_models(found: "list[ModelComparison]") -> None:
    """A row each, then the layers that take longest."""
    for one in found:
        put("")
        columns: list[Column[ModelComparison]] = [
            Column("measured", lambda one: seconds(one.measured_seconds) if one.correct else "WRONG"),
            Column("convs and products predicted", lambda one: seconds(one.predicted_seconds)),
            Column("error", lambda one: error(one.max_error)),
            Column("values", lambda one: size(one.arena_bytes)),
            *map(_ratio, one.peers),
            Column("whole model", lambda one: one.model, left=True),
        ]
        put_table(columns, [one])
        put_cores([one.core] if one.core else [], "model")
        for name, reason in one.missing.items():
            say(f"{name} did not run {one.model}: {reason}")
        _put_layers(one)


def _ratio(peer: str) -> "Column[ModelComparison]":
    """A peer's time over ours."""
    return Column(peer, lambda one: f"{one.peers[peer] / one.measured_seconds:.2f}x" if one.measured_seconds else "-")


def _put_layers(one: "ModelComparison") -> None:
    total = sum(layer.measured_seconds for layer in one.layers)
    if not total:
        return
    shares: dict[str, float] = {}
    for layer in one.layers:
        shares[layer.op] = shares.get(layer.op, 0.0) + layer.measured_seconds / total
    told = ", ".join(f"{op} {share:.1%}" for op, share in sorted(shares.items(), key=lambda item: -item[1]) if share >= 5e-4)
    put(f"{plural(len(one.layers), 'layer')}, {plural(sum(len(layer.fused) for layer in one.layers), 'node')} fused: {told}")
    for layer in sorted(one.layers, key=lambda layer: -layer.measured_seconds)[:_LONGEST]:
        fused = f" + {len(layer.fused)} fused" if layer.fused else ""
        times = f"{seconds(layer.measured_seconds):>10}  {seconds(layer.predicted_seconds):>8}"
        put(f"{times}  {layer.op} {layer.node}{fused}  {layer.problem or ''}")


def exit_code(code: int, found: "list[ModelComparison]") -> int:
    return code if all(one.correct for one in found) else max(code, 1)
