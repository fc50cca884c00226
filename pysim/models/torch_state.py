# SPDX-License-Identifier: Apache-2.0
"""Parameters of PyTorch modules as calls found them: where modules keep them, where they lie, how often they were written to."""

from collections.abc import Callable, Iterable, Sequence
from itertools import starmap
from operator import attrgetter, is_
from typing import Any

import torch
from torch._C._functorch import maybe_current_level
from torch.autograd import forward_ad

from pysim.once import Recent

_written = attrgetter("_version")


def home_of(owner: torch.nn.Module, name: str) -> dict[str, Any] | None:
    """Where a module keeps a parameter or buffer; None for what it computes."""
    kept: dict[str, Any] = owner.__dict__["_parameters"]
    if name in kept:
        return kept
    kept = owner.__dict__["_buffers"]
    return kept if name in kept else None


def owned(owner: torch.nn.Module, name: str) -> Any:
    """A parameter or buffer of a module, past `Module.__getattr__`, which takes as long as all else that a call looks at."""
    home = home_of(owner, name)
    return getattr(owner, name) if home is None else home[name]


def read_owned(given: Sequence[Any], owners: Sequence[tuple[torch.nn.Module, str] | None]) -> list[Any]:
    """Parameters, each from its owner where it has one, or as it is given."""
    return [owned(*at) if at else one for one, at in zip(given, owners, strict=True)]


class TensorState:
    """Tensors, where they lie and how often they were written to. A call asks of all parameters of a model whether they are as they were,
    so nothing but C runs for each of them."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        self.tensors = tensors
        self._addresses, self._writes = [*map(torch.Tensor.data_ptr, tensors)], [*map(_written, tensors)]

    def holds(self) -> bool:
        """Whether none of them lies elsewhere or was written to since."""
        return self._writes == [*map(_written, self.tensors)] and self._addresses == [*map(torch.Tensor.data_ptr, self.tensors)]

    def of(self, tensors: Sequence[Any]) -> bool:
        """Whether these are the same tensors."""
        return len(tensors) == len(self.tensors) and all(map(is_, tensors, self.tensors))


class Owned:
    """Tensors that modules own, each by where its module keeps it and its name there."""

    def __init__(self, owned: Sequence[tuple[dict[str, Any], str, Any]]) -> None:
        self._places = [(home, name) for home, name, _ in owned]
        self._tensors = [one for *_, one in owned]

    def hold(self) -> bool:
        """Whether the modules have the same tensors still."""
        return all(map(is_, starmap(dict.get, self._places), self._tensors))


def transformed() -> bool:
    """Whether a call is traced, or tensors of it stand for others: under torch.func's vmap and the like, or with tangents."""
    traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
    return bool(traced or forward_ad._current_level >= 0 or maybe_current_level() is not None)


def state_of(parameters: Iterable[Any]) -> TensorState | None:
    """Of those that there are; None where writes are not counted: for tensors of inference mode."""
    given = [one for one in parameters if one is not None]
    return None if any(one.is_inference() for one in given) else TensorState(given)


def settled(parameters: Iterable[Any], owners: Iterable[tuple[torch.nn.Module, str] | None]) -> bool:
    """Whether it can be told of all parameters that they are the same as before."""
    return state_of(parameters) is not None and all(home_of(*owner) is not None for owner in owners if owner)


_PLAIN = {torch.Tensor, torch.nn.Parameter}


def wants_more(x: Any, others: Iterable[Any]) -> bool:
    """Whether more than numbers is wanted of a call on x and others, which may be None: a gradient, what traces or transforms it, or the
    other sign of what lies there."""
    given = [x, *[one for one in others if one is not None]]
    gradient = torch.is_grad_enabled() and any(one.requires_grad for one in given)
    return gradient or not {*map(type, given)} <= _PLAIN or any(map(torch.is_neg, given)) or transformed()


class Derived:
    """What was made of parameters, by keys of which `size` are kept."""

    def __init__(self, size: int) -> None:
        self._kept: Recent[tuple[TensorState | None, Any]] = Recent(size)  # (what they were made of, what was made)

    def of(self, key: Any, parameters: Sequence[Any], make: Callable[[], Any]) -> Any:
        """Of the parameters as they are now, anew where they changed. It keeps them alive: none can take another's place."""
        found = self._kept.get(key)
        if found and found[0] and found[0].of([one for one in parameters if one is not None]) and found[0].holds():
            return found[1]
        state = state_of(parameters)
        with torch.no_grad():
            return self._kept.put(key, (state, make()))[1]
