# SPDX-License-Identifier: Apache-2.0
"""A model file as something that runs: read, planned for a machine, weights prepared."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, overload

from pysim.arguments import MOST_THREADS, whole, word
from pysim.caches import LruCache
from pysim.calibration import host
from pysim.errors import OperandError, PlanError, quoted
from pysim.logs import LOG
from pysim.machine.allowed import allowed
from pysim.machine.cpu import Machine
from pysim.machine.gpu import Gpu
from pysim.network import saved
from pysim.network.execution import Network
from pysim.onnx.model import OnnxFile
from pysim.onnx.reading import graph_of
from pysim.problem.text import model_file
from pysim.record.accuracy import ACCURACIES, Accuracy

_KEPT = 8  # batches that a model of any batch has plans and weights for


class AnyBatch:
    """y = model(x) for x of any batch: planned, and its weights prepared, when a batch first comes; the last eight batches are kept."""

    def __init__(self, make: Callable[[int], Network]) -> None:
        self._make, self._models = make, LruCache[Network](_KEPT)
        self.at(1)

    def at(self, batch: int) -> Network:
        """The model of one batch. Threads that ask for a new one together may each make it; one is kept."""
        batch = whole(batch, "batch", 1)
        return self._models.get(batch) or self._models.put(batch, self._make(batch))

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        first = next(iter((*arrays, *named.values())), None)
        if not (shape := tuple(getattr(first, "shape", ()))):
            raise OperandError(f"the first input is {quoted(first)}; expected an array whose first dimension is the batch")
        return self.at(int(shape[0]))(*arrays, **named)


@overload
def load(
    path: str | Path,
    machine: str | Machine | Gpu = ...,
    threads: int | Literal["all"] = ...,
    accuracy: Accuracy = ...,
    batch: int | None = ...,
    seed: int | None = ...,
) -> Network: ...
@overload
def load(
    path: str | Path,
    machine: str | Machine | Gpu = ...,
    threads: int | Literal["all"] = ...,
    accuracy: Accuracy = ...,
    *,
    batch: Literal["any"],
    seed: int | None = ...,
) -> AnyBatch: ...
def load(
    path: str | Path,
    machine: str | Machine | Gpu = "host",
    threads: int | Literal["all"] = 1,
    accuracy: Accuracy = "standard",
    batch: int | Literal["any"] | None = None,
    seed: int | None = None,
) -> Network | AnyBatch:
    """`y = load("model.onnx")(x)`: the whole network on this computer's CPU, with plans for `machine`; `.plan` says what runs,
    `.profile(x)` where the time goes.

    "model.onnx:mb4", or `batch=4`, is the model with batch 4, whether the batch in the file is symbolic or fixed; without it a symbolic
    batch is 1. `batch="any"` is planned for each batch it is called with. `threads="all"`: as many as the process may use, of its affinity
    mask, its container's quota and its part among ranks (`pysim doctor`). With a `seed`, weights that the file lacks are random.
    Convolutions and products run natively, other operators natively or by NumPy. `accuracy` is as in `pysim.plan`. A file that `save` of
    a network wrote is loaded without planning and packing. ProblemError names a node that cannot run, or that fixes another batch; a
    machine whose plans are for a GPU raises PlanError.
    """
    if not isinstance(path, str | Path):
        raise OperandError(f"path is {quoted(path)}; expected the path of a .onnx file")
    on, threads = _cpu(machine), allowed().threads if threads == "all" else whole(threads, "threads", 1, MOST_THREADS)
    path, asked = model_file(str(path)) or (Path(path), None)
    if asked is not None and batch not in (None, asked):
        raise OperandError(f"batch is {quoted(batch)}, and the path asks for {asked}; expected one of them")
    seed = None if seed is None else whole(seed, "seed", 0)
    word(accuracy, "accuracy", ACCURACIES, PlanError)
    if saved.is_saved(path):
        if (batch, seed) != (None, None) or asked is not None or accuracy != "standard":
            raise OperandError("a saved network has its batch, weights and accuracy; give these when it is loaded from the model's file")
        return Network.of_file(path, on, threads)
    file = OnnxFile(path)

    def made(batch: int | None) -> Network:
        network = Network(graph_of(file.weighted(batch, seed), file.name), on, threads, accuracy)
        LOG.info("loaded %s: %d layers on %s, %.4g s predicted", path, len(network.plan.layers), on.name, network.plan.predicted_seconds)
        return network

    if batch == "any":
        return AnyBatch(made)
    if isinstance(batch, str):
        raise OperandError(f'batch is {quoted(batch)}; expected a whole number, at least 1, or "any"')
    return made(asked if batch is None else whole(batch, "batch", 1))


def _cpu(machine: str | Machine | Gpu) -> Machine:
    """The CPU that a model is planned for. A GPU is refused as such, whether one is here or not."""
    on = None if machine == host.CUDA else host.any_machine(machine)
    if isinstance(on, Machine) and not isinstance(machine, Gpu):
        return host.runnable(machine)
    name = on.name if on else machine
    raise PlanError(f"models run on CPUs, and {name} is a GPU; there, use pysim.torch.optimize or torch.compile(backend='pysim')")
