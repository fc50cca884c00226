# SPDX-License-Identifier: Apache-2.0
"""Parameters of PyTorch modules: reading them from their modules, detecting that they changed, caching what was computed from them."""

from collections.abc import Callable, Iterable, Sequence
from itertools import starmap
from operator import attrgetter, is_
from threading import Lock
from typing import Any

import torch
from torch._C._functorch import maybe_current_level
from torch.autograd import forward_ad
from torch.utils.weak import WeakIdKeyDictionary

from pysim.once import LruCache

Owner = tuple[torch.nn.Module, str] | None  # the module that holds a parameter, and the parameter's name there

_version = attrgetter("_version")


def dict_holding(module: torch.nn.Module, name: str) -> dict[str, Any] | None:
    """The dictionary of the module that holds this parameter or buffer; None for an attribute that the module computes."""
    parameters: dict[str, Any] = module.__dict__["_parameters"]
    if name in parameters:
        return parameters
    buffers: dict[str, Any] = module.__dict__["_buffers"]
    return buffers if name in buffers else None


def _attribute(module: torch.nn.Module, name: str) -> Any:
    """A parameter or buffer, without `Module.__getattr__`, which costs as much as all other checks of a call together."""
    holder = dict_holding(module, name)
    return getattr(module, name) if holder is None else holder[name]


def resolve_parameters(arguments: Sequence[Any], owners: Sequence[Owner]) -> list[Any]:
    """Each parameter from its owner, or from the arguments where it has no owner."""
    return [_attribute(*owner) if owner else argument for argument, owner in zip(arguments, owners, strict=True)]


# tensor -> [calls of BatchNorm in training that wrote it as a running statistic], which PyTorch's version counters leave out
_TRAINING_CALLS = WeakIdKeyDictionary()
_TRAINING_LOCK = Lock()


def _training_calls(tensor: Any) -> list[int]:
    with _TRAINING_LOCK:
        calls: list[int] = _TRAINING_CALLS.setdefault(tensor, [0])
    return calls


def count_training(*statistics: Any) -> None:
    """Counts a call of BatchNorm in training that wrote these running statistics; None for absent ones."""
    for tensor in statistics:
        if tensor is not None:
            _training_calls(tensor)[0] += 1


class TensorVersions:
    """Addresses and version counters of tensors. Every call of a model checks all of its parameters, so the loops run in C."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        self.tensors = tensors
        self._addresses, self._versions = [*map(torch.Tensor.data_ptr, tensors)], [*map(_version, tensors)]
        self._calls = [*map(_training_calls, tensors)]
        self._calls_before = [*map(list.copy, self._calls)]

    def unchanged(self) -> bool:
        """Whether no tensor was written to or moved."""
        if self._calls != self._calls_before or self._versions != [*map(_version, self.tensors)]:
            return False
        return self._addresses == [*map(torch.Tensor.data_ptr, self.tensors)]

    def are(self, tensors: Sequence[Any]) -> bool:
        """Whether these are the same tensor objects."""
        return len(tensors) == len(self.tensors) and all(map(is_, tensors, self.tensors))


class TrainedNorms:
    """Detects calls of a model's BatchNorm modules in training by their `num_batches_tracked`."""

    def __init__(self, modules: Iterable[torch.nn.Module]) -> None:
        self._norms = [one for one in modules if "num_batches_tracked" in one._buffers]
        self._seen = self._counts()

    def _counts(self) -> list[int | None]:
        counters = (norm._buffers["num_batches_tracked"] for norm in self._norms)
        return [None if one is None or one.is_inference() else one._version for one in counters]

    def look(self) -> None:
        """Counts the training calls since the last look."""
        counts = self._counts()
        if counts != self._seen:
            for norm, count, seen in zip(self._norms, counts, self._seen, strict=True):
                if count != seen:
                    count_training(norm._buffers["running_mean"], norm._buffers["running_var"])
            self._seen = counts  # after counting: another thread that sees no difference reads the new counts


class OwnedTensors:
    """Tensors held by modules, as (dictionary of the module, name, tensor)."""

    def __init__(self, entries: Sequence[tuple[dict[str, Any], str, Any]]) -> None:
        self._keys = [(holder, name) for holder, name, _ in entries]
        self._tensors = [tensor for *_, tensor in entries]

    def unchanged(self) -> bool:
        """Whether the modules still hold the same tensor objects."""
        return all(map(is_, starmap(dict.get, self._keys), self._tensors))


def is_traced() -> bool:
    """Whether this call is traced, runs under a transform of torch.func, or carries tangents of forward-mode differentiation."""
    traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
    return bool(traced or forward_ad._current_level >= 0 or maybe_current_level() is not None)


def versions_of(parameters: Iterable[Any]) -> TensorVersions | None:
    """The versions of all parameters that are not None; None if one is an inference tensor, which has no version counter."""
    tensors = [parameter for parameter in parameters if parameter is not None]
    return None if any(tensor.is_inference() for tensor in tensors) else TensorVersions(tensors)


def changes_are_seen(parameters: Iterable[Any], owners: Iterable[Owner]) -> bool:
    """Whether a later call can detect any change of these parameters."""
    return versions_of(parameters) is not None and all(dict_holding(*owner) is not None for owner in owners if owner)


_PLAIN_TYPES = {torch.Tensor, torch.nn.Parameter}


def needs_pytorch(x: Any, others: Iterable[Any]) -> bool:
    """Whether PyTorch's operators are required: for a gradient, a trace, a transform, a tensor subclass or a lazily negated tensor.
    `others` may contain None."""
    tensors = [x, *[other for other in others if other is not None]]
    gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return gradient or not {*map(type, tensors)} <= _PLAIN_TYPES or any(map(torch.is_neg, tensors)) or is_traced()


class ParameterCache:
    """Values computed from parameters, for the `size` keys used last; a value is computed again after its parameters changed."""

    def __init__(self, size: int) -> None:
        self._entries: LruCache[tuple[TensorVersions | None, Any]] = LruCache(size)

    def get(self, key: Any, parameters: Sequence[Any], compute: Callable[[], Any]) -> Any:
        """The entry keeps the parameters alive, so no other tensor can get their address."""
        entry = self._entries.get(key)
        if entry and entry[0] and entry[0].are([tensor for tensor in parameters if tensor is not None]) and entry[0].unchanged():
            return entry[1]
        versions = versions_of(parameters)
        with torch.no_grad():
            return self._entries.put(key, (versions, compute()))[1]
