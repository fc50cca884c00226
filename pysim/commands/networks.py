# SPDX-License-Identifier: Apache-2.0
"""Whole networks in `run` and `compare`: one row per model file among the problems, and the layers that take most time."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from pysim.commands.common import Column, document, error, plural, progress, put, put_table, say, seconds, size
from pysim.commands.timing import put_cores
from pysim.errors import PysimError, printable
from pysim.problem.text import model_file

if TYPE_CHECKING:
    from pysim.machine.cpu import Machine
    from pysim.machine.gpu import Gpu
    from pysim.onnx.compare import ModelComparison

_SHOWN_LAYERS = 8  # the slowest


class Networks(NamedTuple):
    """Models that ran as a whole, and the number of those that could not run."""

    comparisons: "list[ModelComparison]"
    failed: int = 0

    @property
    def document(self) -> "dict[str, list[ModelComparison]]":
        """Fields of the JSON document."""
        return {"models": self.comparisons} if self.comparisons else {}

    def exit_code(self, code: int) -> int:
        """The command's exit code, given that of its layers."""
        return max(code, 1) if self.failed or not all(one.correct for one in self.comparisons) else code


def measured(words: Sequence[str], on: "Machine | Gpu", threads: int, peers: bool, min_seconds: float = 0.1) -> Networks:
    """Compares every model file among the words as a whole; one that cannot run as a whole is reported on stderr."""
    named = [(word, model) for word in words if (model := model_file(word.strip())) is not None]
    if not named:
        return Networks([])
    from pysim.calibration import host
    from pysim.machine.gpu import Gpu
    from pysim.onnx.compare import compare

    if isinstance(on, Gpu) or host.executor_for(on).kind == "emulated":
        say(f"{', '.join(word for word, _ in named)}: only the layers run on {on.name}; a network runs as a whole on this computer's CPU")
        return Networks([])
    models = []
    say(f"checking and timing {plural(len(named), 'whole network')} first, which takes a while for a large one; then the layers")
    for word, (path, batch) in named:
        try:
            with progress() as show:
                done = compare(path, on, threads, peers, min_seconds, batch, show)
                show("")
            models.append(msgspec.structs.replace(done, model=printable(word)))
        except (PysimError, MemoryError) as error:
            say(f"{word} cannot run as a whole: {'out of memory: ' * isinstance(error, MemoryError)}{error}")
    return Networks(models, len(named) - len(models))


def put_networks(models: "list[ModelComparison]") -> None:
    """Writes a row per model, then its slowest layers."""
    from pysim.onnx.compare import LARGEST_ERROR

    for result in models:
        put("")
        columns: list[Column[ModelComparison]] = [
            Column("measured", lambda result: seconds(result.measured_seconds) if result.correct else "WRONG"),
            Column("convs and products predicted", lambda result: seconds(result.predicted_seconds)),
            Column("error", lambda result: error(result.max_error)),
            Column("values", lambda result: size(result.arena_bytes)),
            *map(_ratio, result.peers),
            Column("whole model", lambda result: result.model, left=True),
        ]
        put_table(columns, [result])
        if not result.correct:
            put((f"    its error, {error(result.max_error)} of the largest result, should be at most {error(LARGEST_ERROR)}", "red"))
        put_cores([result.core] if result.core else [], "model")
        for name, reason in result.missing.items():
            say(f"{name} did not run {result.model}: {reason}")
        _put_layers(result)


def _ratio(peer: str) -> "Column[ModelComparison]":
    """Column: a peer's time over pysim's."""
    return Column(
        peer,
        lambda result: f"{result.peers[peer] / result.measured_seconds:.2f}x" if result.measured_seconds else "-",
    )


def _put_layers(result: "ModelComparison") -> None:
    total = sum(layer.measured_seconds for layer in result.layers)
    if not total:
        return
    shares: dict[str, float] = {}
    for layer in result.layers:
        shares[layer.op] = shares.get(layer.op, 0.0) + layer.measured_seconds / total
    text = ", ".join(f"{op} {share:.1%}" for op, share in sorted(shares.items(), key=lambda item: -item[1]) if share >= 5e-4)
    put(f"{plural(len(result.layers), 'layer')}, {plural(sum(len(layer.fused) for layer in result.layers), 'node')} fused: {text}")
    for layer in sorted(result.layers, key=lambda layer: -layer.measured_seconds)[:_SHOWN_LAYERS]:
        fused = f" + {len(layer.fused)} fused" if layer.fused else ""
        times = f"{seconds(layer.measured_seconds):>10}  {seconds(layer.predicted_seconds):>8}"
        put(f"{times}  {layer.op} {layer.node}{fused}  {layer.problem or ''}")


def put_fingerprint(words: Sequence[str], machine_name: str, options: dict[str, Any], against: str | None, as_json: bool) -> int:
    """Writes the fingerprint of a model's layers for inputs drawn from seed 0, or that of a file, and where it parts from another; the exit
    code."""
    from pysim.network.fingerprint import parting, random_inputs, read
    from pysim.onnx.load import load

    is_file = words[0].endswith(".json") and against is not None
    if len(words) != 1 or options["algorithm"] or options["name"] or not (is_file or model_file(words[0])):
        raise click.UsageError("--fingerprint and --against take one model, model.onnx or model.onnx:mb4, with --accuracy and --threads")
    other = read(against) if against else None
    if is_file:
        mine = read(words[0])
        layers, accuracy = mine["layers"], mine["accuracy"]
    else:
        accuracy = other["accuracy"] if other else options["accuracy"]
        network = load(words[0], machine_name, options["threads"], accuracy)
        layers = network.fingerprint(**random_inputs(network.inputs))
    where = parting(layers, other["layers"]) if other else None
    if as_json:
        document(fingerprint={"model": words[0], "accuracy": accuracy, "layers": layers, **({"parts_at": where} if other else {})})
        return int(where is not None)
    for one in () if is_file else layers:
        put(f"{one['digests'][0] if one['digests'] else '-':<18}{one['op']:<20}{one.get('contract', ''):<32}{one['node']}")
    if other:
        put(f"parts from {against} at {where}" if where else f"the same bits as {against} in all {plural(len(layers), 'layer')}")
    return int(where is not None)
