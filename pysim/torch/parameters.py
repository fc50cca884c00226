# SPDX-License-Identifier: Apache-2.0
"""Parameters of PyTorch modules: detecting that they changed, caching what was computed from them.

    what tells            of which writes
    object and address    parameters that were replaced, moved, swapped or given another storage
    version counter       operators in place, `load_state_dict`, most optimizers
    `count_writes`        optimizers (a hook after each step: fused ones do not count) and BatchNorm in training
    fingerprint           every other write: `.data`, NumPy and DLPack views, storages (`pysim.torch.fingerprints`)

Writes that are counted here are counted for a storage, so a write to a tensor is one to all of its views. Nothing is kept of tensors that
no cache holds, and no weak reference is made: PyTorch swaps only tensors that have none.
"""

import gc
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter, is_
from threading import Lock, local
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch._C._functorch import maybe_current_level
from torch.autograd import forward_ad
from torch.optim.optimizer import register_optimizer_step_post_hook

from pysim.caches import LruCache

_version = attrgetter("_version")


class _Writes:
    """The writes to a storage that version counters leave out."""

    __slots__ = ("__weakref__", "count")

    def __init__(self) -> None:
        self.count = 0


_count = attrgetter("count")
_WRITES: WeakValueDictionary[int, _Writes] = WeakValueDictionary()  # address of a storage -> its writes; `TensorVersions` keep both alive
_LOCK = Lock()
_all_writes = 0  # so that one comparison tells that nothing was counted


def memory_of(tensor: Any) -> int:
    """The address of a tensor's storage, which its views share; 0 of an empty one."""
    return int(tensor.untyped_storage().data_ptr())


def _writes_to(tensor: Any) -> _Writes:
    with _LOCK:
        return _WRITES.setdefault(memory_of(tensor), _Writes())


def count_writes(*tensors: Any) -> None:
    """Counts a write to each of these tensors; None for absent ones."""
    global _all_writes
    with _LOCK:
        for tensor in tensors:
            if is_plain(tensor) and (writes := _WRITES.get(memory_of(tensor))):
                writes.count += 1
                _all_writes += 1


def forget_all() -> None:
    """Counts a write to every tensor from which a cache holds something."""
    global _all_writes
    with _LOCK:
        for writes in _WRITES.values():
            writes.count += 1
        _all_writes += 1


def _count_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    if _WRITES:
        count_writes(*(parameter for group in optimizer.param_groups for parameter in group["params"]))


register_optimizer_step_post_hook(_count_step)


class TensorVersions:
    """Addresses, version counters and counted writes of tensors. Every call of a model checks all of its parameters, so loops run in C."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        self.tensors = tensors
        self._seen_writes = _all_writes
        self._writes = [*map(_writes_to, tensors)]
        self._counts = [*map(_count, self._writes)]
        self._addresses, self._versions = [*map(torch.Tensor.data_ptr, tensors)], [*map(_version, tensors)]

    def unchanged(self) -> bool:
        """Whether no tensor was written to or moved."""
        if self._versions != [*map(_version, self.tensors)] or self._addresses != [*map(torch.Tensor.data_ptr, self.tensors)]:
            return False
        if self._seen_writes != (seen := _all_writes):
            if self._counts != [*map(_count, self._writes)]:
                return False
            self._seen_writes = seen
        return True

    def written(self) -> list[int]:
        """The places of the tensors that were written to or moved."""
        now = zip(map(_version, self.tensors), map(torch.Tensor.data_ptr, self.tensors), map(_count, self._writes), strict=True)
        before = zip(self._versions, self._addresses, self._counts, strict=True)
        return [at for at, (one, other) in enumerate(zip(now, before, strict=True)) if one != other]

    def are(self, tensors: Sequence[Any]) -> bool:
        """Whether these are the same tensor objects."""
        return len(tensors) == len(self.tensors) and all(map(is_, tensors, self.tensors))


class TrainedNorms:
    """Detects training calls of BatchNorm modules, given by their buffers, by `num_batches_tracked`."""

    def __init__(self, buffers: Iterable[dict[str, Any]]) -> None:
        self._norms = [one for one in buffers if one.get("num_batches_tracked") is not None]
        self._seen = self._versions()

    @classmethod
    def holding(cls, means: Sequence[Any]) -> "TrainedNorms":
        """The modules that hold these running means, found by the collector's view of who refers to them: a captured graph names none."""
        found = gc.get_referrers(*means) if means else []
        return cls(one for one in found if type(one) is dict and any(one.get("running_mean") is mean for mean in means))

    def _versions(self) -> list[int | None]:
        counters = (norm["num_batches_tracked"] for norm in self._norms)
        return [None if one is None or one.is_inference() else one._version for one in counters]

    def look(self) -> None:
        """Counts the training calls since the last look."""
        versions = self._versions()
        if versions != self._seen:
            for norm, version, seen in zip(self._norms, versions, self._seen, strict=True):
                if version != seen:
                    count_writes(norm["running_mean"], norm["running_var"])
            self._seen = versions  # after counting: another thread that sees no difference reads the new counts


