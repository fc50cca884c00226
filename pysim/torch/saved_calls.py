# SPDX-License-Identifier: Apache-2.0
"""One kind of call of a model on a CPU, kept in a file: its network, with plans and prepared weights, and what the model was.

The file is a network's (`pysim.network.saved`) that also tells the model (`ModelState`), a digest of each parameter and buffer, and which
tensors of the call the network reads and makes. A call can be kept if all that it computes is one network: then its results are the
network's, or views of them. Another process compares model and tensors with the file once, and looks before each call whether they still
are the same, as before calls of a captured graph. A call of another kind, and all calls after a change, are captured as ever.

Worked number: ResNet-50's first call takes 2.8 s of CPU time by capture and planning; from a file 0.5 (lab/data/zen4/torch-saved.jsonl).
"""

import hashlib
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from pysim.calibration import host
from pysim.errors import OperandError, PysimError, printable
from pysim.network.execution import Network
from pysim.torch.capture.strides import with_strides
from pysim.torch.fingerprints import NO_EPOCH, WatchedTensors
from pysim.torch.layers.fused_layer import Decision
from pysim.torch.layers.network_layer import NetworkLayer
from pysim.torch.model_state import ModelState
from pysim.torch.parameters import needs_pytorch

_NUMBERS = (type(None), bool, int, float, str)


# Keeping a call


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


def save_call(model: Any, optimized: Any, graphs: Sequence[Any], path: Path, given: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
    """Writes a call of an optimized model that was called so before; `graphs`: those that were captured then."""
    if len(graphs) != 1:
        raise _refused(f"it is {len(graphs)} captured graphs, not one" if graphs else "it was not captured")
    (graph,) = graphs
    module: Any = getattr(graph._call, "__self__", None)
    places = {name: one for name, one in module._modules.items() if isinstance(one, NetworkLayer)} if graph.layers and module else {}
    if len(places) != 1:
        raise _refused(graph.reason or f"it is {len(places)} networks with PyTorch's operators between them, not one on a CPU")
    ((name, layer),) = places.items()
    seen, call = list[Any](), graph._call

    def recorded(*inputs: Any) -> Any:
        seen.append(inputs)
        return call(*inputs)

    recording = module._modules[name] = _Recording(layer)
    graph._call = recorded
    try:
        with torch.no_grad():
            result = optimized(*given[0], **given[1])
    finally:
        module._modules[name], graph._call = layer, call
    network = layer._network(recording.given[: layer.parameter_count], torch.get_num_threads())
    network.save(path, _told(model, layer, recording, seen[0] if seen else (), given, result))


def _told(model: Any, layer: NetworkLayer, recording: _Recording, inputs: Sequence[Any], given: Any, result: Any) -> dict[str, Any]:
    """What the file tells beside the network."""
    tensors = _tensors(model)
    leaves, spec = pytree.tree_flatten(given)
    known = {*map(id, tensors.values()), *map(id, leaves)}
    if any(isinstance(one, torch.Tensor) and id(one) not in known for one in inputs):
        raise _refused("it reads a tensor that is neither an argument nor a parameter or buffer of the model")
    results, result_spec = pytree.tree_flatten(result)
    if any(one._version for one in recording.made):
        raise _refused("PyTorch writes to a network's result")
    return {
        "accuracy": layer.accuracy,
        "state": ModelState(model).told,
        "tensors": {name: _tensor_digest(one) for name, one in tensors.items()},
        "arguments": pytree.treespec_dumps(spec),
        "leaves": [_form_of(one, "argument") for one in leaves],
        "reads": [_view_of(one, leaves, "a network's input is computed by PyTorch") for one in recording.given[layer.parameter_count :]],
        "strides": layer._strides,
        "results": pytree.treespec_dumps(result_spec),
        "makes": [
            _view_of(one, recording.made, "a result is computed by PyTorch") if isinstance(one, torch.Tensor) else _form_of(one, "result")
            for one in results
        ],
        "decisions": layer.decisions,
    }


def _refused(why: str) -> OperandError:
    return OperandError(f"this call of the model cannot be kept in a file: {why}")


def _tensors(model: torch.nn.Module) -> dict[str, Any]:
    return dict((*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)))


def _tensor_digest(x: Any) -> str:
    """Of a tensor's numbers, in the order of its shape."""
    flat = x.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return f"{x.dtype} {tuple(x.shape)} {hashlib.sha256(flat).hexdigest()}"


def _form_of(one: Any, what: str) -> Any:
    if isinstance(one, torch.Tensor):
        return {"tensor": [str(one.dtype), [*one.shape], [*one.stride()]]}
    if type(one) not in _NUMBERS:
        raise _refused(f"an {what} is a {type(one).__name__}" if what[0] in "aeiou" else f"a {what} is a {type(one).__name__}")
    return {"value": one}


def _view_of(x: Any, of: Sequence[Any], why: str) -> Any:
    """The tensor of these whose memory x shows, and x's shape, strides and place there."""
    for at, one in enumerate(of):
        if isinstance(one, torch.Tensor) and one.dtype == x.dtype and one.untyped_storage().data_ptr() == x.untyped_storage().data_ptr():
            return {"view": [at, [*x.shape], [*x.stride()], x.storage_offset() - one.storage_offset()]}
    raise _refused(why)


