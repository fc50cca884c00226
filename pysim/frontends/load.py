# SPDX-License-Identifier: Apache-2.0
"""A model file as something that runs: read, planned for a machine, weights prepared."""

from pathlib import Path

from pysim.arguments import MOST_THREADS, whole, word
from pysim.calibration import host
from pysim.errors import OperandError, PlanError, quoted
from pysim.frontends import onnx_graph
from pysim.machine.cpu import Machine
from pysim.machine.gpu import Gpu
from pysim.models.model import Model
from pysim.record.accuracy import ACCURACIES, Accuracy


def load(
    path: str | Path,
    machine: str | Machine | Gpu = "host",
    threads: int = 1,
    accuracy: Accuracy = "standard",
    batch: int = 1,
    seed: int | None = None,
) -> Model:
    """`y = load("model.onnx")(x)`: the whole network on the CPU that runs a machine's plans; `.plan` says what runs, `.profile(x)` where
    the time goes.

    A symbolic batch is set to `batch`; with a `seed`, weights that the file lacks are random. Convolutions and products run natively, other
    operators by NumPy. `accuracy` of the plans is as in `pysim.plan`. ProblemError names a node that nothing here can run; PlanError a
    machine whose plans are for a GPU.
    """
    if not isinstance(path, str | Path):
        raise OperandError(f"path is {quoted(path)}; right is the path of a .onnx file")
    on, threads = host.runnable_any(machine), whole(threads, "threads", 1, MOST_THREADS)
    batch, seed = whole(batch, "batch", 1), None if seed is None else whole(seed, "seed", 0)
    word(accuracy, "accuracy", ACCURACIES, PlanError)
    if isinstance(on, Gpu):
        raise PlanError(f"models run on CPUs, and {on.name} is a GPU; there, use pysim.torch.optimize or torch.compile(backend='pysim')")
    return Model(onnx_graph.read_graph(path, batch, seed), on, threads, host.executor(on), accuracy)