def is_traced() -> bool:
    """Whether this call is traced, runs under a transform of torch.func, or carries tangents of forward-mode differentiation."""
    traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
    return bool(traced or forward_ad._current_level >= 0 or maybe_current_level() is not None)


def versions_of(parameters: Iterable[Any]) -> TensorVersions | None:
    """The versions of all parameters that are not None; None if one is an inference tensor, which has no version counter."""
    tensors = [parameter for parameter in parameters if parameter is not None]
    return None if any(tensor.is_inference() for tensor in tensors) else TensorVersions(tensors)


def changes_are_seen(parameters: Iterable[Any]) -> bool:
    """Whether a later call can detect any change of these parameters."""
    return versions_of(parameters) is not None


_PLAIN_TYPES = {torch.Tensor, torch.nn.Parameter}


def is_plain(x: Any) -> bool:
    """Whether this is a tensor of numbers in memory of the CPU or a GPU: no subclass, and neither sparse, mkldnn, quantised nor meta."""
    return type(x) in _PLAIN_TYPES and x.layout is torch.strided and x.device.type in ("cpu", "cuda") and not x.is_quantized


def needs_pytorch(x: Any, others: Iterable[Any], inference: bool = False) -> bool:
    """Whether PyTorch's operators are required: for a gradient, a trace, a transform, a tensor subclass, a lazily negated tensor or another
    layout than strides. `others` may contain None. `inference`: gradients are off and nothing is traced, as the caller has seen."""
    tensors = [x, *[other for other in others if other is not None]]
    if not {*map(type, tensors)} <= _PLAIN_TYPES or x.layout is not torch.strided or any(map(torch.is_neg, tensors)):
        return True
    return not inference and (is_traced() or (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)))


class _Epoch(local):
    """`now`: an object that stays the same in a thread's calls as long as no parameter of the running graph changes; None outside of
    graphs."""

    now: Any = None


EPOCH = _Epoch()


class _Entry:
    """A value, the versions that it was computed from, and the epoch in which these were last looked at."""

    __slots__ = ("epoch", "value", "versions")

    def __init__(self, value: Any, versions: TensorVersions | None, epoch: Any) -> None:
        self.value, self.versions, self.epoch = value, versions, epoch


class ParameterCache:
    """Values computed from parameters, for the `size` keys used last; a value is computed again after its parameters changed. `watched`:
    all parameters are inputs of the graph, which looks at them before each call and does not write to them."""

    watched = False

    def __init__(self, size: int) -> None:
        self._entries: LruCache[_Entry] = LruCache(size)

    def get(self, key: Any, parameters: Sequence[Any], compute: Callable[[], Any]) -> Any:
        """The entry keeps the parameters alive, so no other tensor can get their address. Layers of one structure may share a graph and
        with it a cache, so the first parameter is part of the key."""
        key = (key, id(parameters[0]))
        entry, epoch = self._entries.get(key), EPOCH.now if self.watched else None
        if entry is not None and epoch is not None and entry.epoch is epoch:
            return entry.value
        tensors = [tensor for tensor in parameters if tensor is not None]
        if entry is not None and entry.versions and entry.versions.are(tensors) and entry.versions.unchanged():
            entry.epoch = epoch
            return entry.value
        versions = versions_of(tensors)
        with torch.no_grad():
            return self._entries.put(key, _Entry(compute(), versions, epoch)).value

    @property
    def held_bytes(self) -> int:
        """Bytes of what is kept, beside the parameters' own memory."""
        held = dict[int, int]()
        for entry in self._entries.values():
            own = {memory_of(one) for one in (entry.versions.tensors if entry.versions else ())}
            for one in _parts(entry.value):
                if not isinstance(one, torch.Tensor):
                    held[id(one)] = getattr(one, "held_bytes", 0)
                elif memory_of(one) not in own:
                    held[memory_of(one)] = one.untyped_storage().nbytes()
        return sum(held.values())


def _parts(value: Any) -> list[Any]:
    """The values in tuples and lists."""
    return [one for part in value for one in _parts(part)] if isinstance(value, tuple | list) else [value]