# Calling it


class SavedCall:
    """What calls a model as a file of `save_call` says: called, it returns a tuple of the result, or None if the call is of another kind or
    the model has changed. It has the members of a graph that a report reads."""

    reason = alone = ""

    def __init__(self, path: Path) -> None:
        self._network: Network | None = Network.of_file(path, host.runnable("host"), torch.get_num_threads())
        self._path, about = f'"{printable(str(path))}"', self._network.about
        if "state" not in about:
            raise OperandError(f"{self._path} is a network alone, not a call of a PyTorch model; pysim.load reads it")
        self._about, self.accuracy = about, about["accuracy"]
        self.layers: Sequence[Any] = [self]
        self.decisions = [Decision(*one) for one in about["decisions"]]
        self._reads, self._strides = [one["view"] for one in about["reads"]], [tuple(one) for one in about["strides"]]
        self._leaves = [_leaf(one) for one in about["leaves"]]
        plain = pytree.tree_flatten(((0,) * len(self._leaves), {}))[1]
        self._arguments, self._results = (pytree.treespec_loads(about[which]) for which in ("arguments", "results"))
        self._is_plain = self._arguments == plain and all(isinstance(one, _Leaf) for one in self._leaves)

    def of(self, model: torch.nn.Module) -> "SavedCall":
        """For this model. OperandError names where it differs from that of the file."""
        self._state, tensors = ModelState(model), _tensors(model)
        self._differ("", self._state.told, self._about["state"])
        self._differ("the numbers of ", {name: _tensor_digest(one) for name, one in tensors.items()}, self._about["tensors"])
        places = [(of, name) for one in model.modules() for of in (one._parameters, one._buffers) for name in of]
        self._places = [(of, name) for of, name in places if of[name] is not None]
        self._watched = WatchedTensors(self._now())
        self._forms = _forms(self._watched.tensors)
        self._epoch = self._watched.look(self._watched.tensors) if self._watched.tensors else NO_EPOCH
        if self._epoch is NO_EPOCH:
            raise OperandError("parameters are inference tensors, or there are none: a change of them could not be seen")
        return self

    def _differ(self, what: str, now: Mapping[str, str], before: Mapping[str, str]) -> None:
        for name in dict.fromkeys((*before, *now)):
            if now.get(name) != before.get(name):
                told = [f" ({one})" if len(one) < 60 else "" for one in (now.get(name, "absent"), before.get(name, "absent"))]
                raise OperandError(
                    f"{self._path} is of another model: {what}{name or 'its class'}{told[0]} is not what it was{told[1]}; save it again"
                )

    def _now(self) -> list[Any]:
        return [of[name] for of, name in self._places]

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any] | None:
        network = self._network
        if network is None or network.threads != torch.get_num_threads() or torch.is_autocast_enabled("cpu"):
            return None
        leaves = [*args] if self._is_plain and not kwargs else self._flat(args, kwargs)
        if leaves is None or len(leaves) != len(self._leaves) or not all(map(_fits, leaves, self._leaves)):
            return None
        same = self._state.unchanged() and _forms(now := self._now()) == self._forms
        if not same or self._watched.look(now) is not self._epoch:
            self._network, self.decisions = None, []  # another model from now on
            return None
        given = [_seen(leaves[at], *view) for at, *view in self._reads]
        if needs_pytorch(given[0] if given else self._watched.tensors[0], given, inference=True):
            return None
        try:
            made = network.results([one.detach().contiguous().numpy() for one in given])
        except (PysimError, MemoryError):
            return None
        results = [with_strides(torch.from_numpy(y), stride) for y, stride in zip(made, self._strides, strict=True)]
        leaves = [_seen(results[one["view"][0]], *one["view"][1:]) if "view" in one else one["value"] for one in self._about["makes"]]
        return (pytree.tree_unflatten(leaves, self._results),)

    def _flat(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        return leaves if spec == self._arguments else None


def _forms(tensors: Sequence[Any]) -> list[Any]:
    return [*map(torch.Tensor.size, tensors), *map(torch.Tensor.stride, tensors), *map(attrgetter("dtype"), tensors)]


class _Leaf(tuple[Any, ...]):
    """(type, shape, strides) of a tensor."""


def _leaf(kept: Mapping[str, Any]) -> Any:
    if "value" in kept:
        return kept["value"]
    dtype, shape, strides = kept["tensor"]
    return _Leaf((getattr(torch, dtype.removeprefix("torch.")), torch.Size(shape), tuple(strides)))


def _fits(one: Any, kept: Any) -> bool:
    if isinstance(kept, _Leaf):
        return isinstance(one, torch.Tensor) and (one.dtype, one.shape, one.stride()) == kept and one.device.type == "cpu"
    return type(one) is type(kept) and one == kept


def _seen(x: Any, shape: Sequence[int], strides: Sequence[int], offset: int) -> Any:
    """A view of a tensor's memory; the tensor itself, if it is that."""
    if (*x.shape,) == (*shape,) and x.stride() == (*strides,) and not offset:
        return x
    return x.as_strided(shape, strides, x.storage_offset() + offset)
