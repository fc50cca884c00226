# SPDX-License-Identifier: Apache-2.0
"""One kind of call of a model, kept in a file: what runs it, and what the model was.

    on a CPU   its network, with plans and prepared weights (`saved_networks`)
    on a GPU   its captured graph, with plans; weights stay the model's own (`saved_programs`)

The file also tells the model (`ModelState`) and which arguments the call had. Another process compares them with the file once, and looks
before each call whether they still are the same, as before calls of a captured graph. A call of another kind, and all calls after a change,
are captured as ever.
"""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from pysim.errors import OperandError, printable
from pysim.torch.model_state import ModelState
from pysim.torch.parameters import memory_of

_NUMBERS = (type(None), bool, int, float, str)
Given = tuple[tuple[Any, ...], dict[str, Any]]


# Keeping a call


def refused(why: str) -> OperandError:
    return OperandError(f"this call of the model cannot be kept in a file: {why}")


class RecordedCall:
    """A call of an optimized model that is one graph: the inputs of the graph, what it made, and the result."""

    def __init__(self, model: Any, optimized: Any, graph: Any, given: Given) -> None:
        self.given, self.inputs, self.made = given, tuple[Any, ...](), Any
        state, call = ModelState(model), graph._call

        def recorded(*inputs: Any) -> Any:
            self.inputs, self.made = inputs, call(*inputs)
            return self.made

        graph._call = recorded
        try:
            with torch.no_grad():
                self.result = optimized(*given[0], **given[1])
        finally:
            graph._call = call
        if not state.unchanged():
            raise refused("it changes the model's attributes, or variables that its code names")
        arguments = [memory_of(one) for one in self.leaves if isinstance(one, torch.Tensor) and one.numel()]
        own = {*map(memory_of, tensors_of(model).values())}
        if len({*arguments}) < len(arguments) or not own.isdisjoint(arguments):  # those of later calls may not
            raise refused("its arguments share memory with each other, or with parameters or buffers; save it with copies")
        self.state = state

    @property
    def leaves(self) -> list[Any]:
        return pytree.tree_flatten(self.given)[0]

    def told(self, makes: Sequence[Any]) -> dict[str, Any]:
        """What a file tells of the call. `makes`: of each result that is no number, what it is."""
        leaves, spec = pytree.tree_flatten(self.given)
        results, result_spec = pytree.tree_flatten(self.result)
        tensors = iter(makes)
        return {
            "state": self.state.told,
            "arguments": pytree.treespec_dumps(spec),
            "leaves": [_form_of(one, "argument") for one in leaves],
            "results": pytree.treespec_dumps(result_spec),
            "makes": [next(tensors) if isinstance(one, torch.Tensor) else _form_of(one, "result") for one in results],
        }

    @property
    def result_tensors(self) -> list[Any]:
        return [one for one in pytree.tree_flatten(self.result)[0] if isinstance(one, torch.Tensor)]


def tensors_of(model: torch.nn.Module) -> dict[str, Any]:
    return dict((*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)))


def _form_of(one: Any, what: str) -> Any:
    if isinstance(one, torch.Tensor):
        return {"tensor": [str(one.dtype), [*one.shape], [*one.stride()], str(one.device)]}
    if type(one) not in _NUMBERS:
        raise refused(f"an {what} is a {type(one).__name__}" if what[0] in "aeiou" else f"a {what} is a {type(one).__name__}")
    return {"value": one}


# Calling it


class SavedCall:
    """What calls a model as a file says: called, it returns a tuple of the result, or None if the call is of another kind or the model has
    changed. It has the members of a graph that a report reads. `about`: as `RecordedCall.told` made it."""

    reason = between = ""
    options: dict[str, Any]
    layers: Sequence[Any]
    decisions: Sequence[Any]

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self._path, self._about, self._of_another = f'"{printable(str(path))}"', about, False
        self._leaves = [_leaf(one) for one in about["leaves"]]
        plain = pytree.tree_flatten(((0,) * len(self._leaves), {}))[1]
        self._arguments, self._results = (pytree.treespec_loads(about[which]) for which in ("arguments", "results"))
        self._is_plain = self._arguments == plain and all(isinstance(one, _Leaf) for one in self._leaves)

    def of(self, model: torch.nn.Module) -> "SavedCall":
        """For this model. OperandError names where it differs from that of the file."""
        self._state = ModelState(model)
        self._differ("", self._state.told, self._about["state"])
        places = [(of, name) for one in model.modules() for of in (one._parameters, one._buffers) for name in of]
        self._places = [(of, name) for of, name in places if of[name] is not None]
        self._forms = self._forms_of(self._now())
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

    def _forms_of(self, tensors: Sequence[Any]) -> list[Any]:
        return [*map(torch.Tensor.size, tensors), *map(torch.Tensor.stride, tensors), *map(attrgetter("dtype"), tensors)]

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any] | None:
        if self._of_another or not self._settings_are_same():
            return None
        leaves = [*args] if self._is_plain and not kwargs else self._flat(args, kwargs)
        if leaves is None or len(leaves) != len(self._leaves) or not all(map(_fits, leaves, self._leaves)):
            return None
        now = self._now()
        if not self._state.unchanged() or self._forms_of(now) != self._forms or self._changed(now):
            self._of_another, self.decisions = True, []  # another model from now on
            self._forget()
            return None
        found = self._computed(leaves)
        return None if found is None else (pytree.tree_unflatten(found, self._results),)

    def _flat(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        return leaves if spec == self._arguments else None

    def _settings_are_same(self) -> bool:
        raise NotImplementedError

    def _changed(self, tensors: Sequence[Any]) -> bool:
        """Whether the numbers of these tensors have changed, where that matters."""
        raise NotImplementedError

    def _forget(self) -> None:
        """Frees what no call will need."""
        raise NotImplementedError

    def _computed(self, leaves: Sequence[Any]) -> list[Any] | None:
        """The results of a call with these arguments; None if it is to be captured."""
        raise NotImplementedError


class _Leaf(tuple[Any, ...]):
    """(type, shape, strides, device) of a tensor."""


def _leaf(kept: Mapping[str, Any]) -> Any:
    if "value" in kept:
        return kept["value"]
    dtype, shape, strides, device = kept["tensor"]
    return _Leaf((getattr(torch, dtype.removeprefix("torch.")), torch.Size(shape), tuple(strides), torch.device(device)))


def _fits(one: Any, kept: Any) -> bool:
    if isinstance(kept, _Leaf):
        return isinstance(one, torch.Tensor) and (one.dtype, one.shape, one.stride(), one.device) == kept
    return type(one) is type(kept) and one == kept
