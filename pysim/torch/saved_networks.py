# SPDX-License-Identifier: Apache-2.0
"""One kind of call of a model on a CPU, kept in a file: its network, with plans and prepared weights.

The file is a network's (`pysim.network.saved`) that also tells the call (`saved_calls`), a digest of each parameter and buffer, and which
tensors of the call the network reads and makes. A call can be kept if all that it computes is one network: then its results are the
network's, or views of them. After a change of a weight calls are captured as ever.

Worked number: ResNet-50's first call takes 2.8 s of CPU time by capture and planning; from a file 0.5 (lab/data/zen4/torch-saved.jsonl).
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from pysim.calibration import host
from pysim.errors import OperandError, PysimError, printable
from pysim.network.execution import Network
from pysim.torch.fingerprints import NO_EPOCH, WatchedTensors
from pysim.torch.layers.fused_layer import Decision
from pysim.torch.layers.network_layer import NetworkLayer, numbers_of, result_of, team
from pysim.torch.parameters import memory_of, needs_pytorch
from pysim.torch.saved_calls import Given, RecordedCall, SavedCall, refused, tensors_of


class _Recording(torch.nn.Module):  # type: ignore[misc]  # PyTorch need not be here
    """A layer of a captured graph that keeps what it was called with, and its results."""

    def __init__(self, layer: NetworkLayer) -> None:
        super().__init__()
        self.__dict__["layer"] = layer
        self.given: tuple[Any, ...] = ()
        self.made: tuple[Any, ...] = ()

    def forward(self, *given: Any) -> Any:
        y = self.__dict__["layer"](*given)
        self.given, self.made = given, y if isinstance(y, tuple) else (y,)
        return y


def save_network(model: Any, optimized: Any, graph: Any, path: Path, given: Given) -> None:
    """Writes a call of an optimized model that was called so before."""
    module: Any = getattr(graph._call, "__self__", None)
    places = {name: one for name, one in module._modules.items() if isinstance(one, NetworkLayer)} if graph.layers and module else {}
    if len(places) != 1:
        raise refused(graph.reason or f"it is {len(places)} networks with PyTorch's operators between them, not one on a CPU")
    ((name, layer),) = places.items()
    recording = module._modules[name] = _Recording(layer)
    try:
        call = RecordedCall(model, optimized, graph, given)
    finally:
        module._modules[name] = layer
    network = layer._network(recording.given[: layer.parameter_count], team())
    network.save(path, _told(model, layer, recording, call))


def _told(model: Any, layer: NetworkLayer, recording: _Recording, call: RecordedCall) -> dict[str, Any]:
    """What the file tells beside the network."""
    tensors, leaves = tensors_of(model), call.leaves
    known = {*map(id, tensors.values()), *map(id, leaves)}
    if any(isinstance(one, torch.Tensor) and id(one) not in known for one in call.inputs):
        raise refused("it reads a tensor that is neither an argument nor a parameter or buffer of the model")
    if any(one._version for one in recording.made):
        raise refused("PyTorch writes to a network's result")
    reads = [_view_of(one, leaves, "a network's input is computed by PyTorch") for one in recording.given[layer.parameter_count :]]
    return call.told([_view_of(one, recording.made, "a result is computed by PyTorch") for one in call.result_tensors]) | {
        "accuracy": layer.accuracy,
        "tensors": {name: _tensor_digest(one) for name, one in tensors.items()},
        "reads": reads,
        "strides": [one.stride for one in layer.forms],
        "narrow": [one.is_narrow for one in layer.forms],
        "decisions": layer.decisions,
    }


def _tensor_digest(x: Any) -> str:
    """Of a tensor's numbers, in the order of its shape."""
    flat = x.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return f"{x.dtype} {tuple(x.shape)} {hashlib.sha256(flat).hexdigest()}"


def _view_of(x: Any, of: Sequence[Any], why: str) -> Any:
    """The tensor of these whose memory x shows, and x's shape, strides and place there."""
    for at, one in enumerate(of):
        if isinstance(one, torch.Tensor) and one.dtype == x.dtype and memory_of(one) == memory_of(x):
            return {"view": [at, [*x.shape], [*x.stride()], x.storage_offset() - one.storage_offset()]}
    raise refused(why)


class SavedNetwork(SavedCall):
    """The calls of a file of `save_network`."""

    def __init__(self, path: Path) -> None:
        self._network: Network | None = Network.of_file(path, host.runnable("host"), team())
        about = self._network.about
        if "state" not in about:
            raise OperandError(f'"{printable(str(path))}" is a network alone, not a call of a PyTorch model; pysim.load reads it')
        super().__init__(path, about)
        self.options, self.layers = {"accuracy": about["accuracy"]}, [self]
        self.decisions = [Decision(*one) for one in about["decisions"]]
        self._reads, self._strides = [one["view"] for one in about["reads"]], [tuple(one) for one in about["strides"]]
        self._narrow: list[bool] = about["narrow"]

    @property
    def held_bytes(self) -> int:
        return self._network.held_bytes if self._network is not None else 0

    def of(self, model: torch.nn.Module) -> "SavedNetwork":
        super().of(model)
        self._differ("the content of ", {name: _tensor_digest(one) for name, one in tensors_of(model).items()}, self._about["tensors"])
        self._watched = WatchedTensors(self._now())
        self._epoch = self._watched.look(self._watched.tensors) if self._watched.tensors else NO_EPOCH
        if self._epoch is NO_EPOCH:
            raise OperandError("parameters are inference tensors, or there are none: a change of them could not be seen")
        return self

    def _settings_are_same(self) -> bool:
        network = self._network
        return network is not None and network.threads == team() and not torch.is_autocast_enabled("cpu")

    def _changed(self, tensors: Sequence[Any]) -> bool:
        return self._watched.look(tensors) is not self._epoch

    def _forget(self) -> None:
        self._network = None

    def _computed(self, leaves: Sequence[Any]) -> list[Any] | None:
        given = [_seen(leaves[at], *view) for at, *view in self._reads]
        if self._network is None or needs_pytorch(given[0] if given else self._watched.tensors[0], given, inference=True):
            return None
        try:
            made = self._network.results([numbers_of(one) for one in given])
        except (PysimError, MemoryError):
            return None
        results = [result_of(y, is_narrow, stride) for y, is_narrow, stride in zip(made, self._narrow, self._strides, strict=True)]
        return [_seen(results[one["view"][0]], *one["view"][1:]) if "view" in one else one["value"] for one in self._about["makes"]]


def _seen(x: Any, shape: Sequence[int], strides: Sequence[int], offset: int) -> Any:
    """A view of a tensor's memory; the tensor itself, if it is that."""
    if (*x.shape,) == (*shape,) and x.stride() == (*strides,) and not offset:
        return x
    return x.as_strided(shape, strides, x.storage_offset() + offset)
